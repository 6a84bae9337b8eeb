"""The agent's state folder: who this host is, what it has ever started, and where its runs live.

identity.json      credential of this host (0600)
host.key           private half of its key pair (0600)
edge               where this host has joined
starts             which starts of an agent this folder has seen
generations.json   the highest generation ever started, per unit
runs/<run>/        one folder per run, shared with its shim
spool/ health/     what the server has not confirmed yet
tools/             what is put into every workload's reach: the checkpoint command, the helper module, the notebook server
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import pkgutil
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger("agent.host.state")

MAX_USED_GENERATIONS = 10_000
MAX_STARTS = 16
START_ID_LENGTH = 32  # characters
# The modules of agent/shim, which lie in tools/shim as that package again: so a shim needs nothing of the installation.
SHIM_MODULES = (
    "__init__",
    "guard",
    "hook",
    "libc",
    "lifecycle_rules",
    "log_writer",
    "notice_server",
    "process_tree",
    "run_files",
    "socket_filter",
    "supervisor",
    "workload_entry",
)

TOOL_FILES = (  # name in tools/, file of this package, mode
    ("shim/__main__.py", "shim/__main__.py", 0o600),
    ("shim/agent/__init__.py", "__init__.py", 0o600),
    *((f"shim/agent/shim/{name}.py", f"shim/{name}.py", 0o600) for name in SHIM_MODULES),
    ("bin/gpupool", "workload/gpupool.sh", 0o755),
    ("python/gpupool_contract.py", "workload/contract.py", 0o644),
    ("notebook/gpupool_notebook.py", "notebook/jupyterlab.py", 0o644),
    ("notebook/gpupool_identity.py", "notebook/edge_identity.py", 0o644),
)


class StateFolderError(Exception):
    """The state folder can't be used: says why in one line."""


def write_json(path: Path, value: Any) -> None:
    """Atomic and durable: after a crash there is the old content or the new."""
    write_text(path, json.dumps(value))


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Like ``write_json``, for text."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        new.unlink(missing_ok=True)
        raise
    os.replace(new, path)
    fsync_folder(path.parent)


def overwrite_in_place(path: Path, text: str) -> None:
    """Into the room that a small file has already, which a full disk does not refuse; a crash in between may spoil it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Make renames and deletions in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """The value in ``path``, or None where there is no such file or it is not whole."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def read_json_or_raise(path: Path) -> Any:
    """Like ``read_json``, for what holds a fence: only a file that is not there may count as nothing. Raises StateFolderError."""
    value = read_json(path)
    if value is None and path.exists():
        raise StateFolderError(
            f"{path} is damaged: what it kept is not known and must not count as nothing. Restore it from a copy"
        )
    return value


