"""Build the chart of the GPUs that are wanted by weekday and hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from portal.reads.utilisation.answers import WEEKDAY_LABELS
from portal.web.components.quantities import grouped
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.pages.money import utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.demand import demand_by_weekday
from telemetry.reads.utilisation.week import highest_of_week

OVER = "○"  # marks a cell above the capacity


# Not split: the function builds the figure and the table of one chart from the same rows.
def demand_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a heatmap of the GPUs that are held or that requests wait for.

    A click on a cell opens the hour with the highest demand among the hours of the cell.
    """
    zone = query.period.zone
    demand = query.demand
    grid, capacity = demand_by_weekday(demand, zone), query.saving.owned
    top = max([capacity, *(value for row in grid for value in row if value is not None)])
    labels = [f"{hour:02d}:00" for hour in range(24)]
    figure = {
        "data": [
            {
                "type": "heatmap",
                "z": grid,
                "y": list(WEEKDAY_LABELS),
                "x": labels,
                "zmin": 0,
                "zmax": top or 1,
                "text": [[OVER if (value or 0) > capacity else "" for value in row] for row in grid],
                "texttemplate": "%{text}",
                "colorbar": {"tickformat": ".0f", "thickness": 12},
                "customdata": addresses_of_hours(query, highest_of_week(demand.starts, demand.wanted, zone)),
                "meta": {"colour": "use"},
                "hovertemplate": "%{y} %{x}: %{z:.1f} GPUs held and waiting<extra></extra>",
                "hoverongaps": False,
            }
        ],
        "layout": {
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"tickvals": labels[::3], "tickangle": 0},
        },
    }
    rows = [
        [day, *("–" if value is None else grouped(value, 1) for value in row[::3])]
        for day, row in zip(WEEKDAY_LABELS, grid, strict=True)
    ]
    return UtilisationChart(
        utilisation_texts.DEMAND_TITLE,
        utilisation_texts.DEMAND_HINT.format(gpus=grouped(capacity)),
        figure,
        csv_columns_of("Day", *(f"{hour:02d}" for hour in range(0, 24, 3))),
        rows,
        finding=findings.demand_finding(grid, capacity),
        opens=utilisation_texts.OPENS_HOUR_OF_DEMAND,
    )


def addresses_of_hours(query: UtilisationQuery, starts: list[list[int | None]]) -> list[list[str]]:
    """Return the address of the page for each hour, in seconds since the epoch; "" for None."""
    hour = timedelta(hours=1)
    return [
        [
            "" if start is None else query.address_of_step(datetime.fromtimestamp(start, UTC), hour)
            for start in day
        ]
        for day in starts
    ]
