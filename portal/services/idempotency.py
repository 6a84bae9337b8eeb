"""Give a repeated request the answer of the first one.

The row with the answer is written in the transaction of the change. So either both exist or neither.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.db import transaction

from portal import locks
from portal.errors import Invalid, ServiceError
from portal.input_checks import display_value
from portal.models import IdempotencyRecord, User
from portal.wording.problems import input_problems
from scheduler.core.rejection import OperationRejected

KEY_LIFETIME = timedelta(days=1)
KEY_PATTERN = re.compile(r"[!-~]{1,255}")


class IdempotencyKeyReused(ServiceError):
    """The key belongs to another request of the user."""

    status = 422


@dataclass(frozen=True)
class RequestAnswer:
    """A status and a body. ``is_repeated`` is True if an earlier request produced them."""

    status: int
    body: bytes
    is_repeated: bool = False


def check_key(key: str) -> None:
    """Raise Invalid unless the key has 1 to 255 printable ASCII characters without spaces."""
    if not KEY_PATTERN.fullmatch(key):
        allowed = "1 to 255 printable ASCII characters without spaces, such as a UUID"
        message = input_problems.NOT_ALLOWED.format(
            field="Idempotency-Key", given=display_value(key), allowed=allowed
        )
        raise Invalid({"Idempotency-Key": message}, {"Idempotency-Key": key[:100]})


def request_digest(method: str, path: str, body: bytes) -> str:
    """Return the digest by which a repeated request is recognised."""
    head = f"{method} {path}\n".encode("utf-8", "surrogateescape")
    return hashlib.sha256(head + hashlib.sha256(body).digest()).hexdigest()


def answer_once(
    *, actor: User, key: str, digest: str, now: datetime, act: Callable[[], RequestAnswer]
) -> RequestAnswer:
    """Return the stored answer of the key, or call ``act`` and store its answer in the same transaction.

    Only a successful answer is stored: a refused request changed nothing, so its repetition is carried out.
    Raises IdempotencyKeyReused if the key belongs to another request. Raises OperationRejected
    ``request_in_progress`` while the first request runs.
    """
    check_key(key)
    key_hash = hashlib.sha256(key.encode()).hexdigest()
    with transaction.atomic():
        if not locks.try_lock_request(actor.pk, key_hash):
            raise OperationRejected("request_in_progress")
        rows = IdempotencyRecord.objects.filter(user=actor, key_hash=key_hash)
        row = rows.filter(created_at__gt=now - KEY_LIFETIME).first()
        if row is not None:
            if row.digest != digest:
                raise IdempotencyKeyReused(input_problems.IDEMPOTENCY_KEY_REUSED)
            return RequestAnswer(row.status, _decrypted(key, bytes(row.answer)), is_repeated=True)
        answer = act()
        if 200 <= answer.status < 300:
            rows.delete()
            IdempotencyRecord.objects.create(
                user=actor,
                key_hash=key_hash,
                digest=digest,
                status=answer.status,
                answer=_cipher(key).encrypt(answer.body),
                created_at=now,
            )
        return answer


def delete_expired_answers(now: datetime) -> int:
    """Delete the answers whose keys have expired, and return their number. A repeated call does no harm."""
    return IdempotencyRecord.objects.filter(created_at__lte=now - KEY_LIFETIME).delete()[0]


def _cipher(key: str) -> Fernet:
    secret = hmac.new(settings.SECRET_KEY.encode(), f"idempotency answer {key}".encode(), hashlib.sha256)
    return Fernet(base64.urlsafe_b64encode(secret.digest()))


def _decrypted(key: str, text: bytes) -> bytes:
    try:
        return _cipher(key).decrypt(text)
    except InvalidToken:
        # The server has a new secret key. The request must not be carried out a second time.
        raise OperationRejected("answer_is_unreadable") from None
