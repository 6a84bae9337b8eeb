"""Accept sample batches, hardware events and stray processes from the edge, the server for agents.

The functions only queue or store the data. Workers process it later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import redis
from celery import current_app
from django.db import connection as database
from django.db import transaction
from django.db.models import F
from kombu.exceptions import OperationalError

from agent.protocol import Health, RunSeen, SampleBatch, StraySeen
from scheduler.models import Gpu, Host
from telemetry.dcgm import xid_events
from telemetry.health import stray_processes
from telemetry.health.rules import CLOSING_ACTIONS
from telemetry.ingest.redis_client import redis_client
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY, encode_batch
from telemetry.models import HealthEvent, HealthRule

log = logging.getLogger(__name__)

# Above this number the stream drops the oldest batches. Agents send the dropped batches again, because no
# acknowledgement arrives.
STREAM_MAX_BATCHES = 20_000
MAX_CODES_PER_RUN = 50
HEALTH_TASK = "telemetry.tasks.health"


def enqueue_batch(host_id: int, batch: SampleBatch, now: datetime) -> None:
    """Append a batch to the Redis stream. Raises redis.RedisError if Redis is unavailable.

    The batch is acknowledged by ``committed_sequence`` once it is in the database. Until then, the agent
    keeps the batch and can send it again. A periodic task drains the stream every second. Waking a worker for
    a few batches would cost several times as much.
    """
    redis_client().xadd(
        SAMPLE_STREAM_KEY,
        encode_batch(host_id, batch, now),  # type: ignore[arg-type]
        maxlen=STREAM_MAX_BATCHES,
        approximate=True,
    )


def committed_sequence(host_id: int) -> int:
    """Return the sequence number up to which each batch of this host is stored or was given up as lost.

    The result is 0 if there is no such batch.
    """
    # This is plain SQL, because the query runs at every sync and the ORM takes twice as long.
    with database.cursor() as cursor:
        cursor.execute("SELECT sequence FROM telemetry_samplewatermark WHERE host_id = %s", (host_id,))
        row = cursor.fetchone()
    return row[0] if row else 0


def record_health_event(host_id: int, health: Health, now: datetime) -> bool:
    """Store one hardware event and wake the health worker. Return False if the event was already stored.

    An XID that dcgm-exporter reported first is already stored. If the timestamp of the event is in the
    future, the time of arrival is stored. If the host does not have the event's GPU, the event is stored
    without a GPU.
    """
    at = min(_to_datetime(health.ts, now), now)
    # A host that moved to another pool has several rows for one GPU. Prefer the row that is not retired.
    gpu = (
        Gpu.objects.filter(host=host_id, uuid=health.gpu)
        .order_by(F("retired_at").desc(nulls_first=True), "-pk")
        .first()
    )
    event_id, code = health.event_id[:80], health.code[:40]
    reported = {"source": health.source[:20], "detail": health.detail[:1000]}
    if xid_events.replace_event(host_id, gpu, event_id=event_id, code=code, at=at, **reported):
        return False
    _, created = HealthEvent.objects.get_or_create(
        host_id=host_id,
        event_id=event_id,
        defaults={"gpu": gpu, "code": code, "at": at, "received_at": now, **reported},
    )
    if created:
        transaction.on_commit(_wake_health_worker, robust=True)
    return created


def gpu_fault_codes(runs: Iterable[RunSeen]) -> frozenset[str]:
    """Return the codes of hardware faults among the GPU events that ``runs`` report. At most one query.

    A code is a hardware fault if its health rule takes the GPU or the host out of service, and if no program
    can cause the event. The rule's ``repeats`` is ignored, because the first event already makes the program
    fail.
    """
    codes = {code for run in runs for code in run.gpu_events[:MAX_CODES_PER_RUN] if code.isprintable()}
    if not codes:
        return frozenset()
    rules = HealthRule.objects.filter(code__in=codes, action__in=CLOSING_ACTIONS).exclude(
        counts=HealthRule.Counts.PEOPLE
    )
    return frozenset(rules.values_list("code", flat=True))


def record_stray_processes(host_id: int, seen: Sequence[StraySeen], now: datetime) -> None:
    """Store the stray processes that a host reports, and wake the health worker if some are new."""
    host = Host.objects.filter(pk=host_id).first()
    if host is not None and stray_processes.sync_stray_rows(host, seen, now):
        _wake_health_worker()


def _to_datetime(seconds: float, otherwise: datetime) -> datetime:
    """Return ``seconds`` since the epoch as a datetime; ``otherwise`` if no datetime can represent them."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return otherwise


def _wake_health_worker() -> None:
    """Wake the health worker. If the message is lost, the next periodic run does the work."""
    try:
        current_app.send_task(HEALTH_TASK, queue="telemetry", expires=30, retry=False, ignore_result=True)
    except (redis.RedisError, OperationalError) as error:
        log.warning("wake-up of the health worker was lost, its next periodic run does the work: %s", error)
