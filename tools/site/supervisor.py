"""Start services, restart them when they end on their own, and stop them in order."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.console import RunError, last_lines
from tools.paths import ROOT
from tools.processes import die_with_parent, process_start

MAX_LOG_BYTES = 20_000_000
QUICK_RESTART_SECONDS = 0.1
FIRST_PAUSE_SECONDS = 0.2
CHECK_SECONDS = 0.1
LOG_CHECK_SECONDS = 2.0
LEFTOVER_SECONDS = 10
MAX_RESTARTS_WHILE_STARTING = 3
SHOWN_LOG_LINES = 15


@dataclass
class Service:
    """A program that is restarted when it ends on its own.

    If the program ends soon after each start, the pause before the next restart grows.
    """

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10
    steady_seconds: float = 5  # a program that ran for this long has started successfully
    longest_pause: float = 5
    once: bool = False
    keeps_children: bool = False
    options: dict[str, object] = field(default_factory=dict)
    on_success: Callable[[], None] = lambda: None

    process: subprocess.Popen[bytes] | None = None
    state: str = "stopped"
    started_at: float = 0.0
    restarts: int = 0
    pause: float = 0.0
    next_start: float = 0.0

    def start(self) -> None:
        """Start the program and append its output to its log."""
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # type: ignore[call-overload]
                self.command,
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                **self.options,
            )
        self.state, self.started_at = "running", time.monotonic()

    def limit_log(self) -> None:
        """Move the content of a log over MAX_LOG_BYTES to ``.log.1`` while the program writes it.

        The program appends to the open file, so the file is copied and emptied, not renamed. Lines that are
        written between the two steps are lost.
        """
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)

    def alive(self) -> bool:
        """Return True if the program runs."""
        return self.process is not None and self.process.poll() is None

    def check(self, now: float) -> bool:
        """Detect the end of the program, and restart the program after its pause.

        Returns True if the state of the service changed.
        """
        if self.state == "running" and not self.alive():
            assert self.process is not None
            self._kill_children()
            if self.once and self.process.returncode == 0:
                self.state = "done"
                self.on_success()
                return True
            # A program that ran well and then ended restarts at once. A program that cannot start waits
            # longer each time.
            if now - self.started_at > self.steady_seconds:
                self.pause = QUICK_RESTART_SECONDS
            else:
                self.pause = min(max(self.pause * 2, FIRST_PAUSE_SECONDS), self.longest_pause)
            self.state, self.next_start = "waiting", now + self.pause
            return True
        if self.state == "waiting" and now >= self.next_start:
            self.restarts += 1
            self.start()
            return True
        return False

    def _kill_children(self) -> None:
        """Kill the children of a service that has ended, because the restarted service starts new children.

        The children of an agent are kept, because workloads outlive their agent.
        """
        if self.process is None or self.keeps_children:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Send the stop signal to the program. `wait_stopped` waits for its end."""
        self.state = "stopped"
        if self.alive() and self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(self.stop_signal)

    def wait_stopped(self) -> None:
        """Wait until the program has ended. Kill it after `stop_seconds`."""
        if self.process is None:
            return
        try:
            self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._kill_children()

    def entry(self) -> dict[str, object]:
        """Return the service's entry in services.json."""
        pid = self.process.pid if self.process and self.alive() else None
        began = None if pid is None else process_start(pid)
        return {"state": self.state, "pid": pid, "began": began, "restarts": self.restarts}


class Supervisor:
    """A supervisor that starts, watches and stops the services of one state folder.

    It records the services in the file services.json of this folder.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.services: list[Service] = []
        self.stopping = False
        self.recorded = True  # services.json is up to date
        self.logs_limited_at = 0.0

    def add(self, service: Service) -> Service:
        """Start a service and keep it running."""
        self.services.append(service)
        service.start()
        self.record()
        return service

    def record(self) -> None:
        """Write services.json.

        If the write fails, for example on a full disk, `check` tries again.
        """
        entries = {service.name: service.entry() for service in self.services}
        place = self.folder / "services.json"
        new = place.with_suffix(".new")
        try:
            new.write_text(json.dumps({"url": self.url, "services": entries}))
            new.replace(place)
            self.recorded = True
        except OSError:
            self.recorded = False

    def check(self) -> None:
        """Restart services that have ended, and record changes."""
        now = time.monotonic()
        changes = [service.check(now) for service in self.services]
        if now - self.logs_limited_at > LOG_CHECK_SECONDS:
            self.logs_limited_at = now
            for service in self.services:
                service.limit_log()
        if any(changes) or not self.recorded:
            self.record()

    def wait_for(self, ready: Callable[[], bool], service: Service, seconds: float) -> None:
        """Wait until ``ready`` returns True, and check all services meanwhile.

        Raises RunError if ``service`` keeps ending, or does not answer within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if self.stopping:
                raise KeyboardInterrupt
            if service.restarts >= MAX_RESTARTS_WHILE_STARTING or time.monotonic() > deadline:
                shown = last_lines(service.log, SHOWN_LOG_LINES)
                raise RunError(f"{service.name} does not start; the end of its log:\n{shown}")
            time.sleep(0.05)

    def run(self) -> None:
        """Keep the services running until `stopping` is set."""
        while not self.stopping:
            self.check()
            time.sleep(CHECK_SECONDS)

    def stop(self, order: Sequence[Sequence[str]]) -> None:
        """Stop the services group by group, in this order. Services that are in no group are stopped first.

        While a service stops, it can still use the services of later groups.
        """
        named = {name for group in order for name in group}
        others = [service.name for service in self.services if service.name not in named]
        for group in ([*others], *order):
            members = [service for service in self.services if service.name in group]
            for service in members:
                service.stop()
            for service in members:
                service.wait_stopped()
        self.record()


def end_leftovers(folder: Path) -> None:
    """End the services that a killed supervisor has left running.

    A service is identified by pid and start time, because pids are reused.
    """
    place = folder / "services.json"
    if not place.exists():
        return
    try:
        entries = json.loads(place.read_text())["services"].values()
    except (ValueError, KeyError):
        return
    pids = [
        entry["pid"] for entry in entries if entry["pid"] and process_start(entry["pid"]) == entry["began"]
    ]
    for pid in pids:
        # On SIGINT, PostgreSQL shuts down fast and in order. The other services end on SIGINT too.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while any(process_start(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
