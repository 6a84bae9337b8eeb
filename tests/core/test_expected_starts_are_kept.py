"""Test that backfill does not delay the workload at the front of the queue.

If all runtimes are as predicted, this workload starts no later than its expected start.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    QuotaInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from tests.seeds import first_cases

NOW, HOUR = 1_000_000, 3600


def pool_in_use(seed: int) -> Snapshot:
    """Return one team with ten waiting jobs, and three or four hosts of 8 GPUs.

    Running work holds a part of the GPUs. No job is moved to the front because of its size or wait. All
    runtimes are as predicted. The team is guaranteed the whole pool.
    """
    rng = random.Random(seed)
    hosts = tuple(HostInfo(h, f"host-{h}", 1) for h in range(1, rng.choice((3, 4)) + 1))
    units = tuple(
        UnitInfo(h.id * 10 + g, h.id, h.id * 10 + g, "H100", memory_mib=80_000)
        for h in hosts
        for g in range(8)
    )
    running, free = [], {h.id: [u.id for u in units if u.host == h.id] for h in hosts}
    while sum(map(len, free.values())) > len(units) // 3:
        host = rng.choice([h for h, units_left in free.items() if units_left])
        chosen, free[host] = free[host][: rng.choice((1, 2, 4, 8))], free[host][rng.choice((1, 2, 4, 8)) :]
        free[host] = [u for u in free[host] if u not in chosen]
        end = NOW + rng.randint(1, 300) * 60
        running.append(RunningWorkload(500 + len(running), 1, 1, 1, 1, tuple(chosen), NOW - HOUR, end, end))
    queued = []
    for number in range(1, 11):
        seconds = rng.choice((600, HOUR, 3 * HOUR, 6 * HOUR))
        ask = Ask(*rng.choice(((1, 1), (2, 1), (4, 1), (8, 1), (8, 1), (4, 2), (2, 3))))
        queued.append(
            QueuedWorkload(number, 1, 1, 1, 1, ask, NOW - rng.randint(0, 3 * HOUR), seconds, seconds)
        )
    quota = QuotaInfo(1, 1, "H100", len(units) * SLOTS_PER_GPU)
    return Snapshot(
        1,
        (PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts,
        units,
        (TeamInfo(1, "team"),),
        (quota,),
        queued=tuple(queued),
        running=tuple(running),
    )


@pytest.mark.parametrize("first", first_cases(1, range(0, 60, 20)))
def test_the_workload_at_the_front_of_the_queue_starts_no_later_than_expected(first: int) -> None:
    promised = 0
    for seed in range(first, first + 20):
        snapshot, now = pool_in_use(seed), NOW
        promised_start: dict[int, int] = {}  # by workload, while it is first in the queue
        while snapshot.queued:
            planned = plan(snapshot, now)
            for placement in planned.placements:
                assert now <= promised_start.get(placement.workload, now), (seed, placement.workload, now)
            for refusal in planned.refusals:
                if refusal.held_units and refusal.expected_start is not None and refusal.position == 1:
                    promised_start[refusal.workload] = min(
                        refusal.expected_start, promised_start.get(refusal.workload, refusal.expected_start)
                    )
            promised += bool(promised_start)
            snapshot = apply_placements(snapshot, {p.workload: p.units for p in planned.placements}, now)
            now = min((r.until for r in snapshot.running), default=now)
            snapshot = replace(snapshot, running=tuple(r for r in snapshot.running if r.until > now))
    assert promised > 20, "too few workloads waited to test anything"


def apply_placements(snapshot: Snapshot, started: dict[int, tuple[int, ...]], now: int) -> Snapshot:
    """Return the snapshot with the started workloads running; they end exactly as predicted."""
    running = [
        RunningWorkload(
            q.id,
            q.team,
            q.project,
            q.user,
            q.pool,
            started[q.id],
            now,
            now + q.max_runtime_seconds,
            now + q.predicted_seconds,
        )
        for q in snapshot.queued
        if q.id in started
    ]
    waiting = tuple(q for q in snapshot.queued if q.id not in started)
    return replace(snapshot, queued=waiting, running=(*snapshot.running, *running))
