"""Write mails into the log, for installations without a mail server."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend

from config.secrets_in_logs import without_secrets

log = structlog.get_logger(__name__)


class LogMailBackend(BaseEmailBackend):
    """A mail backend for installations without a mail server: it writes mails into the log.

    One-time links are hidden. An operator gives such a link to the person instead.
    """

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Write the mails into the log, and return their number."""
        for message in email_messages:
            log.info(
                "mail written into the log, because GPUPOOL_EMAIL_URL names no mail server",
                to=", ".join(message.recipients()),
                subject=str(message.subject),
                text=without_secrets(str(message.body)),
            )
        return len(email_messages)
