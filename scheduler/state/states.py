"""Define the states of the scheduler's rows and the allowed transitions.

``TRANSITIONS`` has one table per kind of state. A change is a compare-and-swap: ``change_state`` updates the
row only if the row still has the old state. If two processes race, one succeeds and the other gets False.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from django.db import models


class WorkloadState(StrEnum):
    QUEUED = "queued"
    PLACED = "placed"  # the workload holds units, but no agent has started it
    STARTING = "starting"
    RUNNING = "running"
    NOTICE = "notice"  # the workload was asked to write a checkpoint, and runs until the notice ends
    STOPPING = "stopping"
    ENDED = "ended"


TERMINATING_STATES = (WorkloadState.NOTICE, WorkloadState.STOPPING)  # the workload still holds its units


class RunState(StrEnum):
    """The state of a run: the part of a workload's attempt that runs on one host."""

    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class ReservationState(StrEnum):
    CONFIRMED = "confirmed"
    ACTIVE = "active"  # the reservation has started and has got units; it may lose them later
    OVER = "over"
    RELEASED = "released"  # nobody used the reservation within the pool's no-show limit
    CANCELLED = "cancelled"


OPEN_RESERVATION_STATES = (ReservationState.CONFIRMED, ReservationState.ACTIVE)


class LeaseState(StrEnum):
    JOINING = "joining"  # the host was added, but its agent has never reported
    ALIVE = "alive"
    SUSPECT = "suspect"  # the agent's report is overdue, so no new work is placed on the host
    SILENT = "silent"  # lease, grace period and margin have passed, so the host's work may start elsewhere


class AdminState(StrEnum):
    IN_SERVICE = "in_service"
    CORDONED = "cordoned"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"


class RepairState(StrEnum):
    WELL = "well"
    QUARANTINED = "quarantined"
    DIAGNOSING = "diagnosing"
    OUT = "out"
    RESHAPING = "reshaping"  # its MIG geometry is being changed; the GPU is well but takes no new work


class GeometryState(StrEnum):
    DRAINING = "draining"  # a workload or a reservation may still hold a part of the GPU
    CHANGING = "changing"  # the GPU is free, and its host was ordered to change it
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"  # the change was cancelled before its host got the order


class DiagnosticState(StrEnum):
    WANTED = "wanted"  # requested, but its host has not started it
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"  # a check failed, so the GPU must not be used
    STOPPED = "stopped"  # no result: work interrupted the diagnostic, or its host did not report it


def accepts_work(lease: str, admin: str, repair: str) -> bool:
    """Return True if new work may be placed on a host with these three states."""
    return (lease, admin, repair) == (LeaseState.ALIVE, AdminState.IN_SERVICE, RepairState.WELL)


Transitions = dict[str, frozenset[str]]


def _transitions(**to: tuple[str, ...]) -> Transitions:
    return {name: frozenset(targets) for name, targets in to.items()}


TRANSITIONS: dict[type[StrEnum], Transitions] = {
    WorkloadState: _transitions(
        queued=("placed", "ended"),
        placed=("starting", "running", "stopping", "queued", "ended"),
        starting=("running", "stopping", "queued", "ended"),
        running=("notice", "stopping", "queued", "ended"),
        notice=("stopping", "queued", "ended", "running"),
        stopping=("queued", "ended"),
        ended=(),
    ),
    RunState: _transitions(
        placed=("starting", "running", "stopping", "ended"),
        starting=("running", "stopping", "ended"),
        running=("stopping", "ended"),
        stopping=("ended",),
        ended=(),
    ),
    ReservationState: _transitions(
        confirmed=("active", "cancelled", "over"),
        active=("over", "released", "cancelled"),
        over=(),
        released=(),
        cancelled=(),
    ),
    LeaseState: _transitions(
        joining=("alive",),
        alive=("suspect", "silent"),
        suspect=("alive", "silent"),
        silent=("alive",),
    ),
    AdminState: _transitions(
        in_service=("cordoned", "draining", "maintenance"),
        cordoned=("in_service", "draining", "maintenance"),
        draining=("in_service", "cordoned", "maintenance"),
        maintenance=("in_service", "cordoned", "draining"),
    ),
    RepairState: _transitions(
        well=("quarantined", "out", "reshaping"),
        quarantined=("well", "diagnosing", "out"),
        diagnosing=("well", "out", "quarantined"),
        out=("well", "diagnosing"),
        reshaping=("well", "quarantined", "out"),
    ),
    GeometryState: _transitions(
        draining=("changing", "failed", "withdrawn"),
        changing=("done", "failed"),
        done=(),
        failed=(),
        withdrawn=(),
    ),
    DiagnosticState: _transitions(
        wanted=("running", "passed", "failed", "stopped"),
        running=("passed", "failed", "stopped"),
        passed=(),
        failed=(),
        stopped=(),
    ),
}


class IllegalTransition(Exception):
    """The requested transition is in no table. This is a bug in the program, never the result of a race."""


def change_state(row: models.Model, field: str, *, old: StrEnum, new: StrEnum, **also: Any) -> bool:
    """Change the state ``row.field`` from ``old`` to ``new``, and set the columns ``also``, in one UPDATE.

    Return True if this call made the change. The instance ``row`` then has the new values. Return False if
    the row was no longer in ``old``. Raises IllegalTransition if the table does not allow the transition.
    """
    if str(new) not in TRANSITIONS[type(old)][str(old)]:
        raise IllegalTransition(f"{type(row).__name__}.{field}: {old} -> {new}")
    values = {field: str(new), **also}
    changed = type(row)._default_manager.filter(pk=row.pk, **{field: str(old)}).update(**values)
    if changed:
        for name, value in values.items():
            setattr(row, name, value)
    return bool(changed)


def change_states(
    rows: Sequence[models.Model], field: str, *, old: StrEnum, new: StrEnum, **also: Any
) -> int:
    """Change the state of many rows of one table in one UPDATE. Return the number of changed rows.

    The columns ``also`` are set on all changed rows. The instances in ``rows`` keep their old values. If the
    caller locked every row in the state ``old``, the result equals ``len(rows)``. Raises IllegalTransition if
    the table does not allow the transition.
    """
    if not rows:
        return 0
    if str(new) not in TRANSITIONS[type(old)][str(old)]:
        raise IllegalTransition(f"{type(rows[0]).__name__}.{field}: {old} -> {new}")
    found = type(rows[0])._default_manager.filter(pk__in=[row.pk for row in rows], **{field: str(old)})
    return found.update(**{field: str(new), **also})


def state_choices(states: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the choices of a model field: every state with its label."""
    return [(state.value, state.value.replace("_", " ")) for state in states]
