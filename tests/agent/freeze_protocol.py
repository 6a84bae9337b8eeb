"""Store the wire protocol of each version: an example text of each frame, and a table of the fields.

`python -m tests.agent.freeze_protocol` prints the differences between the current code and the stored
version; `--add` stores new fields. Stored entries are never changed or removed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "protocol"
PLAIN = {"str": str, "int": int, "float": float, "bool": bool}
BODIES = ("JoinRequest", "JoinAnswer", "RenewRequest", "RenewAnswer")
PATHS = ("SYNC_PATH", "STREAM_PATH", "JOIN_PATH", "RENEW_PATH", "STREAM_KEY_HEADER")

Table = dict[str, dict[str, dict[str, Any]]]


def wire_types(protocol: Any) -> dict[str, type]:
    """Return {name of the stored file: type} for every type that is sent over the network.

    For a frame, the name is the frame's kind, e.g. "observed". For the body of a request or response, the
    name is the name of its class.
    """
    bodies = {name: getattr(protocol, name) for name in BODIES if hasattr(protocol, name)}
    return {**protocol.FRAMES_UP, **protocol.FRAMES_DOWN, **bodies}


def type_name(hint: Any) -> str:
    """Return the text that stands for a type in the stored table of fields.

    Examples: "int", "any", "RunSeen", "list[str]", "dict[float]" (the type of the values), "str | null".
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join([*(type_name(each) for each in args if each is not type(None)), "null"])
    if origin is list:
        return f"list[{type_name(args[0])}]"
    if origin is dict:
        return f"dict[{type_name(args[1])}]"
    return "any" if hint is Any else str(hint.__name__)


def fields_by_type(protocol: Any) -> Table:
    """Return {type name: {field name: {"type": name, "default": value}}} for all wire types.

    A field without a default has no "default" entry.
    """
    found: Table = {}
    waiting = list(wire_types(protocol).values())
    while waiting:
        kind = waiting.pop(0)
        if kind.__name__ in found:
            continue
        hints = typing.get_type_hints(kind)
        found[kind.__name__] = {}
        for entry in dataclasses.fields(kind):
            about: dict[str, Any] = {"type": type_name(hints[entry.name])}
            if entry.default is not dataclasses.MISSING:
                about["default"] = entry.default
            elif entry.default_factory is not dataclasses.MISSING:
                about["default"] = entry.default_factory()
            found[kind.__name__][entry.name] = about
            waiting += _dataclasses_in(hints[entry.name])
    return found


def _dataclasses_in(hint: Any) -> list[type]:
    if dataclasses.is_dataclass(hint):
        return [typing.cast(type, hint)]
    return [found for each in typing.get_args(hint) for found in _dataclasses_in(each)]


class ExampleValues:
    """A generator of example values of a type. Every field is set, and no two values are equal."""

    def __init__(self, kept: Table) -> None:
        self.kept = kept
        self.number = 0

    def of(self, kind: str, name: str, default: object = None) -> Any:
        kind = kind.removesuffix(" | null")
        self.number += 1
        if kind in self.kept:
            return {field: self.field(kind, field, about) for field, about in self.kept[kind].items()}
        if kind.startswith("list["):
            return [self.of(kind[5:-1], name)]
        if kind.startswith("dict["):
            return {f"{name}-{self.number}": self.of(kind[5:-1], name)}
        if kind == "bool":
            return default is not True
        return {"int": self.number, "float": self.number + 0.5}.get(kind, f"{name}-{self.number}")

    def field(self, kind: str, name: str, about: dict[str, Any]) -> Any:
        if name == "kind" and isinstance(about.get("default"), str) and about["default"] in KINDS:
            return about["default"]
        if name == "version":
            return VERSION
        return self.of(about["type"], name, about.get("default"))


KINDS = ("observed", "samples", "log", "health", "proof", "desired", "refused", "stream_open")
VERSION = 1


