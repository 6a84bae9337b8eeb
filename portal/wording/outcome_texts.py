"""Describe how work ended or why it is being stopped. Pages, the API and the CLI show the same sentences."""

from __future__ import annotations

from typing import Any, Protocol

from portal import policy
from portal.wording import reason_texts
from scheduler.models import Workload
from scheduler.state.states import TERMINATING_STATES, WorkloadState


class StoppedBy(Protocol):
    """The person who stopped a workload, and the reason ``why``, which may be empty.

    ``portal.reads.work.manual_stops`` reads these values from the audit record.
    """

    @property
    def user_id(self) -> int | None: ...
    @property
    def name(self) -> str: ...
    @property
    def why(self) -> str: ...


def cancelled_numbers(
    workload: Workload, stop: StoppedBy | None, viewer: policy.Viewer | None
) -> dict[str, Any]:
    """Return the values in the sentence of the reason ``cancelled``.

    ``ran`` is True if the workload ran. If a person stopped it, ``by`` is the name ("You" if this is the
    viewer), and ``why`` the reason.
    """
    ran = {"ran": workload.attempt > 0}
    if stop is None:
        return ran
    oneself = viewer is not None and stop.user_id is not None and stop.user_id == viewer.pk
    return {**ran, "by": "You" if oneself else stop.name, "why": stop.why}


def outcome_sentence(workload: Workload, stop: StoppedBy | None, viewer: policy.Viewer | None) -> str:
    """Return a sentence that says how the workload ended; "" if it has not ended."""
    return (
        reason_texts.reason_sentence(workload.outcome, current_reason_numbers(workload, stop, viewer), viewer)
        if _has_ended(workload)
        else ""
    )


def current_reason_code(workload: Workload) -> str:
    """Return the reason code for the workload's state.

    It is the outcome of an ended workload, or the reason of a stop in progress. Otherwise it is the engine's
    reason why the workload waits or has started.
    """
    if _has_ended(workload):
        return workload.outcome
    return (
        workload.stop_requested
        if workload.state in TERMINATING_STATES and workload.stop_requested
        else workload.reason_code
    )


def current_reason_numbers(
    workload: Workload, stop: StoppedBy | None, viewer: policy.Viewer | None
) -> dict[str, Any]:
    """Return the values in the sentence of the current reason.

    Takes a query only if the workload waits for a dependency.
    """
    if not _has_ended(workload) and current_reason_code(workload) == workload.reason_code:
        return reason_texts.waiting_numbers(workload)
    numbers = dict(workload.outcome_numbers) if _has_ended(workload) else {}
    if current_reason_code(workload) == "cancelled":
        numbers |= cancelled_numbers(workload, stop, viewer)
    return numbers


def current_reason_sentence(workload: Workload, stop: StoppedBy | None, viewer: policy.Viewer | None) -> str:
    """Return a sentence about the workload's state.

    It says how the workload ended, why it is being stopped, why it started, or why it waits.
    """
    return reason_texts.reason_sentence(
        current_reason_code(workload), current_reason_numbers(workload, stop, viewer), viewer
    )


def _has_ended(workload: Workload) -> bool:
    return workload.state == WorkloadState.ENDED
