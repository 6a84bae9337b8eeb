"""Run the gates: checks of the whole code that run no tests."""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tools.console import RunError, say
from tools.environment import ensure_environment
from tools.paths import PYTHON, ROOT, VENV
from tools.throw_away import throw_away_stores

PACKAGES = ("agent", "benchmarks", "cli", "config", "demo", "portal", "scheduler", "telemetry", "tools")
LINE_LENGTH = 110
SHOWN_OUTPUT_CHARACTERS = 6000
PRODUCTION_SETTINGS = {
    "GPUPOOL_ENVIRONMENT": "production",
    "GPUPOOL_PORTAL_URL": "https://gpus.example.org",
    "GPUPOOL_EDGE_URL": "https://edge.example.org",
    "GPUPOOL_NOTEBOOK_DOMAIN": "notebooks.example.net",
}


@dataclass(frozen=True)
class Gate:
    """One check of the whole code. Its output is shown only if it fails."""

    name: str
    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    needs_database: bool = False


@dataclass(frozen=True)
class GateResult:
    """The result of one gate."""

    name: str
    passed: bool
    seconds: float
    output: str

    def show(self) -> None:
        """Print the result in one line, and the output of a gate that failed."""
        say(f"  {self.name:<34} {'ok' if self.passed else 'FAILED':<7} {self.seconds:6.1f} s")
        if not self.passed:
            say(self.output[-SHOWN_OUTPUT_CHARACTERS:])


def gates() -> list[Gate]:
    """Return all gates. The slowest gates come first."""
    python = str(PYTHON)
    manage = [python, "manage.py"]
    packages = [name for name in PACKAGES if (ROOT / name).exists()]
    line_length = ["--line-length", str(LINE_LENGTH)]
    return [
        Gate("types", [python, "-m", "mypy", *packages]),
        Gate("templates", [str(VENV / "bin" / "djlint"), "templates", "--lint", "--quiet"]),
        Gate("imports", [str(VENV / "bin" / "lint-imports"), "--no-cache"]),
        Gate("migrations", [*manage, "makemigrations", "--check", "--dry-run"], needs_database=True),
        Gate("settings", [*manage, "check", "--deploy", "--fail-level", "WARNING"], PRODUCTION_SETTINGS),
        Gate("lint", [python, "-m", "ruff", "check", "--quiet", "."]),
        Gate("format", [python, "-m", "ruff", "format", "--check", "--quiet", *line_length, "."]),
    ]


def run_gates(
    env: Mapping[str, str],
    chosen: Sequence[Gate],
    side_by_side: int,
) -> list[GateResult]:
    """Run at most ``side_by_side`` gates at the same time, and print each result when its gate has ended."""

    def run(gate: Gate) -> GateResult:
        result = _run_gate(gate, env)
        result.show()
        return result

    with ThreadPoolExecutor(side_by_side) as pool:
        return list(pool.map(run, chosen))


def _run_gate(gate: Gate, env: Mapping[str, str]) -> GateResult:
    begin = time.monotonic()
    done = subprocess.run(gate.command, cwd=ROOT, env={**env, **gate.env}, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    return GateResult(gate.name, done.returncode == 0, seconds, done.stdout + done.stderr)


def _chosen_gates(names: Sequence[str], by_name: Mapping[str, Gate]) -> list[Gate]:
    """Return the gates with these names, or all gates if ``names`` is empty.

    Raises RunError for an unknown name.
    """
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise RunError(f"{unknown[0]!r} is not a gate; allowed: {', '.join(by_name)}")
    return [by_name[name] for name in names or by_name]


def check_verb(arguments: list[str]) -> int:
    """Run the gates named by the arguments, or all gates."""
    by_name = {gate.name: gate for gate in gates()}
    parser = argparse.ArgumentParser(prog="./run check")
    parser.add_argument(
        "gates", nargs="*", metavar="GATE", help=f"gates to run; default: all of {', '.join(by_name)}"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="gates to run at the same time")
    options = parser.parse_args(arguments)
    chosen = _chosen_gates(options.gates, by_name)
    begin = time.monotonic()
    ensure_environment(with_tests=True)
    if not (ROOT / ".mypy_cache").exists() and any(gate.name == "types" for gate in chosen):
        say("  The type checker has no cache yet: its first run takes about a minute.")
    stores = ("postgres",) if any(gate.needs_database for gate in chosen) else ()
    with throw_away_stores(names=stores) as env:
        results = run_gates(env, chosen, side_by_side=max(1, options.jobs))
    failed = [result.name for result in results if not result.passed]
    verdict = f"FAILED: {', '.join(failed)}" if failed else "All gates passed"
    say(f"{verdict} ({time.monotonic() - begin:.0f} s)")
    return 1 if failed else 0
