"""Send messages to chat services through apprise."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

import apprise

from portal.notices.channels.attempts import Attempt
from portal.notices.channels.messages import OutgoingMessage
from portal.services.people.notice_channels.addresses import chat_service, service_host_problem

MAX_LOG_TEXT = 200


def send_to_service(message: OutgoingMessage) -> Attempt:
    """Send a message to a chat service. The log of apprise says why a service refused it."""
    parts = urlsplit(message.address)
    problem = service_host_problem(parts.scheme, parts.hostname or "", parts.port)
    if problem:
        return Attempt(False, problem, reached=False)
    service = chat_service(message.address)
    if service is None:
        return Attempt(False, "the address is not complete for its service")
    text = "\n\n".join(f"{line.sentence} {line.url}".strip() for line in message.lines)
    with apprise.LogCapture(level=logging.WARNING) as captured:
        sent = service.notify(title=message.subject, body=text, body_format=apprise.NotifyFormat.TEXT)
        log = captured.getvalue()
    if sent:
        return Attempt(True, "the service took the message")
    return Attempt(False, _last_line(log) or "the service did not take the message")


def _last_line(log: str) -> str:
    """Return the last line of apprise's log without its time."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1].rpartition(" - ")[2][:MAX_LOG_TEXT] if lines else ""
