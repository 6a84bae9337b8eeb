"""Recover a copied cluster: unpack it, and let PostgreSQL replay the archived log up to a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tools.backup.wal import ARCHIVING_MARK, restore_command
from tools.console import RunError, last_lines, run_quietly, wait_until
from tools.processes import die_with_parent
from tools.stores import Stores

RECOVERY_SECONDS = 4 * 3600  # time for the replay of the log
STOP_SECONDS = 120
SHOWN_LOG_LINES = 8


@dataclass(frozen=True)
class RecoveredCluster:
    """A recovered cluster that runs. ``until``: the time of its last replayed transaction; '' without one."""

    stores: Stores
    until: str


@contextlib.contextmanager
def recovered_cluster(
    backup: Path, stores: Stores, archive: Path | None, until: datetime | None = None
) -> Iterator[RecoveredCluster]:
    """Unpack the cluster of a backup into ``stores.data``, recover it, and run it during the block.

    The log is replayed to ``until``, or to its end. The caller removes the folders of ``stores`` after an
    error. Raises RunError.
    """
    _unpack(backup, stores)
    settings = {"archive_mode": "off", "restore_command": "false"}
    if archive is not None:
        settings["restore_command"] = restore_command(archive)
    if until is not None:
        settings |= {"recovery_target_time": until.isoformat(), "recovery_target_action": "promote"}
    log = stores.folder / "recovery.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            stores.postgres_command(**settings),
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,
            **stores.launch.options(),  # type: ignore[call-overload]
        )
        try:
            _wait_for_promotion(stores, process, log)
            yield RecoveredCluster(
                stores, stores.query("SELECT coalesce(pg_last_xact_replay_timestamp()::text, '')")
            )
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
    log.unlink()


def check_is_archived(until: datetime | None, last: str) -> None:
    """Raise RunError if the time is after the last archived transaction, whose time is ``last`` (or '')."""
    if until is not None and (not last or datetime.fromisoformat(last) < until):
        raise RunError(
            f"--until {until.isoformat()} is after the end of the archived log ({last or 'no transaction'}); "
            "allowed: an earlier time, or no --until to restore all that is archived"
        )


def _unpack(backup: Path, stores: Stores) -> None:
    for place in (stores.sockets, stores.data):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    _untar(backup / "database" / "base.tar.gz", stores.data)
    _untar(backup / "database" / "pg_wal.tar.gz", stores.data / "pg_wal")
    # The first backup of this cluster starts archiving.
    (stores.data / ARCHIVING_MARK).unlink(missing_ok=True)
    (stores.data / "recovery.signal").touch(mode=0o600)
    stores.data.chmod(0o700)
    if stores.launch.uid is not None:
        for folder, _, names in os.walk(stores.sockets):
            for place in (Path(folder), *(Path(folder, name) for name in names)):
                shutil.chown(place, stores.launch.uid, stores.launch.uid)


def _untar(archive: Path, into: Path) -> None:
    run_quietly(["tar", "-xzf", str(archive), "-C", str(into), "--no-same-owner"])


def _wait_for_promotion(stores: Stores, process: subprocess.Popen[bytes], log: Path) -> None:
    def is_promoted() -> bool:
        return stores.postgres_answers() and stores.query("SELECT pg_is_in_recovery()") == "f"

    try:
        wait_until(is_promoted, "PostgreSQL", RECOVERY_SECONDS, lambda: process.poll() is None)
    except RunError:
        raise RunError(f"PostgreSQL could not recover:\n{last_lines(log, SHOWN_LOG_LINES)}") from None
