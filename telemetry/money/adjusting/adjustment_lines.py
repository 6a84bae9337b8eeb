"""Write the statement lines and cells of approved adjustments."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.db.models import F, Sum

from telemetry.core.amounts import ZERO
from telemetry.models import Adjustment, ChargeCell, Statement, StatementLine


def add_to_statement(adjustment: Adjustment) -> ChargeCell:
    """Add an adjustment to its statement line and cell. Return the cell. The caller holds ``lock_ledger``.

    The line has no pool and no time. The cell of a credit of a charge line has its person and workload.
    """
    key: dict[str, Any] = {
        "statement": adjustment.statement,
        "pool": None,
        "cost_centre": adjustment.cost_centre,
        "team_id": adjustment.team_id,
        "project_id": adjustment.project_id,
        "workload_type": "",
        "model": "",
        "bucket": adjustment.kind,
        "corrected_month": None,
        "idle_share": False,
        "gpu_hours": None,
    }
    line, _ = StatementLine.objects.get_or_create(**key, defaults={"currency": adjustment.currency})
    StatementLine.objects.filter(pk=line.pk).update(charged=F("charged") + adjustment.amount, due=True)
    charge = adjustment.charge
    names = {"user_name": charge.user_name, "workload_name": charge.workload_name} if charge else {}
    place: dict[str, Any] = {
        "line": line,
        "statement": adjustment.statement,
        "user_id": charge.user_id if charge else None,
        "workload_id": charge.workload_id if charge else None,
        "day": adjustment.day,
    }
    cell, _ = ChargeCell.objects.get_or_create(**place, defaults=names)
    ChargeCell.objects.filter(pk=cell.pk).update(charged=F("charged") + adjustment.amount)
    return cell


def cost_centre_total(statement: Statement, cost_centre: str, currency: str) -> Decimal:
    """Return the total of a cost centre's statement: the sum of the cents of its lines that are invoiced."""
    lines = statement.lines.filter(cost_centre=cost_centre, currency=currency, showback=False)
    return lines.aggregate(total=Sum("charged_cents"))["total"] or ZERO
