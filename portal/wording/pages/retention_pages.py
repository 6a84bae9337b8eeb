"""Define texts of the page on which operators set how long samples and rollups are kept."""

from __future__ import annotations

# Levels of stored data, each with its label and its content.
LEVEL_LABELS = {
    "samples": ("Raw samples", "Single readings, and the use of runs, hosts and processes"),
    "minutes": ("Minutes", "Sums of each unit and allocation by minute"),
    "hours": ("Hours", "Sums of each unit and allocation by hour"),
    "days": ("Days", "Sums of each unit and allocation by day"),
    "cubes": ("Cubes", "Sums of pools, models, projects, types and people; always kept"),
}
FIELD_LABELS = {
    "sample_days": ("Raw samples", "Days, at least 2."),
    "minute_days": ("Minutes", "Days, more than raw samples."),
    "hour_days": ("Hours", "Days, at least 100, or unlimited."),
    "day_days": ("Days", "Days, at least as many as hours, or unlimited."),
}
RETENTION_SAVED = "Saved. Data that are older are deleted within ten minutes."


def kept_for(days: int | None) -> str:
    """Return ``14 days`` or ``without limit``."""
    return "without limit" if days is None else f"{days:,} days"
