"""What has changed since a moment: the change feed, written by triggers in the transactions that change the rows.

A feed row carries its transaction's id, and a reader keeps the snapshot (``pg_snapshot``) of its last reading. New to it is
what that snapshot could not see. So a transaction that commits late, whatever the order of ids, is never missed and never
read twice: there is no high-water mark. docs/decisions/0004-a-warm-snapshot.md says why it is done so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection

WHOLE_TABLE = "everything"  # the kind of a change that no one row stands for

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
    """What a reading found: ids of changed rows by kind, and the snapshot that the next reading starts from."""

    seen: str
    changed: dict[str, set[int]]


def current_position() -> str:
    """The present transaction's snapshot: whoever has read everything in it starts from here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        return str(cursor.fetchone()[0])


def read_changes(seen: str) -> ChangeSet:
    """What was committed between the snapshot ``seen`` and the present transaction's. One query."""
    changed: dict[str, set[int]] = defaultdict(set)
    with connection.cursor() as cursor:
        cursor.execute(READ_CHANGES_SQL, {"seen": seen})
        rows = cursor.fetchall()
    for _, kind, row in rows:
        if kind is not None:
            changed[kind].add(row)
    return ChangeSet(str(rows[0][0]), dict(changed))


def prune_changes(seen: str) -> int:
    """Forget what this snapshot has seen; how many rows. Only for the engine that leads: another one that takes the lead
    reads everything afresh."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM scheduler_change WHERE pg_visible_in_snapshot(xid, %(seen)s::pg_snapshot)"
            " OR xid >= pg_snapshot_xmax(pg_current_snapshot())",  # restored from a server that had counted further
            {"seen": seen},
        )
        return int(cursor.rowcount)


# -- for migrations --------------------------------------------------------------------------------------------------------


def watch_table_sql(
    table: str, kind: str, columns: Sequence[str], *, row_id: str = "id", alive: str = "true"
) -> str:
    """SQL that makes changes of a table known: rows that come and go, and updates that change one of ``columns``.

    ``row_id`` is what is noted of a row; only rows of which ``alive`` is true are noted when they come. The triggers go by
    statement, and compare the rows before and after in one join: a thousand reasons written at once cost one comparison.
    They are functions of their own, so no later change of the table's columns is in their way; a migration that changes
    what the snapshot reads calls this again.
    """
    name = f"scheduler_watch_{table}"
    before = ", ".join(f"before.{column}" for column in columns)
    after = ", ".join(f"after.{column}" for column in columns)
    note = f"INSERT INTO scheduler_change (kind, row_id) SELECT DISTINCT '{kind}',"
    bodies = {
        "insert": (f"{note} {row_id} FROM after WHERE {alive}", "NEW TABLE AS after"),
        "update": (
            f"{note} after.{row_id} FROM after JOIN before USING (id) WHERE ROW({before}) IS DISTINCT FROM ROW({after})",
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
    """SQL that takes ``watch_table_sql`` back."""
    events = ("insert", "update", "delete", "truncate")
    return "".join(
        f"DROP TRIGGER changes_are_noted_on_{event} ON {table}; DROP FUNCTION scheduler_watch_{table}_{event}();"
        for event in events
    )
