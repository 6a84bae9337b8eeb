"""Read which edge process serves, if several run (setting GPUPOOL_EDGE_STANDBY)."""

from __future__ import annotations

from scheduler.state import nudge

ACTIVE_EDGE_KEY = f"{nudge.SITE}:edge:active"  # set by portal/edge/runtime/active_edge.py; it expires


def serving_edge() -> str:
    """Return the name of the serving edge process; empty if none serves. Raises RedisError."""
    name = nudge.redis_connection().get(ACTIVE_EDGE_KEY)
    return name.decode() if isinstance(name, bytes) else ""
