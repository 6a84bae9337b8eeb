"""Define notices that are not written to the database yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler.models import Workload


@dataclass(frozen=True)
class PendingNotice:
    """A notice to the given users.

    ``source`` identifies the event. Each user gets only one notice for each source. ``actor`` is the user
    whose own action is the event; this user gets no notice.
    """

    kind: str
    source: str
    users: tuple[int, ...]
    numbers: dict[str, Any] = field(default_factory=dict)
    workload: int | None = None
    reservation: int | None = None
    submission: int | None = None
    actor: int | None = None


def grouped_by_array(workload: Workload, source: str, at: datetime) -> tuple[str, str]:
    """Return the name and the source for a notice about a workload.

    Tasks of an array have the same source during one hour, so their owner gets one notice for all of them.
    """
    if workload.array is None:
        return workload.name, source
    return (
        f"{workload.array.name}, or a part of it,",
        f"{source.partition(':')[0]}:array {workload.array_id}:{at:%Y%m%d%H}",
    )
