"""Set PostgreSQL's planner for the SQL of the audit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, transaction

# PostgreSQL has no statistics about common table expressions, so it may choose a bad plan. Without nested
# loops, a bad plan costs little.
PLANNER_SETTINGS = {
    "enable_nestloop": "off",
    "enable_mergejoin": "off",  # it would sort all lines for a join with few rows or with none
    "work_mem": "256MB",
    "jit": "off",
}


@contextmanager
def audit_cursor() -> Iterator[Any]:
    """Return a cursor in a transaction with the settings of the audit, which end with it."""
    with transaction.atomic(), connection.cursor() as cursor:
        before = _set_planner(cursor, PLANNER_SETTINGS)
        yield cursor
        _set_planner(cursor, before)


def _set_planner(cursor: Any, settings: dict[str, str]) -> dict[str, str]:
    """Change settings of PostgreSQL's planner for this transaction. Return the earlier values."""
    before = {}
    for name, value in settings.items():
        cursor.execute("SELECT current_setting(%s)", [name])
        before[name] = cursor.fetchone()[0]
        cursor.execute("SELECT set_config(%s, %s, true)", [name, value])
    return before
