"""Run one benchmark with the throw-away services that it needs, and end all processes that it started."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tools.console import RunError, last_lines, run_quietly, wait_until
from tools.environment import ensure_environment
from tools.paths import PYTHON, ROOT
from tools.ports import free_port
from tools.processes import ending_descendants, run_interruptible
from tools.service_environment import environment_of_site, path_with_environment
from tools.throw_away import throw_away_stores

BENCHMARKS = ROOT / "benchmarks"
STORES = ("postgres", "valkey")
DEMO_START_SECONDS = 180
DEMO_STOP_SECONDS = 90


def bench_verb(arguments: list[str]) -> int:
    """Run the benchmark named by the first argument, with the other arguments."""
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if not path.stem.startswith("_"))
    if not arguments or arguments[0] not in names:
        given = f"{arguments[0]!r} is not a benchmark" if arguments else "name a benchmark"
        raise RunError(f"{given}; allowed: {', '.join(names) or 'none'}")
    name, rest = arguments[0], arguments[1:]
    ensure_environment()
    services = declared_services(BENCHMARKS / f"{name}.py")
    command = [str(PYTHON), "-m", "benchmarks", name, *rest]
    with ending_descendants():
        return _run_with_services(command, services)


def _run_with_services(command: list[str], services: tuple[str, ...]) -> int:
    if "demo" in services:
        return _run_on_a_demo(command)
    stores = [name for name in STORES if name in services]
    if not stores:
        return run_interruptible(command, ROOT, reaps_orphans=True)
    with throw_away_stores(names=stores) as env:
        if "postgres" in stores:
            run_quietly([str(PYTHON), "manage.py", "migrate", "-v", "0", "--skip-checks"], cwd=ROOT, env=env)
        return run_interruptible(command, ROOT, env, reaps_orphans=True)


def declared_services(module: Path) -> tuple[str, ...]:
    """Return the constant SERVICES of a benchmark, without importing the module. Raises RunError."""
    for node in ast.parse(module.read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "SERVICES":
            return tuple(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    lacks = "lacks the constant SERVICES: the throw-away services it needs, or ()"
    raise RunError(f"{module.name} {lacks}")


def _run_on_a_demo(command: list[str]) -> int:
    """Run the benchmark on a demo in a temporary folder, without the simulated past."""
    folder = Path(tempfile.mkdtemp(prefix="gpupool-bench-"))
    log = folder.with_suffix(".log")
    demo = [sys.executable, str(ROOT / "run"), "demo", "--state", str(folder), "--port", str(free_port())]
    with open(log, "wb") as output:
        site = subprocess.Popen([*demo, "--no-history"], stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_for_demo(site, log)
        return run_interruptible(command, ROOT, _environment_for(folder), reaps_orphans=True)
    finally:
        site.terminate()
        site.wait(DEMO_STOP_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)
        log.unlink(missing_ok=True)


def _wait_for_demo(site: subprocess.Popen[bytes], log: Path) -> None:
    try:
        wait_until(
            lambda: "is ready" in log.read_text(), "the demo", DEMO_START_SECONDS, lambda: site.poll() is None
        )
    except RunError as error:
        raise RunError(f"{error}:\n{last_lines(log, 20)}") from None


def _environment_for(folder: Path) -> Mapping[str, str]:
    django = {"DJANGO_SETTINGS_MODULE": "config.settings", "PATH": path_with_environment()}
    return {**os.environ, **environment_of_site(folder), **django}
