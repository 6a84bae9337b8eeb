"""The placement rule on a pool's board: which hosts and units of a real plan an ask gets, and why."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from scheduler.core import fit, planner, ranking
from scheduler.core.board import Board
from scheduler.core.model import (
    SLOTS_PER_GPU,
    Ask,
    Host,
    Policy,
    Pool,
    PoolKind,
    Queued,
    Quota,
    Running,
    Snapshot,
    Team,
    Unit,
)
from scheduler.core.placement import BatchFill, Nodes
from scheduler.core.ranking import LEVELS, HostWaste
from scheduler.core.topology import nearest_first
from scheduler.core.waste import AMPLE, MILLI, Mix, Need, Waste, even_out

NOW = 1_000_000
HOUR = 3600
GPU = "H100-80GB"


def host(number: int, cpu: int = 64_000, **labels: str) -> Host:
    return Host(number, f"h{number}", 1, frozenset(labels.items()), cpu_milli=cpu, memory_mib=512_000)


def gpus(host: int, count: int, model: str = GPU, groups: int = 1) -> list[Unit]:
    size = max(1, count // groups)
    return [
        Unit(
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


def waits(number: int, ask: Ask, **more: object) -> Queued:
    return replace(Queued(number, 1, 1, 1, 1, ask, NOW - 60, HOUR, HOUR // 2), **more)


def runs(number: int, *units: int, cpu: int = 0) -> Running:
    return Running(number, 1, 1, 1, 1, units, NOW - HOUR, NOW + HOUR, NOW + HOUR, cpu_milli=cpu)


def pool(hosts: list[Host], units: list[Unit], queued: list[Queued], running: list[Running]) -> Snapshot:
    quotas = tuple(Quota(1, 1, model, 1000 * SLOTS_PER_GPU) for model in sorted({u.model for u in units}))
    return Snapshot(
        epoch=1,
        pools=(Pool(1, "p", PoolKind.DYNAMIC, None, Policy()),),
        hosts=tuple(hosts),
        units=tuple(units),
        teams=(Team(1, "red"),),
        quotas=quotas,
        queued=tuple(queued),
        running=tuple(running),
    )


def hosts_of(snapshot: Snapshot, workload: int) -> list[int]:
    """The hosts of a placement."""
    on = {unit.id: unit.host for unit in snapshot.units}
    placed = {p.workload: p.units for p in planner.plan(snapshot, NOW).placements}
    return sorted({on[unit] for unit in placed[workload]})


def test_the_short_way_for_alike_units_gives_the_same_waste_as_the_long_one() -> None:
    mix = Mix.of(
        [
            (Need(n, MILLI, n * 6_000, n * 40_000, classes), 9 - n)
            for n, classes in ((1, -1), (2, 0b10), (4, -1), (8, -1))
        ]
    )
    waste = Waste(mix, classes=2, batches=16)
    for klass in (0, 1):
        for cpu, memory in ((AMPLE, AMPLE), (20_000, AMPLE), (AMPLE, 130_000), (17_000, 90_000)):
            alike, _, _ = waste.of_alike(klass, 8, cpu, memory)
            rows = np.array([[MILLI] * k + [0] * (8 - k) for k in range(9)])
            whole = waste.of(np.full(9, klass), np.full(9, cpu), np.full(9, memory), rows)
            assert alike.tolist() == whole.tolist()


def test_one_ask_more_leaves_the_evened_out_mix_as_it_was() -> None:
    asked = [(Need(1, MILLI, 0, 0), 500), (Need(2, MILLI, 0, 0), 210), (Need(8, MILLI, 0, 0), 40)]
    mix = even_out(Mix.of(asked))
    assert even_out(Mix.of([*asked, (Need(1, MILLI, 0, 0), 1)])) == mix
    assert even_out(Mix.of([*asked, (Need(8, MILLI, 0, 0), 60)])) != mix


def test_a_single_gpu_leaves_the_hosts_alone_that_the_large_asks_of_this_pool_need() -> None:
    units = [*gpus(1, 8), *gpus(2, 8), *gpus(3, 8)]
    running = [runs(1, 200, 201, 202, 203, 204), runs(2, 300)]
    large = [waits(n, Ask(8, cpu_milli=8)) for n in range(50, 60)]
    snapshot = pool([host(1), host(2), host(3)], units, [waits(9, Ask(1)), *large], running)
    assert hosts_of(snapshot, 9) != [1]
    alone = pool([host(1), host(2)], units[:16], [waits(9, Ask(1)), *large], [runs(1, 200)])
    assert hosts_of(alone, 9) == [2]


def test_a_host_whose_cpu_is_nearly_gone_takes_what_needs_little_of_it() -> None:
    units = [*gpus(1, 4), *gpus(2, 4)]
    # Two GPUs are free on each; on host 2 there is CPU for one more ask of the usual size only.
    running = [runs(1, 100, 101, cpu=16_000), runs(2, 200, 201, cpu=56_000)]
    usual = [waits(n, Ask(1, cpu_milli=8_000), not_before=NOW + HOUR) for n in range(50, 90)]
    snapshot = pool([host(1), host(2)], units, [waits(9, Ask(1, cpu_milli=100)), *usual], running)
    assert hosts_of(snapshot, 9) == [2]


def test_several_gpus_come_from_a_host_that_has_them_in_one_island() -> None:
    units = [*gpus(1, 4, groups=2), *gpus(2, 8, groups=2), *gpus(3, 8, groups=2)]
    running = [runs(1, 100, 102), runs(2, 201, 202, 205, 206), runs(3, 300, 301, 302, 303)]
    snapshot = pool([host(1), host(2), host(3)], units, [waits(9, Ask(3))], running)
    assert hosts_of(snapshot, 9) == [3]


def test_a_gang_takes_one_island_before_one_rack_and_one_rack_before_several() -> None:
    hosts = [
        host(1, rack="a"), host(2, rack="a"), host(3, rack="b", island="i"), host(4, rack="c", island="i"), host(5, rack="c"),
    ]  # fmt: skip
    units = [unit for h in hosts for unit in gpus(h.id, 4)]
    assert hosts_of(pool(hosts, units, [waits(9, Ask(4, hosts=2))], []), 9) == [3, 4]
    without = [replace(h, labels=frozenset(x for x in h.labels if x[0] == "rack")) for h in hosts]
    assert hosts_of(pool(without, units, [waits(9, Ask(4, hosts=2))], []), 9) == [1, 2]
    assert hosts_of(pool(without, units, [waits(9, Ask(4, hosts=2))], [runs(1, 100)]), 9) == [4, 5]


def test_a_gang_that_no_rack_holds_is_spread_over_as_few_as_will_do() -> None:
    racks = "aaabbbbcdddd"
    board = Board(
        pool([host(n + 1, rack=r) for n, r in enumerate(racks)], [], [], []),
        Pool(1, "p", PoolKind.DYNAMIC, None, Policy()),
        NOW,
    )
    order = nearest_first(board.ground, 5, np.arange(len(racks)))
    assert "".join(racks[h] for h in order[:5]) == "bbbbc"
    assert sorted(order.tolist()) == list(range(len(racks)))
    assert "".join(racks[h] for h in nearest_first(board.ground, 3, np.arange(len(racks)))[:3]) == "aaa"


def test_the_terms_of_a_place_say_why_it_was_chosen() -> None:
    units = [*gpus(1, 8), *gpus(2, 8), *gpus(3, 4, model="T4")]
    snapshot = pool(
        [host(1), host(2), host(3)],
        units,
        [
            waits(9, Ask(1)),
            *(waits(n, Ask(8)) for n in range(100, 400)),
            *(waits(n, Ask(1, models=("T4",))) for n in range(500, 900)),
        ],
        [runs(1, 200, 201, 202)],
    )
    board = Board(snapshot, snapshot.pools[0], NOW)
    h100, t4 = (next(i for i, kind in enumerate(board.kinds) if kind.model == model) for model in (GPU, "T4"))
    untouched, broken_up = fit.terms(board, Ask(1), h100, [0]), fit.terms(board, Ask(1), h100, [11])
    assert broken_up.gain > untouched.gain
    assert untouched.slot_price > broken_up.slot_price == 0
    few = fit.terms(board, Ask(5), h100, [11, 12, 13, 14, 15])
    assert few.waste_before > few.waste_after == 0  # nothing is left to be wasted
    assert fit.terms(board, Ask(1), t4, [16]).model_price > 0
    placed = {p.workload: p for p in planner.plan(snapshot, NOW).placements}[9]
    numbers = dict(placed.numbers)
    assert hosts_of(snapshot, 9) == [2]
    assert (numbers["waste_before"], numbers["waste_after"]) == (broken_up.waste_before, broken_up.waste_after)
    assert (numbers["model_price"], numbers["slot_price"]) == (broken_up.model_price, broken_up.slot_price)
    gang = fit.terms(board, Ask(2, hosts=2), h100, [0, 1, 11, 12])
    assert gang == fit.terms(board, Ask(2), h100, [0, 1]) + fit.terms(board, Ask(2), h100, [11, 12])


def test_the_ranks_of_roomy_hosts_are_the_same_by_the_short_table_and_by_the_full_one() -> None:
    units = [*gpus(1, 8), *gpus(2, 8), *gpus(3, 8)]
    asks = [waits(n, Ask(1 + n % 4, cpu_milli=4_000 * (1 + n % 4))) for n in range(20, 40)]
    snapshot = pool([host(1), host(2), host(3)], units, asks, [runs(1, 100), runs(2, 200, 201, 202, 203)])
    board = Board(snapshot, snapshot.pools[0], NOW)
    rule = fit.ranking(board, "")
    counts, roomy = board.counts[0], np.full(3, 10**9)
    tight = roomy.copy()
    tight[2] = 4_000
    short = rule.ranks(Ask(2, cpu_milli=4_000), 0, counts, roomy, roomy)
    full = rule.ranks(Ask(2, cpu_milli=4_000), 0, counts, tight, roomy)
    assert short[:2].tolist() == full[:2].tolist()
    assert short[2] != full[2]


def test_what_was_worked_out_for_other_pools_changes_no_plan() -> None:
    dice = random.Random(5)
    hosts = [host(n, cpu=dice.choice((32_000, 64_000))) for n in range(1, 9)]
    units = [unit for h in hosts for unit in gpus(h.id, 8)]
    queued = [waits(n, Ask(dice.choice((1, 1, 2, 4)), cpu_milli=dice.choice((2_000, 9_000)))) for n in range(20, 60)]
    snapshot = pool(hosts, units, queued, [])
    ranking.host_waste.cache_clear()
    fresh = planner.plan(snapshot, NOW)
    planner.plan(pool(hosts, units, queued[:7], []), NOW)
    assert planner.plan(snapshot, NOW) == fresh
    assert planner.plan(replace(snapshot, queued=tuple(reversed(queued)), hosts=tuple(reversed(hosts))), NOW) == fresh


@pytest.mark.parametrize("level", [0, 3, LEVELS])
def test_a_level_of_cpu_never_promises_more_than_there_is(level: int) -> None:
    waste = HostWaste(Mix.of([(Need(1, MILLI, 4_000, 0), 3), (Need(2, MILLI, 10_000, 0), 1)]), (8,))
    scarce = waste.table(0, {(level, LEVELS)})[level, LEVELS]
    ample = waste.table(0, set())[LEVELS, LEVELS]
    assert (scarce >= ample).all()
    assert (level == LEVELS) == (scarce.tolist() == ample.tolist())


def test_the_planner_and_the_policy_that_is_measured_choose_the_same_hosts() -> None:
    dice, sizes = random.Random(8), [8, 4, 8, 2, 8, 4, 4, 8, 2, 8] * 3
    model_of = [("A100", GPU)[n % 3 == 0] for n in range(len(sizes))]
    hosts = [host(n + 1) for n in range(len(sizes))]
    units = [unit for n, size in enumerate(sizes) for unit in gpus(n + 1, size, model_of[n])]
    asks = [Ask(dice.choice((1, 1, 1, 2, 2, 4)), models=(dice.choice(("A100", GPU)),)) for _ in range(60)]
    queued = [waits(n, ask, submitted=NOW - 1000 + n) for n, ask in enumerate(asks, start=1)]
    snapshot = pool(hosts, units, queued, [])
    board = Board(snapshot, snapshot.pools[0], NOW)
    nodes = Nodes([AMPLE] * len(sizes), [AMPLE] * len(sizes), sizes, [("A100", GPU).index(model) for model in model_of])
    measured = BatchFill(nodes, fit.ranking(board, "").mix)
    on = {unit.id: unit.host for unit in units}
    planned = {p.workload: sorted({on[unit] for unit in p.units}) for p in planner.plan(snapshot, NOW).placements}
    for number, ask in enumerate(asks, start=1):
        place = measured.choose(Need(ask.units, MILLI, 0, 0, 1 << ("A100", GPU).index(ask.models[0])))
        assert place is not None
        assert planned[number] == [place.node + 1], ask
        nodes.take(place.node, Need(ask.units, MILLI, 0, 0), 0)
        measured.took(place.node)


def test_of_equally_capable_models_the_one_that_others_cannot_do_without_is_spared() -> None:
    hosts, units = [host(1), host(2)], [*gpus(1, 4, "A100-PCIE"), *gpus(2, 4, "A100-SXM")]
    tied = [waits(n, Ask(1, models=("A100-PCIE",)), not_before=NOW + HOUR) for n in range(20, 60)]
    assert hosts_of(pool(hosts, units, [waits(9, Ask(1)), *tied], []), 9) == [2]
    other = [waits(n, Ask(1, models=("A100-SXM",)), not_before=NOW + HOUR) for n in range(20, 60)]
    assert hosts_of(pool(hosts, units, [waits(9, Ask(1)), *other], []), 9) == [1]
    # A wish is a wish, and the least capable comes first whatever it is worth.
    assert hosts_of(pool(hosts, units, [waits(9, Ask(1, models=("A100-PCIE", "A100-SXM"))), *tied], []), 9) == [1]
    stronger = [replace(unit, memory_mib=160_000) if unit.host == 2 else unit for unit in units]
    assert hosts_of(pool(hosts, stronger, [waits(9, Ask(1)), *tied], []), 9) == [1]
