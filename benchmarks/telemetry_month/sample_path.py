"""Send samples through the real path: frames, the stream, the ingest and the rollups."""

from __future__ import annotations

import multiprocessing
import random
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.harness.processor_time import Timer
from benchmarks.harness.sample_fleet import (
    BATCH_SECONDS,
    VALUES_PER_SAMPLE,
    make_sample_fleet,
    sample_batches,
)

START = datetime(2026, 10, 1, tzinfo=UTC)
MINUTES_AT_ONCE = 5
DAY_HOURS = 24
FAULTY_HOSTS = 32
ROLLUP_EVERY_SECONDS = 30
OUTAGE_MINUTES = 15
KIB_PER_MIB = 1024
MIB = 1024 * 1024


@dataclass
class SampleFleet:
    """The hosts that send samples, and the number of minutes that they have sent."""

    hosts: list[tuple[int, list[str]]]
    minutes: int = 0

    @property
    def now(self) -> datetime:
        """Return the end of the last minute."""
        return START + timedelta(minutes=self.minutes)

    @property
    def gpus(self) -> int:
        return sum(len(uuids) for _, uuids in self.hosts)


def make_fleet(gpus: int) -> SampleFleet:
    """Write the rows of the hosts, and make the partitions of samples."""
    from telemetry.ingest.partitions import maintain_partitions

    hosts = make_sample_fleet(gpus, START)
    maintain_partitions(START)
    return SampleFleet(hosts)


def ingest_hours(fleet: SampleFleet, minutes: int) -> dict[str, Any]:
    """Ingest ``minutes`` minutes without rollups, as after an outage of the rollups."""
    timer, rows, last = Timer(), 0, fleet.minutes + minutes
    while fleet.minutes < last:
        first, until = fleet.minutes, min(fleet.minutes + MINUTES_AT_ONCE, last)
        waiting = list(sample_batches(fleet.hosts, START, first, until))
        fleet.minutes = until
        with timer:
            rows += send(waiting, fleet.now)
    return {
        "ingest_rows_s": round(rows / timer.seconds),
        "ingest_rows_cpu_s": round(rows / timer.cpu),
        "rows": rows,
        "bytes_per_value_hot": round(_size("telemetry_sample") / rows / VALUES_PER_SAMPLE, 2),
    }