def read_errors(kept: Table, kind: str, value: Any, where: str) -> list[str]:
    """Return an error for each part of `value` that a program with the fields of `kept` cannot read.

    This program requires every field in `kept` and ignores all other fields.
    """
    if kind.endswith(" | null"):
        return [] if value is None else read_errors(kept, kind.removesuffix(" | null"), value, where)
    if kind == "any":
        return []
    if not _has_shape(kind, value):
        return [f"{where}: {value!r} is not {kind}"]
    if kind in PLAIN:
        return []
    if kind.startswith(("list[", "dict[")):
        inside = list(value.values()) if isinstance(value, dict) else value
        return [problem for each in inside for problem in read_errors(kept, kind[5:-1], each, f"{where}[]")]
    found: list[str] = []
    for name, about in kept[kind].items():
        found += (
            read_errors(kept, about["type"], value[name], f"{where}.{name}")
            if name in value
            else [f"{where}.{name}: missing"]
        )
    return found


def _has_shape(kind: str, value: Any) -> bool:
    """Return True if `value` has the JSON type that `kind` requires: a plain type, a list or an object."""
    if kind in PLAIN:
        fits = isinstance(value, PLAIN[kind]) or (kind == "float" and isinstance(value, int))
        return fits and (kind == "bool" or not isinstance(value, bool))
    return isinstance(value, list if kind.startswith("list[") else dict)


def without_defaults(kept: Table, kind: str, value: Any) -> Any:
    """Return `value` without the fields that have a default, because a peer of this version may omit them."""
    kind = kind.removesuffix(" | null")
    if kind.startswith("list["):
        return [without_defaults(kept, kind[5:-1], each) for each in value]
    if kind not in kept:
        return value
    return {
        name: without_defaults(kept, about["type"], value[name])
        for name, about in kept[kind].items()
        if "default" not in about or name == "kind"
    }


