"""Attack running sites, let their parts hang, fail and be lost, and count what does not hold.

    ./run bench trust --json
    ./run bench trust --only attacks,revoke_ms --json

The hangs of the database and of the edge run beside each other on sites of their own. The other parts run one
after another meanwhile. Each part is a process; its output begins with its name.

A figure is null if its part failed; the reason is printed. With ``--only``, the JSON has only the figures of
these parts. ``benchmarks/trust_parts`` has the parts.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tools.paths import ROOT

SERVICES = ()
HANG_SECONDS = {"db_hang": (600, 180, 60), "edge_hang": (180, 60)}
SHORT_HANG_SECONDS = 10
START_SECONDS = 240  # a hang that has not begun by then no longer delays the start of the next one
STOP_SECONDS = 90
SITE_PARTS = ("connections", "revoke_ms", "deprovision_s", "cut_off_host_s", "attacks")
# The figures of each part. The part that is measured first comes first.
FIGURES = {
    "oidc": ("oidc",),
    "ldap": ("ldap",),
    "upgrade_lost": ("upgrade_lost",),
    "restore_s": ("restore_s", "lost_after_restore"),
    "failover_s": ("failover_s",),
    "connections": ("connections", "healthz_ms"),
    "revoke_ms": ("revoke_ms",),
    "deprovision_s": ("deprovision_s",),
    "cut_off_host_s": ("cut_off_host_s", "cut_off_limit_s"),
    "attacks": ("attacks", "held"),
    "db_hang": ("db_hang",),
    "edge_hang": ("edge_hang",),
}
ORDER = (
    *("attacks", "held", "oidc", "ldap", "deprovision_s", "revoke_ms", "db_hang", "edge_hang"),
    *("cut_off_host_s", "cut_off_limit_s", "connections", "healthz_ms", "restore_s", "lost_after_restore"),
    *("failover_s", "upgrade_lost"),
)
PARTS_WITH_PROCESS = {"upgrade_lost": "upgrade", "restore_s": "restore", "failover_s": "failover"}
SHORT_PARTS = ("attacks", "connections", "revoke_ms", "db_hang")


@dataclass(frozen=True)
class Step:
    """One process of the benchmark. ``name`` begins the lines of its output."""

    name: str
    arguments: tuple[str, ...]
    seconds: float  # the process is stopped after this time


def main(argv: list[str]) -> dict[str, Any]:
    """Run the chosen parts and return the figures."""
    parser = argparse.ArgumentParser(prog="./run bench trust")
    parser.add_argument("--only", type=_parts, default=tuple(FIGURES), help="comma-separated names of parts")
    parser.add_argument("--attacks", default="", help="comma-separated names of attacks; default: all")
    parser.add_argument(
        "--short",
        action="store_true",
        help="some attacks, fewer connections and sockets, and one hang of the database of 10 s",
    )
    options = parser.parse_args(argv)
    parts = tuple(part for part in options.only if not options.short or part in SHORT_PARTS)
    runner = StepRunner()
    hanging = threading.Thread(target=_run_hangs, args=(runner, parts, options.short), daemon=True)
    hanging.start()
    try:
        if not options.short:
            runner.hang_has_begun.wait(START_SECONDS)
        for step in _steps(parts, options.short, options.attacks):
            runner.run(step)
        hanging.join()
    except KeyboardInterrupt:
        runner.stop()
        raise
    return _figures(runner.figures, parts)


def _steps(parts: Sequence[str], short: bool, attacks: str) -> list[Step]:
    """Return the processes that run one after another."""
    steps = [
        Step(part, ("suite", "--only", part), 400)
        for part in FIGURES
        if part in ("oidc", "ldap") and part in parts
    ]
    steps += [Step(part, (name,), 400) for part, name in PARTS_WITH_PROCESS.items() if part in parts]
    if chosen := [part for part in SITE_PARTS if part in parts]:
        arguments = ["site", "--only", ",".join(chosen), "--attacks", attacks]
        steps.append(Step("site", (*arguments, *(["--short"] if short else [])), 700))
    return steps


def _run_hangs(runner: StepRunner, parts: Sequence[str], short: bool) -> None:
    """Start the hangs one after another, the longest first, and wait until all have ended."""
    threads = []
    for part, what in (("db_hang", "database"), ("edge_hang", "edge")):
        lengths = (SHORT_HANG_SECONDS,) if short else HANG_SECONDS[part]
        for seconds in lengths if part in parts else ():
            ready = runner.folder / f"{part}-{seconds}"
            arguments = ("hang", "--what", what, "--seconds", str(seconds), "--ready", str(ready))
            step = Step(f"{part} {seconds}", (*arguments, *(["--short"] if short else [])), seconds + 400)
            threads.append(threading.Thread(target=runner.run, args=(step,), daemon=True))
            threads[-1].start()
            deadline = time.monotonic() + START_SECONDS
            while threads[-1].is_alive() and not ready.exists() and time.monotonic() < deadline:
                time.sleep(0.2)
            runner.hang_has_begun.set()
    runner.hang_has_begun.set()
    for thread in threads:
        thread.join()


class StepRunner:
    """Runs processes, shows their output, and keeps their figures."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="gpupool-trust-run-")
        self.folder = Path(self._place.name)
        self.figures: dict[str, dict[str, Any]] = {}  # by the name of the step
        self.hang_has_begun = threading.Event()
        self._running: list[subprocess.Popen[str]] = []

    def run(self, step: Step) -> None:
        """Run one step, and keep its figures. A step that fails has none."""
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trust_parts", *step.arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._running.append(process)
        assert process.stdout is not None and process.stderr is not None
        shown = threading.Thread(target=_show, args=(step.name, process.stderr), daemon=True)
        shown.start()
        timer = threading.Timer(step.seconds, self._end, args=(process, step.name))
        timer.start()
        try:
            output = process.stdout.read()
            process.wait()
        finally:
            timer.cancel()
        shown.join(5)
        if process.returncode == 0:
            self.figures[step.name] = json.loads(output.splitlines()[-1])
        print(f"{step.name}: {time.monotonic() - began:.0f} s, status {process.returncode}", flush=True)

    def stop(self) -> None:
        """End all steps that run."""
        for process in self._running:
            if process.poll() is None:
                self._end(process, "interrupted")

    def _end(self, process: subprocess.Popen[str], name: str) -> None:
        print(f"{name}: stopped", flush=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _show(name: str, output: IO[str]) -> None:
    for line in output:
        print(f"[{name}] {line}", end="", flush=True)


def _figures(found: dict[str, dict[str, Any]], parts: Sequence[str]) -> dict[str, Any]:
    """Return the figures of the chosen parts in their order; null for a part that failed."""
    figures: dict[str, Any] = {}
    for part in parts:
        for name in FIGURES[part]:
            if part.endswith("_hang"):
                hangs = {
                    step.split()[1]: value for step, value in found.items() if step.startswith(f"{part} ")
                }
                figures[name] = dict(sorted(hangs.items(), key=lambda item: int(item[0]))) or None
            else:
                figures[name] = next((each[name] for each in found.values() if name in each), None)
    return {name: figures[name] for name in ORDER if name in figures}


def _parts(text: str) -> tuple[str, ...]:
    names = text.split(",")
    unknown = next((name for name in names if name not in FIGURES), None)
    if unknown is not None:
        raise argparse.ArgumentTypeError(f"{unknown[:60]!r} is none of {', '.join(FIGURES)}")
    return tuple(name for name in FIGURES if name in names)
