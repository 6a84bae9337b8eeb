"""Sum a team's guarantee over a period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from telemetry.core.charge_model import floor_to_second


@dataclass(frozen=True, slots=True)
class GuaranteeStep:
    """A change of a guarantee at the time ``at``, in slots."""

    at: datetime
    before: int
    after: int


def guaranteed_slot_seconds(
    present: int, steps: Sequence[GuaranteeStep], start: datetime, end: datetime
) -> int:
    """Return the sum of a guarantee over ``[start, end)``: slots times whole seconds.

    ``steps`` are the changes after ``start``, in order of time. Changes after ``end`` may be included.
    ``present`` is the guarantee after the last change. Without changes, the guarantee is ``present`` for the
    whole period.
    """
    total, since = 0, start
    level = steps[0].before if steps else present
    for step in steps:
        at = floor_to_second(step.at)
        if at >= end:
            break
        total += level * int((at - since).total_seconds())
        since, level = max(at, start), step.after
    return total + level * int((end - since).total_seconds())
