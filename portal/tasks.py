"""What ticks in the portal: notices from facts, idle notebooks, expired sessions. Idempotent; the clock is read here."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal import idle, notify, sign_out
from scheduler import wall_clock


@shared_task(name="portal.tasks.notices")  # type: ignore[misc]
def notices() -> int:
    """Tell every new fact; how many notices were written."""
    return notify.tell(timezone.now())


@shared_task(name="portal.tasks.idle_cull")  # type: ignore[misc]
def idle_cull() -> dict[str, int]:
    """Warn or stop idle notebooks; how many of each verdict."""
    return wall_clock.steadily(lambda moment: idle.cull(moment.wall))


@shared_task(name="portal.tasks.forget_expired")  # type: ignore[misc]
def forget_expired() -> int:
    """Delete sessions and one-time codes that nobody can use any more, and old notices; how many."""
    now = timezone.now()
    return sign_out.forget_expired(now) + notify.forget_old(now)
