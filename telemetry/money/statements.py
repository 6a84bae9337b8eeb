"""A month's statement: what it comes to, its lines, its close. Once closed nothing changes it; late facts go into the open month.

The conservation line of each pool, exact to the ledger's last decimal:
``charged - margin + uncharged + idle + overhead == cost of the GPUs``, where the right side is worked out from the rate card and
the GPUs' times alone. ``uncharged`` is work lost to preemption or hardware, ``idle`` what nobody held, ``overhead`` what was
unwell or in maintenance; ``margin`` is what charged lines bring above their cost, negative for a discount.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.amounts import (
    MICRO,
    ZERO,
    round_amount,
)
from telemetry.models import (
    STATEMENT_TRANSITIONS,
    Charge,
    Statement,
    StatementLine,
    StatementState,
)
from telemetry.money.billing_months import month_of
from telemetry.money.close_checks import close_checks
from telemetry.money.reconciliation import reconcile_costs, reconciliation_in_cents
from telemetry.money.statement_export import entries_to_csv
from telemetry.money.statement_lines import frozen_line_row, open_month_lines


class MonthCloseError(Exception):
    """A month that may not be closed: which check fails, and its figures (``close_checks``)."""

    def __init__(self, message: str, checks: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.checks = list(checks)


def create_missing_statements(months: Iterable[date]) -> None:
    """An open statement for each of these months that has none yet: the only birth of one, safe in two transactions at once."""
    made = [Statement(month=month) for month in sorted(set(months))]
    Statement.objects.bulk_create(made, ignore_conflicts=True)


def get_or_create_statement(month: date) -> Statement:
    """The statement of a month, made open when it has none yet."""
    create_missing_statements([month])
    return Statement.objects.get(month=month)


def statement_totals(month: date) -> dict[str, Any]:
    """The month in a few figures: charged and cost to the cent, GPU-hours by bucket, and the conservation line of each pool."""
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        return dict(statement.totals)
    return _open_month_totals(month)


def _open_month_totals(month: date) -> dict[str, Any]:
    pools = reconcile_costs(month)
    hours = Charge.objects.filter(month=month).values("bucket").annotate(slot_sum=Sum("slot_seconds"))
    return {
        "charged": str(round_amount(sum((pool.charged for pool in pools), ZERO))),
        "cost": str(round_amount(sum((pool.cost for pool in pools), ZERO))),
        "gpu_hours": {
            row["bucket"]: str(round_amount(Decimal(row["slot_sum"]) / SLOT_SECONDS_PER_GPU_HOUR, MICRO))
            for row in hours.order_by("bucket")
        },
        "pools": reconciliation_in_cents(pools),
        "exact": [
            {"pool": pool.pool_name, "left": str(pool.total), "cost": str(pool.cost), "holds": pool.holds}
            for pool in pools
        ],
    }


@transaction.atomic
def close_month(*, month: date, closed_by: Any, now: datetime, currency: str = "") -> Statement:
    """Close a month that is over: nothing is charged to it from here on, the checks run, its lines are frozen and digested.

    Raises MonthCloseError when it is not over, closed already, or a check fails; then everything is as it was.
    """
    if month.day != 1:
        raise MonthCloseError(f"month is {month}; allowed: the first day of a month.")
    if month >= month_of(now):
        raise MonthCloseError(f"month is {month:%Y-%m}; allowed: a month that is over.")
    get_or_create_statement(month)
    # From here on the trigger on charges refuses this month; a charge on its way is waited for by this UPDATE.
    if not _transition(month, StatementState.OPEN, StatementState.CLOSING):
        raise MonthCloseError(f"month is {month:%Y-%m}; it is closed already.")
    found = close_checks(month)
    failed = [check for check in found if not check["ok"]]
    if failed:
        raise MonthCloseError(
            f"{month:%Y-%m} cannot be closed: it is not so that {failed[0]['check']} ({failed[0]['figures']}).",
            found,
        )
    statement = Statement.objects.get(month=month)
    frozen = open_month_lines(month, statement.idle_payer)
    StatementLine.objects.bulk_create([frozen_line_row(statement, line) for line in frozen], batch_size=2_000)
    text = entries_to_csv(month, frozen, currency)
    closed = _transition(
        month,
        StatementState.CLOSING,
        StatementState.CLOSED,
        checks=found,
        totals=_open_month_totals(month),
        currency=currency,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        closed_at=now,
        closed_by=closed_by,
    )
    assert closed, "the row is locked by this transaction"
    statement.refresh_from_db()
    return statement


def _transition(month: date, old: StatementState, new: StatementState, **also: Any) -> bool:
    """Compare-and-swap along the table of ways; False when the month was not in ``old`` any more."""
    if new not in STATEMENT_TRANSITIONS[old]:
        raise ValueError(f"statement: {old} -> {new}")
    return Statement.objects.filter(month=month, state=old).update(state=new, **also) == 1
