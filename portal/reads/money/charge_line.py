"""Read one charge line with everything that its page shows."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from portal import policy
from portal.models import User
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models import Host, Reservation, Workload
from telemetry.core.amounts import MICRO, round_amount
from telemetry.core.charge_model import CHARGED_BUCKETS
from telemetry.core.cost_shares import WHOLE_PERCENT
from telemetry.models import Charge, PriceFactor
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import currency_of_month
from telemetry.reads.charge_line_usage import LineUsage, line_usage

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class ChargeLineDetail:
    """A charge line, and the rows behind it that the viewer may see.

    ``amount`` is the price of the line's time with its factors, rounded to six decimals; None without a
    price. All amounts are in ``currency``. ``related`` are the visible lines of the same correction: the
    corrected line, its reversal and the lines that replace it.
    """

    line: Charge
    seconds: int
    amount: Decimal | None
    is_charged: bool
    attempt: int | None
    workload: Workload | None
    reservation: Reservation | None
    host: Host | None
    related: list[Charge]
    usage: LineUsage | None
    sees_cost: bool
    currency: str

    @property
    def factors(self) -> list[PriceFactor]:
        """Return the factors on the price: the factor of the priority, then that of the workload type."""
        return [row for row in (self.line.priority_factor, self.line.type_factor) if row is not None]

    @property
    def rounding(self) -> Decimal:
        """Return the amount in the ledger minus ``amount``; 0 for time that is not charged."""
        return self.line.charged - self.amount if self.is_charged and self.amount is not None else Decimal(0)

    @property
    def is_late(self) -> bool:
        """Return True if the line corrects a closed month. It is then on the statement of a later month."""
        return self.line.corrected_month is not None


def charge_line(viewer: User, pk: int) -> ChargeLineDetail | None:
    """Return a charge line; None if it does not exist or the viewer may not see it."""
    visible = policy.visible_charges(viewer)
    line = (
        visible.filter(pk=pk)
        .select_related("price__pool", "priority_factor", "type_factor", "pool", "gpu", "allocation__run")
        .first()
    )
    if line is None:
        return None
    seconds = int((line.end - line.start).total_seconds())
    price = line.work_price
    # The line stores slot-seconds as a whole number, which is rounded if the line has a share of the time.
    # The formula on the page uses the exact number.
    slot_seconds = line.slots * seconds * line.share_percent / WHOLE_PERCENT
    exact = None if price is None else price * slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
    first = line.corrects_id or line.pk
    related = visible.filter(Q(pk=first) | Q(corrects=first) | Q(corrects=line.pk)).exclude(pk=line.pk)
    return ChargeLineDetail(
        line=line,
        seconds=seconds,
        amount=None if exact is None else round_amount(exact, MICRO),
        is_charged=line.bucket in CHARGED_BUCKETS,
        attempt=line.allocation.run.attempt if line.allocation else None,
        workload=_row(policy.visible_workloads(viewer), line.workload_id),
        reservation=_row(policy.visible_reservations(viewer), line.reservation_id),
        host=_row(policy.visible_hosts_with_removed(viewer), line.gpu.host_id),
        related=list(related.order_by("pk")),
        usage=line_usage(line),
        sees_cost=policy.sees_cost_of_charges(viewer),
        currency=line.price.currency if line.price else currency_of_month(month_of(line.start)),
    )


def _row(rows: QuerySet[Row], pk: int | None) -> Row | None:
    """Return the row with this key; None if no row in ``rows`` has it."""
    return None if pk is None else rows.filter(pk=pk).first()
