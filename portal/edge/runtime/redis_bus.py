"""Subscribe to Redis, once per process. Messages are hints: the loss of a message only causes a delay.

The channels and their messages are:

- ``gpupool:<db>:host:<Host.pk>``: the desired state of this host may have changed. Published by
  scheduler/state/nudge.py.
- ``gpupool:<db>:page``: pages of a topic may have changed. The message is JSON ``{"topic": ...}``. Published
  by scheduler/state/nudge.py and by the edge.
- ``gpupool:<db>:access``: a portal session has ended. The message is the hash of the session. It is empty if
  a user's rights have changed. Published by portal/redis_state/access_revocation.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from portal.redis_state.access_revocation import ACCESS_CHANNEL
from scheduler.state.nudge import HOST_CHANNEL, PAGE_CHANNEL

log = structlog.get_logger(__name__)

MAX_RECONNECT_PAUSE_SECONDS = 5.0


class RedisBus:
    """The subscription of one process to Redis. It passes each message to the registered callbacks.

    After a reconnect it calls the callbacks of ``on_reconnect``, because messages may have been lost.
    """

    def __init__(self, url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, health_check_interval=15)
        self._on_host: list[Callable[[int], None]] = []
        self._on_page: list[Callable[[str], None]] = []
        self._on_access: list[Callable[[str], None]] = []
        self._on_reconnect_callbacks: list[Callable[[], None]] = []
        self.connected = False

    def on_host(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the id of each host whose desired state may have changed."""
        self._on_host.append(callback)

    def on_page(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with each topic whose pages may have changed."""
        self._on_page.append(callback)

    def on_access(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with the hash of each portal session that ends.

        The hash is empty if a user's rights have changed.
        """
        self._on_access.append(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever the subscription is established, also for the first time."""
        self._on_reconnect_callbacks.append(callback)

    async def publish_to_pages(self, topic: str) -> None:
        """Publish to all edge processes that the pages of this topic may have changed."""
        await self._ignore_redis_errors(self._redis.publish(PAGE_CHANNEL, json.dumps({"topic": topic})))

    async def keep(self, key: str, value: str, seconds: int) -> None:
        """Store ``value`` under ``key`` in Redis for ``seconds``. Errors of Redis are only logged."""
        await self._ignore_redis_errors(self._redis.set(key, value, ex=seconds))

    async def _ignore_redis_errors(self, sending: object) -> None:
        try:
            await sending  # type: ignore[misc]
        except (RedisError, OSError) as error:
            log.warning("hint not sent", error=str(error))

    async def run(self) -> None:
        """Receive messages until the task is cancelled. Connect again when the connection is lost."""
        pause = 0.1
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError) as error:
                log.warning("redis unavailable", error=str(error), again_in=pause)
            pause = 0.1 if self.connected else min(pause * 2, MAX_RECONNECT_PAUSE_SECONDS)
            self.connected = False
            await asyncio.sleep(pause)

    async def _listen_once(self) -> None:
        async with self._redis.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(PAGE_CHANNEL, ACCESS_CHANNEL)
            await subscription.psubscribe(f"{HOST_CHANNEL}*")
            self.connected = True
            for callback in self._on_reconnect_callbacks:
                callback()
            async for message in subscription.listen():
                self._dispatch(message["channel"], message["data"])

    def _dispatch(self, channel: str, data: str) -> None:
        if channel == ACCESS_CHANNEL:
            for callback in self._on_access:
                callback(data)
        elif channel == PAGE_CHANNEL:
            topic = _topic(data)
            for callback in self._on_page if topic else ():
                callback(topic)
        elif (host := channel.removeprefix(HOST_CHANNEL)).isdigit():
            for on_host in self._on_host:
                on_host(int(host))

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._redis.aclose()


def _topic(data: str) -> str:
    try:
        topic = json.loads(data)["topic"]
    except (ValueError, TypeError, KeyError):
        return ""
    return topic if isinstance(topic, str) else ""
