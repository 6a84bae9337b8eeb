"""Build the chart of the use or the charged money of each team, project, person or part of the hardware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.urls import reverse

from portal import policy
from portal.reads.utilisation.query import DIMENSIONS
from portal.web.components.quantities import grouped, money, percent
from portal.web.money.chart import UtilisationChart, csv_columns_of
from portal.web.money.utilisation.query import UtilisationQuery
from portal.wording.pages.money import utilisation_texts
from portal.wording.utilisation import findings
from telemetry.reads.usage_by_group import GroupUsage

MAX_BARS = 30


def use_by_chart(query: UtilisationQuery) -> UtilisationChart:
    """Return a chart with a bar for each group: its mean GPUs, or the money that it was charged."""
    is_money = query.unit == "money" and policy.sees_all_charges(query.viewer)
    groups = query.use_by.groups
    if is_money:
        groups = sorted(groups, key=lambda group: -group.charged)
    addresses = group_addresses(query, groups)
    words = dict(DIMENSIONS)[query.dimension]
    alone, compared = utilisation_texts.USE_BY_COLUMNS_ALONE, utilisation_texts.USE_BY_COLUMNS
    return UtilisationChart(
        f"Use by {words.lower()}",
        utilisation_texts.USE_BY_MONEY_HINT if is_money else utilisation_texts.USE_BY_HINT,
        _figure(query, groups[:MAX_BARS], addresses[:MAX_BARS], is_money=is_money),
        csv_columns_of(words, *(alone if query.held_before is None else compared)),
        [_row(query, group, address) for group, address in zip(groups, addresses, strict=True)],
        height=360,
        finding=findings.use_by_finding(query.use_by.groups),
        opens=utilisation_texts.OPENS_ROWS if any(addresses) else "",
    )


def _figure(
    query: UtilisationQuery, shown: Sequence[GroupUsage], addresses: list[str], *, is_money: bool
) -> dict[str, Any]:
    data = [_money_bar(query, shown)] if is_money else _gpu_bars(shown, query.use_by.hours)
    names = [group.name or utilisation_texts.NO_NAME for group in shown]
    bars: list[dict[str, Any]] = [
        {"type": "bar", "orientation": "h", "y": names, "customdata": addresses, **bar} for bar in data
    ]
    if query.dimension == "team" and not is_money:
        bars.append(_guarantees(shown))
    title = query.currency if is_money else utilisation_texts.MEAN_GPUS
    return {
        "data": bars,
        "layout": {
            "barmode": "stack",
            "hovermode": "closest",
            "yaxis": {"autorange": "reversed", "automargin": True},
            "xaxis": {"title": {"text": title}},
            "bargap": 0.3,
        },
    }


def _gpu_bars(shown: Sequence[GroupUsage], hours: float) -> list[dict[str, Any]]:
    """Return the parts of the held GPUs: used, not used, and without a known utilisation."""
    names = utilisation_texts.USE_BY_TRACES
    return [
        {
            "name": names["used"],
            "x": [
                None if group.utilisation is None else round(group.known_held * group.utilisation / hours, 3)
                for group in shown
            ],
            "text": [percent(group.utilisation) for group in shown],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{x:,.1f} GPUs used<extra></extra>",
            "meta": {"colour": "use-5"},
        },
        {
            "name": names["unused"],
            "x": [round(group.known_held * (1 - (group.utilisation or 0.0)) / hours, 3) for group in shown],
            "text": [grouped(group.mean_gpus, 1) for group in shown],
            "textposition": "auto",
            "hovertemplate": "%{y}: %{x:,.1f} GPUs held, not used<extra></extra>",
            "meta": {"colour": "rest"},
        },
        {
            "name": names["unknown"],
            "x": [round((group.held - group.known_held) / hours, 3) for group in shown],
            "hovertemplate": "%{y}: %{x:,.1f} GPUs held, not measured<extra></extra>",
            "marker": {"pattern": {"shape": "/"}},
            "meta": {"colour": "rest"},
        },
    ]


def _money_bar(query: UtilisationQuery, shown: Sequence[GroupUsage]) -> dict[str, Any]:
    return {
        "name": utilisation_texts.CHARGED_TRACE,
        "x": [round(float(group.charged), 2) for group in shown],
        "text": [money(group.charged, query.currency) for group in shown],
        "textposition": "auto",
        "hovertemplate": f"%{{y}}: %{{x:,.2f}} {query.currency} charged<extra></extra>",
        "meta": {"colour": "accent"},
    }


def _guarantees(shown: Sequence[GroupUsage]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "guarantee",
        "y": [group.name for group in shown],
        "x": [group.guarantee for group in shown],
        "hovertemplate": "%{y}: %{x:,.1f} GPUs guaranteed<extra></extra>",
        "marker": {"symbol": "line-ns-open", "size": 16, "line": {"width": 2}},
        "meta": {"colour": "ink"},
    }


def _row(query: UtilisationQuery, group: GroupUsage, address: str) -> list[Any]:
    name, before = group.name or utilisation_texts.NO_NAME, query.held_before
    return [
        {"text": name, "url": address} if address else name,
        grouped(group.mean_gpus, 2),
        *([] if before is None else [_change(group.mean_gpus - before.get(group.key, 0.0))]),
        "–" if group.guarantee is None else grouped(group.guarantee, 1),
        "–" if group.borrowed is None else grouped(group.borrowed / query.use_by.hours, 2),
        percent(group.utilisation),
        grouped(group.held, 1),
        percent(group.coverage),
        money(group.charged, query.currency) if query.sees_charged(group.key) else "–",
    ]


def _change(gpus: float) -> str:
    return f"{'+' if gpus > 0 else '−' if gpus < 0 else ''}{grouped(abs(gpus), 2)}"


def group_addresses(query: UtilisationQuery, groups: list[GroupUsage]) -> list[str]:
    """Return the address of the rows behind each group; "" for a group that the viewer may not open."""
    keys = [group.key for group in groups]
    found = _ADDRESSES[query.dimension](query, keys)
    return [found.get(key, "") for key in keys]


def _project_addresses(query: UtilisationQuery, keys: list[Any]) -> dict[Any, str]:
    rows = policy.visible_projects(query.viewer).filter(pk__in=keys).values_list("pk", "team__slug", "slug")
    return {pk: query.address(project=f"{team}/{slug}", by="user") for pk, team, slug in rows}


def _person_addresses(query: UtilisationQuery, keys: list[Any]) -> dict[Any, str]:
    people = policy.visible_users(query.viewer).filter(pk__in=keys)
    return {pk: query.address(person=name) for pk, name in people.values_list("pk", "username")}


def _host_addresses(query: UtilisationQuery, keys: list[Any]) -> dict[Any, str]:
    column = "pk" if query.dimension == "host" else "gpus"
    hosts = policy.visible_hosts(query.viewer).filter(**{f"{column}__in": keys})
    return {key: reverse("host", args=[name]) for key, name in hosts.values_list(column, "name")}


_ADDRESSES: dict[str, Callable[[UtilisationQuery, list[Any]], dict[Any, str]]] = {
    "team": lambda query, _: {team.pk: query.address(team=team.slug, by="project") for team in query.teams},
    "project": _project_addresses,
    "user": _person_addresses,
    "type": lambda query, keys: {key: query.address(type=key, by="user") for key in keys if key},
    "model": lambda query, _: {
        model: query.address(model=model, by="type" if query.filters.is_long else "host")
        for model in query.models
    },
    "host": _host_addresses,
    "gpu": _host_addresses,
}
