"""Read the columns of a query as numpy arrays.

The database gathers each column into one array, and numpy reads its binary form. A row per value would take
more time in the driver than in the database.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from django.db import connection

BYTES = "bytes"
_SIGNATURE_BYTES = 19
_ARRAY_HEADER_BYTES = 20


def read_columns(
    query: str, values: Sequence[Any] | Mapping[str, Any], kinds: Sequence[str]
) -> list[np.ndarray]:
    """Return the arrays of the one row of a query; an empty array for NULL.

    ``kinds`` has the numpy type of each column's elements in PostgreSQL's binary form, such as ">i8", or
    BYTES. Integers are returned as int64, real numbers as float64, and bytes as objects. Only an element of
    BYTES may be NULL: it is returned as None.
    """
    statement = f"COPY ({query}) TO STDOUT (FORMAT BINARY)"
    # Django's cursor that records statements takes no values, so this is psycopg's cursor.
    with connection.cursor() as cursor, cursor.cursor.copy(statement, values) as copy:
        answer = b"".join(copy)
    at = _SIGNATURE_BYTES + 2
    columns = []
    for kind in kinds:
        (length,) = struct.unpack_from(">i", answer, at)
        start, at = at + 4 + _ARRAY_HEADER_BYTES, at + 4 + max(0, length)
        columns.append(_bytes(answer, start, at) if kind == BYTES else _numbers(answer, start, at, kind))
    return columns


def _numbers(answer: bytes, start: int, end: int, kind: str) -> np.ndarray:
    element = np.dtype([("length", ">i4"), ("value", kind)])
    count = max(0, end - start) // element.itemsize
    column = np.frombuffer(answer, element, count, start) if count else np.empty(0, element)
    return column["value"].astype(np.float64 if kind[1] == "f" else np.int64)


def _bytes(answer: bytes, start: int, end: int) -> np.ndarray:
    found: list[bytes | None] = []
    while start < end:
        (length,) = struct.unpack_from(">i", answer, start)
        start += 4
        found.append(None if length < 0 else answer[start : start + length])
        start += max(0, length)
    column = np.empty(len(found), object)
    column[:] = found
    return column
