"""Build the texts of the tree of charges."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

TITLE = "Who is charged"
COLUMN_LABELS = {
    "gpu_hours": "GPU-hours",
    "used": "Used",
    "idle": "Idle",
    "unmeasured": "Not measured",
    "reserved_unused": "Not taken",
    "idle_share": "Share of idle GPUs",
    "adjustment": "Adjustments",
    "charged": "Charged",
    "budget": "Of budget",
}
# The name of a row without a key, by dimension.
NO_KEY = {
    "cost_centre": "No cost centre",
    "team": "No team",
    "user": "Nobody: nothing ran",
    "workload": "No workload: nothing ran",
    "type": "No workload",
}
ADJUSTMENTS_ONLY = "credits and adjustments"
SHARE_OF_IDLE = "share of idle GPUs"
PATH_ALLOWED = "the path of a row of this table, at most {most} of them"
SEARCH_TOO_LONG = "at most {most} characters"
NOTHING_FOUND = "No row with charges contains {text!a}."
PARTS_ADD_UP = "Charged is the sum of the amounts before it. A correction has its own row."
BUDGET_COLUMN = "Of budget: spent now, then forecast at the end of the month."


def first_column(label: str, levels: int) -> str:
    """Return the heading of the names, such as "Cost centre and below"."""
    return f"{label} and below" if levels > 1 else label


def since_heading(before: date) -> str:
    """Return the heading of the difference to the month before, such as "Since Oct"."""
    return f"Since {before:%b}"


def since_days(before: date, days: int | None, *, is_compared: bool) -> str:
    """Return the sentence about the compared days, such as "Since Oct: the first 22 days of each month."."""
    if days == 0:
        return f"Since {before:%b}: from the second day of the month on."
    if not is_compared:
        return f"Since {before:%b}: {before:%B %Y} can't be compared."
    if days is None:
        return f"Since {before:%b}: against all of {before:%B %Y}."
    return f"Since {before:%b}: the first {'day' if days == 1 else f'{days} days'} of each month."


def correction_name(corrected_month: date) -> str:
    """Return the name of a row of corrections, such as "Correction of October 2026"."""
    return f"Correction of {corrected_month:%B %Y}"


def found_rows(count: int, most: int, text: str) -> str:
    """Return the sentence about the result of a search."""
    if count == 0:
        return NOTHING_FOUND.format(text=text)
    rows = "1 row contains" if count == 1 else f"{count} rows contain"
    limit = f" The search shows the {most} rows with the highest charges." if count == most else ""
    return f"{rows} {text!a}. Rows above them keep their whole sums.{limit}"


def level_page(first: int, last: int, count: int) -> str:
    """Return the shown part of a long level, such as "1 to 50 of 312"."""
    return f"{first:,} to {last:,} of {count:,}"


def finding(
    names: Sequence[str], charged: Sequence[Decimal], over: Sequence[tuple[str, str, str]]
) -> tuple[str, str]:
    """Return the finding above the tree: its main part and the rest.

    ``names`` and ``charged`` are those of the first level, highest charge first. ``over`` has name, expected
    spending and budget of each row that is above its budget. Both parts are empty without a charge.
    """
    total = sum(charged, Decimal(0))
    if not names or total <= 0:
        return "", ""
    share = f"{charged[0] / total * 100:.0f} %"
    main = f"{names[0]} is charged everything." if len(names) == 1 else f"{names[0]} is the largest: {share}."
    if not over:
        return main, ""
    name, expected, amount = over[0]
    figures = f"forecast {expected} of {amount}."
    if name == names[0] and len(over) == 1:
        return f"{name} is the largest and exceeds its budget:", figures
    if len(over) == 1:
        return main, f"{name} exceeds its budget: {figures}"
    return main, f"{len(over)} rows exceed their budgets; {name} most: {figures}"
