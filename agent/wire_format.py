"""Reads dataclasses from JSON and checks every value.

``agent.protocol`` defines the dataclasses of frames and bodies. This module imports no third-party package,
because the server and the agent both use it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

VERSION = 1
LONGEST_TEXT = 10_000  # characters
LONGEST_LIST = 10_000  # entries of a list or an object
LARGEST_NUMBER = 1e18  # largest absolute value of a float


class ProtocolError(ValueError):
    """A frame that does not follow the protocol.

    The message names the field, the value and the allowed values.
    """


class UnsupportedVersionError(ProtocolError):
    """A frame of an unsupported protocol version. None of its fields is used."""


T = typing.TypeVar("T")


def parse(kind: type[T], data: Any, where: str = "") -> T:
    """Return a value of dataclass ``kind`` from a JSON object.

    Unknown keys are ignored, because a newer peer may send additional keys. ``where`` is the path of ``data``
    in its document, for the error message.

    Raises ProtocolError if the data cannot be read. The error is an UnsupportedVersionError if ``version`` in
    the data is not VERSION.
    """
    try:
        return typing.cast(T, _reader(typing.cast(Any, kind))(data))
    except _InvalidValue as error:
        version = data.get("version", VERSION) if isinstance(data, dict) and not where else VERSION
        if version != VERSION:
            raise UnsupportedVersionError(f"version: {shortened(version)}; allowed: {VERSION}") from None
        path = (where + "".join(reversed(error.path))).removeprefix(".")
        raise ProtocolError(f"{path or kind.__name__}: {error.reason}") from None


class _InvalidValue(Exception):
    """An invalid value, with the reason and the path of the value in its document.

    The exception passes through nested readers, from the inside to the outside. Each reader appends its step
    to ``path``. Example: "[2]", then ".runs" for an invalid third entry of ``runs``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def within(self, step: str) -> _InvalidValue:
        self.path.append(step)
        return self


ValueReader = Callable[[Any], Any]
MISSING = object()


@functools.cache
def _reader(kind: typing.Any) -> ValueReader:
    """Return a function that reads this dataclass from JSON.

    The result is cached, because the server reads hundreds of frames a second.
    """
    hints = typing.get_type_hints(kind)
    entries = [
        (
            entry.name,
            _reader_of(hints[entry.name], entry.name),
            entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING,
        )
        for entry in dataclasses.fields(kind)
    ]

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _InvalidValue(f"{shortened(data)} is not an object")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, reader, required in entries:
                value = data.get(name, MISSING)
                if value is not MISSING:
                    values[name] = reader(value)
                elif required:
                    raise _InvalidValue("missing")
        except _InvalidValue as error:
            raise error.within(f".{name}") from None
        return kind(**values)

    return read


def _reader_of(hint: Any, name: str = "") -> ValueReader:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        present = _reader_of(next(a for a in args if a is not type(None)), name)
        return lambda value: None if value is None else present(value)
    if origin is list:
        return _list_reader(_reader_of(args[0]))
    if origin is dict:
        return _dict_reader(_reader_of(args[1]), _reader_of(args[1], "text"))
    if dataclasses.is_dataclass(hint):
        return _reader(typing.cast(type, hint))
    if hint is str:
        return _text_reader(64 * LONGEST_TEXT if name.endswith("text") else LONGEST_TEXT)
    return SCALAR_READERS[hint]


def _list_reader(item: ValueReader) -> ValueReader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > LONGEST_LIST:
            raise _InvalidValue(f"{shortened(value)} is not a list of at most {LONGEST_LIST} entries")
        entries: list[Any] = []
        try:
            for entry in value:
                entries.append(item(entry))
        except _InvalidValue as error:
            raise error.within(f"[{len(entries)}]") from None
        return entries

    return read


def _dict_reader(item: ValueReader, text: ValueReader) -> ValueReader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) > LONGEST_LIST:
            raise _InvalidValue(f"{shortened(value)} is not an object of at most {LONGEST_LIST} entries")
        key: object = ""
        try:
            entries = {}
            for key, entry in value.items():
                entries[str(key)] = (text if str(key).endswith("text") else item)(entry)
        except _InvalidValue as error:
            raise error.within(f".{key}") from None
        return entries

    return read


def _text_reader(max_length: int) -> ValueReader:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            raise _InvalidValue(f"{shortened(value)} is not str")
        if "\x00" in value:
            raise _InvalidValue("holds a NUL character")
        if len(value) > max_length:
            raise _InvalidValue(f"{len(value)} characters; allowed: at most {max_length}")
        if not value.isascii() and _has_surrogate(value):
            raise _InvalidValue("holds a surrogate character, which is no text")
        return value

    return read


def _has_surrogate(text: str) -> bool:
    """Return True if no UTF-8 file and no database can store the text. JSON can carry such a text."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _read_float(value: Any) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _InvalidValue(f"{shortened(value)} is not float")
    if value != value or abs(value) > LARGEST_NUMBER:
        raise _InvalidValue(f"{shortened(value)} is not a finite number")
    return float(value)


def _read_int(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _InvalidValue(f"{shortened(value)} is not int")
    if abs(value) >= 2**63:
        raise _InvalidValue(f"{shortened(value)} is not a 64-bit integer")
    return value


def _read_bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _InvalidValue(f"{shortened(value)} is not bool")
    return value


SCALAR_READERS: dict[Any, ValueReader] = {
    Any: lambda value: value,
    float: _read_float,
    int: _read_int,
    bool: _read_bool,
}


def shortened(value: Any) -> str:
    """Return the repr of a value for an error message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
