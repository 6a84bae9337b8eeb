"""Describe the refund of lost work."""

from __future__ import annotations

from portal.wording.formatting import duration


def refund_limit_text(minutes: int | None) -> str:
    """Return a refund limit as a short text, such as ``the last 60 minutes``. None means no limit."""
    if minutes is None:
        return "all work since the last checkpoint"
    return "nothing" if minutes == 0 else f"at most the last {refund_duration(minutes)}"


def refund_duration(minutes: int) -> str:
    """Return the length of a refund limit, such as ``60 minutes``. Only whole hours above two are hours."""
    return f"{minutes:,} minute{'' if minutes == 1 else 's'}" if minutes <= 120 else duration(minutes * 60)


def refund_sentence(minutes: int | None) -> str:
    """Return how much of stopped work is not charged, by the refund limit of its pool in minutes."""
    if minutes is None:
        return "Its work since its last checkpoint is not charged."
    if minutes == 0:
        return "It is charged until its stop."
    return (
        "Its work since its last checkpoint is not charged, "
        f"but at most the last {refund_duration(minutes)} before its stop."
    )
