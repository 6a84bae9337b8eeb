"""Explain a workload's waiting, placement, moves and end, and why other workloads start first."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.models import User
from portal.planner_budget import metered_planning
from portal.reads.work import wait_explanation, workload_details
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.components.quantities import grouped, percent, short_duration
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.access import get_visible_or_404 as found_row
from portal.web.work import attempts, workload_text
from portal.web.work.workload_actions import get_workload_or_404
from portal.wording import expected_start_texts, formatting, queue_order_texts, reason_texts
from portal.wording.pages import work_pages
from portal.wording.request_texts import requested_units_text
from scheduler.core.what_if.alternatives import Alternative, ChangedField
from scheduler.models import Workload
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import TERMINATING_STATES, WorkloadState

MAX_ALTERNATIVES_ON_CARD = 3  # the explanation page shows all alternatives


@sign_in_required
def explain_workload(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Render the explanation of a workload.

    A waiting workload shows its blockers and alternative requests. A workload that has been placed or has
    ended shows its history.
    """
    user, now = current_user(request), timezone.now()
    workload = get_workload_or_404(request, public_id)
    waits = workload.state == WorkloadState.QUEUED
    context = {
        "workload": workload,
        "url": workload_text.workload_url(workload),
        "asked": requested_units_text(workload),
        "is_waiting": waits,
        "question": _heading(workload),
        **(_waiting_context(workload, user, now) if waits else {}),
        **(_history(workload, user, now) if workload.attempt or not waits else {}),
    }
    return live_refresh.render_live_page(
        request,
        "work/why.html",
        "work/why_part.html",
        context,
        topics=[f"workload:{workload.public_id}", "queue"],
        now=now,
    )


def _heading(workload: Workload) -> str:
    """Return the part of the page heading that follows the workload's name."""
    if workload.state == WorkloadState.QUEUED:
        return "waits"
    if workload.state in TERMINATING_STATES:
        return "is being stopped"
    if workload.state != WorkloadState.ENDED:
        return "runs where it does"
    return "ended" if workload.attempt else "never ran"


