"""Convert values of database rows to the values of ``scheduler.core``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scheduler.core import reasons
from scheduler.core.model import snapshot
from scheduler.models import HardwareColumns

ASK_COLUMNS = (
    "units",
    "hosts",
    "models_wanted",
    "profile",
    "min_memory_mib",
    "min_compute_capability",
    "nvlink",
    "labels_required",
    "cpu_milli",
    "memory_mib",
    "labels_preferred",
    "spread",
)


def epoch_seconds(time: datetime) -> int:
    """Return whole seconds since the epoch, the unit of time in the core."""
    return int(time.timestamp())


def ask_from_row(row: HardwareColumns) -> snapshot.Ask:
    """Return the request in the hardware columns of a workload or a reservation."""
    return _ask_from_columns(*(getattr(row, name) for name in ASK_COLUMNS))


def _ask_from_columns(
    units: int,
    hosts: int,
    models: Sequence[str],
    profile: str,
    min_memory_mib: int,
    min_compute_capability: int,
    nvlink: bool,
    labels: Any,
    cpu_milli: int,
    memory_mib: int,
    labels_preferred: Any,
    spread: bool,
) -> snapshot.Ask:
    return snapshot.Ask(
        units=units,
        hosts=hosts,
        models=tuple(models),
        profile=profile,
        min_memory_mib=min_memory_mib,
        min_compute_capability=min_compute_capability,
        nvlink=nvlink,
        labels=label_pairs(labels),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        labels_preferred=label_pairs(labels_preferred),
        spread=spread,
    )


@functools.lru_cache(maxsize=10_000)
def interned_ask(*columns: Any) -> snapshot.Ask:
    """Return the request of these columns; equal columns give the same object.

    The planner compares requests by identity.
    """
    return _ask_from_columns(*columns)


def hashable(value: Any) -> Any:
    """Return a column's value with lists and dicts converted to tuples."""
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value


def label_pairs(labels: Any) -> frozenset[tuple[str, str]]:
    items = labels.items() if isinstance(labels, dict) else labels
    return frozenset((str(name), str(value)) for name, value in items)


def reason_numbers(values: dict[str, Any]) -> reasons.ReasonNumbers:
    return tuple(sorted(values.items()))


def epoch_seconds_or_none(time: datetime | None) -> int | None:
    """Return ``epoch_seconds``, or None for None."""
    return None if time is None else epoch_seconds(time)
