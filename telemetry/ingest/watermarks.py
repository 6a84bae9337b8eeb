"""Record received batches, and advance the watermark up to which a host's batches are complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import connection, transaction

from telemetry.core.rollup import SAMPLE_REACH_SECONDS
from telemetry.ingest.stream_format import (
    DecodedBatch,
)
from telemetry.models import Batch, SampleGap, SampleWatermark
from telemetry.rollups.host_hours import refresh_host_hours

# A batch that has been missing for this long will not arrive: the agent dropped it, because its spool was
# full.
MISSING_BATCH_TIMEOUT = timedelta(minutes=10)
HOUR_SECONDS = 3600


def insert_new_batches(batches: Sequence[DecodedBatch]) -> list[DecodedBatch]:
    """Insert Batch rows and return the batches that were not stored before.

    A batch at or below the watermark is new only if the watermark skipped it. Waits for a concurrent insert
    of the same batch.
    """
    first: dict[tuple[int, int], DecodedBatch] = {}
    for batch in _not_known_as_stored(batches):
        first.setdefault((batch.host, batch.sequence), batch)
    if not first:
        return []
    ordered = [first[key] for key in sorted(first)]
    columns = [
        (
            each.received,
            each.host,
            each.sequence,
            len(each.units),
            each.rejected,
            *_sample_span(each),
            None if each.refused_until is None else datetime.fromtimestamp(each.refused_until, UTC),
        )
        for each in ordered
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_batch"
            " (received_at, host_id, sequence, rows, rejected_rows, first_sample, last_sample, refused_until)"
            " SELECT * FROM unnest(%s::timestamptz[], %s::bigint[], %s::bigint[], %s::int[], %s::int[],"
            " %s::timestamptz[], %s::timestamptz[], %s::timestamptz[])"
            " ON CONFLICT (host_id, sequence) DO NOTHING RETURNING host_id, sequence",
            [list(column) for column in zip(*columns, strict=True)],
        )
        landed = set(cursor.fetchall())
    return [first[key] for key in sorted(landed)]


def _not_known_as_stored(batches: Sequence[DecodedBatch]) -> list[DecodedBatch]:
    """Return the batches above the watermarks of their hosts, and the batches that were skipped."""
    marks = SampleWatermark.objects.filter(host__in={batch.host for batch in batches})
    watermarks = dict(marks.values_list("host_id", "sequence"))
    late = {batch.host for batch in batches if batch.sequence <= watermarks.get(batch.host, 0)}
    skipped = _skipped_ranges(late)
    return [
        batch
        for batch in batches
        if batch.sequence > watermarks.get(batch.host, 0)
        or any(low <= batch.sequence <= high for low, high in skipped[batch.host])
    ]


def _skipped_ranges(hosts: set[int]) -> dict[int, list[tuple[int, int]]]:
    """Return the (first, last) sequence numbers of the gaps by host id."""
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if hosts:
        gaps = SampleGap.objects.filter(host__in=hosts, cause=SampleGap.Cause.SKIPPED)
        for host, low, high in gaps.values_list("host_id", "first_sequence", "last_sequence"):
            ranges[host].append((low or 0, high or 0))
    return ranges


def _sample_span(batch: DecodedBatch) -> tuple[datetime | None, datetime | None]:
    """Return the times of the first and the last valid sample; None without valid samples."""
    if not len(batch.values):
        return None, None
    times = batch.values[:, 0]
    return (
        datetime.fromtimestamp(float(times.min()), UTC),
        datetime.fromtimestamp(float(times.max()), UTC),
    )


def advance_watermarks(fresh: Sequence[DecodedBatch], now: datetime) -> None:
    """Advance the watermarks of the hosts of ``fresh``, the batches that were just inserted.

    A watermark stops before the first missing batch. A batch that has been missing for MISSING_BATCH_TIMEOUT
    no longer counts as missing: it is recorded as a gap. If a skipped batch arrives after all, its gap
    becomes shorter.
    """
    hosts = sorted({batch.host for batch in fresh})
    marks = _lock_watermarks(hosts)
    for batch in fresh:
        if batch.sequence <= marks[batch.host].sequence:
            _fill_gap(batch)
    _advance(marks, now)


def skip_missing_batches(now: datetime) -> None:
    """Advance the watermarks that wait for a missing batch, even if no more batches arrive."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT b.host_id FROM telemetry_batch b"
            " JOIN telemetry_samplewatermark w ON w.host_id = b.host_id AND b.sequence > w.sequence"
            " WHERE b.received_at <= %s",
            [now - MISSING_BATCH_TIMEOUT],
        )
        hosts = sorted(row[0] for row in cursor.fetchall())
    if hosts:
        with transaction.atomic():
            _advance(_lock_watermarks(hosts), now)


