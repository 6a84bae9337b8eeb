"""Insert many rows with COPY, which takes a fraction of the time of INSERT."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection, models
from psycopg.types.json import Jsonb


def copy_new_rows(rows: Sequence[models.Model]) -> None:
    """Insert unsaved rows of one model, in this order, and set their primary keys.

    The keys ascend in the order of the rows. Values must have the types of the columns: nothing is converted,
    and defaults of the database do not apply.
    """
    if not rows:
        return
    model = type(rows[0])
    fields = model._meta.concrete_fields
    table = connection.ops.quote_name(model._meta.db_table)
    columns = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    names = [field.attname for field in fields]
    json_names = {field.attname for field in fields if isinstance(field, models.JSONField)}
    with connection.cursor() as cursor:
        for row, key in zip(rows, _new_keys(model, len(rows)), strict=True):
            row.pk = key
        # Django converts the errors of its own statements only.
        statement = f"COPY {table} ({columns}) FROM STDIN"
        with connection.wrap_database_errors, cursor.copy(statement) as copy:
            for row in rows:
                values = row.__dict__
                copy.write_row(
                    [Jsonb(values[name]) if name in json_names else values[name] for name in names]
                )
        for row in rows:
            row._state.adding = False


def _new_keys(model: type[models.Model], count: int) -> list[int]:
    """Return new values of the sequence of the model's primary key, in ascending order."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
            [model._meta.db_table, model._meta.pk.column, count],
        )
        return [key for (key,) in cursor.fetchall()]
