"""Load many rows with COPY. During the load, the tables have no triggers and no constraints between rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, models
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange, NumericRange

ROWS_PER_WRITE = 2_000
# In pg_constraint, the types f and x are foreign keys and exclusion constraints.
_CONSTRAINTS_SQL = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = ANY(%s::regclass[]) AND contype IN ('f', 'x') AND conparentid = 0 ORDER BY conname"""


@contextlib.contextmanager
def as_owner() -> Iterator[Any]:
    """Run statements as the owner of the tables, on the cursor that is yielded."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        role = connection.ops.quote_name(cursor.fetchone()[0])
        cursor.execute("SET ROLE NONE")
        yield cursor
        cursor.execute(f"SET ROLE {role}")


@contextlib.contextmanager
def unchecked(tables: Sequence[str]) -> Iterator[None]:
    """Load rows into these tables without their triggers, foreign keys and exclusion constraints.

    At the end, the constraints are created again. PostgreSQL then checks all rows.
    """
    with as_owner() as cursor:
        cursor.execute(_CONSTRAINTS_SQL, [list(tables)])
        constraints = cursor.fetchall()
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for table, name, _ in constraints:
            cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        yield
        cursor.execute("SELECT set_config('maintenance_work_mem', '512MB', false)")
        for table, name, definition in constraints:
            cursor.execute(f'ALTER TABLE {table} ADD CONSTRAINT "{name}" {definition}')
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


class TableLoader:
    """Loads rows of one model with COPY. ``template`` has the values of all columns that do not vary."""

    def __init__(self, template: models.Model, varying: Sequence[str]) -> None:
        """``varying`` are the columns that each row gives, in this order. They include the primary key."""
        self.model = type(template)
        self._varying = varying
        self._fixed = {
            field.column: _as_text(field.get_db_prep_save(field.pre_save(template, True), connection))
            for field in self.model._meta.concrete_fields
            if field.column not in varying
        }
        self._tail = "".join(f"\t{value}" for value in self._fixed.values()) + "\n"

    def load(self, rows: Iterable[Sequence[Any]]) -> int:
        """Copy the rows into the table and set its sequence of ids. Return the number of rows."""
        table = self.model._meta.db_table
        columns = ", ".join(f'"{column}"' for column in (*self._varying, *self._fixed))
        count, waiting = 0, []
        with connection.cursor() as cursor:
            with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in rows:
                    waiting.append("\t".join(map(_as_text, row)) + self._tail)
                    count += 1
                    if len(waiting) == ROWS_PER_WRITE:
                        copy.write("".join(waiting))
                        waiting.clear()
                copy.write("".join(waiting))
            cursor.execute(
                f"SELECT setval(pg_get_serial_sequence(%s, 'id'), (SELECT max(id) FROM {table}))", [table]
            )
        return count


def _as_text(value: Any) -> str:
    """Return a value in the text format of COPY. Texts must not contain tabs or line feeds."""
    if value is None:
        return r"\N"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, DateTimeTZRange | NumericRange):
        return f"[{value.lower or ''},{value.upper or ''})"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list):
        return "{" + ",".join(map(str, value)) + "}"
    return json.dumps(value.obj) if hasattr(value, "obj") else str(value)
