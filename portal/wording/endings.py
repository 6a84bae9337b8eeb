"""How work ended or why it is told to go, in a sentence: the same on pages, in the API and on the command line."""

from __future__ import annotations

from typing import Any

from portal import policy
from portal.selectors.stops import Stop
from portal.wording import reasons
from scheduler.models import Workload
from scheduler.states import TOLD_TO_GO, WorkloadState


def stop_numbers(workload: Workload, stop: Stop | None, viewer: policy.Viewer | None) -> dict[str, Any]:
    """Numbers of the reason ``cancelled``."""
    ran = {"ran": workload.attempt > 0}
    if stop is None:
        return ran
    oneself = viewer is not None and stop.user_id is not None and stop.user_id == viewer.pk
    return {**ran, "by": "You" if oneself else stop.name, "why": stop.why}


def how_it_ended(workload: Workload, stop: Stop | None, viewer: policy.Viewer | None) -> str:
    """In a sentence; empty while it has not ended."""
    return reasons.reason(workload.outcome, numbers_of(workload, stop, viewer), viewer) if _has_ended(workload) else ""


def code_now(workload: Workload) -> str:
    """The reason code of what is so now: of its end, of why it is told to go, else of why it waits or started."""
    if _has_ended(workload):
        return workload.outcome
    return workload.stop_requested if workload.state in TOLD_TO_GO and workload.stop_requested else workload.reason_code


def numbers_of(workload: Workload, stop: Stop | None, viewer: policy.Viewer | None) -> dict[str, Any]:
    """The numbers of that code. A query for work that waits for other work only."""
    if not _has_ended(workload) and code_now(workload) == workload.reason_code:
        return reasons.why_numbers(workload)
    numbers = dict(workload.outcome_numbers) if _has_ended(workload) else {}
    if code_now(workload) == "cancelled":
        numbers |= stop_numbers(workload, stop, viewer)
    return numbers


def why_now(workload: Workload, stop: Stop | None, viewer: policy.Viewer | None) -> str:
    """How it ended, why it is told to go, why it started, or why it waits: what is so now."""
    return reasons.reason(code_now(workload), numbers_of(workload, stop, viewer), viewer)


def _has_ended(workload: Workload) -> bool:
    return workload.state == WorkloadState.ENDED
