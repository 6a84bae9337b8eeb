"""The operator's own programs around each run: a prolog before it starts, an epilog after it has ended. The shim runs them."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.isolation.launchers import SandboxRequest
from agent.protocol import RunWanted

DEFAULT_HOOK_TIMEOUT_SECONDS = 20.0  # less than a lease: until the epilog is over the run counts as not gone
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UnsafeHookError(ValueError):
    """This program can't be a hook: says why."""


@dataclass(frozen=True)
class Hooks:
    """Which programs this host runs around each run, and how long each may take."""

    prolog: Path | None = None
    epilog: Path | None = None
    seconds: float = DEFAULT_HOOK_TIMEOUT_SECONDS

    def spec(self, wanted: RunWanted, box: SandboxRequest) -> dict[str, Any]:
        """What the shim needs to run them; kept with the run, so that later options of the agent change nothing for it."""
        named = {
            name: str(path)
            for name, path in (("prolog", self.prolog), ("epilog", self.epilog))
            if path is not None
        }
        return (
            {"hooks": {**named, "seconds": self.seconds, "env": hook_environment(wanted, box)}}
            if named
            else {}
        )


def hook_environment(wanted: RunWanted, box: SandboxRequest) -> dict[str, str]:
    """The run as a hook finds it in its environment; docs/agent.md lists them. Paths are those of the host."""
    return {
        "PATH": SYSTEM_PATH,
        "LANG": "C.UTF-8",
        "GPUPOOL_RUN": wanted.run,
        "GPUPOOL_WORKLOAD": wanted.workload,
        "GPUPOOL_ATTEMPT": str(wanted.attempt),
        "GPUPOOL_KIND": wanted.kind,
        "GPUPOOL_OWNER": wanted.owner,
        "GPUPOOL_TEAM": wanted.team,
        "GPUPOOL_USER": str(os.getuid() if box.user is None else box.user),
        "GPUPOOL_GPUS": ",".join(wanted.unit_uuids),
        "GPUPOOL_DEVICES": ",".join(box.devices),
        "GPUPOOL_CPU_MILLI": str(wanted.cpu_milli),
        "GPUPOOL_MEMORY_MIB": str(wanted.memory_mib),
        "GPUPOOL_HOME": str(box.home),
        "GPUPOOL_CHECKPOINT_DIR": str(box.checkpoint),
        "GPUPOOL_TMP": str(box.tmp),
    }


def checked_hook_program(value: str) -> Path:
    """The program of a hook. Raises UnsafeHookError: it runs with the agent's powers, so nobody else may be able to change it."""
    path = Path(value)
    if not path.is_absolute():
        raise UnsafeHookError(f"{value!r} is not an absolute path")
    try:
        found = path.stat()
    except OSError as error:
        raise UnsafeHookError(f"{value!r}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or not os.access(path, os.X_OK):
        raise UnsafeHookError(f"{value!r} is not a program that can be executed")
    if _writable_by_others(found):
        raise UnsafeHookError(
            f"{value!r} can be changed by others: it has to be root's or the agent's, and written by its owner alone"
        )
    for folder in {*path.parents, *path.resolve().parents}:
        about = folder.stat()
        # Where a folder has the sticky bit (/tmp), others put files into it, but take none away.
        if _writable_by_others(about) and not (
            about.st_mode & stat.S_ISVTX and about.st_uid in (0, os.getuid())
        ):
            raise UnsafeHookError(
                f"{value!r} can be replaced by others: {str(folder)!r} is theirs, or they may write there"
            )
    return path


def _writable_by_others(found: os.stat_result) -> bool:
    """May anybody but root and the agent's user write there? Root's group is root."""
    by_group = bool(found.st_mode & 0o020) and (found.st_gid != 0 or stat.S_ISREG(found.st_mode))
    return by_group or bool(found.st_mode & 0o002) or found.st_uid not in (0, os.getuid())
