"""Build the charts of the utilisation page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from portal import policy
from portal.reads.utilisation.answers import WEEKDAY_LABELS, live_units
from portal.reads.utilisation.period import zone_name
from portal.reads.utilisation.query import DIMENSIONS
from portal.web.components.quantities import grouped, money, percent
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.demand_chart import demand_chart
from portal.web.money.utilisation.fleet_chart import fleet_chart
from portal.web.money.utilisation.forecast_chart import forecast_chart
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.sizing_chart import sizing_chart
from portal.web.money.utilisation.time_chart import use_over_time_chart
from portal.web.money.utilisation.waiting_charts import pooling_saving_chart, waiting_time_chart
from portal.web.money.utilisation.work_chart import busy_against_sm_chart
from portal.wording.pages.money import money_pages, utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.usage_by_group import GroupUsage
from telemetry.reads.utilisation.heatmap import utilisation_heatmap

MAX_BARS = 30
MAX_LABELLED_CELLS = 64


# Not split: the function builds the figure and the table of one chart from the same rows.
def _use_by_chart(query: UtilisationQuery) -> UtilisationChart:
    dimension = query.dimension
    table = query.use_by
    groups = table.groups
    shown = groups[:MAX_BARS]
    words = dict(DIMENSIONS)[dimension]
    addresses = group_addresses(query, groups)
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "busy",
            "y": [group.name or "none" for group in shown],
            "x": [None if group.used is None else round(group.used / table.hours, 3) for group in shown],
            "customdata": addresses[:MAX_BARS],
            "text": [percent(group.utilisation) for group in shown],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{x:,.1f} GPUs busy<extra></extra>",
            "meta": {"colour": "use-5"},
        },
        {
            "type": "bar",
            "orientation": "h",
            "name": "held, not busy",
            "y": [group.name or "none" for group in shown],
            "x": [round(max(0.0, (group.held - (group.used or 0.0))) / table.hours, 3) for group in shown],
            "customdata": addresses[:MAX_BARS],
            "text": [grouped(group.mean_gpus, 1) for group in shown],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{x:,.1f} GPUs held, not busy<extra></extra>",
            "meta": {"colour": "rest"},
        },
    ]
    if dimension == "team":
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "guarantee",
                "y": [group.name for group in shown],
                "x": [group.guarantee for group in shown],
                "hovertemplate": "%{y}: %{x:,.1f} GPUs guaranteed<extra></extra>",
                "marker": {"symbol": "line-ns-open", "size": 16, "line": {"width": 2}},
                "meta": {"colour": "ink"},
            }
        )
    figure = {
        "data": data,
        "layout": {
            "barmode": "stack",
            "hovermode": "closest",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "mean GPUs"}},
            "bargap": 0.3,
        },
    }
    rows: list[list[Any]] = [
        [
            {"text": group.name or "none", "url": address} if address else group.name or "none",
            grouped(group.mean_gpus, 2),
            "–" if group.guarantee is None else grouped(group.guarantee, 1),
            "–" if group.borrowed is None else grouped(group.borrowed / table.hours, 2),
            percent(group.utilisation),
            grouped(group.held, 1),
            percent(group.coverage),
            money(group.charged, query.currency),
        ]
        for group, address in zip(groups, addresses, strict=True)
    ]
    labels = ("Mean GPUs", "Guarantee", "Borrowed", "Busy", "GPU-hours", "Coverage", "Charged")
    return UtilisationChart(
        f"Use by {words.lower()}",
        utilisation_texts.USE_BY_HINT,
        figure,
        csv_columns_of(words, *labels),
        rows,
        height=360,
        finding=findings.use_by_finding(groups),
        opens=utilisation_texts.OPENS_ROWS if any(addresses) else "",
    )


def group_addresses(query: UtilisationQuery, groups: list[GroupUsage]) -> list[str]:
    """Return the address of the rows behind each group; "" for a group that the viewer may not open."""
    keys = [group.key for group in groups]
    found = _ADDRESSES[query.dimension](query, keys)
    return [found.get(key, "") for key in keys]


def _project_addresses(query: UtilisationQuery, keys: list[Any]) -> dict[Any, str]:
    rows = policy.visible_projects(query.viewer).filter(pk__in=keys).values_list("pk", "team__slug", "slug")
    return {pk: query.address(project=f"{team}/{slug}", by="user") for pk, team, slug in rows}


def _person_addresses(query: UtilisationQuery, keys: list[Any]) -> dict[Any, str]:
    people = policy.visible_users(query.viewer).filter(pk__in=keys)
    return {pk: query.address(person=name) for pk, name in people.values_list("pk", "username")}


def _host_addresses(query: UtilisationQuery, keys: list[Any]) -> dict[Any, str]:
    column = "pk" if query.dimension == "host" else "gpus"
    hosts = policy.visible_hosts(query.viewer).filter(**{f"{column}__in": keys})
    return {key: reverse("host", args=[name]) for key, name in hosts.values_list(column, "name")}


_ADDRESSES: dict[str, Callable[[UtilisationQuery, list[Any]], dict[Any, str]]] = {
    "team": lambda query, _: {team.pk: query.address(team=team.slug, by="project") for team in query.teams},
    "project": _project_addresses,
    "user": _person_addresses,
    "type": lambda query, keys: {key: query.address(type=key, by="user") for key in keys if key},
    "model": lambda query, _: {
        model: query.address(model=model, by="type" if query.filters.is_long else "host")
        for model in query.models
    },
    "host": _host_addresses,
    "gpu": _host_addresses,
}


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
                "hovertemplate": "%{y} %{x}: %{z:.0%} busy<extra></extra>",
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
    return UtilisationChart(
        "Now, GPU by GPU",
        utilisation_texts.NOW_SIMULATED_HINT if is_simulated else utilisation_texts.NOW_HINT,
        figure,
        csv_columns_of("GPU", "Busy", "SM active", "Memory", "Power"),
        rows,
        height=220,
        empty=money_pages.NO_GPU_REPORTS,
        finding=findings.now_finding([unit.utilisation for unit in whole]),
        opens=utilisation_texts.OPENS_ROWS,
    )


def _weekday_hour_chart(query: UtilisationQuery) -> UtilisationChart:
    zone = query.period.zone
    grid = utilisation_heatmap(query.filters, query.usage_rows, zone)
    addresses = _busiest_hours(query)
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
                "hovertemplate": "%{y} %{x}: %{z:.0%} busy<extra></extra>",
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
        utilisation_texts.RHYTHM_HINT.format(zone=zone_name(zone)),
        figure,
        columns,
        rows,
        height=220,
        finding=findings.rhythm_finding(grid),
        opens=utilisation_texts.OPENS_HOUR,
    )


def _busiest_hours(query: UtilisationQuery) -> list[list[str]]:
    """Return for each weekday and hour the address of the page for the hour with the most use."""
    used: dict[int, float] = defaultdict(float)
    for hour in query.usage_rows.hours_any_dimension():
        used[hour.start] += hour.used or 0.0
    addresses = [[""] * 24 for _ in range(7)]
    for start in sorted(used, key=lambda start: (used[start], start)):
        at = datetime.fromtimestamp(start, query.period.zone)
        addresses[at.weekday()][at.hour] = query.address_of_step(at, timedelta(hours=1))
    return addresses


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
    "use-by": _use_by_chart,
    "now": _current_use_chart,
}
CHART_ORDER = tuple(CHARTS)


def make_chart(name: str, query: UtilisationQuery) -> UtilisationChart:
    """Return the chart with this name. CHART_ORDER contains the names."""
    return CHARTS[name](query)
