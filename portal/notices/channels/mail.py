"""Send messages as mail, in text and HTML."""

from __future__ import annotations

import smtplib
from urllib.parse import urlsplit

from django.conf import settings
from django.core.mail import EmailMultiAlternatives, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.template.loader import render_to_string

from portal.notices.channels.attempts import Attempt
from portal.notices.channels.messages import OutgoingMessage

TIMEOUT_SECONDS = 10


class MailSender:
    """Sends mails over one connection. Close it after the last mail."""

    def __init__(self) -> None:
        self._connection: BaseEmailBackend = get_connection(timeout=TIMEOUT_SECONDS)

    def send(self, message: OutgoingMessage) -> Attempt:
        """Send a mail. A mail that the server refuses for good is not tried at other times of this run."""
        if not message.address:
            return Attempt(False, "the account has no mail address")
        try:
            self._connection.send_messages([mail_of(message)])
        except (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError, smtplib.SMTPSenderRefused) as error:
            self._connection.close()
            return Attempt(False, f"the mail server refused the mail: {_reason(error)}")
        except (smtplib.SMTPException, OSError) as error:
            self._connection.close()
            return Attempt(False, f"the mail server did not take the mail: {_reason(error)}", reached=False)
        return Attempt(True, "the mail server took the mail")

    def close(self) -> None:
        """Close the connection to the mail server."""
        self._connection.close()


def mail_of(message: OutgoingMessage) -> EmailMultiAlternatives:
    """Return the mail. A repetition has the same Message-ID, so mail programs show it once."""
    host = urlsplit(settings.GPUPOOL_PORTAL_URL).hostname
    context = {"message": message, "portal": settings.GPUPOOL_PORTAL_URL}
    mail = EmailMultiAlternatives(
        subject=f"[gpupool] {message.subject}",
        body=render_to_string("mail/notice.txt", context),
        to=[message.address],
        headers={
            "Message-ID": f"<{message.message_id}@{host}>",
            "Auto-Submitted": "auto-generated",
            "List-Unsubscribe": f"<{message.settings_url}>",
        },
    )
    mail.attach_alternative(render_to_string("mail/notice.html", context), "text/html")
    if message.calendar is not None:
        mail.attach("reservation.ics", message.calendar, "text/calendar")
    return mail


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
