"""Run the portal's periodic tasks: notices, idle notebooks, expired rows.

Each task is idempotent. The tasks read the clock and pass the time on.
"""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal.notices import delivery
from portal.sweeps import expired_sessions, expired_submissions, idle_notebooks
from scheduler.coordination import clock_correction


@shared_task(name="portal.tasks.notices")  # type: ignore[misc]
def notices() -> int:
    """Write notices about new events; return the number written."""
    return delivery.write_notices(timezone.now())


@shared_task(name="portal.tasks.idle_cull")  # type: ignore[misc]
def idle_cull() -> dict[str, int]:
    """Warn about or stop idle notebooks; return the number of notebooks by verdict."""
    return clock_correction.with_steady_clock(lambda clock: idle_notebooks.stop_idle_notebooks(clock.wall))


@shared_task(name="portal.tasks.expire_submissions")  # type: ignore[misc]
def expire_submissions() -> int:
    """Expire requests for reservations that nobody decided before their start; return their number."""
    return clock_correction.with_steady_clock(
        lambda clock: expired_submissions.expire_submissions(clock.wall)
    )


@shared_task(name="portal.tasks.forget_expired")  # type: ignore[misc]
def forget_expired() -> int:
    """Delete expired sessions and one-time codes, and old notices; return the number deleted."""
    now = timezone.now()
    return expired_sessions.delete_expired_sessions(now) + delivery.delete_old_notices(now)
