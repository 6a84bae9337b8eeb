"""Set the billing mode of teams, and mark the statement lines that are not invoiced."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.db import connection

from scheduler.models import Team
from telemetry.models import BillingMode, Statement, TeamBillingMode

# A correction has the mode of the month that it corrects.
_MARK_LINES = """
WITH wanted AS (
    SELECT line.id, coalesce((
        SELECT mode.mode = 'showback' FROM telemetry_teambillingmode mode
        WHERE mode.team_id = line.team_id AND mode.first_month <= coalesce(line.corrected_month, %(month)s)
        ORDER BY mode.first_month DESC, mode.id DESC LIMIT 1), false) AS showback
    FROM telemetry_statementline line WHERE line.statement_id = %(statement)s)
UPDATE telemetry_statementline line SET showback = wanted.showback
FROM wanted WHERE wanted.id = line.id AND line.showback <> wanted.showback"""


def mark_showback(statement: Statement) -> None:
    """Mark the lines of an open statement whose team has showback. The caller holds ``lock_ledger``."""
    with connection.cursor() as cursor:
        cursor.execute(_MARK_LINES, {"statement": statement.pk, "month": statement.month})


def add_billing_mode(
    team: Team, mode: str, first_month: date, created_by: Any, now: datetime
) -> TeamBillingMode:
    """Set the mode of a team from a month on, and mark the lines of all open months.

    The caller holds ``lock_ledger`` and has checked that no month from ``first_month`` on is closed.
    """
    row = TeamBillingMode.objects.create(
        team=team, mode=mode, first_month=first_month, created_by=created_by, created_at=now
    )
    for statement in Statement.objects.filter(state="open", month__gte=first_month).order_by("month"):
        mark_showback(statement)
    return row


def mode_of(team: Team, month: date) -> str:
    """Return the billing mode of a team in a month."""
    rows = TeamBillingMode.objects.filter(team=team, first_month__lte=month)
    newest = rows.order_by("-first_month", "-pk").first()
    return newest.mode if newest else BillingMode.CHARGEBACK
