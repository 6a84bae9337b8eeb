"""Read the approved adjustments of a month, as statements and files show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from telemetry.models import Adjustment, AdjustmentState, Statement


@dataclass(frozen=True)
class ApprovedAdjustment:
    """An approved credit or manual adjustment. ``amount`` is in cents; a negative one is less to pay.

    ``credited_month`` is the month of the charges that a credit gives back; None for an adjustment.
    ``charge`` is the id of the credited charge line; None if no single line is credited. ``withdraws`` is the
    number of the adjustment that this one withdraws; empty if none.
    """

    number: str
    kind: str
    cost_centre: str
    day: date
    reason: str
    author: str
    approver: str
    credited_month: date | None
    charge: int | None
    withdraws: str
    amount: Decimal
    currency: str


def approved_adjustments(statement: Statement, **where: object) -> tuple[ApprovedAdjustment, ...]:
    """Return the approved adjustments of a month, in the order of their numbers. Runs one query.

    ``where`` are filters of Adjustment, such as the cost centre. All texts are copies that never change.
    """
    rows = Adjustment.objects.filter(statement=statement, state=AdjustmentState.APPROVED, **where)
    return tuple(
        ApprovedAdjustment(
            number=row.number,
            kind=row.kind,
            cost_centre=row.cost_centre,
            day=row.day,
            reason=row.reason,
            author=row.author_name,
            approver=row.decided_by_name,
            credited_month=row.credited.month if row.credited else None,
            charge=row.charge_id,
            withdraws=row.withdraws.number if row.withdraws else "",
            amount=row.amount,
            currency=row.currency,
        )
        for row in rows.select_related("credited", "withdraws").order_by("pk")
    )
