"""The one place that writes audit records. The table refuses UPDATE and DELETE by a trigger (see migrations)."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import models

from portal.models import AuditEvent, User
from portal.policy import team_id_of


def facts(row: models.Model, *fields: str) -> dict[str, Any]:
    """The named fields of a row as JSON values, for ``before`` and ``after``."""
    return {name: _plain(getattr(row, name)) for name in fields}


def record(
    *,
    actor: User | None,
    via: str,
    now: datetime,
    verb: str,
    target: models.Model,
    team_id: int | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    why: str = "",
) -> AuditEvent:
    """Write who did what to what; called inside the verb's transaction. Without an actor it was the program itself."""
    return AuditEvent.objects.create(
        at=now,
        actor=actor,
        actor_name=actor.get_username() if actor else "gpupool",
        verb=verb,
        target=f"{target._meta.model_name}:{getattr(target, 'public_id', target.pk)}",
        target_name=_name_of(target)[:120],
        team_id=team_id if team_id is not None else team_id_of(target),
        before=_plain(before),
        after=_plain(after),
        why=why,
        via=via,
    )


def _name_of(target: models.Model) -> str:
    """As people call it. What has no name of its own is called after its kind, never by its row's number."""
    own = getattr(target, "name", "") or getattr(target, "username", "")
    says_itself = type(target).__str__ is not models.Model.__str__
    return str(own or (target if says_itself else target._meta.verbose_name))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return value
