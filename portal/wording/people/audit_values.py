"""Make texts of the values in audit records: durations, times, sizes and names instead of raw values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from portal.wording.formatting import cores, duration, gpus, local_time_text, parsed_time

NOTHING = "nothing"
# The fields whose value is the primary key of a row, by the kind of the row.
REFERENCE_FIELDS = {
    "project": "project",
    "project_id": "project",
    "team": "team",
    "team_id": "team",
    "pool": "pool",
    "pool_id": "pool",
    "user": "user",
    "user_id": "user",
    "owner": "user",
    "owner_id": "user",
}
# Endings of names of fields, with the unit that they stand for.
_UNITS = ("seconds", "minutes", "hours", "mib", "milli", "slots")
_DATE_WITH_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}")

Names = Mapping[tuple[str, int], str]  # names of rows by (kind, primary key)


def verb_code(words: str) -> str:
    """Return the verb of a record from its code or its words: ``close_month`` from ``Close month``."""
    return "_".join(words.lower().split())


def field_text(name: str) -> str:
    """Return the name of a field in words, without a unit that ``value_text`` writes."""
    words = name.removesuffix("_id").split("_")
    if len(words) > 1 and words[-1] in _UNITS:
        words = words[:-1]
    return " ".join(words)


def value_text(name: str, value: Any, names: Names) -> str:
    """Return a value of the field ``name`` for people. ``names`` has the names of referenced rows."""
    if value is None or value in ("", [], {}):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(value_text(name, item, names) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{field_text(key)}: {value_text(key, item, names)}" for key, item in value.items())
    if isinstance(value, int | float):
        return _number_text(name, value, names)
    if _DATE_WITH_TIME.match(value):
        moment = parsed_time(value)
        return value if moment is None else local_time_text(moment)
    return str(value)


def _number_text(name: str, value: int | float, names: Names) -> str:
    kind = REFERENCE_FIELDS.get(name)
    if kind is not None and isinstance(value, int):
        return names.get((kind, value), f"{kind} that was removed")
    unit = name.rsplit("_", 1)[-1] if "_" in name else ""
    if unit in ("seconds", "minutes", "hours"):
        return duration(timedelta(**{unit: value}))
    if unit == "mib":
        return f"{value / 1024:g} GiB"
    if unit == "milli":
        return cores(int(value))
    return gpus(value) if unit == "slots" else str(value)