def _waiting_context(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    explanation = wait_explanation.explain_wait(workload, user, now)
    return {
        "expected": _expected_start_text(workload, explanation, now),
        "record": expected_start_texts.forecast_accuracy_text(explanation.starts.past(workload.pool_id))
        if workload.expected_start
        else "",
        "reason": reason_texts.never_starts_sentence(explanation.never.code, explanation.never.numbers, user)
        if explanation.never
        else workload_text.waiting_reason(workload, user),
        "reservation_problem": reason_texts.problem_of_its_reservation(workload, user),
        "detail": explanation_columns(workload, explanation, user, now),
    }


def _history(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    """Return the history of a workload that was placed at least once or has ended."""
    details = workload_details.workload_details([workload], user, now)[0]
    tried = attempts.attempt_rows(details, user)
    return {
        "state": workload_text.displayed_state(workload),
        "word": workload_text.state_label(details, user),
        "where": workload_text.location_text(details.held),
        "waited": _waiting_time(workload, tried),
        "answer": _state_sentence(details, user),
        "attempts": tried,
        "runs_at_once": len(tried) == 1 and workload.state in LIVE_STATES,
        "has_moved": len(tried) > 1 or workload.state == WorkloadState.QUEUED,
        "decisions": attempts.decision_rows(workload, user),
    }


def _waiting_time(workload: Workload, tried: list[dict[str, Any]]) -> str:
    """Return the time from the submission to the first placement.

    For a workload that was never placed, return the time until its end; "" if it has not ended.
    """
    until = tried[-1]["placed_at"] if tried else workload.ended_at
    return short_duration(until - workload.submitted_at) if until else ""


def _state_sentence(details: WorkloadDetails, user: User) -> str:
    """Return a sentence that explains the workload's present state."""
    workload = details.workload
    if workload.state == WorkloadState.ENDED:
        return workload_text.outcome_sentence(details, user)
    if workload.state in TERMINATING_STATES:
        return workload_text.stop_reason(details, user)
    return reason_texts.reason_sentence(workload.reason_code, workload.reason_numbers, user)


def _expected_start_text(
    workload: Workload, explanation: wait_explanation.WaitExplanation, now: datetime
) -> str:
    if explanation.never is None:
        return expected_start_texts.expected_start_text(
            workload.expected_start, explanation.starts.likely(workload), now
        )
    return "after a larger quota" if explanation.never.may_be_granted else "never, as requested"


@sign_in_required
def faster_alternatives(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Render the line of a card that lists faster alternatives.

    The page loads this line after everything else, because planning takes time.
    """
    now = timezone.now()
    workload = get_workload_or_404(request, public_id)
    with metered_planning(current_user(request), now):
        alternatives = wait_explanation.faster_requests(workload, now)[:MAX_ALTERNATIVES_ON_CARD]
    return render(request, "work/sooner.html", {"sooner": alternative_rows(workload, alternatives, now)})


@sign_in_required
def compare_turns(request: HttpRequest, public_id: uuid.UUID, other: uuid.UUID) -> HttpResponse:
    """Render the rule of the queue order that decides between this workload and another workload."""
    user, now = current_user(request), timezone.now()
    workload, other_workload = get_workload_or_404(request, public_id), get_workload_or_404(request, other)
    with metered_planning(user, now):
        comparison = wait_explanation.compare_in_queue(workload, other_workload, now)
    context = {
        "mine": workload,
        "theirs": other_workload,
        "sides": [
            _compared_workload("The other", other_workload, now),
            _compared_workload("Yours" if workload.owner_id == user.pk else "This one", workload, now),
        ],
        "rule": queue_order_texts.queue_order_sentence(comparison.rule, comparison.numbers)
        if comparison
        else "",
        "not_compared": "" if comparison else queue_order_texts.not_comparable(workload, other_workload),
        "without": queue_order_texts.start_without_other(
            workload.name,
            other_workload.name,
            ""
            if comparison.without_starts
            else reason_texts.reason_sentence(comparison.without_code, comparison.without_numbers, user),
        )
        if comparison
        else "",
    }
    return render(request, "work/why_them.html", context)


@sign_in_required
def fair_share_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Render each team's guarantee, use, share and borrowed GPUs in a pool."""
    user, now = current_user(request), timezone.now()
    pool = found_row(policy.visible_pools(user), "pool", slug=slug)
    mine = set(policy.my_team_ids(user).values_list("team_id", flat=True))
    with metered_planning(user, now):
        rows = wait_explanation.fair_share_rows(pool, mine, now)
    context = {
        "pool": pool,
        "rows": fair_share_rows(rows),
        "half_life": short_duration(pool.half_life_seconds),
    }
    return live_refresh.render_live_page(
        request, "work/fairness.html", "work/fairness_part.html", context, topics=["queue"], now=now
    )


def explanation_columns(
    workload: Workload, explanation: wait_explanation.WaitExplanation, user: User, now: datetime
) -> dict[str, Any]:
    """Return the columns of an explanation: blockers, workloads ahead, alternatives, and fair share."""
    return {
        "blockers": [_blocker_row(workload, blocker, user, now) for blocker in explanation.blockers],
        "ahead": [
            {
                "name": row.workload.name,
                "url": workload_text.workload_url(row.workload),
                "team": row.workload.project.team,
                "because": queue_order_texts.earlier_because(row.part, row.earlier, row.shorter),
                "why_url": reverse("why-them", args=[workload.public_id, row.workload.public_id]),
            }
            for row in explanation.ahead
        ],
        "ahead_more": explanation.ahead_more,
        "sooner": alternative_rows(workload, explanation.sooner, now),
        "windows": [_window_row(other) for other in explanation.windows],
        "window_needs": _reservation_note(explanation.windows),
        # A workload that can never start does not wait because of fair share.
        "fairness": []
        if explanation.never and not explanation.never.may_be_granted
        else fair_share_rows(explanation.fairness),
        "them": bool(explanation.blockers or explanation.ahead or explanation.ahead_more),
        "half_life": short_duration(workload.pool.half_life_seconds),
    }


def fair_share_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with GPUs and GPU-hours as text."""
    return [
        {
            **row,
            "guaranteed": workload_text.gpu_count_text(row["guaranteed"]),
            "held": workload_text.gpu_count_text(row["held"]),
            "borrowed": workload_text.gpu_count_text(row["borrowed"]),
            "waiting": workload_text.gpu_count_text(row["waiting"]),
            "gpu_hours": grouped(row["gpu_hours"]),
            "share": percent(row["share"]),
            "fair_share": percent(row["fair_share"]),
            "ratio": "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
        }
        for row in rows
    ]


def _compared_workload(whose: str, workload: Workload, now: datetime) -> dict[str, Any]:
    """Return the facts about one of two compared workloads that matter for the queue order.

    ``whose`` is the heading of its column.
    """
    waits = workload.state == WorkloadState.QUEUED
    return {
        "whose": whose,
        "workload": workload,
        "url": workload_text.workload_url(workload),
        "state": workload_text.displayed_state(workload),
        "facts": [
            ("Requests", requested_units_text(workload)),
            ("Priority", formatting.PRIORITY_WORDS[workload.priority]),
            ("Submitted", formatting.date_and_time(workload.submitted_at)),
            ("Expected to run", short_duration(workload.predicted_seconds)),
            ("May be preempted", "yes" if workload.preemptible else "no"),
            ("Place", str(workload.position or "–") if waits else "has its GPUs"),
        ],
    }


def alternative_rows(
    workload: Workload, alternatives: list[Alternative], now: datetime
) -> list[dict[str, Any]]:
    """Return the rows of requests that would start sooner, each with the URL of the filled-in form."""
    return [_alternative_row(workload, other, now) for other in alternatives]


def _blocker_row(
    waiting: Workload, blocker: wait_explanation.Blocker, user: User, now: datetime
) -> dict[str, Any]:
    workload = blocker.workload
    until = ""
    if blocker.state == WorkloadState.QUEUED:
        until = (
            f"starts earlier, at position {workload.position}"
            if workload and workload.position
            else "starts earlier"
        )
    elif blocker.ends_at is not None:
        local = timezone.localtime(blocker.ends_at)
        today = local.date() == timezone.localtime(now).date()
        until = (
            f"runs until {local:%H:%M}" if today else f"runs until {local:%a} {local.day} {local:%b %H:%M}"
        )
        until += " at the latest"
    return {
        "name": workload.name if workload else work_pages.WORK_OF_ANOTHER_TEAM,
        "url": workload_text.workload_url(workload) if workload else "",
        "why_url": reverse("why-them", args=[waiting.public_id, workload.public_id])
        if workload and workload.pool_id == waiting.pool_id and waiting.state == WorkloadState.QUEUED
        else "",
        "team": blocker.team,
        "where": ", ".join(
            part
            for part in (
                workload_text.held_units_text(blocker.held),
                workload_text.location_text(blocker.held) if workload else "",
            )
            if part
        ),
        "until": until,
    }


def _alternative_row(workload: Workload, other: Alternative, now: datetime) -> dict[str, Any]:
    label = expected_start_texts.alternative_request_text(other)
    starts = "now"
    if not other.starts_now and other.expected_start is not None:
        local = timezone.localtime(
            datetime.fromtimestamp(other.expected_start, tz=timezone.get_current_timezone())
        )
        starts = (
            f"{local:%H:%M}"
            if local.date() == timezone.localtime(now).date()
            else f"{local:%a} {local.day} {local:%b %H:%M}"
        )
    query = request_form_query(other, workload.pool.slug)
    page = f"{reverse('ask')}?kind={workload.kind}&from={workload.public_id}&{query}"
    return {"label": label, "starts": starts, "now": other.starts_now, "url": page}


def _window_row(other: wait_explanation.AlternativeWindow) -> dict[str, Any]:
    """Return the row of a free window, with the URL of the filled-in form.

    The URL is "" if the form cannot express the request.
    """
    start, end = timezone.localtime(other.start), timezone.localtime(other.end)
    given = {
        "kind": "reservation",
        "from": other.workload.public_id,
        "start": start.isoformat(),
        "end": end.isoformat(),
    }
    url = f"{reverse('ask')}?{urlencode(given)}" if other.in_form else ""
    return {"words": formatting.window(other.start, other.end), "url": url}


def _reservation_note(windows: list[wait_explanation.AlternativeWindow]) -> str:
    """Return the effect of a reservation in one of these windows, and whether it needs an approval."""
    if not windows:
        return ""
    workload = windows[0].workload
    needs = work_pages.OPERATOR_AGREES if windows[0].needs_approval else work_pages.CONFIRMED_AT_ONCE
    request = requested_units_text(workload)
    return work_pages.RESERVATION_NOTE.format(request=request, team=workload.project.team.name, needs=needs)


def request_form_query(other: Alternative, pool: str) -> str:
    """Return the query string that fills in the request form with an alternative request."""
    ask = other.ask
    given = {"units": str(ask.units), "target": f"{pool}|{ask.models[0] if ask.models else ''}|{ask.profile}"}
    values = {
        ChangedField.HOSTS: ("hosts", str(ask.hosts)),
        ChangedField.RUNTIME: ("seconds", str(other.max_runtime_seconds)),
        ChangedField.PREEMPTIBLE: ("preemptible", "1"),
        ChangedField.PRIORITY: ("priority", formatting.PRIORITY_WORDS[int(other.priority)]),
    }
    return urlencode(given | dict(values[changed] for changed in other.changed if changed in values))
