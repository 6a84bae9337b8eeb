"""Return the corrections of closed months on a statement, with the facts that caused them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import QuerySet

from telemetry.models import Charge, ChargeCell
from telemetry.reads.chargeback import charge_lines, charges_by


@dataclass(frozen=True)
class CorrectionBlock:
    """The corrections of one closed month for one cost centre.

    ``causes`` are pairs of a code and the values of its sentence. ``portal/wording`` has the sentences.
    """

    cost_centre: str
    corrected_month: date
    gpu_hours: float
    charged: Decimal
    cost: Decimal
    currency: str
    causes: tuple[tuple[str, Mapping[str, Any]], ...]


def correction_blocks(
    month: date,
    lines: QuerySet[Charge] | None = None,
    cells: QuerySet[ChargeCell] | None = None,
    **where: Any,
) -> list[CorrectionBlock]:
    """Return the corrections on a month's statement, by cost centre and corrected month.

    ``lines`` and ``cells`` are the charges that the viewer may see; None means all. ``where`` is the
    drill-down path, as in ``charges_by``.
    """
    table = charges_by("cost_centre", month, cells, **where)
    if not table.corrections:
        return []
    causes = _causes(month, lines, where)
    blocks = [
        CorrectionBlock(
            cost_centre=group.key,
            corrected_month=group.corrected_month,
            gpu_hours=group.gpu_hours,
            charged=group.charged,
            cost=group.cost,
            currency=group.currency,
            causes=tuple(causes[group.key, group.corrected_month]),
        )
        for group in table.corrections
        if group.corrected_month is not None
    ]
    return sorted(blocks, key=lambda block: (block.cost_centre, block.corrected_month))


def _causes(
    month: date, lines: QuerySet[Charge] | None, where: Mapping[str, Any]
) -> dict[tuple[str, date], list[tuple[str, Mapping[str, Any]]]]:
    """Return the causes by cost centre and corrected month, in the order in which they were found."""
    late = charge_lines(month, lines, **where).filter(corrects__isnull=False, day__lt=month)
    causes: dict[tuple[str, date], list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    rows = late.order_by("pk").values_list("cost_centre", "day", "cause_code", "cause_numbers")
    for centre, day, code, numbers in rows:
        cause, corrected = (code, numbers), day.replace(day=1)
        if code and cause not in causes[centre, corrected]:
            causes[centre, corrected].append(cause)
    return causes
