"""Send nudges over Redis after the commit.

A nudge says that the engine should run, that the desired state of a host has changed, or that a page is
outdated. Nudges only save time. If Redis is unavailable, nudges are dropped with a log line, and the next
sweep or poll does the same work. The edge (the server process that agents and browsers connect to) reads the
channels ``gpupool:<db>:host:<id>`` (empty message) and ``gpupool:<db>:page`` (JSON ``{"topic": ...}``).
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
ENGINE_KEY_TTL_MS = 1_000  # if the task of a nudge is lost, later nudges are suppressed for at most this time
# All databases of a Redis server share its channels. The database number in the names separates two sites.
SITE = f"gpupool:{redis.connection.parse_url(settings.REDIS_URL).get('db', 0)}"
HOST_CHANNEL = f"{SITE}:host:"
PAGE_CHANNEL = f"{SITE}:page"
REDIS_TIMEOUT_SECONDS = 0.5
REDIS_RETRY_SECONDS = 2.0
FORWARD_DELAY_SECONDS = 0.05  # limits how often engine processes forward a nudge while the leader is busy
CYCLE_TASK = "scheduler.tasks.run_cycle"

QUEUE, HOSTS, CALENDAR = "queue", "hosts", "calendar"  # topics of pages that show many rows


def workload_topic(public_id: object) -> str:
    """Return the topic of one workload's page."""
    return f"workload:{public_id}"


def engine() -> None:
    """Nudge the engine after the commit to run a planning cycle."""
    transaction.on_commit(_send_cycle, robust=True)


def hosts(ids: Iterable[int]) -> None:
    """Nudge the edge after the commit to send the desired state to these hosts."""
    _after_commit([(HOST_CHANNEL + str(host), "") for host in sorted(set(ids))])


def pages(*topics: str) -> None:
    """Mark pages on these topics as outdated after the commit."""
    _after_commit([(PAGE_CHANNEL, json.dumps({"topic": topic})) for topic in dict.fromkeys(topics)])


def _after_commit(messages: Sequence[tuple[str, str]]) -> None:
    if messages:
        transaction.on_commit(functools.partial(_publish, messages), robust=True)


def clear_engine_nudge() -> None:
    """Clear the pending nudge before a cycle reads rows, so that a later commit can send a new nudge."""
    _ignore_redis_errors(lambda: redis_connection().delete(ENGINE_KEY))


def forward_engine_nudge() -> None:
    """Send an engine nudge again. Call this in an engine process that received it but is not the leader.

    Processes forward the nudge until the leader receives it.
    """
    time.sleep(FORWARD_DELAY_SECONDS)
    _send_cycle()


@functools.cache
def redis_connection() -> redis.Redis:
    """Return this process's pool of Redis connections."""
    no_retry = Retry(NoBackoff(), 0)  # a retry would delay the user's request
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
        pipe = redis_connection().pipeline(transaction=False)  # one round trip for all messages
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
    """The pause after a Redis error.

    No nudge is sent before ``until`` (a time of ``time.monotonic``), so that a request does not wait for a
    timeout with each nudge.
    """

    until: float = 0.0


_outage = _RedisOutage()
