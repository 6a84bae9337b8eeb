"""Elect the edge process that serves, if several run (setting GPUPOOL_EDGE_STANDBY).

Agents and the notebooks on their hosts must be connected to the same edge process. So one process serves, and
the others do not listen until it ends, so that a proxy uses the serving one. A key in Redis, which expires,
names the serving process. While Redis is unavailable, nothing changes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from portal.redis_state.serving_edge import ACTIVE_EDGE_KEY

log = structlog.get_logger(__name__)

ACTIVE_TTL_MS = 5_000  # a serving process that has not renewed the key for this long is dead or frozen
RENEW_SECONDS = 1.0
# Take the key if it is free, or renew it if it is ours. Returns the name in the key.
_TAKE_OR_RENEW = """
local holder = redis.call('GET', KEYS[1])
if not holder or holder == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return ARGV[1]
end
return holder
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


async def _do_nothing() -> None:
    """Do nothing. This is the default of both callbacks."""


class ActiveEdge:
    """Whether this process serves. ``on_gain`` and ``on_loss`` are called when this changes."""

    def __init__(self, url: str, port: int) -> None:
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=2.0)
        # A process that is restarted at the same address has the same name, so it serves at once.
        self.name = f"{socket.gethostname()}:{port}"
        self.on_gain: Callable[[], Awaitable[None]] = _do_nothing
        self.on_loss: Callable[[], Awaitable[None]] = _do_nothing
        self.is_active = False
        self._is_ending = False

    async def renew(self) -> None:
        """Take or renew the key, and note whether this process serves."""
        try:
            asked = self._redis.eval(_TAKE_OR_RENEW, 1, ACTIVE_EDGE_KEY, self.name, str(ACTIVE_TTL_MS))
            holder = await cast(Awaitable[str], asked)
        except (RedisError, OSError) as error:
            log.warning("standby not checked", error=str(error))
            return
        if self._is_ending:
            return
        if holder == self.name and not self.is_active:
            await self.on_gain()
            self.is_active = True
        elif holder != self.name and self.is_active:
            self.is_active = False
            log.warning("edge stands by: another process serves", holder=holder)
            await self.on_loss()

    async def keep(self) -> None:
        """Renew the key until the task is cancelled."""
        while not self._is_ending:
            await self.renew()
            await asyncio.sleep(RENEW_SECONDS)

    async def release(self) -> None:
        """Stop serving, and free the key, so that another process serves at once."""
        self._is_ending, was_active, self.is_active = True, self.is_active, False
        if was_active:
            await self.on_loss()
        try:
            await cast(Awaitable[int], self._redis.eval(_RELEASE, 1, ACTIVE_EDGE_KEY, self.name))
        except (RedisError, OSError) as error:
            log.warning("key of the serving edge not freed", error=str(error))
        await self._redis.aclose()
