"""What ticks in the portal: notices from facts, and the rule for idle notebooks. Idempotent; the clock is read here."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from portal import idle, notify


@shared_task(name="portal.tasks.notices")  # type: ignore[misc]
def notices() -> int:
    """Tell every new fact; how many notices were written."""
    return notify.tell(timezone.now())


@shared_task(name="portal.tasks.idle_cull")  # type: ignore[misc]
def idle_cull() -> dict[str, int]:
    """Warn or stop idle notebooks; how many of each verdict."""
    return idle.cull(timezone.now())
