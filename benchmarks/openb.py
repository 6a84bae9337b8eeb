"""Run the experiment of "Beware of Fragmentation" (USENIX ATC'23) on the Alibaba openb trace.

    ./run bench openb --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv --seeds 42-51

The cluster starts empty, and no pod ends. Each seed gives one order in which the pods arrive. All pods of the
list arrive first, shuffled. Then more pods are drawn from the list at random, until all arrived pods together
have requested 1.3 times the cluster's GPUs. A pod is placed when it arrives, or dropped if it does not fit.

The figure is the share of GPUs in use when the arrived pods together have requested as many GPUs as the
cluster has.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.traces.placement_policies import (
    BestFit,
    Fgd,
    NodeStates,
    PlacementPolicy,
    ProductRule,
    RandomPlacement,
)
from scheduler.core.scoring.demand_mix import ANY_CLASS, DemandMix, NodeDemand

SERVICES: tuple[str, ...] = ()

MAX_REQUESTED_RATIO = 1.3  # requested GPUs at the end of a replay, as a multiple of the cluster's GPUs
MEASURED_AT_PERCENT = 100  # requested GPUs at the measurement, in percent of the cluster's GPUs
FIRST_UPDATE_ARRIVALS = 16  # arrivals before a learning policy updates its mix for the first time
PRIOR_MIX = DemandMix.of(
    (NodeDemand(gpus, 1000, 0, 0), weight) for gpus, weight in ((1, 8), (2, 2), (4, 2), (8, 1))
)
POLICIES = ("random", "bestfit", "fgd", "ours")


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and a list of pods.

    ``names`` and ``needs`` have one entry for each pod, in the order of the list.
    """

    cpu: tuple[int, ...]
    memory: tuple[int, ...]
    gpus: tuple[int, ...]
    klass: tuple[int, ...]
    names: tuple[str, ...]
    needs: tuple[NodeDemand, ...]

    @property
    def capacity(self) -> int:
        """Return the GPU capacity of the cluster in thousandths of a GPU."""
        return 1000 * sum(self.gpus)

    def nodes(self) -> NodeStates:
        """Return the states of the empty nodes of the cluster."""
        return NodeStates(self.cpu, self.memory, self.gpus, self.klass)

    def mix(self) -> DemandMix:
        """Return the frequency of each demand in the list."""
        return DemandMix.of(Counter(self.needs).items())


def main(argv: list[str]) -> dict[str, Any]:
    """Replay the trace once for each seed.

    Return the pods placed per second, and the mean allocation ratio in percent: the share of GPUs in use when
    100 % have been requested.
    """
    parser = argparse.ArgumentParser(prog="openb", description=__doc__)
    folder = (
        Path(os.environ.get("GPUPOOL_TRACES", Path(__file__).resolve().parents[2] / "shared" / "data"))
        / "openb"
    )
    parser.add_argument("--nodes", type=Path, default=folder / "openb_node_list_gpu_node.csv")
    parser.add_argument("--pods", type=Path, default=folder / "openb_pod_list_default.csv")
    parser.add_argument("--policy", choices=POLICIES, default="ours")
    parser.add_argument(
        "--mix",
        choices=("list", "seen"),
        default="list",
        help="source of the mix that the policy knows: the list, or the arrivals so far",
    )
    parser.add_argument("--seeds", type=_seeds, default=list(range(42, 52)), help="such as 42-51 or 42,45")
    options = parser.parse_args(argv)
    for path in (options.nodes, options.pods):
        if not path.is_file():
            parser.error(
                f"{str(path)!r} is not a file: give the trace's path, or its folder as GPUPOOL_TRACES"
            )
    trace = read(options.nodes, options.pods)
    ratios, pods, seconds = [], 0, 0.0
    for seed in options.seeds:
        arrivals = arrival_order(trace, seed)
        began = time.perf_counter()
        ratio = replay(trace, arrivals, options.policy, seed, learn=options.mix == "seen")
        seconds += time.perf_counter() - began
        pods += len(arrivals)
        ratios.append(ratio)
        print(f"seed {seed}: {ratio:.3f} % with {options.policy}", flush=True)
    return {
        "policy": options.policy,
        "pods": options.pods.name,
        "mix": options.mix,
        "seeds": options.seeds,
        "allocation_ratio": round(sum(ratios) / len(ratios), 3),
        "pods_per_second": round(pods / seconds, 1),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
    }


