"""Return the answers of the utilisation page as rows: the CSV files of the page and the JSON of the API.

A chart of the page and its answer read the same results of ``UtilisationScope``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from portal import policy
from portal.reads.utilisation import fleet_map
from portal.reads.utilisation.figures import key_figures
from portal.reads.utilisation.query import UtilisationScope
from portal.reads.utilisation.who_can_change import who_can_change
from telemetry.reads.live_readings import LiveUnitReading, live_unit_readings
from telemetry.reads.usage_over_time import default_step, held_over_time, step_edges
from telemetry.reads.utilisation.heatmap import utilisation_heatmap
from telemetry.reads.utilisation.waste import WASTE_STEPS
from telemetry.reads.wait_times import WAIT_GROUPS

WEEKDAY_LABELS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOUR_SECONDS = 3600
FORECAST_SHOWN_BEFORE = timedelta(weeks=8)
Rows = list[list[Any]]


@dataclass(frozen=True)
class AnswerKind:
    """One answer of the page: its columns, and the function that returns its rows."""

    columns: tuple[str, ...]
    rows: Callable[[UtilisationScope], Rows]


def live_units(scope: UtilisationScope) -> list[LiveUnitReading]:
    """Return the last readings of the units on hosts that the viewer may see."""
    pools = {pool.slug for pool in scope.pools}
    units = live_unit_readings(scope.now, pool=scope.filters.pool)
    return [unit for unit in units if unit.pool_slug in pools and scope.filters.model in ("", unit.model)]


def _waterfall(scope: UtilisationScope) -> Rows:
    fall, with_cost = scope.waterfall, policy.sees_owner_cost(scope.viewer)
    before = scope.waterfall_before
    shares = {step.key: step.share for step in before.steps} if before else {}
    whole = 1.0 if fall.gpu_hours else None
    cost = fall.cost if with_cost else None
    capacity = ["capacity", fall.gpu_hours, whole, 1.0 if before else None, cost, None]
    who = who_can_change(scope)
    steps = [
        [
            *(step.key, step.gpu_hours, step.share, shares.get(step.key, 0.0) if before else None),
            *(step.cost if with_cost else None, str(who[step.key])),
        ]
        for step in fall.steps
    ]
    return [capacity, *steps]


def _figures(scope: UtilisationScope) -> Rows:
    return [[figure.name, figure.value, figure.before, figure.unit] for figure in key_figures(scope).values()]


def _waste(scope: UtilisationScope) -> Rows:
    """Return the rows that the viewer may see by name, with their rank among all rows.

    The rows that the page lists have a trend: with the parameter ``shown``, all of them.
    """
    names = scope.names
    with_cost = policy.sees_owner_cost(scope.viewer)
    found = []
    for rank, row in enumerate(scope.waste, start=1):
        if name := names.get(row.work):
            team = name.team.name if name.team else ""
            hours = [row.hours[step] for step in WASTE_STEPS]
            cost = row.cost if with_cost else None
            found.append(
                [
                    *(rank, name.name, team, name.project, name.person, *hours),
                    *((name.units, row.used_units(name.units)) if name.units else (None, None)),
                    *(row.busy, row.sm_active, cost, scope.trends.get(row.work)),
                ]
            )
    return found


def _use_over_time(scope: UtilisationScope) -> Rows:
    return [
        [start.isoformat(), line.name, held, busy]
        for line in scope.series
        for start, held, busy in zip(line.starts, line.held, line.busy, strict=True)
    ]


def _levels(scope: UtilisationScope) -> Rows:
    """Return the lines of the chart of use over time that are not of a team."""
    step = default_step(scope.filters)
    edges = step_edges(scope.filters, step, scope.period.zone)
    owned = scope.saving.gpus_owned.per_step(edges)
    guaranteed = sum(group.guarantee or 0.0 for group in scope.use_by_team.groups)
    before: list[float] = []
    if scope.rows_before is not None:
        edges_before = step_edges(scope.rows_before.filters, step, scope.period.zone)
        found = held_over_time(scope.rows_before, edges_before, None)
        before = found[0][2] if found else [0.0] * (len(edges_before) - 1)
    return [
        [datetime.fromtimestamp(start, UTC).isoformat(), gpus, guaranteed, held]
        for start, gpus, held in zip_longest(edges[:-1], owned, before[: len(owned)])
    ]


def _demand(scope: UtilisationScope) -> Rows:
    demand, zone = scope.demand, scope.period.zone
    starts = demand.starts.tolist()
    owned = scope.saving.gpus_owned.per_step([*starts, starts[-1] + HOUR_SECONDS]) if starts else []
    rows = zip(starts, demand.held.tolist(), demand.waiting.tolist(), owned, strict=True)
    return [
        [datetime.fromtimestamp(start, zone).isoformat(), held, waiting, capacity]
        for start, held, waiting, capacity in rows
    ]


def _demand_forecast(scope: UtilisationScope) -> Rows:
    outlook = scope.outlook
    rows: Rows = []
    for part in outlook.parts:
        names = [part.pool.slug, part.model]
        for day in sorted(part.known):
            if day >= outlook.first - FORECAST_SHOWN_BEFORE:
                rows.append([day.isoformat(), *names, "known", part.known[day], None, None, part.gpus])
        rows += [
            [each.day.isoformat(), *names, "forecast", each.expected, each.low, each.high, part.gpus]
            for each in part.forecast.days
        ]
    return rows


def _right_size(scope: UtilisationScope) -> Rows:
    return [
        [
            *(each.sizing.name, each.project.team.name, each.project.name, each.person, each.headline),
            *(each.sizing.runs, each.sizing.advised_runs, each.sizing.held_hours, each.sizing.saved_hours),
            *(each.saved, each.saved_per_month, each.currency),
        ]
        for each in scope.sizings
    ]


def _busy_and_sm(scope: UtilisationScope) -> Rows:
    rows = scope.held_longest
    names = scope.names
    return [
        [
            name.name,
            getattr(name.team, "name", ""),
            name.person,
            row.busy,
            row.sm_active,
            row.held_hours,
            row.wasted_hours,
        ]
        for row in rows
        if (name := names.get(row.work))
    ]


def _use_by(scope: UtilisationScope) -> Rows:
    before = scope.held_before
    return [
        [
            group.name,
            group.mean_gpus,
            None if before is None else before.get(group.key, 0.0),
            group.guarantee,
            group.borrowed,
            group.utilisation,
            group.held,
            group.known,
            group.used,
            group.busy,
            group.idle,
            group.empty,
            group.coverage,
            group.energy_kwh,
            group.charged if scope.sees_charged(group.key) else None,
        ]
        for group in scope.use_by.groups
    ]


def _now(scope: UtilisationScope) -> Rows:
    return [
        [
            unit.host_name,
            unit.gpu_index,
            unit.profile,
            unit.at.isoformat() if unit.at else None,
            unit.utilisation,
            unit.sm_active,
            unit.memory_used_mib,
            unit.power_w,
            unit.simulated,
        ]
        for unit in live_units(scope)
    ]


def _rhythm(scope: UtilisationScope) -> Rows:
    zone = scope.period.zone
    grid = utilisation_heatmap(scope.filters, scope.usage_rows, zone)
    return [
        [day, hour, str(zone), share]
        for day, line in zip(WEEKDAY_LABELS, grid, strict=True)
        for hour, share in enumerate(line)
    ]


def _saving(scope: UtilisationScope) -> Rows:
    saving = scope.saving
    return [
        *([name, need] for _, name, need in saving.by_team),
        ["dedicated", saving.dedicated],
        ["pooled", saving.pooled],
        ["owned", saving.owned],
        ["saved", saving.gpus],
    ]


def _waits(scope: UtilisationScope) -> Rows:
    return [
        [
            by,
            row.name,
            row.started,
            row.p10,
            row.p50,
            row.p90,
            row.p95,
            row.longest,
            row.still_waiting,
            row.preemptions,
        ]
        for by in WAIT_GROUPS
        for row in scope.waits_by[by]
    ]


def _events(scope: UtilisationScope) -> Rows:
    return [
        [
            event.kind,
            event.start.isoformat(),
            event.end.isoformat() if event.end else None,
            event.subject,
            event.detail,
            event.value,
            event.count,
        ]
        for event in scope.events
    ]


def fleet_rows(scope: UtilisationScope, first: str = "", last: str = "") -> Rows:
    """Return the busy share of the hosts from ``first`` to ``last``; of all hosts without names."""
    grid = fleet_map.fleet_map(scope, first, last)
    return [
        [row.first, row.last, start.isoformat(), value]
        for row in grid.rows
        for start, value in zip(grid.starts, row.busy, strict=True)
    ]


ANSWERS: dict[str, AnswerKind] = {
    "waterfall": AnswerKind(
        ("bucket", "gpu_hours", "share", "share_before", "cost", "who_can_change"), _waterfall
    ),
    "waste": AnswerKind(
        (
            *("rank", "name", "team", "project", "person", *WASTE_STEPS),
            *("asked_gpus", "used_gpus", "utilisation", "sm_active", "cost", "trend"),
        ),
        _waste,
    ),
    "use-over-time": AnswerKind(("start", "team", "held_gpus", "used_gpus"), _use_over_time),
    "levels": AnswerKind(("start", "capacity_gpus", "guaranteed_gpus", "held_gpus_before"), _levels),
    "events": AnswerKind(("kind", "start", "end", "subject", "detail", "value", "count"), _events),
    "fleet": AnswerKind(("host", "last_host", "start", "utilisation_percent"), fleet_rows),
    "demand": AnswerKind(("start", "held_gpus", "waiting_gpus", "capacity_gpus"), _demand),
    "demand-forecast": AnswerKind(
        ("day", "pool", "model", "kind", "gpu_hours", "low", "high", "gpus"), _demand_forecast
    ),
    "right-sizing": AnswerKind(
        (
            *("work", "team", "project", "person", "advice", "runs", "advised_runs", "held_hours"),
            *("saved_hours", "saved", "saved_per_month", "currency"),
        ),
        _right_size,
    ),
    "busy-and-sm": AnswerKind(
        ("name", "team", "person", "utilisation", "sm_active", "held_hours", "wasted_hours"), _busy_and_sm
    ),
    "use-by": AnswerKind(
        (
            *(
                "name",
                "mean_gpus",
                "mean_gpus_before",
                "guarantee",
                "borrowed_hours",
                "utilisation",
                "held_hours",
                "known_hours",
            ),
            *("used_hours", "busy_hours", "idle_hours", "empty_hours", "coverage", "energy_kwh", "charged"),
        ),
        _use_by,
    ),
    "now": AnswerKind(
        (
            *("host", "gpu", "profile", "at", "utilisation", "sm_active", "memory_used_mib", "power_w"),
            "simulated",
        ),
        _now,
    ),
    "rhythm": AnswerKind(("day", "hour", "zone", "utilisation"), _rhythm),
    "saving": AnswerKind(("who", "gpus"), _saving),
    "waits": AnswerKind(
        (
            *("by", "name", "started", "p10_seconds", "p50_seconds", "p90_seconds", "p95_seconds"),
            *("longest_seconds", "still_waiting", "preemptions"),
        ),
        _waits,
    ),
    "figures": AnswerKind(("figure", "value", "value_before", "unit"), _figures),
}
