"""Run one planning cycle.

A cycle first acquires or renews the leadership. Then it takes a snapshot in one transaction, plans without a
transaction, and applies the plan in a second transaction.
"""

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
from scheduler.coordination.database_maintenance import current_maintenance
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
    """Return the unique name with which this process acquires the leadership.

    A forked process gets a new name.
    """
    pid = os.getpid()
    if pid not in _leader_names:
        _leader_names[pid] = f"{socket.gethostname()[:40]}:{pid}:{secrets.token_hex(8)}"
    return _leader_names[pid]


def run_cycle(
    name: str,
    now: datetime,
    clock: Callable[[], datetime] | None = None,
    cache: SnapshotCache | None = None,
    recorder: CycleRecorder | None = None,
) -> ApplyResult | None:
    """Plan and apply one cycle for all pools.

    Return None if another engine is the leader, or becomes the leader before the plan is applied.

    ``clock`` is called just before the plan is applied, and returns the start of new allocations. Without
    ``clock``, new allocations start at ``now``. A new allocation could then overlap the previous allocation
    of a unit that was freed between ``now`` and the snapshot. ``cache`` keeps the snapshot between cycles.
    Without ``cache``, all rows are read. If neither a change nor the elapsed time can lead to another plan,
    the cycle ends early. During an announced maintenance of the database nothing is planned.

    ``recorder`` stores the snapshots of cycles that changed something.
    """
    nudge.clear_engine_nudge()
    epoch = leadership.acquire_or_renew(name, now)
    if epoch is None:
        return None
    began = time.monotonic()
    if current_maintenance(now) is not None:
        Leader.objects.filter(pk=1, epoch=epoch).update(last_cycle_at=now)
        return ApplyResult()
    try:
        with gc_paused():
            applied = _plan_and_apply(epoch, now, clock, cache or SnapshotCache(prunes_feed=False), recorder)
    except BaseException:
        if cache is not None:
            cache.invalidate()  # the error may have left the cache half updated
        raise
    if applied is None:
        return None
    Leader.objects.filter(pk=1, epoch=epoch).update(
        last_cycle_at=now, last_cycle_seconds=time.monotonic() - began
    )
    for rejection in applied.rejected:
        log.info("not applied: %s: %s", rejection.item, rejection.problem)
    return applied


def _plan_and_apply(
    epoch: int,
    now: datetime,
    clock: Callable[[], datetime] | None,
    cache: SnapshotCache,
    recorder: CycleRecorder | None,
) -> ApplyResult | None:
    cache.refresh(epoch, now)
    if not cache.plan_is_due(now):
        return ApplyResult()
    planned = cache.standing.plan(core_values.epoch_seconds(now))
    taken, at = cache.standing.snapshot(), clock() if clock else now
    recording = _CycleRecording(recorder, at)
    if may_change_rows(planned, cache.reported):
        recording.prepare(taken, planned, core_values.epoch_seconds(now))
    try:
        applied = apply_plan(planned, taken, at, cache.reported, recording.write)
    except StaleEpoch as error:
        log.warning("plan discarded: %s", error)
        return None
    recording.committed()
    cache.note_applied_plan(now, applied.reported, complete=not applied.rejected)
    return applied


class _CycleRecording:
    """The recording of one cycle. A failure to record is logged and never affects a decision."""

    def __init__(self, recorder: CycleRecorder | None, at: datetime) -> None:
        self.recorder, self.at = recorder, at
        self.prepared: PreparedRecording | None = None
        self.written = False

    def prepare(self, taken: Snapshot, planned: Plan, planned_at: int) -> None:
        """Prepare the recording before any row is locked.

        In a large pool the preparation takes as long as ``apply_plan``.
        """
        if self.recorder is None:
            return
        try:
            self.prepared = self.recorder.prepare(taken, planned, planned_at, self.at)
        except (TypeError, ValueError):
            log.exception("this cycle could not be recorded")

    def write(self) -> None:
        """Write the recording in the transaction of the decisions."""
        if self.recorder is None or self.prepared is None:
            return
        try:
            self.recorder.write(self.prepared, self.at)
            self.written = True
        except DatabaseError:
            log.exception("this cycle could not be recorded")

    def committed(self) -> None:
        """Tell the recorder that the recording's transaction was committed."""
        if self.recorder is not None and self.prepared is not None and self.written:
            self.recorder.committed(self.prepared, self.at)
