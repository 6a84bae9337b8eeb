"""Read the lines of a statement, and freeze them at the close of the month."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from django.db import connection
from django.db.models import QuerySet

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import MICRO, round_amount
from telemetry.core.charge_model import HELD_BUCKETS
from telemetry.models import BillingMode, Statement, StatementLine, StatementState

_FREEZE_SQL = """
UPDATE telemetry_statementline line SET pool_name = frozen.pool_name, team_name = frozen.team_name,
    project_name = frozen.project_name, gpu_hours = frozen.gpu_hours,
    covered_share = frozen.covered_share, used_share = frozen.used_share
FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::numeric[], %s::float8[], %s::float8[])
    AS frozen (id, pool_name, team_name, project_name, gpu_hours, covered_share, used_share)
WHERE line.id = frozen.id"""


@dataclass(frozen=True)
class StatementEntry:
    """One line of a statement. Amounts are in cents.

    ``corrected_month`` is the closed month that the line corrects; None for a line of the statement's own
    month. ``covered_share`` is the part of the held time that samples cover. ``used_share`` is the mean
    utilisation of the covered time. Shares are between 0 and 1; None means unknown.
    """

    pool: str
    cost_centre: str
    team: str
    project: str
    workload_type: str
    model: str
    bucket: str
    corrected_month: date | None
    gpu_hours: Decimal
    covered_share: float | None
    used_share: float | None
    amount: Decimal
    cost: Decimal
    currency: str
    showback: bool

    @property
    def billing_mode(self) -> str:
        """Return ``showback`` for a line that is not invoiced, otherwise ``chargeback``."""
        return (BillingMode.SHOWBACK if self.showback else BillingMode.CHARGEBACK).value


def statement_lines(month: date) -> list[StatementEntry]:
    """Return the lines of a month. The amounts of the lines sum to the totals of the month.

    Lines of a closed month have the names of the close. Lines of an open month have today's names.
    """
    statement = Statement.objects.filter(month=month).first()
    if statement is None:
        return []
    if statement.state != StatementState.CLOSED:
        return entries_of_open_month(statement)
    rows = statement.lines.filter(shared_out=False)
    if statement.digest_format == 1:
        return [_frozen_entry(row) for row in rows.order_by("pk")]
    return _in_order([_frozen_entry(row) for row in rows if not _nets_to_zero(row)])


def entries_of_open_month(statement: Statement) -> list[StatementEntry]:
    """Return the lines of a statement that is not closed yet."""
    return _in_order([_open_entry(row) for row in _with_names(statement) if not _nets_to_zero(row)])


def entries_of_rows(statement: Statement, rows: Iterable[StatementLine]) -> list[StatementEntry]:
    """Return some lines of a statement. The figures of a row may cover only a part of its charges.

    Rows must have their pool, team and project loaded.
    """
    shown = [row for row in rows if not _nets_to_zero(row)]
    if statement.state != StatementState.CLOSED:
        return _in_order([_open_entry(row) for row in shown])
    return _in_order(
        [
            replace(_open_entry(row), pool=row.pool_name, team=row.team_name, project=row.project_name)
            for row in shown
        ]
    )


def freeze_lines(statement: Statement) -> None:
    """Copy names, GPU-hours and shares into the lines of a statement that is being closed."""
    rows = []
    for line in _with_names(statement):
        entry = _open_entry(line)
        shares = (entry.covered_share, entry.used_share)
        rows.append((line.pk, entry.pool, entry.team, entry.project, entry.gpu_hours, *shares))
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(_FREEZE_SQL, [list(column) for column in zip(*rows, strict=True)])


def _with_names(statement: Statement) -> QuerySet[StatementLine]:
    return statement.lines.filter(shared_out=False).select_related("pool", "team", "project").order_by("pk")


def _nets_to_zero(row: StatementLine) -> bool:
    """Return True for a line whose charges were all reversed, so that nothing of it is left to show."""
    return row.slot_seconds == 0 and row.charged_cents == 0 and row.cost_cents == 0


def _in_order(entries: list[StatementEntry]) -> list[StatementEntry]:
    return sorted(entries, key=_position)


def _position(entry: StatementEntry) -> tuple[object, ...]:
    """Return the sort key of a line. Corrections come last; the columns decide from left to right."""
    return (
        entry.corrected_month is not None,
        entry.currency if entry.corrected_month else "",
        entry.pool,
        entry.cost_centre,
        entry.team,
        entry.project,
        entry.workload_type,
        entry.model,
        entry.bucket,
        entry.corrected_month or date.min,
        entry.gpu_hours,
        entry.cost,
        entry.amount,
    )


def _open_entry(row: StatementLine) -> StatementEntry:
    covered, used = row.covered_slot_seconds, row.used_slot_seconds
    held = row.slot_seconds if row.bucket in HELD_BUCKETS else 0
    return StatementEntry(
        pool=row.pool.name if row.pool else "",
        cost_centre=row.cost_centre,
        team=row.team.name if row.team else "",
        project=row.project.name if row.project else "",
        workload_type=row.workload_type,
        model=row.model,
        bucket=row.bucket,
        corrected_month=row.corrected_month,
        gpu_hours=round_amount(Decimal(row.slot_seconds) / SLOT_SECONDS_PER_GPU_HOUR, MICRO),
        covered_share=min(1.0, (covered or 0.0) / held) if held > 0 else None,
        used_share=used / covered if covered and covered > 0 and used is not None else None,
        amount=row.charged_cents,
        cost=row.cost_cents,
        currency=row.currency,
        showback=row.showback,
    )


def _frozen_entry(row: StatementLine) -> StatementEntry:
    return StatementEntry(
        pool=row.pool_name,
        cost_centre=row.cost_centre,
        team=row.team_name,
        project=row.project_name,
        workload_type=row.workload_type,
        model=row.model,
        bucket=row.bucket,
        corrected_month=row.corrected_month,
        gpu_hours=row.gpu_hours or Decimal(0),
        covered_share=row.covered_share,
        used_share=row.used_share,
        amount=row.charged_cents,
        cost=row.cost_cents,
        currency=row.currency,
        showback=row.showback,
    )
