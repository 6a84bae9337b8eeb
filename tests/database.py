"""Create the test database: a copy of a migrated template, emptied after each test that commits.

The template is named after a digest of Django's version and the files in MIGRATION_SOURCES. So one process
migrates and the others copy its result. The template is dumped to ``.gpupool/test-databases``. Other runs on
the same day load this dump instead of migrating.
"""

from __future__ import annotations

import datetime as dt
import gc
import hashlib
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import django
import psycopg
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import TransactionTestCase
from psycopg import sql

from config.roles import grant_program_role

ROOT = Path(__file__).resolve().parents[1]
PROGRAM_ROLE = "gpupool_app"
TEMPLATE_LOCK = 0x67707570  # any number that nothing else on the server locks
MIGRATION_SOURCES = (
    "*/migrations/*.py",
    "scheduler/state/*.py",
    "requirements/base.txt",
    "tests/database.py",
)
DUMPS = ROOT / ".gpupool" / "test-databases"
KEPT_DUMPS = 10

# Copies of the rows that migrations write, in an order in which they can be inserted again.
KEEP_MIGRATED_ROWS = """
CREATE SCHEMA test_support;
CREATE TABLE test_support.kept (name text, position serial);
"""

# One call instead of a flush: it empties only tables with rows, and does not recreate content types.
EMPTY_TABLES = """
CREATE FUNCTION test_support.empty_tables() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    candidate text;
    holds_rows boolean;
    filled text[] := '{}';
BEGIN
    FOR candidate IN
        SELECT format('%I', relname) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
          AND relname <> 'django_migrations'
        ORDER BY relname
    LOOP
        EXECUTE 'SELECT EXISTS (SELECT FROM public.' || candidate || ')' INTO holds_rows;
        IF holds_rows THEN
            filled := filled || ('public.' || candidate);
        END IF;
    END LOOP;
    IF filled <> '{}' THEN
        EXECUTE 'TRUNCATE ' || array_to_string(filled, ', ') || ' CASCADE';
    END IF;
    FOR candidate IN SELECT format('%I', name) FROM test_support.kept ORDER BY position LOOP
        EXECUTE 'INSERT INTO public.' || candidate
            || ' OVERRIDING SYSTEM VALUE SELECT * FROM test_support.' || candidate;
    END LOOP;
END $$;
"""


def template_name() -> str:
    """Return the template's name, which changes with every migration and with Django's version."""
    digest = hashlib.sha256(django.__version__.encode())
    for pattern in MIGRATION_SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return f"gpupool_template_{digest.hexdigest()[:16]}"


def create_test_database() -> str:
    """Create this process's test database and connect Django to it, as the owner. Returns its name."""
    name = connection.creation._get_test_db_name()
    with _maintenance_connection() as server:
        server.execute("SELECT pg_advisory_lock(%s)", [TEMPLATE_LOCK])
        template = template_name()
        if server.execute("SELECT FROM pg_database WHERE datname = %s", [template]).fetchone() is None:
            unfinished = f"{template}_unfinished"
            _drop(server, unfinished)
            server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unfinished)))
            use_database(unfinished)
            _fill_template(_dump_path(template))
            use_database(unfinished)  # closes the connections to it, so that it can be renamed
            server.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                    sql.Identifier(unfinished), sql.Identifier(template)
                )
            )
        _drop(server, name)
        server.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    use_database(name)
    return name


def drop_test_database(name: str) -> None:
    """Close Django's connections and remove the database."""
    use_database("postgres")
    with _maintenance_connection() as server:
        _drop(server, name)


def use_database(name: str, options: str | None = None) -> None:
    """Connect Django to another database of the server, with other session options if given."""
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]
    connection.settings_dict["NAME"] = name
    if options is not None:
        connection.settings_dict["OPTIONS"]["options"] = options


def empty_tables(test_case: TransactionTestCase) -> None:
    """Remove the rows that a test committed, and restore the rows that migrations wrote.

    Retry after a deadlock: a process that the test started may still read rows while it ends. Connect again,
    because a test of outages may have broken the connection.
    """
    for attempts_left in (4, 3, 2, 1, 0):
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT test_support.empty_tables()")
            return
        except OperationalError:
            if not attempts_left:
                raise
            connection.close()
            time.sleep(0.5)


