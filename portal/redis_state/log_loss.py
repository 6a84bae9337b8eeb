"""Read whether the edge has lost logs of workloads, for a warning to operators.

The edge sets a key in Redis, which expires. While Redis is unavailable, only the edge's own log and metrics
show the loss (docs/edge.md).
"""

from __future__ import annotations

import redis

from scheduler.state import nudge

LOG_LOSS_KEY = "gpupool:logs_not_kept"
LOG_LOSS_TTL_SECONDS = 180  # the edge sets the key again every minute while logs are lost


def is_log_loss_reported() -> bool:
    """Return True if the edge has lost a part of a log within the last minutes."""
    try:
        return bool(nudge.redis_connection().exists(LOG_LOSS_KEY))
    except redis.RedisError:
        return False