def boot_id() -> str:
    """Random per boot of the kernel: a new one proves that nothing of before runs any more."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def log_disk_errors(what: str) -> Iterator[None]:
    """A full or broken disk is said, and does not end the agent: it keeps the leases of what runs."""
    try:
        yield
    except OSError as error:
        log.error("%s could not be written: %s", what, error)


@dataclass
class HostIdentity:
    """What this host is to the server. ``instance`` is made once: a copied state folder shows as a clone."""

    instance: str
    host: str = ""
    credential: str = ""
    credential_expires_at: float | None = None


class StateFolder:
    """The folder, held by one agent at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            self.runs.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateFolderError(f"--state: {folder} can't be used: {error.strerror}") from None
        self._lock = open(folder / "agent.lock", "w")  # noqa: SIM115 - held for the life of the process
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateFolderError(f"--state: another agent already uses {folder}") from None
        self.missing_tools_reason = (
            ""  # why this version's could not be laid out; those of an earlier one are left as they were
        )
        self.identity = self._load_identity()
        self.generations = Generations(folder / "generations.json")
        self.starts = AgentStarts(folder / "starts")

    @property
    def key(self) -> Path:
        return self.folder / "host.key"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def tools(self) -> Path:
        return self.folder / "tools"

    @property
    def edge(self) -> Path:
        return self.folder / "edge"

    def _load_identity(self) -> HostIdentity:
        data = read_json_or_raise(self.folder / "identity.json")
        if data:
            return HostIdentity(**data)
        identity = HostIdentity(instance=secrets.token_hex(16))
        write_json(self.folder / "identity.json", asdict(identity))
        return identity

    def remember(self, *, host: str, credential: str, expires_at: float | None) -> None:
        """Keep a new credential for this host."""
        self.identity.host = host
        self.identity.credential = credential
        self.identity.credential_expires_at = expires_at
        path = self.folder / "identity.json"
        try:
            write_json(path, asdict(self.identity))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # The server takes the one before no more: an agent that starts again has to find this one also after a full disk.
            overwrite_in_place(path, json.dumps(asdict(self.identity)))

    def save_edge(self, edge: str) -> None:
        """Keep where this host has joined, so that a later start needs no address."""
        line = edge + "\n"
        if not self.edge.exists() or self.edge.read_text() != line:
            write_text(self.edge, line)

    def install_tools(self) -> None:
        """Put this version's tools where workloads reach them. Running workloads keep what they have opened. On a full disk all of
        an earlier version's stay, and nothing starts by them (``lacks_tools``): a set of two versions would fit nobody."""
        written: list[tuple[Path, Path]] = []
        try:
            for name, resource, mode in TOOL_FILES:
                content = pkgutil.get_data("agent", resource)
                if content is None:
                    raise StateFolderError(
                        f"this installation of the agent lacks {resource}: install it again"
                    )
                path = self.tools / name
                if path.exists() and path.read_bytes() == content and path.stat().st_mode & 0o777 == mode:
                    continue  # nothing to write: the agent comes back also on a full disk
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
                new = path.with_name(f".{path.name}.new")
                written.append((new, path))
                write_text(new, content.decode(), mode)
                new.chmod(mode)
        except OSError as error:
            for new, _ in written:
                new.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.missing_tools_reason = str(error.strerror)
            log.error(
                "the tools of this version can't be laid out, and nothing starts before they are: %s",
                error.strerror,
            )
            return
        for new, path in written:
            os.replace(new, path)
            fsync_folder(path.parent)
        (self.tools / "shim.py").unlink(missing_ok=True)  # of an earlier version; what runs by it has read it
        self.missing_tools_reason = ""


class AgentStarts:
    """Which starts this folder has seen: the last one that the server knows of, and those since. A copy of the folder goes a way of
    its own from here, so that of two agents with one identity the server tells whose folder saw the other's start.

    Written in place and always as long, so that a full disk changes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before = self._read()
        self.now = secrets.token_hex(START_ID_LENGTH // 2)
        self._write([*self.before[:1], *[*self.before[1:], self.now][-(MAX_STARTS - 1) :]])

    def known(self) -> None:
        """The server knows of this start: those before it are told no more."""
        if self.before != [self.now]:
            self.before = [self.now]
            self._write(self.before)

    def _read(self) -> list[str]:
        try:
            words = self._path.read_text(errors="replace").split()
        except FileNotFoundError:
            return []
        return [word for word in words if len(word) == START_ID_LENGTH and word.isalnum()]

    def _write(self, starts: list[str]) -> None:
        empty = "-" * START_ID_LENGTH
        text = "\n".join([*starts, *[empty] * (MAX_STARTS - len(starts))]) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, text.encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Generations:
    """What has been started, for ever: a unit's generation only grows, and one that was used never starts again. Where that is
    damaged, every start is refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._damage = ""
        try:
            data = read_json_or_raise(path) or {}
        except StateFolderError as damage:  # what runs is kept; nothing starts
            data, self._damage = {}, str(damage)
        self._units: dict[str, int] = data.get("units", {})
        self._used: list[int] = data.get("used", [])

    def refusal(self, generation: int, units: list[str]) -> str:
        """Why a start with this generation is refused, in words; '' when it may go on."""
        if self._damage:
            return self._damage
        if generation in self._used:
            return f"generation {generation} was used before"
        for unit in units:
            highest = self._units.get(unit)
            if highest is not None and generation <= highest:
                return f"generation {generation} is not above {highest}, the last one of {unit}"
        return ""

    def use(self, generation: int, units: list[str]) -> None:
        """Mark as used, on disk, before anything starts."""
        if self._damage:
            return  # nothing does, and a new file would hide what the old one lost
        for unit in units:
            self._units[unit] = max(generation, self._units.get(unit, generation))
        self._used = [*self._used, generation][-MAX_USED_GENERATIONS:]
        write_json(self._path, {"units": self._units, "used": self._used})
