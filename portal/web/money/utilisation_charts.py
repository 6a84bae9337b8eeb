"""Build the charts of the utilisation page."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from portal import policy
from portal.web.components.quantities import grouped, money, percent
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation_query import DIMENSIONS, UtilisationQuery
from portal.web.money.waiting_charts import pooling_saving_chart, waiting_time_chart
from portal.wording.pages import money_pages
from scheduler.models import Team
from telemetry.reads.heatmap import utilisation_heatmap
from telemetry.reads.live_readings import live_unit_readings
from telemetry.reads.usage_by_group import usage_by
from telemetry.reads.usage_over_time import usage_over_time

WATERFALL_BUCKETS = {
    "unhealthy": ("Unhealthy", "host or GPU out of service", "bad"),
    "maintenance": ("Maintenance", "announced windows", "rest"),
    "unallocated": ("Unallocated", "nobody held it", "rest"),
    "reserved_unused": ("Reserved, unused", "booked, nothing ran", "rest"),
    "lost": ("Lost", "work lost by a preemption or a hardware fault", "rest"),
    "unmeasured": ("Held, not measured", "no sample covers it", "rest"),
    "empty": ("Held, empty", "no process on it", "rest"),
    "idle": ("Held, idle", "a process runs, under 5 % busy", "rest"),
    "inefficient": ("Held, inefficient", "busy, little SM or tensor work", "use-3"),
    "productive": ("Productive", "all other held time", "use-5"),
}
WEEKDAY_LABELS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MAX_BARS = 30
USE_BY_CSV_COLUMNS = (
    "mean_gpus",
    "guarantee",
    "borrowed_hours",
    "utilisation",
    "held_hours",
    "used_hours",
    "busy_hours",
    "idle_hours",
    "empty_hours",
    "coverage",
    "energy_kwh",
    "charged",
)
CSV_COLUMNS: dict[str, tuple[str, ...]] = {
    "waterfall": ("bucket", "gpu_hours", "share", "cost"),
    "use-over-time": ("start", "team", "held_gpus", "busy_gpus"),
    "use-by": ("name", *USE_BY_CSV_COLUMNS),
    "now": (
        "host",
        "gpu",
        "profile",
        "at",
        "utilisation",
        "sm_active",
        "memory_used_mib",
        "power_w",
        "simulated",
    ),
    "rhythm": ("day", "hour_utc", "busy_share"),
    "saving": ("who", "gpus"),
    "waits": (
        "gpus",
        "started",
        "p50_seconds",
        "p95_seconds",
        "longest_seconds",
        "still_waiting",
        "preemptions",
    ),
}


# -- GPU-hours -----------------------------------------------------------------------------------------------


# Not split: the function builds the figure, the table and the CSV of one chart from the same rows.
def _waterfall_chart(query: UtilisationQuery) -> UtilisationChart:
    fall = query.waterfall
    names = ["Capacity", *(WATERFALL_BUCKETS[step.key][0] for step in fall.steps)]
    colours = ["ink", *(WATERFALL_BUCKETS[step.key][2] for step in fall.steps)]
    left, begins, lengths = fall.gpu_hours, [0.0], [fall.gpu_hours]
    for step in fall.steps:
        left -= step.gpu_hours
        begins.append(0.0 if step.key == "productive" else max(0.0, left))
        lengths.append(step.gpu_hours)
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": lengths,
                "base": begins,
                "text": [f"{grouped(length)} h" for length in lengths],
                "textposition": "auto",
                "hovertemplate": "%{y}: %{x:,.0f} GPU-hours<extra></extra>",
                "meta": {"colour": colours},
            }
        ],
        "layout": {
            "showlegend": False,
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "GPU-hours"}},
            "bargap": 0.3,
        },
    }
    with_cost = policy.sees_owner_cost(query.viewer)

    def cost(amount: Decimal) -> str | None:
        return money(amount, query.currency) if with_cost else None

    raw = [["capacity", fall.gpu_hours, 1.0 if fall.gpu_hours else None, fall.cost if with_cost else None]]
    raw += [[step.key, step.gpu_hours, step.share, step.cost if with_cost else None] for step in fall.steps]
    rows = [
        [
            "Capacity",
            grouped(fall.gpu_hours, 1),
            percent(1.0 if fall.gpu_hours else None, 1),
            cost(fall.cost),
        ],
        *(
            [
                f"{WATERFALL_BUCKETS[s.key][0]}: {WATERFALL_BUCKETS[s.key][1]}",
                grouped(s.gpu_hours, 1),
                percent(s.share, 1),
                cost(s.cost),
            ]
            for s in fall.steps
        ),
    ]
    hint = f"GPU-hours, coverage {percent(fall.coverage, 1)}"
    return UtilisationChart(
        money_pages.GPU_HOURS_TITLE,
        hint,
        figure,
        csv_columns_of("Bucket", "GPU-hours", "Share", f"Cost, {query.currency}")[: 4 if with_cost else 3],
        rows if with_cost else [row[:3] for row in rows],
        raw,
        360,
    )


# -- use -----------------------------------------------------------------------------------------------------


def _use_over_time_chart(query: UtilisationQuery) -> UtilisationChart:
    dimension = "team"
    series = usage_over_time(query.filters, dimension=dimension, reads=query.usage_rows)
    colours = {
        team.pk: f"team-{team.colour}"
        for team in Team.with_removed.filter(pk__in=[line.key for line in series])
    }
    figure = {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "held",
                "line": {"shape": "hv", "width": 1},
                "name": line.name,
                "x": [start.isoformat() for start in line.starts],
                "y": [round(held, 3) for held in line.held],
                "meta": {"colour": colours.get(line.key, "rest")},
                "hovertemplate": "%{y:.1f} GPUs<extra>" + line.name + "</extra>",
            }
            for line in series
        ],
        "layout": {
            "yaxis": {"title": {"text": "GPUs held"}, "rangemode": "tozero"},
            "hovermode": "x unified",
        },
    }
    raw = [
        [start.isoformat(), line.name, held, busy]
        for line in series
        for start, held, busy in zip(line.starts, line.held, line.busy, strict=True)
    ]
    totals = [
        [
            line.name,
            grouped(sum(line.held) / len(line.held), 1) if line.held else "0",
            grouped(max(line.held, default=0), 1),
        ]
        for line in series
    ]
    return UtilisationChart(
        "Use over time",
        "mean GPUs held by team, UTC",
        figure,
        csv_columns_of("Team", "Mean GPUs", "Highest"),
        totals,
        raw,
    )


# Not split: the function builds the figure, the table and the CSV of one chart from the same rows.
def _use_by_chart(query: UtilisationQuery) -> UtilisationChart:
    dimension = query.dimension
    filters = query.filters_for_names(dimension)
    table = usage_by(dimension, filters, query.usage_rows if filters is query.filters else None)
    groups = table.groups
    shown = groups[:MAX_BARS]
    words = dict(DIMENSIONS)[dimension]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "busy",
            "y": [group.name or "none" for group in shown],
            "x": [None if group.used is None else round(group.used / table.hours, 3) for group in shown],
            "meta": {"colour": "use-5"},
        },
        {
            "type": "bar",
            "orientation": "h",
            "name": "held, not busy",
            "y": [group.name or "none" for group in shown],
            "x": [round(max(0.0, (group.held - (group.used or 0.0))) / table.hours, 3) for group in shown],
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
                "marker": {"symbol": "line-ns-open", "size": 16, "line": {"width": 2}},
                "meta": {"colour": "ink"},
            }
        )
    figure = {
        "data": data,
        "layout": {
            "barmode": "stack",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "mean GPUs"}},
            "bargap": 0.3,
        },
    }
    rows = [
        [
            group.name or "none",
            grouped(group.mean_gpus, 2),
            "–" if group.guarantee is None else grouped(group.guarantee, 1),
            grouped(group.borrowed / table.hours, 2),
            percent(group.utilisation),
            grouped(group.held, 1),
            percent(group.coverage),
            money(group.charged, query.currency),
        ]
        for group in groups
    ]
    raw = [
        [
            g.name,
            g.mean_gpus,
            g.guarantee,
            g.borrowed,
            g.utilisation,
            g.held,
            g.used,
            g.busy,
            g.idle,
            g.empty,
            g.coverage,
            g.energy_kwh,
            g.charged,
        ]
        for g in groups
    ]
    labels = ("Mean GPUs", "Guarantee", "Borrowed", "Busy", "GPU-hours", "Coverage", "Charged")
    return UtilisationChart(
        f"Use by {words.lower()}",
        "mean GPUs over the period",
        figure,
        csv_columns_of(words, *labels),
        rows,
        raw,
        360,
    )


# Not split: the function builds the figure, the table and the CSV of one chart from the same rows.
def _current_use_chart(query: UtilisationQuery) -> UtilisationChart:
    pool = query.filters.pool
    allowed = {host.pk for host in policy.visible_hosts(query.viewer)}
    units = [unit for unit in live_unit_readings(query.now, pool=pool) if unit.host in allowed]
    if query.filters.model:
        units = [unit for unit in units if unit.model == query.filters.model]
    whole = [unit for unit in units if not unit.profile]
    hosts = sorted({unit.host_name for unit in whole})
    width = max((unit.gpu_index for unit in whole), default=-1) + 1
    grid: dict[str, list[float | None]] = {host: [None] * width for host in hosts}
    for unit in whole:
        grid[unit.host_name][unit.gpu_index] = None if unit.utilisation is None else unit.utilisation / 100
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
                "hovertemplate": "%{y} %{x}: %{z:.0%} busy<extra></extra>",
                "hoverongaps": False,
            }
        ],
        "layout": {"yaxis": {"autorange": "reversed", "type": "category"}},
    }
    rows = [
        [
            f"{u.host_name} GPU {u.gpu_index}{f', {u.profile}' if u.profile else ''}",
            "unknown" if u.utilisation is None else f"{u.utilisation:.0f} %",
            "unknown" if u.sm_active is None else f"{u.sm_active:.0f} %",
            "unknown" if u.memory_used_mib is None else f"{u.memory_used_mib / 1024:.1f} GiB",
            "unknown" if u.power_w is None else f"{u.power_w:.0f} W",
        ]
        for u in units
    ]
    raw = [
        [
            u.host_name,
            u.gpu_index,
            u.profile,
            u.at.isoformat() if u.at else None,
            u.utilisation,
            u.sm_active,
            u.memory_used_mib,
            u.power_w,
            u.simulated,
        ]
        for u in units
    ]
    hint = "busy share at the last reading" + (", simulated hosts" if any(u.simulated for u in units) else "")
    return UtilisationChart(
        "Now, GPU by GPU",
        hint,
        figure,
        csv_columns_of("GPU", "Busy", "SM active", "Memory", "Power"),
        rows,
        raw,
        220,
        money_pages.NO_GPU_REPORTS,
    )


def _weekday_hour_chart(query: UtilisationQuery) -> UtilisationChart:
    grid = utilisation_heatmap(query.filters, query.usage_rows)
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
                "hovertemplate": "%{y} %{x}: %{z:.0%} busy<extra></extra>",
                "hoverongaps": False,
            }
        ],
        "layout": {"yaxis": {"autorange": "reversed", "automargin": True}},
    }
    rows = [
        [day, *(percent(share) if share is not None else "–" for share in line[::3])]
        for day, line in zip(WEEKDAY_LABELS, grid, strict=True)
    ]
    raw = [
        [day, hour, share]
        for day, line in zip(WEEKDAY_LABELS, grid, strict=True)
        for hour, share in enumerate(line)
    ]
    columns = csv_columns_of("Day", *(f"{hour:02d}" for hour in range(0, 24, 3)))
    return UtilisationChart(
        "When GPUs work",
        "mean busy share of held GPUs, by weekday and hour in UTC",
        figure,
        columns,
        rows,
        raw,
        220,
    )


CHARTS: dict[str, Callable[[UtilisationQuery], UtilisationChart]] = {
    "waterfall": _waterfall_chart,
    "use-over-time": _use_over_time_chart,
    "use-by": _use_by_chart,
    "now": _current_use_chart,
    "rhythm": _weekday_hour_chart,
    "saving": pooling_saving_chart,
    "waits": waiting_time_chart,
}
CHART_ORDER = tuple(CHARTS)


def make_chart(name: str, query: UtilisationQuery) -> UtilisationChart:
    """Return the chart with this name. CHART_ORDER contains the names."""
    return CHARTS[name](query)
