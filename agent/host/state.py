"""Keeps the agent's state folder: the identity of this host, its history of starts, and its runs.

identity.json      credential of this host (mode 0600)
host.key           private key of this host (mode 0600)
edge               address of the server (the edge) that this host has joined
starts             random ids of the last starts of the agent
generations.json   the generations (numbers of runs) that were started, and the highest one per unit of a GPU
runs/<run>/        one folder per run, shared with its shim
spool/ health/     samples and events that the server has not confirmed
tools/             files that every workload can use: checkpoint command, helper module, notebook server
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.host.durable_files import (
    StateFolderError,
    overwrite_in_place,
    read_json_or_raise,
    write_json,
    write_text,
)
from agent.host.tool_files import install_tools

log = logging.getLogger("agent.host.state")

MAX_USED_GENERATIONS = 10_000
MAX_STARTS = 16
START_ID_LENGTH = 32  # characters


@dataclass
class HostIdentity:
    """The identity of this host on the server.

    ``instance`` is a random id that is created once. A copy of the state folder has the same id, so the
    server detects the copy.
    """

    instance: str
    host: str = ""
    credential: str = ""
    credential_expires_at: float | None = None


class StateFolder:
    """The state folder of one agent, locked while the agent runs. Raises StateFolderError."""

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
        self.missing_tools_reason = ""  # why this version's tools could not be installed
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
        """Store a new credential for this host."""
        self.identity.host = host
        self.identity.credential = credential
        self.identity.credential_expires_at = expires_at
        path = self.folder / "identity.json"
        try:
            write_json(path, asdict(self.identity))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # The disk is full. The server no longer accepts the previous credential, so store the new one in
            # the existing file.
            overwrite_in_place(path, json.dumps(asdict(self.identity)))

    def save_edge(self, edge: str) -> None:
        """Store the edge's address, so that a later start needs no ``--edge``."""
        line = edge + "\n"
        if not self.edge.exists() or self.edge.read_text() != line:
            write_text(self.edge, line)

    def install_tools(self) -> None:
        """Install this version's tools for workloads. On a full disk, set ``missing_tools_reason``."""
        self.missing_tools_reason = install_tools(self.tools)


class AgentStarts:
    """The random ids of the agent's starts: the last start that the server knows, and all later starts.

    After the state folder was copied, two agents have the same identity. From then on, their lists differ.
    The server rejects an agent whose list lacks the last start that the server knows. The file has a fixed
    size and is written in place, so that it can be written on a full disk too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.before = self._read()
        self.now = secrets.token_hex(START_ID_LENGTH // 2)
        self._write([*self.before[:1], *[*self.before[1:], self.now][-(MAX_STARTS - 1) :]])

    def known(self) -> None:
        """Record that the server knows the present start. Earlier starts are not reported any more."""
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
    """The generations that were started on this host.

    A generation is the number that the server gives to a run on this host. A unit's later runs have higher
    numbers, and each number is used for at most one start. If the file is damaged, every start is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._damage = ""
        try:
            data = read_json_or_raise(path) or {}
        except StateFolderError as damage:  # running workloads continue, but nothing starts
            data, self._damage = {}, str(damage)
        self._units: dict[str, int] = data.get("units", {})
        self._used: list[int] = data.get("used", [])

    def refusal(self, generation: int, units: list[str]) -> str:
        """Return the reason why a start with this generation is refused; '' if the start is allowed."""
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
        """Store the generation as used. Call this method before the run is started."""
        if self._damage:
            return  # nothing starts, and a new file would hide the damage
        for unit in units:
            self._units[unit] = max(generation, self._units.get(unit, generation))
        self._used = [*self._used, generation][-MAX_USED_GENERATIONS:]
        write_json(self._path, {"units": self._units, "used": self._used})
