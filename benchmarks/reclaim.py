"""Measure a cycle in which a team reclaims borrowed GPUs, with the workload of KAI-Scheduler's benchmark.

    ./run bench reclaim --hosts 1000

N hosts of 8 GPUs are full of 1-GPU jobs of a team without a guarantee. A gang of N/10 tasks, each with 8
GPUs, arrives from a team whose guarantee is the whole pool. The cycle has to find the jobs to evict.
``placed`` counts the tasks for which the plan frees GPUs.

The snapshot is in memory, and nothing is written to a database. KAI's published figures include an API
server.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks.plan_verifier import violations
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
from scheduler.core.reasons import ReasonCode

SERVICES: tuple[str, ...] = ()

NOW = 1_700_000_000
HOUR = 3600
GPUS_PER_HOST = 8
MODEL = "H100-80GB"
GANG = 1


def main(argv: list[str]) -> dict[str, Any]:
    """Return the seconds of the fastest of ``--rounds`` plans.

    ``violations`` counts the verifier's findings.
    """
    parser = argparse.ArgumentParser(prog="reclaim", description=__doc__)
    parser.add_argument("--hosts", type=_between(10, 10_000), default=1000)
    parser.add_argument("--rounds", type=_between(1, 100), default=3)
    options = parser.parse_args(argv)
    snapshot = full_pool(options.hosts)
    seconds = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        decisions = plan(snapshot, NOW)
        seconds.append(time.perf_counter() - began)
    reclaimed = [
        r for r in decisions.refusals if r.workload == GANG and r.code == ReasonCode.WAITS_FOR_EVICTION
    ]
    return {
        "hosts": options.hosts,
        "placed": snapshot.queued[0].ask.hosts if reclaimed else 0,
        "evicted": len(decisions.evictions),
        "violations": len(violations(snapshot, decisions, NOW)),
        "seconds": round(min(seconds), 4),
    }


def full_pool(hosts: int) -> Snapshot:
    """Return a pool that is full of borrowed 1-GPU jobs, and a waiting gang for a tenth of the hosts.

    The jobs have different ages.
    """
    units = tuple(
        UnitInfo(host * GPUS_PER_HOST + gpu, host, host * GPUS_PER_HOST + gpu, MODEL)
        for host in range(1, hosts + 1)
        for gpu in range(GPUS_PER_HOST)
    )
    ask = Ask(units=GPUS_PER_HOST, hosts=hosts // 10)
    return Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "reclaimed", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=tuple(HostInfo(host, f"host-{host:05d}", 1) for host in range(1, hosts + 1)),
        units=units,
        teams=(TeamInfo(1, "borrower"), TeamInfo(2, "owner")),
        quotas=(QuotaInfo(1, 1, MODEL, 0), QuotaInfo(2, 1, MODEL, len(units) * SLOTS_PER_GPU)),
        queued=(QueuedWorkload(GANG, 2, 1, 1, 1, ask, NOW, 24 * HOUR, 12 * HOUR),),
        running=tuple(_borrowed(number, unit) for number, unit in enumerate(units, GANG + 1)),
    )


def _borrowed(number: int, unit: UnitInfo) -> RunningWorkload:
    """Return a running workload on one GPU that started 1 to 10 hours ago.

    The start depends only on ``number``, and differs between neighbouring numbers.
    """
    started = NOW - HOUR - number * 7_919 % (9 * HOUR)
    return RunningWorkload(
        number, 1, 1, 1, 1, (unit.id,), started, NOW + 24 * HOUR, NOW + 12 * HOUR, preemptible=True
    )


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read
