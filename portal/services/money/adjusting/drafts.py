"""Check the input of a credit or a manual adjustment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from portal.input_checks import InputChecks, display_value
from portal.reads.money.charged_months import first_charged_month
from portal.services.money.cost_centres.splits import check_code
from portal.wording.problems import adjustment_problems as problems
from scheduler.models import Project, Team
from telemetry.core.amounts import round_amount
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.core.currencies import decimals_of, smallest_unit
from telemetry.models import (
    AdjustmentKindChoices,
    Charge,
    CostCentre,
    Statement,
    StatementLine,
    StatementState,
)
from telemetry.money.adjusting.adjustments import AdjustmentDraft
from telemetry.money.adjusting.credit_limits import line_of_charge
from telemetry.money.billing_months import month_of, next_month
from telemetry.money.pricing.billing_currencies import currency_of_month

MAX_AMOUNT = Decimal(1_000_000_000)
MAX_REASON_LENGTH = 1000
KNOWN_CODES = 5


@dataclass(frozen=True)
class AdjustmentRequest:
    """The values that a person gives for an adjustment.

    ``amount`` is signed: a negative amount is less to pay. A credit names its charges by ``charge`` (id of a
    charge line), ``line`` (id of a statement line), or ``credited_month`` (all charges of the cost centre).
    Its cost centre, team and project follow from a charge line or a statement line.
    """

    month: date
    amount: Decimal | str
    reason: str
    kind: str = "adjustment"
    cost_centre: str = ""
    team: Team | None = None
    project: Project | None = None
    charge: int | None = None
    line: int | None = None
    credited_month: date | None = None


@dataclass(frozen=True)
class _Credited:
    """The charges of a credit: a statement, a statement line or a charge line. Empty for an adjustment."""

    statement: Statement | None = None
    line: StatementLine | None = None
    charge: Charge | None = None


def open_months(now: datetime) -> list[date]:
    """Return the months that are not closed, from the first month with charges to the present one."""
    closed = set(Statement.objects.exclude(state=StatementState.OPEN).values_list("month", flat=True))
    months, month = [], first_charged_month(now)
    while month <= month_of(now):
        months.append(month)
        month = next_month(month)
    return [month for month in months if month not in closed]


def checked_draft(checks: InputChecks, request: AdjustmentRequest, now: datetime) -> AdjustmentDraft:
    """Return the adjustment that a person may propose. Notes all problems in ``checks``."""
    kind = checks.choice("kind", request.kind, AdjustmentKindChoices.values)
    month = _open_month(checks, request.month, now)
    amount = _amount(checks, request.amount, kind, currency_of_month(month))
    reason = checks.text("reason", request.reason, most=MAX_REASON_LENGTH, lines=True)
    credited = _credited(checks, request, kind, now)
    cost_centre = _cost_centre(checks, request, credited)
    team, project = _owner(checks, request, credited)
    if credited.statement is not None and credited.statement.month > month and not checks.problems:
        words = problems.CHARGES_AFTER_MONTH.format(month=month, credited=credited.statement.month)
        checks.note("month", month.isoformat(), words)
    return AdjustmentDraft(
        month=month,
        kind=kind,
        cost_centre=cost_centre,
        amount=amount,
        reason=reason,
        team=team,
        project=project,
        credited=credited.statement,
        line=credited.line,
        charge=credited.charge,
    )


def _open_month(checks: InputChecks, given: Any, now: datetime) -> date:
    month = checks.month("month", given)
    allowed = open_months(now)
    if "month" not in checks.problems and month not in allowed:
        listed = ", ".join(f"{each:%Y-%m}" for each in allowed)
        checks.note("month", month.isoformat(), problems.MONTH_NOT_OPEN.format(month=month, allowed=listed))
    return month


def _amount(checks: InputChecks, given: Any, kind: str, currency: str) -> Decimal:
    """Return a signed amount with the decimals of the currency."""
    try:
        amount = Decimal(str(given).strip()) if isinstance(given, str | int | Decimal) else Decimal("NaN")
    except InvalidOperation:
        amount = Decimal("NaN")
    exponent, decimals = amount.as_tuple().exponent, decimals_of(currency)
    # Unlike abs(), copy_abs() accepts a number that is too large for the context of decimals.
    if not isinstance(exponent, int) or -exponent > decimals or not 0 < amount.copy_abs() <= MAX_AMOUNT:
        words = problems.AMOUNT_INVALID.format(given=display_value(given), most=MAX_AMOUNT, decimals=decimals)
        checks.note("amount", display_value(given), words)
        return Decimal(0)
    if kind == AdjustmentKindChoices.CREDIT and amount > 0:
        checks.note("amount", str(given), problems.CREDIT_NOT_NEGATIVE.format(given=amount))
    return round_amount(amount, smallest_unit(currency))


def _credited(checks: InputChecks, request: AdjustmentRequest, kind: str, now: datetime) -> _Credited:
    """Return the charges that a credit names."""
    given = {name: getattr(request, name) for name in ("charge", "line", "credited_month")}
    named = {name: value for name, value in given.items() if value is not None}
    if kind != AdjustmentKindChoices.CREDIT:
        for name, value in named.items():
            words = problems.CHARGES_OF_ADJUSTMENT.format(field=name, given=display_value(value))
            checks.note(name, str(value), words)
        return _Credited()
    if len(named) != 1:
        checks.note("charge", None, problems.CREDIT_WITHOUT_CHARGES)
        return _Credited()
    if request.charge is not None:
        return _credited_charge(checks, request.charge)
    if request.line is not None:
        return _credited_line(checks, request.line)
    return _credited_month(checks, request.credited_month)


def _credited_charge(checks: InputChecks, pk: int) -> _Credited:
    charge = Charge.objects.filter(pk=pk).first()
    if charge is None:
        checks.note("charge", pk, problems.CHARGE_UNKNOWN.format(given=pk))
        return _Credited()
    line = line_of_charge(charge)
    if line is None:
        checks.note("charge", pk, problems.CHARGE_WITHOUT_LINE.format(given=pk))
        return _Credited()
    return _Credited(line.statement, line, charge)


def _credited_line(checks: InputChecks, pk: int) -> _Credited:
    lines = StatementLine.objects.exclude(bucket__in=ADJUSTMENT_BUCKETS).select_related("statement")
    line = lines.filter(pk=pk).first()
    if line is None:
        checks.note("line", pk, problems.LINE_UNKNOWN.format(given=pk))
        return _Credited()
    return _Credited(line.statement, line)


def _credited_month(checks: InputChecks, given: Any) -> _Credited:
    month = checks.month("credited_month", given)
    statement = Statement.objects.filter(month=month).first()
    if "credited_month" not in checks.problems and statement is None:
        first = Statement.objects.order_by("month").values_list("month", flat=True).first()
        allowed = f"a month with charges, from {first:%Y-%m} on" if first else "nothing: no month has charges"
        words = problems.CREDITED_MONTH_INVALID.format(month=month, allowed=allowed)
        checks.note("credited_month", month.isoformat(), words)
    return _Credited(statement)


def _cost_centre(checks: InputChecks, request: AdjustmentRequest, credited: _Credited) -> str:
    """Return the cost centre of the charges, or the given one if the directory has it."""
    given = request.cost_centre.strip()
    if credited.line is not None:
        if given and given != credited.line.cost_centre:
            words = problems.OTHER_COST_CENTRE.format(given=given[:40], allowed=credited.line.cost_centre)
            checks.note("cost_centre", given[:40], words)
        return credited.line.cost_centre
    row = CostCentre.objects.filter(code=given).first()
    # A credit may go to a retired cost centre, because it was charged before.
    if row is not None and request.kind == AdjustmentKindChoices.ADJUSTMENT and row.retired_from is not None:
        check_code(checks, "cost_centre", given, row)
    elif row is None:
        known = CostCentre.objects.order_by("code").values_list("code", flat=True)[:KNOWN_CODES]
        words = problems.COST_CENTRE_UNKNOWN.format(given=given[:40], known=", ".join(known) or "none yet")
        checks.note("cost_centre", given[:40], words)
    return given


def _owner(
    checks: InputChecks, request: AdjustmentRequest, credited: _Credited
) -> tuple[int | None, int | None]:
    """Return the ids of the team and the project: those of the charges, or the given ones."""
    project, team = request.project, request.team
    of_line = credited.line
    wanted = of_line.project if of_line else project
    if of_line is not None and project is not None and project != of_line.project:
        allowed = of_line.project.slug if of_line.project else "none"
        checks.note(
            "project", project.slug, problems.OTHER_PROJECT.format(given=project.slug, allowed=allowed)
        )
    wanted_team = of_line.team if of_line else (project.team if project else team)
    if team is not None and wanted_team is not None and team != wanted_team:
        words = problems.OTHER_TEAM.format(given=team.slug, allowed=wanted_team.slug)
        checks.note("team", team.slug, words)
    return wanted_team.pk if wanted_team else None, wanted.pk if wanted else None
