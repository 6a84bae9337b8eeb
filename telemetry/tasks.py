"""Ticks of telemetry and money. Each does what waits in rows, may run at any time and twice at once, and is over in seconds."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from scheduler import wall_clock
from scheduler.moment import Moment
from telemetry import agent_api, breaker, budgets, charges, health, ingest, missing, partitions, rollups

log = structlog.get_logger(__name__)


@shared_task(name="telemetry.tasks.ingest_stream")
def ingest_stream() -> None:
    """Bring what waits on the stream into the database."""
    done = ingest.drain(agent_api.connection(), timezone.now())
    if done.rejected:
        log.warning("samples rejected", rows=done.rejected, batches=done.batches)


@shared_task(name="telemetry.tasks.roll_up")
def roll_up() -> None:
    """Roll up what is marked as due."""
    rollups.roll_up_due(timezone.now())


@shared_task(name="telemetry.tasks.charge")
def charge() -> None:
    """Charge what is over, and correct what became known late."""
    charges.charge(timezone.now())


@shared_task(name="telemetry.tasks.partitions")
def keep_partitions() -> None:
    """Partitions ahead, old days and old events away."""
    now = timezone.now()
    partitions.keep_partitions(now)
    health.forget_old(now)


@shared_task(name="telemetry.tasks.health")
def act_on_health() -> None:
    """Do what the table says about hardware events, and about hosts on which attempts keep failing."""
    wall_clock.steadily(_act_on_health)


def _act_on_health(moment: Moment) -> None:
    breaker.watch(moment.wall)
    missing.watch(moment.wall)
    health.handle_events(moment.wall)


@shared_task(name="telemetry.tasks.budgets")
def watch_budgets() -> None:
    """Compare budgets with what was spent; close and open gates."""
    budgets.watch_budgets(timezone.now())
