"""Read the parameters of the utilisation page and of its API answers. An unknown value is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from portal import policy
from portal.errors import Invalid
from portal.input_checks import display_value
from portal.models import User
from portal.reads.fleet import utilisation as reads
from portal.reads.utilisation.period import read_period, zone_of_organisation
from portal.reads.utilisation.query import (
    COMPARISONS,
    DIMENSIONS,
    RANKING_DIMENSIONS,
    UNITS,
    UtilisationScope,
    dimensions_of,
    rankings_of,
)
from portal.wording.pages.money import money_pages, utilisation_texts
from scheduler.models import WorkloadType
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.utilisation.waste import WASTE_STEPS
from telemetry.reads.wait_times import WAIT_GROUPS

PARAMETERS = (
    *("period", "start", "end", "compare"),
    *("pool", "team", "model", "project", "person", "type"),
    *("by", "unit", "waste", "waits", "step", "shown"),
)
SHOWN = ("all",)
Scope = TypeVar("Scope", bound=UtilisationScope)


def read_scope(
    kind: Callable[..., Scope],
    given: Mapping[str, str],
    viewer: User,
    now: datetime,
    *,
    organisation_zone: str,
    currency: str,
    led_teams: Callable[[], frozenset[int]] | None = None,
) -> Scope:
    """Return the scope of type ``kind`` that the parameters choose.

    ``led_teams`` returns the teams that the viewer leads, if the caller has read them.
    Raises Invalid for a parameter that is unknown or has an unknown value, with the allowed values.
    """
    parameters = {name: value for name, value in given.items() if value}
    _check_names(given)
    _one_of(parameters, "step", WASTE_STEPS)
    _one_of(parameters, "shown", SHOWN)
    period = read_period(parameters, now, organisation_zone)
    pools = list(policy.visible_pools(viewer).order_by("name"))
    teams = list(policy.visible_teams(viewer).order_by("name"))
    gpus = reads.visible_host_gpus(viewer)
    models = sorted({each.model for each in gpus})
    mine = None if policy.sees_all_teams(viewer) or policy.sees_all_charges(viewer) else [t.pk for t in teams]
    pool, team = _chosen(parameters, "pool", pools), _chosen(parameters, "team", teams)
    project, person = _project(parameters, viewer), _person(parameters, viewer)
    names_work = project is not None or person is not None
    filters = UsageFilters(
        currency=currency,
        start=period.start,
        end=period.end,
        pool=pool.pk if pool else None,
        team=team.pk if team else None,
        project=project,
        user=person,
        model=_one_of(parameters, "model", models),
        type=_one_of(parameters, "type", [str(value) for value in WorkloadType.values]),
        # A person may also work for teams that the viewer does not see.
        teams=mine if names_work else None,
    )
    return kind(
        filters=filters,
        period=period,
        mine=mine,
        viewer=viewer,
        dimension=_dimension(parameters, filters),
        pools=pools,
        teams=teams,
        models=models,
        host_gpus=gpus,
        now=now,
        currency=currency,
        parameters=parameters,
        unit=_unit(parameters, viewer),
        ranking=_ranking(parameters, filters),
        waits=_one_of(parameters, "waits", WAIT_GROUPS) or WAIT_GROUPS[0],
        compared=_compared(parameters, period.length),
        led_teams=led_teams,
        fixed_zone=zone_of_organisation(organisation_zone),
    )


def _check_names(given: Mapping[str, str]) -> None:
    unknown = next((name for name in given if name not in PARAMETERS), None)
    if unknown is not None:
        text = money_pages.PARAMETER_UNKNOWN.format(
            given=display_value(unknown), allowed=", ".join(PARAMETERS)
        )
        raise Invalid({unknown[:30]: text})


def _unit(parameters: Mapping[str, str], viewer: User) -> str:
    unit = _one_of(parameters, "unit", UNITS) or "hours"
    if unit == "money" and not policy.sees_owner_cost(viewer):
        raise Invalid({"unit": utilisation_texts.UNIT_WITHOUT_RIGHT})
    return unit


def _compared(parameters: Mapping[str, str], length: timedelta) -> timedelta | None:
    """Return how much earlier the compared period is; None without a comparison."""
    name = _one_of(parameters, "compare", tuple(COMPARISONS)) or "before"
    return length if name == "before" else COMPARISONS[name]


def _dimension(parameters: Mapping[str, str], filters: UsageFilters) -> str:
    dimension, allowed = parameters.get("by", "team"), dimensions_of(filters)
    if dimension not in allowed:
        text = money_pages.DIMENSION_UNKNOWN.format(
            given=dimension[:30], allowed=_of_period(allowed, filters, dimension in dict(DIMENSIONS))
        )
        raise Invalid({"by": text}, {"by": dimension})
    return dimension


def _ranking(parameters: Mapping[str, str], filters: UsageFilters) -> str:
    given, allowed = parameters.get("waste", ""), rankings_of(filters)
    if given and given not in allowed:
        known = given in dict(RANKING_DIMENSIONS)
        raise _unknown_choice("waste", given, [_of_period(allowed, filters, known)])
    return given or allowed[-1]


def _of_period(allowed: Sequence[str], filters: UsageFilters, known: bool) -> str:
    """Return the allowed values, with the reason if a shorter period would allow the value."""
    listed = ", ".join(allowed)
    return utilisation_texts.ALLOWED_IN_LONG.format(allowed=listed) if known and filters.is_long else listed


def _one_of(parameters: Mapping[str, str], field: str, allowed: Sequence[str]) -> str:
    """Return the value of a parameter that is one of ``allowed``; "" without the parameter."""
    given = parameters.get(field, "")
    if given and given not in allowed:
        raise _unknown_choice(field, given, allowed)
    return given


def _chosen(parameters: Mapping[str, str], field: str, rows: Sequence[Any]) -> Any:
    """Return the row with the slug that the parameter names; None without the parameter."""
    slug = _one_of(parameters, field, [row.slug for row in rows])
    return next((row for row in rows if row.slug == slug), None)


def _project(parameters: Mapping[str, str], viewer: User) -> int | None:
    """Return the id of the project that the parameter names, such as ``vision/fit``; None without it."""
    given = parameters.get("project", "")
    if not given:
        return None
    team, _, project = given.partition("/")
    found = policy.visible_projects(viewer).filter(team__slug=team, slug=project).values_list("pk", flat=True)
    if not found:
        raise _unknown_choice("project", given, [utilisation_texts.ALLOWED_PROJECT])
    return int(found[0])


def _person(parameters: Mapping[str, str], viewer: User) -> int | None:
    """Return the id of the person that the parameter names; None without it."""
    given = parameters.get("person", "")
    if not given:
        return None
    found = policy.visible_users(viewer).filter(username=given).values_list("pk", flat=True)
    if not found:
        raise _unknown_choice("person", given, [utilisation_texts.ALLOWED_PERSON])
    return int(found[0])


def _unknown_choice(field: str, given: str, allowed: Sequence[str]) -> Invalid:
    listed = ", ".join(allowed) or money_pages.NOTHING_ALLOWED
    text = money_pages.FILTER_UNKNOWN.format(field=field, given=display_value(given), allowed=listed)
    return Invalid({field: text}, {field: given})
