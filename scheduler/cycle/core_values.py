"""Convert values of database rows to the values of ``scheduler.core``."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

from scheduler.core import reasons
from scheduler.core.model import snapshot
from scheduler.models import HardwareColumns
from scheduler.requests import HARDWARE_COLUMNS, HardwareRequest

# By column: the field of ``snapshot.Ask`` that has its value. Columns and fields with equal names are left
# out.
ASK_NAMES = {"models_wanted": "models", "labels_required": "labels"}


def epoch_seconds(time: datetime) -> int:
    """Return whole seconds since the epoch, the unit of time in the core."""
    return int(time.timestamp())


def ask_from_row(row: HardwareColumns | HardwareRequest) -> snapshot.Ask:
    """Return the hardware request of a workload or a reservation as the core's value."""
    return _ask_from_columns(*(getattr(row, name) for name in HARDWARE_COLUMNS))


def _ask_from_columns(*columns: Any) -> snapshot.Ask:
    """Return the request with these column values, given in the order of ``HARDWARE_COLUMNS``.

    Columns that the core does not use are left out.
    """
    asked = {ASK_NAMES.get(name, name): value for name, value in zip(HARDWARE_COLUMNS, columns, strict=True)}
    asked |= {name: label_pairs(asked[name]) for name in ("labels", "labels_preferred")}
    known = {name: value for name, value in asked.items() if name in snapshot.Ask.__dataclass_fields__}
    return snapshot.Ask(**known | {"models": tuple(known["models"])})


@functools.lru_cache(maxsize=10_000)
def interned_ask(*columns: Any) -> snapshot.Ask:
    """Return the request with these column values, given in the order of ``HARDWARE_COLUMNS``.

    Equal values give the same object, because the planner caches by the object's identity.
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
    """Return ``epoch_seconds(time)``, or None for None."""
    return None if time is None else epoch_seconds(time)
