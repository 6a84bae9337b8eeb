"""Check that no sealed audit record and no seal was removed or changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime

from django.db import transaction

from portal import locks
from portal.models import AuditEvent, AuditProgress, AuditSeal
from portal.services.audit_trail.seals import (
    FIRST_PREVIOUS,
    event_digest,
    event_values,
    highest_settled_event,
    seal_digest,
    unsealed_events,
)

SEALS_PER_CALL = 50
MAX_STORED_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A difference between the records and their seals.

    ``code``: event_removed, event_changed, event_not_sealed, seal_removed or seal_changed. ``event``: the id
    of the record; None if a seal itself is concerned.
    """

    code: str
    seal: int | None
    event: int | None = None


def find_differences(after: int = 0, limit: int | None = None) -> Iterator[AuditFinding]:
    """Check the seals with a number above ``after``, at most ``limit`` of them."""
    previous = AuditSeal.objects.filter(number=after).first()
    number, digest = after, previous.digest if previous else FIRST_PREVIOUS
    seals = AuditSeal.objects.filter(number__gt=after).order_by("number")
    for seal in seals[:limit] if limit is not None else seals.iterator():
        for missing in range(number + 1, seal.number):
            yield AuditFinding("seal_removed", missing)
        entries = list(seal.entries.order_by("event_id").values_list("event_id", "digest"))
        computed = seal_digest(seal.number, seal.sealed_at, seal.previous, entries)
        follows = seal.previous == digest or seal.number != number + 1
        if not follows or computed != seal.digest or len(entries) != seal.events:
            yield AuditFinding("seal_changed", seal.number)
        yield from _changed_events(seal.number, entries)
        number, digest = seal.number, seal.digest


def _changed_events(seal: int, entries: list[tuple[int, str]]) -> Iterator[AuditFinding]:
    found = AuditEvent.objects.in_bulk([event_id for event_id, _ in entries])
    for event_id, digest in entries:
        event = found.get(event_id)
        if event is None:
            yield AuditFinding("event_removed", seal, event_id)
        elif event_digest(event_values(event)) != digest:
            yield AuditFinding("event_changed", seal, event_id)


def events_without_seal(now: datetime) -> Iterator[AuditFinding]:
    """Find records that are old enough to be sealed, and have no seal: they were inserted past the portal."""
    settled = highest_settled_event(now)
    for pk in unsealed_events().filter(pk__lte=settled).order_by("pk").values_list("pk", flat=True):
        yield AuditFinding("event_not_sealed", None, pk)


def check_next_seals(now: datetime) -> int:
    """Check some seals, and continue with the next ones in the next call. Return the number of findings.

    After the last seal, the result is stored, and the next call begins with the first seal again.
    """
    with transaction.atomic():
        progress = locks.lock_audit_progress()
        found = list(find_differences(progress.checked_seal, SEALS_PER_CALL))
        progress.new_findings = [*progress.new_findings, *map(asdict, found)][:MAX_STORED_FINDINGS]
        numbers = AuditSeal.objects.filter(number__gt=progress.checked_seal).order_by("number")
        checked = list(numbers.values_list("number", flat=True)[:SEALS_PER_CALL])
        progress.checked_seal = checked[-1] if checked else progress.checked_seal
        if len(checked) < SEALS_PER_CALL:
            unsealed = list(events_without_seal(now))
            found += unsealed
            progress.findings = [*progress.new_findings, *map(asdict, unsealed)][:MAX_STORED_FINDINGS]
            progress.checked_at, progress.checked_seal, progress.new_findings = now, 0, []
        progress.save()
    return len(found)


@dataclass(frozen=True, slots=True)
class AuditIntegrity:
    """The state of the chain of seals, and of the stream of records.

    ``undelivered``: sealed records that the receiver does not have; None without a receiver.
    """

    seal: int
    digest: str
    sealed_at: datetime | None
    unsealed: int
    checked_at: datetime | None
    findings: list[AuditFinding]
    undelivered: int | None
    undelivered_since: datetime | None
    delivered_at: datetime | None
    failing_since: datetime | None
    failure: str


def audit_integrity(now: datetime, *, has_receiver: bool) -> AuditIntegrity:
    """Return the state of the chain. The number of queries is fixed."""
    progress = AuditProgress.objects.filter(pk=1).first() or AuditProgress()
    last = AuditSeal.objects.order_by("-number").first()
    waiting = AuditSeal.objects.filter(number__gt=progress.delivered_seal).order_by("number")
    counts = list(waiting.values_list("events", "sealed_at")) if has_receiver else []
    return AuditIntegrity(
        seal=last.number if last else 0,
        digest=last.digest if last else "",
        sealed_at=last.sealed_at if last else None,
        unsealed=unsealed_events(highest_settled_event(now)).count(),
        checked_at=progress.checked_at,
        findings=[AuditFinding(**finding) for finding in progress.findings],
        undelivered=sum(events for events, _ in counts) if has_receiver else None,
        undelivered_since=counts[0][1] if counts else None,
        delivered_at=progress.delivered_at,
        failing_since=progress.failing_since,
        failure=progress.failure,
    )


def has_seal(number: int, digest: str) -> bool:
    """Return True if the chain has this seal. A receiver or a person has noted it outside the database."""
    return AuditSeal.objects.filter(number=number, digest=digest).exists()
