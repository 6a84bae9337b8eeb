"""Write audit records.

No other module writes audit records. A database trigger refuses UPDATE and DELETE on their table (see the
migrations).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import models

from portal.models import AuditEvent, User
from portal.policy import team_id_of


def audited_fields(row: models.Model, *fields: str) -> dict[str, Any]:
    """Return the named fields of a row as JSON values, for ``before`` and ``after``."""
    return {name: _json_value(getattr(row, name)) for name in fields}


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
    """Write one audit record. Call this function inside the transaction of the change.

    ``actor`` is None if no person caused the change.
    """
    event = _event(actor, via, now, verb, target, before, after, why)
    if team_id is not None:
        event.team_id = team_id
    event.save(force_insert=True)
    return event


def record_many(
    *,
    actor: User,
    via: str,
    now: datetime,
    verb: str,
    targets: Iterable[tuple[models.Model, dict[str, Any]]],
    why: str = "",
) -> None:
    """Write one audit record for each target with its ``after``, inside the transaction of the change."""
    events = [_event(actor, via, now, verb, target, None, after, why) for target, after in targets]
    AuditEvent.objects.bulk_create(events, 1_000)


def record_change(
    *, target: models.Model, before: dict[str, Any], actor: User, via: str, now: datetime, verb: str, why: str
) -> AuditEvent:
    """Write the audit record of a change of one row, inside the transaction of the change.

    ``before`` are the audited fields of the row before the change. The record also has the present values of
    these fields.
    """
    after = audited_fields(target, *before)
    return record(
        actor=actor, via=via, now=now, verb=verb, target=target, before=before, after=after, why=why
    )


def _event(
    actor: User | None,
    via: str,
    now: datetime,
    verb: str,
    target: models.Model,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    why: str,
) -> AuditEvent:
    """Return a record that is not saved."""
    return AuditEvent(
        at=now,
        actor=actor,
        actor_name=actor.get_username() if actor else "gpupool",
        verb=verb,
        target=f"{target._meta.model_name}:{getattr(target, 'public_id', target.pk)}",
        target_name=_target_name(target)[:120],
        team_id=team_id_of(target),
        before=_json_value(before),
        after=_json_value(after),
        why=why,
        via=via,
    )


def _target_name(target: models.Model) -> str:
    """Return the name that people use for the row.

    If the row has no name, return the name of its kind. The primary key is never returned.
    """
    own = getattr(target, "name", "") or getattr(target, "username", "")
    has_text = type(target).__str__ is not models.Model.__str__
    return str(own or (target if has_text else target._meta.verbose_name))


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return value
