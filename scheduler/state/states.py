"""Every state that the scheduler's rows can be in, and every way from one to another.

One table per state field. A change is a compare-and-swap through it: ``change_state`` updates the row only where it still
has the old state, so of two processes that race one wins and the other learns that it lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from django.db import models


class WorkloadState(StrEnum):
    QUEUED = "queued"
    PLACED = "placed"  # units are held, the agent has not begun
    STARTING = "starting"
    RUNNING = "running"
    NOTICE = "notice"  # asked to write a checkpoint, runs until the notice is over
    STOPPING = "stopping"
    ENDED = "ended"


TERMINATING_STATES = (WorkloadState.NOTICE, WorkloadState.STOPPING)  # and still there


class RunState(StrEnum):
    """One host's part of one attempt."""

    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class ReservationState(StrEnum):
    CONFIRMED = "confirmed"
    ACTIVE = "active"  # units are bound
    OVER = "over"
    RELEASED = "released"  # nobody came within the no-show limit
    CANCELLED = "cancelled"


OPEN_RESERVATION_STATES = (ReservationState.CONFIRMED, ReservationState.ACTIVE)  # a promise that is not over


class LeaseState(StrEnum):
    JOINING = "joining"  # known, its agent has never spoken
    ALIVE = "alive"
    SUSPECT = "suspect"  # one renewal missing: nothing new is placed
    SILENT = "silent"  # lease, grace and margin are over: its work may start elsewhere


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
    RESHAPING = "reshaping"  # of a GPU: a person changes its geometry; it is well, and takes nothing new until that is over


class GeometryState(StrEnum):
    DRAINING = "draining"  # what holds the GPU leaves it
    CHANGING = "changing"  # its host was told, and nothing holds it
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"  # taken back before its host was told


class DiagnosticState(StrEnum):
    WANTED = "wanted"  # its host has not begun
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"  # the GPU is not to be used
    STOPPED = "stopped"  # it gave way to work, or nobody answered: nothing is known


def accepts_work(lease: str, admin: str, repair: str) -> bool:
    """May new work be placed on a host with these three states?"""
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
    """A change that no table allows: a mistake in the program, never a race."""


def change_state(row: models.Model, field: str, *, old: StrEnum, new: StrEnum, **also: Any) -> bool:
    """Move ``row.field`` from ``old`` to ``new`` and set ``also`` in the same UPDATE.

    True when this call made the change, False when the row was no longer in ``old`` (somebody else was first).
    The instance is brought up to date on success.
    Raises IllegalTransition when the table has no such way.
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
    """The same for many rows of one table in one UPDATE: how many it changed. ``also`` is the same for all of them.

    The instances stay as they are. Who has locked the rows and seen the old state in each knows that all are changed.
    Raises IllegalTransition when the table has no such way.
    """
    if not rows:
        return 0
    if str(new) not in TRANSITIONS[type(old)][str(old)]:
        raise IllegalTransition(f"{type(rows[0]).__name__}.{field}: {old} -> {new}")
    found = type(rows[0])._default_manager.filter(pk__in=[row.pk for row in rows], **{field: str(old)})
    return found.update(**{field: str(new), **also})


def state_choices(states: type[StrEnum]) -> list[tuple[str, str]]:
    """For a model field: every state with its word."""
    return [(state.value, state.value.replace("_", " ")) for state in states]
