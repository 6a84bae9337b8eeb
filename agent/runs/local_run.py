"""Holds the agent's state of one run, and writes the files that the agent shares with the run's shim.

The shim is the process that supervises the run. A workload can fill the disk. Therefore these files are
written in place into reserved space. A full disk then ends no workload, and the agent can still stop each
workload.
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

from agent.host import processes
from agent.host.durable_files import read_json, write_json
from agent.notebook.background_activity import BackgroundActivity
from agent.protocol import RunSeen, RunWanted
from agent.runs import log_reader
from agent.runs.reconcile import RunStatus

ACKNOWLEDGEMENT_FILE = ".done"
ORDER_FILE_BYTES = 1024  # reserved for the file with the orders to a shim
EXIT_FILE_BYTES = 4096  # reserved for the file that records the end of a run
LOG_MARK_BYTES = 40


@dataclass
class LocalRun:
    """The agent's state of one run.

    ``about`` is the content of run.json: the fields of ``persisted_fields``. ``shim`` is the content of
    shim.json, or {} before the shim has written it. ``ended`` is the content of exit.json, or {} if the run
    has not ended.
    """

    folder: Path
    about: dict[str, Any]
    shim: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    noticed: bool = False
    stop_ordered: bool = False
    stopping: bool = False
    spawned_at: float = 0.0  # CLOCK_BOOTTIME
    adopted: bool = False  # True: the run was started before the agent's last start
    step: str = ""
    ready: bool = False
    activity: dict[str, Any] = field(default_factory=dict)
    background: BackgroundActivity = field(default_factory=BackgroundActivity)
    checkpoint_at: float | None = None
    saved: bool = False  # True: the workload has acknowledged a checkpoint since its notice
    # The acknowledgement_identity of the acknowledgement that existed at the notice; None: there was none.
    acknowledgement_before_notice: list[int] | None = None
    acknowledgement: os.stat_result | None = None  # the acknowledgement file when it was last read
    secret: str = ""
    reported_ended: bool = False
    undesired_since: float | None = (
        None  # CLOCK_BOOTTIME of the first frame without this run; None: the last frame listed the run
    )
    log_sent: int = 0
    exit_found_at: float | None = None  # CLOCK_BOOTTIME at which the agent found the end of a failed run
    gpu_events: list[str] | None = None  # event codes of the run's GPUs in its last minutes; None: unknown
    # CLOCK_BOOTTIME at which a separate process was started for the epilog, because the shim was killed.
    epilog_ordered_at: float | None = None

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
        """Return the path of the socket on which the workload answers HTTP.

        A notebook always creates this socket. A job creates it only if its program serves HTTP.
        """
        return self.folder / "out" / ("notebook.sock" if self.is_notebook else "door.sock")

    def seen(self) -> RunSeen:
        """Return the observed state that is reported to the server."""
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
            cpu_seconds=self.ended.get("cpu_seconds"),
            memory_peak_mib=self.ended.get("memory_peak_mib"),
        )

    def held(self) -> RunStatus:
        """Return the status that ``agent.runs.reconcile.plan_actions`` needs."""
        reported = self.reported_ended and log_reader.end_offset(self.folder / "log") <= self.log_sent
        # An older version of the agent did not write this field.
        grace = self.about.get("grace_seconds", RunStatus.grace_seconds)
        limit = self.about.get("max_runtime_seconds")
        return RunStatus(
            self.id, self.state, self.noticed, self.stop_ordered, reported, self.undesired_since, grace, limit
        )


@dataclass
class PendingStart:
    """A start that waits until its units are free, or until all members of its gang may start."""

    wanted: RunWanted
    since: float
    step: str
    prepared: bool = False  # True: the start waits only for the other members of its gang
    begun: bool = False  # True: every condition is met, and the start is being recorded on the disk
    next_try_at: float = 0.0  # CLOCK_BOOTTIME: do not try before this time
    gpu_unreadable_since: float | None = None  # CLOCK_BOOTTIME
    lock_holder_text: str = ""  # name of the process that holds the lock, for the report; '': none found
    lock_holder_checked_at: float = 0.0  # CLOCK_BOOTTIME of the last search for that process


def persisted_fields(wanted: RunWanted) -> dict[str, Any]:
    """Return ``LocalRun.about`` of a new run."""
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
        # The agent finds the processes of a run by this mark in their environments.
        "mark": secrets.token_hex(8),
    }


def acknowledgement_identity(status: os.stat_result | None) -> list[int] | None:
    """Return a value that identifies an acknowledgement file; None if there is no file.

    Two acknowledgements have different values, even if the clock was set back between them. The shim computes
    the same value with its own code (``agent.shim.supervisor``).
    """
    return [status.st_ino, status.st_mtime_ns, status.st_ctime_ns] if status else None


def read_acknowledgement(checkpoint: Path) -> os.stat_result | None:
    """Return the stat of the acknowledgement file in the checkpoint folder; None if there is none.

    A workload creates this file when it has written a checkpoint. A symbolic link does not count.
    """
    try:
        status = os.lstat(checkpoint / ACKNOWLEDGEMENT_FILE)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def is_socket(path: Path) -> bool:
    """Return True if ``path`` is a socket. A symbolic link, which a workload can create, does not count."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def write_lease(folder: Path, until: float) -> None:
    """Write the time at which a run's lease ends (CLOCK_BOOTTIME).

    The file is overwritten in place, because a full disk must not end a workload.
    """
    _write_in_place(folder / "lease", f"{until:020.3f}")


