"""Run PostgreSQL and Valkey for one command, and remove them with all their files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.console import RunError, wait_until
from tools.ports import free_port
from tools.processes import die_with_parent, process_start
from tools.service_environment import new_passwords, service_settings
from tools.stores import Stores, embedded_stores, external_stores

START_SECONDS = 30
STOP_SECONDS = 10
FOLDER_PREFIX = "gpupool-test-"
THROW_AWAY_LEASE_SECONDS = "30"


@contextlib.contextmanager
def throw_away_stores(
    external: bool = False, names: Sequence[str] = ("postgres", "valkey")
) -> Iterator[dict[str, str]]:
    """Run stores during the block and yield the environment that contains their addresses.

    If DATABASE_URL and REDIS_URL are set, the servers at these addresses are used and nothing is started. If
    ``names`` is empty, nothing is started either, because programs that only read their settings need no
    store.
    """
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    (folder / "owner").write_text(f"{os.getpid()} {process_start(os.getpid())}")
    for name in ("state", "log"):
        (folder / name).mkdir()
    passwords = new_passwords()
    settings = service_settings("test", folder / "state", passwords, free_port(), free_port())
    env = {
        # Tests and benchmarks wait for the end of leases, so their leases are short.
        "GPUPOOL_LEASE_SECONDS": THROW_AWAY_LEASE_SECONDS,
        **os.environ,
        **settings,
        "PYTHONDONTWRITEBYTECODE": "",
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    places = [folder]
    try:
        if not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
            stores = external_stores(folder, passwords) if external else embedded_stores(folder, passwords)
            places.append(stores.sockets)
            if names:
                start_stores(stores, names, running)
            env.update(
                DATABASE_URL=stores.url("owner"),
                REDIS_URL=stores.redis_url,
                GPUPOOL_POSTGRES_BIN=str(stores.postgres_bin),
            )
        yield env
    finally:
        _stop(running)
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


def start_stores(stores: Stores, names: Sequence[str], running: dict[str, subprocess.Popen[bytes]]) -> None:
    """Start the named stores, add each to `running`, and wait until they answer. Raises RunError."""
    folder = stores.folder
    stores.prepare()
    answers = {"postgres": stores.postgres_answers, "valkey": stores.redis_answers}
    commands = {"postgres": stores.postgres_command, "valkey": stores.redis_command}
    for name in names:
        options = stores.launch.options() if name == "postgres" else {}
        with open(folder / "log" / name, "wb") as log:
            running[name] = subprocess.Popen(  # type: ignore[call-overload]
                commands[name](),
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                start_new_session=True,
                **options,
            )
        pid = running[name].pid
        (folder / f"{name}.pid").write_text(f"{pid} {process_start(pid)}")
    for name, child in running.items():
        try:
            wait_until(answers[name], name, START_SECONDS, lambda child=child: child.poll() is None)  # type: ignore[misc]
        except RunError as error:
            said = (folder / "log" / name).read_text()[-500:].strip()
            raise RunError(f"{error}: {said}") from None
    if "postgres" in names:
        stores.make_roles()


def _stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    for name, child in reversed(running.items()):
        # On SIGQUIT, PostgreSQL ends without writing its data. The data is removed anyway.
        child.send_signal(signal.SIGQUIT if name == "postgres" else signal.SIGTERM)
    for child in running.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS)
        if child.poll() is None:
            child.kill()


def remove_abandoned() -> None:
    """Remove the processes and the files of throw-away stores whose owner was killed."""
    for mark in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/owner"):
        try:
            owner, start = mark.read_text().split()
            if process_start(int(owner)) == start:
                continue
            for name in ("postgres", "valkey"):
                with contextlib.suppress(OSError, ValueError):
                    pid, start = (mark.parent / f"{name}.pid").read_text().split()
                    if process_start(int(pid)) == start:
                        os.kill(int(pid), signal.SIGKILL)
            shutil.rmtree(mark.parent, ignore_errors=True)
        except (OSError, ValueError):
            continue
