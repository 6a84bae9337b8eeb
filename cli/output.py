"""What is printed: tables and lines for people, or the API's JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240  # where nobody looks at it nothing is cut

UNWRAPPED_COLUMNS = ("rule", "action", "is")  # columns whose words are typed again: never broken
RIGHT_ALIGNED_COLUMNS = ("GPUs", "free", "free in slices", "held", "in all", "hours")  # columns


def console() -> Console:
    """Standard output; plain and wide when it is not a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(value: Any) -> None:
    """The answer of the API, as it came."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """A table; the sentence when it has no rows."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in RIGHT_ALIGNED_COLUMNS else "left"
        drawn.add_column(name, justify=justify, overflow="fold", no_wrap=name in UNWRAPPED_COLUMNS)
    count = 0
    for row in rows:
        # Text, not markup: names are people's.
        drawn.add_row(*(Text("-" if value in (None, "") else str(value)) for value in row))
        count += 1
    if count:
        console().print(drawn)
    else:
        print_line(empty)


def print_line(line: str) -> None:
    """One line."""
    console().print(Text(line), soft_wrap=True)


def print_facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and values below each other; empty ones are left out."""
    shown = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(f"{name:<{width}}  {value}")
