"""The edge can't keep what workloads write: it says so here while that goes on, and the operators' page shows it.

A hint in Redis that ends by itself; without Redis the edge's own log and its figures say it (docs/edge.md).
"""

from __future__ import annotations

import redis

from scheduler.state import nudge

LOG_LOSS_KEY = "gpupool:logs_not_kept"
LOG_LOSS_TTL_SECONDS = 180  # said again every minute


def is_log_loss_reported() -> bool:
    """Was a piece of a log lost within the last minutes?"""
    try:
        return bool(nudge.redis_connection().exists(LOG_LOSS_KEY))
    except redis.RedisError:
        return False
