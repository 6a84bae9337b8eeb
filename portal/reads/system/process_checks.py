"""Check the processes of the server, their queues and the leading engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.conf import settings
from django.utils.module_loading import import_string
from redis.exceptions import RedisError

from portal.processes.reports import PROCESS_ROLES, VERSION, reported_processes
from portal.reads.system.checks import HealthCheck, HealthLimit, HealthState, measured
from portal.redis_state.log_loss import LOG_LOSS_KEY
from portal.redis_state.serving_edge import serving_edge
from portal.wording import system_texts
from scheduler.models import Leader
from scheduler.state import nudge
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY

LEADER_LIMIT = HealthLimit(10, 30, "s")
CYCLE_LIMIT = HealthLimit(30, 120, "s")
QUEUE_LIMIT = HealthLimit(100, 1_000)
STREAM_LIMIT = HealthLimit(1_000, 5_000)


def process_checks() -> Iterator[HealthCheck]:
    """Check that each role has a process, and that all processes have the version of this one."""
    found = reported_processes()
    for role in PROCESS_ROLES:
        limit = system_texts.PROCESS_LIMIT.format(version=VERSION)
        if found is None:
            yield HealthCheck("process", role, None, "", system_texts.UNKNOWN, HealthState.UNKNOWN, limit)
            continue
        versions = [each.version for each in found if each.role == role]
        state = HealthState.GOOD if set(versions) == {VERSION} else HealthState.ATTENTION
        text = system_texts.process_text(len(versions), sorted(set(versions)))
        state = state if versions else HealthState.BAD
        yield HealthCheck("process", role, len(versions), "", text, state, limit)


def edge_checks() -> Iterator[HealthCheck]:
    """Check that one edge serves if several run, and that logs of workloads are stored."""
    holder: str | None = None
    lost: bool | None = None
    try:
        holder = serving_edge()
        lost = bool(nudge.redis_connection().exists(LOG_LOSS_KEY))
    except RedisError:
        pass  # a value that was not read stays unknown
    if settings.GPUPOOL_EDGE_STANDBY:
        value = None if holder is None else float(bool(holder))
        text = system_texts.UNKNOWN if holder is None else holder or system_texts.NONE_SERVES
        state = HealthLimit(None, 1, falling=True).state_of(value)
        yield HealthCheck("serving_edge", "", value, "", text, state, system_texts.SERVING_LIMIT)
    text = {None: system_texts.UNKNOWN, True: system_texts.LOGS_LOST, False: system_texts.LOGS_KEPT}[lost]
    state = HealthLimit(None, 0).state_of(lost)
    yield HealthCheck("logs", "", lost, "", text, state, system_texts.LOGS_LIMIT)


def engine_checks(now: datetime) -> Iterator[HealthCheck]:
    """Check the lease of the leading engine, and the time of its last planning cycle. Takes one query."""
    row = Leader.objects.filter(pk=1).first()
    renewed, cycle = (row.renewed_at, row.last_cycle_at) if row else (None, None)
    text = ""
    age = seconds_since(renewed, now)
    if row is not None and row.holder and age is not None:
        text = f"{row.holder} · {system_texts.value_text(age, 's')}"
    yield measured("leader", age, LEADER_LIMIT, text=text)
    yield measured("cycle", seconds_since(cycle, now), CYCLE_LIMIT)


def queue_checks() -> Iterator[HealthCheck]:
    """Check the number of tasks in each queue of Celery, and of sample batches on the stream."""
    celery = import_string(settings.GPUPOOL_TASK_QUEUE)
    prefix = celery.conf.broker_transport_options["global_keyprefix"]
    names = [queue.name for queue in celery.conf.task_queues]
    pipe = nudge.redis_connection().pipeline(transaction=False)
    for name in names:
        pipe.llen(prefix + name)
    pipe.xlen(SAMPLE_STREAM_KEY)
    lengths: list[int | None]
    try:
        lengths = pipe.execute()
    except RedisError:
        lengths = [None] * (len(names) + 1)
    for name, length in zip(names, lengths, strict=False):
        yield measured("queue", length, QUEUE_LIMIT, subject=name)
    yield measured("stream", lengths[-1], STREAM_LIMIT)


def seconds_since(at: datetime | None, now: datetime) -> float | None:
    """Return the seconds from ``at`` to ``now``, at least 0; None without a time."""
    return None if at is None else max(0.0, (now - at).total_seconds())