def _dump_path(template: str) -> Path:
    """Return the file of today's dump. Older dumps are not used: migrations write the present time."""
    return DUMPS / f"{template}_{dt.datetime.now(dt.UTC):%Y%m%d}.sql"


def _fill_template(dump: Path) -> None:
    """Load the dump into the present database. If there is none, migrate, and make the dump.

    ``./run`` sets GPUPOOL_POSTGRES_BIN to the programs of its own server. A server of another version may
    refuse them, so without the setting nothing is dumped.
    """
    programs = os.environ.get("GPUPOOL_POSTGRES_BIN")
    if programs and dump.exists():
        _run_program(programs, "psql", "-qX1", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f", str(dump))
        return
    gc.disable()  # Django makes so many model classes that the collector takes a quarter of the time
    try:
        call_command("migrate", verbosity=0, skip_checks=True)
    finally:
        gc.enable()
    _prepare_template()
    if programs:
        DUMPS.mkdir(parents=True, exist_ok=True)
        unfinished = dump.with_suffix(f".{os.getpid()}")
        _run_program(programs, "pg_dump", "-f", str(unfinished))
        unfinished.rename(dump)
        for old in sorted(DUMPS.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_DUMPS]:
            old.unlink(missing_ok=True)


def _run_program(folder: str, name: str, *arguments: str) -> None:
    """Run a program of PostgreSQL on the present database."""
    address = _address(connection.settings_dict["NAME"])
    variables = {"dbname": "DATABASE", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    env = {**os.environ, **{f"PG{variables[key]}": str(value) for key, value in address.items()}}
    subprocess.run([str(Path(folder) / name), *arguments], env=env, check=True)


def _prepare_template() -> None:
    """Add the schema ``test_support``, and grant the program's role its rights."""
    with psycopg.connect(**_address(connection.settings_dict["NAME"]), autocommit=True) as owner:
        owner.execute(KEEP_MIGRATED_ROWS)
        for (table,) in owner.execute(TABLES_BY_DEPENDENCY).fetchall():
            holds_rows = owner.execute(
                sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table))
            ).fetchone()
            if holds_rows and holds_rows[0]:
                names = {
                    "kept": sql.Identifier("test_support", table),
                    "table": sql.Identifier("public", table),
                }
                owner.execute(sql.SQL("CREATE TABLE {kept} AS TABLE {table}").format(**names))
                owner.execute("INSERT INTO test_support.kept (name) VALUES (%s)", [table])
        owner.execute(EMPTY_TABLES)
        role_exists = (
            owner.execute("SELECT FROM pg_roles WHERE rolname = %s", [PROGRAM_ROLE]).fetchone() is not None
        )
        if role_exists:
            grant_program_role(owner, PROGRAM_ROLE)
            owner.execute(
                sql.SQL("GRANT USAGE ON SCHEMA test_support TO {}").format(sql.Identifier(PROGRAM_ROLE))
            )


# Tables, each after the tables to which its foreign keys refer.
TABLES_BY_DEPENDENCY = """
WITH RECURSIVE depth AS (
    SELECT oid, 0 AS level FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'django_migrations'
    UNION
    SELECT c.conrelid, depth.level + 1 FROM pg_constraint c JOIN depth ON c.confrelid = depth.oid
    WHERE c.contype = 'f' AND c.conrelid <> c.confrelid AND depth.level < 12
)
SELECT oid::regclass::text FROM depth GROUP BY oid ORDER BY max(level), 1
"""


def _drop(server: psycopg.Connection[Any], name: str) -> None:
    server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _maintenance_connection() -> psycopg.Connection[Any]:
    return psycopg.connect(**_address("postgres"), autocommit=True)


def _address(database: str) -> dict[str, Any]:
    settings = connection.settings_dict
    names = {"user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    return {
        "dbname": database,
        **{ours: settings[theirs] for ours, theirs in names.items() if settings[theirs]},
    }
