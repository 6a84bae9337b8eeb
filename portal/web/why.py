"""Why this one waits; and of work that has its GPUs or has ended, why it runs there, waited, moved or ended."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from portal.models import User
from portal.selectors import queue as reads
from portal.selectors import work
from portal.selectors.work import Piece
from portal.templatetags.gpupool import duration
from portal.web import attempts, home_cards, live
from portal.web.access import signed_in, viewer
from portal.web.queue import detail
from portal.web.work_actions import workload_of
from portal.wording import expected_starts, reasons
from scheduler.commands import LIVE
from scheduler.models import Workload
from scheduler.states import TOLD_TO_GO, WorkloadState


@signed_in
def why(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """What applies to it: what blocks one that waits and what would start sooner; of others what was decided and where they ran."""
    user, now = viewer(request), timezone.now()
    workload = workload_of(request, public_id)
    waits = workload.state == WorkloadState.QUEUED
    context = {
        "workload": workload,
        "url": home_cards.page_of(workload),
        "asked": home_cards.asked(workload),
        "is_waiting": waits,
        "question": _question(workload),
        **(_waiting(workload, user, now) if waits else {}),
        **(_so_far(workload, user, now) if workload.attempt or not waits else {}),
    }
    return live.page(
        request,
        "work/why.html",
        "work/why_part.html",
        context,
        topics=[f"workload:{workload.public_id}", "queue"],
        now=now,
    )


def _question(workload: Workload) -> str:
    """The page's heading after the name."""
    if workload.state == WorkloadState.QUEUED:
        return "waits"
    if workload.state in TOLD_TO_GO:
        return "has to go"
    if workload.state != WorkloadState.ENDED:
        return "runs where it does"
    return "ended" if workload.attempt else "never ran"


def _waiting(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    found = reads.why(workload, user, now)
    return {
        "expected": _expected(workload, found, now),
        "record": expected_starts.past_starts(found.starts.past(workload.pool_id)) if workload.expected_start else "",
        "reason": reasons.never_starts(found.never.code, found.never.numbers, user)
        if found.never
        else reasons.why_waits(workload, user),
        "detail": detail(workload, found, user, now),
    }


def _so_far(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    """Of work that was placed at least once, or has ended."""
    piece = work.pieces([workload], now)[0]
    tried = attempts.rows(piece, user)
    return {
        "state": home_cards.shown_state(workload),
        "word": home_cards.state_word(piece, user),
        "where": home_cards.where(piece.held),
        "waited": _waited(workload, tried),
        "answer": _answer(piece, user),
        "attempts": tried,
        "runs_at_once": len(tried) == 1 and workload.state in LIVE,  # its first attempt, and that still runs
        "has_moved": len(tried) > 1 or workload.state == WorkloadState.QUEUED,
        "decisions": attempts.decisions(workload, user),
    }


def _waited(workload: Workload, tried: list[dict[str, Any]]) -> str:
    """From when it was asked for to its first GPUs, or to its end without any."""
    until = tried[-1]["placed_at"] if tried else workload.ended_at
    return duration(until - workload.submitted_at) if until else ""


def _answer(piece: Piece, user: User) -> str:
    """Why it is as it is, in a sentence."""
    workload = piece.workload
    if workload.state == WorkloadState.ENDED:
        return home_cards.how_it_ended(piece, user)
    if workload.state in TOLD_TO_GO:
        return home_cards.why_it_goes(piece, user)
    return reasons.reason(workload.reason_code, workload.reason_numbers, user)


def _expected(workload: Workload, found: reads.Why, now: datetime) -> str:
    if found.never is None:
        return expected_starts.likely_start(workload.expected_start, found.starts.likely(workload), now)
    return "when its team may hold more" if found.never.may_be_granted else "never, as it is asked for"
