"""When the server's clock is set, leases and limits go on as if it had not been.

Rows hold times of the wall clock, because people read them, and a lease is told from two of them. So every look compares how
far the wall clock went with how far CLOCK_BOOTTIME did, which nobody can set; where they differ, what is still being counted is
moved along. Looks come with ticks, and before anything is written that counts (``now``, ``catch_up``): where the clock is set
and set back between two ticks, all rows have gone along with what was written in between. It holds for a control plane on one
machine; several have to keep their clocks together themselves (NTP).
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from django.db import transaction
from django.db.models import F, Q

from scheduler import locks
from scheduler.models import ClockReading, Command, Diagnostic, GeometryChange, Host, Leader, Run, Workload
from scheduler.states import RunState, WorkloadState

T = TypeVar("T")
log = logging.getLogger(__name__)

SET = timedelta(seconds=1)  # less is how clocks are kept right
TIGHT_SECONDS = 0.05  # both clocks are read within so long, or once more: what is between two readings is no setting


@dataclass(frozen=True, slots=True)
class Moment:
    """The wall clock, and beside it the seconds on CLOCK_BOOTTIME: of which boot and time name space, since those of another can't
    be compared with it."""

    wall: datetime
    machine: str
    uptime: float

    def set_since(self, before: Moment) -> timedelta:
        """By how much the wall clock was set from one moment to this one; nothing for moments of two machines."""
        if self.machine != before.machine:
            return timedelta()
        return self.wall - before.wall - timedelta(seconds=self.uptime - before.uptime)


Read = Callable[[], Moment]


def read() -> Moment:
    """Both clocks of this machine, now."""
    while True:
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        wall = datetime.fromtimestamp(time.time(), UTC)
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before <= TIGHT_SECONDS:
            return Moment(wall, _machine(), after)


@functools.cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.readlink("/proc/self/ns/time") if os.path.exists("/proc/self/ns/time") else ""
    return f"{boot} {space}".strip()


def now(read: Read = read) -> datetime:
    """The wall clock, for whoever is about to write: where it was set since the last look, this looks first."""
    moment = read()
    catch_up(moment)
    return moment.wall


def catch_up(moment: Moment) -> None:
    """Look, but only where the clock was set since the last look."""
    row = ClockReading.objects.filter(pk=1).values_list("wall", "machine", "uptime").first()
    if row is not None and abs(moment.set_since(Moment(*row))) >= SET:
        look(moment)


def steadily(write: Callable[[Moment], T], read: Read = read) -> T:
    """``write`` of this moment, and once more where the clock was set before it was done: others may have looked by then, and
    what was written is of the clock before. For what may be written twice."""
    while True:
        moment = read()
        done = write(moment)
        if abs(read().set_since(moment)) < SET:
            return done


@transaction.atomic
def look(moment: Moment) -> timedelta:
    """By how much the clock was set since the last look; what is being counted has been moved by as much. Nothing, as a rule."""
    reading = {"wall": moment.wall, "machine": moment.machine, "uptime": moment.uptime}
    ClockReading.objects.get_or_create(pk=1, defaults=reading)
    row = locks.clock_reading()
    last = Moment(row.wall, row.machine, row.uptime)
    if last.machine == moment.machine and last.uptime > moment.uptime:
        return timedelta()  # somebody has looked since
    ClockReading.objects.filter(pk=1).update(**reading)
    set_by = moment.set_since(last)
    if abs(set_by) < SET:
        return timedelta()
    log.warning("the clock was set by %.1f s: leases and limits go on as if it had not been", set_by.total_seconds())
    _move(set_by, moment.wall)
    return set_by


def _move(by: timedelta, now: datetime) -> None:
    """Of what others go on writing, only what was written before: after a step forward that is what is older than the step, after
    one back what lies ahead of now. What stays behind there has been silent for longer than the step."""
    locks.leader()
    locks.hosts(Host.objects.values_list("pk", flat=True))
    locks.workload_states(Workload.objects.exclude(state=WorkloadState.ENDED).values_list("pk", flat=True))
    running = Run.objects.exclude(state=RunState.ENDED)
    live = Workload.objects.exclude(state=WorkloadState.ENDED)
    for rows, field in (
        (Host.objects.all(), "last_sync_at"),
        (Host.objects.all(), "agent_before_heard_at"),
        (Leader.objects.all(), "renewed_at"),
        (running, "missing_since"),
        (running, "running_at"),
        (Command.objects.filter(verb=Command.Verb.START, done_at__isnull=True), "created_at"),
        (Diagnostic.objects.filter(ended_at__isnull=True), "created_at"),
        (GeometryChange.objects.filter(ended_at__isnull=True), "told_at"),
    ):
        written_before = Q(**{f"{field}__lte": now - by}) if by > timedelta() else Q(**{f"{field}__gt": now})
        rows.filter(written_before).update(**{field: F(field) + by})
    Command.objects.filter(done_at__isnull=True, stop_at__isnull=False).update(stop_at=F("stop_at") + by)
    live.filter(gone_by__isnull=False).update(gone_by=F("gone_by") + by)
    live.filter(not_before__isnull=False).update(not_before=F("not_before") + by)
