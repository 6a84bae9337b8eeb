"""Send messages to webhooks, signed as in the Standard Webhooks specification.

Source: https://github.com/standard-webhooks/standard-webhooks (headers webhook-id, webhook-timestamp and
webhook-signature).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from portal.notices.channels.attempts import Attempt
from portal.notices.channels.messages import OutgoingMessage
from portal.services.people.notice_channels.addresses import AddressRefused, allowed_addresses
from portal.services.people.notice_channels.channels import SECRET_PREFIX

TIMEOUT = urllib3.Timeout(connect=5.0, read=10.0)
MAX_ANSWER_BYTES = 2_000
GONE = 410


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header webhook-signature: ``v1,`` and HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def send_webhook(message: OutgoingMessage) -> Attempt:
    """Post a message. A status from 200 to 299 confirms it. Redirects are not followed.

    The request goes to an address that was checked, so that a changed DNS answer cannot lead it to a private
    network.
    """
    body = json.dumps(message.as_json()).encode()
    timestamp = int(message.tried_at.timestamp())
    parts = urlsplit(message.address)
    host, is_https = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_https else 80)
    headers = {
        "Host": parts.netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "User-Agent": "gpupool",
        "webhook-id": message.message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(message.secret, message.message_id, timestamp, body),
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        address = allowed_addresses(host, port)[0]
        with _pool(address, port, host if is_https else None) as pool:
            answer = pool.urlopen(
                "POST", path, body=body, headers=headers, redirect=False, retries=False, preload_content=False
            )
            answer.read(MAX_ANSWER_BYTES)
            answer.close()
    except AddressRefused as refused:
        return Attempt(False, str(refused), reached=False)
    except (HTTPError, OSError) as error:
        return Attempt(False, f"no answer: {' '.join(str(error).split())[:200]}", reached=False)
    text = f"status {answer.status}"
    return Attempt(200 <= answer.status < 300, text, gone=answer.status == GONE)


def _pool(address: str, port: int, tls_host: str | None) -> urllib3.HTTPConnectionPool:
    """Return a pool of one connection to an IP address. The certificate must be of ``tls_host``."""
    if tls_host is None:
        return urllib3.HTTPConnectionPool(address, port, timeout=TIMEOUT, maxsize=1)
    return urllib3.HTTPSConnectionPool(
        address,
        port,
        timeout=TIMEOUT,
        maxsize=1,
        cert_reqs="CERT_REQUIRED",
        server_hostname=tls_host,
        assert_hostname=tls_host,
    )
