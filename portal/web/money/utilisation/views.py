"""Render the utilisation page: charts of GPU-hours, users, waiting times and savings, with tables and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone

from portal import policy
from portal.reads.utilisation.answers import ANSWERS
from portal.reads.utilisation.figures import KeyFigure, key_figures
from portal.reads.utilisation.parameters import read_scope
from portal.reads.utilisation.period import DEFAULT_PERIOD, LONG_PERIODS, PERIODS
from portal.reads.utilisation.query import DIMENSIONS, RANKING_DIMENSIONS, UNITS, dimensions_of
from portal.web.components.quantities import grouped, money, percent, short_duration
from portal.web.money.utilisation import charts as utilisation_charts
from portal.web.money.utilisation.league import waste_league
from portal.web.money.utilisation.query import UtilisationQuery
from portal.web.money.utilisation.waterfall_table import change_delta, points_delta, waterfall_table
from portal.web.page.access import InvalidAddress, address_checks, current_user, sign_in_required
from portal.web.page.csv_export import csv_response
from portal.web.page.memberships import led_teams
from portal.web.page.organisation import current_currency, current_organisation
from portal.web.page.time_zone import show_times_in
from portal.wording.formatting import date_and_time
from portal.wording.pages.money import money_pages, utilisation_texts
from scheduler.cycle.gc_pause import gc_paused
from telemetry.reads.usage_filters import CUBE_DIMENSIONS, data_freshness

FREE_FILTERS = (("project", "Project"), ("person", "Person"), ("type", "Type"), ("step", "Step"))


@sign_in_required
def utilisation(request: HttpRequest) -> HttpResponseBase:
    """Render the charts.

    The query string chooses the ``period`` (or ``start`` and ``end``), and the filters.
    """
    query = utilisation_query(request)
    # The parts of thousands of workloads are no garbage, and each collection would scan all of them.
    with gc_paused():
        return render(request, "manage/utilisation.html", _page_context(query))


def _page_context(query: UtilisationQuery) -> dict[str, Any]:
    now = query.now
    query.load_shared_rows()
    charts = {name: utilisation_charts.make_chart(name, query) for name in utilisation_charts.CHART_ORDER}
    freshness = data_freshness(query.filters)
    charged_until = date_and_time(freshness.charged_until) if freshness.charged_until else ""
    return {
        "charts": [
            {"chart": chart, "csv": query.csv_address(name), "name": name, "height": chart.height}
            for name, chart in charts.items()
        ],
        "waterfall": waterfall_table(query),
        "league": waste_league(query),
        "units": _unit_choices(query),
        "comparison": _comparison_menu(query),
        "figures": _figures(query),
        "period": query.period.text(now),
        "earlier": query.address(**query.period.moved(-1)),
        "later": query.address(**query.period.moved(1)) if query.period.end < now else "",
        "coverage": query.waterfall.coverage,
        "freshness": freshness,
        "charged_until": charged_until,
        "filters": _filter_menus(query),
        "chosen": _chosen_filters(query),
        "periods": _period_choices(query),
        "dimensions": [
            {"label": label, "url": query.address(by=name), "current": name == query.dimension}
            for name, label in DIMENSIONS
            if name in dimensions_of(query.filters)
        ],
        "sees_capacity": policy.may(query.viewer, "capacity.see"),
        "simulated": freshness.simulated,
        "now": now,
    }


@sign_in_required
def utilisation_csv(request: HttpRequest, chart: str) -> HttpResponseBase:
    """Return the data of one chart as a CSV download."""
    if chart not in ANSWERS:
        raise InvalidAddress(money_pages.CHART_UNKNOWN.format(given=chart[:30], allowed=", ".join(ANSWERS)))
    query = utilisation_query(request)
    rows = (map(_cell, row) for row in ANSWERS[chart].rows(query))
    return csv_response(f"{chart}.csv", ANSWERS[chart].columns, map(list, rows))


def _cell(value: Any) -> Any:
    """Return the cell of a value. The points of a trend are joined by semicolons; an unknown one is empty."""
    if not isinstance(value, list):
        return value
    return ";".join("" if point is None else f"{point:.3f}" for point in value)


def utilisation_query(request: HttpRequest, given: Mapping[str, str] | None = None) -> UtilisationQuery:
    """Return the query of the address, or of the ``given`` parameters. The page gets the zone of its period.

    Raises InvalidAddress for a parameter that is unknown or has an unknown value.
    """
    organisation = current_organisation(request)
    with address_checks():
        query = read_scope(
            UtilisationQuery,
            request.GET.dict() if given is None else given,  # type: ignore[arg-type]
            current_user(request),
            timezone.now(),
            organisation_zone=organisation.time_zone if organisation else "",
            currency=current_currency(request),
            led_teams=partial(led_teams, request, current_user(request)),
        )
    show_times_in(request, query.period.zone)
    return query


def _period_choices(query: UtilisationQuery) -> list[dict[str, Any]]:
    custom = "start" in query.parameters
    current = "" if custom else query.parameters.get("period", DEFAULT_PERIOD)
    return [
        {"label": label, "url": _period_address(query, name), "current": name == current}
        for name, label in PERIODS
    ]


def _period_address(query: UtilisationQuery, name: str) -> str:
    """Return the address of a named period, without parameters that only a shorter one allows."""
    if name not in LONG_PERIODS:
        return query.address(period=name)
    by = query.dimension if query.dimension in CUBE_DIMENSIONS else None
    waste = query.ranking if dict(RANKING_DIMENSIONS)[query.ranking] in CUBE_DIMENSIONS else None
    return query.address(period=name, by=by, waste=waste)


def _unit_choices(query: UtilisationQuery) -> list[dict[str, Any]]:
    if not policy.sees_owner_cost(query.viewer):
        return []
    return [
        {
            "label": utilisation_texts.UNIT_LABELS[name],
            "url": query.address(unit=name),
            "current": name == query.unit,
        }
        for name in UNITS
    ]


def _comparison_menu(query: UtilisationQuery) -> dict[str, Any]:
    chosen = query.parameters.get("compare", "before")
    return {
        "name": "compare",
        "label": "against",
        "value": utilisation_texts.COMPARISON_LABELS[chosen],
        "choices": [
            {"label": label, "url": query.address(compare=name), "current": name == chosen}
            for name, label in utilisation_texts.COMPARISON_LABELS.items()
        ],
    }


def _filter_menus(query: UtilisationQuery) -> list[dict[str, Any]]:
    """Return the menus of pool, model and team. A menu with one choice is left out."""
    menus = [
        ("pool", "Pool", [(pool.slug, pool.name) for pool in query.pools]),
        ("model", "Model", [(model, model) for model in query.models]),
        ("team", "Team", [(team.slug, team.name) for team in query.teams]),
    ]
    return [
        {
            "name": name,
            "label": label,
            "value": dict(choices).get(query.parameters.get(name, ""), ""),
            "choices": [
                {
                    "label": text,
                    "url": query.address(**{name: value or None}),
                    "current": value == query.parameters.get(name, ""),
                }
                for value, text in [("", utilisation_texts.ALL), *choices]
            ],
        }
        for name, label, choices in menus
        if len(choices) > 1
    ]


def _chosen_filters(query: UtilisationQuery) -> list[dict[str, str]]:
    """Return the filters that no menu shows.

    The ``url`` of each is the address of the page without this filter.
    """
    return [
        {"label": label, "value": query.parameters[name], "url": query.address(**{name: None})}
        for name, label in FREE_FILTERS
        if name in query.parameters
    ]


def _figures(query: UtilisationQuery) -> list[dict[str, Any]]:
    """Return the key figures as readings, each with its change against the compared period."""
    found = key_figures(query)
    cost, most, per_month = (found[name].value for name in ("unused_cost", "wait_p95", "saved_per_month"))
    return [
        {
            "label": utilisation_texts.PRODUCTIVE,
            "value": percent(found["productive_share"].value, 1),
            "small": utilisation_texts.OF_CAPACITY,
            "delta": _points(found["productive_share"], "more"),
        },
        {
            "label": utilisation_texts.HELD_OR_RESERVED,
            "value": percent(found["held_share"].value, 1),
            "small": utilisation_texts.OF_CAPACITY,
            "delta": _points(found["held_share"], ""),
        },
        {
            "label": money_pages.IDLE_LABEL,
            "value": f"{grouped(found['unused_hours'].value)} h",
            "small": "" if cost is None else money(Decimal(cost), query.currency),
            "delta": _points(found["unused_share"], "less"),
        },
        {
            "label": utilisation_texts.TYPICAL_WAIT,
            "value": short_duration(found["wait_p50"].value),
            "small": utilisation_texts.LONG_WAIT.format(wait=short_duration(most)) if most else "",
            "delta": _wait_delta(found["wait_p50"]),
        },
        {
            "label": utilisation_texts.SAVED_BY_POOLING,
            "value": f"{grouped(found['saved_gpus'].value, 1)} GPUs",
            "small": ""
            if per_month is None
            else utilisation_texts.A_MONTH.format(cost=money(Decimal(per_month), query.currency)),
        },
    ]


def _points(figure: KeyFigure, better: str) -> dict[str, str] | None:
    if figure.value is None or figure.before is None:
        return None
    return points_delta(float(figure.value), float(figure.before), better)


def _wait_delta(figure: KeyFigure) -> dict[str, str] | None:
    if figure.value is None or figure.before is None:
        return None
    return change_delta(float(figure.value) - float(figure.before), "less", short_duration, 1.0)
