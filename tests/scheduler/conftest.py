"""Define fixtures of the scheduler tests: the organisation, a check of the lock order, an engine worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection, models
from pytest_django.plugin import DjangoDbBlocker

from scheduler.coordination import locks
from scheduler.models import Host, JobArray, Leader, Pool, Reservation, Workload
from scheduler.state import nudge
from tests.world import SHARED_WORLD, World, world

__all__ = ["World", "world"]

ROOT = Path(__file__).resolve().parents[2]


# The order documented in scheduler/coordination/locks.py.
LOCK_ORDER = [Leader, Pool, Reservation, Host, JobArray, Workload]


@pytest.fixture(autouse=True)
def one_order_of_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test in which a transaction of this process locks rows out of order.

    Two transactions that lock in different orders may deadlock. Locking a locked row again is allowed.
    """
    held: dict[str, set[tuple[type[models.Model], int]]] = {}
    violations: list[str] = []

    def note(kind: type[Any], ids: Iterable[int]) -> None:
        outer = 1 if SHARED_WORLD.is_open else 0  # a test in the shared world already runs in a savepoint
        if kind not in LOCK_ORDER or len(connection.savepoint_ids) <= outer:
            return
        locked = held.setdefault(connection.savepoint_ids[outer], set())
        new = {(kind, pk) for pk in ids} - locked
        later = {other for other, _ in locked if LOCK_ORDER.index(other) > LOCK_ORDER.index(kind)}
        if new and later:
            violations.append(f"{kind.__name__} after {', '.join(sorted(model.__name__ for model in later))}")
        locked |= new

    lock_rows, lock_leader, lock_states = locks._rows, locks.leader, locks.workload_states

    def rows(kind: type[Any], ids: Iterable[int]) -> dict[int, Any]:
        requested = set(ids)
        note(kind, requested)
        return lock_rows(kind, requested)

    def leader() -> Leader:
        note(Leader, [1])
        return lock_leader()

    def workload_states(ids: Iterable[int]) -> dict[int, str]:
        requested = set(ids)
        note(Workload, requested)
        return lock_states(requested)

    monkeypatch.setattr(locks, "_rows", rows)
    monkeypatch.setattr(locks, "leader", leader)
    monkeypatch.setattr(locks, "workload_states", workload_states)
    yield
    assert not violations, f"locked out of order: {sorted(set(violations))}"


def test_database_url() -> str:
    """Return the address of the database that this test process uses."""
    place = connection.settings_dict
    user, password, host = (quote(str(place[name]), safe="") for name in ("USER", "PASSWORD", "HOST"))
    port = f":{place['PORT']}" if place["PORT"] else ""
    return f"postgresql://{user}:{password}@{host}{port}/{place['NAME']}"


@contextmanager
def engine_process(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an engine worker as `./run` starts it. Yields when the worker accepts tasks."""
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "config.celery",
        "worker",
        "--without-gossip",
        "--without-mingle",
    ]
    options = [
        "-n",
        f"engine-{log.stem}@%h",
        "-Q",
        "engine",
        "-c",
        "1",
        "--prefetch-multiplier",
        "1",
        "-l",
        "info",
    ]
    environment = {
        **os.environ,
        "DATABASE_URL": test_database_url(),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command + options, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        try:
            _wait_until_ready(process, log)
            yield process
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 40
    while b" ready." not in log.read_bytes():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


@pytest.fixture(scope="module")
def engine_worker(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one engine for the tests of a module, on the queue that this process nudges."""
    with django_db_blocker.unblock():
        nudge.redis_connection().delete(nudge.ENGINE_KEY)
    with engine_process(tmp_path_factory.mktemp("engine") / "engine.log") as process:
        yield process
    with django_db_blocker.unblock():
        Leader.objects.all().delete()  # the engine wrote its row after the last test emptied the tables
