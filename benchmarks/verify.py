"""Verify the planner on random pools that Hypothesis generates.

    ./run bench verify --examples 10000

Every example is one whole snapshot (`tests/core/strategies.py`). The snapshot is planned, and the plan is
checked against every promise of `benchmarks.plan_verifier`. Then the same rows are planned in another order,
which must give the same plan.

The examples are divided among worker processes. `--seed` and `--workers` determine the examples. With
`--reduce`, each worker also prints a snapshot for each broken promise, with only the rows that break it.
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
    """The results of one worker: the number of examples, and the broken promises."""

    examples: int = 0
    # By field of the plan, such as "placements": the number of examples whose plan has rows in this field.
    with_any: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    # Lines to print: for each broken promise, its first violation and, with --reduce, the rows.
    shown: list[str] = field(default_factory=list)


def main(argv: list[str]) -> dict[str, Any]:
    """Return the figures of all examples.

    ``violations`` also counts plans that depend on the order of rows.
    """
    parser = argparse.ArgumentParser(prog="verify", description=__doc__)
    parser.add_argument("--examples", type=_between(1, 10_000_000), default=10_000)
    parser.add_argument("--seed", type=_between(0, 2**31), default=42)
    parser.add_argument("--workers", type=_between(1, 256), default=max(1, os.cpu_count() or 1))
    parser.add_argument(
        "--reduce", action="store_true", help="print the minimal rows that break each promise"
    )
    options = parser.parse_args(argv)
    began = time.perf_counter()
    shares = _shares(options.examples, options.workers)
    with ProcessPoolExecutor(len(shares)) as workers:
        seeds = [options.seed + number for number in range(len(shares))]
        parts = list(workers.map(_examine, shares, seeds, [options.reduce] * len(shares)))
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
    """Return how many examples each worker gets, divided as evenly as possible.

    Workers without examples are left out.
    """
    parts = [examples // workers + (number < examples % workers) for number in range(workers)]
    return [part for part in parts if part]


def _examine(examples: int, seed: int, reduce: bool) -> ExamineResult:
    """Generate, plan and check the examples of one worker.

    Hypothesis is imported here because the other benchmarks do not need it.
    """
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed

    from tests.core.strategies import NOW, snapshots

    result = ExamineResult()

    @with_seed(seed)
    @settings(
        max_examples=examples,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(snapshots())
    def check_example(snapshot: Snapshot) -> None:
        result.examples += 1
        try:
            decisions = plan(snapshot, NOW)
        except Exception as error:  # noqa: BLE001 (any exception means that the pool has no plan)
            decisions = Plan(snapshot.epoch)
            broken = [(PLAN_PROMISE, repr(error))]
        else:
            broken = judged(snapshot, decisions, NOW, seed)
        non_empty_parts = [
            part.name for part in fields(decisions) if part.name != "epoch" and getattr(decisions, part.name)
        ]
        result.with_any.update(non_empty_parts)
        for promise, sentence in broken:
            if not result.broken[promise]:
                result.shown.append(f"{promise}: {sentence}")
                result.shown += _rows(reduced(snapshot, promise, NOW, seed)) if reduce else []
            result.broken[promise] += 1

    check_example()
    return result


def reduced(snapshot: Snapshot, promise: str, now: int, seed: int) -> Snapshot:
    """Return a smaller snapshot that still breaks the promise.

    Rows are removed one at a time, as long as the promise stays broken.
    """
    smaller = True
    while smaller:
        smaller = False
        for table in TABLES:
            for row in getattr(snapshot, table):
                remaining_rows: Any = {
                    table: tuple(other for other in getattr(snapshot, table) if other is not row)
                }
                if table == "hosts":
                    remaining_rows["units"] = tuple(unit for unit in snapshot.units if unit.host != row.id)
                candidate = replace(snapshot, **remaining_rows)
                if _has_valid_references(candidate) and promise in _broken(candidate, now, seed):
                    snapshot, smaller = candidate, True
    return snapshot


def _has_valid_references(snapshot: Snapshot) -> bool:
    """Return True if running work, reservations and maintenance refer only to units and hosts of the
    snapshot.
    """
    units = {unit.id for unit in snapshot.units}
    referenced = [unit for work in snapshot.running for unit in work.units]
    referenced += [unit for reservation in snapshot.reservations for unit in reservation.units]
    hosts = {host.id for host in snapshot.hosts}
    return units.issuperset(referenced) and hosts.issuperset(window.host for window in snapshot.maintenance)


def _broken(snapshot: Snapshot, now: int, seed: int) -> set[str]:
    try:
        decisions = plan(snapshot, now)
    except Exception:  # noqa: BLE001 (any exception means that the pool has no plan)
        return {PLAN_PROMISE}
    return {promise for promise, _ in judged(snapshot, decisions, now, seed)}


def _rows(snapshot: Snapshot) -> list[str]:
    tables = (getattr(snapshot, part.name) for part in fields(snapshot) if part.name != "epoch")
    return [f"    {row}" for table in tables for row in table]


def judged(snapshot: Snapshot, planned: Plan, now: int, seed: int) -> list[tuple[str, str]]:
    """Return (promise, sentence) for each broken promise of one example.

    Besides ``PROMISES``, this checks that the order of rows does not change the plan.
    """
    broken = broken_promises(snapshot, planned, now)
    if repr(plan(shuffled(snapshot, seed), now)) != repr(planned):
        broken.append((ORDER_PROMISE, "another plan"))
    return broken


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """Return a snapshot with the same rows, but with the rows of each table in another order."""
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
