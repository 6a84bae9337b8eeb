"""What each team used lately: slot-seconds that lose half their worth every half-life. Fair share compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from datetime import datetime

from django.db import connection

from scheduler.core.model.quota_ledger import decayed_use
from scheduler.models import DecayedUse

MIN_UPDATE_INTERVAL_SECONDS = 30  # rows are brought forward no more often than this
WRITE_USE_SQL = """
UPDATE scheduler_decayeduse AS use SET slot_seconds = said.slot_seconds, as_of = %s
FROM unnest(%s::bigint[], %s::float[]) AS said(id, slot_seconds) WHERE use.id = said.id
"""


def update_decayed_use(
    half_lives: Mapping[int, float],
    held: Callable[[], Mapping[tuple[int, int], int]],
    newcomers: Set[tuple[int, int]],
    now: datetime,
) -> None:
    """Write decayed use of these pools (their half-lives in seconds) as of ``now``, where it is due.

    ``held`` answers slots by (team, pool) since the rows were written last; it is asked only when a row is due. Each of
    ``newcomers`` (team, pool) that has no row yet gets one.
    """
    rows = list(DecayedUse.objects.filter(pool__in=half_lives))
    due = [row for row in rows if (now - row.as_of).total_seconds() >= MIN_UPDATE_INTERVAL_SECONDS]
    slots = held() if due else {}
    for row in due:
        elapsed = (now - row.as_of).total_seconds()
        mine = slots.get((row.team_id, row.pool_id), 0)
        row.slot_seconds = decayed_use(row.slot_seconds, mine, elapsed, half_lives[row.pool_id])
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
