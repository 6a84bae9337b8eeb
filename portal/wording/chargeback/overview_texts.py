"""Build the texts about the charges of a month: change, forecast, budget and equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal

from portal.wording.chargeback.budget_texts import BUDGET_OWNERS, forecast_record
from portal.wording.formatting import joined_with_and
from telemetry.core.currencies import decimals_of
from telemetry.reads.budget_status import ForecastRange

MAX_NAMES = 3


@dataclass(frozen=True)
class Finding:
    """A sentence with the result of a panel, and further sentences."""

    main: str
    more: str = ""


def amount_text(amount: Decimal, currency: str) -> str:
    """Return an amount with its currency, such as ``EUR 1,234.50``."""
    return f"{currency} {amount:,.{decimals_of(currency)}f}"


def names_text(names: Sequence[str]) -> str:
    """Return up to three names, such as ``A, B, C and 4 more``."""
    shown = list(names[:MAX_NAMES])
    more = [f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return joined_with_and([*shown, *more])


def use_text(gpu_hours: float, days: float, coverage: float | None) -> str:
    """Return ``11,114 GPU-hours in 21.5 days, 99.5 % of held time measured``."""
    measured = "" if coverage is None else f", {coverage * 100:.1f} % of held time measured"
    return f"{gpu_hours:,.0f} GPU-hours in {days:.1f} days{measured}".replace(".0 days", " days")


def days_text(first: date, until: date, whole_month: bool) -> str:
    """Return the days from ``first`` to the day before ``until``: ``1 to 21 October``, or ``October``."""
    if whole_month:
        return f"{first:%B}"
    last = until - timedelta(days=1)
    return f"{first.day} {first:%B}" if last == first else f"{first.day} to {last.day} {first:%B}"


def share_text(share: float | None) -> str:
    """Return ``8.4 % more``; "" without a share. ``share`` is the change, as a part of the amount before."""
    return "" if share is None else f"{abs(share) * 100:.1f} % {'less' if share < 0 else 'more'}"


def former_text(former: date, charged: str, closed: bool) -> str:
    """Return ``October closed at 27,846.20``. ``charged`` is the amount of that month."""
    return f"{former:%B} {'closed at' if closed else 'is not closed, with'} {charged}"


def missing_change_text(missing: str, former: date, currency: str) -> str:
    """Return why a month is not compared with the month before. ``currency`` is that of ``former``."""
    return {
        "first_month": f"There are no charges in {former:%B}.",
        "first_day": "The first day of the month is not over.",
        "currency": f"{former:%B} is in {currency}. Amounts of two currencies are not compared.",
    }[missing]


def forecast_text(forecast: ForecastRange | None, is_over: bool) -> str:
    """Return the record of past forecasts, or why there is no forecast."""
    if forecast is not None:
        return forecast_record(forecast, "month")
    return "The month is over." if is_over else "Three whole days are needed."


def budget_text(kind: str, names: Sequence[str], covers_all: bool, spent: str) -> str:
    """Return the owners of the budgets. ``spent`` is the amount that counts against the budgets."""
    owner = BUDGET_OWNERS[kind]
    whose = f"budget of {owner} {names[0]}" if len(names) == 1 else f"{len(names)} budgets of {owner}s"
    return whose if covers_all else f"{whose}, which spent {spent}"


def spend_finding(
    month: date,
    charged: Decimal,
    currency: str,
    forecast: ForecastRange | None,
    is_over: bool,
    budget: Decimal | None,
    exceeded: Sequence[str],
) -> Finding:
    """Compare the charges at the end of a month with the budget.

    ``budget`` is None if no budget limits all charges that the viewer sees.
    """
    end = forecast.expected if forecast else charged
    if is_over:
        main = f"{amount_text(charged, currency)} charged in {month:%B}"
    elif forecast:
        main = f"At this pace {month:%B} ends near {amount_text(end, currency)}"
    else:
        return Finding(f"{amount_text(charged, currency)} charged so far.", "There is no forecast yet.")
    verb = "exceeded" if is_over else "will exceed"
    whose = "its" if len(exceeded) == 1 else "their"
    more = f"{names_text(exceeded)} {verb} {whose} budget." if exceeded else ""
    if budget is None:
        return Finding(f"{main}.", more)
    side = "over" if end > budget else "under"
    return Finding(f"{main}, {amount_text(abs(budget - end), currency)} {side} budget.", more)


def equation_finding(holds: bool, difference: str) -> Finding:
    """Say whether the equation of a month holds."""
    if holds:
        return Finding("Yes, to the cent:", "every second of every GPU is charged, idle or out of service.")
    return Finding(f"No: the sides differ by {difference}.", "The month cannot be closed.")


TERM_LABELS = {
    "charged": "Charged",
    "adjusted": "Adjustments taken out",
    "margin": "Margin",
    "not_sold": "Idle and uncharged",
    "overhead": "Out of service",
    "cost": "Cost of the GPUs",
}
NO_POOL = "No pool: credits and adjustments"
SIGN_NAMES = {1: "plus", -1: "minus", 0: "equals"}


def month_label(month: date, with_year: bool) -> str:
    """Return ``Nov``, or ``Jan ’26`` with the year."""
    return f"{month:%b} ’{month:%y}" if with_year else f"{month:%b}"


def month_description(month: date, charged: Decimal, currency: str, closed: bool) -> str:
    """Return the text of a month for screen readers."""
    return f"{month:%B %Y}, {amount_text(charged, currency)}, {'closed' if closed else 'open'}"


def budget_bar_text(spent: float, forecast: float | None) -> str:
    """Return the text of the bar of a budget for screen readers. Shares are of the budget."""
    expected = "" if forecast is None else f", forecast {forecast * 100:.0f} %"
    return f"spent {spent * 100:.0f} %{expected} of the budget"


CURVE_COLUMNS = ("Day", "GPU-hours", "Charged", "Charged so far", "Month before, so far", "Even pace")
CORRECTIONS_ROW = "Corrections of earlier months"
CURVE_START = "start"
# The title of a hover: x is the number of days since the start of the month, so the day of the point.
CURVE_HOVER = "end of day %{x}"
CURVE_TITLE = "Spend against budget"
CURVE_TRACES = {
    "now": "{month:%B}",
    "former": "{former:%B}",
    "pace": "even pace",
    "range": "range of the forecast",
    "forecast": "forecast {amount}",
    "budget": "budget {amount}",
}
