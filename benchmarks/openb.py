"""The experiment of "Beware of Fragmentation" (USENIX ATC'23) on the Alibaba openb trace, through our own placement.

    ./run bench openb --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv --policy ours --seeds 42-51

The cluster starts empty and nothing ends. Each seed makes one arrival order: the pods of the list shuffled, then pods drawn
from it until 1.3 times the cluster's GPUs were asked for. A pod is placed when it arrives or dropped. The figure is the share
of the cluster's GPU in use when 100 % of it has been asked for.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.traces.placement_policies import (
    BatchFill,
    BestFit,
    Fgd,
    NodeStates,
    PlacementPolicy,
    RandomPlacement,
)
from scheduler.core.scoring.demand_mix import ANY_CLASS, DemandMix, NodeDemand

SERVICES: tuple[str, ...] = ()

ASKED_UP_TO = 1.3  # times the cluster's GPU
MEASURED_AT = 100  # percent of the cluster's GPU asked for
FIRST_LOOK = 16  # pods after which a policy that learns first looks at what came
IMAGINED = DemandMix.of(
    (NodeDemand(gpus, 1000, 0, 0), weight) for gpus, weight in ((1, 8), (2, 2), (4, 2), (8, 1))
)
POLICIES = ("random", "bestfit", "fgd", "ours")


@dataclass(frozen=True, slots=True)
class Trace:
    """A cluster and a list of pods; ``names`` in the list's order, ``needs`` beside them."""

    cpu: tuple[int, ...]
    memory: tuple[int, ...]
    gpus: tuple[int, ...]
    klass: tuple[int, ...]
    names: tuple[str, ...]
    needs: tuple[NodeDemand, ...]

    @property
    def capacity(self) -> int:
        """Thousandths of GPU of the whole cluster."""
        return 1000 * sum(self.gpus)

    def nodes(self) -> NodeStates:
        """The empty cluster."""
        return NodeStates(self.cpu, self.memory, self.gpus, self.klass)

    def mix(self) -> DemandMix:
        """How often each need is in the list."""
        return DemandMix.of(Counter(self.needs).items())


def main(argv: list[str]) -> dict[str, Any]:
    """Replay the list once per seed; the mean allocation ratio in percent at 100 % asked, and how fast it went."""
    options = argparse.ArgumentParser(prog="openb", description=__doc__)
    folder = (
        Path(os.environ.get("GPUPOOL_TRACES", Path(__file__).resolve().parents[2] / "shared" / "data"))
        / "openb"
    )
    options.add_argument("--nodes", type=Path, default=folder / "openb_node_list_gpu_node.csv")
    options.add_argument("--pods", type=Path, default=folder / "openb_pod_list_default.csv")
    options.add_argument("--policy", choices=POLICIES, default="ours")
    options.add_argument(
        "--mix",
        choices=("list", "seen"),
        default="list",
        help="what the policy knows of the mix: the list, or what came so far",
    )
    options.add_argument("--seeds", type=_seeds, default=list(range(42, 52)), help="such as 42-51 or 42,45")
    given = options.parse_args(argv)
    for path in (given.nodes, given.pods):
        if not path.is_file():
            options.error(
                f"{str(path)!r} is not a file: give the trace's path, or its folder as GPUPOOL_TRACES"
            )
    trace = read(given.nodes, given.pods)
    ratios, pods, seconds = [], 0, 0.0
    for seed in given.seeds:
        arrivals = arrival_order(trace, seed)
        began = time.perf_counter()
        ratio = replay(trace, arrivals, given.policy, seed, learn=given.mix == "seen")
        seconds += time.perf_counter() - began
        pods += len(arrivals)
        ratios.append(ratio)
        print(f"seed {seed}: {ratio:.3f} % with {given.policy}", flush=True)
    return {
        "policy": given.policy,
        "pods": given.pods.name,
        "mix": given.mix,
        "seeds": given.seeds,
        "allocation_ratio": round(sum(ratios) / len(ratios), 3),
        "pods_per_second": round(pods / seconds, 1),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
    }


def read(nodes: Path, pods: Path) -> Trace:
    """The trace's two files, by their headers; nodes in the order of their names. A missing gpu_spec allows every model."""
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
    """Indices of the pods in the order they come: the whole list shuffled, then draws with replacement."""
    rng = random.Random(seed)
    order = sorted(range(len(trace.names)), key=lambda i: trace.names[i])
    rng.shuffle(order)
    most = ASKED_UP_TO * trace.capacity
    asked = sum(need.total for need in trace.needs)
    count = len(order)
    while True:
        drawn = order[rng.randrange(count)]
        asked += trace.needs[drawn].total
        if asked > most:
            return order
        order.append(drawn)


def replay(trace: Trace, arrivals: list[int], policy: str, seed: int, learn: bool = False) -> float:
    """One pass: the allocation ratio in percent, the mean over the arrivals at which 100 % had been asked for.

    With ``learn`` the policy starts with the prior of ``IMAGINED`` asks and is made anew, with the mix of what came so far,
    when ``FIRST_LOOK`` pods have come and whenever their number has doubled.
    """
    nodes = trace.nodes()
    chooser = make(policy, nodes, IMAGINED if learn else trace.mix(), seed)
    asked, used, look = 0, 0, FIRST_LOOK
    seen: list[int] = []
    for number, i in enumerate(arrivals):
        if learn and number == look:
            chooser = make(policy, nodes, _learned(trace.needs[j] for j in arrivals[:number]), seed)
            look *= 2
        need = trace.needs[i]
        asked += need.total
        place = chooser.choose(need)
        if place is not None:
            nodes.take(place.node, need, place.gpu)
            chooser.took(place.node)
            used += need.total
        if round(100 * asked / trace.capacity) == MEASURED_AT:
            seen.append(used)
    return 100 * sum(seen) / len(seen) / trace.capacity if seen else 100 * used / trace.capacity


def _learned(came: Iterable[NodeDemand]) -> DemandMix:
    counted = Counter(came)
    counted.update(dict(zip(IMAGINED.needs, IMAGINED.weights, strict=True)))
    return DemandMix.of(counted.items())


def make(policy: str, nodes: NodeStates, mix: DemandMix, seed: int) -> PlacementPolicy:
    """A policy of POLICIES over these nodes."""
    if policy == "random":
        return RandomPlacement(nodes, mix, random.Random(seed).randrange)
    return {"bestfit": BestFit, "fgd": Fgd, "ours": BatchFill}[policy](nodes, mix)


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
