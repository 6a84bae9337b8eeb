"""Build the charts of pooling savings and waiting times."""

from __future__ import annotations

from portal.web.components.quantities import grouped, money, short_duration
from portal.web.money.chart import MEDIAN_WAIT_LABEL, P95_WAIT_LABEL, UtilisationChart, csv_columns_of
from portal.web.money.utilisation_query import UtilisationQuery
from portal.wording.pages import money_pages
from telemetry.reads.wait_times import GroupWaitTimes


def pooling_saving_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart of the GPUs that teams would need alone and the GPUs that they need together."""
    saving = query.saving
    names = [
        *(name for _, name, _ in saving.by_team),
        "Dedicated: sum of the teams",
        "Pooled: all together",
        "Existing GPUs",
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
    rows.append(["GPUs saved", grouped(saving.gpus, 1)])
    if saving.per_month is not None:
        rows.append([f"Saved per month, {query.currency}", money(saving.per_month, query.currency)])
    raw = [[name, value] for name, value in zip(names, values, strict=True)]
    hint = "GPUs that suffice 95 % of the time, for each team alone and for all teams together"
    return UtilisationChart("Pooled or dedicated", hint, figure, csv_columns_of("Who", "GPUs"), rows, raw)


def waiting_time_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart of the waiting times by the number of requested GPUs."""
    rows = query.waits_by_size
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
            short_duration(row.p50),
            short_duration(row.p95),
            short_duration(row.longest),
            row.still_waiting,
            row.preemptions,
        ]
        for row in rows
    ]
    raw = [
        [row.name, row.started, row.p50, row.p95, row.longest, row.still_waiting, row.preemptions]
        for row in rows
    ]
    labels = ("Started", MEDIAN_WAIT_LABEL, P95_WAIT_LABEL, "Longest", "Still waiting", "Preemptions")
    return UtilisationChart(
        money_pages.WAITING_TITLE,
        "from submission to the first GPU, by size",
        figure,
        csv_columns_of("Size", *labels),
        table,
        raw,
    )


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 60, 2)


def wait_of_most_frequent_size(rows: list[GroupWaitTimes]) -> tuple[float | None, float | None]:
    """Return (median, 95th percentile) of the wait in seconds, for the request size with the most starts.

    Both are None if no workload started.
    """
    most = max(rows, key=lambda row: row.started, default=None)
    return (most.p50, most.p95) if most and most.started else (None, None)