def inject_faults(fleet: SampleFleet, minutes: int, rng: random.Random) -> dict[str, Any]:
    """Send the samples of some hosts twice and out of order, lose the stream once, and count the rows."""
    from telemetry.ingest import redis_client
    from telemetry.ingest.agent_api import committed_sequence
    from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY

    hosts = fleet.hosts[:FAULTY_HOSTS]
    batches = list(sample_batches(hosts, START, fleet.minutes, fleet.minutes + minutes))
    now = START + timedelta(minutes=fleet.minutes + minutes)
    sent = [*batches, *rng.sample(batches, len(batches) // 5)]
    rng.shuffle(sent)
    half = len(sent) // 2
    send(sent[:half], now)
    _enqueue(sent[half:], now)
    redis_client.redis_client().delete(SAMPLE_STREAM_KEY)  # these batches are gone
    # Agents keep every batch above the watermark, and send it again.
    again = [(host, batch) for host, batch in batches if batch.sequence > committed_sequence(host)]
    send(again, now)
    expected = sum(len(batch.rows) for _, batch in batches)
    start = START + timedelta(minutes=fleet.minutes)
    rows, distinct = _count(start, now, [host for host, _ in hosts])
    return {"lost_after_faults": expected - distinct, "doubled_after_faults": rows - distinct}


def _count(start: datetime, end: datetime, hosts: Sequence[int]) -> tuple[int, int]:
    from django.db import connection

    from telemetry.models import sample_bins

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(DISTINCT (sample.unit_id, sample.ts)) FROM telemetry_sample AS sample"
            " JOIN scheduler_unit AS unit ON unit.id = sample.unit_id"
            " JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id"
            " WHERE sample.ts >= %(start)s AND sample.ts < %(end)s AND gpu.host_id = ANY(%(hosts)s)"
            f" AND {sample_bins('sample.ts', '%(start)s', '%(end)s')}",
            {"start": start, "end": end, "hosts": list(hosts)},
        )
        rows, distinct = cursor.fetchone()
    return rows, distinct


def send(batches: Sequence[tuple[int, Any]], now: datetime) -> int:
    """Put the batches on the stream and drain it. Return the number of stored rows."""
    _enqueue(batches, now)
    return _drain(now)


def _enqueue(batches: Sequence[tuple[int, Any]], now: datetime) -> None:
    from telemetry.ingest import agent_api

    for host, batch in batches:
        agent_api.enqueue_batch(host, batch, now)


def _drain(now: datetime) -> int:
    from telemetry.ingest import redis_client
    from telemetry.ingest.samples import drain_stream
    from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY

    stream, rows = redis_client.redis_client(), 0
    while stream.xlen(SAMPLE_STREAM_KEY):
        rows += drain_stream(stream, now).rows
    return rows


def roll_up_in_own_process(minutes: int) -> dict[str, Any]:
    """Roll up ``minutes`` minutes of samples in a new process, so that its memory is that of the rollups."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_rollup_process, (minutes,))


def _rollup_process(minutes: int) -> dict[str, Any]:
    import django

    django.setup()
    figures = roll_up_hours(minutes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**figures, "rollup_rss_mb": round(peak / KIB_PER_MIB, 1)}


def roll_up_hours(minutes: int) -> dict[str, Any]:
    """Roll up everything that is due. ``rollup_day_s`` is the time in proportion to a whole day."""
    from telemetry.rollups.roll_up import roll_up_due_buckets

    timer = Timer()
    with timer:
        done = roll_up_due_buckets(START + timedelta(minutes=minutes + OUTAGE_MINUTES), max_buckets=None)
    days = minutes / 60 / DAY_HOURS
    return {
        "rollup_day_s": round(timer.seconds / days, 1),
        "rollup_day_cpu_s": round(timer.cpu / days, 1),
        "rollup_rows": done.rows,
    }


RollUp = Callable[[int], dict[str, Any]]


def live_minutes(fleet: SampleFleet, minutes: int) -> dict[str, Any]:
    """Ingest and roll up ``minutes`` minutes as they come. Return the share of one core.

    Each second, the batches of one host in sixty arrive and the stream is drained. Rollups run every 30 s.
    """
    from telemetry.rollups.roll_up import roll_up_due_buckets

    fleet.minutes += OUTAGE_MINUTES  # the rollups of the past are finished at this time
    ingest, rollup = Timer(), Timer()
    for _ in range(minutes):
        batches = list(sample_batches(fleet.hosts, START, fleet.minutes, fleet.minutes + 1))
        fleet.minutes += 1
        for second in range(60):
            now = fleet.now + timedelta(seconds=second)
            with ingest:
                send(batches[second::60], now)
            if second % ROLLUP_EVERY_SECONDS == 0:
                with rollup:
                    roll_up_due_buckets(now)
    seconds = minutes * BATCH_SECONDS
    return {
        "steady_cpu_share": round((ingest.cpu + rollup.cpu) / seconds, 4),
        "steady_ingest_share": round(ingest.cpu / seconds, 4),
        "steady_rollup_share": round(rollup.cpu / seconds, 4),
    }


def rebuild_differences(hours: int) -> dict[str, Any]:
    """Rebuild the first ``hours`` hours, after all that is due. Return the number of rollups that differ."""
    from telemetry.rollups.rebuild import rebuild_rollups
    from telemetry.rollups.roll_up import roll_up_due_buckets

    end = START + timedelta(hours=hours)
    now = end + timedelta(hours=2)
    roll_up_due_buckets(now, max_buckets=None)
    done = list(rebuild_rollups(START, end, now))
    return {
        "rebuild_differences": sum(result.differences for _, result in done),
        "rebuilt_rollups": sum(result.rollups for _, result in done),
    }


def _size(parent: str) -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = %s::regclass",
            [parent],
        )
        return int(cursor.fetchone()[0] or 0)


def stored_rollups() -> dict[str, Any]:
    """Return the bytes of a unit's minute, and the written rows for each stored bucket of a unit."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT count(*) FROM telemetry_rollup")
        buckets = cursor.fetchone()[0]
        # The marks of due buckets and the cubes are counted as written, too.
        cursor.execute(
            "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables"
            " WHERE relname ~ '^telemetry_rollup'"
        )
        written = int(cursor.fetchone()[0] or 0)
        cursor.execute(
            "SELECT count(held) FROM telemetry_rollupminutes, unnest(held_seconds) AS held"
            " WHERE container >= %s AND container < %s",
            [START, START + timedelta(days=1)],
        )
        packed = cursor.fetchone()[0]
        cursor.execute("SELECT pg_total_relation_size(%s)", [f"telemetry_rollupminutes_{START:%Y%m%d}"])
        size = cursor.fetchone()[0]
    return {
        "bytes_per_unit_minute": round(size / packed, 2),
        "rows_written_per_row_kept": round(written / buckets, 3),
    }
