"""When the server's clock is set, leases and limits go on as if it had not been.

Rows hold times of the wall clock, because people read them, and a lease is told from two of them. So every look compares how
far the wall clock went with how far CLOCK_BOOTTIME did, which nobody can set; where they differ, what is still being counted is
moved along. It holds for a control plane on one machine; several have to keep their clocks together themselves (NTP).
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.db import transaction
from django.db.models import F, Q

from scheduler.models import ClockReading, Command, Diagnostic, GeometryChange, Host, Leader, Run, Workload
from scheduler.states import RunState, WorkloadState

log = logging.getLogger(__name__)

SET = timedelta(seconds=1)  # less is how clocks are kept right


@dataclass(frozen=True, slots=True)
class Uptime:
    """Seconds on CLOCK_BOOTTIME, and of which boot and time name space: those of another can't be compared with it."""

    machine: str
    seconds: float


def uptime() -> Uptime:
    """Of this machine, now."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    space = os.readlink("/proc/self/ns/time") if os.path.exists("/proc/self/ns/time") else ""
    return Uptime(f"{boot} {space}".strip(), time.clock_gettime(time.CLOCK_BOOTTIME))


@transaction.atomic
def look(now: datetime, here: Uptime) -> timedelta:
    """By how much the clock was set since the last look; what is being counted has been moved by as much. Nothing, as a rule."""
    ClockReading.objects.get_or_create(pk=1, defaults={"wall": now, "machine": here.machine, "uptime": here.seconds})
    last = ClockReading.objects.filter(pk=1).values("wall", "machine", "uptime").get()
    seen = ClockReading.objects.filter(pk=1, **last)
    if not seen.update(wall=now, machine=here.machine, uptime=here.seconds) or last["machine"] != here.machine:
        return timedelta()  # somebody else has just looked, or the machine is another one
    passed = timedelta(seconds=here.seconds - last["uptime"])
    set_by: timedelta = now - last["wall"] - passed
    if abs(set_by) < SET:
        return timedelta()
    log.warning("the clock was set by %.1f s: leases and limits go on as if it had not been", set_by.total_seconds())
    _move(set_by, now)
    return set_by


def _move(by: timedelta, now: datetime) -> None:
    """Of what others go on writing, only what was written before: after a step forward that is what is older than the step, after
    one back what lies ahead of now. What stays behind there has been silent for longer than the step."""
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
