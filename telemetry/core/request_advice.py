"""Advise what to ask for next time, from the use of a run that has ended.

Each piece of advice has the numbers on which it rests. docs/telemetry.md describes the rules in the section
"What to ask for next time".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from telemetry.core.rollup import HOUR
from telemetry.core.run_report import UnitReport, busy_at_once, mean_of

MIN_MEASURED_SECONDS = 600  # shorter runs are not judged
MIN_COVERAGE = 0.9  # part of the held time of which the activity must be known
HEADROOM = 1.2  # a smaller size must have room for this multiple of the measured peak
LOW_UTILISATION = 0.5  # mean of the GPUs that had work
HIGH_CPU = 0.8  # mean CPU use, as part of the CPU that was asked for
LOW_CPU = 0.5
SHORT_RUN = 0.5  # part of the runtime limit
MIN_LIMIT_SECONDS = HOUR
LIMIT_HEADROOM = 1.25
LIMIT_STEP_SECONDS = 900
SMALL_MEMORY = 0.5  # peak, as part of the memory that was asked for
MIB_PER_GIB = 1024


@dataclass(frozen=True)
class SliceOffer:
    """A MIG profile that the pool has for the GPU model of the run.

    ``compute`` is the part of a GPU that it covers.
    """

    profile: str
    memory_mib: int
    compute: float


@dataclass(frozen=True)
class RunRequest:
    """The request of a run, the end of the run, and its measured CPU and memory.

    ``gpus`` is the number of units on all hosts. ``cpu_milli`` and ``memory_mib`` are for each host; 0 means
    no limit. ``attempt_seconds`` is the time of its longest attempt. ``host_seconds`` is the time for which
    the run held units on a host, summed over its hosts. ``cpu_seconds`` is the sum of all hosts, and
    ``memory_peak_mib`` is the highest peak of a host. They are None if a host did not measure them.
    """

    gpus: int
    profile: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    max_runtime_seconds: int = 0
    outcome: str = ""
    attempt_seconds: float = 0.0
    host_seconds: float = 0.0
    cpu_seconds: float | None = None
    memory_peak_mib: int | None = None
    slices: tuple[SliceOffer, ...] = ()


@dataclass(frozen=True)
class Advice:
    """One piece of advice: its code and the numbers on which it rests, as JSON values."""

    code: str
    numbers: dict[str, Any] = field(default_factory=dict)


def advise(request: RunRequest, units: Sequence[UnitReport]) -> list[Advice]:
    """Return the advice for the next request of the same work, the most important first."""
    found = (rule(request, units) for rule in RULES)
    return [advice for advice in found if advice is not None]


def _fewer_gpus(request: RunRequest, units: Sequence[UnitReport]) -> Advice | None:
    """Advise fewer GPUs if fewer were busy at once, or none if none was busy."""
    busy = busy_at_once(units)
    if busy is None or busy >= request.gpus or not _is_measured(units):
        return None
    held = sum(unit.sums.held_seconds for unit in units)
    unused = sum(unit.sums.held_seconds for unit in units if not unit.was_busy)
    numbers = {
        "asked": request.gpus,
        "busy": busy,
        "unused_gpus": sum(not unit.was_busy for unit in units),
        "unused_hours": round(unused / HOUR, 2),
        "held_hours": round(held / HOUR, 2),
    }
    return Advice("fewer_gpus" if busy else "no_gpu", numbers)


def _smaller_slice(request: RunRequest, units: Sequence[UnitReport]) -> Advice | None:
    """Advise a slice if one GPU had work, and its memory and its activity fit one.

    Slices can't be combined. So the rule does not hold for work that uses several GPUs at once.
    """
    if request.profile or busy_at_once(units) != 1 or not _is_measured(units):
        return None
    peak = _highest(unit.memory_peak_mib for unit in units)
    activity = _highest(unit.utilisation if unit.sm_active is None else unit.sm_active for unit in units)
    if peak is None or activity is None:
        return None
    fits = [
        offer
        for offer in request.slices
        if offer.memory_mib >= peak * HEADROOM and offer.compute >= activity * HEADROOM
    ]
    if not fits:
        return None
    best = min(fits, key=lambda offer: (offer.memory_mib, offer.compute, offer.profile))
    numbers = {
        "profile": best.profile,
        "slice_mib": best.memory_mib,
        "slice_compute": round(best.compute, 4),
        "peak_mib": peak,
        "activity": round(activity, 4),
        "gpu_mib": max(unit.memory_mib for unit in units),
    }
    return Advice("smaller_slice", numbers)


def _cpu_or_data(request: RunRequest, units: Sequence[UnitReport]) -> Advice | None:
    """Advise more CPU, or faster data, if the GPUs that had work waited much of the time."""
    working = [unit for unit in units if unit.was_busy]
    used = mean_of(working, "utilisation_seconds")
    if used is None or used >= LOW_UTILISATION or not _is_measured(units):
        return None
    if request.cpu_seconds is None or not request.cpu_milli or not request.host_seconds:
        return None
    mean_milli = round(request.cpu_seconds * 1000 / request.host_seconds)
    part = mean_milli / request.cpu_milli
    if LOW_CPU <= part < HIGH_CPU:
        return None
    numbers = {
        "utilisation": round(used, 4),
        "cpu_milli": mean_milli,
        "asked_cpu_milli": request.cpu_milli,
    }
    return Advice("more_cpu" if part >= HIGH_CPU else "waits_for_data", numbers)


def _less_memory(request: RunRequest, units: Sequence[UnitReport]) -> Advice | None:
    peak, asked = request.memory_peak_mib, request.memory_mib
    if peak is None or not asked or peak > asked * SMALL_MEMORY:
        return None
    suggested = math.ceil(peak * HEADROOM / MIB_PER_GIB) * MIB_PER_GIB
    if suggested >= asked:
        return None
    return Advice(
        "less_memory", {"asked_memory_mib": asked, "peak_memory_mib": peak, "memory_mib": suggested}
    )


def _time_limit(request: RunRequest, units: Sequence[UnitReport]) -> Advice | None:
    """Advise a shorter limit after a short run that finished, a longer one after a stop at the limit."""
    limit, ran = request.max_runtime_seconds, request.attempt_seconds
    if request.outcome == "time_limit":
        return Advice("longer_limit", {"limit_seconds": limit, "ran_seconds": round(ran)})
    if request.outcome != "finished" or limit <= MIN_LIMIT_SECONDS or ran > limit * SHORT_RUN:
        return None
    suggested = math.ceil(ran * LIMIT_HEADROOM / LIMIT_STEP_SECONDS) * LIMIT_STEP_SECONDS
    return Advice(
        "shorter_limit",
        {
            "limit_seconds": limit,
            "ran_seconds": round(ran),
            "suggested_seconds": max(LIMIT_STEP_SECONDS, suggested),
        },
    )


def _highest(values: Iterable[float | None]) -> float | None:
    """Return the highest value; None if one of them is unknown."""
    found = list(values)
    return None if None in found else max(value for value in found if value is not None)


def _is_measured(units: Sequence[UnitReport]) -> bool:
    """Return True if the activity of the units is known for long enough to judge the request."""
    held = sum(unit.sums.held_seconds for unit in units)
    known = [unit.activity_seconds for unit in units]
    if not held or None in known:
        return False
    longest = max(unit.sums.held_seconds for unit in units)
    measured = sum(seconds for seconds in known if seconds is not None)
    return longest >= MIN_MEASURED_SECONDS and measured >= held * MIN_COVERAGE


RULES: tuple[Callable[[RunRequest, Sequence[UnitReport]], Advice | None], ...] = (
    _fewer_gpus,
    _smaller_slice,
    _cpu_or_data,
    _less_memory,
    _time_limit,
)
