"""What the edge hands over from agents: sample batches and hardware events. It answers at once; workers do the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import redis
from celery import current_app
from django.db import connection as database
from django.db import transaction
from kombu.exceptions import OperationalError

from agent.protocol import Health, RunSeen, SampleBatch, StraySeen
from scheduler.models import Gpu, Host
from telemetry.health import stray_processes
from telemetry.health.rules import CLOSING_ACTIONS
from telemetry.ingest.redis_client import redis_client
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY, encode_batch
from telemetry.models import HealthEvent, HealthRule

log = logging.getLogger(__name__)

STREAM_MAX_BATCHES = (
    20_000  # batches; what falls out is sent again by its agent, because it was not acknowledged
)
MAX_CODES_PER_RUN = 50  # of one run
HEALTH_TASK = "telemetry.tasks.health"


def enqueue_batch(host_id: int, batch: SampleBatch, now: datetime) -> None:
    """Put a batch on the stream. It is acknowledged by ``committed_sequence`` only once it is in the database, to which a tick
    brings all that wait each second: a worker that is woken for a few of them does several times the work.

    Raises redis.RedisError when Redis is away: the agent keeps the batch and sends it again.
    """
    redis_client().xadd(
        SAMPLE_STREAM_KEY,
        encode_batch(host_id, batch, now),  # type: ignore[arg-type]
        maxlen=STREAM_MAX_BATCHES,
        approximate=True,
    )


def committed_sequence(host_id: int) -> int:
    """Every batch of this host up to this one is in the database; 0 when none is."""
    with database.cursor() as cursor:  # with each sync of each host: by the ORM it takes twice as long
        cursor.execute("SELECT sequence FROM telemetry_samplewatermark WHERE host_id = %s", (host_id,))
        row = cursor.fetchone()
    return row[0] if row else 0


def record_health_event(host_id: int, health: Health, now: datetime) -> bool:
    """Keep one hardware event, and wake the worker that acts on it. False when it was known already.

    An event of the far future is kept with the time of its arrival; one of a GPU the host does not have names no GPU.
    """
    at = min(_to_datetime(health.ts, now), now)
    gpu = Gpu.objects.filter(host=host_id, uuid=health.gpu).order_by("retired_at", "-pk").first()
    _, created = HealthEvent.objects.get_or_create(
        host_id=host_id,
        event_id=health.event_id[:80],
        defaults={
            "gpu": gpu,
            "source": health.source[:20],
            "code": health.code[:40],
            "detail": health.detail[:1000],
            "at": at,
            "received_at": now,
        },
    )
    if created:
        transaction.on_commit(_wake_health_worker, robust=True)
    return created


def gpu_fault_codes(runs: Iterable[RunSeen]) -> frozenset[str]:
    """Which codes that these runs' GPUs told take a GPU or its host out of use, by the table of hardware events, and are no
    program's doing; whatever the number at which the rule acts, for a program fails of the first. One query where any was told."""
    codes = {code for run in runs for code in run.gpu_events[:MAX_CODES_PER_RUN] if code.isprintable()}
    if not codes:
        return frozenset()
    rules = HealthRule.objects.filter(code__in=codes, action__in=CLOSING_ACTIONS).exclude(
        counts=HealthRule.Counts.PEOPLE
    )
    return frozenset(rules.values_list("code", flat=True))


def record_stray_processes(host_id: int, seen: Sequence[StraySeen], now: datetime) -> None:
    """Keep which processes a host says belong to no workload there, and wake the worker that tells of new ones."""
    host = Host.objects.filter(pk=host_id).first()
    if host is not None and stray_processes.sync_stray_rows(host, seen, now):
        _wake_health_worker()


def _to_datetime(seconds: float, otherwise: datetime) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return otherwise


def _wake_health_worker() -> None:
    """Wake a worker; a hint that is lost is made good by the next tick of the beat."""
    try:
        current_app.send_task(HEALTH_TASK, queue="telemetry", expires=30, retry=False, ignore_result=True)
    except (redis.RedisError, OperationalError) as error:
        log.warning("a hint was dropped, the next tick will do its work: %s", error)
