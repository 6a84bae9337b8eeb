"""Run the tests: the short part with the gates, the long part, or the tests that a change affects."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO

from tools.changed_tests import changed_files, choose_tests
from tools.console import say
from tools.environment import (
    ensure_canaille,
    ensure_environment,
    ensure_examples_environment,
    ensure_ldap_for_tests,
    ensure_test_programs,
)
from tools.paths import PYTHON, ROOT
from tools.processes import be_interrupted_with_parent, interrupt
from tools.throw_away import throw_away_stores

FLAGS = ("--external", "--long", "--changed")
NOTHING_COLLECTED_STATUS = 5
PASSED = (0, NOTHING_COLLECTED_STATUS)
# The gates run one after another, at a lower priority than the tests.
GATES = ("nice", "-n", "5", sys.executable, str(ROOT / "run"), "check", "--jobs", "1")
SHOWN_CHOICES = 40
# In a new checkout, each process of pytest would compile all modules. One collection compiles them for all.
COMPILE = (str(PYTHON), "-m", "pytest", "-p", "no:terminal", "--collect-only", "tests")
# The database address of parts without a database. A test that does need a database fails at once.
NO_DATABASE_URL = "postgresql://no-database.invalid/none"
EXAMPLES_MARKERS = re.compile(r"(?P<negation>not\s+)?\b(long|torch|lightning|transformers|ray)\b")
EXAMPLES_MARKED = re.compile(r"pytest\.mark\.(torch|lightning|transformers|ray)\b")


@dataclass(frozen=True)
class Part:
    """Tests for one call of pytest: the tests in ``paths`` that match the marker expression ``markers``.

    The parts of one lane run one after another. The lanes run at the same time. Test databases are named
    after the worker processes of pytest. Therefore only one part may have both a database and several
    processes, and only one may have a database and one process.
    """

    name: str
    markers: str
    paths: tuple[str, ...] = ("tests",)
    excluded: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    processes: int = 1
    database: bool = True
    lane: int = 1

    def chosen_paths(self, wanted: Sequence[str]) -> list[str]:
        """Return the files and folders of this part that are within ``wanted``.

        If ``wanted`` is empty, return all folders of this part.
        """
        found = {narrower(path, other) for path in self.paths for other in wanted or [path]}
        return sorted(path for path in found if path and not any(is_within(path, e) for e in self.excluded))

    def command(self, options: Sequence[str], paths: Sequence[str]) -> list[str]:
        """Return the pytest command for these files and folders, without the excluded paths."""
        how = ["-n", str(self.processes), "--dist", "loadgroup", "--no-loadscope-reorder"]
        ignored = [f"--ignore={path}" for path in self.excluded]
        chosen = [*(how if self.processes > 1 else []), *ignored, "-m", self.markers, *self.options]
        return [str(PYTHON), "-m", "pytest", "-q", "--durations", "10", *chosen, *options, *paths]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**env} if self.database else {**env, "DATABASE_URL": NO_DATABASE_URL}


def is_within(path: str, folder: str) -> bool:
    return PurePath(path).is_relative_to(folder)


def narrower(one: str, other: str) -> str | None:
    """Return the path that is within the other one; None if neither path is within the other."""
    if is_within(one, other):
        return one
    return other if is_within(other, one) else None


# Tests of agents and of whole sites wait most of the time, so they run at the same time as the other tests.
# They run one after another, because they depend on timeouts, such as the end of a lease.
MAIN_JOB = "tests/e2e/test_main_job.py"
SITES = ("tests/benchmarks", "tests/e2e", "tests/house")
AGENTS = "tests/agent"
SHORT_PARTS = (
    Part("tests", "not long and not site", excluded=(AGENTS,), processes=3),
    Part("tests of agents", "not long and not site", (AGENTS,), processes=4, database=False, lane=2),
    Part("main job", "site and not long", (MAIN_JOB,), database=False, lane=2),
    Part("tests of whole sites", "site and not long", SITES, (MAIN_JOB,), lane=2),
)
LONG_PARTS = (
    Part(
        "long tests and properties with all examples",
        "(long or hypothesis) and not site",
        options=("--hypothesis-profile", "full"),
        processes=3,
    ),
    Part("long tests of whole sites", "long and site", SITES, database=False),
)


def test_verb(arguments: list[str]) -> int:
    """Run the short part and the gates.

    With --long, --changed or other arguments, run only the tests that these select, without the gates.
    """
    flags = {argument for argument in arguments if argument in FLAGS}
    chosen = [argument for argument in arguments if argument not in (*FLAGS, "--")]
    ensure_environment(with_tests=True)
    external = "--external" in flags
    if "--changed" in flags:
        return _run_changed(external, chosen)
    if "--long" in flags:
        ensure_test_programs()
        ensure_canaille()
        ensure_ldap_for_tests()
        ensure_examples_environment()
        return _run_parts(LONG_PARTS, external, chosen)
    if chosen:
        return _run_pytest(external, chosen)
    ensure_test_programs()
    return _run_parts(SHORT_PARTS, external, with_gates=True)


def _run_pytest(external: bool, arguments: Sequence[str]) -> int:
    if selects_examples(arguments):
        ensure_examples_environment()
    with throw_away_stores(external) as env:
        return subprocess.run([str(PYTHON), "-m", "pytest", *arguments], cwd=ROOT, env=env).returncode


def selects_examples(arguments: Sequence[str]) -> bool:
    """Return True if pytest's arguments select tests of the worked examples, by marker or by file."""
    after = dict(zip(arguments, arguments[1:]))
    if "-m" in after:
        return any(negation is None for negation in _examples_markers(after["-m"]))
    paths = [ROOT / argument.partition("::")[0] for argument in arguments]
    files = [path for path in paths if path.suffix == ".py" and path.is_file()]
    return any(EXAMPLES_MARKED.search(path.read_text()) for path in files)


