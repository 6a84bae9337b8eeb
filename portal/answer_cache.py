"""Cache answers of the planner for a few seconds. While the cache is unavailable, nothing is stored and nothing fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any, TypeVar

from django.core.cache import cache
from redis.exceptions import RedisError

Answer = TypeVar("Answer")
ANSWER_CACHE_SECONDS = 5


def cached_answer(question: tuple[Hashable, ...], now: datetime, answer: Callable[[], Answer]) -> Answer:
    """The answer to a question, or what was answered to the same a few seconds ago. Only for what does not depend on who asks,
    where they are no part of the question."""
    key = "answer:" + ":".join(map(str, (*question, int(now.timestamp()) // ANSWER_CACHE_SECONDS)))
    known: tuple[Answer] | None = cache_get(key)
    if known is None:
        known = (answer(),)
        cache_set(key, known, ANSWER_CACHE_SECONDS)
    return known[0]


def cache_get(key: str) -> Any:
    """What was remembered under this key; None where nothing was, or the cache is away."""
    try:
        return cache.get(key)
    except RedisError:
        return None


def cache_set(key: str, what: object, seconds: int) -> None:
    """For so long; not at all while the cache is away."""
    with contextlib.suppress(RedisError):
        cache.set(key, what, seconds)
