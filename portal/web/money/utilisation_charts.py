"""The charts of the utilisation page: each a Plotly figure, the table that says the same, and the raw rows of its CSV."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from portal import policy
from portal.models import User
from portal.templatetags.gpupool import duration, grouped, money, percent
from scheduler.models import Pool, Team
from telemetry import reads

DIMENSIONS = (
    ("team", "Team"),
    ("project", "Project"),
    ("user", "Person"),
    ("type", "Workload type"),
    ("model", "Model"),
    ("host", "Host"),
    ("gpu", "GPU"),
)
ANONYMOUS_DIMENSIONS = {
    "model",
    "host",
    "gpu",
    "type",
    "team",
}  # sums that are no secret among those who share a pool
WATERFALL_BUCKETS = {
    "unhealthy": ("Unhealthy", "host or GPU out of service", "bad"),
    "maintenance": ("Maintenance", "announced windows", "rest"),
    "unallocated": ("Unallocated", "nobody held it", "rest"),
    "reserved_unused": ("Reserved, unused", "booked, nothing ran", "rest"),
    "lost": ("Lost", "work undone by a preemption or by hardware", "rest"),
    "unmeasured": ("Held, not measured", "no sample speaks for it", "rest"),
    "empty": ("Held, empty", "no process on it", "rest"),
    "idle": ("Held, idle", "a process there, under 5 % busy", "rest"),
    "inefficient": ("Held, inefficient", "busy, little SM or tensor work", "use-3"),
    "productive": ("Productive", "what is left", "use-5"),
}
WEEKDAY_LABELS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MAX_BARS = 30


@dataclass
class UtilisationQuery:
    """What the page asks. ``mine``: the teams whose projects and people the viewer may see by name; None: all."""

    filters: reads.UsageFilters
    mine: list[int] | None
    viewer: User
    dimension: str
    pools: list[Pool]
    teams: list[Team]
    models: list[str]
    now: datetime
    currency: str

    @cached_property
    def usage_rows(self) -> reads.UsageRows:
        """The rows that the charts of the filters as they are share."""
        return reads.UsageRows(self.filters)

    def filters_for_names(self, dimension: str) -> reads.UsageFilters:
        """The filters for an answer with names in it: only what the viewer's teams did, where that matters."""
        if self.mine is None or dimension in ANONYMOUS_DIMENSIONS:
            return self.filters
        return dataclasses.replace(self.filters, teams=self.mine)

    @cached_property
    def waterfall(self) -> reads.UsageWaterfall:
        return reads.usage_waterfall(self.filters, self.usage_rows)

    @cached_property
    def saving(self) -> reads.PoolingSavings:
        return reads.pooling_savings(self.filters, self.usage_rows)

    @cached_property
    def waits_by_size(self) -> list[reads.GroupWaitTimes]:
        return reads.wait_times("size", self.filters)


@dataclass
class UtilisationChart:
    title: str
    hint: str
    figure: dict[str, Any]
    columns: list[dict[str, Any]]
    rows: list[list[Any]]  # as people read them
    raw: list[list[Any]] = field(default_factory=list)  # as programs do
    height: int = 280
    empty: str = "Nothing in this period."

    @property
    def table(self) -> dict[str, Any]:
        return {
            "caption": f"{self.title}, {self.hint}",
            "columns": self.columns,
            "rows": self.rows,
            "empty": self.empty,
        }


def _columns(first: str, *numeric: str) -> list[dict[str, Any]]:
    return [{"label": first}, *({"label": label, "numeric": True} for label in numeric)]


# -- where the hours go ------------------------------------------------------------------------------------------------


def _waterfall_chart(question: UtilisationQuery) -> UtilisationChart:
    fall = question.waterfall
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
    with_cost = policy.sees_owner_cost(question.viewer)

    def cost(amount: Decimal) -> str | None:
        return money(amount, question.currency) if with_cost else None

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
        "Where the GPU-hours go",
        hint,
        figure,
        _columns("Bucket", "GPU-hours", "Share", f"Cost, {question.currency}")[: 4 if with_cost else 3],
        rows if with_cost else [row[:3] for row in rows],
        raw,
        360,
    )


# -- use ---------------------------------------------------------------------------------------------------------------


def _use_over_time_chart(question: UtilisationQuery) -> UtilisationChart:
    dimension = "team"
    series = reads.usage_over_time(question.filters, dimension=dimension, reads=question.usage_rows)
    colours = {
        team.pk: f"team-{team.colour}" for team in Team.objects.filter(pk__in=[line.key for line in series])
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
        _columns("Team", "Mean GPUs", "Highest"),
        totals,
        raw,
    )


def _use_by_chart(question: UtilisationQuery) -> UtilisationChart:
    dimension = question.dimension
    filters = question.filters_for_names(dimension)
    table = reads.usage_by(dimension, filters, question.usage_rows if filters is question.filters else None)
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
            money(group.charged, question.currency),
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
        _columns(words, *labels),
        rows,
        raw,
        360,
    )


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


