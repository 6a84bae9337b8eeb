"""Return the corrections of closed months on a statement, with the facts that caused them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import Min, QuerySet
from django.db.models.functions import TruncMonth

from telemetry.models import Charge, ChargeCell
from telemetry.reads.chargeback import ChargeTable, charge_lines, charges_by


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
    return blocks_of_table(charges_by("cost_centre", month, cells, **where), month, lines, where)


def blocks_of_table(
    table: ChargeTable, month: date, lines: QuerySet[Charge] | None, where: Mapping[str, Any]
) -> list[CorrectionBlock]:
    """Return the result of ``correction_blocks``.

    ``table`` has the charges by cost centre that are already read.
    """
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
    rows = (
        late.exclude(cause_code="")
        .order_by()
        .values_list("cost_centre", TruncMonth("day"), "cause_code", "cause_numbers")
        .annotate(first=Min("pk"))
        .order_by("first")
    )
    for centre, corrected, code, numbers, _ in rows:
        causes[centre, corrected].append((code, numbers))
    return causes
