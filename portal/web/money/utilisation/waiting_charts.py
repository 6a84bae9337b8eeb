"""Build the charts of pooling savings and waiting times."""

from __future__ import annotations

import math
from typing import Any

from portal.web.components.chart_labels import line_label
from portal.web.components.quantities import grouped, money, short_duration
from portal.web.money.chart import MEDIAN_WAIT_LABEL, P95_WAIT_LABEL, UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.pages.money import money_pages, utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.wait_times import WAIT_GROUPS, GroupWaitTimes

# A log scale has no zero: shorter waits are drawn as one second.
SHORTEST_SECONDS = 1.0
MAX_RANGES = 12
MIN_LABEL_DISTANCE = 0.7  # powers of ten
TICKS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 36_000: "10 h", 259_200: "3 d"}


# Not split: the function builds the figure and the table of one chart from the same rows.
def pooling_saving_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart of the GPUs that teams would need alone and the GPUs that they need together."""
    saving = query.saving
    slugs = {team.pk: team.slug for team in query.teams}
    addresses = [query.address(team=slugs[key]) if key in slugs else "" for key, _, _ in saving.by_team]
    colours = {key: team.colour for key, team in query.held_teams.items()}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [utilisation_texts.ALONE],
            "x": [round(value, 2)],
            "text": [grouped(value, 1)],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "customdata": [address],
            "hovertext": [utilisation_texts.ALONE_HOVER.format(name=name, gpus=grouped(value, 1))],
            "hovertemplate": "%{hovertext}<extra></extra>",
            "meta": {"colour": f"team-{colours[key]}" if key in colours else "rest"},
        }
        for (key, name, value), address in zip(saving.by_team, addresses, strict=True)
    ]
    data.append(
        {
            "type": "bar",
            "orientation": "h",
            "name": utilisation_texts.TOGETHER.lower(),
            "y": [utilisation_texts.TOGETHER],
            "x": [round(saving.pooled, 2)],
            "text": [grouped(saving.pooled, 1)],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "customdata": [query.address(by="team")],
            "hovertext": [utilisation_texts.TOGETHER_HOVER.format(gpus=grouped(saving.pooled, 1))],
            "hovertemplate": "%{hovertext}<extra></extra>",
            "meta": {"colour": "accent"},
        }
    )
    figure = {
        "data": data,
        "layout": {
            "barmode": "stack",
            "hovermode": "closest",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": "GPUs"}, "rangemode": "tozero"},
            "bargap": 0.4,
            "shapes": [
                {
                    "type": "line",
                    "name": "ink",
                    "line": {"width": 2},
                    "x0": saving.owned,
                    "x1": saving.owned,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                }
            ],
            "annotations": [
                {
                    "x": saving.owned,
                    "yref": "paper",
                    "y": 0.5,
                    "text": utilisation_texts.OWNED_LABEL.format(gpus=grouped(saving.owned)),
                    "showarrow": False,
                    "xanchor": "right" if saving.owned > saving.dedicated / 2 else "left",
                    "xshift": -4 if saving.owned > saving.dedicated / 2 else 4,
                }
            ],
        },
    }
    rows: list[list[Any]] = [
        [{"text": name, "url": address} if address else name, grouped(value, 1)]
        for (_, name, value), address in zip(saving.by_team, addresses, strict=True)
    ]
    rows += [
        ["Dedicated: sum of the teams", grouped(saving.dedicated, 1)],
        ["Pooled: all together", grouped(saving.pooled, 1)],
        ["Existing GPUs", grouped(saving.owned, 1)],
        ["GPUs saved", grouped(saving.gpus, 1)],
    ]
    if saving.per_month is not None:
        rows.append([f"Saved per month, {query.currency}", money(saving.per_month, query.currency)])
    return UtilisationChart(
        "Pooled or dedicated",
        utilisation_texts.SAVING_HINT,
        figure,
        csv_columns_of("Who", "GPUs"),
        rows,
        finding=findings.saving_finding(
            saving.gpus, "" if saving.per_month is None else money(saving.per_month, query.currency)
        ),
        opens=utilisation_texts.OPENS_ROWS if any(addresses) else "",
    )


# Not split: the function builds the figure and the table of one chart from the same rows.
def waiting_time_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart of the ranges of waiting times by size, model or team, on a log scale."""
    rows = query.waits_by[query.waits]
    started = sorted((row for row in rows if row.started), key=lambda row: -row.started)
    chosen = {row.key for row in started[:MAX_RANGES]}
    shown = [row for row in rows if row.key in chosen]
    names = [_name(query, row) for row in shown]
    addresses = {row.key: _address(query, row) for row in rows}
    hover = [
        utilisation_texts.WAIT_HOVER.format(
            name=name,
            p10=short_duration(row.p10),
            p50=short_duration(row.p50),
            p90=short_duration(row.p90),
            started=grouped(row.started),
        )
        for name, row in zip(names, shown, strict=True)
    ]
    common = {"customdata": [addresses[row.key] for row in shown], "hovertext": hover}
    figure = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": utilisation_texts.WAIT_RANGE_TRACE,
                "y": names,
                "base": [_drawn(row.p10) for row in shown],
                "x": [max(0.0, _drawn(row.p90) - _drawn(row.p10)) for row in shown],
                "width": 0.35,
                **common,
                "hovertemplate": "%{hovertext}<extra></extra>",
                "meta": {"colour": "use-3"},
            },
            *(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label,
                    "y": names,
                    "x": [_drawn(getattr(row, measure)) for row in shown],
                    **common,
                    "hovertemplate": "%{hovertext}<extra></extra>",
                    "marker": {"symbol": symbol, "size": size, "line": {"width": 2}},
                    "meta": {"colour": "ink"},
                }
                for label, measure, symbol, size in (
                    (utilisation_texts.WAIT_HALF_TRACE, "p50", "circle-open", 10),
                    (utilisation_texts.WAIT_MOST_TRACE, "p90", "line-ns-open", 14),
                )
            ),
        ],
        "layout": {
            "hovermode": "closest",
            "showlegend": False,
            "annotations": _mark_labels(names, shown),
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "xaxis": {
                "type": "log",
                "title": {"text": "waiting time"},
                "tickvals": list(TICKS),
                "ticktext": list(TICKS.values()),
            },
        },
    }
    table = [
        [
            {"text": _name(query, row), "url": addresses[row.key]}
            if addresses[row.key]
            else _name(query, row),
            grouped(row.started),
            *(short_duration(value) for value in (row.p10, row.p50, row.p90, row.p95, row.longest)),
            row.still_waiting,
            row.preemptions,
        ]
        for row in rows
    ]
    labels = (
        *("Started", "1 in 10 waits at most", MEDIAN_WAIT_LABEL, "9 of 10 wait at most", P95_WAIT_LABEL),
        *("Longest", "Still waiting", "Preemptions"),
    )
    by = utilisation_texts.WAIT_GROUP_LABELS[query.waits]
    return UtilisationChart(
        money_pages.WAITING_TITLE,
        utilisation_texts.WAITS_RANGE_HINT.format(
            by=by.lower(), started=grouped(sum(row.started for row in rows))
        ),
        figure,
        csv_columns_of(by, *labels),
        table,
        finding=findings.waits_finding(query.waits_by_size),
        opens=utilisation_texts.OPENS_ROWS if any(addresses.values()) else "",
        width="half w4",
        choices=[
            {
                "label": utilisation_texts.WAIT_GROUP_LABELS[name],
                "url": query.address(waits=name) + "#chart-waits",
                "current": name == query.waits,
            }
            for name in WAIT_GROUPS
        ],
    )


