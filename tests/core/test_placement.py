"""Test placement policies: compare each policy with its definition, and run all on a synthetic cluster."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import openb
from benchmarks.traces.placement_policies import BestFit, Fgd, NodeChoice, NodeStates, ProductRule
from scheduler.core.scoring.demand_mix import ANY_CLASS, BATCH_SIZE, MILLI_PER_GPU, DemandMix, NodeDemand
from scheduler.core.scoring.expected_waste import (
    MAX_DEMAND_TO_IDLE_RATIO,
    MIN_DEMANDS_PER_BATCH,
    ExpectedWaste,
)
from scheduler.core.scoring.scarcity_prices import ScarcityPrices

MIX = DemandMix.of(
    [
        (NodeDemand(0, 0, 8_000, 16_000), 12),
        (NodeDemand(1, 250, 3_000, 8_000), 20),
        (NodeDemand(1, 600, 6_000, 16_000), 15),
        (NodeDemand(1, MILLI_PER_GPU, 8_000, 32_000), 30),
        (NodeDemand(1, MILLI_PER_GPU, 8_000, 32_000, 0b01), 6),
        (NodeDemand(2, MILLI_PER_GPU, 16_000, 64_000), 10),
        (NodeDemand(4, MILLI_PER_GPU, 32_000, 128_000), 5),
        (NodeDemand(8, MILLI_PER_GPU, 64_000, 256_000, 0b10), 2),
    ]
)


# Not split: one loop is easier to compare with the documented definition.
def plain_waste(
    waste: ExpectedWaste, mix: DemandMix, klass: int, cpu: int, memory: int, gpus: list[int]
) -> int:
    """Compute the waste by its definition, request by request, without vectorisation."""
    total, idle = 0, sum(gpus)
    for batch in mix.batches(waste.batches):
        free, left_cpu, left_memory, asked, offered = sorted(gpus), cpu, memory, 0, 0
        for index in batch:
            need = mix.needs[index]
            if not need.allows(klass):
                continue
            if asked >= MIN_DEMANDS_PER_BATCH and offered >= MAX_DEMAND_TO_IDLE_RATIO * idle:
                break
            asked, offered = asked + 1, offered + need.total
            places = [i for i, g in enumerate(free) if g >= need.milli]
            if need.cpu > left_cpu or need.memory > left_memory or len(places) < need.gpus:
                continue
            if need.whole:
                for i in [i for i, g in enumerate(free) if g == MILLI_PER_GPU][: need.whole]:
                    free[i] = 0
            elif need.gpus:
                free[min(places, key=lambda i: free[i])] -= need.milli
            left_cpu, left_memory = left_cpu - need.cpu, left_memory - need.memory
        total += sum(free)
    return total


def test_the_waste_of_a_node_is_the_amount_that_batches_of_requests_leave_idle() -> None:
    rng = random.Random(1)
    waste = ExpectedWaste(MIX, classes=2, batches=8)
    for _ in range(120):
        klass = rng.randrange(2)
        cpu, memory = rng.choice((4_000, 20_000, 64_000, 96_000)), rng.choice((16_000, 100_000, 400_000))
        gpus = [rng.choice((0, 200, 400, 750, MILLI_PER_GPU, MILLI_PER_GPU)) for _ in range(8)]
        found = waste.of(np.array([klass]), np.array([cpu]), np.array([memory]), np.array([gpus]))
        assert int(found[0]) == plain_waste(waste, MIX, klass, cpu, memory, gpus)


def test_the_waste_of_a_node_is_computed_once_for_any_order_of_its_gpus() -> None:
    waste = ExpectedWaste(MIX, classes=2, batches=4)
    one = waste.of(np.array([0]), np.array([64_000]), np.array([10**6]), np.array([[0, 400, MILLI_PER_GPU]]))
    worked_out = waste.states_computed
    other = waste.of(
        np.array([0]), np.array([64_000]), np.array([10**6]), np.array([[MILLI_PER_GPU, 0, 400]])
    )
    assert one.tolist() == other.tolist()
    assert waste.states_computed == worked_out


def test_the_demand_mix_does_not_depend_on_the_order_of_counting() -> None:
    counted = list(zip(MIX.needs, MIX.weights, strict=True))
    again = DemandMix.of([*reversed(counted[1:]), (counted[0][0], 1), (counted[0][0], counted[0][1] - 1)])
    assert again == MIX
    assert (again.batches(3) == MIX.batches(3)).all()
    assert MIX.batches(3).shape == (3, BATCH_SIZE)


def test_only_models_that_some_requests_require_have_a_price() -> None:
    prices = ScarcityPrices(MIX, classes=3)
    prices.refresh([4_000, 400_000, 400_000], [0] * len(prices.slot_shapes))
    scarce, wide, free_for_all = (int(p) for p in prices.model_price)
    assert scarce > wide > 0
    assert free_for_all == 0


def test_constrained_demand_spreads_over_its_models_until_they_are_equally_scarce() -> None:
    mix = DemandMix.of(
        [
            (NodeDemand(1, MILLI_PER_GPU, 0, 0, 0b11), 1),
            (NodeDemand(1, MILLI_PER_GPU, 0, 0, 0b01), 1),
            (NodeDemand(1, MILLI_PER_GPU, 0, 0), 2),
        ]
    )
    prices = ScarcityPrices(mix, classes=3)
    free = [1_000, 3_000, 4_000]
    assert prices._loads(free, sum(free)) == pytest.approx([2_000.0, 2_000.0, 0.0])
    even = [4_000, 4_000, 0]
    assert prices._loads(even, sum(even)) == pytest.approx([2_000.0, 2_000.0, 0.0])


def test_the_last_slot_for_a_large_request_has_a_higher_price_than_one_of_many() -> None:
    prices = ScarcityPrices(MIX, classes=2)
    eight = [shape[0] for shape in prices.slot_shapes].index(8)
    slots = [40] * len(prices.slot_shapes)
    prices.refresh([100_000, 100_000], slots)
    plenty = int(prices.slot_price[eight])
    slots[eight] = 1
    prices.refresh([100_000, 100_000], slots)
    assert int(prices.slot_price[eight]) > plenty


def two_nodes() -> NodeStates:
    """Return two nodes of four GPUs. On the second only a quarter of one GPU is free."""
    nodes = NodeStates([64_000, 64_000], [10**6, 10**6], [4, 4], [0, 0])
    nodes.take(1, NodeDemand(3, MILLI_PER_GPU, 0, 0), 0)
    nodes.take(1, NodeDemand(1, 750, 0, 0), 3)
    return nodes


@pytest.mark.parametrize("policy", [BestFit, Fgd])
def test_best_fit_and_fgd_put_a_share_on_the_gpu_in_use(policy: type[BestFit | Fgd]) -> None:
    assert policy(two_nodes(), MIX).choose(NodeDemand(1, 250, 1_000, 1_000)) == NodeChoice(1, 3)


def test_no_policy_places_a_request_that_does_not_fit() -> None:
    for policy in openb.POLICIES:
        nodes = two_nodes()
        chooser = openb.make(policy, nodes, MIX, seed=1)
        assert chooser.choose(NodeDemand(5, MILLI_PER_GPU, 0, 0)) is None
        assert chooser.choose(NodeDemand(1, MILLI_PER_GPU, 65_000, 0)) is None
        assert chooser.choose(NodeDemand(1, MILLI_PER_GPU, 0, 0, 0b10)) is None
        assert chooser.choose(NodeDemand(4, MILLI_PER_GPU, 0, 0)) == NodeChoice(0)


def test_fgd_counts_the_capacity_that_common_requests_cannot_use() -> None:
    mix = DemandMix.of(
        [
            (NodeDemand(0, 0, 1_000, 0), 1),
            (NodeDemand(1, 500, 1_000, 0), 2),
            (NodeDemand(2, MILLI_PER_GPU, 9_000, 0), 1),
        ]
    )
    fgd = Fgd(NodeStates([64_000], [10**6], [2], [0]), mix)
    # The node has 8 free CPUs, and GPUs with 1,000 and 300 free thousandths. The first request of the mix
    # needs no GPU. The second cannot use the GPU with 300 thousandths, and the third can use neither GPU.
    found = fgd.fragments(np.array([0]), np.array([8_000]), np.array([[MILLI_PER_GPU, 300]]))
    assert int(found[0]) == 1 * 1_300 + 2 * 300 + 1 * 1_300


def test_placement_is_deterministic() -> None:
    def placed() -> list[NodeChoice | None]:
        nodes = NodeStates([64_000] * 6, [500_000] * 6, [8, 4, 8, 2, 4, 1], [0, 1, 1, 0, 1, 0])
        chooser, rng, chosen = ProductRule(nodes, MIX), random.Random(3), []
        for _ in range(60):
            need = rng.choice(MIX.needs)
            place = chooser.choose(need)
            chosen.append(place)
            if place is not None:
                nodes.take(place.node, need, place.gpu)
                chooser.took(place.node)
        return chosen

    first = placed()
    assert first == placed()
    assert None in first


# -- the benchmark, on a synthetic cluster and list of pods ---------------------------------------------


@pytest.fixture(scope="module")
def synthetic_trace(tmp_path_factory: pytest.TempPathFactory) -> openb.Trace:
    """Return a trace of 184 nodes of three models. About a tenth of the pods require a model."""
    rng = random.Random(11)
    folder = tmp_path_factory.mktemp("openb")
    nodes = (
        [("H100", 8, 128_000, 1_000_000)] * 56
        + [("L40", 4, 64_000, 256_000)] * 48
        + [("T4", 2, 48_000, 192_000)] * 80
    )
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("sn", "cpu_milli", "memory_mib", "gpu", "model"))
        rows.writerows(
            (f"node-{n:03d}", cpu, memory, gpus, model) for n, (model, gpus, cpu, memory) in enumerate(nodes)
        )
    pod_classes = [
        (0, 0, 16_000, 18),
        (1, 330, 4_000, 20),
        (1, 500, 6_000, 12),
        (1, 720, 10_000, 8),
        (1, 1000, 8_000, 26),
        (1, 1000, 15_000, 6),
        (2, 1000, 16_000, 6),
        (4, 1000, 40_000, 3),
        (8, 1000, 96_000, 1),
    ]
    with (folder / "pods.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"))
        for n in range(880):
            gpus, milli, cpu, _ = rng.choices(pod_classes, [weight for *_, weight in pod_classes])[0]
            tied = gpus == 1 and rng.random() < 0.15
            rows.writerow(
                (
                    f"pod-{n:04d}",
                    cpu,
                    cpu * 3,
                    gpus,
                    milli,
                    rng.choice(("H100", "L40", "L40|T4")) if tied else "",
                )
            )
    return openb.read(folder / "nodes.csv", folder / "pods.csv")


def mean_ratio(trace: openb.Trace, policy: str) -> float:
    return sum(openb.replay(trace, openb.arrival_order(trace, seed), policy, seed) for seed in (1, 2)) / 2


@pytest.mark.long
def test_the_rule_allocates_more_than_other_policies_and_random_placement_the_least(
    synthetic_trace: openb.Trace,
) -> None:
    found = {policy: mean_ratio(synthetic_trace, policy) for policy in openb.POLICIES}
    assert found["ours"] > max(found["fgd"], found["bestfit"]) + 0.4, found
    assert found["fgd"] > found["random"], found
    assert found["bestfit"] > found["random"], found


@pytest.mark.long
def test_a_mix_learned_from_arrivals_is_nearly_as_good_as_a_known_mix(
    synthetic_trace: openb.Trace,
) -> None:
    learned = (
        sum(
            openb.replay(
                synthetic_trace, openb.arrival_order(synthetic_trace, seed), "ours", seed, learn=True
            )
            for seed in (1, 2)
        )
        / 2
    )
    assert learned > mean_ratio(synthetic_trace, "ours") - 1.0
    assert learned > mean_ratio(synthetic_trace, "bestfit")


def test_an_arrival_order_starts_with_every_pod_and_stops_below_the_limit(
    synthetic_trace: openb.Trace,
) -> None:
    order = openb.arrival_order(synthetic_trace, 42)
    asked = sum(synthetic_trace.needs[i].total for i in order)
    assert sorted(order[: len(synthetic_trace.needs)]) == list(range(len(synthetic_trace.needs)))
    assert asked <= openb.MAX_REQUESTED_RATIO * synthetic_trace.capacity < asked + 8 * MILLI_PER_GPU
    assert order == openb.arrival_order(synthetic_trace, 42) != openb.arrival_order(synthetic_trace, 43)


def test_a_pod_list_without_models_is_read(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nb,2000,20,1,T4\na,1000,10,2,P100\n"
    )
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,100,5,1,460\nq,100,5,2,1000\nr,1,1,0,0\n"
    )
    trace = openb.read(tmp_path / "nodes.csv", tmp_path / "pods.csv")
    assert trace.gpus == (2, 1)
    assert trace.needs == (
        NodeDemand(1, 460, 100, 5, ANY_CLASS),
        NodeDemand(2, MILLI_PER_GPU, 100, 5, ANY_CLASS),
        NodeDemand(0, 0, 1, 1, ANY_CLASS),
    )


def test_the_benchmark_reports_its_figures(
    synthetic_trace: openb.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\na,96000,1000,4,T4\n")
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,100,5,1,500\nq,100,5,1,1000\n"
    )
    files = ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]
    figures = openb.main([*files, "--policy", "bestfit", "--seeds", "1-2,5"])
    assert figures["policy"] == "bestfit"
    assert figures["seeds"] == [1, 2, 5]
    assert 80 <= figures["allocation_ratio"] <= 100
    with pytest.raises(SystemExit):
        openb.main([*files, "--seeds", "5-1"])
    with pytest.raises(SystemExit):
        openb.main(["--pods", str(tmp_path / "none.csv")])
