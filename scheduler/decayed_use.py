"""What each team used lately: slot-seconds that lose half their worth every half-life. Fair share compares it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from scheduler.models import DecayedUse, Pool

LEAST_STEP_SECONDS = 30  # rows are brought forward no more often than this


def decayed(slot_seconds: float, held_slots: int, elapsed_seconds: float, half_life_seconds: float) -> float:
    """``slot_seconds`` after ``elapsed_seconds`` in which ``held_slots`` were held throughout."""
    rate = math.log(2) / half_life_seconds
    kept = math.exp(-rate * elapsed_seconds)
    return slot_seconds * kept + held_slots * (1 - kept) / rate


def bring_forward(pools: Mapping[int, Pool], held: Mapping[tuple[int, int], int], now: datetime) -> None:
    """Write decayed use as of ``now``.

    ``held`` is slots by (team, pool) since the rows were written last; who has no row yet gets one.
    """
    rows = {(row.team_id, row.pool_id): row for row in DecayedUse.objects.filter(pool__in=pools)}
    changed = []
    for key, row in rows.items():
        elapsed = (now - row.as_of).total_seconds()
        if elapsed >= LEAST_STEP_SECONDS:
            row.slot_seconds = decayed(
                row.slot_seconds, held.get(key, 0), elapsed, pools[row.pool_id].half_life_seconds
            )
            row.as_of = now
            changed.append(row)
    DecayedUse.objects.bulk_update(changed, ["slot_seconds", "as_of"], batch_size=1000)
    newcomers = [DecayedUse(team_id=team, pool_id=pool, as_of=now) for team, pool in held if (team, pool) not in rows]
    DecayedUse.objects.bulk_create(newcomers, ignore_conflicts=True)
