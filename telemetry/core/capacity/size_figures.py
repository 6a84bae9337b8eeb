"""Compute the waits of a pool size, the smallest size that keeps a wait limit, and the error of a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.capacity.quarter_replay import RecordedDemand, ReplayResult, accepts
from telemetry.core.spending.spend_forecast import quantile

MIN_COMPARED_WAIT_SECONDS = 60  # shorter waits than this count as equal


@dataclass(frozen=True)
class WaitFigures:
    """The waits of the requests that may run on one model, in seconds. None without requests."""

    requests: int
    p50: float | None
    p95: float | None
    not_started: int


@dataclass(frozen=True)
class SizeFigures:
    """The waits and the idle time with ``gpus`` GPUs of a model, which is ``change`` per cent more than now.

    ``idle`` is the part of the time of these GPUs in which nobody held them, from 0 to 1.
    """

    model: str
    change: int
    gpus: int
    waits: WaitFigures
    idle: float


def size_of_row(row: Mapping[str, Any]) -> SizeFigures:
    """Return the figures of a stored size."""
    return SizeFigures(**{**row, "waits": WaitFigures(**row["waits"])})


def size_figures(
    demand: RecordedDemand, result: ReplayResult, model: str, change: int, gpus: int
) -> SizeFigures:
    """Return the figures of one model in a replay with ``gpus`` GPUs of this model."""
    total = gpus * SLOTS_PER_GPU * (demand.end - demand.start)
    ids = requests_of_model(demand, model)
    waits = _figures([result.waits[each] for each in ids], sum(each in result.not_started for each in ids))
    idle = max(0.0, 1 - result.held.get(model, 0.0) / total) if total else 0.0
    return SizeFigures(model, change, gpus, waits, idle)


def recorded_waits(demand: RecordedDemand, model: str) -> WaitFigures:
    """Return the recorded waits of the compared requests that may run on a model."""
    ids = set(requests_of_model(demand, model))
    rows = [row for row in demand.requests if row.id in ids]
    return _figures([row.waited for row in rows], sum(row.at + row.waited >= demand.end for row in rows))


def requests_of_model(demand: RecordedDemand, model: str) -> list[int]:
    """Return the ids of the compared requests that may run on a model."""
    asks = {row.id: row.ask for row in demand.snapshot.queued}
    return [row.id for row in demand.requests if row.counts and accepts(asks[row.id], model)]


def keeps_wait(waits: WaitFigures, wait_limit_seconds: float) -> bool:
    """Return True if the p95 wait is within the limit, or if there are no requests."""
    return waits.p95 is None or waits.p95 <= wait_limit_seconds


def smallest_size(sizes: Iterable[SizeFigures], wait_limit_seconds: float) -> SizeFigures | None:
    """Return the smallest size for which this size and each larger one keep the wait limit.

    None means that no replayed size keeps the limit. A size without requests keeps every limit.
    """
    found = None
    for size in sorted(sizes, key=lambda size: -size.gpus):
        if not keeps_wait(size.waits, wait_limit_seconds):
            break
        found = size
    return found


def next_size(sizes: Sequence[SizeFigures], wait_limit_seconds: float) -> int | None:
    """Return the number of GPUs to replay next, to find the smallest one that keeps the wait limit.

    It lies in the middle between the smallest size that keeps the limit and the next smaller replayed size.
    None means that there is no size between them, or that no replayed size keeps the limit.
    """
    best = smallest_size(sizes, wait_limit_seconds)
    if best is None or best.waits.p95 is None:
        return None
    below = max((size.gpus for size in sizes if size.gpus < best.gpus), default=0)
    middle = (below + best.gpus) // 2
    return middle if below < middle else None


def wait_error(replayed: WaitFigures, recorded: WaitFigures) -> float | None:
    """Return the difference of the two p95 waits as part of the recorded one; None without requests.

    Recorded waits under a minute count as a minute, because the replay starts work without a delay.
    """
    if replayed.p95 is None or recorded.p95 is None:
        return None
    return abs(replayed.p95 - recorded.p95) / max(recorded.p95, MIN_COMPARED_WAIT_SECONDS)


def _figures(waits: Sequence[int], not_started: int) -> WaitFigures:
    if not waits:
        return WaitFigures(0, None, None, 0)
    return WaitFigures(len(waits), quantile(waits, 0.5), quantile(waits, 0.95), not_started)
