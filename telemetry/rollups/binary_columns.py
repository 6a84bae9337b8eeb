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

_SIGNATURE_BYTES = 19
_ARRAY_HEADER_BYTES = 20


def read_columns(
    query: str, values: Sequence[Any] | Mapping[str, Any], kinds: Sequence[str]
) -> list[np.ndarray]:
    """Return the arrays of the one row of a query; an empty array for NULL.

    No element may be NULL. ``kinds`` has the numpy type of each column's elements in PostgreSQL's binary
    form, such as ">i8". Integers are returned as int64 and the others as float64.
    """
    with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)", values) as copy:
        answer = b"".join(copy)
    at = _SIGNATURE_BYTES + 2
    columns = []
    for kind in kinds:
        (length,) = struct.unpack_from(">i", answer, at)
        element = np.dtype([("length", ">i4"), ("value", kind)])
        count = max(0, length - _ARRAY_HEADER_BYTES) // element.itemsize
        column = np.empty(0, element)
        if count:
            column = np.frombuffer(answer, element, count, at + 4 + _ARRAY_HEADER_BYTES)
        columns.append(column["value"].astype(np.float64 if kind[1] == "f" else np.int64))
        at += 4 + max(0, length)
    return columns
