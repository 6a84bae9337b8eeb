"""Seal committed audit records in a chain of hashes.

A record gets its id before its transaction commits, so a lower id can become visible after a higher one. Each
seal therefore names its records one by one. Records are streamed in the order of the seals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from portal import locks
from portal.models import AuditEvent, AuditSeal, SealedAuditEvent

EVENTS_PER_SEAL = 1000
MAX_SEALS_PER_CALL = 50
# Records of a transaction that is open for longer would stay unsealed. The database ends idle transactions
# after 30 s.
LONGEST_TRANSACTION = timedelta(days=1)
FIRST_PREVIOUS = "0" * 64
SEALED_FIELDS = (
    "id",
    "at",
    "actor_id",
    "actor_name",
    "verb",
    "target",
    "target_name",
    "team_id",
    "before",
    "after",
    "why",
    "via",
)


def event_values(event: AuditEvent) -> dict[str, Any]:
    """Return the fields of a record as JSON values."""
    values = {name: getattr(event, name) for name in SEALED_FIELDS}
    return {**values, "at": event.at.astimezone(UTC).isoformat()}


def event_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record. ``values`` is the result of `event_values`."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def seal_digest(number: int, sealed_at: datetime, previous: str, entries: Iterable[tuple[int, str]]) -> str:
    """Return the SHA-256 of a seal. ``entries`` are the ids and digests of its records, sorted by id."""
    digest = hashlib.sha256(f"{number}\n{sealed_at.astimezone(UTC).isoformat()}\n{previous}\n".encode())
    for event_id, event in entries:
        digest.update(f"{event_id}:{event}\n".encode())
    return digest.hexdigest()


def seal_new_events(now: datetime) -> int:
    """Seal the committed records that have no seal yet. Return their number.

    A repeated call does no harm. If there are very many records, later calls seal the remaining ones.
    """
    sealed = 0
    for _ in range(MAX_SEALS_PER_CALL):
        count = _seal_some(now)
        sealed += count
        if count < EVENTS_PER_SEAL:
            break
    return sealed


@transaction.atomic
def _seal_some(now: datetime) -> int:
    locks.lock_audit_progress()
    last = AuditSeal.objects.order_by("-number").first()
    events = list(unsealed_events(highest_settled_event(now)).order_by("pk")[:EVENTS_PER_SEAL])
    if not events:
        return 0
    number, previous = (last.number + 1, last.digest) if last else (1, FIRST_PREVIOUS)
    entries = [(event.pk, event_digest(event_values(event))) for event in events]
    seal = AuditSeal.objects.create(
        number=number,
        sealed_at=now,
        events=len(entries),
        highest_event=max(entries[-1][0], last.highest_event if last else 0),
        previous=previous,
        digest=seal_digest(number, now, previous, entries),
    )
    SealedAuditEvent.objects.bulk_create(
        SealedAuditEvent(event_id=event_id, seal=seal, digest=digest) for event_id, digest in entries
    )
    return len(entries)


def highest_settled_event(now: datetime) -> int:
    """Return an id up to which all records are sealed, because no older transaction can still commit."""
    settled = AuditSeal.objects.filter(sealed_at__lt=now - LONGEST_TRANSACTION).order_by("-number").first()
    return settled.highest_event if settled else 0


def unsealed_events(above: int | None = None) -> QuerySet[AuditEvent]:
    """Return the records without a seal; with ``above`` only those with a higher id."""
    sealed = SealedAuditEvent.objects.filter(event_id=OuterRef("pk"))
    events = AuditEvent.objects.filter(~Exists(sealed))
    return events if above is None else events.filter(pk__gt=above)
