"""The edge can't keep what workloads write: it says so here while that goes on, and the operators' page shows it.

A hint in Redis that ends by itself; without Redis the edge's own log and its figures say it (docs/edge.md).
"""

from __future__ import annotations

import redis

from scheduler import nudge

KEY = "gpupool:logs_not_kept"
KEPT_SECONDS = 180  # said again every minute


def are_lost() -> bool:
    """Was a piece of a log lost within the last minutes?"""
    try:
        return bool(nudge.connection().exists(KEY))
    except redis.RedisError:
        return False
