"""Read whether the edge reports that it cannot store logs of workloads, for the page of operators.

The key in Redis expires. Without Redis only the edge's log and metrics show the loss (docs/edge.md).
"""

from __future__ import annotations

import redis

from scheduler.state import nudge

LOG_LOSS_KEY = "gpupool:logs_not_kept"
LOG_LOSS_TTL_SECONDS = 180  # the edge renews it every minute


def is_log_loss_reported() -> bool:
    """Return True if a part of a log was lost within the last minutes."""
    try:
        return bool(nudge.redis_connection().exists(LOG_LOSS_KEY))
    except redis.RedisError:
        return False
