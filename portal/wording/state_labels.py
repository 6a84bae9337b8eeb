"""Label the states and outcomes of workloads and arrays, and the steps of a start."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from portal.wording.reason_texts import waiting_sentence
from scheduler.models import Run, Workload

# States, each with (shape in icons.svg, label, tone). The shape and the label identify the state without the
# tone, which is a colour.
WORKLOAD_STATES: dict[str, tuple[str, str, str]] = {
    "queued": ("queued", "Queued", "queued"),
    "placed": ("starting", "Placed", "starting"),
    "starting": ("starting", "Starting", "starting"),
    "running": ("running", "Running", "running"),
    "notice": ("ending", "Asked to stop", "ending"),
    "stopping": ("ending", "Stopping", "ending"),
}

OUTCOMES: dict[str, tuple[str, str, str]] = {
    "finished": ("ended", "Finished", "ended"),
    "failed": ("failed", "Failed", "failed"),
    "cancelled": ("cancelled", "Cancelled", "ended"),
    "time_limit": ("ended", "Time limit", "ended"),
    "idle": ("idle", "Idle", "idle"),
    "checkpointed": ("ended", "Checkpointed", "ended"),
    "killed_at_grace": ("failed", "Killed", "failed"),
    "out_of_memory": ("failed", "Out of memory", "failed"),
    "out_of_disk": ("failed", "Out of disk", "failed"),
    "disk_ran_low": ("failed", "Disk ran low", "failed"),
    "gpu_error": ("failed", "GPU error", "failed"),
    "host_lost": ("lost", "Host lost", "failed"),
    "lease_lost": ("lost", "Host lost", "failed"),
    "start_failed": ("failed", "Could not start", "failed"),
    "prolog_failed": ("failed", "Could not start", "failed"),
    "host_full": ("failed", "Could not start", "failed"),
    "gpu_unreadable": ("failed", "Could not start", "failed"),
    "drained": ("cancelled", "Drained", "ended"),
    "reservation_over": ("ended", "Reservation over", "ended"),
    "budget_closed": ("ended", "Budget used up", "ended"),
    "dependency_never_met": ("cancelled", "Dependency not met", "ended"),
}


def is_waiting_to_resume(workload: Workload) -> bool:
    """Return True if the workload ran before and is queued again.

    Return False for a workload that was placed before but never ran.
    """
    return workload.state == "queued" and workload.started_at is not None


def workload_state_label(workload: Workload, by: str = "") -> tuple[str, str, str]:
    """Return (shape, label, tone) of a workload's state, or of its outcome if it has ended.

    ``by`` is the name of the person who cancelled it, or "".
    """
    if is_waiting_to_resume(workload):
        return ("preempted", "Waits to resume", "queued")
    if workload.state == "ended" and workload.outcome == "cancelled":
        return ("cancelled", f"Cancelled by {by}" if by else "Cancelled", "ended")
    if workload.state == "ended":
        return OUTCOMES.get(workload.outcome, ("ended", "Ended", "ended"))
    return WORKLOAD_STATES[workload.state]


def array_state_label(array: Any) -> str:
    """Return the label of a whole array. The array was loaded with its task counts."""
    if array.running or array.waiting:
        return "Running" if array.running else "Waiting"
    if array.failed:
        return f"{array.failed} failed"
    return "Finished" if array.finished else "Cancelled"


def start_steps(workload: Workload, run: Run | None) -> list[dict[str, Any]]:
    """Return the steps of a start, in order.

    Each step has a label ``word``, the time ``at`` (None if it has not happened), a ``state`` (done, now or
    ahead) and a text ``detail``, which may be empty. ``run`` is the first run of the current attempt; it is
    None while the workload waits.
    """
    notebook = workload.kind == "notebook"
    where = f"on {run.host.name}" if run else ""
    marks: list[tuple[str, datetime | None, str]] = [
        ("Queued", workload.queued_at, waiting_sentence(workload) if run is None else ""),
        ("Placed", run.placed_at if run else None, where),
        ("Starting", run.starting_at if run else None, run.step if run else ""),
        ("Running", run.running_at if run else None, ""),
    ]
    if notebook:
        marks.append(("Ready", run.ready_at if run else None, ""))
    last = max((index for index, (_, at, _) in enumerate(marks) if at is not None), default=0)
    complete = last == len(marks) - 1
    return [
        {
            "word": word,
            "at": at,
            "state": _step_state(index, last, complete=complete),
            "detail": detail,
        }
        for index, (word, at, detail) in enumerate(marks)
    ]


def _step_state(step: int, last: int, *, complete: bool) -> str:
    """Return the state of a step: done, now or ahead.

    ``step`` is its number. ``last`` is the number of the last step that has a time. ``complete`` is True if
    this is the final step.
    """
    if step == last:
        return "done" if complete else "now"
    return "done" if step < last else "ahead"
