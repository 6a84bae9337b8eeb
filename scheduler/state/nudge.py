"""Hints over Redis, sent after the commit: the engine should look, a host's wishes changed, a page is out of date.

Hints make things fast, never right: when Redis is away they are dropped with a log line, and the next sweep or poll does
the same work.
The channels are read by the edge: ``gpupool:<db>:host:<id>`` (empty message) and ``gpupool:<db>:page`` (JSON ``{"topic": ...}``).
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
ENGINE_KEY_TTL_MS = 1_000  # a nudge whose task was lost keeps others away no longer than this
# Channels are the server's and not one database's of it: with its number two sites on one server don't hear each other.
SITE = f"gpupool:{redis.connection.parse_url(settings.REDIS_URL).get('db', 0)}"
HOST_CHANNEL = f"{SITE}:host:"
PAGE_CHANNEL = f"{SITE}:page"
REDIS_TIMEOUT_SECONDS = 0.5
REDIS_RETRY_SECONDS = 2.0
FORWARD_DELAY_SECONDS = 0.05  # so that two engines do not play ball while the one that leads is busy
CYCLE_TASK = "scheduler.tasks.run_cycle"

QUEUE, HOSTS, CALENDAR = "queue", "hosts", "calendar"  # topics of pages that show many rows


def workload_topic(public_id: object) -> str:
    """The topic of one workload's page."""
    return f"workload:{public_id}"


def engine() -> None:
    """After the commit: something that a cycle would decide about has changed."""
    transaction.on_commit(_send_cycle, robust=True)


def hosts(ids: Iterable[int]) -> None:
    """After the commit: these hosts' desired state has changed, the edge should push it."""
    _after_commit([(HOST_CHANNEL + str(host), "") for host in sorted(set(ids))])


def pages(*topics: str) -> None:
    """After the commit: pages on these topics are out of date."""
    _after_commit([(PAGE_CHANNEL, json.dumps({"topic": topic})) for topic in dict.fromkeys(topics)])


def _after_commit(messages: Sequence[tuple[str, str]]) -> None:
    if messages:
        transaction.on_commit(functools.partial(_publish, messages), robust=True)


def clear_engine_nudge() -> None:
    """Called by a cycle before it reads: what is committed from now on needs a nudge of its own."""
    _ignore_redis_errors(lambda: redis_connection().delete(ENGINE_KEY))


def forward_engine_nudge() -> None:
    """A nudge reached an engine that does not lead: to the one that does, or back here until the lead can be taken over."""
    time.sleep(FORWARD_DELAY_SECONDS)
    _send_cycle()


@functools.cache
def redis_connection() -> redis.Redis:
    """This process's pool of Redis connections."""
    never_again = Retry(NoBackoff(), 0)  # who asked for something waits for this answer
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
        retry=never_again,
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
        pipe = redis_connection().pipeline(transaction=False)  # one way there and back for all of them
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
            "hints are dropped for %g s, the sweep will do their work: %s", REDIS_RETRY_SECONDS, error
        )


@dataclass
class _RedisOutage:
    """Until when Redis is taken to be away: one request does not wait for it once per hint."""

    until: float = 0.0


_outage = _RedisOutage()
