"""One cycle: lead, snapshot in one transaction, plan in none, apply in another."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import datetime

from django.db import DatabaseError

from scheduler.coordination import leadership
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot
from scheduler.cycle import core_values
from scheduler.cycle.apply import ApplyResult, StaleEpoch, apply_plan, may_change_rows
from scheduler.cycle.gc_pause import gc_paused
from scheduler.cycle.recording import CycleRecorder, PreparedRecording
from scheduler.cycle.snapshot_cache import SnapshotCache
from scheduler.models import Leader
from scheduler.state import nudge

log = logging.getLogger(__name__)

_leader_names: dict[int, str] = {}


def leader_name() -> str:
    """This process's name as a leader: another one after each fork, and never that of a process before it."""
    pid = os.getpid()
    if pid not in _leader_names:
        _leader_names[pid] = f"{socket.gethostname()[:40]}:{pid}:{secrets.token_hex(8)}"
    return _leader_names[pid]


def run_cycle(
    name: str,
    now: datetime,
    clock: Callable[[], datetime] | None = None,
    warm: SnapshotCache | None = None,
    recorder: CycleRecorder | None = None,
) -> ApplyResult | None:
    """Decide about everything that waits. None when another engine leads, or has taken over meanwhile.

    ``clock`` is asked again before the plan is applied: a unit given back after ``now`` and before the snapshot must not be
    held from ``now`` on. Without it everything happens at ``now``.
    ``warm`` is the snapshot of the cycle before; without it everything is read. A cycle that finds nothing changed is over
    with that. ``recorder`` keeps what a cycle that changed something planned on.
    """
    nudge.clear_engine_nudge()
    epoch = leadership.acquire_or_renew(name, now)
    if epoch is None:
        return None
    began = time.monotonic()
    try:
        with gc_paused():
            applied = _plan_and_apply(epoch, now, clock, warm or SnapshotCache(prunes_feed=False), recorder)
    except BaseException:
        if warm is not None:
            warm.forget()  # it may be half changed
        raise
    if applied is None:
        return None
    Leader.objects.filter(pk=1, epoch=epoch).update(
        last_cycle_at=now, last_cycle_seconds=time.monotonic() - began
    )
    for rejection in applied.rejected:
        log.info("not applied: %s: %s", rejection.item, rejection.why)
    return applied


def _plan_and_apply(
    epoch: int,
    now: datetime,
    clock: Callable[[], datetime] | None,
    warm: SnapshotCache,
    recorder: CycleRecorder | None,
) -> ApplyResult | None:
    warm.refresh(epoch, now)
    if not warm.plan_is_due(now):
        return ApplyResult()
    planned = warm.standing.plan(core_values.epoch_seconds(now))
    taken, at = warm.standing.snapshot(), clock() if clock else now
    recording = _CycleRecording(recorder, at)
    if may_change_rows(planned, warm.told):
        recording.prepare(taken, planned, core_values.epoch_seconds(now))
    try:
        applied = apply_plan(planned, taken, at, warm.told, recording.write)
    except StaleEpoch as error:
        log.warning("this plan comes too late: %s", error)
        return None
    recording.committed()
    warm.planned(now, applied.told, wholly=not applied.rejected)
    return applied


class _CycleRecording:
    """Of one cycle. What goes wrong with it costs a recording, and no decision."""

    def __init__(self, recorder: CycleRecorder | None, at: datetime) -> None:
        self.recorder, self.at = recorder, at
        self.prepared: PreparedRecording | None = None
        self.written = False

    def prepare(self, taken: Snapshot, planned: Plan, planned_at: int) -> None:
        """Before anything is locked: it takes as long as the whole of ``apply_plan`` in a large pool."""
        if self.recorder is None:
            return
        try:
            self.prepared = self.recorder.prepare(taken, planned, planned_at, self.at)
        except (TypeError, ValueError):
            log.exception("this cycle could not be recorded")

    def write(self) -> None:
        """With the decisions, or not at all."""
        if self.recorder is None or self.prepared is None:
            return
        try:
            self.recorder.write(self.prepared, self.at)
            self.written = True
        except DatabaseError:
            log.exception("this cycle could not be recorded")

    def committed(self) -> None:
        """The decisions stand, and with them what was written."""
        if self.recorder is not None and self.prepared is not None and self.written:
            self.recorder.committed(self.prepared, self.at)