def read(nodes: Path, pods: Path) -> Trace:
    """Read the two files of the trace. The nodes are sorted by name.

    A pod without a gpu_spec may use every GPU model.
    """
    with nodes.open(newline="") as file:
        machines = sorted(csv.DictReader(file), key=lambda row: row["sn"])
    models = {name: number for number, name in enumerate(sorted({row["model"] for row in machines}))}
    with pods.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return Trace(
        cpu=tuple(int(row["cpu_milli"]) for row in machines),
        memory=tuple(int(row["memory_mib"]) for row in machines),
        gpus=tuple(int(row["gpu"]) for row in machines),
        klass=tuple(models[row["model"]] for row in machines),
        names=tuple(row["name"] for row in rows),
        needs=tuple(_need(row, models) for row in rows),
    )


def _need(row: dict[str, str], models: dict[str, int]) -> NodeDemand:
    spec = row.get("gpu_spec") or ""
    classes = sum(1 << models[name] for name in set(spec.split("|")) if name in models) if spec else ANY_CLASS
    gpus = int(row["num_gpu"])
    milli = int(row["gpu_milli"]) if gpus == 1 else 1000 if gpus else 0
    return NodeDemand(gpus, milli, int(row["cpu_milli"]), int(row["memory_mib"]), classes)


def arrival_order(trace: Trace, seed: int) -> list[int]:
    """Return the indices of the pods in the order of their arrival.

    The whole list comes first, shuffled. Then follow random draws from the list.
    """
    rng = random.Random(seed)
    order = sorted(range(len(trace.names)), key=lambda i: trace.names[i])
    rng.shuffle(order)
    limit = MAX_REQUESTED_RATIO * trace.capacity
    requested = sum(need.total for need in trace.needs)
    count = len(order)
    while True:
        drawn = order[rng.randrange(count)]
        requested += trace.needs[drawn].total
        if requested > limit:
            return order
        order.append(drawn)


def replay(trace: Trace, arrivals: list[int], policy: str, seed: int, learn: bool = False) -> float:
    """Replay the arrivals once and return the allocation ratio in percent.

    The ratio is the mean over all arrivals after which the requested GPUs round to 100 % of the capacity.

    If ``learn``, the policy does not know the mix of requests in advance. It starts with ``PRIOR_MIX``. After
    ``FIRST_UPDATE_ARRIVALS`` arrivals, it gets a new mix: ``PRIOR_MIX`` and all arrivals so far. It gets
    another new mix each time the number of arrivals has doubled.
    """
    nodes = trace.nodes()
    chooser = make(policy, nodes, PRIOR_MIX if learn else trace.mix(), seed)
    requested, used, next_update = 0, 0, FIRST_UPDATE_ARRIVALS
    used_at_full_request: list[int] = []
    for number, i in enumerate(arrivals):
        if learn and number == next_update:
            chooser = make(policy, nodes, _learned(trace.needs[j] for j in arrivals[:number]), seed)
            next_update *= 2
        need = trace.needs[i]
        requested += need.total
        choice = chooser.choose(need)
        if choice is not None:
            nodes.take(choice.node, need, choice.gpu)
            chooser.took(choice.node)
            used += need.total
        if round(100 * requested / trace.capacity) == MEASURED_AT_PERCENT:
            used_at_full_request.append(used)
    return (
        100 * sum(used_at_full_request) / len(used_at_full_request) / trace.capacity
        if used_at_full_request
        else 100 * used / trace.capacity
    )


def _learned(arrivals: Iterable[NodeDemand]) -> DemandMix:
    counts = Counter(arrivals)
    counts.update(dict(zip(PRIOR_MIX.needs, PRIOR_MIX.weights, strict=True)))
    return DemandMix.of(counts.items())


def make(policy: str, nodes: NodeStates, mix: DemandMix, seed: int) -> PlacementPolicy:
    """Return the policy with this name (one of ``POLICIES``) for these nodes."""
    if policy == "random":
        return RandomPlacement(nodes, mix, random.Random(seed).randrange)
    policies: dict[str, Callable[[NodeStates, DemandMix], PlacementPolicy]] = {
        "bestfit": BestFit,
        "fgd": Fgd,
        "ours": ProductRule,
    }
    return policies[policy](nodes, mix)


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if (
            not first.isdecimal()
            or not (last or first).isdecimal()
            or int(last or first) - int(first) not in range(1000)
        ):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of seeds such as 42-51 or 42,45")
        seeds += range(int(first), int(last or first) + 1)
    return seeds
