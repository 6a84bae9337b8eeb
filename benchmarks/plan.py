"""One whole cycle of the planner on a pool that is half full, with a mixed queue: how long it takes, and is it right?

    ./run bench plan --gpus 1000 --queued 1000

The pool: hosts of 8 GPUs, two models, every tenth host cut into MIG slices, 8 hosts a rack; 50 teams that are each
guaranteed a part of three quarters of it; reservations on a twentieth and maintenance on a fiftieth of the hosts to come.
The queue: mostly single GPUs, some whole hosts, gangs of up to 64 hosts, a tenth slices. Everything from one seed.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.plan_verifier import violations
from scheduler.core.incremental_planner import IncrementalPlanner
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    DecayedUseInfo,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    Priority,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.model.snapshot_delta import SnapshotDelta
from scheduler.core.planner import plan
from scheduler.core.what_if.simulation import run_simulation
from scheduler.cycle.gc_pause import gc_paused

SERVICES: tuple[str, ...] = ()

NOW = 1_700_000_000
HOUR = 3600
SETTLED_AFTER = 400  # longer than notice, grace and minimum runtime together
TEAMS = 50
GPUS_PER_HOST = 8
MODELS = ("H100-80GB", "A100-40GB")
SLICE, SLICES_PER_GPU = "1g.10gb", 7


def main(argv: list[str]) -> dict[str, Any]:
    """Plan ``--rounds`` times and report the quickest; ``violations`` counts what the verifier finds in the plan.

    ``seconds`` is a whole cycle from a snapshot that nothing was kept of; ``one_ask_seconds`` one from a standing snapshot
    of the same pool in which a single new ask waits, ``one_ask_in_queue_seconds`` one in which all the others wait, too, as
    if the plan before had never been carried out. ``settled`` is the pool a while after, when it was: what a new ask costs
    there is what it costs an engine that goes on planning, explained (``seconds``) and decided only (``decided_seconds``).
    """
    options = argparse.ArgumentParser(prog="plan", description=__doc__)
    options.add_argument("--gpus", type=_between(GPUS_PER_HOST, 100_000), default=1000)
    options.add_argument("--queued", type=_between(0, 100_000), default=1000)
    options.add_argument("--seed", type=_between(0, 2**31), default=42)
    options.add_argument("--rounds", type=_between(1, 100), default=3)
    given = options.parse_args(argv)
    snapshot = busy_pool(given.gpus, given.queued, given.seed)
    seconds = []
    for _ in range(given.rounds):
        with gc_paused():  # as the engine plans
            began = time.perf_counter()
            planned = plan(snapshot, NOW)
            seconds.append(time.perf_counter() - began)
    return {
        "gpus": given.gpus,
        "queued": given.queued,
        "placed": len(planned.placements),
        "evicted": len(planned.evictions),
        "violations": len(violations(snapshot, planned, NOW)),
        "seconds": round(min(seconds), 4),
        "one_ask_seconds": round(one_ask(replace(snapshot, queued=()), given.rounds), 4),
        "one_ask_in_queue_seconds": round(one_ask(snapshot, given.rounds), 4),
        "settled": settled_figures(snapshot, given.rounds),
    }


def settled_figures(snapshot: Snapshot, rounds: int) -> dict[str, Any]:
    """The same pool ``SETTLED_AFTER`` seconds later: who was placed runs, who was told to go is gone, the rest waits."""
    later = NOW + SETTLED_AFTER
    settled = run_simulation(snapshot, (), later, start=NOW, on_event=lambda event: None)
    return {
        "running": len(settled.running),
        "queued": len(settled.queued),
        "seconds": round(one_ask(settled, rounds, later), 4),
        "decided_seconds": round(one_ask(settled, rounds, later, explain=False), 4),
    }


def one_ask(snapshot: Snapshot, rounds: int, now: int = NOW, *, explain: bool = True) -> float:
    """Seconds from a new ask for one GPU to the plan that answers it, with its reasons if ``explain``; the quickest of some
    rounds, each a second after the one before."""
    standing, seconds = IncrementalPlanner(snapshot), []
    standing.plan(now)
    for number in range(1, rounds + 1):
        new = QueuedWorkload(
            2_000_000 + number, 1, 1, 1, 1, Ask(1), now + number, HOUR, HOUR // 2, preemptible=True
        )
        with gc_paused():
            began = time.perf_counter()
            standing.change(SnapshotDelta(queued=(new,), queued_gone=(new.id - 1,)))
            planned = standing.plan(now + number, explain=explain)
            seconds.append(time.perf_counter() - began)
        answered = {p.workload for p in planned.placements} | {r.workload for r in planned.refusals}
        assert new.id in answered or not explain
    return min(seconds)


def busy_pool(gpus: int, queued: int, seed: int) -> Snapshot:
    """A pool of ``gpus`` GPUs, half of it in use, and ``queued`` waiting workloads."""
    rng = random.Random(seed)
    hosts, units = _hardware(max(1, gpus // GPUS_PER_HOST))
    running = _running(rng, units)
    total = {model: sum(u.slots for u in units if u.model == model) for model in MODELS}
    quotas = tuple(
        QuotaInfo(team, 1, model, total[model] * 3 // 4 // TEAMS // SLOTS_PER_GPU * SLOTS_PER_GPU)
        for team in range(1, TEAMS + 1)
        for model in MODELS
    )
    reservations = tuple(
        ReservationInfo(n, rng.randint(1, TEAMS), 1, 1, Ask(GPUS_PER_HOST), start, start + 8 * HOUR)
        for n in range(1, len(hosts) // 20 + 1)
        for start in (NOW + rng.choice((0, 1, 4, 24)) * HOUR + 60,)
    )
    return Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "busy", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=tuple(hosts),
        units=tuple(units),
        teams=tuple(TeamInfo(t, f"team-{t}", rng.choice((1, 1, 2))) for t in range(1, TEAMS + 1)),
        quotas=quotas,
        decayed_use=tuple(DecayedUseInfo(t, 1, float(rng.randint(0, 10**9))) for t in range(1, TEAMS + 1)),
        queued=tuple(_queued(rng, 1_000_000 + n, len(hosts)) for n in range(queued)),
        running=tuple(running),
        reservations=reservations,
        maintenance=tuple(
            MaintenanceInfo(rng.choice(hosts).id, NOW + 6 * HOUR, NOW + 8 * HOUR)
            for _ in range(len(hosts) // 50)
        ),
    )


def _hardware(count: int) -> tuple[list[HostInfo], list[UnitInfo]]:
    hosts, units = [], []
    for number in range(1, count + 1):
        labels = frozenset({("rack", f"rack-{number // 8:04d}")})
        hosts.append(
            HostInfo(number, f"gpu-{number:05d}", 1, labels, cpu_milli=128_000, memory_mib=1_000_000)
        )
        cut = number % 10 == 0
        model = MODELS[0] if number % 3 else MODELS[1]
        for gpu in range(number * GPUS_PER_HOST, (number + 1) * GPUS_PER_HOST):
            for part in range(SLICES_PER_GPU if cut else 1):
                units.append(
                    UnitInfo(
                        id=gpu * 10 + part,
                        host=number,
                        gpu=gpu,
                        model=model,
                        profile=SLICE if cut else "",
                        slots=SLOTS_PER_GPU // (SLICES_PER_GPU if cut else 1),
                        memory_mib=(81_920 if model == MODELS[0] else 40_960)
                        // (SLICES_PER_GPU if cut else 1),
                        compute_capability=90 if model == MODELS[0] else 80,
                        nvlink_group=None if cut else number,
                    )
                )
    return hosts, units


def _running(rng: random.Random, units: list[UnitInfo]) -> list[RunningWorkload]:
    """Work of 1, 2, 4 or 8 units, each on one host, until half of the units are held."""
    by_host: dict[int, list[int]] = {}
    for unit in units:
        by_host.setdefault(unit.host, []).append(unit.id)
    held = 0
    running: list[RunningWorkload] = []
    while held < len(units) // 2:
        free = by_host[rng.choice(list(by_host))]
        size = rng.choices((1, 2, 4, 8), (50, 20, 15, 15))[0]
        if len(free) < size:
            continue
        mine, free[:size] = tuple(sorted(free[:size])), []
        held += size
        started = NOW - rng.randint(60, 20 * HOUR)
        lasts = rng.randint(HOUR, 40 * HOUR)
        running.append(
            RunningWorkload(
                id=len(running) + 1,
                team=rng.randint(1, TEAMS),
                project=1,
                user=rng.randint(1, 500),
                pool=1,
                units=mine,
                started=started,
                until=max(NOW + 60, started + 2 * lasts),
                predicted_end=max(NOW + 60, started + lasts),
                priority=rng.choice((Priority.LOW, Priority.NORMAL, Priority.HIGH)),
                preemptible=rng.random() < 0.7,
                checkpoint_at=rng.choice((None, max(started, NOW - 600))),
                cpu_milli=size * 4_000,
                memory_mib=size * 32_000,
            )
        )
    return running


def _queued(rng: random.Random, workload: int, hosts: int) -> QueuedWorkload:
    size, gang = rng.choices(
        ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 8), (8, 64)), (55, 12, 10, 15, 5, 2, 1)
    )[0]
    slices = rng.random() < 0.1
    limit = rng.choice((HOUR, 4 * HOUR, 24 * HOUR, 72 * HOUR))
    preemptible = rng.random() < 0.6
    models = () if slices else rng.choice(((MODELS[0],), (MODELS[1],), MODELS, ()))
    return QueuedWorkload(
        id=workload,
        team=rng.randint(1, TEAMS),
        project=1,
        user=rng.randint(1, 500),
        pool=1,
        ask=Ask(
            units=1 if slices else size,
            hosts=1 if slices else min(gang, hosts),
            models=models,
            profile=SLICE if slices else "",
            cpu_milli=size * 4_000,
            memory_mib=size * 32_000,
        ),
        submitted=NOW - rng.randint(0, 30 * HOUR),
        max_runtime_seconds=limit,
        predicted_seconds=rng.randint(limit // 10, limit),
        priority=rng.choice((Priority.LOW, Priority.NORMAL, Priority.NORMAL, Priority.HIGH)),
        preemptible=preemptible,
        may_borrow=preemptible,
    )


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read
