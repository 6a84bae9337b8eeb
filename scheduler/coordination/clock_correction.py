"""When the server's clock is set, leases and limits go on as if it had not been.

Rows hold times of the wall clock, because people read them, and a lease is told from two of them. So every look compares how
far the wall clock went with how far CLOCK_BOOTTIME did, which nobody can set; where they differ, what is still being counted is
moved along. Looks come with ticks, and before anything is written that counts: where the clock is set and set back
between two ticks, all rows have gone along with what was written in between. And whoever decides by a time from before somebody
looked learns it as soon as it has locked what it decides of (``with_steady_clock``). It holds for a control plane on one machine; several
have to keep their clocks together themselves (NTP).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models import F

from scheduler.coordination import locks
from scheduler.coordination.bound_units import release_expired_bindings
from scheduler.coordination.clock_check import (
    CLOCK_STEP_THRESHOLD,
    ClockSample,
    ClockSource,
    ClockStepped,
    decide_at,
    last_clock_sample,
    read_clocks,
)
from scheduler.models import ClockReading, Command, Diagnostic, GeometryChange, Host, Leader, Run, Workload
from scheduler.state.states import RunState, WorkloadState

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_TRIES = 5


def with_steady_clock(
    act: Callable[[ClockSample], T], read: ClockSource = read_clocks, *, looks: bool = True
) -> T:
    """``act`` with a time that the rows share, and again with a new one where the clock was set before it was done: for what may
    be done twice. Whatever it locks is of that time, or ClockWasSet ends it (``scheduler.coordination.locks``). ``looks``: first of all; else
    ``act`` does where it writes. Raises ClockStepped when the clock is set all the time."""
    for _ in range(MAX_TRIES):
        moment = read()
        with contextlib.suppress(ClockStepped), decide_at(moment):
            if looks:
                correct_clock_step(moment)
            done = act(moment)
            if abs(read().stepped_since(moment)) < CLOCK_STEP_THRESHOLD:
                return done
    raise ClockStepped("the clock is set all the time")


def correct_clock_step(moment: ClockSample) -> timedelta:
    """By how much the clock was set since the last look; what is being counted has been moved by as much. Nothing, as a rule."""
    while True:
        last = last_clock_sample()
        if last is None:
            reading = {"wall": moment.wall, "machine": moment.machine, "uptime": moment.uptime}
            ClockReading.objects.get_or_create(pk=1, defaults=reading)
            return timedelta()
        set_by = moment.stepped_since(last)
        if last.machine == moment.machine:
            if last.uptime > moment.uptime:
                return timedelta()  # somebody has looked since
            if (
                abs(set_by) < CLOCK_STEP_THRESHOLD
                and moment.uptime - last.uptime < CLOCK_STEP_THRESHOLD.total_seconds()
            ):
                return timedelta()  # a reading is kept for a second: small corrections don't add up
        if _replace_sample(last, moment, set_by):
            return set_by if abs(set_by) >= CLOCK_STEP_THRESHOLD else timedelta()


def last_clock_step_at() -> datetime | None:
    """When the clock was last found to have been set. What is counted from readings or promises, which keep their times, is counted
    anew from then on."""
    return ClockReading.objects.filter(pk=1).values_list("set_at", flat=True).first()


@transaction.atomic
def _replace_sample(last: ClockSample, moment: ClockSample, set_by: timedelta) -> bool:
    """False when somebody else has looked meanwhile: they have moved what was to be moved."""
    seen = ClockReading.objects.filter(pk=1, wall=last.wall, machine=last.machine, uptime=last.uptime)
    if not seen.update(wall=moment.wall, machine=moment.machine, uptime=moment.uptime):
        return False
    if abs(set_by) >= CLOCK_STEP_THRESHOLD:
        log.warning(
            "the clock was set by %.1f s: leases and limits go on as if it had not been",
            set_by.total_seconds(),
        )
        ClockReading.objects.filter(pk=1).update(set_at=moment.wall)
        _shift_deadlines(set_by)
        release_expired_bindings(moment.wall)
    return True


def _shift_deadlines(by: timedelta) -> None:
    """All of it: nobody has written by the new time yet, since whoever writes looks first."""
    locks.leader()
    locks.hosts(Host.objects.values_list("pk", flat=True))
    locks.workload_states(Workload.objects.exclude(state=WorkloadState.ENDED).values_list("pk", flat=True))
    for rows, fields in (
        (Leader.objects.all(), ("renewed_at",)),
        (
            Host.objects.all(),
            ("last_sync_at", "agent_before_heard_at", "credential_expires_at", "disk_full_since"),
        ),
        # Not placed_at: what it held begins there, and is charged from there on.
        (
            Run.objects.exclude(state=RunState.ENDED),
            ("prepared_at", "starting_at", "running_at", "ready_at", "missing_since"),
        ),
        (Command.objects.filter(done_at__isnull=True), ("created_at", "stop_at")),
        (Diagnostic.objects.filter(ended_at__isnull=True), ("created_at", "started_at")),
        (GeometryChange.objects.filter(ended_at__isnull=True), ("told_at",)),
        (
            Workload.objects.exclude(state=WorkloadState.ENDED),
            ("gone_by", "not_before", "avoids_until", "idle_warned_at", "keep_until"),
        ),
    ):
        rows.update(**{field: F(field) + by for field in fields})  # nothing plus a time is nothing
