"""Move stored deadlines when the server's wall clock is set, so that leases and time limits keep their
length.

Rows store wall-clock times, because people read them. A lease is the difference of two wall-clock times.
Each check compares the advance of the wall clock with the advance of CLOCK_BOOTTIME, which nobody can set.
If the two advances differ, the deadlines that are still running are moved by the difference.

A check runs with every tick and before every write of a wall-clock time. So a row that is written between
two ticks is corrected as well, even if the clock is set forwards and back between these ticks. A caller that
read the time before the clock was set gets ClockStepped as soon as it locks rows (``with_steady_clock``).
The correction works for a control plane on one machine. Several machines must synchronise their clocks with
NTP.
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
from scheduler.models import (
    ClockReading,
    Command,
    DatabaseMaintenance,
    Diagnostic,
    EdgeContact,
    GeometryChange,
    Host,
    Leader,
    Run,
    Workload,
)
from scheduler.state.states import RunState, WorkloadState

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_TRIES = 5


def with_steady_clock(
    act: Callable[[ClockSample], T], read: ClockSource = read_clocks, *, check_first: bool = True
) -> T:
    """Call ``act`` with a sample of the clocks. Call it again if the clock was set during the call.

    ``act`` must be repeatable. If the clock was set before ``act`` locks rows, the lock raises ClockStepped
    and ``act`` is called again. ``check_first`` corrects a clock step before each call. Pass False if ``act``
    itself checks for a clock step when it writes. Raises ClockStepped if the clock is set during every one
    of ``MAX_TRIES`` calls.
    """
    for _ in range(MAX_TRIES):
        sample = read()
        with contextlib.suppress(ClockStepped), decide_at(sample):
            if check_first:
                correct_clock_step(sample)
            result = act(sample)
            if abs(read().stepped_since(sample)) < CLOCK_STEP_THRESHOLD:
                return result
    raise ClockStepped(f"the clock was set during each of {MAX_TRIES} tries")


def correct_clock_step(sample: ClockSample) -> timedelta:
    """Move the running deadlines if the clock was set since the last check.

    Return the amount by which the deadlines were moved, or zero.
    """
    while True:
        last = last_clock_sample()
        if last is None:
            reading = {"wall": sample.wall, "machine": sample.machine, "uptime": sample.uptime}
            ClockReading.objects.get_or_create(pk=1, defaults=reading)
            return timedelta()
        set_by = sample.stepped_since(last)
        if last.machine == sample.machine:
            if last.uptime > sample.uptime:
                return timedelta()  # another process has checked the clock after this sample was read
            if (
                abs(set_by) < CLOCK_STEP_THRESHOLD
                and sample.uptime - last.uptime < CLOCK_STEP_THRESHOLD.total_seconds()
            ):
                # The stored sample is less than a second old and stays. Older samples are replaced, so that
                # small adjustments of NTP never add up to a clock step.
                return timedelta()
        if _replace_sample(last, sample, set_by):
            return set_by if abs(set_by) >= CLOCK_STEP_THRESHOLD else timedelta()


def last_clock_step_at() -> datetime | None:
    """Return the time at which the last clock step was detected, or None if there was none.

    A clock step moves only deadlines. Other stored times, such as the start of a reservation, stay. To
    measure the time that has passed since such a time, measure from the later of that time and the last clock
    step.
    """
    return ClockReading.objects.filter(pk=1).values_list("set_at", flat=True).first()


@transaction.atomic
def _replace_sample(last: ClockSample, sample: ClockSample, set_by: timedelta) -> bool:
    """Store the new sample and move the deadlines. Return False if another process replaced ``last``."""
    unchanged = ClockReading.objects.filter(pk=1, wall=last.wall, machine=last.machine, uptime=last.uptime)
    if not unchanged.update(wall=sample.wall, machine=sample.machine, uptime=sample.uptime):
        return False
    if abs(set_by) >= CLOCK_STEP_THRESHOLD:
        log.warning(
            "the clock was set by %.1f s: leases and time limits were moved by that amount",
            set_by.total_seconds(),
        )
        ClockReading.objects.filter(pk=1).update(set_at=sample.wall)
        _shift_deadlines(set_by)
        release_expired_bindings(sample.wall)
    return True


def _shift_deadlines(by: timedelta) -> None:
    """Move all running deadlines by ``by``.

    No row uses the new time yet, because every writer checks the clock before it writes.
    """
    locks.leader()
    locks.hosts(Host.objects.values_list("pk", flat=True))
    locks.workload_states(Workload.objects.exclude(state=WorkloadState.ENDED).values_list("pk", flat=True))
    for rows, fields in (
        (Leader.objects.all(), ("renewed_at",)),
        (EdgeContact.objects.all(), ("seen_at", "renews_until")),
        (DatabaseMaintenance.objects.filter(ended_at__isnull=True), ("starts_at", "ends_at")),
        (
            Host.objects.all(),
            ("last_sync_at", "agent_before_heard_at", "credential_expires_at", "disk_full_since"),
        ),
        # placed_at is not moved, because the run's allocations start at this time and are charged from it.
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
        rows.update(**{field: F(field) + by for field in fields})  # NULL stays NULL
