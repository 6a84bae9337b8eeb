"""Take back access that was revoked after the time to which a database was restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.sessions.models import Session
from django.db import transaction

from portal.models import ApiToken, EntryCode, User, WorkspaceSession
from portal.services import audit
from portal.services.people.api_tokens import revoke_all
from scheduler import services as scheduling
from scheduler.models import Host


@dataclass(frozen=True)
class RevokedAccess:
    """The access that was taken back: tokens as "OWNER: NAME (PREFIX)", accounts and hosts by name."""

    tokens: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    passwords: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


def present_access() -> dict[str, Any]:
    """Return the access that is denied now, as JSON values: the argument of `revoke_again`.

    Passwords are hashes, as in the database. Keep the result as secret as the database.
    """
    return {
        "revoked_tokens": list(
            ApiToken.objects.exclude(revoked_at=None).values_list("token_hash", flat=True)
        ),
        "closed_accounts": list(User.objects.filter(is_active=False).values_list("username", flat=True)),
        "passwords": dict(User.objects.values_list("username", "password")),
        "hosts_without_credential": list(
            Host.objects.filter(credential_hash="").values_list("name", flat=True)
        ),
    }


@transaction.atomic
def revoke_again(access: Mapping[str, Any], *, now: datetime, via: str = "program") -> RevokedAccess:
    """Revoke in a restored database the access that a newer state of it denies.

    ``access`` is the `present_access` of the newer state. Each change gets an audit record. All sessions end,
    because a session that was ended after the restored time is valid again.
    """
    end_all_sessions(now)
    tokens = ApiToken.objects.filter(token_hash__in=access["revoked_tokens"])
    closed = []
    for user in User.objects.filter(username__in=access["closed_accounts"], is_active=True):
        user.is_active = False
        user.save(update_fields=["is_active"])
        audit.record(
            actor=None,
            via=via,
            now=now,
            verb="change_user",
            target=user,
            before={"is_active": True},
            after={"is_active": False},
        )
        closed.append(user.username)
    return RevokedAccess(
        tokens=_revoke(list(tokens.filter(revoked_at=None).select_related("user")), now, via),
        accounts=sorted(closed),
        passwords=_set_later_passwords(access["passwords"], now, via),
        hosts=scheduling.revoke_credentials_again(access["hosts_without_credential"], now=now),
    )


@transaction.atomic
def revoke_all_tokens(*, now: datetime, via: str = "program") -> RevokedAccess:
    """Revoke every API token and end all sessions, because later revocations are unknown."""
    end_all_sessions(now)
    tokens = ApiToken.objects.filter(revoked_at=None).select_related("user")
    return RevokedAccess(tokens=_revoke(list(tokens), now, via))


def end_all_sessions(now: datetime) -> None:
    """End all sessions of the portal and of workspaces, and all entry codes."""
    Session.objects.all().delete()
    EntryCode.objects.filter(used_at=None).update(used_at=now)
    WorkspaceSession.objects.filter(ended_at=None).update(ended_at=now)


def _revoke(tokens: list[ApiToken], now: datetime, via: str) -> list[str]:
    revoke_all(ApiToken.objects.filter(pk__in=[token.pk for token in tokens]), now)
    for token in tokens:
        audit.record(actor=None, via=via, now=now, verb="revoke_token", target=token)
    return sorted(f"{token.user.get_username()}: {token.name} ({token.prefix}...)" for token in tokens)


def _set_later_passwords(passwords: Mapping[str, str], now: datetime, via: str) -> list[str]:
    changed = []
    for user in User.objects.filter(username__in=passwords).order_by("username"):
        if user.password != passwords[user.username]:
            user.password = passwords[user.username]
            user.save(update_fields=["password"])
            audit.record(actor=None, via=via, now=now, verb="set_password", target=user)
            changed.append(user.username)
    return changed
