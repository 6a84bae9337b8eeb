"""Describe how the amount of a charge line is computed."""

from __future__ import annotations

from decimal import Decimal

from portal.wording.formatting import local_time_text
from portal.wording.money_texts import factor_subject
from portal.wording.pages.money import money_pages
from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.cost_shares import WHOLE_PERCENT, percent_text
from telemetry.models import Charge, ChargeBucketChoices, Price
from telemetry.reads.charge_line_usage import LineUsage

UNCHARGED_BUCKETS = {
    "preempted": "This time is not charged: the work was lost by a preemption.",
    "hardware_lost": "This time is not charged: the work was lost by a fault of hardware.",
    "unallocated": "This time is not charged: the GPU was free.",
    "unhealthy": "This time is not charged: the GPU or its host was out of service.",
    "maintenance": "This time is not charged: the GPU or its host was in maintenance.",
}


def bucket_label(line: Charge) -> str:
    """Return the label of a line's bucket. Unused time of a dedicated pool has its own label."""
    if line.bucket == ChargeBucketChoices.RESERVED_UNUSED and line.reservation_id is None:
        return money_pages.DEDICATED_UNUSED_BUCKET
    return str(line.get_bucket_display())


def formula(line: Charge, seconds: int, amount: Decimal | None) -> str:
    """Return the computation of an amount, such as ``840/840 x 3,600 s / 3,600 x 2.400000 = 2.400000``.

    The factors follow the price: ``2.400000 x 0.8000 (priority low)``. The percent that the cost centre pays
    is the last factor if it is less than 100.
    """
    if line.price is None or amount is None:
        return "No price was in force, so nothing can be charged."
    factors = [row for row in (line.priority_factor, line.type_factor) if row is not None]
    price = " × ".join(
        [
            f"{line.price.price_per_gpu_hour:f}",
            *(f"{row.factor:f} ({factor_subject(row)})" for row in factors),
        ]
    )
    percent = line.share_percent
    share = "" if percent == WHOLE_PERCENT else f" × {percent_text(percent)}"
    return f"{line.slots}/{SLOTS_PER_GPU} × {seconds:,} s / 3,600 × {price}{share} = {amount:f}"


def share_text(percent: Decimal) -> str:
    """Return the share of a cost centre, such as ``33.33 %``; "" if it pays all."""
    return "" if percent == WHOLE_PERCENT else percent_text(percent)


def use_text(usage: LineUsage | None) -> str:
    """Return the measured part of the time; "" if no work held the GPU."""
    if usage is None:
        return ""
    return "not measured" if usage.coverage is None else f"{usage.coverage * 100:.1f} % measured"


def cost_centre_text(label: str, percent: Decimal) -> str:
    """Return the cost centre of a line, with the percent that it pays if that is less than 100."""
    return label if percent == WHOLE_PERCENT or not label else f"{label}, pays {percent_text(percent)}"


def amount_sentences(is_charged: bool, bucket: str, rounding: Decimal) -> list[str]:
    """Return the reason why the time is not charged, or why the ledger differs from the computed amount.

    The list is empty if the time is charged and the two amounts are equal.
    """
    if not is_charged:
        return [UNCHARGED_BUCKETS[bucket]]
    if rounding:
        return [
            f"The amount in the ledger differs by {rounding:+f}: the parts of a GPU's time are rounded so "
            "that they sum to the whole."
        ]
    return []


def price_in_force(price: Price | None) -> str:
    """Return the text of a price: currency, amount, pool and start. Return "none" without a price."""
    if price is None:
        return "none"
    where = f" in {price.pool.name}" if price.pool else ""
    start = local_time_text(price.valid_from)
    return f"{price.currency} {price.price_per_gpu_hour:f} per GPU-hour{where}, from {start}"


def attempt(number: int | None) -> str:
    return "" if number is None else f"attempt {number}"


def reserved(reservation_id: int | None) -> str:
    """Return the text for a reservation whose page the viewer may not open."""
    return "" if reservation_id is None else "of its team"


def relation(corrects: int | None, *, reversal: bool) -> str:
    """Return the role of a line in a correction."""
    if reversal:
        return f"cancels line {corrects}"
    return f"replaces line {corrects}" if corrects else "the original line"
