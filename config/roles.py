"""Grant the program's database role the right to read and write rows.

Only the owner role may change the schema. Run `python -m config.roles APP_DATABASE_URL` after each migration,
with the URL of the owner in DATABASE_URL.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg import sql

GRANT_STATEMENTS = (
    "GRANT USAGE ON SCHEMA public TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {role}",
    # After a restore, the program advances this sequence past the numbers that hosts may have seen.
    "GRANT UPDATE ON SEQUENCE scheduler_generation TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO {role}",
)


def grant_program_role(connection: psycopg.Connection[Any], role: str) -> None:
    """Grant `role` the right to read and write the rows of all present and future tables.

    The role gets no right to change the schema.
    """
    for statement in GRANT_STATEMENTS:
        connection.execute(sql.SQL(statement).format(role=sql.Identifier(role)))


def main() -> None:
    """Grant the privileges to the user in the database URL that is the first argument.

    Do nothing if this user is the owner role, which has all privileges.
    """
    role = unquote(urlsplit(sys.argv[1]).username or "")
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        owner = connection.execute("SELECT current_user").fetchone()
        if owner is not None and owner[0] != role:
            grant_program_role(connection, role)


if __name__ == "__main__":
    main()
