"""Run a small pool of real processes: an edge, an engine and agents.

The processes use the database and the Valkey of the environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ProcessStartTimeout(Exception):
    """Raised when a process of the pool does not start in time.

    The message contains the last lines of the process's log.
    """


class SmallPool:
    """The processes of the pool. Each has a log in ``folder``.

    ``environment`` has the GPUPOOL_* settings and the addresses of the database and of Valkey.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, **environment, "DJANGO_SETTINGS_MODULE": "config.settings"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Start ``python -m command`` in its own process group."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=environment if environment is not None else self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_edge(self) -> None:
        """Start the edge at GPUPOOL_EDGE_URL and wait until it answers."""
        self.start("edge", "portal.edge")
        self.wait("edge", lambda: _answers(self.environment["GPUPOOL_EDGE_URL"] + "/healthz"))

    def start_engine(self) -> None:
        """Start the engine as ./run does, and wait until it is ready."""
        worker = (
            "celery",
            "-A",
            "config.celery",
            "worker",
            "--without-gossip",
            "--without-mingle",
            "-l",
            "info",
        )
        self.start("engine", *worker, "-n", f"engine-{os.getpid()}@%h", "-Q", "engine", "-c", "1")
        self.wait("engine", lambda: " ready." in self.log("engine"))

    def start_agent(self, host: str, token: str, simulate: str) -> None:
        """Start an agent for ``host`` with simulated GPUs. ``simulate`` is for example ``2xH100-80GB``.

        The agent does not get the settings of the servers.
        """
        kept = {
            name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        self.start(
            f"agent-{host}",
            "agent",
            "run",
            "--state",
            str(self.folder / host),
            "--host",
            host,
            "--join-token",
            token,
            "--edge",
            self.environment["GPUPOOL_EDGE_URL"],
            "--simulate",
            simulate,
            "--on-exit",
            "stop",
            environment={**kept, "PATH": path, "PYTHONUNBUFFERED": "1"},
        )

    def log(self, name: str) -> str:
        """Return the log of a process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str, condition: Callable[[], bool], seconds: float = 40) -> None:
        """Wait until ``condition()`` is true.

        Raises ProcessStartTimeout after ``seconds``, or if the process ``name`` ends.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if self.processes[name].poll() is not None or time.monotonic() > deadline:
                raise ProcessStartTimeout(f"{name}:\n{self.log(name)[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End every process. Agents end first, because they stop their workloads."""
        for name in sorted(self.processes):
            self._end(self.processes[name])

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@contextmanager
def running_pool(folder: Path, environment: Mapping[str, str]) -> Iterator[SmallPool]:
    """Run an edge and an engine in this context. The caller may start agents."""
    pool = SmallPool(folder, environment)
    try:
        pool.start_edge()
        pool.start_engine()
        yield pool
    finally:
        pool.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
