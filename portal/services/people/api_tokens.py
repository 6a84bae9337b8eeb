"""Create, revoke and verify API tokens."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet

from portal import locks, policy
from portal.input_checks import InputChecks, display_value
from portal.models import ApiToken, TokenScope, User
from portal.redis_state.access_revocation import publish_rights_changed
from portal.services import audit
from portal.services.people.security_settings import security_settings
from portal.wording.problems import administration_problems
from scheduler.core.rejection import OperationRejected

TOKEN_PREFIX = "gpp_"
USUAL_SCOPES = (TokenScope.READ, TokenScope.SUBMIT)


def create_token(
    *,
    actor: User,
    name: str,
    now: datetime,
    user: User | None = None,
    scopes: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    parent: ApiToken | None = None,
    via: str = "web",
) -> tuple[ApiToken, str]:
    """Create a token for the API and the CLI. Return the row and the text of the token.

    ``user`` is a service account; None means the actor. ``parent`` is the token that authenticated the
    request. The new token has no scope that its parent lacks, and ends no later. If ``scopes`` is None, it
    has the scopes of its parent, or all. If ``expires_at`` is None, it ends as late as possible. Only the
    hash of the text is stored. Raises Invalid, NotAllowed. Raises OperationRejected if the parent was revoked
    meanwhile.
    """
    owner = actor if user is None else user
    if owner == actor:
        policy.require(actor, "own.change")
    else:
        policy.require(actor, "service_account.change", owner)
    checks = InputChecks()
    name = checks.text("name", name)
    chosen = _checked_scopes(checks, scopes, parent)
    end = _checked_end(checks, expires_at, parent, now)
    checks.done()
    text = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
    with transaction.atomic():
        if parent is not None:
            kept = locks.lock_token(parent.pk)
            if kept is None or kept.revoked_at is not None:
                raise OperationRejected("token_is_revoked", {"name": parent.name})
        token = ApiToken.objects.create(
            user=owner,
            name=name,
            prefix=text[:12],
            token_hash=hash_token(text),
            scopes=chosen,
            parent=parent,
            created_at=now,
            expires_at=end,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="create_token",
            target=token,
            team_id=owner.service_team_id,
            after={
                **audit.audited_fields(token, "name", "prefix", "scopes", "expires_at"),
                "user": owner.username,
            },
        )
    return token, text


def latest_end(parent: ApiToken | None, now: datetime) -> datetime:
    """Return the latest end of a token that is created now, by the settings and by its parent."""
    end = now + timedelta(days=security_settings().token_days)
    return end if parent is None else min(end, parent.expires_at)


def _checked_end(
    checks: InputChecks, expires_at: datetime | None, parent: ApiToken | None, now: datetime
) -> datetime:
    latest = latest_end(parent, now)
    if expires_at is None:
        return latest
    end = checks.aware_datetime("expires_at", expires_at)
    # A browser counts the days of the limit from the time at which the page was sent.
    if "expires_at" not in checks.problems and not now < end <= latest:
        allowed = f"after now and up to {latest.isoformat(timespec='seconds')}"
        if parent is not None and latest == parent.expires_at:
            allowed += f", the end of the token {parent.name}"
        checks.note(
            "expires_at",
            end.isoformat(),
            administration_problems.EXPIRY_INVALID.format(expires_at=end.isoformat(), allowed=allowed),
        )
    return end


def _checked_scopes(checks: InputChecks, scopes: Sequence[str] | None, parent: ApiToken | None) -> list[str]:
    """Return the scopes in their usual order. They must be scopes of the parent."""
    offered = [scope for scope in TokenScope.values if parent is None or scope in parent.scopes]
    if scopes is None:
        return offered
    unknown = [scope for scope in scopes if scope not in offered]
    if unknown or not scopes:
        allowed = f"one or more of {', '.join(offered)}"
        if parent is not None:
            allowed += f", the scopes of the token {parent.name}"
        given = ", ".join(map(str, unknown)) or "empty"
        checks.note(
            "scopes",
            given,
            administration_problems.TOKEN_SCOPES.format(given=display_value(given), allowed=allowed),
        )
    return [scope for scope in offered if scope in scopes]


def revoke_token(*, actor: User, token: ApiToken, now: datetime, via: str = "web") -> ApiToken:
    """Revoke a token and the tokens that it created, and end the workspaces that were opened with them.

    Raises NotAllowed. Raises OperationRejected if the token was revoked before.
    """
    policy.require(actor, "token.revoke", token)
    with transaction.atomic():
        if not revoke_all(ApiToken.objects.filter(pk=token.pk), now):
            raise OperationRejected("token_is_revoked", {"name": token.name})
        publish_rights_changed()
        token.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="revoke_token",
            target=token,
            team_id=token.user.service_team_id,
            before={"user": token.user.username, "prefix": token.prefix},
        )
    return token


def revoke_all(tokens: QuerySet[ApiToken], now: datetime) -> int:
    """Revoke these tokens and all tokens that they created. Return how many were in force.

    Call it inside a transaction. A token that one of these tokens creates at the same time is revoked, too:
    the update waits for the lock that ``create_token`` holds on the parent.
    """
    count, ids = 0, list(tokens.filter(revoked_at=None).values_list("pk", flat=True))
    while ids:
        count += ApiToken.objects.filter(pk__in=ids, revoked_at=None).update(revoked_at=now)
        ids = list(ApiToken.objects.filter(parent__in=ids, revoked_at=None).values_list("pk", flat=True))
    return count


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
    if token is None or token.revoked_at is not None or not token.user.may_authenticate():
        return None
    return token if token.expires_at <= now else None


def _token_of_text(text: str) -> ApiToken | None:
    """Return the token with this text.

    The database compares hashes, so the duration of the comparison says nothing about the text of a token.
    """
    return ApiToken.objects.select_related("user__service_owner").filter(token_hash=hash_token(text)).first()


def hash_token(text: str) -> str:
    """Return the hash of a token's text, which is stored instead of the text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
