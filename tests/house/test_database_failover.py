"""Test the failover of PostgreSQL to a streaming standby, with the pool and the settings of the product."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from config.environment import read_environment
from config.postgres.pool import FastReconnectPool
from tests.house.test_bad_settings import GOOD
from tests.waiting import wait_until
from tools.console import run_quietly
from tools.processes import die_with_parent
from tools.service_environment import new_passwords
from tools.stores import Stores, embedded_stores

FAILOVER_LIMIT_SECONDS = 30.0
ROWS_BEFORE, ROWS_AFTER = 50, 20


@dataclass
class Cluster:
    """One running PostgreSQL."""

    stores: Stores
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A copy of the other cluster has its settings, so the folder of the socket is given here.
        command = [*self.stores.postgres_command(), "-c", f"unix_socket_directories={self.stores.sockets}"]
        self.process = subprocess.Popen(  # type: ignore[call-overload]
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            start_new_session=True,
            **self.stores.launch.options(),
        )
        wait_until(self.stores.postgres_answers)

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        """Return the rows of a statement of the superuser."""
        with psycopg.connect(
            host=str(self.stores.sockets),
            user="postgres",
            password=self.stores.passwords["postgres"],
            dbname="gpupool",
            autocommit=True,
        ) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """Start a primary and a synchronous streaming standby."""
    passwords = new_passwords()
    primary, standby = (Cluster(embedded_stores(tmp_path / name, passwords)) for name in ("a", "b"))
    try:
        primary.stores.prepare()
        primary.start()
        primary.stores.make_roles()
        standby.stores.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = [str(primary.stores.postgres_bin / "pg_basebackup"), "-h", str(primary.stores.sockets)]
        copy += ["-U", "postgres", "-D", str(standby.stores.data), "-R", "-X", "stream", "-c", "fast"]
        run_quietly(copy, env={**os.environ, "PGPASSWORD": passwords["postgres"]})
        standby.start()
        wait_until(lambda: primary.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'") != [])
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.ask("ALTER SYSTEM SET synchronous_commit = on")
        primary.ask("SELECT pg_reload_conf()")
        wait_until(lambda: primary.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'") != [])
        primary.ask("CREATE TABLE confirmed (number int)")
        primary.ask("GRANT ALL ON confirmed TO gpupool_app")
        yield primary, standby
    finally:
        for cluster in (primary, standby):
            cluster.kill()


@pytest.mark.long
def test_work_continues_on_the_promoted_standby_and_no_confirmed_row_is_lost_or_written_twice(
    clusters: tuple[Cluster, Cluster],
) -> None:
    primary, standby = clusters
    folders = [str(cluster.stores.sockets).replace("/", "%2F") for cluster in clusters]
    password = primary.stores.passwords["app"]
    url = f"postgresql://gpupool_app:{password}@{','.join(folders)}/gpupool"
    database = read_environment({**GOOD, "DATABASE_URL": url}).database
    parameters = {
        "host": database["HOST"],
        "port": database["PORT"],
        "user": database["USER"],
        "password": database["PASSWORD"],
        "dbname": database["NAME"],
        **database["OPTIONS"],
    }
    confirmed: list[int] = []
    with FastReconnectPool(kwargs=parameters, min_size=1, max_size=3, timeout=10, open=True) as pool:

        def write(number: int) -> bool:
            """Return True if the commit of a row was confirmed. A row of an unknown fate has a new number."""
            try:
                with pool.connection() as connection:
                    connection.execute("INSERT INTO confirmed VALUES (%s)", [number])
            except psycopg.Error:
                return False
            confirmed.append(number)
            return True

        assert all(write(number) for number in range(ROWS_BEFORE))
        primary.kill()
        standby.ask("SELECT pg_promote(wait => false)")
        began, number = time.monotonic(), ROWS_BEFORE
        while not write(number):
            number += 1
            assert time.monotonic() - began < FAILOVER_LIMIT_SECONDS, "no write was possible"
        assert all(write(number) for number in range(number + 1, number + 1 + ROWS_AFTER))
    stored = [row[0] for row in standby.ask("SELECT number FROM confirmed ORDER BY number")]
    assert set(confirmed) <= set(stored)  # type: ignore[arg-type]
    assert len(stored) == len(set(stored))
    assert len(confirmed) >= ROWS_BEFORE + ROWS_AFTER
