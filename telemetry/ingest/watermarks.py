"""Record received batches, and advance the watermark up to which a host's batches are complete."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connection

from telemetry.ingest.stream_format import (
    DecodedBatch,
)
from telemetry.models import Batch, SampleWatermark

# A batch that has been missing for this long will not arrive: the agent dropped it, because its spool was
# full.
MISSING_BATCH_TIMEOUT = timedelta(minutes=10)


def insert_new_batches(batches: Sequence[DecodedBatch]) -> list[DecodedBatch]:
    """Insert Batch rows and return the batches that were not stored before.

    Waits for a concurrent insert of the same batch.
    """
    marks = SampleWatermark.objects.filter(host__in={batch.host for batch in batches})
    watermarks = dict(marks.values_list("host_id", "sequence"))
    first: dict[tuple[int, int], DecodedBatch] = {}
    for batch in batches:
        if batch.sequence > watermarks.get(batch.host, 0):
            first.setdefault((batch.host, batch.sequence), batch)
    if not first:
        return []
    ordered = [first[key] for key in sorted(first)]
    columns = [(each.received, each.host, each.sequence, len(each.units), each.rejected) for each in ordered]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_batch (received_at, host_id, sequence, rows, rejected_rows)"
            " SELECT * FROM unnest(%s::timestamptz[], %s::bigint[], %s::bigint[], %s::int[], %s::int[])"
            " ON CONFLICT (host_id, sequence) DO NOTHING RETURNING host_id, sequence",
            [list(column) for column in zip(*columns, strict=True)],
        )
        landed = set(cursor.fetchall())
    return [first[key] for key in sorted(landed)]


def advance_watermarks(hosts: set[int], now: datetime) -> None:
    """Advance each host's watermark to the last batch before the first missing batch.

    A batch that has been missing for MISSING_BATCH_TIMEOUT no longer counts as missing.
    """
    ordered = sorted(hosts)
    SampleWatermark.objects.bulk_create(
        [SampleWatermark(host_id=host) for host in ordered], ignore_conflicts=True
    )
    with connection.cursor() as cursor:
        # The row locks of this UPDATE serialise concurrent runs for one host.
        cursor.execute(
            "UPDATE telemetry_samplewatermark SET sequence = sequence WHERE host_id = ANY(%s)"
            " RETURNING host_id, sequence",
            [ordered],
        )
        marks: dict[int, int] = dict(cursor.fetchall())
        cursor.execute(
            "SELECT b.host_id, b.sequence, b.received_at FROM telemetry_batch b"
            " JOIN telemetry_samplewatermark w ON w.host_id = b.host_id AND b.sequence > w.sequence"
            " WHERE b.host_id = ANY(%s) ORDER BY b.host_id, b.sequence",
            [ordered],
        )
        stuck: set[int] = set()
        for host, sequence, received in cursor.fetchall():
            if host in stuck or (sequence > marks[host] + 1 and now - received < MISSING_BATCH_TIMEOUT):
                stuck.add(host)
            else:
                marks[host] = sequence
        cursor.execute(
            "UPDATE telemetry_samplewatermark w SET sequence = v.sequence"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS v (host_id, sequence)"
            " WHERE w.host_id = v.host_id AND w.sequence < v.sequence",
            [list(marks), list(marks.values())],
        )


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
