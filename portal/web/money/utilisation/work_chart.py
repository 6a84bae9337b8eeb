"""Build the chart that compares the utilisation of a workload's GPUs with their SM activity."""

from __future__ import annotations

from typing import Any

from portal.web.components.quantities import grouped, percent
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.pages.money import utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.utilisation.waste import WasteRow

MAX_LABELS = 6
LARGEST_POINT, SMALLEST_POINT = 32, 8  # pixels
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "pentagon")


# Not split: the function builds the figure and the table of one chart from the same rows.
def busy_against_sm_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart with a point for each workload that held most GPU-hours.

    A workload that the viewer may not see by name has a point without a name.
    """
    shown = query.held_longest
    names = query.listed_names
    labelled = {row.work for row in sorted(shown, key=lambda row: -row.wasted_hours)[:MAX_LABELS]}
    most = max((row.held_hours for row in shown), default=1.0) or 1.0
    by_team: dict[Any, list[WasteRow]] = {}
    for row in shown:
        team = names[row.work].team if row.work in names else None
        by_team.setdefault(team, []).append(row)
    data = []
    for team, some in sorted(by_team.items(), key=lambda item: item[0].name if item[0] else "~"):
        titles = [names[row.work].name if row.work in names else utilisation_texts.UNNAMED for row in some]
        # The largest point without a name has the tag of its team.
        without = [row for row in some if row.work not in labelled or row.work not in names]
        largest = max(without, key=lambda row: row.held_hours, default=None)
        tag = team.tag if team else ""
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": team.name if team else utilisation_texts.UNNAMED,
                "x": [round((row.busy or 0.0) * 100, 1) for row in some],
                "y": [round((row.sm_active or 0.0) * 100, 1) for row in some],
                "text": [
                    title if row.work in labelled and row.work in names else tag if row is largest else ""
                    for row, title in zip(some, titles, strict=True)
                ],
                "textposition": "top center",
                "cliponaxis": False,
                "customdata": [names[row.work].url if row.work in names else "" for row in some],
                "hovertext": [
                    utilisation_texts.BUSY_HOVER.format(
                        name=title,
                        utilisation=percent(row.busy),
                        sm=percent(row.sm_active),
                        hours=grouped(row.held_hours, 1),
                    )
                    for row, title in zip(some, titles, strict=True)
                ],
                "hovertemplate": "%{hovertext}<extra></extra>",
                "marker": {
                    "symbol": SYMBOLS[(team.colour - 1) % len(SYMBOLS)] if team else "circle-open",
                    "opacity": 0.65,
                    "size": [
                        max(SMALLEST_POINT, LARGEST_POINT * (row.held_hours / most) ** 0.5) for row in some
                    ],
                },
                "meta": {"colour": f"team-{team.colour}" if team else "rest"},
            }
        )
    figure = {
        "data": data,
        "layout": {
            "hovermode": "closest",
            "showlegend": False,
            "xaxis": {"title": {"text": "utilisation, %"}, "range": [0, 104]},
            "yaxis": {"title": {"text": "SM active, %"}, "range": [0, 104]},
        },
    }
    table = [
        [
            {"text": names[row.work].name, "url": names[row.work].url},
            percent(row.busy),
            percent(row.sm_active),
            grouped(row.held_hours, 1),
            grouped(row.wasted_hours, 1),
        ]
        for row in shown
        if row.work in names
    ]
    return UtilisationChart(
        utilisation_texts.BUSY_TITLE,
        utilisation_texts.BUSY_HINT_LONG if query.filters.is_long else utilisation_texts.BUSY_HINT,
        figure,
        csv_columns_of("Project" if query.filters.is_long else "Workload", *utilisation_texts.BUSY_COLUMNS),
        table,
        height=360,
        finding=findings.busy_finding(shown, {work: name.name for work, name in names.items()}),
        opens=utilisation_texts.OPENS_WORK,
    )
