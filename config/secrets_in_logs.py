"""Keep one-time links and other secret addresses out of logs."""

from __future__ import annotations

import re

from structlog.types import EventDict, WrappedLogger

HIDDEN = "(hidden)"
# The part after each of these addresses gives access to an account, a workspace or a calendar feed.
SECRET_ADDRESS_PATTERN = re.compile(
    r"(/accounts/password/reset/key/|/accounts/break-glass/|/accounts/oidc/[^\s\"'/]+/login/callback/\?"
    r"|/\.gpupool/enter\?[^\s\"']*?code=|/calendar/feed/)[^\s\"'<>]+"
)


def without_secrets(text: str) -> str:
    """Return the text without the secret parts of addresses in it."""
    return SECRET_ADDRESS_PATTERN.sub(rf"\1{HIDDEN}", text)


def hide_secrets(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Hide the secret parts of addresses in all texts of a log event."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = without_secrets(value)
    return event
