"""Prepare the bridge for its template and its CSV file.

The bridge is the list of steps that explain the difference between the charges of two months: the month of
the page and the month before.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.urls import reverse

from portal.reads.money.overview.page import ChargebackOverview
from portal.web.components.quantities import amount
from portal.web.money.overview.addresses import lines_url
from portal.wording.chargeback import bridge_texts, overview_texts
from telemetry.core.billing_calendar import previous_month
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.spending.spend_bridge import BridgeStep, SpendBridge
from telemetry.reads.overview.spend_change import MonthPart

CSV_COLUMNS = ("step", "from", "to", "amount", "note", "currency", "scope")
PADDING = 0.1  # free part of the axis at each end


def signed(value: Decimal, currency: str) -> str:
    """Return an amount with its sign, such as ``+1,668.90``."""
    return f"{'+' if value > 0 else ''}{amount(value, currency)}"


def bridge_panel(overview: ChargebackOverview) -> dict[str, Any]:
    """Return the context of the panel. If the months can't be compared, ``missing`` is the reason."""
    change, former = overview.change, previous_month(overview.month)
    panel: dict[str, Any] = {"title": f"What changed since {former:%B}", "rows": []}
    if change.bridge is None or change.days is None:
        currency = change.former.currency if change.former else ""
        return {**panel, "missing": overview_texts.missing_change_text(change.missing, former, currency)}
    bridge, currency = change.bridge, overview.currency
    low, high = _axis(bridge)
    largest = bridge_texts.largest_step(bridge)
    return {
        **panel,
        "rows": list(_rows(overview, bridge, low, high)),
        "low": f"{low:,.0f}",
        "high": f"{high:,.0f}",
        "finding": bridge_texts.bridge_finding(bridge, signed(largest.amount, currency) if largest else ""),
        "csv": reverse("chargeback-changes", args=[f"{overview.month:%Y-%m}"]),
        "today": ""
        if overview.is_over
        else bridge_texts.today_text(amount(overview.charged - bridge.now, currency)),
    }


def bridge_csv_rows(overview: ChargebackOverview, scope: str) -> Iterator[list[Any]]:
    """Yield the rows of the CSV file: the amount before, each step, and the amount now."""
    change = overview.change
    if change.bridge is None or change.days is None:
        return
    running, tail = change.bridge.before, [overview.currency, scope]
    yield ["before", None, running, None, _days(change.days.before), *tail]
    for step in change.bridge.steps:
        note = bridge_texts.step_note(step, change.project_names, overview.currency)
        yield [step.kind, running, running + step.amount, step.amount, note, *tail]
        running += step.amount
    yield ["now", None, running, None, _days(change.days.now), *tail]


def _days(part: MonthPart) -> str:
    return overview_texts.days_text(part.month, part.until, part.is_whole)


def _axis(bridge: SpendBridge) -> tuple[float, float]:
    """Return both ends of the axis, which does not begin at 0."""
    running = [float(bridge.before)]
    for step in bridge.steps:
        running.append(running[-1] + float(step.amount))
    span = max(running) - min(running) or 1.0
    return min(running) - PADDING * span, max(running) + PADDING * span


def _rows(overview: ChargebackOverview, bridge: SpendBridge, low: float, high: float) -> Iterator[Any]:
    change, currency = overview.change, overview.currency
    assert change.days is not None

    def place(value: Decimal) -> float:
        return (float(value) - low) / (high - low) * 100

    def tick(days: MonthPart, value: Decimal) -> dict[str, Any]:
        at = f"{place(value):.2f}"
        shown = {
            "label": _days(days),
            "url": lines_url(days.month, **_compared(days)),
            "amount": amount(value, currency),
        }
        return {**shown, "tick": at, "end": at}

    yield tick(change.days.before, bridge.before)
    running = bridge.before
    for step in bridge.steps:
        left, right = sorted((place(running), place(running + step.amount)))
        running += step.amount
        yield {
            "label": bridge_texts.STEP_LABELS[step.kind],
            "note": bridge_texts.step_note(step, change.project_names, currency),
            "url": _step_url(step, overview),
            "amount": signed(step.amount, currency),
            "kind": "plus" if step.amount > 0 else "less",
            "x": f"{left:.2f}",
            "width": f"{max(right - left, 0.3):.2f}",
            "end": f"{place(running):.2f}",
        }
    yield {**tick(change.days.now, bridge.now), "end": ""}


def _compared(days: MonthPart) -> dict[str, str]:
    """Return the filter of the charge lines that selects the compared days; {} for a whole month."""
    return {} if days.is_whole else {"last_day": (days.until - timedelta(days=1)).isoformat()}


def _step_url(step: BridgeStep, overview: ChargebackOverview) -> str:
    """Return the page with the evidence of a step: the rate card, or the lines behind the step."""
    assert overview.change.days is not None
    days = _compared(overview.change.days.now)
    if step.kind == "price":
        return reverse("rate-card")
    if step.kind == "corrections":
        return lines_url(overview.month, corrected_month="any")
    if step.kind == "adjustments":
        return f"{reverse('adjustments')}?month={overview.month:%Y-%m}"
    if step.kind == "idle":
        return lines_url(overview.month, bucket="unallocated", **days)
    if step.kind == "new" and len(step.projects) == 1:
        project = step.projects[0]
        return lines_url(overview.month, project="" if project is None else str(project), **days)
    return lines_url(overview.month, bucket=",".join(sorted(CHARGED_BUCKETS)), **days)
