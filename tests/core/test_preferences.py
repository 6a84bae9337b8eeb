"""Test preferences: they order the suitable hosts and never make a workload wait."""

from __future__ import annotations

from typing import Any

from scheduler.core.model.plan import Placement
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

NOW = 1_000_000


def placed(ask: Ask, *running: RunningWorkload, **host_labels: dict[str, str]) -> list[str]:
    """Return the hosts on which a request is placed. Each host has four GPUs and the given labels."""
    names = list(host_labels)
    snapshot = Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=tuple(
            HostInfo(n, name, 1, frozenset(host_labels[name].items())) for n, name in enumerate(names, 1)
        ),
        units=tuple(
            UnitInfo(n * 10 + g, n, n * 10 + g, "H100") for n in range(1, len(names) + 1) for g in range(4)
        ),
        teams=(TeamInfo(1, "red"),),
        quotas=(QuotaInfo(1, 1, "H100", 99 * SLOTS_PER_GPU),),
        queued=(QueuedWorkload(900, 1, 1, 1, 1, ask, NOW, 3600, 3600),),
        running=running,
    )
    placements = [p for p in plan(snapshot, NOW).placements if isinstance(p, Placement)]
    return [names[unit // 10 - 1] for p in placements for unit in p.units]


def busy(workload: int, *units: int) -> RunningWorkload:
    return RunningWorkload(workload, 1, 1, 1, 1, units, NOW - 60, NOW + 9000, NOW + 9000)


def labels(**pairs: str) -> dict[str, Any]:
    return {"labels_preferred": frozenset(pairs.items())}


def test_a_host_with_the_preferred_label_is_taken_first_but_is_not_required() -> None:
    hosts = {"a": {"rack": "r1"}, "b": {"rack": "r2"}}
    assert placed(Ask(1, **labels(rack="r2")), **hosts) == ["b"]
    assert placed(Ask(1, **labels(rack="r3")), **hosts) == placed(Ask(1), **hosts)
    assert placed(Ask(1, **labels(rack="r2")), busy(1, 20, 21, 22, 23), **hosts) == ["a"], (
        "a preference makes no workload wait"
    )


def test_the_host_with_the_most_preferred_labels_is_taken_first() -> None:
    hosts = {"a": {"rack": "r1"}, "b": {"rack": "r1", "disk": "fast"}, "c": {"disk": "fast"}}
    assert placed(Ask(1, **labels(rack="r1", disk="fast")), **hosts) == ["b"]


def test_work_to_be_spread_is_placed_on_the_emptiest_host() -> None:
    hosts: dict[str, dict[str, str]] = {"a": {}, "b": {}}
    assert placed(Ask(1), busy(1, 10), **hosts) == ["a"], "the placement rule fills used hosts first"
    assert placed(Ask(1, spread=True), busy(1, 10), **hosts) == ["b"]


def test_a_gang_to_be_spread_is_placed_in_as_many_racks_as_possible() -> None:
    hosts = {"a": {"rack": "r1"}, "b": {"rack": "r1"}, "c": {"rack": "r2"}, "d": {"rack": "r3"}}
    assert placed(Ask(1, hosts=3, spread=True), **hosts) == ["a", "c", "d"]
    assert sorted(placed(Ask(1, hosts=2), **hosts)) == ["a", "b"], (
        "without the preference, one rack is better"
    )
