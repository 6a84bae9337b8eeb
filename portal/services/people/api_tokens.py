"""Create, revoke and verify API tokens."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import ApiToken, User
from portal.redis_state.access_revocation import publish_rights_changed
from portal.services import audit
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected

MAX_TOKEN_LIFETIME = timedelta(days=366)
TOKEN_PREFIX = "gpp_"


def create_token(
    *, actor: User, name: str, now: datetime, expires_at: datetime | None = None, via: str = "web"
) -> tuple[ApiToken, str]:
    """Create a token for the API and the CLI. Return the row and the text of the token.

    Only the hash of the text is stored. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "own.change")
    checks = InputChecks()
    name = checks.text("name", name)
    if expires_at is not None:
        expires_at = checks.aware_datetime("expires_at", expires_at)
        if "expires_at" not in checks.problems and not now < expires_at <= now + MAX_TOKEN_LIFETIME:
            allowed = f"after now and up to {now + MAX_TOKEN_LIFETIME:%Y-%m-%d}, or nothing"
            checks.note(
                "expires_at",
                expires_at.isoformat(),
                administration_problems.EXPIRY_INVALID.format(
                    expires_at=expires_at.isoformat(), allowed=allowed
                ),
            )
    checks.done()
    text = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
    with transaction.atomic():
        token = ApiToken.objects.create(
            user=actor,
            name=name,
            prefix=text[:12],
            token_hash=hash_token(text),
            created_at=now,
            expires_at=expires_at,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="create_token",
            target=token,
            after=audit.audited_fields(token, "name", "prefix", "expires_at"),
        )
    return token, text


def revoke_token(*, actor: User, token: ApiToken, now: datetime, via: str = "web") -> ApiToken:
    """Revoke a token at once, and end the workspaces that were opened with it.

    Raises NotAllowed. Raises OperationRejected if the token was revoked before.
    """
    policy.require(actor, "token.revoke", token)
    with transaction.atomic():
        if not ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now):
            raise OperationRejected("token_is_revoked", {"name": token.name})
        publish_rights_changed()
        token.refresh_from_db()
        audit.record(actor=actor, via=via, now=now, verb="revoke_token", target=token)
    return token


def token_in_force(text: str, now: datetime) -> ApiToken | None:
    """Return the valid token with this text, with its user loaded. Return None if there is none.

    The time of the token's last use is stored, at most once a minute.
    """
    token = _token_of_text(text)
    if token is None or not token.is_in_force(now):
        return None
    if token.last_used_at is None or now - token.last_used_at > timedelta(minutes=1):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def expired_token(text: str, now: datetime) -> ApiToken | None:
    """Return the token with this text if it has expired. Return None if it was revoked, too."""
    token = _token_of_text(text)
    if token is None or token.revoked_at is not None or not token.user.is_active:
        return None
    return token if token.expires_at is not None and token.expires_at <= now else None


def _token_of_text(text: str) -> ApiToken | None:
    """Return the token with this text.

    The database compares hashes, so the duration of the comparison says nothing about the text of a token.
    """
    return ApiToken.objects.select_related("user").filter(token_hash=hash_token(text)).first()


def hash_token(text: str) -> str:
    """Return the hash of a token's text, which is stored instead of the text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
