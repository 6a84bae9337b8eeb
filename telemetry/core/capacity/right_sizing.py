"""Group the advice of run reports by repeated work, with the GPU-hours that the advice would save.

The advice is that of the reports (``telemetry.core.request_advice``): no rule is repeated here. Runs of the
same project, owner and name are one work; numbers at the end of a name do not count.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NUMBER_AT_END = re.compile(r"[-_ .#]*\d+$")
MIN_ADVISED_SHARE = 2 / 3  # part of the runs of a work that have the same advice
SAVING_CODES = ("fewer_gpus", "smaller_slice", "no_gpu")


@dataclass(frozen=True)
class ReportedRun:
    """An ended run with the advice of its report: the numbers by code. ``held_hours`` are GPU-hours."""

    workload: int
    project: int
    owner: int
    name: str
    held_hours: float
    advice: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class RightSizing:
    """One piece of advice for repeated work.

    ``numbers`` are those of the advice of the run that needed most, so that the advice fits all runs.
    ``saved`` has the saved share of each advised run, by workload, and ``saved_hours`` their GPU-hours.
    """

    project: int
    owner: int
    name: str
    code: str
    numbers: Mapping[str, Any]
    runs: int
    advised_runs: int
    held_hours: float
    saved_hours: float
    saved: Mapping[int, float]


def work_name(name: str) -> str:
    """Return the name of repeated work: ``train-12`` and ``train-13`` are ``train``."""
    return NUMBER_AT_END.sub("", name) or name


def right_sizings(runs: Iterable[ReportedRun]) -> list[RightSizing]:
    """Return the advice for each work of which most runs have it, in order of saved GPU-hours."""
    works: dict[tuple[int, int, str], list[ReportedRun]] = defaultdict(list)
    for run in runs:
        works[run.project, run.owner, work_name(run.name)].append(run)
    found = [_sizing(key, some) for key, some in works.items()]
    return sorted(
        (each for each in found if each is not None and each.saved_hours > 0),
        key=lambda each: (-each.saved_hours, each.project, each.owner, each.name),
    )


def saved_share(code: str, numbers: Mapping[str, Any], needed: Mapping[str, Any]) -> float:
    """Return the part of the held GPU-hours of a run that the advice ``needed`` would have saved.

    ``numbers`` are those of the run's own advice.
    """
    if code == "fewer_gpus":
        return max(0.0, 1 - float(needed["busy"]) / float(numbers["asked"]))
    if code == "smaller_slice":
        return max(0.0, 1 - float(needed["slice_compute"]))
    return 1.0 if code == "no_gpu" else 0.0


def _sizing(key: tuple[int, int, str], runs: list[ReportedRun]) -> RightSizing | None:
    counts = Counter(code for run in runs for code in SAVING_CODES if code in run.advice)
    code = next((code for code in SAVING_CODES if counts[code] >= len(runs) * MIN_ADVISED_SHARE), None)
    if code is None:
        return None
    advised = [run for run in runs if code in run.advice]
    needed = max((run.advice[code] for run in advised), key=lambda numbers: _need(code, numbers))
    saved = {run.workload: saved_share(code, run.advice[code], needed) for run in advised}
    return RightSizing(
        *key,
        code=code,
        numbers=needed,
        runs=len(runs),
        advised_runs=len(advised),
        held_hours=sum(run.held_hours for run in advised),
        saved_hours=sum(run.held_hours * saved[run.workload] for run in advised),
        saved=saved,
    )


def _need(code: str, numbers: Mapping[str, Any]) -> tuple[float, float]:
    """Return how much a run needed, for a comparison of the runs of one work."""
    if code == "fewer_gpus":
        return numbers["busy"], numbers["asked"]
    if code == "smaller_slice":
        return numbers["slice_compute"], numbers["slice_mib"]
    return numbers["asked"], numbers["held_hours"]
