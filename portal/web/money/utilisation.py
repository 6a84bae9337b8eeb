"""Render the utilisation page: charts of GPU-hours, users, waiting times and savings, with tables and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.input_checks import display_value
from portal.models import User
from portal.reads.fleet import utilisation as reads
from portal.web.components.quantities import grouped, money, percent, short_duration
from portal.web.money import utilisation_charts, utilisation_query, waiting_charts
from portal.web.page.access import InvalidAddress, current_user, sign_in_required
from portal.web.page.csv_export import csv_response
from portal.web.page.organisation import current_currency
from portal.wording.pages import money_pages
from telemetry.money.billing_months import month_bounds, month_of, next_month
from telemetry.reads.usage_filters import UsageFilters, data_freshness

PERIODS = (
    ("24h", "24 hours"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("month", "This month"),
    ("last", "Last month"),
)
MAX_PERIOD_DAYS = 400


@sign_in_required
def utilisation(request: HttpRequest) -> HttpResponseBase:
    """Render the charts.

    The query string chooses the ``period`` (or ``start`` and ``end``), and filters by ``pool``, ``team`` and
    ``model``.
    """
    user, now = current_user(request), timezone.now()
    usage_query = _utilisation_query(request, user, now)
    charts = {
        name: utilisation_charts.make_chart(name, usage_query) for name in utilisation_charts.CHART_ORDER
    }
    query = _query_string(request)
    fall = usage_query.waterfall
    saving = usage_query.saving
    waits = usage_query.waits_by_size
    context = {
        "charts": [
            {
                "chart": chart,
                "csv": f"{reverse('utilisation-csv', args=[name])}{query}",
                "name": name,
                "height": chart.height,
            }
            for name, chart in charts.items()
        ],
        "figures": _figures(usage_query, fall, saving, waits),
        "start": usage_query.filters.start,
        # The current hour is incomplete.
        "end": max(min(usage_query.filters.end, now), usage_query.filters.start),
        "coverage": fall.coverage,
        "freshness": data_freshness(),
        "periods": _choices(request, "period", PERIODS, request.GET.get("period", "7d")),
        "pools": _choices(
            request,
            "pool",
            (("", "All pools"), *((p.slug, p.name) for p in usage_query.pools)),
            request.GET.get("pool", ""),
        ),
        "teams": _choices(
            request,
            "team",
            (("", "All teams"), *((t.slug, t.name) for t in usage_query.teams)),
            request.GET.get("team", ""),
        ),
        "models": _choices(
            request,
            "model",
            (("", "All models"), *((m, m) for m in usage_query.models)),
            request.GET.get("model", ""),
        ),
        "dimensions": _choices(request, "by", utilisation_query.DIMENSIONS, usage_query.dimension),
        "simulated": reads.has_simulated_use(usage_query.filters),
        "now": now,
    }
    return render(request, "manage/utilisation.html", context)


@sign_in_required
def utilisation_csv(request: HttpRequest, chart: str) -> HttpResponseBase:
    """Return the data of one chart as a CSV download."""
    if chart not in utilisation_charts.CHART_ORDER:
        raise InvalidAddress(
            money_pages.CHART_UNKNOWN.format(
                given=chart[:30], allowed=", ".join(utilisation_charts.CHART_ORDER)
            )
        )
    made = utilisation_charts.make_chart(
        chart, _utilisation_query(request, current_user(request), timezone.now())
    )
    return csv_response(f"{chart}.csv", utilisation_charts.CSV_COLUMNS[chart], made.raw)


def _utilisation_query(request: HttpRequest, user: User, now: datetime) -> utilisation_query.UtilisationQuery:
    start, end = _period(request, now)
    pools = list(policy.visible_pools(user).order_by("name"))
    teams = list(policy.visible_teams(user).order_by("name"))
    models = reads.visible_gpu_models(user)
    pool, team = _chosen(request, "pool", pools), _chosen(request, "team", teams)
    model = request.GET.get("model", "")
    if model and model not in models:
        raise _unknown_choice("model", model, models)
    dimension = request.GET.get("by", "team")
    if dimension not in dict(utilisation_query.DIMENSIONS):
        raise InvalidAddress(
            money_pages.DIMENSION_UNKNOWN.format(
                given=dimension[:30], allowed=", ".join(dict(utilisation_query.DIMENSIONS))
            )
        )
    return utilisation_query.UtilisationQuery(
        filters=UsageFilters(
            currency=current_currency(request),
            start=start,
            end=end,
            pool=pool.pk if pool else None,
            team=team.pk if team else None,
            model=model,
        ),
        mine=None if policy.sees_all_teams(user) or policy.sees_all_charges(user) else [t.pk for t in teams],
        viewer=user,
        dimension=dimension,
        pools=pools,
        teams=teams,
        models=models,
        now=now,
        currency=current_currency(request),
    )


def _chosen(request: HttpRequest, field: str, rows: Sequence[Any]) -> Any:
    """Return the row with the slug that the parameter names; None without the parameter."""
    slug = request.GET.get(field, "")
    row = next((row for row in rows if row.slug == slug), None)
    if slug and row is None:
        raise _unknown_choice(field, slug, [row.slug for row in rows])
    return row


def _unknown_choice(field: str, given: str, allowed: Sequence[str]) -> InvalidAddress:
    listed = ", ".join(allowed) or money_pages.NOTHING_ALLOWED
    return InvalidAddress(
        money_pages.FILTER_UNKNOWN.format(field=field, given=display_value(given), allowed=listed)
    )


def _period(request: HttpRequest, now: datetime) -> tuple[datetime, datetime]:
    """Return (start, end) of the chosen period. A named period until now ends with the current hour.

    Raises InvalidAddress for an invalid period; the message names the allowed values.
    """
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    if request.GET.get("start") or request.GET.get("end"):
        return _custom_period(request.GET.get("start", ""), request.GET.get("end", ""))
    name = request.GET.get("period", "7d")
    if name == "month":
        return month_bounds(month_of(now))[0], hour
    if name == "last":
        last = (month_of(now) - timedelta(days=1)).replace(day=1)
        return month_bounds(last)[0], month_bounds(next_month(last))[0]
    days = {"24h": 1, "7d": 7, "30d": 30}
    if name not in days:
        raise InvalidAddress(
            money_pages.PERIOD_UNKNOWN.format(given=name[:20], allowed=", ".join(dict(PERIODS)))
        )
    return hour - timedelta(days=days[name]), hour


def _custom_period(first: str, last: str) -> tuple[datetime, datetime]:
    try:
        start, end = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (first, last))
    except ValueError:
        raise InvalidAddress(money_pages.NOT_TWO_DATES) from None
    if not start < end <= start + timedelta(days=MAX_PERIOD_DAYS) or start.year < 2000 or end.year > 2200:
        raise InvalidAddress(money_pages.PERIOD_LENGTH.format(end=last[:20], days=MAX_PERIOD_DAYS))
    return start, end


def _query_string(request: HttpRequest) -> str:
    query = request.GET.copy()
    return f"?{query.urlencode()}" if query else ""


def _choices(request: HttpRequest, name: str, choices: Any, current: str) -> list[dict[str, Any]]:
    rows = []
    for value, label in choices:
        query = request.GET.copy()
        query[name] = value
        if name == "period":
            query.pop("start", None)
            query.pop("end", None)
        rows.append({"label": label, "url": f"?{query.urlencode()}", "current": value == current})
    return rows


def _figures(
    usage_query: utilisation_query.UtilisationQuery, fall: Any, saving: Any, waits: Any
) -> list[dict[str, Any]]:
    by_key = {step.key: step for step in fall.steps}
    free = sum(by_key[key].share for key in ("unhealthy", "maintenance", "unallocated") if key in by_key)
    unused = [by_key[key] for key in ("reserved_unused", "empty", "idle") if key in by_key]
    half, most = waiting_charts.wait_of_most_frequent_size(waits)
    return [
        {"label": "Productive", "value": percent(fall.productive_share, 1), "small": "of capacity"},
        {
            "label": "Held or reserved",
            "value": percent(1 - free if fall.gpu_hours else None, 1),
            "small": "of capacity",
        },
        {
            "label": money_pages.IDLE_LABEL,
            "value": f"{grouped(sum(step.gpu_hours for step in unused))} h",
            "small": money(sum((step.cost for step in unused), start=fall.cost * 0), usage_query.currency)
            if policy.sees_owner_cost(usage_query.viewer)
            else "",
        },
        {
            "label": "Typical wait",
            "value": short_duration(half),
            "small": f"1 in 20 longer than {short_duration(most)}" if most else "",
        },
        {
            "label": "Saved by pooling",
            "value": f"{grouped(saving.gpus, 1)} GPUs",
            "small": ""
            if saving.per_month is None
            else f"{money(saving.per_month, usage_query.currency)} a month",
        },
    ]