def _current_use_chart(question: UtilisationQuery) -> UtilisationChart:
    pool = question.filters.pool
    allowed = {host.pk for host in policy.visible_hosts(question.viewer)}
    units = [unit for unit in reads.live_unit_readings(question.now, pool=pool) if unit.host in allowed]
    if question.filters.model:
        units = [unit for unit in units if unit.model == question.filters.model]
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
        _columns("GPU", "Busy", "SM active", "Memory", "Power"),
        rows,
        raw,
        220,
        "No GPU reports.",
    )


def _weekday_hour_chart(question: UtilisationQuery) -> UtilisationChart:
    grid = reads.utilisation_heatmap(question.filters, question.usage_rows)
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
    columns = _columns("Day", *(f"{hour:02d}" for hour in range(0, 24, 3)))
    return UtilisationChart(
        "When GPUs work",
        "mean busy share of held GPUs, by weekday and hour in UTC",
        figure,
        columns,
        rows,
        raw,
        220,
    )


# -- what pooling saves, and waits -------------------------------------------------------------------------------------


def _pooling_saving_chart(question: UtilisationQuery) -> UtilisationChart:
    saving = question.saving
    names = [
        *(name for _, name, _ in saving.by_team),
        "Dedicated: their sum",
        "Pooled: all together",
        "GPUs there are",
    ]
    values = [*(value for _, _, value in saving.by_team), saving.dedicated, saving.pooled, saving.owned]
    colours = [*("rest" for _ in saving.by_team), "rest", "accent", "ink"]
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": [round(value, 2) for value in values],
                "meta": {"colour": colours},
            }
        ],
        "layout": {
            "showlegend": False,
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "GPUs"}},
            "bargap": 0.3,
        },
    }
    rows = [[name, grouped(value, 1)] for name, value in zip(names, values, strict=True)]
    rows.append(["GPUs fewer", grouped(saving.gpus, 1)])
    if saving.per_month is not None:
        rows.append([f"A month, {question.currency}", money(saving.per_month, question.currency)])
    raw = [[name, value] for name, value in zip(names, values, strict=True)]
    hint = "what each team would need alone to have enough 95 % of the time, against all together"
    return UtilisationChart("Pooled or dedicated", hint, figure, _columns("Who", "GPUs"), rows, raw)


MEDIAN_WAIT_LABEL, P95_WAIT_LABEL = (
    "Half wait at most",
    "19 of 20 wait at most",
)  # the 50th and the 95th percentile


def _waiting_time_chart(question: UtilisationQuery) -> UtilisationChart:
    rows = question.waits_by_size
    figure = {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": [f"{row.name} GPU" for row in rows],
                "y": [_minutes(value) for value in values],
                "meta": {"colour": colour},
            }
            for name, values, colour in (
                (MEDIAN_WAIT_LABEL, [row.p50 for row in rows], "use-3"),
                (P95_WAIT_LABEL, [row.p95 for row in rows], "use-5"),
            )
        ],
        "layout": {"yaxis": {"title": {"text": "minutes"}}, "barmode": "group"},
    }
    table = [
        [
            f"{row.name} GPU",
            row.started,
            duration(row.p50),
            duration(row.p95),
            duration(row.longest),
            row.still_waiting,
            row.preemptions,
        ]
        for row in rows
    ]
    raw = [
        [row.name, row.started, row.p50, row.p95, row.longest, row.still_waiting, row.preemptions]
        for row in rows
    ]
    labels = ("Started", MEDIAN_WAIT_LABEL, P95_WAIT_LABEL, "Longest", "Still wait", "Preemptions")
    return UtilisationChart(
        "How long people wait",
        "from submission to the first GPU, by size",
        figure,
        _columns("Size", *labels),
        table,
        raw,
    )


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 2)


def overall_wait(rows: list[reads.GroupWaitTimes]) -> tuple[float | None, float | None]:
    """What half and what 19 of 20 wait at most, of the size that most workloads have: what most people meet."""
    most = max(rows, key=lambda row: row.started, default=None)
    return (most.p50, most.p95) if most and most.started else (None, None)


CHARTS: dict[str, Callable[[UtilisationQuery], UtilisationChart]] = {
    "waterfall": _waterfall_chart,
    "use-over-time": _use_over_time_chart,
    "use-by": _use_by_chart,
    "now": _current_use_chart,
    "rhythm": _weekday_hour_chart,
    "saving": _pooling_saving_chart,
    "waits": _waiting_time_chart,
}
CHART_ORDER = tuple(CHARTS)
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


def make_chart(name: str, question: UtilisationQuery) -> UtilisationChart:
    """One chart by its name in ORDER."""
    return CHARTS[name](question)
