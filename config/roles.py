"""Two database roles: the owner migrates, the program only reads and writes rows.

`python -m config.roles APP_DATABASE_URL` is run after each migration, with the owner's address in DATABASE_URL.
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
    "GRANT UPDATE ON SEQUENCE scheduler_generation TO {role}",  # to go on far ahead after a restore
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO {role}",
)


def grant_program_role(connection: psycopg.Connection[Any], role: str) -> None:
    """Grant `role` the rows of every table there is and will be, and nothing of the schema itself."""
    for statement in GRANT_STATEMENTS:
        connection.execute(sql.SQL(statement).format(role=sql.Identifier(role)))


def main() -> None:
    """Grant the role of the address given as argument what the program needs."""
    role = unquote(urlsplit(sys.argv[1]).username or "")
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        owner = connection.execute("SELECT current_user").fetchone()
        if owner is not None and owner[0] != role:
            grant_program_role(connection, role)


if __name__ == "__main__":
    main()
