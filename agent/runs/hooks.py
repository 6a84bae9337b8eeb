"""Configures the operator's hooks: a prolog before the start of each run and an epilog after its end.

The shim runs these programs.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.host.system_path import SYSTEM_PATH
from agent.isolation.launchers import SandboxRequest
from agent.protocol import RunWanted

# Shorter than a lease, because a run still needs its lease during its epilog.
DEFAULT_HOOK_TIMEOUT_SECONDS = 20.0


class UnsafeHookError(ValueError):
    """A program must not be used as a hook. The message is the reason."""


@dataclass(frozen=True)
class Hooks:
    """The programs that this host runs around each run, and the time limit of each."""

    prolog: Path | None = None
    epilog: Path | None = None
    seconds: float = DEFAULT_HOOK_TIMEOUT_SECONDS

    def spec(self, wanted: RunWanted, box: SandboxRequest) -> dict[str, Any]:
        """Return the part of the launch spec that describes the hooks; {} without hooks.

        The spec is stored with the run. An agent that restarts with other options therefore does not change
        the hooks of the run.
        """
        programs = {
            name: str(path)
            for name, path in (("prolog", self.prolog), ("epilog", self.epilog))
            if path is not None
        }
        return (
            {"hooks": {**programs, "seconds": self.seconds, "env": hook_environment(wanted, box)}}
            if programs
            else {}
        )


def hook_environment(wanted: RunWanted, box: SandboxRequest) -> dict[str, str]:
    """Return the environment of a hook, as docs/agent.md lists it. Paths are paths of the host."""
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
    """Return ``value`` as the path of a hook.

    Raises UnsafeHookError if ``value`` is not the absolute path of a program, or if other users could change
    the program. The check is needed because a hook runs with the privileges of the agent.
    """
    path = Path(value)
    if not path.is_absolute():
        raise UnsafeHookError(f"{value!r} is not an absolute path")
    try:
        status = path.stat()
    except OSError as error:
        raise UnsafeHookError(f"{value!r}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.X_OK):
        raise UnsafeHookError(f"{value!r} is not a program that can be executed")
    if _writable_by_others(status):
        raise UnsafeHookError(
            f"{value!r} can be changed by others: its owner must be root or the agent's user, "
            "and only the owner may write to it"
        )
    for folder in {*path.parents, *path.resolve().parents}:
        folder_status = folder.stat()
        # A folder with the sticky bit, such as /tmp, is allowed. Other users cannot replace files in it.
        if _writable_by_others(folder_status) and not (
            folder_status.st_mode & stat.S_ISVTX and folder_status.st_uid in (0, os.getuid())
        ):
            raise UnsafeHookError(
                f"{value!r} can be replaced by others: they own {str(folder)!r} or may write to it"
            )
    return path


def _writable_by_others(status: os.stat_result) -> bool:
    """Return True if a user other than root and the agent's user may write to the file or folder.

    For a folder, members of root's group count as root.
    """
    by_group = bool(status.st_mode & 0o020) and (status.st_gid != 0 or stat.S_ISREG(status.st_mode))
    return by_group or bool(status.st_mode & 0o002) or status.st_uid not in (0, os.getuid())
