"""Deliver audit records to a receiver: syslog or a webhook."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 10
# Facility "log audit" (13) and severity "informational" (6) of RFC 5424.
SYSLOG_PRIORITY = 13 * 8 + 6
MAX_HOST_NAME = 255


class ReceiverError(Exception):
    """Raised if the receiver has not confirmed the records."""


def deliver(url: str, token: str, records: Sequence[dict[str, Any]]) -> None:
    """Deliver the records in one request or connection. Raises ReceiverError.

    A receiver can get the same record again, so each record has an id.
    """
    scheme = urlsplit(url).scheme
    try:
        if scheme in ("https", "http"):
            _post(url, token, records)
        elif scheme == "syslog+unix":
            _send_datagrams(urlsplit(url).path, records)
        else:
            _send_frames(url, records)
    except (OSError, ValueError) as error:
        raise ReceiverError(_reason(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the receiver answered with status {error.code}"
    if isinstance(error, TimeoutError):
        return f"the receiver did not confirm within {TIMEOUT_SECONDS} s"
    return str(getattr(error, "reason", None) or error)[:300]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects, because the token must reach no other address."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        return None


def _post(url: str, token: str, records: Sequence[dict[str, Any]]) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "gpupool"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"records": list(records)}).encode()
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_SECONDS) as answer:
        answer.read(1000)


def syslog_line(record: dict[str, Any]) -> bytes:
    """Return the record as a message of RFC 5424 with JSON as its text."""
    host = socket.gethostname()[:MAX_HOST_NAME] or "-"
    head = f"<{SYSLOG_PRIORITY}>1 {record['at']} {host} gpupool - audit - "
    return head.encode("ascii", "replace") + json.dumps(record).encode()


def _send_datagrams(path: str, records: Sequence[dict[str, Any]]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect(path)
        for record in records:
            connection.send(syslog_line(record))


def _send_frames(url: str, records: Sequence[dict[str, Any]]) -> None:
    """Send the records with octet counting (RFC 6587), and wait until the receiver closes the connection.

    Syslog has no confirmation. A receiver closes the connection after it has read everything.
    """
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    frames = b"".join(b"%d %s" % (len(line), line) for line in map(syslog_line, records))
    with socket.create_connection(address, timeout=TIMEOUT_SECONDS) as plain:
        if parts.scheme == "syslog+tls":
            context = ssl.create_default_context()
            with context.wrap_socket(plain, server_hostname=parts.hostname) as connection:
                connection.sendall(frames)
                # Wait for the receiver's end of the session. Many receivers only close the connection.
                with contextlib.suppress(ssl.SSLEOFError):
                    connection.unwrap()
            return
        plain.sendall(frames)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(1000):
            pass
