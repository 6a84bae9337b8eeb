"""Build the map of the fleet: the utilisation of each host over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from portal.reads.utilisation.drill_parameters import PERIOD_PARAMETERS
from portal.reads.utilisation.fleet_map import FleetMap, FleetRow, fleet_map
from portal.web.components.quantities import grouped
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.time_chart import brushed, local_text
from portal.wording.pages.money import drill_texts
from portal.wording.utilisation import findings

LOW_HEIGHT, HIGH_HEIGHT = 280, 480
FEW_ROWS = 24


def fleet_address(query: UtilisationQuery, **changes: str) -> str:
    """Return the address of a level of the map, in the period of the page."""
    return _level_address(query, reverse("utilisation-fleet"), changes)


def level_file_address(query: UtilisationQuery, answer: str, levels: Mapping[str, str]) -> str:
    """Return the address of a CSV file of a level, in the period of the page."""
    return _level_address(query, reverse("utilisation-level-csv", args=[answer]), levels)


def _level_address(query: UtilisationQuery, page: str, changes: Mapping[str, str]) -> str:
    kept = {name: query.parameters[name] for name in PERIOD_PARAMETERS if name in query.parameters}
    if "start" in changes:
        kept.pop("period", None)
    given = kept | {name: value for name, value in changes.items() if value}
    return f"{page}?{urlencode(given)}" if given else page


def fleet_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return the map of all hosts. A drag sets the period of the whole page."""
    return _map_chart(query, fleet_map(query), query.address(start="FROM", end="UNTIL"))


def fleet_map_chart(query: UtilisationQuery, first: str, last: str) -> UtilisationChart:
    """Return the map of the hosts from ``first`` to ``last``; of all hosts without names."""
    period = fleet_address(query, start="FROM", end="UNTIL", first=first, last=last)
    return _map_chart(query, fleet_map(query, first, last), period)


def _map_chart(query: UtilisationQuery, grid: FleetMap, period: str) -> UtilisationChart:
    addresses = [row_address(query, row) for row in grid.rows]
    names = [row_name(row) for row in grid.rows]
    busy = [row.busy for row in grid.rows]
    figure = busy_map(query, busy, names, addresses, grid.starts, period)
    table = [
        [{"text": name, "url": address}, grouped(row.hosts), *_mean_and_top(row.busy)]
        for name, address, row in zip(names, addresses, grid.rows, strict=True)
    ]
    hint = drill_texts.FLEET_HINT.format(hours=grid.step / timedelta(hours=1))
    return UtilisationChart(
        drill_texts.FLEET_TITLE,
        drill_texts.FLEET_OF_ALL_WORK.format(hint=hint) if query.selects_work else hint,
        figure,
        csv_columns_of("Host", "Hosts", "Mean utilisation", "Highest"),
        table,
        height=LOW_HEIGHT if len(grid.rows) <= FEW_ROWS else HIGH_HEIGHT,
        empty=drill_texts.FLEET_EMPTY,
        finding=findings.fleet_finding([(row.first, row.busy) for row in grid.rows], _size(grid)),
        opens=drill_texts.OPENS_HOST if grid.rows else "",
        width="half",
    )


def busy_map(
    query: UtilisationQuery,
    busy: Sequence[Sequence[float | None]],
    names: list[str],
    addresses: list[str],
    starts: list[datetime],
    period: str,
) -> dict[str, Any]:
    """Return a heatmap of utilisation in per cent, with a row for each name and a column for each start.

    A click on a row opens its address. ``period`` is the address that a drag opens.
    """
    return {
        "data": [
            {
                "type": "heatmap",
                "z": busy,
                "y": names,
                "x": [local_text(start, query) for start in starts],
                "zmin": 0,
                "zmax": 100,
                "meta": {"colour": "use", "row": addresses},
                "xgap": 0,
                "ygap": 1 if len(names) <= FEW_ROWS else 0,
                "colorbar": {"ticksuffix": " %", "thickness": 12},
                "hovertemplate": drill_texts.FLEET_HOVER,
                "hoverongaps": False,
            }
        ],
        "layout": {
            "hovermode": "closest",
            "xaxis": {"type": "date"},
            "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
            "meta": brushed(query, starts, period),
        },
    }


def row_name(row: FleetRow) -> str:
    if row.hosts == 1:
        return row.first
    return drill_texts.ROW_OF_HOSTS.format(first=row.first, last=row.last)


def row_address(query: UtilisationQuery, row: FleetRow) -> str:
    """Return the address of the level below a row: one host, or the hosts that are folded into it."""
    if row.hosts == 1:
        return fleet_address(query, host=row.first)
    return fleet_address(query, first=row.first, last=row.last)


def _size(grid: FleetMap) -> str:
    hosts, gpus = grouped(grid.hosts), grouped(grid.gpus)
    rows = grid.rows[0].hosts if grid.rows else 1
    if rows > 1:
        return drill_texts.FLEET_FOLDED.format(rows=rows, hosts=hosts, gpus=gpus)
    return drill_texts.FLEET_ROWS.format(hosts=hosts, gpus=gpus)


def _mean_and_top(busy: list[int | None]) -> list[Any]:
    known = [value for value in busy if value is not None]
    if not known:
        return ["unknown", "unknown"]
    return [f"{sum(known) / len(known):.0f} %", f"{max(known)} %"]
