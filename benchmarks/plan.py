"""Measure one whole planning cycle on a half-full pool with a mixed queue, and verify its plan.

    ./run bench plan --gpus 1000 --queued 1000

The pool has hosts of 8 GPUs, 8 hosts in each rack, and two GPU models. Every tenth host is split into MIG
slices. 50 teams have equal guarantees, which together are three quarters of the pool. There is one future
reservation for every 20 hosts, and one future maintenance window for every 50 hosts.

The queue has mostly requests for single GPUs. Some requests are for whole hosts or for gangs of up to 64
hosts. A tenth of the requests is for slices. One seed determines the pool and the queue.
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
SETTLED_AFTER = 400  # seconds; longer than notice, grace and minimum runtime together
TEAMS = 50
GPUS_PER_HOST = 8
MODELS = ("H100-80GB", "A100-40GB")
SLICE, SLICES_PER_GPU = "1g.10gb", 7


def main(argv: list[str]) -> dict[str, Any]:
    """Plan ``--rounds`` times and report the fastest plan. ``violations`` counts the verifier's findings.

    - ``seconds``: a whole cycle from a snapshot, without any cached state.
    - ``one_ask_seconds``: a cycle of the incremental planner for a new request. The pool is the same, but no
      other request waits.
    - ``one_ask_in_queue_seconds``: the same, but all requests of the queue wait too. The previous plan is not
      carried out.
    - ``settled``: figures of the pool some time after the previous plan was carried out. This is the usual
      state of an engine that plans continuously. Here, ``seconds`` is the time of a cycle for a new request,
      with the reasons of refusals. ``decided_seconds`` is the time of such a cycle without the reasons.
    """
    parser = argparse.ArgumentParser(prog="plan", description=__doc__)
    parser.add_argument("--gpus", type=_between(GPUS_PER_HOST, 100_000), default=1000)
    parser.add_argument("--queued", type=_between(0, 100_000), default=1000)
    parser.add_argument("--seed", type=_between(0, 2**31), default=42)
    parser.add_argument("--rounds", type=_between(1, 100), default=3)
    options = parser.parse_args(argv)
    snapshot = busy_pool(options.gpus, options.queued, options.seed)
    seconds = []
    for _ in range(options.rounds):
        with gc_paused():  # the engine also pauses garbage collection while it plans
            began = time.perf_counter()
            decisions = plan(snapshot, NOW)
            seconds.append(time.perf_counter() - began)
    return {
        "gpus": options.gpus,
        "queued": options.queued,
        "placed": len(decisions.placements),
        "evicted": len(decisions.evictions),
        "violations": len(violations(snapshot, decisions, NOW)),
        "seconds": round(min(seconds), 4),
        "one_ask_seconds": round(one_ask(replace(snapshot, queued=()), options.rounds), 4),
        "one_ask_in_queue_seconds": round(one_ask(snapshot, options.rounds), 4),
        "settled": settled_figures(snapshot, options.rounds),
    }


def settled_figures(snapshot: Snapshot, rounds: int) -> dict[str, Any]:
    """Return the figures of the same pool after its plan was carried out.

    The pool is simulated until ``SETTLED_AFTER`` seconds after the plan.
    """
    later = NOW + SETTLED_AFTER
    settled = run_simulation(snapshot, (), later, start=NOW, on_event=lambda event: None)
    return {
        "running": len(settled.running),
        "queued": len(settled.queued),
        "seconds": round(one_ask(settled, rounds, later), 4),
        "decided_seconds": round(one_ask(settled, rounds, later, explain=False), 4),
    }


def one_ask(snapshot: Snapshot, rounds: int, now: int = NOW, *, explain: bool = True) -> float:
    """Return the seconds from a new request for one GPU to the plan that answers it.

    If ``explain``, the plan includes the reasons of refusals. The result is the fastest of ``rounds``
    requests, which are submitted at intervals of one simulated second.
    """
    planner, seconds = IncrementalPlanner(snapshot), []
    planner.plan(now)
    for number in range(1, rounds + 1):
        request = QueuedWorkload(
            2_000_000 + number, 1, 1, 1, 1, Ask(1), now + number, HOUR, HOUR // 2, preemptible=True
        )
        with gc_paused():
            began = time.perf_counter()
            planner.change(SnapshotDelta(queued=(request,), queued_gone=(request.id - 1,)))
            decisions = planner.plan(now + number, explain=explain)
            seconds.append(time.perf_counter() - began)
        answered = {p.workload for p in decisions.placements} | {r.workload for r in decisions.refusals}
        assert request.id in answered or not explain
    return min(seconds)


def busy_pool(gpus: int, queued: int, seed: int) -> Snapshot:
    """Return a pool of ``gpus`` GPUs, half of it in use, with ``queued`` waiting workloads."""
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
    """Return running workloads that together hold half of the units. Each holds 1, 2, 4 or 8 units of one
    host.
    """
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
        taken, free[:size] = tuple(sorted(free[:size])), []
        held += size
        started = NOW - rng.randint(60, 20 * HOUR)
        runtime = rng.randint(HOUR, 40 * HOUR)
        running.append(
            RunningWorkload(
                id=len(running) + 1,
                team=rng.randint(1, TEAMS),
                project=1,
                user=rng.randint(1, 500),
                pool=1,
                units=taken,
                started=started,
                until=max(NOW + 60, started + 2 * runtime),
                predicted_end=max(NOW + 60, started + runtime),
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
