"""Stream sealed audit records to the receiver, in the order of their seals and at least once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from portal import locks
from portal.models import AuditEvent, AuditProgress, AuditSeal
from portal.services.audit_trail.receivers import ReceiverError, deliver
from portal.services.audit_trail.seals import event_values

MAX_SEALS_PER_CALL = 20


def stream_records(url: str, token: str, now: datetime) -> int:
    """Send the seals that the receiver does not have, each with its records. Return the number of seals.

    A seal counts as delivered once the receiver has confirmed it. After a failure the next call sends the
    same seal again, so nothing is lost.
    """
    done = 0
    for _ in range(MAX_SEALS_PER_CALL):
        delivered = AuditProgress.objects.filter(pk=1).values_list("delivered_seal", flat=True).first() or 0
        seal = AuditSeal.objects.filter(number__gt=delivered).order_by("number").first()
        if seal is None:
            break
        try:
            deliver(url, token, seal_records(seal))
        except ReceiverError as error:
            _record_failure(str(error), now)
            break
        _record_delivery(seal.number, now)
        done += 1
    return done


def seal_records(seal: AuditSeal) -> list[dict[str, Any]]:
    """Return the records of a seal as JSON values, and the seal itself at the end."""
    ids = list(seal.entries.order_by("event_id").values_list("event_id", flat=True))
    events = AuditEvent.objects.in_bulk(ids)
    records = [
        {"kind": "audit", "seal": seal.number, **event_values(events[pk])} for pk in ids if pk in events
    ]
    end = {
        "kind": "audit_seal",
        "id": f"seal-{seal.number}",
        "at": seal.sealed_at.astimezone(UTC).isoformat(),
        "seal": seal.number,
        "events": seal.events,
        "previous": seal.previous,
        "digest": seal.digest,
    }
    return [*records, end]


@transaction.atomic
def _record_delivery(seal: int, now: datetime) -> None:
    progress = locks.lock_audit_progress()
    progress.delivered_seal = max(progress.delivered_seal, seal)
    progress.delivered_at, progress.failing_since, progress.failure = now, None, ""
    progress.save(update_fields=["delivered_seal", "delivered_at", "failing_since", "failure"])


@transaction.atomic
def _record_failure(text: str, now: datetime) -> None:
    progress = locks.lock_audit_progress()
    progress.failing_since, progress.failure = progress.failing_since or now, text[:300]
    progress.save(update_fields=["failing_since", "failure"])
