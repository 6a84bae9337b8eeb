"""A snapshot or a plan as JSON text, byte for byte the same wherever it is written, and a snapshot back from it.

Each table of a snapshot is ``{"fields": [names], "rows": [[values], ...]}`` with rows in the order of their keys; what a row
holds inside itself (an ask, a policy) is an object. So a file tells its own columns: one of before a column was added is read
with that column's default, one with a column that is not known here is refused.
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
from scheduler.core.model.snapshot import Snapshot

RECORDING_FORMAT = 1


class RecordingFormatError(Exception):
    """Text that is no snapshot of this format, and why."""


def table_text(rows: tuple[Any, ...]) -> str:
    """One table of a snapshot or plan."""
    if not rows:
        return '{"fields":[],"rows":[]}'
    names = [field.name for field in dataclasses.fields(rows[0])]
    values = attrgetter(*names)
    return _text({"fields": names, "rows": [values(row) for row in rows]})


def plan_text(plan: Plan) -> str:
    """The whole plan. Equal texts are equal plans."""
    tables = [field.name for field in dataclasses.fields(plan) if field.name != "epoch"]
    parts = [f'"{name}":{table_text(getattr(plan, name))}' for name in sorted(tables)]
    return f'{{"epoch":{plan.epoch},{",".join(parts)}}}'


def sha256_hex(text: str) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def recording_text(epoch: int, now: int, plan_sha256: str, tables: Mapping[str, str]) -> str:
    """One file: a snapshot, when it was planned on, and what the plan's digest was."""
    parts = [f'"{name}":{tables[name]}' for name in sorted(tables)]
    snapshot = f'{{"epoch":{epoch},{",".join(parts)}}}'
    return (
        f'{{"format":{RECORDING_FORMAT},"now":{now},"plan_sha256":"{plan_sha256}","snapshot":{snapshot}}}\n'
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedSnapshot:
    """What such a file says."""

    snapshot: Snapshot
    now: int
    plan_sha256: str


def read_recording(text: str) -> RecordedSnapshot:
    """Raises RecordingFormatError when it is not what ``recording_text`` writes."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RecordingFormatError(f"not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != RECORDING_FORMAT:
        given = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise RecordingFormatError(f"format: {given!r}; allowed: {RECORDING_FORMAT}")
    try:
        return RecordedSnapshot(
            read_snapshot(found["snapshot"]), int(found["now"]), str(found["plan_sha256"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingFormatError(
            f"no snapshot of format {RECORDING_FORMAT}: {type(error).__name__}: {error}"
        ) from None


def read_snapshot(found: Mapping[str, Any]) -> Snapshot:
    """A snapshot from parsed JSON."""
    row_types = {name: get_args(hint)[0] for name, hint in _hints(Snapshot).items() if name != "epoch"}
    unknown = sorted(set(found) - set(row_types) - {"epoch"})
    if unknown:
        raise ValueError(f"tables that are not known here: {', '.join(unknown)}")
    tables = {name: _read_table(found[name], row) for name, row in row_types.items() if name in found}
    return Snapshot(epoch=int(found["epoch"]), **tables)


def _read_table(table: Mapping[str, Any], row_type: type) -> tuple[Any, ...]:
    names = table["fields"]
    return tuple(_read_row(dict(zip(names, values, strict=True)), row_type) for values in table["rows"])


def _read_row(values: Mapping[str, Any], row_type: type) -> Any:
    readers = _readers(row_type)
    unknown = sorted(set(values) - set(readers))
    if unknown:
        raise ValueError(f"{row_type.__name__} has no {', '.join(unknown)} here")
    return row_type(**{name: readers[name](value) for name, value in values.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    return {field.name: _reader(_hints(kind)[field.name]) for field in dataclasses.fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """From a JSON value to what a field of this type holds."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        (real,) = [each for each in inside if each is not type(None)]
        read = _reader(real)
        return lambda value: None if value is None else read(value)
    if origin in (tuple, frozenset):
        if len(inside) == 2 and inside[1] is not Ellipsis:  # a pair
            first, second = (_reader(each) for each in inside)
            return lambda value: (first(value[0]), second(value[1]))
        each = _reader(inside[0])
        return lambda value: origin(each(one) for one in value)
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
    raise TypeError(f"a {type(value).__name__} has no place in a snapshot or plan: {value!r}")
