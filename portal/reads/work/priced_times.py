"""Read the charge lines of a workload as price x GPUs x seconds, one row for each time with one price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Sum

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.core.amounts import MICRO, round_amount
from telemetry.models import Charge

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class PricedTime:
    """A time in which a workload held the same GPUs, in one bucket and with one price.

    ``slot_seconds`` are those of its charge lines: 840 slots are one GPU. ``price`` is that of a GPU-hour
    with its factors; None without a price. ``charged`` is the sum of the charge lines, with six decimals.
    """

    start: datetime
    end: datetime
    bucket: str
    model: str
    currency: str
    price: Decimal | None
    slot_seconds: int
    charged: Decimal

    @property
    def seconds(self) -> int:
        return round((self.end - self.start).total_seconds())

    @property
    def gpus(self) -> float:
        """Return the mean number of GPUs. A slice or a shared line is a part of a GPU."""
        return self.slot_seconds / SLOTS_PER_GPU / self.seconds if self.seconds else 0.0

    @property
    def gpu_hours(self) -> float:
        return self.slot_seconds / SLOTS_PER_GPU / SECONDS_PER_HOUR


def priced_times(workload: int) -> list[PricedTime]:
    """Return the priced times of a workload in order, from its charge lines. Runs one query.

    Lines that a correction cancelled are left out, and the lines that replace them are included.
    """
    rows = (
        Charge.objects.filter(workload=workload)
        .order_by("start", "end", "bucket", "model")
        .values(
            "start",
            "end",
            "bucket",
            "model",
            "price__currency",
            "price__price_per_gpu_hour",
            "priority_factor__factor",
            "type_factor__factor",
        )
        .annotate(slot_seconds_sum=Sum("slot_seconds"), charged_sum=Sum("charged"))
    )
    return _joined(_priced_time(row) for row in rows if row["slot_seconds_sum"])


def _priced_time(row: Mapping[str, Any]) -> PricedTime:
    price = row["price__price_per_gpu_hour"]
    for factor in (row["priority_factor__factor"], row["type_factor__factor"]):
        price = price * factor if price is not None and factor is not None else price
    return PricedTime(
        row["start"],
        row["end"],
        row["bucket"],
        row["model"],
        row["price__currency"] or "",
        None if price is None else round_amount(price, MICRO),
        row["slot_seconds_sum"],
        row["charged_sum"],
    )


def _joined(times: Iterable[PricedTime]) -> list[PricedTime]:
    """Join times that follow each other with the same GPUs, bucket and price."""
    found: list[PricedTime] = []
    last: dict[tuple[Any, ...], int] = {}  # the place of the last time of each kind
    for each in times:
        kind = (each.bucket, each.model, each.currency, each.price)
        at = last.get(kind)
        if at is not None and found[at].end == each.start and _holds_the_same(found[at], each):
            before = found[at]
            found[at] = replace(
                before,
                end=each.end,
                slot_seconds=before.slot_seconds + each.slot_seconds,
                charged=before.charged + each.charged,
            )
        else:
            last[kind] = len(found)
            found.append(each)
    return found


def _holds_the_same(one: PricedTime, other: PricedTime) -> bool:
    return one.slot_seconds * other.seconds == other.slot_seconds * one.seconds
