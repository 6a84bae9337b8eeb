"""Define the Celery tasks of telemetry and money.

Each task processes due rows of the database. A task is idempotent, may run concurrently with itself, and ends
within seconds. Only the rehearsal of a close and a study of the number of GPUs may take minutes.
"""

from __future__ import annotations

import structlog
from celery import shared_task
from django.utils import timezone

from scheduler.coordination import clock_correction
from scheduler.coordination.clock_check import ClockSample
from telemetry.alerts import evaluate
from telemetry.budgets import budget_checks
from telemetry.capacity import studies
from telemetry.dcgm import scrapes
from telemetry.exports.focus.rehearsal import check_rehearsed_files
from telemetry.health import circuit_breaker, missing_gpus, rules
from telemetry.ingest import partitions, redis_client, samples, watermarks
from telemetry.money import charges
from telemetry.money.closing import rehearsals
from telemetry.reports import stored as reports
from telemetry.rollups import roll_up as rollups
from telemetry.samples import packing

log = structlog.get_logger(__name__)

REHEARSAL_LIMIT_SECONDS = 1_800
PACK_STEPS = 10  # of 8 units each: about 10 seconds, so that 10,000 GPUs take two hours
STUDY_LIMIT_SECONDS = 1_800


@shared_task(name="telemetry.tasks.ingest_stream")
def ingest_stream() -> None:
    """Write the batches that wait on the Redis stream to the database."""
    done = samples.drain_stream(redis_client.redis_client(), timezone.now())
    if done.rejected:
        log.warning("samples rejected", rows=done.rejected, batches=done.batches)
    if done.impossible:
        log.warning("impossible readings stored as unknown", readings=done.impossible, batches=done.batches)


@shared_task(name="telemetry.tasks.scrape_dcgm")
def scrape_dcgm() -> None:
    """Scrape the dcgm-exporters that are due."""
    done = scrapes.scrape_due_targets(timezone.now())
    if done.problems:
        log.warning("dcgm-exporters could not be read", problems=done.problems, targets=done.targets)


@shared_task(name="telemetry.tasks.roll_up")
def roll_up() -> None:
    """Skip batches that no longer arrive, and roll up the buckets that are marked as due."""
    now = timezone.now()
    watermarks.skip_missing_batches(now)
    done = rollups.roll_up_due_buckets(now)
    if done.kept:
        log.warning("rollups kept, because their source rows no longer exist", units=done.kept)


@shared_task(name="telemetry.tasks.report_runs")
def report_runs() -> None:
    """Store the reports of workloads that have ended, and freeze the reports that no longer change."""
    reports.refresh_reports(timezone.now())


@shared_task(name="telemetry.tasks.charge")
def charge() -> None:
    """Charge elapsed GPU time, and correct earlier charges after late facts."""
    charges.charge_all_gpus(timezone.now())


@shared_task(name="telemetry.tasks.partitions")
def maintain_partitions() -> None:
    """Create partitions ahead of time, and delete expired partitions, old events and ended alerts."""
    now = timezone.now()
    partitions.maintain_partitions(now)
    rules.purge_old_events(now)
    evaluate.purge_old_alerts(now)


@shared_task(name="telemetry.tasks.pack_samples")
def pack_samples() -> None:
    """Pack the samples of some units of past days."""
    packing.pack_samples(timezone.now(), steps=PACK_STEPS)


@shared_task(name="telemetry.tasks.health")
def act_on_health() -> None:
    """Record failing hosts and missing GPUs, and apply the health rules to new events."""
    clock_correction.with_steady_clock(_check_health)


def _check_health(clock: ClockSample) -> None:
    circuit_breaker.record_failing_hosts(clock.wall)
    missing_gpus.record_missing_gpus(clock.wall)
    rules.apply_rules_to_events(clock.wall)


@shared_task(name="telemetry.tasks.alerts")
def check_alerts() -> None:
    """Begin and end alerts, and stop unused work if the rule of the pool allows it."""
    clock_correction.with_steady_clock(lambda clock: evaluate.evaluate_alerts(clock.wall))


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
    """Rehearse the close of one open month that had no rehearsal tonight, and check its FOCUS files."""
    rehearsal = rehearsals.rehearse_next_month(timezone.now())
    if rehearsal is not None:
        check_rehearsed_files(rehearsal)


@shared_task(
    name="telemetry.tasks.study_capacity",
    acks_late=False,
    time_limit=STUDY_LIMIT_SECONDS,
    soft_time_limit=STUDY_LIMIT_SECONDS - 60,
)
def study_capacity() -> None:
    """Run the next study of the number of GPUs that a person has requested."""
    studies.run_next_study(timezone.now)
