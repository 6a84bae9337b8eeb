"""Read the names of cost centres."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from telemetry.models import CostCentre, CostCentreStatement


def cost_centre_labels(codes: Iterable[str] | None = None) -> dict[str, str]:
    """Return a label for each cost centre, such as ``CC-4110 Imaging research``, by code.

    Without ``codes``, all cost centres are returned. If a code is not in the directory, the code is the
    label.
    """
    rows = CostCentre.objects.all()
    wanted = None if codes is None else {code for code in codes if code}
    if wanted is not None:
        rows = rows.filter(code__in=wanted)
    labels = {row.code: str(row) for row in rows}
    return {code: code for code in wanted or ()} | labels


def labels_at_close(month: date, codes: Iterable[str]) -> dict[str, str]:
    """Return the labels of cost centres by code, with the names that they had when ``month`` was closed."""
    wanted = {code for code in codes if code}
    rows = CostCentreStatement.objects.filter(statement__month=month, cost_centre__in=wanted)
    labels = {code: f"{code} {name}".rstrip() for code, name in rows.values_list("cost_centre", "name")}
    return {code: code for code in wanted} | labels
