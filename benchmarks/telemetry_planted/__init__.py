"""Score the alerts about unused GPUs on planted cases.

A generated pool has jobs and reservations with known behaviour: work that is idle, work that asked for too
many GPUs, reservations that nobody uses, and clean cases. The samples take the real path: stream, samples,
rollups, alerts. The seed is fixed. ``docs/benchmarks.md`` describes the figures.
"""

from benchmarks.telemetry_planted.scoring import measure

__all__ = ["measure"]
