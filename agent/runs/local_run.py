"""One run: what the agent knows of it, and the files that it shares with its shim.

They are written so that a full disk, which the workload itself can make, neither ends a workload nor keeps anybody from ending it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.host.durable_files import write_json
from agent.notebook.background_activity import BackgroundActivity
from agent.protocol import RunSeen, RunWanted
from agent.runs import log_reader
from agent.runs.reconcile import RunStatus

ACKNOWLEDGEMENT_FILE = ".done"
ORDER_FILE_BYTES, EXIT_FILE_BYTES = (
    1024,
    4096,
)  # of the room that is kept for a run's orders, and for how it ended
LOG_MARK_BYTES = 40


@dataclass
class LocalRun:
    """One run as this agent sees it. ``about`` is what was wanted, without secret and environment."""

    folder: Path
    about: dict[str, Any]
    shim: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    noticed: bool = False
    stop_ordered: bool = False
    stopping: bool = False
    spawned_at: float = 0.0  # CLOCK_BOOTTIME
    adopted: bool = False  # it was there when this agent started
    step: str = ""
    ready: bool = False
    activity: dict[str, Any] = field(default_factory=dict)
    background: BackgroundActivity = field(default_factory=BackgroundActivity)
    checkpoint_at: float | None = None
    saved: bool = False  # it has acknowledged a checkpoint since its notice
    acknowledgement_before_notice: list[int] | None = None  # the acknowledgement as it stood then
    word: os.stat_result | None = None  # its last acknowledgement of a checkpoint, as far as is known
    secret: str = ""
    reported_ended: bool = False
    unnamed_since: float | None = None
    log_sent: int = 0
    exit_found_at: float | None = None  # CLOCK_BOOTTIME
    gpu_events: list[str] | None = None  # what its GPUs told in its last minutes; None: they were not asked
    epilog_ordered_at: float | None = (
        None  # CLOCK_BOOTTIME: its shim was killed, so another process was started for the epilog
    )

    @property
    def id(self) -> str:
        return str(self.about["run"])

    @property
    def is_notebook(self) -> bool:
        return bool(self.about["kind"] == "notebook")

    @property
    def state(self) -> str:
        if self.ended:
            return "ended"
        if self.stop_ordered or self.stopping:
            return "stopping"
        return "running" if "started_at" in self.shim else "starting"

    @property
    def socket(self) -> Path:
        """Where it answers HTTP: a notebook always, a job if it wants to."""
        return self.folder / "out" / ("notebook.sock" if self.is_notebook else "door.sock")

    def seen(self) -> RunSeen:
        """What the server is told of it."""
        return RunSeen(
            run=self.id,
            generation=self.about["generation"],
            state=self.state,
            step=self.ended.get("error") or self.step,
            ready=self.ready and not self.ended,
            outcome=self.ended.get("outcome", ""),
            exit_code=self.ended.get("exit_code"),
            started_at=self.shim.get("started_at"),
            ended_at=self.ended.get("ended_at"),
            checkpoint_at=self.checkpoint_at,
            saved=self.saved,
            activity=self.activity,
            prolog_failed=bool(self.ended.get("prolog_failed")),
            host_full=bool(self.ended.get("host_full")),
            gpu_unreadable=bool(self.ended.get("gpu_unreadable")),
            gpu_events=list(self.gpu_events or ()) if self.ended else [],
        )

    def held(self) -> RunStatus:
        """What ``reconcile`` needs of it."""
        told = self.reported_ended and log_reader.end_offset(self.folder / "log") <= self.log_sent
        grace = self.about.get(
            "grace_seconds", RunStatus.grace_seconds
        )  # an agent of an earlier version did not note it
        limit = self.about.get("max_runtime_seconds")
        return RunStatus(
            self.id, self.state, self.noticed, self.stop_ordered, told, self.unnamed_since, grace, limit
        )


@dataclass
class PendingStart:
    """A start that has to wait until the last holder of its units is gone, or until its whole gang may begin."""

    wanted: RunWanted
    since: float
    step: str
    prepared: bool = False  # only the gang is waited for
    begun: bool = False  # it is written down: nothing else is waited for
    next_try_at: float = 0.0  # CLOCK_BOOTTIME: not looked at before
    gpu_unreadable_since: float | None = (
        None  # CLOCK_BOOTTIME: its GPUs can't be asked whether they are clean
    )
    lock_holder_text: str = ""  # who has the lock that no run of this host accounts for
    asked_at: float = 0.0  # CLOCK_BOOTTIME: when that was looked for last


def persisted_fields(wanted: RunWanted) -> dict[str, Any]:
    """``LocalRun.about`` of a new run."""
    return {
        "run": wanted.run,
        "workload": wanted.workload,
        "generation": wanted.generation,
        "kind": wanted.kind,
        "owner": wanted.owner,
        "team": wanted.team,
        "attempt": wanted.attempt,
        "unit_uuids": list(wanted.unit_uuids),
        "grace_seconds": max(0.0, wanted.grace_seconds),
        "max_runtime_seconds": max(0, wanted.max_runtime_seconds),
        "mark": secrets.token_hex(
            8
        ),  # in the environment of its processes: tells them from every other run's
    }


def acknowledgement_identity(word: os.stat_result | None) -> list[int] | None:
    """What tells one acknowledgement from another, whatever the clock of the file system says, as the shim does it."""
    return [word.st_ino, word.st_mtime_ns, word.st_ctime_ns] if word else None


def read_acknowledgement(checkpoint: Path) -> os.stat_result | None:
    """The workload's word in its checkpoint folder, if there is one. A link is none."""
    try:
        found = os.lstat(checkpoint / ACKNOWLEDGEMENT_FILE)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def is_socket(path: Path) -> bool:
    """Is there a socket? The folder is the workload's: a link to one is none."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def write_lease(folder: Path, until: float) -> None:
    """So that a full disk does not end a workload."""
    _write_in_place(folder / "lease", f"{until:020.3f}")


def write_order(folder: Path, order: dict[str, Any]) -> None:
    """So that a full disk, which the workload itself can make, keeps nobody from stopping it."""
    _write_in_place(folder / "order.json", json.dumps(order).ljust(ORDER_FILE_BYTES))


def write_log_mark(folder: Path, offset: int) -> None:
    """The server has the log up to ``offset``. Not synced: a mark that is lost is a log that is sent again."""
    _write_in_place(folder / "log_sent.json", json.dumps({"offset": offset}).ljust(LOG_MARK_BYTES))


def reserve_exit_space(folder: Path) -> None:
    """For what has to be written of the run however full the disk is."""
    write_order(folder, {})
    (folder / "exit.room").write_bytes(b" " * EXIT_FILE_BYTES)
    write_log_mark(folder, 0)


def write_exit_file(folder: Path, ended: dict[str, Any]) -> None:
    """Into the room that was kept for it where the disk is full: as long as a run has not ended, its GPUs are held."""
    try:
        write_json(folder / "exit.json", ended)
    except OSError as error:
        if error.errno != errno.ENOSPC or not (folder / "exit.room").exists():
            raise
        text = json.dumps({**ended, "error": ended["error"][: EXIT_FILE_BYTES // 8]})
        _write_in_place(folder / "exit.room", text.ljust(EXIT_FILE_BYTES))
        os.replace(folder / "exit.room", folder / "exit.json")


def _write_in_place(path: Path, text: str) -> None:
    """Over what is there and always as long, so that it takes no room on the disk. Not synced: after a crash nothing runs."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
    finally:
        os.close(descriptor)
