"""Does the planner keep its promises on pools nobody thought of? Hypothesis builds them, the verifier judges each plan.

    ./run bench verify --examples 10000

Every example is one whole snapshot (`tests/core/strategies.py`): it is planned, the plan is checked against every promise
of `benchmarks.plan_verifier`, and the same rows in another order have to give the same plan. The examples are shared out
among worker processes; which ones are tried follows from `--seed` and `--workers`. With `--reduce` the first example of each
promise that a worker finds broken is printed with only those rows that it takes.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

from benchmarks.plan_verifier import PROMISES, broken_promises
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.planner import plan

SERVICES: tuple[str, ...] = ()

TABLES = ("hosts", "units", "quotas", "decayed_use", "queued", "running", "reservations", "maintenance")
PLAN_PROMISE = "every pool gets a plan"
ORDER_PROMISE = "the same rows in another order give the same plan"


@dataclass(slots=True)
class ExamineResult:
    """What one worker saw: how many examples of what, and which promises were broken."""

    examples: int = 0
    with_any: Counter[str] = field(
        default_factory=Counter
    )  # examples whose plan starts, evicts, ... somebody
    broken: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)  # the first sentence of each promise, and its rows


def main(argv: list[str]) -> dict[str, Any]:
    """``violations`` counts sentences of the verifier and plans that changed with the order of their rows."""
    options = argparse.ArgumentParser(prog="verify", description=__doc__)
    options.add_argument("--examples", type=_between(1, 10_000_000), default=10_000)
    options.add_argument("--seed", type=_between(0, 2**31), default=42)
    options.add_argument("--workers", type=_between(1, 256), default=max(1, os.cpu_count() or 1))
    options.add_argument(
        "--reduce", action="store_true", help="print the rows it takes to break each promise"
    )
    given = options.parse_args(argv)
    began = time.perf_counter()
    shares = _shares(given.examples, given.workers)
    with ProcessPoolExecutor(len(shares)) as workers:
        seeds = [given.seed + number for number in range(len(shares))]
        parts = list(workers.map(_examine, shares, seeds, [given.reduce] * len(shares)))
    broken: Counter[str] = sum((part.broken for part in parts), Counter())
    with_any: Counter[str] = sum((part.with_any for part in parts), Counter())
    for line in [line for part in parts for line in part.shown]:
        print(line)
    return {
        "examples": sum(part.examples for part in parts),
        "violations": broken.total(),
        "promises": len(PROMISES) + 2,
        "broken": dict(sorted(broken.items())),
        "examples_with": dict(sorted(with_any.items())),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _shares(examples: int, workers: int) -> list[int]:
    """As even as can be, one part per worker that has something to do."""
    parts = [examples // workers + (number < examples % workers) for number in range(workers)]
    return [part for part in parts if part]


def _examine(examples: int, seed: int, reduce: bool) -> ExamineResult:
    """One worker's examples. Hypothesis is imported here: the other benchmarks do without it."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed

    from tests.core.strategies import NOW, snapshots

    found = ExamineResult()

    @with_seed(seed)
    @settings(
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(snapshots())
    def judge(snapshot: Snapshot) -> None:
        found.examples += 1
        try:
            planned = plan(snapshot, NOW)
        except Exception as error:  # noqa: BLE001 (whatever it is: a pool has no plan)
            planned = Plan(snapshot.epoch)
            broken = [(PLAN_PROMISE, repr(error))]
        else:
            broken = judged(snapshot, planned, NOW, seed)
        made = [part.name for part in fields(planned) if part.name != "epoch" and getattr(planned, part.name)]
        found.with_any.update(made)
        for promise, sentence in broken:
            if not found.broken[promise]:
                found.shown.append(f"{promise}: {sentence}")
                found.shown += _rows(reduced(snapshot, promise, NOW, seed)) if reduce else []
            found.broken[promise] += 1

    judge()
    return found


def reduced(snapshot: Snapshot, promise: str, now: int, seed: int) -> Snapshot:
    """The snapshot with every row left out without which the same promise is still broken."""
    smaller = True
    while smaller:
        smaller = False
        for table in TABLES:
            for row in getattr(snapshot, table):
                rest: Any = {table: tuple(other for other in getattr(snapshot, table) if other is not row)}
                if table == "hosts":
                    rest["units"] = tuple(unit for unit in snapshot.units if unit.host != row.id)
                fewer = replace(snapshot, **rest)
                if _refers_to_what_is_there(fewer) and promise in _broken(fewer, now, seed):
                    snapshot, smaller = fewer, True
    return snapshot


def _refers_to_what_is_there(snapshot: Snapshot) -> bool:
    """Running work and reservations name only units that the snapshot has."""
    units = {unit.id for unit in snapshot.units}
    named = [unit for work in snapshot.running for unit in work.units]
    named += [unit for reservation in snapshot.reservations for unit in reservation.units]
    hosts = {host.id for host in snapshot.hosts}
    return units.issuperset(named) and hosts.issuperset(window.host for window in snapshot.maintenance)


def _broken(snapshot: Snapshot, now: int, seed: int) -> set[str]:
    try:
        planned = plan(snapshot, now)
    except Exception:  # noqa: BLE001 (that it has none is what is looked for)
        return {PLAN_PROMISE}
    return {promise for promise, _ in judged(snapshot, planned, now, seed)}


def _rows(snapshot: Snapshot) -> list[str]:
    tables = (getattr(snapshot, part.name) for part in fields(snapshot) if part.name != "epoch")
    return [f"    {row}" for table in tables for row in table]


def judged(snapshot: Snapshot, planned: Plan, now: int, seed: int) -> list[tuple[str, str]]:
    """Broken promises of one example, the one about the order of rows included."""
    broken = broken_promises(snapshot, planned, now)
    if repr(plan(shuffled(snapshot, seed), now)) != repr(planned):
        broken.append((ORDER_PROMISE, "another plan"))
    return broken


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """The same rows, each table in another order."""
    rng = random.Random(seed)
    tables: dict[str, Any] = {}
    for row in fields(snapshot):
        value = getattr(snapshot, row.name)
        if isinstance(value, tuple):
            tables[row.name] = tuple(rng.sample(value, len(value)))
    return replace(snapshot, **tables)


def _between(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text[:20]) <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number from {low} to {high}")
        return int(text)

    return read
