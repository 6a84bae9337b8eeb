"""Build the charts of the utilisation page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import reverse

from portal.reads.utilisation.answers import WEEKDAY_LABELS, live_units
from portal.web.components.quantities import percent
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.demand_chart import addresses_of_hours, demand_chart
from portal.web.money.utilisation.fleet_chart import fleet_chart
from portal.web.money.utilisation.forecast_chart import forecast_chart
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.sizing_chart import sizing_chart
from portal.web.money.utilisation.time_chart import use_over_time_chart
from portal.web.money.utilisation.use_chart import use_by_chart
from portal.web.money.utilisation.waiting_charts import pooling_saving_chart, waiting_time_chart
from portal.web.money.utilisation.work_chart import busy_against_sm_chart
from portal.wording.pages.money import drill_texts, money_pages, utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.utilisation.heatmap import busiest_hours, utilisation_heatmap

MAX_LABELLED_CELLS = 64


# Not split: the function builds the figure and the table of one chart from the same rows.
def _current_use_chart(query: UtilisationQuery) -> UtilisationChart:
    units = live_units(query)
    whole = [unit for unit in units if not unit.profile]
    hosts = sorted({unit.host_name for unit in whole})
    width = max((unit.gpu_index for unit in whole), default=-1) + 1
    grid: dict[str, list[float | None]] = {host: [None] * width for host in hosts}
    for unit in whole:
        grid[unit.host_name][unit.gpu_index] = None if unit.utilisation is None else unit.utilisation / 100
    pages = {host: reverse("host", args=[host]) for host in {unit.host_name for unit in units}}
    figure = {
        "data": [
            {
                "type": "heatmap",
                "z": [grid[host] for host in hosts],
                "y": hosts,
                "x": [f"GPU {index}" for index in range(width)],
                "zmin": 0,
                "zmax": 1,
                "meta": {"colour": "use"},
                "xgap": 2,
                "ygap": 2,
                "texttemplate": "%{z:.0%}" if len(hosts) * width <= MAX_LABELLED_CELLS else "",
                "customdata": [[pages[host]] * width for host in hosts],
                "hovertemplate": "%{y} %{x}: utilisation %{z:.0%}<extra></extra>",
                "hoverongaps": False,
            }
        ],
        "layout": {"yaxis": {"autorange": "reversed", "type": "category"}},
    }
    rows: list[list[Any]] = [
        [
            {
                "text": f"{u.host_name} GPU {u.gpu_index}{f', {u.profile}' if u.profile else ''}",
                "url": pages[u.host_name],
            },
            "unknown" if u.utilisation is None else f"{u.utilisation:.0f} %",
            "unknown" if u.sm_active is None else f"{u.sm_active:.0f} %",
            "unknown" if u.memory_used_mib is None else f"{u.memory_used_mib / 1024:.1f} GiB",
            "unknown" if u.power_w is None else f"{u.power_w:.0f} W",
        ]
        for u in units
    ]
    is_simulated = any(unit.simulated for unit in units)
    hint = utilisation_texts.NOW_SIMULATED_HINT if is_simulated else utilisation_texts.NOW_HINT
    return UtilisationChart(
        "Now, GPU by GPU",
        drill_texts.FLEET_OF_ALL_WORK.format(hint=hint) if query.selects_work else hint,
        figure,
        csv_columns_of("GPU", "Utilisation", "SM active", "Memory", "Power"),
        rows,
        height=220,
        empty=money_pages.NO_GPU_REPORTS,
        finding=findings.now_finding([unit.utilisation for unit in whole]),
        opens=utilisation_texts.OPENS_ROWS,
    )


def _weekday_hour_chart(query: UtilisationQuery) -> UtilisationChart:
    zone = query.period.zone
    grid = utilisation_heatmap(query.filters, query.usage_rows, zone)
    addresses = addresses_of_hours(query, busiest_hours(query.usage_rows, zone))
    figure = {
        "data": [
            {
                "type": "heatmap",
                "z": grid,
                "y": list(WEEKDAY_LABELS),
                "x": [f"{hour:02d}:00" for hour in range(24)],
                "zmin": 0,
                "zmax": 1,
                "xgap": 1,
                "ygap": 1,
                "meta": {"colour": "use"},
                "customdata": addresses,
                "hovertemplate": "%{y} %{x}: utilisation %{z:.0%}<extra></extra>",
                "hoverongaps": False,
            }
        ],
        "layout": {
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"tickvals": [f"{hour:02d}:00" for hour in range(0, 24, 3)], "tickangle": 0},
        },
    }
    rows = [
        [day, *(percent(share) if share is not None else "–" for share in line[::3])]
        for day, line in zip(WEEKDAY_LABELS, grid, strict=True)
    ]
    columns = csv_columns_of("Day", *(f"{hour:02d}" for hour in range(0, 24, 3)))
    return UtilisationChart(
        "When GPUs work",
        utilisation_texts.RHYTHM_HINT,
        figure,
        columns,
        rows,
        height=220,
        finding=findings.rhythm_finding(grid),
        opens=utilisation_texts.OPENS_HOUR,
    )


CHARTS: dict[str, Callable[[UtilisationQuery], UtilisationChart]] = {
    "use-over-time": use_over_time_chart,
    "right-sizing": sizing_chart,
    "waits": waiting_time_chart,
    "fleet": fleet_chart,
    "saving": pooling_saving_chart,
    "demand": demand_chart,
    "demand-forecast": forecast_chart,
    "busy-and-sm": busy_against_sm_chart,
    "rhythm": _weekday_hour_chart,
    "use-by": use_by_chart,
    "now": _current_use_chart,
}
CHART_ORDER = tuple(CHARTS)


def make_chart(name: str, query: UtilisationQuery) -> UtilisationChart:
    """Return the chart with this name. CHART_ORDER contains the names."""
    return CHARTS[name](query)
