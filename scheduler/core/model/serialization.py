"""Write a snapshot or a plan as JSON text, and read a snapshot back.

Equal values give equal text, byte for byte, on every machine.

Each table of a snapshot is ``{"fields": [names], "rows": [[values], ...]}``, with rows in the order of their
keys. Values nested in a row (an ask, a policy) are JSON objects. Each file names its columns. If the code
has a column that the file lacks, the column gets its default. If the file has a column that the code does not
know, reading fails.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import (
    HostInfo,
    PoolPolicy,
    QueuedWorkload,
    QuotaInfo,
    RunningWorkload,
    Snapshot,
    UnitInfo,
)

RECORDING_FORMAT = 2
READABLE_FORMATS = (1, 2)
# Old column names of format 1 and their present names. Recordings of format 2 may also contain old names,
# because the text of an unchanged table is stored once and reused by later recordings.
RENAMED_FIELDS: dict[type, dict[str, str]] = {
    HostInfo: {"accepts": "schedulable", "homes": "home_storage"},
    UnitInfo: {"well": "healthy"},
    QuotaInfo: {
        "guaranteed_again": "guaranteed_after_reset",
        "borrow_limit_again": "borrow_limit_after_reset",
    },
    QueuedWorkload: {"homes": "checkpoint_storage"},
    RunningWorkload: {"predicted_until": "predicted_end"},
    PoolPolicy: {
        "most_slots_per_user": "max_slots_per_user",
        "most_slots_per_workload": "max_slots_per_workload",
    },
}


class RecordingFormatError(Exception):
    """The text is not a recording, or its format is not readable. The message gives the reason."""


def table_text(rows: tuple[Any, ...]) -> str:
    """Return one table of a snapshot or plan as JSON text."""
    if not rows:
        return '{"fields":[],"rows":[]}'
    names = [field.name for field in dataclasses.fields(rows[0])]
    values = attrgetter(*names)
    return _text({"fields": names, "rows": [values(row) for row in rows]})


def plan_text(plan: Plan) -> str:
    """Return the whole plan as JSON text. Two plans are equal if and only if their texts are equal."""
    tables = [field.name for field in dataclasses.fields(plan) if field.name != "epoch"]
    parts = [f'"{name}":{table_text(getattr(plan, name))}' for name in sorted(tables)]
    return f'{{"epoch":{plan.epoch},{",".join(parts)}}}'


def sha256_hex(text: str) -> str:
    """Return the SHA-256 digest of a text as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def recording_text(epoch: int, now: int, plan_sha256: str, tables: Mapping[str, str]) -> str:
    """Return the text of one recording file.

    ``now`` is the time at which the snapshot was planned (seconds since the epoch). ``plan_sha256`` is the
    digest of the plan's text. ``tables`` maps each table's name to its text.
    """
    parts = [f'"{name}":{tables[name]}' for name in sorted(tables)]
    snapshot = f'{{"epoch":{epoch},{",".join(parts)}}}'
    return (
        f'{{"format":{RECORDING_FORMAT},"now":{now},"plan_sha256":"{plan_sha256}","snapshot":{snapshot}}}\n'
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedSnapshot:
    """The content of a recording file."""

    snapshot: Snapshot
    now: int
    plan_sha256: str


def read_recording(text: str) -> RecordedSnapshot:
    """Read a recording file. Raises RecordingFormatError if the text is not in a readable format."""
    try:
        recording = json.loads(text)
    except ValueError as error:
        raise RecordingFormatError(f"not JSON: {error}") from None
    stated = recording.get("format") if isinstance(recording, dict) else type(recording).__name__
    if stated not in READABLE_FORMATS:
        allowed = ", ".join(map(str, READABLE_FORMATS))
        raise RecordingFormatError(f"format: {stated!r}; allowed: {allowed}")
    try:
        return RecordedSnapshot(
            read_snapshot(recording["snapshot"]), int(recording["now"]), str(recording["plan_sha256"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingFormatError(
            f"no snapshot of format {stated}: {type(error).__name__}: {error}"
        ) from None


def read_snapshot(tables: Mapping[str, Any]) -> Snapshot:
    """Build a snapshot from parsed JSON. Raises ValueError for an unknown table or column."""
    row_types = {name: get_args(hint)[0] for name, hint in _hints(Snapshot).items() if name != "epoch"}
    unknown = sorted(set(tables) - set(row_types) - {"epoch"})
    if unknown:
        raise ValueError(f"unknown tables: {', '.join(unknown)}")
    rows = {name: _read_table(tables[name], row) for name, row in row_types.items() if name in tables}
    return Snapshot(epoch=int(tables["epoch"]), **rows)


def _read_table(table: Mapping[str, Any], row_type: type) -> tuple[Any, ...]:
    names = table["fields"]
    return tuple(_read_row(dict(zip(names, values, strict=True)), row_type) for values in table["rows"])


def _read_row(values: Mapping[str, Any], row_type: type) -> Any:
    readers, renamed = _readers(row_type), RENAMED_FIELDS.get(row_type, {})
    values = {renamed.get(name, name): value for name, value in values.items()}
    unknown = sorted(set(values) - set(readers))
    if unknown:
        raise ValueError(f"{row_type.__name__}: unknown columns: {', '.join(unknown)}")
    return row_type(**{name: readers[name](value) for name, value in values.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    return {field.name: _reader(_hints(kind)[field.name]) for field in dataclasses.fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts a JSON value to a value of a field's type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        (present,) = [argument for argument in arguments if argument is not type(None)]
        read = _reader(present)
        return lambda value: None if value is None else read(value)
    if origin in (tuple, frozenset):
        is_pair = len(arguments) == 2 and arguments[1] is not Ellipsis
        if is_pair:
            first, second = (_reader(argument) for argument in arguments)
            return lambda value: (first(value[0]), second(value[1]))
        element = _reader(arguments[0])
        return lambda value: origin(element(item) for item in value)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return lambda value: _read_row(value, hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return lambda value: value


def _text(value: Any) -> str:
    return json.dumps(
        value, default=_to_json, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False
    )


def _to_json(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"cannot write a {type(value).__name__} in a snapshot or plan: {value!r}")
