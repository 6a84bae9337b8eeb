"""Create hosts with GPUs that are half held, and the batches of samples that their agents send.

Each host has 8 GPUs. Each GPU has a sample every ten seconds, and each host sends a batch every minute, in
order of time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

MODEL = "H100-80GB"
GPUS_PER_HOST = 8
EVERY_SECONDS = 10  # between two samples of one GPU
BATCH_SECONDS = 60  # that one batch covers
VALUES_PER_SAMPLE = 16


def make_sample_fleet(gpus: int, now: datetime) -> list[tuple[int, list[str]]]:
    """Create rows of hosts, GPUs and units. Every second unit is held by work.

    Return (host id, uuids of its GPUs) for each host.
    """
    from django.contrib.auth import get_user_model
    from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

    from scheduler.models import Allocation, Host, Pool, Project, Run, Team, Workload

    pool = Pool.objects.create(slug="bench", name="Bench", kind="dynamic", created_at=now)
    team = Team.objects.create(slug="bench", name="Bench", tag="BEN", created_at=now)
    project = Project.objects.create(team=team, slug="bench", name="Bench", created_at=now)
    owner = get_user_model().objects.create_user("bench")
    count = -(-gpus // GPUS_PER_HOST)
    hosts = Host.objects.bulk_create(
        [Host(pool=pool, name=f"bench-{number}", simulated=True, created_at=now) for number in range(count)]
    )
    units = write_whole_gpus(pool, hosts, gpus, now)
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
        (host.pk, [unit.uuid for unit in units[number * GPUS_PER_HOST : (number + 1) * GPUS_PER_HOST]])
        for number, host in enumerate(hosts)
    ]


def write_whole_gpus(pool: Any, hosts: list[Any], gpus: int, now: datetime) -> list[Any]:
    """Create GPUs, GPUS_PER_HOST on each host in turn, and return their units. No GPU has slices."""
    from django.db.backends.postgresql.psycopg_any import NumericRange

    from scheduler.core.model.slots import SLOTS_PER_GPU
    from scheduler.models import Gpu, Unit

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
    return Unit.objects.bulk_create(
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


def sample_batches(
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
                            ts=begin + minute * BATCH_SECONDS + tick * EVERY_SECONDS,
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
                        for tick in range(BATCH_SECONDS // EVERY_SECONDS)
                        for uuid in uuids
                    ],
                ),
            )
