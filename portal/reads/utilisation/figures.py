"""Return the key figures of the utilisation page, each with its value in the compared period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from portal import policy
from portal.reads.utilisation.query import UtilisationScope
from telemetry.core.amounts import ZERO
from telemetry.reads.wait_times import GroupWaitTimes
from telemetry.reads.waterfall import UsageWaterfall

# The steps of the waterfall in which nobody held or reserved a GPU, and those in which it was not used.
FREE_STEPS = ("unhealthy", "maintenance", "unallocated", "dedicated_unused")
UNUSED_STEPS = ("reserved_unused", "empty", "idle")


@dataclass(frozen=True)
class KeyFigure:
    """A figure in ``unit``, and its value in the compared period; None if a value is unknown."""

    name: str
    unit: str
    value: float | Decimal | None
    before: float | Decimal | None = None


def key_figures(scope: UtilisationScope) -> dict[str, KeyFigure]:
    """Return the figures by name. Shares are parts of the capacity; waits are those of the usual size."""
    fall, before = scope.waterfall, scope.waterfall_before
    half, most = wait_of_most_frequent_size(scope.waits_by_size)
    half_before, most_before = _wait_before(scope)
    cost = None
    if policy.sees_owner_cost(scope.viewer):
        cost = sum((step.cost for step in fall.steps if step.key in UNUSED_STEPS), ZERO)
    found = [
        KeyFigure(
            "productive_share", "1", fall.productive_share, before.productive_share if before else None
        ),
        KeyFigure("held_share", "1", _held_share(fall), _held_share(before)),
        KeyFigure("unused_hours", "GPU-hours", _hours(fall, UNUSED_STEPS), _hours(before, UNUSED_STEPS)),
        KeyFigure("unused_share", "1", _share(fall, UNUSED_STEPS), _share(before, UNUSED_STEPS)),
        KeyFigure("unused_cost", scope.currency, cost),
        KeyFigure("wait_p50", "seconds", half, half_before),
        KeyFigure("wait_p95", "seconds", most, most_before),
        KeyFigure("saved_gpus", "GPUs", scope.saving.gpus),
        KeyFigure("saved_per_month", scope.currency, scope.saving.per_month),
    ]
    return {figure.name: figure for figure in found}


def wait_of_most_frequent_size(rows: Sequence[GroupWaitTimes]) -> tuple[float | None, float | None]:
    """Return (median, 95th percentile) of the wait in seconds, for the request size with the most starts.

    Both are None if no workload started.
    """
    most = max(rows, key=lambda row: row.started, default=None)
    return (most.p50, most.p95) if most and most.started else (None, None)


def _wait_before(scope: UtilisationScope) -> tuple[float | None, float | None]:
    """Return the waits of the compared period for the request size that is the most frequent one now."""
    now = max(scope.waits_by_size, key=lambda row: row.started, default=None)
    same = [row for row in scope.waits_before if now is not None and row.key == now.key]
    return wait_of_most_frequent_size(same)


def _hours(fall: UsageWaterfall | None, steps: Sequence[str]) -> float | None:
    return sum(step.gpu_hours for step in fall.steps if step.key in steps) if fall else None


def _share(fall: UsageWaterfall | None, steps: Sequence[str]) -> float | None:
    return sum(step.share for step in fall.steps if step.key in steps) if fall and fall.gpu_hours else None


def _held_share(fall: UsageWaterfall | None) -> float | None:
    free = _share(fall, FREE_STEPS)
    return None if free is None else 1 - free
