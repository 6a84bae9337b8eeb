"""Record changes of rows in a feed table. Triggers write the feed in the transaction of each change.

Each feed row has the id of its transaction. A reader keeps the PostgreSQL snapshot (``pg_snapshot``) of its
last read. Every feed row that this snapshot could not see is new. So a transaction that commits late is
neither missed nor read twice, even if its id is lower than the ids that were already read. See
docs/decisions/0004-a-warm-snapshot.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection

WHOLE_TABLE = "everything"  # the kind of change that is recorded if a whole table was truncated

CREATE_CHANGE_TABLE = """
CREATE TABLE scheduler_change (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(), kind text NOT NULL, row_id bigint NOT NULL
);
CREATE INDEX scheduler_change_by_transaction ON scheduler_change (xid);
"""

READ_CHANGES_SQL = """
SELECT pg_current_snapshot()::text, change.kind, change.row_id
FROM (SELECT 1) AS now LEFT JOIN scheduler_change AS change
  ON change.xid >= pg_snapshot_xmin(%(seen)s::pg_snapshot)
 AND NOT pg_visible_in_snapshot(change.xid, %(seen)s::pg_snapshot)
"""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """The result of a read of the feed.

    ``changed`` has the ids of changed rows by kind. ``seen`` is the snapshot from which the next read starts.
    """

    seen: str
    changed: dict[str, set[int]]


def current_position() -> str:
    """Return the current transaction's snapshot as text.

    A reader that has read all tables in this transaction passes it to the next ``read_changes``.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        return str(cursor.fetchone()[0])


def read_changes(seen: str) -> ChangeSet:
    """Return the changes committed between the snapshot ``seen`` and the current transaction's snapshot.

    This takes one query.
    """
    changed: dict[str, set[int]] = defaultdict(set)
    with connection.cursor() as cursor:
        cursor.execute(READ_CHANGES_SQL, {"seen": seen})
        rows = cursor.fetchall()
    for _, kind, row in rows:
        if kind is not None:
            changed[kind].add(row)
    return ChangeSet(str(rows[0][0]), dict(changed))


def prune_changes(seen: str) -> int:
    """Delete the feed rows that the snapshot ``seen`` could see. Return the number of deleted rows.

    Only the leading engine needs these rows, so only the leading engine calls this function. A new leader
    reads all tables and needs no older feed rows.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM scheduler_change WHERE pg_visible_in_snapshot(xid, %(seen)s::pg_snapshot)"
            # A row with an id above this limit was restored from a server with higher transaction ids.
            " OR xid >= pg_snapshot_xmax(pg_current_snapshot())",
            {"seen": seen},
        )
        return int(cursor.rowcount)


# -- for migrations ---------------------------------------------------------------------------------


def watch_table_sql(
    table: str, kind: str, columns: Sequence[str], *, row_id: str = "id", alive: str = "true"
) -> str:
    """Return SQL that records changes of a table: inserts, deletes, and updates of one of ``columns``.

    ``row_id`` is the column whose value is recorded. Inserts are recorded only if the SQL condition ``alive``
    is true. The triggers run once per statement and compare the old and new rows in one join. So a bulk
    update of a thousand rows needs one comparison. A migration that changes the columns that the snapshot
    reads must call this function again.
    """
    name = f"scheduler_watch_{table}"
    before = ", ".join(f"before.{column}" for column in columns)
    after = ", ".join(f"after.{column}" for column in columns)
    note = f"INSERT INTO scheduler_change (kind, row_id) SELECT DISTINCT '{kind}',"
    bodies = {
        "insert": (f"{note} {row_id} FROM after WHERE {alive}", "NEW TABLE AS after"),
        "update": (
            f"{note} after.{row_id} FROM after JOIN before USING (id)"
            f" WHERE ROW({before}) IS DISTINCT FROM ROW({after})",
            "OLD TABLE AS before NEW TABLE AS after",
        ),
        "delete": (f"{note} {row_id} FROM before", "OLD TABLE AS before"),
    }
    parts = []
    for event, (body, tables) in bodies.items():
        parts.append(_trigger_sql(f"{name}_{event}", table, event, body, f"REFERENCING {tables}"))
    parts.append(
        _trigger_sql(f"{name}_truncate", table, "truncate", f"{note.replace(kind, WHOLE_TABLE)} 0", "")
    )
    return "\n".join(parts)


def _trigger_sql(function: str, table: str, event: str, body: str, referencing: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {body};
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER changes_are_noted_on_{event} AFTER {event.upper()} ON {table} {referencing}
    FOR EACH STATEMENT EXECUTE FUNCTION {function}();
"""


def unwatch_table_sql(table: str) -> str:
    """Return SQL that removes the triggers of ``watch_table_sql``."""
    events = ("insert", "update", "delete", "truncate")
    return "".join(
        f"DROP TRIGGER changes_are_noted_on_{event} ON {table};"
        f" DROP FUNCTION scheduler_watch_{table}_{event}();"
        for event in events
    )
