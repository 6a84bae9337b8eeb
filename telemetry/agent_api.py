"""What the edge hands over from agents: sample batches and hardware events. It answers at once; workers do the rest."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import redis
from celery import current_app
from django.conf import settings
from django.db import connection as database
from django.db import transaction
from kombu.exceptions import OperationalError

from agent.protocol import Health, RunSeen, SampleBatch, StraySeen
from scheduler.models import Gpu, Host
from telemetry import strays
from telemetry.health import CLOSES
from telemetry.ingest import STREAM, entry_of
from telemetry.models import HealthEvent, HealthRule

log = logging.getLogger(__name__)

STREAM_LENGTH = 20_000  # batches; what falls out is sent again by its agent, because it was not acknowledged
MOST_CODES = 50  # of one run
HEALTH_TASK = "telemetry.tasks.health"

_connections: dict[str, redis.Redis] = {}


def connection() -> redis.Redis:
    """This process's pool of Redis connections."""
    url: str = settings.REDIS_URL
    if url not in _connections:
        _connections[url] = redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=2.0)
    return _connections[url]


def accept_batch(host_id: int, batch: SampleBatch, now: datetime) -> None:
    """Put a batch on the stream. It is acknowledged by ``committed_sequence`` only once it is in the database, to which a tick
    brings all that wait each second: a worker that is woken for a few of them does several times the work.

    Raises redis.RedisError when Redis is away: the agent keeps the batch and sends it again.
    """
    connection().xadd(STREAM, entry_of(host_id, batch, now), maxlen=STREAM_LENGTH, approximate=True)  # type: ignore[arg-type]


def committed_sequence(host_id: int) -> int:
    """Every batch of this host up to this one is in the database; 0 when none is."""
    with database.cursor() as cursor:  # with each sync of each host: by the ORM it takes twice as long
        cursor.execute("SELECT sequence FROM telemetry_samplewatermark WHERE host_id = %s", (host_id,))
        row = cursor.fetchone()
    return row[0] if row else 0


def accept_health(host_id: int, health: Health, now: datetime) -> bool:
    """Keep one hardware event, and wake the worker that acts on it. False when it was known already.

    An event of the far future is kept with the time of its arrival; one of a GPU the host does not have names no GPU.
    """
    at = min(_moment(health.ts, now), now)
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
        transaction.on_commit(_nudge_health, robust=True)
    return created


def gpu_faults(runs: Iterable[RunSeen]) -> frozenset[str]:
    """Which codes that these runs' GPUs told take a GPU or its host out of use, by the table of hardware events, and are no
    program's doing; whatever the number at which the rule acts, for a program fails of the first. One query where any was told."""
    codes = {code for run in runs for code in run.gpu_events[:MOST_CODES] if code.isprintable()}
    if not codes:
        return frozenset()
    rules = HealthRule.objects.filter(code__in=codes, action__in=CLOSES).exclude(counts=HealthRule.Counts.PEOPLE)
    return frozenset(rules.values_list("code", flat=True))


def accept_strays(host_id: int, seen: Sequence[StraySeen], now: datetime) -> None:
    """Keep which processes a host says belong to no workload there, and wake the worker that tells of new ones."""
    host = Host.objects.filter(pk=host_id).first()
    if host is not None and strays.write(host, seen, now):
        _nudge_health()


def _moment(seconds: float, otherwise: datetime) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return otherwise


def _nudge_health() -> None:
    """Wake a worker; a hint that is lost is made good by the next tick of the beat."""
    try:
        current_app.send_task(HEALTH_TASK, queue="telemetry", expires=30, retry=False, ignore_result=True)
    except (redis.RedisError, OperationalError) as error:
        log.warning("a hint was dropped, the next tick will do its work: %s", error)
