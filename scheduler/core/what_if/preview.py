"""Preview the plan's decision about a workload that is not submitted yet."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.snapshot import QueuedWorkload, Snapshot
from scheduler.core.planner import plan


def preview(snapshot: Snapshot, queued: QueuedWorkload, now: int) -> Placement | Refusal:
    """Return the plan's decision about a workload as if it had been submitted.

    A waiting workload with the same id is replaced.
    """
    overlay = replace(snapshot, queued=(*(q for q in snapshot.queued if q.id != queued.id), queued))
    return _answer(overlay, queued.id, now)


def _answer(snapshot: Snapshot, workload: int, now: int) -> Placement | Refusal:
    planned = plan(snapshot, now)
    answers: list[Placement | Refusal] = [*planned.placements, *planned.refusals]
    return next(answer for answer in answers if answer.workload == workload)
