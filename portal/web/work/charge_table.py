"""Build the table of a workload's charges, for its page and its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from portal.reads.money.cost_totals import CurrencySums
from portal.reads.work.priced_times import PricedTime
from portal.web.components.quantities import gpu_model, grouped, money, money_sums
from portal.wording.pages import run_report_pages, workload_pages
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from telemetry.core.charge_model import CHARGED_BUCKETS

MAX_PRICE_ROWS = 50


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


def price_table(times: Sequence[PricedTime]) -> dict[str, Any]:
    """Return the table of price x GPUs x seconds, for components/table.html.

    It has the last MAX_PRICE_ROWS times.
    """
    shown = times[-MAX_PRICE_ROWS:]
    rows = [
        [
            f"{time.start:%d %b %H:%M:%S}",
            f"{time.end:%d %b %H:%M:%S}",
            workload_pages.BUCKET_LABELS.get(time.bucket, time.bucket),
            grouped(time.seconds, 0),
            f"{time.gpus:,.3f}".rstrip("0").rstrip("."),
            _price(time),
            f"{time.charged:,.4f} {time.currency}".strip(),
        ]
        for time in shown
    ]
    return {
        "caption": run_report_pages.PRICES_TITLE,
        "columns": [
            {"label": label, "numeric": numeric} for label, numeric in run_report_pages.PRICE_COLUMNS
        ],
        "rows": rows,
        "more": run_report_pages.PRICES_MORE.format(count=len(times) - len(shown)) if shown != times else "",
        "empty": workload_pages.NOTHING_CHARGED,
    }


def _price(time: PricedTime) -> str:
    if time.price is None or time.bucket not in CHARGED_BUCKETS:
        return run_report_pages.NO_PRICE
    return f"{time.price.normalize():,f}"


def _gpu_hours_figure(slot_seconds: int) -> str:
    """Convert slot-seconds to GPU-hours as text.

    Below one GPU-hour, the text has four decimals, so that a minute of a slice is not shown as 0.
    """
    hours = slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
    return f"{hours:,.2f}" if abs(hours) >= 1 else f"{hours:.4f}"
