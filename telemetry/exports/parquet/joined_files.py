"""Join Parquet files with one schema to one file, while they are made.

The pages of each file are passed on as they are. Only the footer is new: the places in it are moved, and the
row groups of all files are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from telemetry.exports.parquet.compact_protocol import (
    BINARY,
    I16,
    I64,
    LIST,
    STRUCT,
    Struct,
    read_struct,
    write_struct,
)

MAGIC = b"PAR1"
_LENGTH_BYTES = 4
# Numbers of fields in Parquet's definition of its footer (parquet.thrift).
_FILE_ROWS, _FILE_GROUPS, _FILE_FACTS = 3, 4, 5
_GROUP_COLUMNS, _GROUP_ROWS, _GROUP_PLACE, _GROUP_ORDINAL = 1, 3, 5, 7
_COLUMN_META = 3
_COLUMN_PLACES = (2, 4, 6)  # of the column, of its offset index and of its column index
_META_PLACES = (9, 10, 11, 14)  # of data pages, index pages, the dictionary and the Bloom filter
_LAST_ORDINAL = 32_767


def joined_files(files: Iterable[bytes], facts: Callable[[], Mapping[str, str]]) -> Iterator[bytes]:
    """Yield one Parquet file with the row groups of ``files``, which have the same columns.

    ``facts`` is called after the last file; its result becomes metadata of the file. At least one file is
    needed. It may have no rows.
    """
    yield MAGIC
    size, footer = len(MAGIC), None
    groups: list[Struct] = []
    for data in files:
        end = len(data) - len(MAGIC) - _LENGTH_BYTES
        start = end - int.from_bytes(data[end : end + _LENGTH_BYTES], "little")
        found = read_struct(data[start:end])
        for group in found[_FILE_GROUPS][1][1]:
            _move(group, size - len(MAGIC))
            _set_ordinal(group, len(groups))
            groups.append(group)
        footer = footer or found
        yield data[len(MAGIC) : start]
        size += start - len(MAGIC)
    if footer is None:
        raise ValueError("files: there is none; allowed: at least one")
    footer[_FILE_ROWS] = (I64, sum(group[_GROUP_ROWS][1] for group in groups))
    footer[_FILE_GROUPS] = (LIST, (STRUCT, groups))
    if named := facts():
        footer[_FILE_FACTS] = (LIST, (STRUCT, [_fact(name, value) for name, value in named.items()]))
    end_bytes = write_struct(footer)
    yield end_bytes + len(end_bytes).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def _move(group: Struct, distance: int) -> None:
    """Add ``distance`` to all places in the file that a row group names."""
    _add(group, (_GROUP_PLACE,), distance)
    for column in group[_GROUP_COLUMNS][1][1]:
        _add(column, _COLUMN_PLACES, distance)
        _add(column[_COLUMN_META][1], _META_PLACES, distance)


def _add(struct: Struct, fields: Iterable[int], distance: int) -> None:
    for number in fields:
        if number in struct and struct[number][1] > 0:  # a writer may set 0 for no place
            kind, place = struct[number]
            struct[number] = (kind, place + distance)


def _set_ordinal(group: Struct, number: int) -> None:
    """Set the number of a row group in its file. The field is optional and has 16 bits."""
    group.pop(_GROUP_ORDINAL, None)
    if number <= _LAST_ORDINAL:
        group[_GROUP_ORDINAL] = (I16, number)


def _fact(name: str, value: str) -> dict[int, tuple[int, Any]]:
    return {1: (BINARY, name.encode()), 2: (BINARY, value.encode())}
