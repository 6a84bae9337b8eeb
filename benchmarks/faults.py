"""Inject random faults into a real installation under load, and check that it recovers.

    ./run bench faults --rounds 3 --seed 1 --json
    ./run bench faults --only kill_web,kill_shim --rounds 200

The installation is started as `./run up` and `./run demo` start it. Leases last 5 s, or 20 s with `--short`.

A round injects one fault at a random time while jobs are submitted. A few faults are injected without this
load. After the fault, another job is submitted. The recovery is the time until this job starts, unless the
fault defines the recovery differently. Each fault states its pass condition.

The installation survives a round if it recovers in time and no invariant is violated. The invariants are: no
unit is held twice, no job runs twice at once, and no job is lost. They are checked in the database rows, in
the processes, and in the ledger that the jobs themselves write.

The figures are `{"rounds", "survived", "faults": {NAME: {"rounds", "survived", "worst_recovery"}}}`, with
recovery in seconds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from django.core.exceptions import ObjectDoesNotExist

from benchmarks.fault_injection import (  # noqa: F401 (register)
    hang_faults,
    host_faults,
    message_faults,
    workload_faults,
)
from benchmarks.fault_injection.job_ledger import BackgroundLoad, JobLedger
from benchmarks.fault_injection.process_faults import FAULTS, Fault, FaultContext, end_remaining_jobs
from benchmarks.harness.conditions import ConditionTimeout
from benchmarks.harness.installation import Installation

SERVICES = ()
# Leases are longer with --short, because the short form must pass while other tests keep the machine busy.
SHORT_LEASE_SECONDS = 20


def main(argv: list[str]) -> dict[str, Any]:
    """Run the selected faults and return the figures."""
    parser = argparse.ArgumentParser(prog="./run bench faults")
    parser.add_argument("--rounds", type=_count, default=3, help="rounds of each fault, 1 to 1000")
    parser.add_argument("--only", type=_names, default=list(FAULTS), help="comma-separated names of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, default=None, help="folder of the installation, which is kept with its logs"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="one round of each cheap fault on three hosts; recovery times are not checked",
    )
    parser.add_argument(
        "--untimed", action="store_true", help="leases of 20 s; recovery times are not checked"
    )
    options = parser.parse_args(argv)
    if options.short:
        options.rounds, options.only = 1, [fault.name for fault in FAULTS.values() if fault.cheap]
    folder = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="gpupool-faults-"))
    site = (
        Installation(folder, hosts=3, lease_seconds=SHORT_LEASE_SECONDS)
        if options.short or options.untimed
        else Installation(folder)
    )
    try:
        site.start()
        figures = {
            name: run_fault(
                FAULTS[name], site, options.rounds, options.seed, timed=not (options.short or options.untimed)
            )
            for name in options.only
        }
    finally:
        site.stop()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return {
        "rounds": sum(entry["rounds"] for entry in figures.values()),
        "survived": sum(entry["survived"] for entry in figures.values()),
        "faults": figures,
    }


def run_fault(fault: Fault, site: Installation, rounds: int, seed: int, timed: bool = True) -> dict[str, Any]:
    """Run ``rounds`` rounds of one fault and return ``{"rounds", "survived", "worst_recovery"}``.

    If ``timed`` is False, a slow recovery does not fail a round.
    """
    print(f"{fault.name}: {fault.pass_condition}", flush=True)
    ledger, rng = JobLedger(site), random.Random(f"{seed} {fault.name}")
    problems_by_round: dict[int, list[str]] = {}
    worst: float | None = None
    known_problems: set[str] = set()
    for number in range(1, rounds + 1):
        ledger.round = number
        recovery, problems = _round(fault, FaultContext(site, ledger, rng), timed)
        new_problems = [problem for problem in ledger.violations_now() if problem not in known_problems]
        known_problems.update(new_problems)
        problems_by_round[number] = [*problems, *new_problems]
        worst = recovery if worst is None or (recovery is not None and recovery > worst) else worst
        recovery_text = "-" if recovery is None else f"{recovery:.2f} s"
        print(
            f"  round {number}: {recovery_text} {'; '.join(problems_by_round[number])}".rstrip(), flush=True
        )
    if fault.after is not None:
        fault.after(FaultContext(site, ledger, rng))
    for number, problems in ledger.settle().items():
        problems_by_round.setdefault(number, []).extend(problems)
        print(f"  round {number}: {'; '.join(problems)}", flush=True)
    survived = sum(1 for number in range(1, rounds + 1) if not problems_by_round[number])
    return {
        "rounds": rounds,
        "survived": survived,
        "worst_recovery": None if worst is None else round(worst, 2),
    }


def _round(fault: Fault, context: FaultContext, timed: bool) -> tuple[float | None, list[str]]:
    try:
        if not fault.under_load:
            recovery = fault.do(context)
        else:
            with BackgroundLoad(context.ledger, context.rng):
                time.sleep(context.rng.uniform(0.5, 2.5 if timed else 1.0))
                recovery = fault.do(context)
    except (ConditionTimeout, OSError, subprocess.CalledProcessError, ObjectDoesNotExist) as problem:
        end_remaining_jobs(context)
        return None, [str(problem) or type(problem).__name__]
    is_late = timed and recovery > fault.seconds
    return recovery, [f"recovered after {recovery:.2f} s; allowed: {fault.seconds:g} s"] if is_late else []


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds from 1 to 1000")
    return int(text)


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = next((name for name in names if name not in FAULTS), None)
    if unknown is not None:
        raise argparse.ArgumentTypeError(f"{unknown[:60]!r} is none of {', '.join(FAULTS)}")
    return names