def _mark_labels(names: list[str], shown: list[GroupWaitTimes]) -> list[dict[str, Any]]:
    """Return the meaning of the marks, above those of the first row. A log axis counts powers of ten."""
    if not shown:
        return []
    marks = (
        (utilisation_texts.WAIT_HALF_MARK, shown[0].p50),
        (utilisation_texts.WAIT_MOST_MARK, shown[0].p90),
    )
    places = [math.log10(_drawn(value)) for _, value in marks]
    # Marks that are close to each other have one label.
    if places[1] - places[0] < MIN_LABEL_DISTANCE:
        text = f"{marks[0][0]}, {marks[1][0]}"
        return [line_label(places[1], 0, text, xanchor="left", yshift=10)]
    return [
        line_label(place, 0, text, xanchor="center", yshift=10)
        for place, (text, _) in zip(places, marks, strict=True)
    ]


def _drawn(seconds: float | None) -> float:
    return round(max(SHORTEST_SECONDS, seconds or 0.0), 1)


def _name(query: UtilisationQuery, row: GroupWaitTimes) -> str:
    if query.waits == "size":
        return f"{row.name} GPU" if row.name == "1" else f"{row.name} GPUs"
    return row.name or utilisation_texts.ANY_MODEL


def _address(query: UtilisationQuery, row: GroupWaitTimes) -> str:
    """Return the address of the requests of a size, or of the page for a model or team; "" for others."""
    if query.waits == "size":
        return query.requests_address(row.key)
    if query.waits == "model" and row.key in query.models:
        return query.address(model=row.key)
    slugs = {team.pk: team.slug for team in query.teams} if query.waits == "team" else {}
    return query.address(team=slugs[row.key]) if row.key in slugs else ""