def renew_lease(run: LocalRun, until: float) -> None:
    """Extend the lease of a run that has started. If the disk cannot be written, use the shim's memory.

    Raises OSError if neither is possible.
    """
    try:
        write_lease(run.folder, until)
    except OSError:
        _write_lease_to_memory(run, until)


def create_lease_memory() -> int:
    """Return the descriptor of a file in memory. The shim reads its lease there if the disk is read-only."""
    return os.memfd_create("gpupool-lease", os.MFD_CLOEXEC)


def _write_lease_to_memory(run: LocalRun, until: float) -> None:
    """Write the end of a lease into the memory file that the shim holds open. Raises OSError."""
    number = (read_json(run.folder / "spec.json") or {}).get("lease_fd")
    if number is None or not processes.is_alive(run.shim.get("pid", 0), run.shim.get("start_ticks", 0)):
        raise OSError(errno.ESRCH, "the shim has ended, or is of an earlier version")
    _write_in_place(Path(f"/proc/{run.shim['pid']}/fd/{number}"), f"{until:020.3f}")


def write_order(folder: Path, order: dict[str, Any]) -> None:
    """Write the orders to the shim of a run.

    The file is overwritten in place, because a workload that has filled the disk must still be stopped.
    """
    _write_in_place(folder / "order.json", json.dumps(order).ljust(ORDER_FILE_BYTES))


def write_log_mark(folder: Path, offset: int) -> None:
    """Record that the server has the log up to ``offset``.

    The file is not synced to the disk. If its content is lost, the log is sent again.
    """
    _write_in_place(folder / "log_sent.json", json.dumps({"offset": offset}).ljust(LOG_MARK_BYTES))


def reserve_exit_space(folder: Path) -> None:
    """Reserve disk space for the files of the run that must be written even on a full disk."""
    write_order(folder, {})
    (folder / "exit.room").write_bytes(b" " * EXIT_FILE_BYTES)
    write_log_mark(folder, 0)


def write_exit_file(folder: Path, ended: dict[str, Any]) -> None:
    """Write exit.json, the file that records the end of a run. On a full disk, use its reserved space.

    The agent counts the run's GPUs as held until this file exists.
    """
    try:
        write_json(folder / "exit.json", ended)
    except OSError as error:
        if error.errno != errno.ENOSPC or not (folder / "exit.room").exists():
            raise
        text = json.dumps({**ended, "error": ended["error"][: EXIT_FILE_BYTES // 8]})
        _write_in_place(folder / "exit.room", text.ljust(EXIT_FILE_BYTES))
        os.replace(folder / "exit.room", folder / "exit.json")


def _write_in_place(path: Path, text: str) -> None:
    """Overwrite a file of constant size, which needs no disk space.

    The file is not synced to the disk, because no run survives a crash of the host.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
    finally:
        os.close(descriptor)
