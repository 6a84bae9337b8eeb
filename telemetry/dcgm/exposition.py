"""Parse the Prometheus text format line by line. A line that cannot be parsed is only counted.

The parser of prometheus_client raises an error at the first bad line, so one bad line would lose all others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_LINE_LENGTH = 16_384

# The possessive quantifiers (*+, ++) keep the time linear in the length of the line.
_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*+)[ \t]*+"
    r"(?:\{(?P<labels>(?:[^\"}\\]|\"(?:[^\"\\]|\\.)*+\")*+)\})?+[ \t]*+"
    r"(?P<value>[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+|[+-]?+[Ii]nf|NaN)"
    r"(?:[ \t]++-?+[0-9]++)?+[ \t]*+"  # a timestamp, which dcgm-exporter does not write
)
_LABEL = re.compile(
    r"[ \t]*+(?P<name>[A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+\"(?P<value>(?:[^\"\\]|\\[\\n\"])*+)\"[ \t]*+"
)
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class MetricLine:
    """One value of a metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> tuple[list[MetricLine], int]:
    """Return the values in ``text``, and the number of lines that cannot be parsed."""
    found, unreadable = [], 0
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if not line.strip(" \t") or line.lstrip(" \t").startswith("#"):
            continue
        parsed = _parse_line(line.lstrip(" \t")) if len(line) <= MAX_LINE_LENGTH else None
        if parsed is None:
            unreadable += 1
        else:
            found.append(parsed)
    return found, unreadable


def _parse_line(line: str) -> MetricLine | None:
    match = _LINE.fullmatch(line)
    labels = _parse_labels(match["labels"] or "") if match else None
    if match is None or labels is None:
        return None
    return MetricLine(match["name"], labels, float(match["value"]))


@functools.lru_cache(maxsize=4_096)  # all lines of a GPU have the same labels
def _parse_labels(text: str) -> Mapping[str, str] | None:
    """Return the labels between the braces of a line; None if they cannot be parsed."""
    labels: dict[str, str] = {}
    at, end = 0, len(text.rstrip(" \t"))
    while at < end:
        match = _LABEL.match(text, at)
        if match is None or match["name"] in labels:
            return None
        labels[match["name"]] = _ESCAPE.sub(_unescaped, match["value"])
        at = match.end()
        if at < end:
            if text[at] != ",":
                return None
            at += 1
    return MappingProxyType(labels)


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