@dataclass
class _Watermark:
    sequence: int
    sampled_until: datetime | None
    agent_instance: str  # installation of the agent that sent the last batch
    host_instance: str  # installation of the host's present agent
    created_at: datetime

    @property
    def known_until(self) -> datetime:
        return self.sampled_until or self.created_at


def _lock_watermarks(hosts: Sequence[int]) -> dict[int, _Watermark]:
    """Return the watermarks of the hosts. The row locks serialise concurrent runs for one host."""
    SampleWatermark.objects.bulk_create(
        [SampleWatermark(host_id=host) for host in hosts], ignore_conflicts=True
    )
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE telemetry_samplewatermark w SET sequence = w.sequence FROM scheduler_host h"
            " WHERE h.id = w.host_id AND w.host_id = ANY(%s)"
            " RETURNING w.host_id, w.sequence, w.sampled_until, w.agent_instance,"
            " h.agent_instance, h.created_at",
            [list(hosts)],
        )
        return {host: _Watermark(*values) for host, *values in cursor.fetchall()}


def _advance(marks: dict[int, _Watermark], now: datetime) -> None:
    hours_before = {host: _hour_of(mark) for host, mark in marks.items()}
    gaps: list[SampleGap] = []
    for host, batches in _batches_above_watermarks(marks).items():
        gaps += _pass_batches(host, marks[host], batches, now)
    SampleGap.objects.bulk_create(gaps)
    columns = [(host, mark.sequence, mark.sampled_until, mark.agent_instance) for host, mark in marks.items()]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE telemetry_samplewatermark w SET sequence = v.sequence, sampled_until = v.sampled_until,"
            " agent_instance = v.agent_instance"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::timestamptz[], %s::text[])"
            " AS v (host_id, sequence, sampled_until, agent_instance)"
            " WHERE w.host_id = v.host_id AND w.sequence < v.sequence",
            [list(column) for column in zip(*columns, strict=True)],
        )
    for gap in gaps:
        refresh_host_hours({gap.host_id}, gap.start)
    refresh_host_hours({host for host, mark in marks.items() if _hour_of(mark) != hours_before[host]})


# sequence, received, first sample, last sample, end of the refused samples
_StoredBatch = tuple[int, datetime, datetime | None, datetime | None, datetime | None]


def _batches_above_watermarks(hosts: Iterable[int]) -> dict[int, list[_StoredBatch]]:
    """Return the stored batches above the watermarks by host id, in order of their numbers."""
    found: dict[int, list[_StoredBatch]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT b.host_id, b.sequence, b.received_at, b.first_sample, b.last_sample, b.refused_until"
            " FROM telemetry_batch b"
            " JOIN telemetry_samplewatermark w ON w.host_id = b.host_id AND b.sequence > w.sequence"
            " WHERE b.host_id = ANY(%s) ORDER BY b.host_id, b.sequence",
            [list(hosts)],
        )
        for host, *batch in cursor.fetchall():
            found[host].append(tuple(batch))
    return found


