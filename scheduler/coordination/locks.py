"""Lock rows. No other module of the scheduler locks rows.

Locks are taken in this order, sorted by id within a kind: clock reading, leader, pools, reservations,
hosts, arrays, workloads. A submission locks only its team and its user. Then it prevents the removal of its
pool.

Row locks are ``FOR NO KEY UPDATE``. They block other writers of the row, but not inserts of rows that refer
to the row. So a submission never waits for the engine. Call every function inside a transaction. The
functions return rows that were read under the lock. They raise ClockStepped if the clock was set after the
caller read the time (``scheduler.coordination.clock_check``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from django.contrib.auth import get_user_model
from django.db import connection, models
from django.db.models.expressions import RawSQL

from scheduler.coordination import clock_check
from scheduler.models import Host, JobArray, Leader, Pool, Reservation, Team, Workload

Row = TypeVar("Row", bound=models.Model)


def leader() -> Leader:
    """Lock the only leader row.

    The engine holds this lock during ``apply_plan``. So a new leader waits until the plan is committed.
    """
    row = Leader.objects.select_for_update(no_key=True).filter(pk=1).first()
    if row is None:
        Leader.objects.get_or_create(pk=1)
        row = Leader.objects.select_for_update(no_key=True).get(pk=1)
    clock_check.check_clock_sample()
    return row


def pools(ids: Iterable[int]) -> dict[int, Pool]:
    """Lock pools. The reservations and placements in a pool change only under this lock."""
    return _rows(Pool, ids)


def pool_for_removal(pk: int) -> Pool:
    """Lock a pool for its removal. Waits for transactions that called ``prevent_removal``."""
    return _row_for_removal(Pool, pk)


def team_for_removal(pk: int) -> Team:
    """Lock a team for its removal. Waits for transactions that called ``prevent_removal``."""
    return _row_for_removal(Team, pk)


def prevent_removal(row: Pool | Team) -> bool:
    """Prevent the removal of a pool or a team until the transaction ends.

    Return False if the pool or team is already removed. Call this function in a transaction that adds a row
    of this pool or team. A foreign key is not enough, because PostgreSQL checks it only at the commit. The
    locks of ``pools`` and ``submitters`` do not block this lock.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            f'SELECT 1 FROM "{row._meta.db_table}" WHERE id = %s AND removed_at IS NULL FOR KEY SHARE',
            [row.pk],
        )
        return cursor.fetchone() is not None


def hosts(ids: Iterable[int]) -> dict[int, Host]:
    """Lock hosts. A host's states, inventory and runs change only under this lock."""
    return _rows(Host, ids)


def arrays(ids: Iterable[int]) -> dict[int, JobArray]:
    """Lock arrays. The number of released tasks of an array changes only under this lock."""
    return _rows(JobArray, ids)


def workloads(ids: Iterable[int]) -> dict[int, Workload]:
    """Lock workloads, for operations that read several columns before they change a column."""
    return _rows(Workload, ids)


def workload_states(ids: Iterable[int]) -> dict[int, str]:
    """Lock workloads and return their states by id. Loading thousands of whole rows would be slow."""
    sorted_ids = RawSQL("SELECT unnest(%s::bigint[])", (sorted(set(ids)),))
    rows = Workload.objects.select_for_update(no_key=True).filter(pk__in=sorted_ids).order_by("pk")
    states = dict(rows.values_list("pk", "state"))
    clock_check.check_clock_sample()
    return states


def submitters(*, team: int, person: int) -> None:
    """Lock a team and a user.

    Submissions of the team and of the user are counted and added only under this lock. The engine never takes
    this lock.
    """
    _rows(Team, [team])
    _rows(get_user_model(), [person])


def reservations(ids: Iterable[int]) -> dict[int, Reservation]:
    """Lock reservations, before a change of their window or state."""
    return _rows(Reservation, ids)


def _row_for_removal(kind: type[Row], pk: int) -> Row:
    row = kind._base_manager.select_for_update().get(pk=pk)
    clock_check.check_clock_sample()
    return row


def _rows(kind: type[Row], ids: Iterable[int]) -> dict[int, Row]:
    locked = kind._base_manager.select_for_update(no_key=True).filter(pk__in=sorted(set(ids)))
    rows = {row.pk: row for row in locked.order_by("pk")}
    clock_check.check_clock_sample()
    return rows
