"""Limit the planning time that each user's questions may use.

A question is an explanation, a preview or a request for alternatives. It can cost as much as a planning
cycle. A user who asks too often gets an error with the waiting time, and other users are not affected. The
counters are in the cache. While the cache is unavailable, there is no limit.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import datetime

from django.core.cache import cache
from redis.exceptions import RedisError

from portal.errors import PlannerBudgetExceeded
from portal.models import User

BUDGET_PERIOD_SECONDS = 60
MAX_PLANNING_MS_PER_PERIOD = 15_000  # for each user; about 150 questions in a pool of 1000 GPUs
ESTIMATED_MS_PER_QUESTION = 100  # counted in advance, so that concurrent questions are limited

_is_metered: ContextVar[bool] = ContextVar("a question is being answered", default=False)


@contextlib.contextmanager
def metered_planning(user: User, now: datetime) -> Iterator[None]:
    """Measure the planning time of the ``with`` block, and count it against the user's limit.

    A nested block is not measured again. Raises PlannerBudgetExceeded on entry if the user has used up the
    limit of this period.
    """
    if _is_metered.get():
        yield
        return
    key = f"asked:{user.pk}:{int(now.timestamp()) // BUDGET_PERIOD_SECONDS}"
    if _add_planning_ms(key, ESTIMATED_MS_PER_QUESTION) > MAX_PLANNING_MS_PER_PERIOD:
        _add_planning_ms(key, -ESTIMATED_MS_PER_QUESTION)
        raise PlannerBudgetExceeded(
            max(1, math.ceil(BUDGET_PERIOD_SECONDS - now.timestamp() % BUDGET_PERIOD_SECONDS))
        )
    before, began = _is_metered.set(True), time.monotonic()
    try:
        yield
    finally:
        _is_metered.reset(before)
        _add_planning_ms(key, int((time.monotonic() - began) * 1000) - ESTIMATED_MS_PER_QUESTION)


def _add_planning_ms(key: str, milliseconds: int) -> int:
    """Add milliseconds to a counter and return its new value.

    Return 0 while the cache is unavailable.
    """
    try:
        cache.add(key, 0, 2 * BUDGET_PERIOD_SECONDS)
        return int(cache.incr(key, milliseconds))
    except (RedisError, ValueError):  # ValueError: the key expired between the two calls
        return 0
