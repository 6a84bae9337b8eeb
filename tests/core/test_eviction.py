"""Test eviction: the cheapest victims are evicted, and their units and CPU are kept for the waiting work."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from benchmarks.plan_verifier import violations
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    Priority,
    QueuedWorkload,
    QuotaInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode

NOW = 1_000_000
HOUR = 3600
SLICE = "1g.10gb"


def running(number: int, units: tuple[int, ...], saved_ago: int = HOUR, **more: object) -> RunningWorkload:
    row = RunningWorkload(
        number, 1, 1, 1, 1, units, NOW - 10 * HOUR, NOW + HOUR, NOW + HOUR, Priority.LOW, preemptible=True
    )
    return replace(row, checkpoint_at=NOW - saved_ago, **more)  # type: ignore[arg-type]


def queued(number: int, ask: Ask, priority: Priority = Priority.NORMAL) -> QueuedWorkload:
    return QueuedWorkload(number, 1, 1, 1, 1, ask, NOW, HOUR, HOUR // 2, priority)


def one_team(
    hosts: dict[int, list[UnitInfo]], work: list[RunningWorkload], waiting: list[QueuedWorkload], cpu: int = 0
) -> Snapshot:
    units = [unit for units_of_host in hosts.values() for unit in units_of_host]
    return Snapshot(
        1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=tuple(HostInfo(host, f"h{host}", 1, cpu_milli=cpu) for host in hosts),
        units=tuple(units),
        teams=(TeamInfo(1, "red"),),
        quotas=(QuotaInfo(1, 1, "H100", sum(unit.slots for unit in units)),),
        queued=tuple(waiting),
        running=tuple(work),
    )


def gpus(host: int, count: int) -> list[UnitInfo]:
    return [UnitInfo(host * 100 + n, host, host * 100 + n, "H100") for n in range(count)]


def test_cpu_is_kept_together_with_the_units_that_victims_free() -> None:
    slices = [UnitInfo(200 + n, 1, 200, "H100", SLICE, SLOTS_PER_GPU // 7) for n in range(7)]
    waiting = [
        queued(1, Ask(2, cpu_milli=32_000), Priority.HIGH),
        queued(2, Ask(1, profile=SLICE, cpu_milli=16_000)),
    ]
    snapshot = one_team({1: [*gpus(1, 2), *slices]}, [running(50, (100,))], waiting, cpu=40_000)
    planned = plan(snapshot, NOW)
    assert [(e.workload, e.for_workload) for e in planned.evictions] == [(50, 1)]
    assert planned.placements == ()  # a slice is free for workload 2, but the CPU is kept for workload 1
    assert violations(snapshot, planned, NOW) == []
    small = replace(snapshot, queued=(waiting[0], queued(2, Ask(1, profile=SLICE, cpu_milli=8_000))))
    assert [p.workload for p in plan(small, NOW).placements] == [2]


@pytest.mark.parametrize("need", range(1, 9))
def test_the_cheapest_set_of_victims_on_one_host_is_evicted(need: int) -> None:
    """Compare the victims with every possible set of the running workloads.

    The workloads hold 1 to 3 GPUs, and their checkpoints differ in age.
    """
    work = [
        running(50, (100,), 50 * 60),
        running(51, (101, 102), 20 * 60),
        running(52, (103, 104, 105), 15 * 60),
        running(53, (106,), 10 * 60),
        running(54, (107,), 55 * 60),
    ]
    cost = {row.id: (NOW - (row.checkpoint_at or 0)) * len(row.units) for row in work}
    size = {row.id: len(row.units) for row in work}
    snapshot = one_team({1: gpus(1, 8)}, work, [queued(1, Ask(need), Priority.HIGH)])
    victims = {e.workload for e in plan(snapshot, NOW).evictions}
    sufficient = [
        set(group)
        for n in range(1, 6)
        for group in combinations(cost, n)
        if sum(size[v] for v in group) >= need
    ]
    assert sum(cost[v] for v in victims) == min(sum(cost[v] for v in group) for group in sufficient)
    assert violations(snapshot, plan(snapshot, NOW), NOW) == []


def test_the_host_with_the_smaller_loss_is_cleared_and_gangs_are_evicted_whole() -> None:
    work = [running(50, (100, 200), 60), running(51, (101,), 30 * 60), running(52, (201,), 5 * 60)]
    snapshot = one_team({1: gpus(1, 2), 2: gpus(2, 2)}, work, [queued(1, Ask(2), Priority.HIGH)])
    planned = plan(snapshot, NOW)
    assert {e.workload for e in planned.evictions} == {50, 52}
    assert [r.code for r in planned.refusals] == [ReasonCode.WAITS_FOR_EVICTION]
    assert violations(snapshot, planned, NOW) == []
