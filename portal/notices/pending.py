"""Define notices that have not been written yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler.models import Workload


@dataclass(frozen=True)
class PendingNotice:
    """A notice for some users. ``source`` identifies the event: (user, source) is unique."""

    kind: str
    source: str
    users: tuple[int, ...]
    numbers: dict[str, Any] = field(default_factory=dict)
    workload: int | None = None
    reservation: int | None = None
    submission: int | None = None


def grouped_by_array(workload: Workload, source: str, at: datetime) -> tuple[str, str]:
    """Return the name and the source for a notice about a workload. Tasks of an array share one notice per
    hour.
    """
    if workload.array is None:
        return workload.name, source
    return (
        f"{workload.array.name}, or a part of it,",
        f"{source.partition(':')[0]}:array {workload.array_id}:{at:%Y%m%d%H}",
    )
