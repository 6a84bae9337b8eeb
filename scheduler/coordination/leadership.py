"""Elect the engine process that may write: the leader.

One row names the leader. Each new leader increments the row's epoch. An earlier leader has a lower epoch and
may not write any more.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from scheduler.coordination import locks
from scheduler.models import Leader

LEADER_TIMEOUT_SECONDS = 5  # a leader that has not renewed for this long is dead or frozen


@transaction.atomic
def acquire_or_renew(holder: str, now: datetime) -> int | None:
    """Acquire or renew the leadership for the process with the name ``holder``.

    Return the epoch, or None while another process leads. No two processes may ever use the same name.
    """
    row = locks.leader()
    if row.holder == holder:
        Leader.objects.filter(pk=row.pk).update(renewed_at=now)
        return row.epoch
    if (
        row.holder
        and row.renewed_at is not None
        and now - row.renewed_at < timedelta(seconds=LEADER_TIMEOUT_SECONDS)
    ):
        return None
    Leader.objects.filter(pk=row.pk).update(holder=holder, epoch=row.epoch + 1, renewed_at=now)
    return row.epoch + 1
