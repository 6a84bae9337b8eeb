"""One cycle: lead, snapshot in one transaction, plan in none, apply in another."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import datetime

from scheduler import leadership, nudge, snapshot
from scheduler.apply import Applied, StaleEpoch, apply
from scheduler.core.planner import plan
from scheduler.models import Leader

log = logging.getLogger(__name__)

_names: dict[int, str] = {}


def holder() -> str:
    """This process's name as a leader: another one after each fork, and never that of a process before it."""
    pid = os.getpid()
    if pid not in _names:
        _names[pid] = f"{socket.gethostname()[:40]}:{pid}:{secrets.token_hex(8)}"
    return _names[pid]


def cycle(name: str, now: datetime, clock: Callable[[], datetime] | None = None) -> Applied | None:
    """Decide about everything that waits. None when another engine leads, or has taken over meanwhile.

    ``clock`` is asked again before the plan is applied: a unit given back after ``now`` and before the snapshot must not be
    held from ``now`` on. Without it everything happens at ``now``.
    """
    nudge.cycle_begins()
    epoch = leadership.lead(name, now)
    if epoch is None:
        return None
    began = time.monotonic()
    taken = snapshot.take(None, now)
    if taken.epoch != epoch:
        log.warning("another engine has taken the lead with epoch %d", taken.epoch)
        return None
    planned = plan(taken, snapshot.seconds(now))
    try:
        applied = apply(planned, taken, clock() if clock else now)
    except StaleEpoch as error:
        log.warning("this plan comes too late: %s", error)
        return None
    Leader.objects.filter(pk=1, epoch=epoch).update(last_cycle_seconds=time.monotonic() - began)
    for rejection in applied.rejected:
        log.info("not applied: %s: %s", rejection.item, rejection.why)
    return applied
