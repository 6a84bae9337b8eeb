"""Insert many rows with binary COPY, which takes a fraction of the time of INSERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection, models


def copy_new_rows(
    model: type[models.Model], names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> list[int]:
    """Insert rows of a model, in this order, and return their new primary keys. The keys ascend.

    ``names`` are the attributes of all columns except the primary key, in the order of the values of a row.
    Values must have the types of the columns: nothing is converted, and defaults do not apply.
    """
    if not rows:
        return []
    attributes = {field.attname: field for field in model._meta.concrete_fields}
    fields = [model._meta.pk, *(attributes[name] for name in names)]
    table = connection.ops.quote_name(model._meta.db_table)
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    keys = _new_keys(model, len(rows))
    statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT binary)"
    # Django converts the errors of its own statements only.
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.copy(statement) as copy:
        # A type without its length, such as ``numeric``.
        copy.set_types([str(field.db_type(connection)).partition("(")[0] for field in fields])
        for key, row in zip(keys, rows, strict=True):
            copy.write_row((key, *row))
    return keys


def _new_keys(model: type[models.Model], count: int) -> list[int]:
    """Return new values of the sequence of the model's primary key, in ascending order."""
    with connection.cursor() as cursor:
        # The name of the sequence is looked up once, not for each value.
        cursor.execute("SELECT pg_get_serial_sequence(%s, %s)", [model._meta.db_table, model._meta.pk.column])
        [sequence] = cursor.fetchone()
        cursor.execute("SELECT nextval(%s::regclass) FROM generate_series(1, %s)", [sequence, count])
        return [key for (key,) in cursor.fetchall()]
