"""Print tables and lines for people, or JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 240  # in characters; wide enough that output to a pipe is not truncated

UNWRAPPED_COLUMNS = ("rule", "action", "is")  # not wrapped, because people copy the values
RIGHT_ALIGNED_COLUMNS = ("GPUs", "free", "free in slices", "held", "in all", "hours")


def console() -> Console:
    """Return a console for standard output.

    If standard output is not a terminal, the console prints plain text, PIPE_WIDTH characters wide.
    """
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Print an answer of the API as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Print a table, or the sentence ``empty`` if there are no rows."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in RIGHT_ALIGNED_COLUMNS else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in UNWRAPPED_COLUMNS)
    count = 0
    for row in rows:
        # rich would interpret markup in a plain string, such as [red] in a name. It does not interpret a
        # Text.
        table.add_row(*(Text("-" if value in (None, "") else str(value)) for value in row))
        count += 1
    if count:
        console().print(table)
    else:
        print_line(empty)


def print_line(line: str) -> None:
    """Print one line."""
    console().print(Text(line), soft_wrap=True)


def print_facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair per line. Pairs with an empty value are left out."""
    shown = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print_line(f"{name:<{width}}  {value}")