def differences(before: Any, now: Any, where: str) -> list[str]:
    """Return a line for each value of `before` that `now` lacks or changes. `now` may have more values."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = [f"{where}.{name}: gone" for name in before if name not in now]
        return found + [
            each
            for name in before
            if name in now
            for each in differences(before[name], now[name], f"{where}.{name}")
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            each
            for one, other in zip(before, now, strict=True)
            for each in differences(one, other, f"{where}[]")
        ]
    same = type(before) is type(now) and before == now
    return [] if same else [f"{where}: {before!r} became {now!r}"]


@dataclasses.dataclass(frozen=True)
class FrozenProtocol:
    """A protocol version stored in a folder."""

    folder: Path

    @property
    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "fields.json").read_text())
        return found

    @property
    def fields(self) -> Table:
        found: Table = self.about["types"]
        return found

    def text(self, name: str) -> str:
        return (self.folder / f"{name}.json").read_text()

    @property
    def names(self) -> dict[str, str]:
        """Return the type of each stored file, by the name of the file."""
        found: dict[str, str] = self.about["frames"]
        return found

    def problems(self, protocol: Any) -> list[str]:
        """Return an error for each difference that makes `protocol` incompatible with this stored version."""
        found = [
            f"{name}: {self.about['paths'][name]} became {getattr(protocol, name, None)}"
            for name in PATHS
            if getattr(protocol, name, None) != self.about["paths"][name]
        ]
        for direction in ("up", "down"):
            there = getattr(protocol, f"FRAMES_{direction.upper()}")
            found += [
                f"{kind}: not a frame {direction}" for kind in self.about[direction] if kind not in there
            ]
        for name, kind in self.names.items():
            try:
                found += self._read_problems(protocol, name, kind) + self._write_problems(
                    protocol, name, kind
                )
            except (ValueError, TypeError, AttributeError) as problem:
                found.append(f"{name}: {problem}")
        return found + self._default_problems(protocol)

    def _read(self, protocol: Any, name: str, data: Any) -> Any:
        for table_of in (protocol.FRAMES_UP, protocol.FRAMES_DOWN):
            if name in table_of:
                return protocol.decode(json.dumps(data), table_of)
        return protocol.parse(getattr(protocol, name), data)

    def _read_problems(self, protocol: Any, name: str, kind: str) -> list[str]:
        """Return the values of a stored example text that the current code reads incorrectly.

        The code reads the text twice: complete, and without the fields that have a default.
        """
        stored = json.loads(self.text(name))
        found = differences(stored, dataclasses.asdict(self._read(protocol, name, stored)), name)
        short = without_defaults(self.fields, kind, stored)
        return found + differences(
            short, dataclasses.asdict(self._read(protocol, name, short)), f"{name} (least)"
        )

    def _default_problems(self, protocol: Any) -> list[str]:
        """Return an error for each field whose default has changed."""
        now = fields_by_type(protocol)
        return [
            f"{kind}.{name}: {about['default']!r} became {now[kind][name].get('default', 'required')!r}"
            for kind, entries in self.fields.items()
            for name, about in entries.items()
            if "default" in about
            and name in now.get(kind, {})
            and about["default"] != now[kind][name].get("default", "required")
        ]

    def _write_problems(self, protocol: Any, name: str, kind: str) -> list[str]:
        """Return the parts of a text written by the current code that a program of this version cannot read.

        The text is checked twice: complete, and without the fields that have a default.
        """
        now = fields_by_type(protocol)
        today = wire_types(protocol)[name].__name__
        full = ExampleValues(now).of(today, name)
        found: list[str] = []
        for value in (full, without_defaults(now, today, full)):
            written = json.loads(protocol.encode(self._read(protocol, name, value)))
            found += read_errors(self.fields, kind, written, f"{name} as written")
        return found

    def unknown(self, protocol: Any) -> list[str]:
        """Return the fields and frames of `protocol` that are not stored yet."""
        fields = self.fields
        found = [f"the frame {name}" for name in wire_types(protocol) if name not in self.names]
        for kind, entries in fields_by_type(protocol).items():
            found += [f"{kind}.{name}" for name in entries if name not in fields.get(kind, {})]
        return found

    def add(self, protocol: Any) -> None:
        """Add new fields and types to the stored table, and example values for them to the stored texts."""
        kept = (
            self.about
            if (self.folder / "fields.json").exists()
            else {"types": {}, "frames": {}, "up": [], "down": []}
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        now = fields_by_type(protocol)
        for kind, entries in now.items():
            kept["types"].setdefault(kind, {})
            for name, about in entries.items():
                kept["types"][kind].setdefault(name, about)
        kept["frames"] = {name: kind.__name__ for name, kind in wire_types(protocol).items()} | kept["frames"]
        kept["paths"] = {name: getattr(protocol, name) for name in PATHS} | kept.get("paths", {})
        kept["up"] = [*kept["up"], *(kind for kind in protocol.FRAMES_UP if kind not in kept["up"])]
        kept["down"] = [*kept["down"], *(kind for kind in protocol.FRAMES_DOWN if kind not in kept["down"])]
        _write(self.folder / "fields.json", kept)
        for name, kind in kept["frames"].items():
            path = self.folder / f"{name}.json"
            before = json.loads(path.read_text()) if path.exists() else {}
            _write(path, merge_example(before, ExampleValues(kept["types"]).of(kind, name)))


def merge_example(before: Any, example: Any) -> Any:
    """Return the stored value `before`, extended by the fields that only `example` has."""
    if isinstance(before, dict) and isinstance(example, dict) and before:
        whole = {name: merge_example(value, example.get(name)) for name, value in before.items()}
        # No common key: the keys are data, not field names. Every new example has other keys, so add none.
        return (
            whole
            if not set(before) & set(example)
            else {**whole, **{n: v for n, v in example.items() if n not in whole}}
        )
    if isinstance(before, list) and isinstance(example, list) and before and example:
        return [merge_example(each, example[0]) for each in before]
    return example if before in ({}, None) else before


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Print the new parts and the broken parts of the protocol. Store the new parts if `--add` is given."""
    from agent import protocol

    kept = FrozenProtocol(FOLDER / f"v{protocol.VERSION}")
    if "--add" in arguments:
        kept.add(protocol)
    new = kept.unknown(protocol)
    for each in [*new, *kept.problems(protocol)]:
        print(each)
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
