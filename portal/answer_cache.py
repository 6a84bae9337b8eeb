"""Cache answers of the planner for a few seconds.

While the cache is unavailable, every answer is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from django.core.cache import cache
from redis.exceptions import RedisError

Answer = TypeVar("Answer")
ANSWER_CACHE_SECONDS = 5


def cached_answer(question: tuple[Hashable, ...], now: datetime, answer: Callable[[], Answer]) -> Answer:
    """Return the cached answer to a question. If there is none, compute it and cache it.

    All users share the cache, and an answer stays in it for at most ANSWER_CACHE_SECONDS. If the answer
    depends on the user, include the user in ``question``.
    """
    key = "answer:" + ":".join(map(str, (*question, int(now.timestamp()) // ANSWER_CACHE_SECONDS)))
    known: tuple[Answer] | None = cache_get(key)
    if known is None:
        known = (answer(),)
        cache_set(key, known, ANSWER_CACHE_SECONDS)
    return known[0]


def cache_get(key: str) -> Any:
    """Return the value of a key. Return None if the key is missing or the cache is unavailable."""
    try:
        return cache.get(key)
    except RedisError:
        return None


def cache_get_many(keys: Collection[str]) -> dict[str, Any]:
    """Return the values of the keys that exist. The result is empty while the cache is unavailable."""
    try:
        return cache.get_many(list(keys))
    except RedisError:
        return {}


def cache_set(key: str, what: object, seconds: int) -> None:
    """Store a value for ``seconds``. Does nothing while the cache is unavailable."""
    with contextlib.suppress(RedisError):
        cache.set(key, what, seconds)


def cache_set_many(values: Mapping[str, object], seconds: int) -> None:
    """Store values for ``seconds``. Does nothing while the cache is unavailable."""
    with contextlib.suppress(RedisError):
        cache.set_many(dict(values), seconds)
