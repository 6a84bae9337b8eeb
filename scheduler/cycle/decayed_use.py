"""Maintain the decayed use of teams, which fair share compares.

Decayed use is a number of slot-seconds (840 slots are one GPU). The weight of a slot-second halves with every
half-life of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from datetime import datetime

from django.db import connection

from scheduler.core.model.quota_ledger import decayed_use
from scheduler.models import DecayedUse

MIN_UPDATE_INTERVAL_SECONDS = 30  # rows are updated at most this often
WRITE_USE_SQL = """
UPDATE scheduler_decayeduse AS use SET slot_seconds = changed.slot_seconds, as_of = %s
FROM unnest(%s::bigint[], %s::float[]) AS changed(id, slot_seconds) WHERE use.id = changed.id
"""


def update_decayed_use(
    half_lives: Mapping[int, float],
    held: Callable[[], Mapping[tuple[int, int], int]],
    newcomers: Set[tuple[int, int]],
    now: datetime,
) -> None:
    """Update the decayed use to ``now``, in the pools that are keys of ``half_lives``.

    Only rows whose last update is at least ``MIN_UPDATE_INTERVAL_SECONDS`` ago are updated. ``half_lives``:
    half-life in seconds by pool id. ``held`` returns the number of slots that each (team, pool) holds. They
    count as held since the last update. ``held`` is called only if there is a row to update. ``newcomers``:
    pairs (team, pool) that get a row if they have none.
    """
    rows = list(DecayedUse.objects.filter(pool__in=half_lives))
    due = [row for row in rows if (now - row.as_of).total_seconds() >= MIN_UPDATE_INTERVAL_SECONDS]
    slots = held() if due else {}
    for row in due:
        elapsed = (now - row.as_of).total_seconds()
        held_slots = slots.get((row.team_id, row.pool_id), 0)
        row.slot_seconds = decayed_use(row.slot_seconds, held_slots, elapsed, half_lives[row.pool_id])
        row.as_of = now
    if due:
        with connection.cursor() as cursor:
            cursor.execute(WRITE_USE_SQL, [now, [row.pk for row in due], [row.slot_seconds for row in due]])
    missing = newcomers - {(row.team_id, row.pool_id) for row in rows}
    if missing:
        DecayedUse.objects.bulk_create(
            [DecayedUse(team_id=team, pool_id=pool, as_of=now) for team, pool in sorted(missing)],
            ignore_conflicts=True,
        )
