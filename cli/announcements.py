"""Print what a portal announces in the headers of its answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from cli.formatting import format_local_time

MAINTENANCE_HEADER = "Gpupool-Database-Maintenance"
_printed: set[str] = set()


def print_announcement(headers: Mapping[str, str]) -> None:
    """Print the maintenance of the database to standard error, once for each command."""
    text = headers.get(MAINTENANCE_HEADER)
    if not text or text in _printed:
        return
    _printed.add(text)
    try:
        found = json.loads(text)
        until, reason = format_local_time(found["ends_at"]), found["reason"]
    except (ValueError, KeyError, TypeError):
        return  # a newer portal may send another form
    print(
        f"gpupool: maintenance of the database until {until}: {reason}. Nothing new starts; running work "
        "continues.",
        file=sys.stderr,
    )
