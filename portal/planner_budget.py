"""Questions that are answered by planning: why, what if, what else. Nothing waits for them, and each can cost a cycle's time.

So a person's questions may take so long in a minute, and no longer: who holds F5, or a script, is told when to ask again while
everybody else is answered. What is the same for all who may see it is kept for some seconds. Both live in the cache: while
that is away nobody is counted and nothing is kept.
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
MAX_PLANNING_MS_PER_PERIOD = (
    15_000  # of planning for one person in a period: about 150 questions in a pool of a thousand GPUs
)
ESTIMATED_MS_PER_QUESTION = (
    100  # what a question is counted as while it is being answered, so that many at once are not free
)

_is_metered: ContextVar[bool] = ContextVar("a question is being answered", default=False)


@contextlib.contextmanager
def metered_planning(user: User, now: datetime) -> Iterator[None]:
    """Within it a person's question is answered; what it takes is counted. Raises PlannerBudgetExceeded before it begins, when this
    person's questions took too long lately. Within another one it counts nothing more."""
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
    """Add to what was counted; what it is now."""
    try:
        cache.add(key, 0, 2 * BUDGET_PERIOD_SECONDS)
        return int(cache.incr(key, milliseconds))
    except (RedisError, ValueError):  # ValueError: it was forgotten between the two
        return 0
