"""Write the minutes of whole hours in their packed form, with PostgreSQL's binary COPY.

If all minutes of an hour are due at once, they are not written to ``telemetry_rollupopen`` first.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np
from django.db import connection

from telemetry.core.rollup_arrays import Bools, Ints, UsageArrays
from telemetry.models import Rollup
from telemetry.rollups.storage import ROLLUP_MEASURES
from telemetry.sql_values import array_text

MINUTES = 60
_COPY_SQL = f"""COPY telemetry_rollupminutes (container, unit_id, allocation_id, simulated,
    {", ".join(ROLLUP_MEASURES)}) FROM STDIN (FORMAT BINARY)"""
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_POSTGRES_EPOCH_SECONDS = 946_684_800
_INT4_OID = 23
_HEADER_WORDS = 6  # length, dimensions, has NULLs, type, size, lower bound
_ROW = [("fields", ">i2"), ("length0", ">i4"), ("container", ">i8"), ("length1", ">i4"), ("unit", ">i8")]
_SIMULATED = [("length3", ">i4"), ("simulated", "i1")]
_HELD_ROW = np.dtype([*_ROW, ("length2", ">i4"), ("allocation", ">i8"), *_SIMULATED])
_FREE_ROW = np.dtype([*_ROW, ("length2", ">i4"), *_SIMULATED])


def replace_packed_minutes(hour: datetime, units: Ints, simulated: Bools, usage: UsageArrays) -> None:
    """Write all minutes of one hour of these units. Call this in a transaction that has locked the packing.

    ``units`` are the ids and ``simulated`` the marks by position. Earlier packed minutes are deleted.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT telemetry_make_rollup_partition(%s, %s)", [int(Rollup.Resolution.MINUTE), hour]
        )
        cursor.execute(
            "DELETE FROM telemetry_rollupminutes WHERE container = %s AND unit_id = ANY(%s::bigint[])",
            [hour, array_text(units.tolist())],
        )
        if len(usage):
            with cursor.copy(_COPY_SQL) as copy:
                copy.write(_COPY_SIGNATURE)
                copy.write(_rows(hour, units, simulated, usage))
                copy.write(b"\xff\xff")


def _rows(hour: datetime, units: Ints, simulated: Bools, usage: UsageArrays) -> bytes:
    allocations, place = np.unique(usage.allocation, return_inverse=True)
    keys, row = np.unique(usage.unit * len(allocations) + place, return_inverse=True)
    owners = np.stack([keys // len(allocations), allocations[keys % len(allocations)]], axis=1)
    words, ends = _array_words(row, len(owners), usage)
    heads = _heads(hour, units, simulated, owners)
    body, starts = words.tobytes(), [0, *(ends[:-1] * 4).tolist()]
    parts = []
    for head, first, last in zip(heads, starts, (ends * 4).tolist(), strict=True):
        parts += [head, body[first:last]]
    return b"".join(parts)


def _heads(hour: datetime, units: Ints, simulated: Bools, owners: Ints) -> list[bytes]:
    """Return the encoded columns before the arrays, for each (position of the unit, allocation)."""
    heads: list[bytes] = [b""] * len(owners)
    for layout, chosen in (
        (_HELD_ROW, np.flatnonzero(owners[:, 1] != 0)),
        (_FREE_ROW, np.flatnonzero(owners[:, 1] == 0)),
    ):
        block = np.zeros(len(chosen), layout)
        block["fields"] = 4 + len(ROLLUP_MEASURES)
        block["length0"] = block["length1"] = 8
        block["container"] = (int(hour.timestamp()) - _POSTGRES_EPOCH_SECONDS) * 1_000_000
        block["unit"] = units[owners[chosen, 0]]
        block["length2"] = 8 if layout is _HELD_ROW else -1
        if layout is _HELD_ROW:
            block["allocation"] = owners[chosen, 1]
        block["length3"] = 1
        block["simulated"] = simulated[owners[chosen, 0]]
        encoded, size = block.tobytes(), layout.itemsize
        for number, place in enumerate(chosen.tolist()):
            heads[place] = encoded[number * size : (number + 1) * size]
    return heads


def _array_words(row: Ints, rows: int, usage: UsageArrays) -> tuple[np.ndarray, Ints]:
    """Return the encoded arrays of all rows as 32-bit words, and the position after each row.

    An element takes two words (length and value), or one if it is NULL. An array without any value is NULL,
    one word.
    """
    width = _HEADER_WORDS + 2 * MINUTES
    words = np.zeros((rows, len(ROLLUP_MEASURES), width), ">i4")
    is_used = np.zeros(words.shape, bool)
    for place, name in enumerate(ROLLUP_MEASURES):
        known = usage.known.get(name, np.ones(len(usage), bool))
        filled = np.zeros((rows, MINUTES), bool)
        filled[row[known], usage.bucket[known]] = True
        values = np.zeros((rows, MINUTES), np.int64)
        values[row[known], usage.bucket[known]] = usage.sums[name][known]
        counts = filled.sum(axis=1)
        has = counts > 0
        array, used = words[:, place], is_used[:, place]
        array[:, 0] = np.where(has, 4 * (_HEADER_WORDS - 1 + MINUTES + counts), -1)
        array[:, 1], array[:, 2], array[:, 3] = 1, counts < MINUTES, _INT4_OID
        array[:, 4], array[:, 5] = MINUTES, 1
        array[:, _HEADER_WORDS::2] = np.where(filled, 4, -1)
        array[:, _HEADER_WORDS + 1 :: 2] = values
        used[:, 0] = True
        used[:, 1:_HEADER_WORDS] = has[:, None]
        used[:, _HEADER_WORDS::2] = has[:, None]
        used[:, _HEADER_WORDS + 1 :: 2] = filled
    return words[is_used], np.cumsum(is_used.sum(axis=(1, 2)))
