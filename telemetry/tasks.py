"""Define the Celery tasks of telemetry and money.

Each task processes due rows of the database. A task is idempotent, may run concurrently with itself, and ends
within seconds. Only the rehearsal of a close may take minutes.
"""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from scheduler.coordination import clock_correction
from scheduler.coordination.clock_check import ClockSample
from telemetry.budgets import budget_checks
from telemetry.health import circuit_breaker, missing_gpus, rules
from telemetry.ingest import partitions, redis_client, samples, watermarks
from telemetry.money import charges
from telemetry.money.closing import rehearsals
from telemetry.rollups import roll_up as rollups

log = structlog.get_logger(__name__)

REHEARSAL_LIMIT_SECONDS = 1_800


@shared_task(name="telemetry.tasks.ingest_stream")
def ingest_stream() -> None:
    """Write the batches that wait on the Redis stream to the database."""
    done = samples.drain_stream(redis_client.redis_client(), timezone.now())
    if done.rejected:
        log.warning("samples rejected", rows=done.rejected, batches=done.batches)


@shared_task(name="telemetry.tasks.roll_up")
def roll_up() -> None:
    """Skip batches that no longer arrive, and roll up the buckets that are marked as due."""
    now = timezone.now()
    watermarks.skip_missing_batches(now)
    done = rollups.roll_up_due_buckets(now)
    if done.kept:
        log.warning("rollups kept, because their source rows no longer exist", units=done.kept)


@shared_task(name="telemetry.tasks.charge")
def charge() -> None:
    """Charge elapsed GPU time, and correct earlier charges after late facts."""
    charges.charge_all_gpus(timezone.now())


@shared_task(name="telemetry.tasks.partitions")
def maintain_partitions() -> None:
    """Create partitions ahead of time, and delete expired partitions and old events."""
    now = timezone.now()
    partitions.maintain_partitions(now)
    rules.purge_old_events(now)


@shared_task(name="telemetry.tasks.health")
def act_on_health() -> None:
    """Record failing hosts and missing GPUs, and apply the health rules to new events."""
    clock_correction.with_steady_clock(_check_health)


def _check_health(clock: ClockSample) -> None:
    circuit_breaker.record_failing_hosts(clock.wall)
    missing_gpus.record_missing_gpus(clock.wall)
    rules.apply_rules_to_events(clock.wall)


@shared_task(name="telemetry.tasks.budgets")
def check_budgets() -> None:
    """Compare budgets with the spending of their periods, and open and close budget gates."""
    budget_checks.check_budgets(timezone.now())


# The message is acknowledged before the task runs: the broker would deliver it again after a minute.
@shared_task(
    name="telemetry.tasks.rehearse_close",
    acks_late=False,
    time_limit=REHEARSAL_LIMIT_SECONDS,
    soft_time_limit=REHEARSAL_LIMIT_SECONDS - 60,
)
def rehearse_close() -> None:
    """Run the checks of a close, with the audit, for one open month that had none tonight."""
    rehearsals.rehearse_next_month(timezone.now())
