"""Send nudges over Redis after the commit: the engine should run, a host's desired state changed, a page is
outdated.

Nudges only save time. If Redis is unavailable they are dropped with a log line, and the next sweep or poll
does the same work. The edge reads the channels ``gpupool:<db>:host:<id>`` (empty message) and
``gpupool:<db>:page`` (JSON ``{"topic": ...}``).
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import redis
from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string
from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.retry import Retry

log = logging.getLogger(__name__)

ENGINE_KEY = "gpupool:engine:nudged"
ENGINE_KEY_TTL_MS = 1_000  # a nudge whose task was lost suppresses later nudges no longer than this
# Redis channels belong to the whole server. The database number separates two sites on one server.
SITE = f"gpupool:{redis.connection.parse_url(settings.REDIS_URL).get('db', 0)}"
HOST_CHANNEL = f"{SITE}:host:"
PAGE_CHANNEL = f"{SITE}:page"
REDIS_TIMEOUT_SECONDS = 0.5
REDIS_RETRY_SECONDS = 2.0
FORWARD_DELAY_SECONDS = 0.05  # limits how often two engines exchange a nudge while the leader is busy
CYCLE_TASK = "scheduler.tasks.run_cycle"

QUEUE, HOSTS, CALENDAR = "queue", "hosts", "calendar"  # topics of pages that show many rows


def workload_topic(public_id: object) -> str:
    """Return the topic of one workload's page."""
    return f"workload:{public_id}"


def engine() -> None:
    """Nudge the engine after the commit: something that a cycle decides about has changed."""
    transaction.on_commit(_send_cycle, robust=True)


def hosts(ids: Iterable[int]) -> None:
    """Nudge the edge after the commit to push the desired state of these hosts."""
    _after_commit([(HOST_CHANNEL + str(host), "") for host in sorted(set(ids))])


def pages(*topics: str) -> None:
    """Mark pages on these topics as outdated after the commit."""
    _after_commit([(PAGE_CHANNEL, json.dumps({"topic": topic})) for topic in dict.fromkeys(topics)])


def _after_commit(messages: Sequence[tuple[str, str]]) -> None:
    if messages:
        transaction.on_commit(functools.partial(_publish, messages), robust=True)


def clear_engine_nudge() -> None:
    """Clear the pending nudge before a cycle reads: later commits need a nudge of their own."""
    _ignore_redis_errors(lambda: redis_connection().delete(ENGINE_KEY))


def forward_engine_nudge() -> None:
    """Send an engine nudge again, after it reached an engine process that does not lead.

    This repeats until the leader receives the nudge or another process becomes leader.
    """
    time.sleep(FORWARD_DELAY_SECONDS)
    _send_cycle()


@functools.cache
def redis_connection() -> redis.Redis:
    """Return this process's pool of Redis connections."""
    no_retry = Retry(NoBackoff(), 0)  # a user's request waits for the result
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
        retry=no_retry,
    )


def _send_cycle() -> None:
    def send() -> None:
        if redis_connection().set(ENGINE_KEY, "1", nx=True, px=ENGINE_KEY_TTL_MS):
            import_string(settings.GPUPOOL_TASK_QUEUE).send_task(
                CYCLE_TASK, queue="engine", expires=30, retry=False, ignore_result=True
            )

    _ignore_redis_errors(send)


def _publish(messages: Sequence[tuple[str, str]]) -> None:
    def send() -> None:
        pipe = redis_connection().pipeline(transaction=False)  # one round trip for all of them
        for channel, message in messages:
            pipe.publish(channel, message)
        pipe.execute()

    _ignore_redis_errors(send)


def _ignore_redis_errors(send: Callable[[], object]) -> None:
    if time.monotonic() < _outage.until:
        return
    try:
        send()
    except (redis.RedisError, OperationalError) as error:
        _outage.until = time.monotonic() + REDIS_RETRY_SECONDS
        log.warning(
            "nudges are dropped for %g s, the sweep will do their work: %s", REDIS_RETRY_SECONDS, error
        )


@dataclass
class _RedisOutage:
    """The end of an outage: until then no nudge is sent, so that a request does not wait for each nudge."""

    until: float = 0.0


_outage = _RedisOutage()
