"""Read and write values in Thrift's compact protocol, in which Parquet stores the footer of a file.

A struct is a dict from the number of a field to its (type, value). A list is a pair: the type of its
elements, and the elements. Unknown fields are kept, so a footer can be changed and written again.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_INTEGERS = frozenset({I16, I32, I64})
_DOUBLE_BYTES = 8
_LONG_LIST = 15  # lists with this many elements or more have their size in a varint
Struct = dict[int, tuple[int, Any]]


def read_struct(data: bytes) -> Struct:
    """Return the struct at the start of ``data``. Raises ValueError if it has a type that Parquet lacks."""
    return _Reader(data).struct()


def write_struct(struct: Struct) -> bytes:
    """Return the bytes of a struct. Its fields are written in order of their numbers."""
    writer = bytearray()
    _write_struct(writer, struct)
    return bytes(writer)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> Struct:
        found: Struct = {}
        number = 0
        while header := self._byte():
            kind, step = header & 0x0F, header >> 4
            number = number + step if step else self._integer()
            found[number] = (kind, self._value(kind))
        return found

    def _value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in _INTEGERS:
            return self._integer()
        if kind == I8:
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(_DOUBLE_BYTES)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in (LIST, SET):
            return self._list()
        if kind == STRUCT:
            return self.struct()
        raise ValueError(f"type of a field is {kind}; allowed: 1 to 10 and 12")

    def _list(self) -> tuple[int, list[Any]]:
        header = self._byte()
        kind, size = header & 0x0F, header >> 4
        if size == _LONG_LIST:
            size = self._varint()
        if kind in (TRUE, FALSE):  # an element takes a byte
            return kind, [self._byte() for _ in range(size)]
        return kind, [self._value(kind) for _ in range(size)]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in sorted(struct.items()):
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - before
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _write_integer(out, number)
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
        before = number
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _write_integer(out, value)
    elif kind == I8:
        out.append(value)
    elif kind == DOUBLE:
        out += value
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind in (LIST, SET):
        _write_list(out, *value)
    else:
        _write_struct(out, value)


def _write_list(out: bytearray, kind: int, values: list[Any]) -> None:
    if len(values) < _LONG_LIST:
        out.append(len(values) << 4 | kind)
    else:
        out.append(_LONG_LIST << 4 | kind)
        _write_varint(out, len(values))
    for value in values:
        _write_value(out, I8 if kind in (TRUE, FALSE) else kind, value)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)