def _pass_batches(
    host: int, mark: _Watermark, batches: Iterable[_StoredBatch], now: datetime
) -> list[SampleGap]:
    """Advance one watermark to the batch before the first that must wait. Return the unsaved new gaps."""
    gaps: list[SampleGap] = []
    for sequence, received, first_sample, last_sample, refused_until in batches:
        if sequence > mark.sequence + 1 and now - received < MISSING_BATCH_TIMEOUT:
            break
        gaps += _gaps_before(host, mark, sequence, first_sample or refused_until or received)
        mark.sequence, mark.agent_instance = sequence, mark.host_instance
        if refused_until is not None:
            _extend_clock_gap(host, mark, last_sample, refused_until, gaps)
        known = [moment for moment in (mark.sampled_until, last_sample, refused_until) if moment]
        mark.sampled_until = max(known, default=None)
    return gaps


def _extend_clock_gap(
    host: int, mark: _Watermark, last_sample: datetime | None, end: datetime, gaps: list[SampleGap]
) -> None:
    """Add the time of refused samples to ``gaps``, or to the last gap of the host if the two adjoin."""
    start = mark.known_until
    if last_sample is not None and last_sample < end:
        start = max(start, last_sample)
    if end <= start:
        return
    if gaps and gaps[-1].cause == SampleGap.Cause.CLOCK and gaps[-1].end == start:
        gaps[-1].end = end
        return
    stored = SampleGap.objects.filter(host=host, cause=SampleGap.Cause.CLOCK, end=start).first()
    if stored is not None:
        start = stored.start
        stored.delete()
    gaps.append(SampleGap(host_id=host, cause=SampleGap.Cause.CLOCK, start=start, end=end))


def _hour_of(mark: _Watermark) -> int | None:
    if mark.sampled_until is None:
        return None
    return int(mark.sampled_until.timestamp()) // HOUR_SECONDS


def _gaps_before(host: int, mark: _Watermark, sequence: int, first_sample: datetime) -> list[SampleGap]:
    """Return the unsaved gap between the watermark and batch ``sequence``; an empty list if there is none."""
    reinstalled = mark.agent_instance not in ("", mark.host_instance)
    start, end = mark.known_until, max(mark.known_until, first_sample)
    if sequence > mark.sequence + 1:
        return [
            SampleGap(
                host_id=host,
                cause=SampleGap.Cause.SKIPPED,
                first_sequence=mark.sequence + 1,
                last_sequence=sequence - 1,
                start=start,
                end=end,
            )
        ]
    # The new installation continues the sequence numbers, but the spool of the earlier installation is gone.
    # So the time before the first sample is a gap, unless the first sample covers this time.
    if reinstalled and end - start > timedelta(seconds=SAMPLE_REACH_SECONDS):
        return [SampleGap(host_id=host, cause=SampleGap.Cause.REINSTALLED, start=start, end=end)]
    return []


def _fill_gap(batch: DecodedBatch) -> None:
    """Shorten the gap that contains a skipped batch, or split the gap at the batch."""
    gap = SampleGap.objects.filter(
        host=batch.host, first_sequence__lte=batch.sequence, last_sequence__gte=batch.sequence
    ).first()
    if gap is None:
        return
    first_sample, last_sample = _sample_span(batch)
    parts = (
        (gap.first_sequence or 0, batch.sequence - 1, gap.start, first_sample or gap.end),
        (batch.sequence + 1, gap.last_sequence or 0, last_sample or gap.start, gap.end),
    )
    gap.delete()
    SampleGap.objects.bulk_create(
        [
            SampleGap(
                host_id=batch.host,
                cause=SampleGap.Cause.SKIPPED,
                first_sequence=first,
                last_sequence=last,
                start=min(max(start, gap.start), gap.end),
                end=max(min(end, gap.end), min(max(start, gap.start), gap.end)),
            )
            for first, last, start, end in parts
            if first <= last
        ]
    )
    refresh_host_hours({batch.host}, gap.start)


def prune_batches(now: datetime, *, days: int = 2) -> int:
    """Delete old Batch rows up to the watermark, and return the number of deleted rows.

    These rows are not needed to detect doubled batches, because the watermark already rejects such batches.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {Batch._meta.db_table} b USING telemetry_samplewatermark w"
            " WHERE w.host_id = b.host_id AND b.sequence <= w.sequence AND b.received_at < %s",
            [now - timedelta(days=days)],
        )
        return int(cursor.rowcount)
