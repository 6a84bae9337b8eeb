"""Build the chart of held GPUs over time, with marks of events that changed the use or the capacity."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.urls import reverse

from portal.web.components.quantities import grouped
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.formatting import date_and_time, window
from portal.wording.pages.money import utilisation_texts
from portal.wording.utilisation import findings
from portal.wording.utilisation.events import EVENT_LABELS, event_text
from scheduler.models import Team
from telemetry.reads.usage_over_time import default_step, held_over_time, step_edges
from telemetry.reads.utilisation.events import UseEvent

MAX_MARKS = 40
MAX_LABELLED_MARKS = 4
LASTING = ("maintenance", "drain", "gap")
EVENT_SYMBOLS = {
    "price": "diamond",
    "maintenance": "square",
    "drain": "triangle-down",
    "gap": "x",
    "month": "circle",
    "size": "star",
}


# Not split: the function builds the figure and the table of one chart from the same rows.
def use_over_time_chart(query: UtilisationQuery) -> UtilisationChart:
    step = default_step(query.filters)
    series = query.series
    teams = query.held_teams
    starts = series[0].starts if series else []
    shown_times = [local_text(start, query) for start in starts]
    addresses = [query.address_of_step(start, step) for start in starts]
    owned = _capacity(query, len(starts), step) if series else []
    levels = _levels(query, owned) if series else []
    figure = {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "held",
                "line": {"shape": "hv", "width": 1},
                "name": line.name,
                "x": shown_times,
                "y": [round(held, 3) for held in line.held],
                "customdata": addresses,
                "meta": {"colour": f"team-{teams[line.key].colour}" if line.key in teams else "rest"},
                "hovertemplate": "%{y:.1f} GPUs<extra>" + line.name + "</extra>",
            }
            for line in series
        ]
        + _capacity_line(shown_times, owned)
        + _held_before(query, shown_times, step)
        + _event_marks(query),
        "layout": {
            "yaxis": {"title": {"text": "GPUs held"}, "rangemode": "tozero"},
            "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False},
            "xaxis": {"type": "date"},
            "hovermode": "x unified",
            "shapes": [*_event_shapes(query), *(line for line, _ in levels if line)],
            "annotations": [*_band_labels(series, teams), *(label for _, label in levels)],
            "margin": {"l": 48, "r": 48, "t": 8, "b": 32},
            "meta": brushed(query, starts, query.address(start="FROM", end="UNTIL")),
        },
    }
    totals: list[list[Any]] = [
        [
            {"text": line.name, "url": query.address(team=teams[line.key].slug)}
            if _is_shown(query, line.key)
            else line.name,
            grouped(sum(line.held) / len(line.held), 1) if line.held else "0",
            grouped(max(line.held, default=0), 1),
        ]
        for line in series
    ]
    together = [sum(values) for values in zip(*(line.held for line in series), strict=True)]
    return UtilisationChart(
        "Use over time",
        utilisation_texts.HELD_HINT.format(hours=step / timedelta(hours=1)),
        figure,
        csv_columns_of("Team", "Mean GPUs", "Highest"),
        totals,
        finding=findings.held_finding(together, query.saving.owned, step / timedelta(hours=1)),
        opens=utilisation_texts.OPENS_STEP,
        width="w5",
        more_table=_event_table(query),
    )


def brushed(query: UtilisationQuery, starts: list[datetime], address: str) -> dict[str, Any]:
    """Return the times of the steps and the address of a period, from which charts.js handles a drag."""
    start, end = query.filters.start, query.filters.end
    return {
        "times": [start.isoformat(), *(at.isoformat() for at in starts[1:]), end.isoformat()],
        "shown": [*(local_text(at, query) for at in starts or [start]), local_text(end, query)],
        "period": address,
    }


def _event_marks(query: UtilisationQuery) -> list[dict[str, Any]]:
    """Return a mark for each event at the top of the chart. A click opens the rows behind the event."""
    events = query.events[:MAX_MARKS]
    if not events:
        return []
    starts = [max(event.start, query.filters.start) for event in events]
    return [
        {
            "type": "scatter",
            "mode": "markers+text" if len(events) <= MAX_LABELLED_MARKS else "markers",
            "name": utilisation_texts.EVENTS_TRACE,
            "yaxis": "y2",
            "x": [local_text(at, query) for at in starts],
            "y": [0.97] * len(events),
            "text": [EVENT_LABELS[event.kind] for event in events],
            "textposition": "bottom right",
            "cliponaxis": False,
            "customdata": [event_address(query, event) for event in events],
            "hovertext": [
                f"{event_text(event, query.currency)}, {_event_time(event, query)}" for event in events
            ],
            "hovertemplate": "%{hovertext}<extra></extra>",
            "marker": {"symbol": [EVENT_SYMBOLS[event.kind] for event in events], "size": 9},
            "meta": {"colour": "ink"},
        }
    ]


def _event_shapes(query: UtilisationQuery) -> list[dict[str, Any]]:
    """Return a band for each event that lasts, and a dotted line for each other one."""
    shapes: list[dict[str, Any]] = []
    for event in query.events[:MAX_MARKS]:
        start = max(event.start, query.filters.start)
        end = None if event.end is None else min(event.end, query.filters.end)
        position = {"xref": "x", "x0": local_text(start, query), "yref": "paper", "y0": 0, "y1": 1}
        if event.kind in LASTING and end is None:
            end = min(query.now, query.filters.end)
        if end is not None and end > start:
            band = {"type": "rect", "name": "rest", "opacity": 0.35, "layer": "below", "line": {"width": 0}}
            shapes.append({**position, **band, "x1": local_text(end, query)})
        else:
            line = {"type": "line", "name": "ink", "line": {"width": 1, "dash": "dot"}}
            shapes.append({**position, **line, "x1": local_text(start, query)})
    return shapes


def _event_table(query: UtilisationQuery) -> dict[str, Any] | None:
    """Return the table of all events of the period; None without an event."""
    rows = []
    for event in query.events:
        text, address = event_text(event, query.currency), event_address(query, event)
        rows.append([{"text": text, "url": address} if address else text, _event_time(event, query)])
    labels = utilisation_texts.EVENT_COLUMNS
    columns = [{"label": label} for label in labels]
    return {"caption": utilisation_texts.EVENTS_TITLE, "columns": columns, "rows": rows} if rows else None


def _event_time(event: UseEvent, query: UtilisationQuery) -> str:
    if event.end is not None:
        return window(event.start, event.end)
    text = date_and_time(event.start)
    return utilisation_texts.SINCE.format(start=text) if event.kind in LASTING else text


def event_address(query: UtilisationQuery, event: UseEvent) -> str:
    """Return the address of the page with the rows of an event; "" if there is none."""
    if event.kind in ("maintenance", "drain", "gap"):
        return reverse("host", args=[event.subject])
    if event.kind == "price":
        return reverse("rate-card")
    if event.kind == "month":
        return f"{reverse('chargeback')}?month={event.subject}"
    slugs = {pool.name: pool.slug for pool in query.pools}
    return query.address(pool=slugs[event.subject]) if event.subject in slugs else ""


def _held_before(query: UtilisationQuery, times: list[str], step: timedelta) -> list[dict[str, Any]]:
    """Return a dotted line of the GPUs that were held in the compared period, over the times of this one."""
    reads = query.rows_before
    if reads is None or not times:
        return []
    series = held_over_time(reads, step_edges(reads.filters, step, query.period.zone), None)
    if not series:
        return []
    held = series[0][2][: len(times)]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": utilisation_texts.BEFORE_TRACE,
            "x": times[: len(held)],
            "y": [round(value, 3) for value in held],
            "line": {"shape": "hv", "width": 1.25, "dash": "dot"},
            "meta": {"colour": "ink"},
            "hovertemplate": "%{y:.1f} GPUs<extra>" + utilisation_texts.BEFORE_TRACE + "</extra>",
        }
    ]


def _capacity(query: UtilisationQuery, starts: int, step: timedelta) -> list[float]:
    """Return the mean number of GPUs of each step.

    The GPUs of the pool are the capacity of everybody, so a choice of teams or work has no line.
    """
    filters = query.filters
    if filters.team or filters.project or filters.user or filters.type:
        return []
    return query.saving.gpus_owned.per_step(step_edges(filters, step, query.period.zone)[: starts + 1])


def _capacity_line(times: list[str], owned: list[float]) -> list[dict[str, Any]]:
    if not any(owned):
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": utilisation_texts.CAPACITY_TRACE,
            "x": times,
            "y": [round(gpus, 3) for gpus in owned],
            "line": {"shape": "hv", "width": 1.25},
            "showlegend": False,
            "meta": {"colour": "ink"},
            "hovertemplate": "%{y:.1f} GPUs<extra>" + utilisation_texts.CAPACITY_TRACE + "</extra>",
        }
    ]


def _levels(
    query: UtilisationQuery, owned: list[float]
) -> list[tuple[dict[str, Any] | None, dict[str, Any]]]:
    """Return the line of guarantees, and the labels of both lines. The capacity has a trace of its own."""
    if not owned:
        return []
    guaranteed = sum(group.guarantee or 0.0 for group in query.use_by_team.groups)
    line = {"xref": "paper", "x0": 0, "x1": 1, "y0": guaranteed, "y1": guaranteed}
    dashed = {"type": "line", "name": "ink", "line": {"width": 1.25, "dash": "dash"}, **line}
    at_start, at_end = {"x": 0, "xanchor": "left"}, {"x": 1, "xanchor": "right"}
    levels = [
        (None, owned[-1], utilisation_texts.CAPACITY_LABEL, at_end),
        (dashed, guaranteed, utilisation_texts.GUARANTEED_LABEL, at_start),
    ]
    return [
        (
            shape,
            {
                "xref": "paper",
                "y": value,
                "yanchor": "bottom",
                **place,
                "text": text.format(gpus=grouped(value)),
                "showarrow": False,
            },
        )
        for shape, value, text, place in levels
        if value
    ]


def local_text(at: datetime, query: UtilisationQuery) -> str:
    """Return a time in the zone of the page, as charts take it."""
    return f"{at.astimezone(query.period.zone):%Y-%m-%dT%H:%M}"


def _is_shown(query: UtilisationQuery, team: int) -> bool:
    return any(shown.pk == team for shown in query.teams)


def _band_labels(series: list[Any], teams: dict[int, Team]) -> list[dict[str, Any]]:
    """Return a label with the tag of each team, beside the end of its band."""
    labels, below = [], 0.0
    for line in series:
        height = line.held[-1] if line.held else 0.0
        if height >= 0.05 and line.key in teams:
            labels.append(
                {
                    "x": 1,
                    "xref": "paper",
                    "y": below + height / 2,
                    "text": teams[line.key].tag,
                    "xanchor": "left",
                    "xshift": 4,
                    "showarrow": False,
                }
            )
        below += height
    return labels
