"""Rehearse the close of open months, and store the results.

The checks read all charge lines of a month, which may take minutes. Pages show the stored results with their
time. A close runs all checks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import F, Q

from telemetry.models import MonthRehearsal, Statement, StatementState
from telemetry.money.billing_months import billing_calendar
from telemetry.money.close_checks import audit_check, close_checks

NIGHTLY_HOUR = timedelta(hours=1)  # after the beginning of the billing day
RETRY_AFTER = timedelta(hours=1)  # a run that has not ended by then counts as lost


def rehearse_month(statement: Statement, now: datetime, run_by: Any = None) -> MonthRehearsal:
    """Run all checks of a month with the audit, and store and return the results.

    ``run_by`` is the user who rehearses the close; None is the nightly run. The ledger does not change.
    """
    MonthRehearsal.objects.get_or_create(statement=statement, defaults={"started_at": now})
    with _one_snapshot():
        checks = [*close_checks(statement.month), audit_check(statement.month, now)]
    MonthRehearsal.objects.filter(pk=statement.pk).update(
        started_at=now, checked_at=now, checks=checks, run_by=run_by, focus=None
    )
    return MonthRehearsal.objects.select_related("statement", "run_by").get(pk=statement.pk)


def rehearse_next_month(now: datetime) -> MonthRehearsal | None:
    """Run the nightly rehearsal of the oldest open month that had none tonight.

    Return its results; None if no month is due. Two concurrent calls take different months.
    """
    for statement in _due_statements(now):
        if _claim(statement, now):
            return rehearse_month(statement, now)
    return None


def stored_rehearsal(month: date) -> MonthRehearsal | None:
    """Return the last rehearsal of a month; None if none has ended yet."""
    rows = MonthRehearsal.objects.filter(statement__month=month, checked_at__isnull=False)
    return rows.select_related("run_by").first()


def ended_rehearsal(statement: Statement | None) -> MonthRehearsal | None:
    """Return the last rehearsal, which was loaded together with the statement; None if none has ended yet."""
    found: MonthRehearsal | None = getattr(statement, "rehearsal", None)
    return None if found is None or found.checked_at is None else found


def _last_night(now: datetime) -> datetime:
    """Return the last time at which a nightly rehearsal became due."""
    calendar = billing_calendar()
    tonight = calendar.start_of_day(now) + NIGHTLY_HOUR
    return tonight if tonight <= now else calendar.start_of_day(now - timedelta(days=1)) + NIGHTLY_HOUR


def _due_statements(now: datetime) -> list[Statement]:
    due = Q(rehearsal=None) | Q(rehearsal__checked_at=None) | Q(rehearsal__checked_at__lt=_last_night(now))
    months = Statement.objects.filter(state=StatementState.OPEN, month__lte=billing_calendar().month_of(now))
    return list(months.filter(due).order_by("month"))


def _claim(statement: Statement, now: datetime) -> bool:
    """Record the start of a run. Return False if another run of the month is in progress."""
    _, created = MonthRehearsal.objects.get_or_create(statement=statement, defaults={"started_at": now})
    if created:
        return True
    ended = Q(checked_at__gte=F("started_at")) | Q(started_at__lt=now - RETRY_AFTER)
    return bool(MonthRehearsal.objects.filter(ended, pk=statement.pk).update(started_at=now))


@contextmanager
def _one_snapshot() -> Iterator[None]:
    """Let all queries of the block see one state of the database, while charging goes on.

    Inside another transaction, its isolation level applies.
    """
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield
