"""Build the table of a workload's charges, for its page and its report."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from portal.reads.money.cost_totals import CurrencySums
from portal.web.components.quantities import gpu_model, money, money_sums
from portal.wording.pages import workload_pages
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR


def charged_sums(lines: Iterable[dict[str, Any]], currency: str) -> CurrencySums:
    """Return the charges by currency. Without charges, the sum in ``currency`` is 0."""
    sums: CurrencySums = {}
    for line in lines:
        sums[line["currency"]] = sums.get(line["currency"], Decimal(0)) + line["amount"]
    return sums or {currency: Decimal(0)}


def charge_table(lines: list[dict[str, Any]], currency: str) -> dict[str, Any]:
    """Return the table of the charges from ``cost_totals.charge_lines_of``, for components/table.html."""
    rows = [
        [
            f"{line['day']:%d %b %Y}",
            workload_pages.BUCKET_LABELS.get(line["bucket"], line["bucket"])
            + (workload_pages.CORRECTED.format(month=line["corrected"]) if line["corrected"] else ""),
            gpu_model(line["model"]),
            _gpu_hours_figure(line["seconds"]),
            money(line["amount"], line["currency"]),
        ]
        for line in lines
    ]
    return {
        "caption": "Charges by day",
        "columns": [
            {"label": "Day"},
            {"label": "What"},
            {"label": "GPU"},
            {"label": "GPU-hours", "numeric": True},
            {"label": "Charged", "numeric": True},
        ],
        "rows": rows,
        "total": ["Total", "", "", "", money_sums(charged_sums(lines, currency))],
        "empty": workload_pages.NOTHING_CHARGED,
    }


def _gpu_hours_figure(slot_seconds: int) -> str:
    """Convert slot-seconds to GPU-hours as text.

    Below one GPU-hour, the text has four decimals, so that a minute of a slice is not shown as 0.
    """
    hours = slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
    return f"{hours:,.2f}" if abs(hours) >= 1 else f"{hours:.4f}"
