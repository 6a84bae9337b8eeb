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

from scheduler import leadership, nudge, snapshot
from scheduler.apply import Applied, StaleEpoch, apply
from scheduler.core.model import Plan, Snapshot
from scheduler.garbage import without_collecting
from scheduler.models import Leader
from scheduler.recording import Recorder
from scheduler.warm import Warm

log = logging.getLogger(__name__)

_names: dict[int, str] = {}


def holder() -> str:
    """This process's name as a leader: another one after each fork, and never that of a process before it."""
    pid = os.getpid()
    if pid not in _names:
        _names[pid] = f"{socket.gethostname()[:40]}:{pid}:{secrets.token_hex(8)}"
    return _names[pid]


def cycle(
    name: str, now: datetime, clock: Callable[[], datetime] | None = None, warm: Warm | None = None,
    recorder: Recorder | None = None,
) -> Applied | None:  # fmt: skip
    """Decide about everything that waits. None when another engine leads, or has taken over meanwhile.

    ``clock`` is asked again before the plan is applied: a unit given back after ``now`` and before the snapshot must not be
    held from ``now`` on. Without it everything happens at ``now``.
    ``warm`` is the snapshot of the cycle before; without it everything is read. A cycle that finds nothing changed is over
    with that. ``recorder`` keeps what a cycle that changed something planned on.
    """
    nudge.cycle_begins()
    epoch = leadership.lead(name, now)
    if epoch is None:
        return None
    began = time.monotonic()
    try:
        with without_collecting():
            applied = _decide(epoch, now, clock, warm or Warm(prunes=False), recorder)
    except BaseException:
        if warm is not None:
            warm.forget()  # it may be half changed
        raise
    if applied is None:
        return None
    Leader.objects.filter(pk=1, epoch=epoch).update(last_cycle_at=now, last_cycle_seconds=time.monotonic() - began)
    for rejection in applied.rejected:
        log.info("not applied: %s: %s", rejection.item, rejection.why)
    return applied


def _decide(
    epoch: int, now: datetime, clock: Callable[[], datetime] | None, warm: Warm, recorder: Recorder | None
) -> Applied | None:
    warm.refresh(epoch, now)
    if not warm.plan_is_due(now):
        return Applied()
    planned = warm.standing.plan(snapshot.seconds(now))
    taken, at = warm.standing.snapshot(), clock() if clock else now
    try:
        applied = apply(planned, taken, at, warm.told)
    except StaleEpoch as error:
        log.warning("this plan comes too late: %s", error)
        return None
    warm.planned(now, applied.told, wholly=not applied.rejected)
    if recorder is not None and (applied.accepted or applied.reasons_written):
        _record(recorder, taken, planned, snapshot.seconds(now), at)
    return applied


def _record(recorder: Recorder, taken: Snapshot, planned: Plan, planned_at: int, at: datetime) -> None:
    """The decisions are committed: what goes wrong here costs a recording, and not the next decisions."""
    try:
        recorder.record(taken, planned, planned_at, at)
    except (TypeError, ValueError, DatabaseError):
        log.exception("this cycle could not be recorded")
