"""The only place that locks. Always in this order, each kind sorted by id: clock reading, leader, pools, reservations, hosts,
arrays, workloads; and whoever submits takes its team and itself, and none of these.

Row locks are ``FOR NO KEY UPDATE``: they keep out other writers of the row, and not the births of rows that refer to it. So nobody
who submits a workload waits for the engine. Every function has to run inside a transaction and answers fresh rows. Where a time is
at hand that these rows do not share any more (``scheduler.coordination.clock_check``), it raises ClockWasSet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from django.contrib.auth import get_user_model
from django.db import models
from django.db.models.expressions import RawSQL

from scheduler.coordination import clock_check
from scheduler.models import Host, JobArray, Leader, Pool, Reservation, Team, Workload

Row = TypeVar("Row", bound=models.Model)


def leader() -> Leader:
    """The one leader row. The engine holds it through ``apply``; whoever takes over waits for that commit."""
    row = Leader.objects.select_for_update(no_key=True).filter(pk=1).first()
    if row is None:
        Leader.objects.get_or_create(pk=1)
        row = Leader.objects.select_for_update(no_key=True).get(pk=1)
    clock_check.check_clock_sample()
    return row


def pools(ids: Iterable[int]) -> dict[int, Pool]:
    """What is promised or placed in these pools changes only under this lock."""
    return _rows(Pool, ids)


def hosts(ids: Iterable[int]) -> dict[int, Host]:
    """A host's states, inventory and runs change only under this lock."""
    return _rows(Host, ids)


def arrays(ids: Iterable[int]) -> dict[int, JobArray]:
    """How many of an array's tasks are released changes only under this lock."""
    return _rows(JobArray, ids)


def workloads(ids: Iterable[int]) -> dict[int, Workload]:
    """For verbs that read several facts of a workload before they change one."""
    return _rows(Workload, ids)


def workload_states(ids: Iterable[int]) -> dict[int, str]:
    """The same lock, answering only their states: thousands of whole rows take a while to read."""
    wanted = RawSQL("SELECT unnest(%s::bigint[])", (sorted(set(ids)),))
    rows = Workload.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    found = dict(rows.values_list("pk", "state"))
    clock_check.check_clock_sample()
    return found


def submitters(*, team: int, person: int) -> None:
    """What a team and a person have waiting grows only under this lock. The engine never asks for it."""
    _rows(Team, [team])
    _rows(get_user_model(), [person])


def reservations(ids: Iterable[int]) -> dict[int, Reservation]:
    """For a reservation's change of window or state."""
    return _rows(Reservation, ids)


def _rows(kind: type[Row], ids: Iterable[int]) -> dict[int, Row]:
    wanted = sorted(set(ids))
    found = kind._default_manager.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    rows = {row.pk: row for row in found}
    clock_check.check_clock_sample()
    return rows
