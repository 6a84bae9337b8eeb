"""What ticks in the portal: notices from facts, idle notebooks, expired sessions. Idempotent; the clock is read here."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal.notices import delivery
from portal.sweeps import expired_sessions, idle_notebooks
from scheduler.coordination import clock_correction


@shared_task(name="portal.tasks.notices")  # type: ignore[misc]
def notices() -> int:
    """Tell every new fact; how many notices were written."""
    return delivery.write_notices(timezone.now())


@shared_task(name="portal.tasks.idle_cull")  # type: ignore[misc]
def idle_cull() -> dict[str, int]:
    """Warn or stop idle notebooks; how many of each verdict."""
    return clock_correction.with_steady_clock(lambda moment: idle_notebooks.stop_idle_notebooks(moment.wall))


@shared_task(name="portal.tasks.forget_expired")  # type: ignore[misc]
def forget_expired() -> int:
    """Delete sessions and one-time codes that nobody can use any more, and old notices; how many."""
    now = timezone.now()
    return expired_sessions.delete_expired_sessions(now) + delivery.delete_old_notices(now)
