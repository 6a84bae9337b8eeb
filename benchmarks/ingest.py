"""Measure how many samples per second the servers can store.

    ./run bench ingest --gpus 10000 --hours 1

Agents send samples in batches. A batch is put on a stream in Valkey, and a worker moves the samples from the
stream into the daily partitions of the database. Both steps are measured; generating the samples is not.

Each host has 8 GPUs, and half of all GPUs are held by work. Each GPU has a sample every ten seconds, and each
host sends a batch every minute, in order of time.

``cpu_seconds`` is the CPU time of this process, which does the work of the edge and of the worker, plus the
CPU time of its database connection.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from telemetry.ingest import redis_client

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

SERVICES = ("postgres", "valkey")
MODEL = "H100-80GB"
GPUS_PER_HOST = 8
EVERY = 10  # seconds between two samples of one GPU
BATCH = 60  # seconds that one batch covers
MINUTES_AT_ONCE = 5  # minutes of samples that are put on the stream before it is drained


def main(argv: list[str]) -> dict[str, Any]:
    """Ingest ``--hours`` hours of samples of ``--gpus`` GPUs.

    Return ``{"rows", "rows_per_second", "cpu_seconds", "bytes_per_row"}`` and more.
    """
    parser = argparse.ArgumentParser(prog="./run bench ingest", description=__doc__)
    parser.add_argument("--gpus", type=_between(GPUS_PER_HOST, 100_000), default=10_000)
    parser.add_argument("--hours", type=_hours, default=1.0)
    options = parser.parse_args(argv)

    import django

    django.setup()
    return _measure(options.gpus, options.hours)


def _measure(gpus: int, hours: float) -> dict[str, Any]:
    from telemetry.ingest import agent_api
    from telemetry.ingest.partitions import maintain_partitions
    from telemetry.ingest.samples import drain_stream
    from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY

    now = datetime.now(UTC).replace(microsecond=0)
    start = now - timedelta(hours=hours)
    fleet = _fleet(gpus, start)
    maintain_partitions(now)
    stream = redis_client.redis_client()
    seconds = cpu = 0.0
    rows = rejected = 0
    database_before = _cpu_of_connection()
    minutes = max(1, int(hours * 60))
    for first in range(0, minutes, MINUTES_AT_ONCE):
        waiting = list(_batches(fleet, start, first, min(first + MINUTES_AT_ONCE, minutes)))
        began, used = time.perf_counter(), time.process_time()
        for host, batch in waiting:
            agent_api.enqueue_batch(host, batch, now)
        while stream.xlen(SAMPLE_STREAM_KEY):
            result = drain_stream(stream, now)
            rows, rejected = rows + result.rows, rejected + result.rejected
        seconds += time.perf_counter() - began
        cpu += time.process_time() - used
        print(
            f"{first + MINUTES_AT_ONCE} of {minutes} minutes, {rows} rows, {rows / seconds:.0f} a second",
            flush=True,
        )
    database = None if database_before is None else (_cpu_of_connection() or 0.0) - database_before
    return {
        "rows": rows,
        "rows_per_second": round(rows / seconds, 1),
        "cpu_seconds": round(cpu + (database or 0.0), 2),
        "bytes_per_row": round(_bytes_of_samples() / rows, 1),
        "rejected": rejected,
        "cpu_seconds_database": None if database is None else round(database, 2),
        "gpus": gpus,
        "hours": hours,
    }


def _fleet(gpus: int, now: datetime) -> list[tuple[int, list[str]]]:
    """Create rows of hosts, GPUs and units. Every second unit is held by work.

    Return (host id, uuids of its GPUs) for each host.
    """
    from django.contrib.auth import get_user_model
    from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange

    from scheduler.core.model.slots import SLOTS_PER_GPU
    from scheduler.models import Allocation, Gpu, Host, Pool, Project, Run, Team, Unit, Workload

    pool = Pool.objects.create(slug="bench", name="Bench", kind="dynamic", created_at=now)
    team = Team.objects.create(slug="bench", name="Bench", tag="BEN", created_at=now)
    project = Project.objects.create(team=team, slug="bench", name="Bench", created_at=now)
    owner = get_user_model().objects.create_user("bench")
    count = -(-gpus // GPUS_PER_HOST)
    hosts = Host.objects.bulk_create(
        [Host(pool=pool, name=f"bench-{number}", simulated=True, created_at=now) for number in range(count)]
    )
    cards = Gpu.objects.bulk_create(
        [
            Gpu(
                host=hosts[number // GPUS_PER_HOST],
                pool=pool,
                index=number % GPUS_PER_HOST,
                uuid=f"GPU-{number}",
                model=MODEL,
                memory_mib=81_559,
                created_at=now,
            )
            for number in range(gpus)
        ]
    )
    units = Unit.objects.bulk_create(
        [
            Unit(
                gpu=card,
                uuid=card.uuid,
                slots=NumericRange(card.first_slot, card.first_slot + SLOTS_PER_GPU),
                memory_mib=card.memory_mib,
                created_at=now,
            )
            for card in cards
        ]
    )
    work = Workload.objects.create(
        kind="job",
        type="training",
        name="bench",
        pool=pool,
        project=project,
        owner=owner,
        units=1,
        attempt=1,
        state="running",
        max_runtime_seconds=86_400,
        predicted_seconds=86_400,
        submitted_at=now,
        queued_at=now,
    )
    run = Run.objects.create(
        workload=work, attempt=1, host=hosts[0], generation=1, placed_at=now, state="running"
    )
    period = DateTimeTZRange(now - timedelta(hours=1), None)
    Allocation.objects.bulk_create(
        [
            Allocation(run=run, workload=work, project=project, unit=u, slots=u.slots, period=period)
            for u in units[::2]
        ],
        batch_size=2_000,
    )
    return [
        (host.pk, [card.uuid for card in cards[number * GPUS_PER_HOST : (number + 1) * GPUS_PER_HOST]])
        for number, host in enumerate(hosts)
    ]


def _batches(
    fleet: list[tuple[int, list[str]]], start: datetime, first: int, last: int
) -> Iterator[tuple[int, Any]]:
    """Yield (host id, SampleBatch) for each host, for the minutes from ``first`` to ``last`` - 1."""
    from agent.protocol import SampleBatch, SampleRow

    rng = random.Random(first)
    begin = start.timestamp()
    for minute in range(first, last):
        for host, uuids in fleet:
            use = rng.uniform(20, 100)
            yield (
                host,
                SampleBatch(
                    sequence=minute + 1,
                    rows=[
                        SampleRow(
                            unit=uuid,
                            ts=begin + minute * BATCH + tick * EVERY,
                            utilisation=use,
                            sm_active=use * 0.6,
                            tensor_active=use * 0.3,
                            memory_used_mib=40_000 + tick,
                            memory_utilisation=use * 0.5,
                            power_w=300 + use,
                            energy_mj=minute * 30_000_000 + tick * 4_000_000,
                            temperature_c=60.0,
                            memory_temperature_c=70.0,
                            sm_clock_mhz=1_755,
                            throttle_reasons=0,
                            pcie_rx_kib=1_000,
                            pcie_tx_kib=900,
                            nvlink_kib=50_000,
                            processes=1,
                            stray_processes=0,
                        )
                        for tick in range(BATCH // EVERY)
                        for uuid in uuids
                    ],
                ),
            )


def _bytes_of_samples() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits"
            " WHERE inhparent = 'telemetry_sample'::regclass"
        )
        return int(cursor.fetchone()[0])


def _cpu_of_connection() -> float | None:
    """Return the CPU seconds of the database server process of this connection.

    Return None if the database is on another machine.
    """
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        stat = Path(f"/proc/{cursor.fetchone()[0]}/stat")
    if not stat.exists():
        return None
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _between(low: int, high: int) -> Any:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return read


def _hours(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 24:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.01 to 24")
    return value
