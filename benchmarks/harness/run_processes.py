"""Find and kill the processes of an installation's runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path


def processes_of_runs(folder: Path, run: str = "") -> dict[int, str]:
    """Return {pid: run} of the workload processes of the installation in ``folder``.

    If ``run`` is given, return only the processes of this run.
    """
    run_by_pid: dict[int, str] = {}
    agents_folder = f"{folder}/agents/".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
            command = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        name = next((v[12:].decode() for v in environment.split(b"\0") if v.startswith(b"GPUPOOL_RUN=")), "")
        if name and (agents_folder in command or _of_site(int(entry), folder)) and run in ("", name):
            run_by_pid[int(entry)] = name
    return run_by_pid


def _of_site(pid: int, folder: Path) -> bool:
    """Return True if a sandboxed process is a descendant of a shim of the installation in ``folder``."""
    for _ in range(8):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            command = Path(f"/proc/{parent}/cmdline").read_bytes()
        except (OSError, ValueError):
            return False
        if f"{folder}/agents/".encode() in command:
            return True
        if parent <= 1:
            return False
        pid = parent
    return False


def shims(folder: Path) -> dict[str, int]:
    """Return {run: pid} of the living shims of the installation in ``folder``."""
    pid_by_run: dict[str, int] = {}
    for path in folder.glob("agents/*/runs/*/shim.json"):
        try:
            shim = json.loads(path.read_text())
            fields = Path(f"/proc/{shim['pid']}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(fields[19]) == shim["start_ticks"] and fields[0] not in "ZX":
            pid_by_run[path.parent.name] = int(shim["pid"])
    return pid_by_run


def kill_marked_processes(folder: Path) -> None:
    """Kill every shim and every workload process of the installation in ``folder``."""
    for pid in [*processes_of_runs(folder), *shims(folder).values()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
