"""Write charges as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import date
from decimal import Decimal

from django.db.models import QuerySet
from django.http import HttpResponse

from scheduler.core.model.slots import SLOTS_PER_GPU
from telemetry.models import Charge
from telemetry.money.statement_export import csv_safe_text
from telemetry.reads.chargeback import ChargeTable

MAX_CSV_LINES = 200_000


def csv_file_response(text: str, name: str) -> HttpResponse:
    """Return a text as a CSV download."""
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def charge_groups_csv(table: ChargeTable, dimension: str, month: date, with_cost: bool) -> HttpResponse:
    """Return the grouped charges as CSV.

    ``with_cost`` adds the column ``cost``: the cost of these GPU-hours to the organisation that owns the
    GPUs, in contrast to ``charged``.
    """
    response = csv_file_response("", f"charges-{month:%Y-%m}-by-{dimension}.csv")
    writer = csv.writer(response)
    cost = ["cost"] if with_cost else []
    writer.writerow(
        [
            dimension,
            "gpu_hours",
            "used",
            "idle",
            "unmeasured",
            "reserved_unused",
            "charged",
            *cost,
            "coverage",
        ]
    )
    for group in (*table.groups, table.total):
        name = "total" if group is table.total else csv_safe_text(group.name or "none")
        coverage = "" if group.coverage is None else f"{group.coverage:.4f}"
        amounts = [group.used, group.idle, group.unmeasured, group.reserved_unused, group.charged]
        amounts += [group.cost] if with_cost else []
        writer.writerow([name, f"{group.gpu_hours:.4f}", *amounts, coverage])
    return response


def charge_lines_csv(rows: Iterable[Charge], month: date, with_cost: bool) -> HttpResponse:
    """Return charge lines as CSV.

    ``with_cost`` adds the column ``cost``: the cost of these GPU-hours to the organisation that owns the
    GPUs, in contrast to ``charged``.
    """
    response = csv_file_response("", f"charge-lines-{month:%Y-%m}.csv")
    writer = csv.writer(response)
    cost = ["cost"] if with_cost else []
    writer.writerow(
        [
            "id",
            "start",
            "end",
            "bucket",
            "model",
            "gpu_seconds",
            "price_per_gpu_hour",
            "charged",
            *cost,
            "cost_centre",
            "team",
            "project",
            "user",
            "workload",
            "allocation",
            "corrects",
            "simulated",
        ]
    )
    for line in rows.select_related("price") if isinstance(rows, QuerySet) else rows:
        names = (line.cost_centre, line.team_name, line.project_name, line.user_name, line.workload_name)
        price = line.price.price_per_gpu_hour if line.price else ""
        seconds = Decimal(line.slot_seconds) / SLOTS_PER_GPU
        facts = [
            line.pk,
            line.start.isoformat(),
            line.end.isoformat(),
            line.bucket,
            line.model,
            seconds,
            price,
        ]
        facts += [line.charged, *([line.cost] if with_cost else []), *(csv_safe_text(name) for name in names)]
        writer.writerow([*facts, line.allocation_id or "", line.corrects_id or "", line.simulated])
    return response
