"""When the server's clock is set, leases and limits go on as if it had not been.

Rows hold times of the wall clock, because people read them, and a lease is told from two of them. So every look compares how
far the wall clock went with how far CLOCK_BOOTTIME did, which nobody can set; where they differ, what is still being counted is
moved along. Looks come with ticks, and before anything is written that counts: where the clock is set and set back
between two ticks, all rows have gone along with what was written in between. And whoever decides by a time from before somebody
looked learns it as soon as it has locked what it decides of (``steadily``). It holds for a control plane on one machine; several
have to keep their clocks together themselves (NTP).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from django.db import transaction
from django.db.models import F, Q

from scheduler import locks
from scheduler.models import ClockReading, Command, Diagnostic, GeometryChange, Host, Leader, Run, Workload
from scheduler.moment import SET, ClockWasSet, Moment, Read, at_hand, last_looked_at, read
from scheduler.states import RunState, WorkloadState

T = TypeVar("T")
log = logging.getLogger(__name__)

TRIES = 5


def steadily(act: Callable[[Moment], T], read: Read = read, *, looks: bool = True) -> T:
    """``act`` with a time that the rows share, and again with a new one where the clock was set before it was done: for what may
    be done twice. Whatever it locks is of that time, or ClockWasSet ends it (``scheduler.locks``). ``looks``: first of all; else
    ``act`` does where it writes. Raises ClockWasSet when the clock is set all the time."""
    for _ in range(TRIES):
        moment = read()
        with contextlib.suppress(ClockWasSet), at_hand(moment):
            if looks:
                look(moment)
            done = act(moment)
            if abs(read().set_since(moment)) < SET:
                return done
    raise ClockWasSet("the clock is set all the time")


def look(moment: Moment) -> timedelta:
    """By how much the clock was set since the last look; what is being counted has been moved by as much. Nothing, as a rule."""
    while True:
        last = last_looked_at()
        if last is None:
            reading = {"wall": moment.wall, "machine": moment.machine, "uptime": moment.uptime}
            ClockReading.objects.get_or_create(pk=1, defaults=reading)
            return timedelta()
        set_by = moment.set_since(last)
        if last.machine == moment.machine:
            if last.uptime > moment.uptime:
                return timedelta()  # somebody has looked since
            if abs(set_by) < SET and moment.uptime - last.uptime < SET.total_seconds():
                return timedelta()  # a reading is kept for a second: small corrections don't add up
        if _replace(last, moment, set_by):
            return set_by if abs(set_by) >= SET else timedelta()


@transaction.atomic
def _replace(last: Moment, moment: Moment, set_by: timedelta) -> bool:
    """False when somebody else has looked meanwhile: they have moved what was to be moved."""
    seen = ClockReading.objects.filter(pk=1, wall=last.wall, machine=last.machine, uptime=last.uptime)
    if not seen.update(wall=moment.wall, machine=moment.machine, uptime=moment.uptime):
        return False
    if abs(set_by) >= SET:
        log.warning("the clock was set by %.1f s: leases and limits go on as if it had not been", set_by.total_seconds())
        _move(set_by, moment.wall)
    return True


def _move(by: timedelta, now: datetime) -> None:
    """Of what others go on writing, only what was written before: after a step forward that is what is older than the step, after
    one back what lies ahead of now. What stays behind there has been silent for longer than the step."""
    locks.leader()
    locks.hosts(Host.objects.values_list("pk", flat=True))
    locks.workload_states(Workload.objects.exclude(state=WorkloadState.ENDED).values_list("pk", flat=True))
    running = Run.objects.exclude(state=RunState.ENDED)
    live = Workload.objects.exclude(state=WorkloadState.ENDED)
    for rows, field in (
        (Leader.objects.all(), "renewed_at"),
        (Host.objects.all(), "last_sync_at"),
        (Host.objects.all(), "agent_before_heard_at"),
        (running, "missing_since"),
        (running, "running_at"),
        (Command.objects.filter(verb=Command.Verb.START, done_at__isnull=True), "created_at"),
        (Diagnostic.objects.filter(ended_at__isnull=True), "created_at"),
        (GeometryChange.objects.filter(ended_at__isnull=True), "told_at"),
    ):
        written_before = Q(**{f"{field}__lte": now - by}) if by > timedelta() else Q(**{f"{field}__gt": now})
        rows.filter(written_before).update(**{field: F(field) + by})
    Command.objects.filter(done_at__isnull=True, stop_at__isnull=False).update(stop_at=F("stop_at") + by)
    for field in ("gone_by", "not_before", "avoids_until", "idle_warned_at", "keep_until"):
        live.filter(**{f"{field}__isnull": False}).update(**{field: F(field) + by})
