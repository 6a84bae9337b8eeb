"""Start the processes of a site one by one. A process that ends is not restarted."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.processes import die_with_parent

STOP_SECONDS = 30
HEADER_GUARD = "config.http.slow_header_guard:HeaderTimeoutProtocol"


class SiteProcesses:
    """Named processes, each with a log in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], source: Path, env: Mapping[str, str]) -> None:
        """Start a process with the code in ``source``. It ends when this process ends."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=source, env=env, stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def kill(self, name: str) -> None:
        """Kill a process."""
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def stop(self, names: Sequence[str] = ()) -> None:
        """End processes, by default all. A process that does not end in time is killed."""
        ending = [self.running.pop(name) for name in names or list(self.running)]
        for process in ending:
            process.terminate()
        for process in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()

    def ended(self) -> list[str]:
        """Return the names of the processes that have ended by themselves."""
        return [name for name, process in self.running.items() if process.poll() is not None]


def web_command(port: int) -> list[str]:
    """Return the command of a web process."""
    web = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--http", HEADER_GUARD]
    return [*web, "--no-access-log", "--no-proxy-headers", "--port", str(port)]


def edge_command(port: int) -> list[str]:
    """Return the command of an edge process."""
    return [sys.executable, "-m", "portal.edge", "--port", str(port)]


def engine_command(name: str) -> list[str]:
    """Return the command of an engine. Two engines need different names."""
    celery = [sys.executable, "-m", "celery", "-A", "config.celery", "--skip-checks", "worker"]
    options = ["--without-gossip", "--without-mingle", "-n", f"{name}@%h", "-Q", "engine"]
    return [*celery, *options, "-c", "1", "--prefetch-multiplier", "1", "-l", "info"]


def worker_command() -> list[str]:
    """Return the command of the worker of the other queues."""
    celery = [sys.executable, "-m", "celery", "-A", "config.celery", "worker"]
    options = ["--without-gossip", "--without-mingle", "-n", "worker@%h"]
    return [*celery, *options, "-Q", "telemetry,money,notices,default", "-c", "1"]


def beat_command(folder: Path) -> list[str]:
    """Return the command of the scheduler of periodic tasks."""
    celery = [sys.executable, "-m", "celery", "-A", "config.celery", "beat"]
    return [*celery, "-s", str(folder / "beat-schedule"), "--pidfile="]
