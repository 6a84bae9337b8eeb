"""Test the placement rule in the planner: the hosts and units that a request gets, and the reasons."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.traces.placement_policies import NodeStates, ProductRule
from scheduler.core import planner
from scheduler.core.fit import unit_selection
from scheduler.core.fit.topology import order_by_proximity
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
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
from scheduler.core.scoring import placement_rule
from scheduler.core.scoring.demand_mix import (
    MILLI_PER_GPU,
    UNLIMITED_AMOUNT,
    DemandMix,
    NodeDemand,
    round_weights,
)
from scheduler.core.scoring.placement_rule import NodeSize, ResourceLevels, WasteTables

NOW = 1_000_000
HOUR = 3600
GPU = "H100-80GB"


def host(number: int, cpu: int = 64_000, **labels: str) -> HostInfo:
    return HostInfo(number, f"h{number}", 1, frozenset(labels.items()), cpu_milli=cpu, memory_mib=512_000)


def gpus(host: int, count: int, model: str = GPU, groups: int = 1) -> list[UnitInfo]:
    size = max(1, count // groups)
    return [
        UnitInfo(
            host * 100 + g,
            host,
            host * 100 + g,
            model,
            memory_mib=80_000,
            compute_capability=90,
            nvlink_group=g // size,
        )
        for g in range(count)
    ]


def waiting(number: int, ask: Ask, **more: object) -> QueuedWorkload:
    return replace(QueuedWorkload(number, 1, 1, 1, 1, ask, NOW - 60, HOUR, HOUR // 2), **more)


def running_on(number: int, *units: int, cpu: int = 0) -> RunningWorkload:
    return RunningWorkload(number, 1, 1, 1, 1, units, NOW - HOUR, NOW + HOUR, NOW + HOUR, cpu_milli=cpu)


def pool(
    hosts: list[HostInfo], units: list[UnitInfo], queued: list[QueuedWorkload], running: list[RunningWorkload]
) -> Snapshot:
    quotas = tuple(QuotaInfo(1, 1, model, 1000 * SLOTS_PER_GPU) for model in sorted({u.model for u in units}))
    return Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "p", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=tuple(hosts),
        units=tuple(units),
        teams=(TeamInfo(1, "red"),),
        quotas=quotas,
        queued=tuple(queued),
        running=tuple(running),
    )


def hosts_of(snapshot: Snapshot, workload: int) -> list[int]:
    """Return the hosts on which the plan places the workload."""
    on = {unit.id: unit.host for unit in snapshot.units}
    placed = {p.workload: p.units for p in planner.plan(snapshot, NOW).placements}
    return sorted({on[unit] for unit in placed[workload]})


def test_one_more_request_does_not_change_the_rounded_mix() -> None:
    counts = [
        (NodeDemand(1, MILLI_PER_GPU, 0, 0), 500),
        (NodeDemand(2, MILLI_PER_GPU, 0, 0), 210),
        (NodeDemand(8, MILLI_PER_GPU, 0, 0), 40),
    ]
    mix = round_weights(DemandMix.of(counts))
    assert round_weights(DemandMix.of([*counts, (NodeDemand(1, MILLI_PER_GPU, 0, 0), 1)])) == mix
    assert round_weights(DemandMix.of([*counts, (NodeDemand(8, MILLI_PER_GPU, 0, 0), 60)])) != mix


def test_a_small_request_does_not_use_the_hosts_that_large_requests_need() -> None:
    units = [*gpus(1, 8), *gpus(2, 8), *gpus(3, 8)]
    running = [running_on(1, 200, 201, 202, 203, 204), running_on(2, 300)]
    large = [waiting(n, Ask(8, cpu_milli=8)) for n in range(50, 60)]
    snapshot = pool([host(1), host(2), host(3)], units, [waiting(9, Ask(1)), *large], running)
    assert hosts_of(snapshot, 9) != [1]
    alone = pool([host(1), host(2)], units[:16], [waiting(9, Ask(1)), *large], [running_on(1, 200)])
    assert hosts_of(alone, 9) == [2]


def test_a_request_with_little_cpu_is_placed_on_a_host_with_little_free_cpu() -> None:
    units = [*gpus(1, 4), *gpus(2, 4)]
    # Two GPUs are free on each host, but host 2 has CPU for only one more usual request.
    running = [running_on(1, 100, 101, cpu=16_000), running_on(2, 200, 201, cpu=56_000)]
    usual = [waiting(n, Ask(1, cpu_milli=8_000), not_before=NOW + HOUR) for n in range(50, 90)]
    snapshot = pool([host(1), host(2)], units, [waiting(9, Ask(1, cpu_milli=100)), *usual], running)
    assert hosts_of(snapshot, 9) == [2]


def test_several_gpus_come_from_a_host_with_enough_free_gpus_in_one_island() -> None:
    units = [*gpus(1, 4, groups=2), *gpus(2, 8, groups=2), *gpus(3, 8, groups=2)]
    running = [running_on(1, 100, 102), running_on(2, 201, 202, 205, 206), running_on(3, 300, 301, 302, 303)]
    snapshot = pool([host(1), host(2), host(3)], units, [waiting(9, Ask(3))], running)
    assert hosts_of(snapshot, 9) == [3]


def test_a_gang_prefers_one_island_to_one_rack_and_one_rack_to_several() -> None:
    hosts = [
        host(1, rack="a"),
        host(2, rack="a"),
        host(3, rack="b", island="i"),
        host(4, rack="c", island="i"),
        host(5, rack="c"),
    ]
    units = [unit for h in hosts for unit in gpus(h.id, 4)]
    assert hosts_of(pool(hosts, units, [waiting(9, Ask(4, hosts=2))], []), 9) == [3, 4]
    without = [replace(h, labels=frozenset(x for x in h.labels if x[0] == "rack")) for h in hosts]
    assert hosts_of(pool(without, units, [waiting(9, Ask(4, hosts=2))], []), 9) == [1, 2]
    assert hosts_of(pool(without, units, [waiting(9, Ask(4, hosts=2))], [running_on(1, 100)]), 9) == [4, 5]


def test_a_gang_larger_than_a_rack_uses_as_few_racks_as_possible() -> None:
    racks = "aaabbbbcdddd"
    rows = pool([host(n + 1, rack=r) for n, r in enumerate(racks)], [], [], [])
    state = PoolState(PoolSnapshot(rows, PoolInfo(1, "p", PoolKind.DYNAMIC, None, PoolPolicy())), NOW)
    order = order_by_proximity(state.hardware, 5, np.arange(len(racks)))
    assert "".join(racks[h] for h in order[:5]) == "bbbbc"
    assert sorted(order.tolist()) == list(range(len(racks)))
    assert (
        "".join(racks[h] for h in order_by_proximity(state.hardware, 3, np.arange(len(racks)))[:3]) == "aaa"
    )


def test_a_placement_reports_the_terms_of_its_choice() -> None:
    units = [*gpus(1, 8), *gpus(2, 8), *gpus(3, 4, model="T4")]
    snapshot = pool(
        [host(1), host(2), host(3)],
        units,
        [
            waiting(9, Ask(1)),
            *(waiting(n, Ask(8)) for n in range(100, 400)),
            *(waiting(n, Ask(1, models=("T4",))) for n in range(500, 900)),
        ],
        [running_on(1, 200, 201, 202)],
    )
    state = PoolState(PoolSnapshot(snapshot, snapshot.pools[0]), NOW)
    h100, t4 = (next(i for i, kind in enumerate(state.kinds) if kind.model == model) for model in (GPU, "T4"))
    untouched, broken_up = (
        unit_selection.placement_terms(state, Ask(1), h100, [0]),
        unit_selection.placement_terms(state, Ask(1), h100, [11]),
    )
    assert broken_up.gain > untouched.gain
    assert untouched.slot_price > broken_up.slot_price == 0
    few = unit_selection.placement_terms(state, Ask(5), h100, [11, 12, 13, 14, 15])
    assert few.waste_before > few.waste_after == 0  # no idle capacity remains
    assert unit_selection.placement_terms(state, Ask(1), t4, [16]).model_price > 0
    placed = {p.workload: p for p in planner.plan(snapshot, NOW).placements}[9]
    numbers = dict(placed.numbers)
    assert hosts_of(snapshot, 9) == [2]
    assert (numbers["waste_before"], numbers["waste_after"]) == (
        broken_up.waste_before,
        broken_up.waste_after,
    )
    assert (numbers["model_price"], numbers["slot_price"]) == (broken_up.model_price, broken_up.slot_price)
    gang = unit_selection.placement_terms(state, Ask(2, hosts=2), h100, [0, 1, 11, 12])
    assert gang == unit_selection.placement_terms(
        state, Ask(2), h100, [0, 1]
    ) + unit_selection.placement_terms(state, Ask(2), h100, [11, 12])


def test_the_fast_path_for_hosts_with_enough_cpu_and_memory_gives_the_same_ranks() -> None:
    units = [*gpus(1, 8), *gpus(2, 8), *gpus(3, 8)]
    asks = [waiting(n, Ask(1 + n % 4, cpu_milli=4_000 * (1 + n % 4))) for n in range(20, 40)]
    snapshot = pool(
        [host(1), host(2), host(3)], units, asks, [running_on(1, 100), running_on(2, 200, 201, 202, 203)]
    )
    state = PoolState(PoolSnapshot(snapshot, snapshot.pools[0]), NOW)
    rule = unit_selection.ranking_for_profile(state, "")
    counts, ample = state.free_counts[0], np.full(3, 10**9)
    scarce_cpu = ample.copy()
    scarce_cpu[2] = 4_000
    short = rule.ranks(Ask(2, cpu_milli=4_000), 0, counts, ample, ample)
    full = rule.ranks(Ask(2, cpu_milli=4_000), 0, counts, scarce_cpu, ample)
    assert short[:2].tolist() == full[:2].tolist()
    assert short[2] != full[2]


def test_cached_waste_of_other_pools_does_not_change_a_plan() -> None:
    rng = random.Random(5)
    hosts = [host(n, cpu=rng.choice((32_000, 64_000))) for n in range(1, 9)]
    units = [unit for h in hosts for unit in gpus(h.id, 8)]
    queued = [
        waiting(n, Ask(rng.choice((1, 1, 2, 4)), cpu_milli=rng.choice((2_000, 9_000)))) for n in range(20, 60)
    ]
    snapshot = pool(hosts, units, queued, [])
    placement_rule.waste_tables.cache_clear()
    fresh = planner.plan(snapshot, NOW)
    planner.plan(pool(hosts, units, queued[:7], []), NOW)
    assert planner.plan(snapshot, NOW) == fresh
    assert (
        planner.plan(replace(snapshot, queued=tuple(reversed(queued)), hosts=tuple(reversed(hosts))), NOW)
        == fresh
    )


@pytest.mark.parametrize("capacity", [20_000, UNLIMITED_AMOUNT])
@pytest.mark.parametrize("cpu_of_large", [10_000, 10_007])
def test_rounding_of_free_cpu_never_underestimates_the_waste(cpu_of_large: int, capacity: int) -> None:
    mix = DemandMix.of(
        [(NodeDemand(1, MILLI_PER_GPU, 4_000, 0), 3), (NodeDemand(2, MILLI_PER_GPU, cpu_of_large, 0), 1)]
    )
    tables = WasteTables(mix, (NodeSize(8, capacity),))
    counts, none = np.arange(9), np.zeros(9, dtype=np.int64)
    equal = []
    for free in range(0, 22_000, 500):
        level = tables.cpu[0].level(free)
        assert tables.cpu[0].of(np.array([free])).tolist() == [level]
        rounded = tables.at(0, np.full(9, level), none, counts)
        exact = tables.waste.of(none, np.full(9, min(free, capacity)), none, tables.gpu_states.rows[counts])
        assert (rounded >= exact).all()
        equal.append(rounded.tolist() == exact.tolist())
    # Rounding is exact only if every demand is a multiple of the step between levels.
    assert all(equal) == (cpu_of_large == 10_000)


def test_levels_of_cpu_end_at_the_capacity_of_the_largest_host() -> None:
    scarce, ample = ResourceLevels(64_000, 300_000, 2_000, 128), ResourceLevels(300_000, 64_000, 2_000, 128)
    amounts = np.array([-1, 0, 1_999, 2_000, 63_999, 64_000, 90_000])
    assert scarce.of(amounts).tolist() == ample.of(amounts).tolist() == [0, 0, 0, 1, 31, 32, 32]
    assert int(scarce.amounts[-1]) == 64_000
    assert int(ample.amounts[-1]) == UNLIMITED_AMOUNT
    assert ResourceLevels(64_000, 0, 1, 128).of(np.array([0, 9])).tolist() == [0, 0]
    assert len(ResourceLevels(64_001, 64_001, 1, 128).amounts) <= 129


def test_the_planner_and_the_benchmark_choose_the_same_hosts() -> None:
    rng, sizes = random.Random(8), [8, 4, 8, 2, 8, 4, 4, 8, 2, 8] * 3
    model_of = [("A100", GPU)[n % 3 == 0] for n in range(len(sizes))]
    hosts = [host(n + 1) for n in range(len(sizes))]
    units = [unit for n, size in enumerate(sizes) for unit in gpus(n + 1, size, model_of[n])]
    asks = [Ask(rng.choice((1, 1, 1, 2, 2, 4)), models=(rng.choice(("A100", GPU)),)) for _ in range(60)]
    queued = [waiting(n, ask, submitted=NOW - 1000 + n) for n, ask in enumerate(asks, start=1)]
    snapshot = pool(hosts, units, queued, [])
    state = PoolState(PoolSnapshot(snapshot, snapshot.pools[0]), NOW)
    nodes = NodeStates(
        [UNLIMITED_AMOUNT] * len(sizes),
        [UNLIMITED_AMOUNT] * len(sizes),
        sizes,
        [("A100", GPU).index(model) for model in model_of],
    )
    benchmarked = ProductRule(nodes, unit_selection.ranking_for_profile(state, "").rule.mix)
    on = {unit.id: unit.host for unit in units}
    planned = {
        p.workload: sorted({on[unit] for unit in p.units}) for p in planner.plan(snapshot, NOW).placements
    }
    for number, ask in enumerate(asks, start=1):
        place = benchmarked.choose(
            NodeDemand(ask.units, MILLI_PER_GPU, 0, 0, 1 << ("A100", GPU).index(ask.models[0]))
        )
        assert place is not None
        assert planned[number] == [place.node + 1], ask
        nodes.take(place.node, NodeDemand(ask.units, MILLI_PER_GPU, 0, 0), 0)
        benchmarked.took(place.node)


def test_a_model_that_other_requests_require_is_used_after_equally_capable_models() -> None:
    hosts, units = [host(1), host(2)], [*gpus(1, 4, "A100-PCIE"), *gpus(2, 4, "A100-SXM")]
    tied = [waiting(n, Ask(1, models=("A100-PCIE",)), not_before=NOW + HOUR) for n in range(20, 60)]
    assert hosts_of(pool(hosts, units, [waiting(9, Ask(1)), *tied], []), 9) == [2]
    other = [waiting(n, Ask(1, models=("A100-SXM",)), not_before=NOW + HOUR) for n in range(20, 60)]
    assert hosts_of(pool(hosts, units, [waiting(9, Ask(1)), *other], []), 9) == [1]
    # The request's order of models counts first. Then less capable models are preferred, then cheaper models.
    assert hosts_of(
        pool(hosts, units, [waiting(9, Ask(1, models=("A100-PCIE", "A100-SXM"))), *tied], []), 9
    ) == [1]
    stronger = [replace(unit, memory_mib=160_000) if unit.host == 2 else unit for unit in units]
    assert hosts_of(pool(hosts, stronger, [waiting(9, Ask(1)), *tied], []), 9) == [1]
