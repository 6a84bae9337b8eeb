"""Render the home page: own workloads, team panels, free GPUs and upcoming events."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.reads.fleet import free_capacity
from portal.reads.work import job_arrays, team_summaries, wait_explanation, workload_details
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import money, money_sums, short_duration
from portal.web.home.finance import finance_panels
from portal.web.home.panels import operations_panel, team_panel, upcoming_rows
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.organisation import current_currency, current_organisation
from portal.web.work import explanation, workload_card, workload_text
from portal.wording import state_labels
from portal.wording.pages import home_pages
from portal.wording.request_texts import requested_units_text
from scheduler.state.states import WorkloadState

MAX_CARDS = 12
MAX_ENDED_ROWS = 8


@login_not_required
def home(request: HttpRequest) -> HttpResponseBase:
    """Render the home page or its live part. Before an organisation exists, redirect to the setup wizard."""
    return redirect("first-run") if current_organisation(request) is None else _home(request)


@sign_in_required
def _home(request: HttpRequest) -> HttpResponse:
    user, now = current_user(request), timezone.now()
    currency = current_currency(request)
    context = _home_context(user, currency, now)
    if request.GET.get("part") != "live":
        # The figures of finance change slowly and take many queries, so they are not in the live part.
        two_people = bool(getattr(current_organisation(request), "two_step_close", False))
        context["money"] = finance_panels(user, currency, now, two_people=two_people)
    return live_refresh.render_live_page(
        request,
        "work/home.html",
        "work/home_part.html",
        context,
        topics=[f"user:{user.pk}", "queue"],
        now=now,
    )


def _home_context(user: User, currency: str, now: datetime) -> dict[str, Any]:
    workloads = list(
        job_arrays.first_open_task_only(workload_details.own_open_workloads(user))[: MAX_CARDS + 1]
    )
    all_details = workload_details.workload_details(workloads[:MAX_CARDS], user, now)
    all_details.sort(key=_card_order)
    midnight = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    ended = workload_details.workload_details(
        job_arrays.first_ended_task_only(workload_details.own_ended_workloads(user, midnight))[
            :MAX_ENDED_ROWS
        ],
        user,
        now,
        with_use=False,
    )
    wholes = job_arrays.array_totals((details.workload for details in (*all_details, *ended)), user, now)
    panels = team_summaries.team_summaries(user, now)
    lines = free_capacity.free_capacity(user, now)
    return {
        "counts": _counts_sentence(all_details, len(workloads) > MAX_CARDS) if panels or all_details else "",
        "heading": "My work" if panels or all_details else "Today",
        "cards": [
            {
                **workload_card.build_card(details, user, currency, now),
                **_alternatives_of_card(details, now),
                **_array_card(details, wholes, currency),
            }
            for details in all_details
        ],
        "more": len(workloads) > MAX_CARDS,
        "ended": [
            _ended_row(details, user, currency)
            | _ended_array_row(wholes.get(details.workload.array_id or 0), currency)
            for details in ended
        ],
        "panels": [team_panel(panel, currency, now) for panel in panels],
        "sees_all_charges": policy.sees_all_charges(user),
        "operations": operations_panel(user, now),
        "free": lines,
        "several_pools": len({line.pool.pk for line in lines}) > 1,
        "coming": upcoming_rows(user, now),
        "currency": currency,
    }


def _array_card(
    details: WorkloadDetails, wholes: dict[int, job_arrays.JobArrayTotals], currency: str
) -> dict[str, Any]:
    """Return the card fields that describe the whole array of an array task; {} for other workloads."""
    whole = wholes.get(details.workload.array_id or 0)
    if whole is None:
        return {}
    words = home_pages.array_note(
        job_arrays.array_summary(whole.row),
        workload_text.units_text(whole.held),
        "" if whole.cost is None else money_sums(whole.cost),
    )
    return {
        "title": whole.row.name,
        "url": reverse("array", args=[whole.row.public_id]),
        "what": words,
        "actions": [],
    }


def _ended_array_row(whole: job_arrays.JobArrayTotals | None, currency: str) -> dict[str, Any]:
    """Return the row fields that describe an array whose tasks have all ended; {} without an array."""
    if whole is None:
        return {}
    row = whole.row
    return {
        "name": row.name,
        "tasks": job_arrays.array_summary(row),
        "url": reverse("array", args=[row.public_id]),
        "state": whole.state,
        "word": state_labels.array_state_label(row),
        "ran": "did not run" if row.began is None else short_duration(row.over - row.began),
        "cost": money(Decimal(0), currency)
        if row.began is None
        else money_sums(whole.cost or {}) or "unknown",
        "relaunch": None,
    }


def _card_order(details: WorkloadDetails) -> tuple[int, int, datetime]:
    """Return the sort key of a card.

    The order is: workloads with a notice of their stop, then running, stopping, starting and waiting ones.
    """
    workload = details.workload
    rank = {
        WorkloadState.NOTICE: 0,
        WorkloadState.RUNNING: 1,
        WorkloadState.STOPPING: 2,
        WorkloadState.STARTING: 3,
        WorkloadState.PLACED: 3,
        WorkloadState.QUEUED: 4,
    }[WorkloadState(workload.state)]
    return (rank, workload.position or 0, workload.submitted_at)


def _counts_sentence(all_details: list[WorkloadDetails], more: bool) -> str:
    states = [details.workload.state for details in all_details]
    running = sum(state in workload_card.RUNNING_STATES for state in states)
    starting = sum(state in workload_card.STARTING_STATES for state in states)
    waiting = sum(state == WorkloadState.QUEUED for state in states)
    words = [
        f"{n} {word}" for n, word in ((running, "running"), (starting, "starting"), (waiting, "waiting")) if n
    ]
    if not words:
        return home_pages.NOTHING_OF_YOURS
    return f"{', '.join(words)}{' and more' if more else ''}."


def _alternatives_of_card(details: WorkloadDetails, now: datetime) -> dict[str, Any]:
    """Return the faster alternatives of a waiting workload if they are cached.

    Otherwise return the URL from which the page loads them later, because they take time to compute.
    """
    workload = details.workload
    if workload.state != WorkloadState.QUEUED or not workload.reason_code:
        return {}
    known = wait_explanation.cached_faster_requests(workload)
    if known is None:
        return {"sooner_url": reverse("sooner", args=[workload.public_id])}
    return {
        "sooner": explanation.alternative_rows(workload, known[: explanation.MAX_ALTERNATIVES_ON_CARD], now)
    }


def _ended_row(details: WorkloadDetails, user: User, currency: str) -> dict[str, Any]:
    workload = details.workload
    return {
        "name": workload.name,
        "url": workload_text.workload_url(workload),
        "state": workload_text.ended_state(workload.outcome, ran=workload.attempt > 0),
        "word": workload_text.state_label(details, user),
        "asked": workload_text.held_units_text(details.had) or requested_units_text(workload),
        "ran": workload_text.run_time_text(details),
        "cost": workload_text.final_cost_text(details, currency),
        "relaunch": reverse("workload-relaunch", args=[workload.public_id]),
    }
