"""Create, summarise and close monthly statements.

A closed statement never changes. Late facts are charged to the open month.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.core.rejection import OperationRejected
from telemetry.core.amounts import MICRO, ZERO, round_amount
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.ledger.locks import lock_ledger
from telemetry.models import (
    STATEMENT_TRANSITIONS,
    CloseProposal,
    Statement,
    StatementState,
)
from telemetry.money.billing_months import billing_calendar
from telemetry.money.close_checks import missing_samples, passed_checks
from telemetry.money.closing.cost_centre_statements import StatementTerms, make_documents
from telemetry.money.closing.proposals import checked_proposal
from telemetry.money.pricing.billing_currencies import currency_of_month, load_billing_currencies
from telemetry.money.reconciliation import (
    LineSums,
    month_line_sums,
    reconcile_costs,
    reconciliation_in_cents,
)
from telemetry.money.shared_idle import assign_month_cents
from telemetry.money.signing.statement_digest import DIGEST_FORMAT, digest_of, previous_month
from telemetry.money.signing.statement_key import StatementKeyError, sign_digest
from telemetry.money.statement_export import FILE_FORMAT
from telemetry.money.statement_lines import freeze_lines

# A close groups and sorts all lines of a month. PostgreSQL's default of 4 MB would put them on the disk.
WORK_MEM = "256MB"


def create_missing_statements(months: Iterable[date]) -> None:
    """Create an open statement for each month that has none.

    This function is safe in concurrent transactions. No other code creates statements.
    """
    currencies = load_billing_currencies()
    made = [Statement(month=month, currency=currencies.of(month)) for month in sorted(set(months))]
    Statement.objects.bulk_create(made, ignore_conflicts=True)


def get_or_create_statement(month: date) -> Statement:
    """Return the statement of a month. If it is missing, create an open statement."""
    create_missing_statements([month])
    return Statement.objects.get(month=month)


def statement_totals(month: date) -> dict[str, Any]:
    """Return the totals of a month. For a closed month, these are the stored totals.

    ``charged`` and ``cost`` are sums of the cents of statement lines in the currency of the month.
    ``adjusted`` is the part of ``charged`` that adjustments make; they belong to no pool.
    ``other_currencies`` has the same sums of corrections in other currencies, by currency. ``gpu_hours`` are
    by bucket, without corrections of earlier months. ``pools`` is the cost reconciliation of each pool in
    cents, and ``exact`` is the same reconciliation without rounding.
    """
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        return dict(statement.totals)
    return open_month_totals(month, currency_of_month(month))


def open_month_totals(month: date, currency: str, lines: Sequence[LineSums] | None = None) -> dict[str, Any]:
    """Return the totals of an open month like ``statement_totals``. Runs at most three queries.

    ``currency`` is that of the month, and ``lines`` are its ``month_line_sums``, if the caller has them.
    """
    lines = month_line_sums(month) if lines is None else lines
    pools = reconcile_costs(month, currency, lines)
    rows = reconciliation_in_cents(pools)
    adjusted = sum((line.charged_cents for line in lines if line.bucket in ADJUSTMENT_BUCKETS), ZERO) or ZERO
    slot_seconds: dict[str, int] = defaultdict(int)
    for line in lines:
        if line.is_own and not line.idle_share and line.bucket not in ADJUSTMENT_BUCKETS:
            slot_seconds[line.bucket] += line.slot_seconds
    others = sorted({row["currency"] for row in rows} - {currency})
    totals = _currency_totals(rows, currency)
    return {
        **totals,
        "charged": str(Decimal(totals["charged"]) + adjusted),
        "adjusted": str(adjusted),
        "other_currencies": {other: _currency_totals(rows, other) for other in others},
        "gpu_hours": {
            bucket: str(round_amount(Decimal(seconds) / SLOT_SECONDS_PER_GPU_HOUR, MICRO))
            for bucket, seconds in sorted(slot_seconds.items())
        },
        "pools": rows,
        "exact": [
            {"pool": pool.pool_name, "left": str(pool.total), "cost": str(pool.cost), "holds": pool.holds}
            for pool in pools
        ],
    }


def _currency_totals(rows: Iterable[dict[str, str]], currency: str) -> dict[str, str]:
    """Return the sums of the rows of one currency."""
    chosen = [row for row in rows if row["currency"] == currency]
    return {name: str(sum((Decimal(row[name]) for row in chosen), ZERO)) for name in ("charged", "cost")}


@transaction.atomic
def set_idle_payer(month: date, payer: str) -> bool:
    """Set who pays for the idle time of a month, and assign its cents anew. Return False if it is not open.

    ``payer`` is a value of IdlePayer.
    """
    create_missing_statements([month])
    lock_ledger()
    if not Statement.objects.filter(month=month, state=StatementState.OPEN).update(idle_payer=payer):
        return False
    assign_month_cents(Statement.objects.get(month=month))
    return True


@transaction.atomic
def close_month(
    *,
    month: date,
    closed_by: Any,
    now: datetime,
    terms: StatementTerms | None = None,
    missing_samples_reason: str = "",
    two_people: bool = False,
) -> Statement:
    """Close a month that is over: stop charging to it, run the checks, freeze its lines and store the digest.

    Also makes the statements of its cost centres, with ``terms``. The digest is signed if the site has a key.
    If hosts still owe samples of the month, ``missing_samples_reason`` must say why the month is closed
    without them. The reason and the hosts are stored with the statement.

    If ``two_people``, another person must have proposed the close, and the lines must be those of the
    proposal.

    Raises OperationRejected ``month_is_not_over``, ``month_is_closed``, ``month_check_failed``,
    ``month_samples_missing``, ``statement_key_unusable``, or an error of ``checked_proposal``. Nothing
    changes in these cases.
    """
    if month.day != 1:
        raise ValueError(f"month: {month} is not the first day of a month")
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('work_mem', %s, true)", [WORK_MEM])
    statement = _closing_statement(month, now)
    proposal = checked_proposal(statement, closed_by, now) if two_people else None
    missing_samples_reason = missing_samples_reason or (proposal.missing_samples_reason if proposal else "")
    found = passed_checks(month, now, missing_samples_reason)
    missing = missing_samples(found)
    freeze_lines(statement)
    make_documents(statement, terms or StatementTerms(), billing_calendar().day_of(now))
    frozen = _frozen_columns(month, proposal, closed_by, now)
    for name, value in frozen.items():
        setattr(statement, name, value)
    digest = digest_of(statement)
    closed = _transition(
        month,
        StatementState.CLOSING,
        StatementState.CLOSED,
        checks=found,
        digest=digest,
        missing_samples=missing,
        missing_samples_reason=missing_samples_reason if missing else "",
        **frozen,
        **_signed(month, digest),
    )
    assert closed, "the row is locked by this transaction"
    statement.refresh_from_db()
    return statement


def _closing_statement(month: date, now: datetime) -> Statement:
    """Stop charging to a month that is over, assign its cents, and return its statement.

    Raises OperationRejected ``month_is_not_over`` or ``month_is_closed``.
    """
    numbers: dict[str, Any] = {"month": f"{month:%Y-%m}"}
    if month >= billing_calendar().month_of(now):
        raise OperationRejected("month_is_not_over", numbers, field="month")
    get_or_create_statement(month)
    lock_ledger()
    # The UPDATE waits for concurrent charges. After it, the trigger on charges rejects new lines of this
    # month.
    if not _transition(month, StatementState.OPEN, StatementState.CLOSING):
        raise OperationRejected("month_is_closed", numbers, field="month")
    statement = Statement.objects.get(month=month)
    assign_month_cents(statement)
    return statement


def _frozen_columns(
    month: date, proposal: CloseProposal | None, closed_by: Any, now: datetime
) -> dict[str, Any]:
    """Return the columns of a statement that its digest covers."""
    calendar = billing_calendar()
    starts_at, ends_at = calendar.month_bounds(month)
    return {
        "totals": open_month_totals(month, currency_of_month(month)),
        "time_zone": calendar.zone_name(month),
        "starts_at": starts_at,
        "ends_at": ends_at,
        "digest_format": DIGEST_FORMAT,
        "file_format": FILE_FORMAT,
        "previous_month": previous_month(month),
        "proposed_at": proposal.proposed_at if proposal else None,
        "proposed_by": proposal.proposed_by if proposal else None,
        "closed_at": now,
        "closed_by": closed_by,
    }


def _signed(month: date, digest: str) -> dict[str, str]:
    """Return the columns of the signature of a digest. Raises OperationRejected if the key is unusable."""
    try:
        return asdict(sign_digest(month, digest, settings.GPUPOOL_STATEMENT_KEY))
    except StatementKeyError as error:
        numbers = {"month": f"{month:%Y-%m}", "setting": "GPUPOOL_STATEMENT_KEY", "problem": str(error)}
        raise OperationRejected("statement_key_unusable", numbers, field="month") from None


def _transition(month: date, old: StatementState, new: StatementState, **also: Any) -> bool:
    """Change the state by compare-and-swap. Return False if the state was no longer ``old``.

    ``also`` contains other columns to set in the same update.
    """
    if new not in STATEMENT_TRANSITIONS[old]:
        raise ValueError(f"statement: {old} -> {new}")
    return Statement.objects.filter(month=month, state=old).update(state=new, **also) == 1
