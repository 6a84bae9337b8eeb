"""Why this one waits; and of work that has its GPUs or has ended, why it runs there, waited, moved or ended."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from portal.models import User
from portal.reads.work import wait_explanation, workload_details
from portal.reads.work.workload_details import WorkloadDetails
from portal.templatetags.gpupool import duration
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.work import attempts, workload_card
from portal.web.work.queue import explanation_columns
from portal.web.work.workload_actions import get_workload_or_404
from portal.wording import expected_start_texts, reason_texts
from scheduler.models import Workload
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import TERMINATING_STATES, WorkloadState


@sign_in_required
def explain_workload(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """What applies to it: what blocks one that waits and what would start sooner; of others what was decided and where they ran."""
    user, now = current_user(request), timezone.now()
    workload = get_workload_or_404(request, public_id)
    waits = workload.state == WorkloadState.QUEUED
    context = {
        "workload": workload,
        "url": workload_card.workload_url(workload),
        "asked": workload_card.requested_units_text(workload),
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
    """The page's heading after the name."""
    if workload.state == WorkloadState.QUEUED:
        return "waits"
    if workload.state in TERMINATING_STATES:
        return "has to go"
    if workload.state != WorkloadState.ENDED:
        return "runs where it does"
    return "ended" if workload.attempt else "never ran"


def _waiting_context(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    found = wait_explanation.explain_wait(workload, user, now)
    return {
        "expected": _expected_start_text(workload, found, now),
        "record": expected_start_texts.forecast_accuracy_text(found.starts.past(workload.pool_id))
        if workload.expected_start
        else "",
        "reason": reason_texts.never_starts_sentence(found.never.code, found.never.numbers, user)
        if found.never
        else reason_texts.waiting_sentence(workload, user),
        "detail": explanation_columns(workload, found, user, now),
    }


def _history(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    """Of work that was placed at least once, or has ended."""
    piece = workload_details.workload_details([workload], now)[0]
    tried = attempts.attempt_rows(piece, user)
    return {
        "state": workload_card.displayed_state(workload),
        "word": workload_card.state_label(piece, user),
        "where": workload_card.location_text(piece.held),
        "waited": _waiting_time(workload, tried),
        "answer": _state_sentence(piece, user),
        "attempts": tried,
        "runs_at_once": len(tried) == 1
        and workload.state in LIVE_STATES,  # its first attempt, and that still runs
        "has_moved": len(tried) > 1 or workload.state == WorkloadState.QUEUED,
        "decisions": attempts.decision_rows(workload, user),
    }


def _waiting_time(workload: Workload, tried: list[dict[str, Any]]) -> str:
    """From when it was asked for to its first GPUs, or to its end without any."""
    until = tried[-1]["placed_at"] if tried else workload.ended_at
    return duration(until - workload.submitted_at) if until else ""


def _state_sentence(piece: WorkloadDetails, user: User) -> str:
    """Why it is as it is, in a sentence."""
    workload = piece.workload
    if workload.state == WorkloadState.ENDED:
        return workload_card.outcome_sentence(piece, user)
    if workload.state in TERMINATING_STATES:
        return workload_card.stop_reason(piece, user)
    return reason_texts.reason_sentence(workload.reason_code, workload.reason_numbers, user)


def _expected_start_text(workload: Workload, found: wait_explanation.WaitExplanation, now: datetime) -> str:
    if found.never is None:
        return expected_start_texts.expected_start_text(
            workload.expected_start, found.starts.likely(workload), now
        )
    return "when its team may hold more" if found.never.may_be_granted else "never, as it is asked for"
