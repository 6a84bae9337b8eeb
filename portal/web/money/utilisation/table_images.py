"""Build the figures from which the browser makes images of the waterfall and of the list of waste.

Both are tables on the page. Their figures are drawn only for the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from portal.web.components.quantities import grouped
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.pages.money import money_pages, utilisation_texts
from telemetry.reads.utilisation.waste import WASTE_STEPS, WasteRow
from telemetry.reads.waterfall import UsageWaterfall

ROW_PIXELS, FRAME_PIXELS = 28, 120


class StepColour(NamedTuple):
    """The class of the bar of a step in a table, and its colour as charts name colours."""

    bar: str
    chart: str


STEP_COLOURS = {
    "unhealthy": StepColour("unhealthy", "bad"),
    "maintenance": StepColour("faint-row", "rest"),
    "unallocated": StepColour("lost", "rest"),
    "dedicated_unused": StepColour("lost", "rest"),
    "reserved_unused": StepColour("w-reserved", "accent"),
    "lost": StepColour("lost", "rest"),
    "unmeasured": StepColour("faint-row", "rest"),
    "empty": StepColour("w-empty", "w-empty"),
    "idle": StepColour("w-idle", "w-idle"),
    "inefficient": StepColour("w-inefficient", "use-3"),
    "sm_unmeasured": StepColour("use-4", "use-4"),
    "productive": StepColour("productive", "use-5"),
}


def waterfall_image(fall: UsageWaterfall) -> dict[str, Any]:
    """Return bars of the GPU-hours of each step, each from the end of the step before."""
    left, bases = fall.gpu_hours, []
    for step in fall.steps:
        left -= step.gpu_hours
        bases.append(round(max(0.0, left), 3))
    bar = {
        **_bar([money_pages.WATERFALL_STEPS[step.key][0] for step in fall.steps]),
        "base": bases,
        "x": [round(step.gpu_hours, 3) for step in fall.steps],
        "text": [grouped(step.gpu_hours, 1) for step in fall.steps],
        "textposition": "outside",
        "cliponaxis": False,
        "meta": {"colour": [STEP_COLOURS[step.key].chart for step in fall.steps]},
    }
    return _figure([bar], len(fall.steps), "GPU-hours", show_legend=False)


def league_image(query: UtilisationQuery, rows: Sequence[WasteRow], names: Sequence[str]) -> dict[str, Any]:
    """Return the bars of the list of waste, in GPU-hours or in money."""
    is_money = query.unit == "money"
    bars = []
    for step in WASTE_STEPS:
        values = [_part(row, step, is_money=is_money) for row in rows]
        colour = {"colour": STEP_COLOURS[step].chart}
        bars.append(
            {**_bar(names), "name": utilisation_texts.WASTE_LABELS[step], "x": values, "meta": colour}
        )
    return _figure(bars, len(rows), query.currency if is_money else "GPU-hours", show_legend=True)


def _part(row: WasteRow, step: str, *, is_money: bool) -> float:
    share = row.hours[step] / row.wasted_hours if row.wasted_hours else 0.0
    return round(float(row.cost) * share if is_money else row.hours[step], 3)


def _bar(names: Sequence[str]) -> dict[str, Any]:
    return {"type": "bar", "orientation": "h", "y": list(names)}


def _figure(bars: list[dict[str, Any]], rows: int, unit: str, *, show_legend: bool) -> dict[str, Any]:
    return {
        "data": bars,
        "layout": {
            "barmode": "stack",
            "showlegend": show_legend,
            "margin": {"l": 48, "r": 64, "t": 8, "b": 32},
            "height": FRAME_PIXELS + ROW_PIXELS * rows,
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": unit}},
        },
    }
