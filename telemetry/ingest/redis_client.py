"""Create one Redis client per URL and process."""

from __future__ import annotations

import redis
from django.conf import settings

_redis_clients: dict[str, redis.Redis] = {}


def redis_client() -> redis.Redis:
    """Return the Redis client of this process for settings.REDIS_URL."""
    url: str = settings.REDIS_URL
    if url not in _redis_clients:
        _redis_clients[url] = redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=2.0)
    return _redis_clients[url]