def _examples_markers(expression: str) -> list[str | None]:
    """Return one item for each marker of the worked examples in a marker expression of pytest.

    The item is "not " if ``not`` precedes the marker, otherwise None.
    """
    return [found["negation"] for found in EXAMPLES_MARKERS.finditer(expression)]


def _run_changed(external: bool, arguments: Sequence[str]) -> int:
    base, files = changed_files(ROOT)
    choices = choose_tests(ROOT, files)
    say(f"{len(files)} files differ from commit {base}; they affect {len(choices)} test files and folders")
    for choice in choices[:SHOWN_CHOICES]:
        say(f"  {choice.path:<60} {choice.reason}")
    if len(choices) > SHOWN_CHOICES:
        say(f"  and {len(choices) - SHOWN_CHOICES} more")
    if not choices:
        return 0
    return _run_parts(SHORT_PARTS, external, [*arguments, *(choice.path for choice in choices)])


def _run_parts(
    parts: Sequence[Part], external: bool, arguments: Sequence[str] = (), with_gates: bool = False
) -> int:
    begin = time.monotonic()
    wanted = [argument for argument in arguments if is_within(argument, "tests")]
    options = [argument for argument in arguments if argument not in wanted]
    with throw_away_stores(external) as env:
        lanes: dict[int, list[_Command]] = {}
        for part in parts:
            if paths := part.chosen_paths(wanted):
                command = _Command(part.name, part.command(options, paths), part.environment(env))
                lanes.setdefault(part.lane, []).append(command)
        if not wanted and not has_compiled_tests(ROOT):
            lanes[1].insert(0, _Command("compilation of all modules", COMPILE, env))
        gates = [[_Command("gates", GATES, env)]] if with_gates else []
        failed = _run_lanes([*lanes.values(), *gates])
    what = "All gates and tests" if with_gates else "All tests"
    verdict = f"FAILED: {', '.join(failed)}" if failed else f"{what} passed"
    say(f"{verdict} ({time.monotonic() - begin:.0f} s)")
    return 1 if failed else 0


def has_compiled_tests(root: Path) -> bool:
    """Return True if pytest has already compiled the test modules of this checkout."""
    return any((root / "tests" / "scheduler" / "__pycache__").glob("test_*.pyc"))


@dataclass(frozen=True)
class _Command:
    name: str
    arguments: Sequence[str]
    env: Mapping[str, str]

    @contextlib.contextmanager
    def running(self, output: IO[bytes] | None) -> Iterator[subprocess.Popen[bytes]]:
        """Run the command during the block. Interrupt it if it still runs at the end of the block."""
        process = subprocess.Popen(
            self.arguments,
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=be_interrupted_with_parent,
        )
        try:
            yield process
        finally:
            interrupt(process)


def _run_lanes(lanes: Sequence[Sequence[_Command]]) -> list[str]:
    """Run the lanes at the same time, and the commands of each lane one after another.

    The output of the first lane is shown while its commands run. The output of another command is shown when
    this command and the first lane have ended. Returns the names of the commands that failed.
    """
    failed: list[str] = []
    ended: list[tuple[str, IO[bytes]]] = []
    first_lane_runs = True
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as running:

        def start_next(rest: list[_Command], is_shown: bool) -> None:
            command = rest.pop(0)
            output = None if is_shown else stack.enter_context(tempfile.TemporaryFile())
            if is_shown:
                say(command.name.capitalize())
            process = stack.enter_context(command.running(output))
            running.register(
                os.pidfd_open(process.pid), selectors.EVENT_READ, (command, process, output, rest)
            )

        for number, lane in enumerate(lanes):
            start_next(list(lane), is_shown=number == 0)
        while running.get_map():
            for key, _ in running.select():
                command, process, output, rest = key.data
                running.unregister(key.fd)
                os.close(key.fd)
                if process.wait() not in PASSED:
                    failed.append(command.name)
                if output is not None:
                    ended.append((command.name, output))
                if rest:
                    start_next(rest, is_shown=output is None)
                elif output is None:
                    first_lane_runs = False
            while ended and not first_lane_runs:
                _show(*ended.pop(0))
    return failed


def _show(name: str, output: IO[bytes]) -> None:
    output.seek(0)
    say(name.capitalize())
    say(output.read().decode(errors="replace").rstrip())
