"""Run the tests: the short part with the gates, the long part, or the tests that a change touches."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.changed_tests import changed_files, choose_tests
from tools.console import say
from tools.environment import ensure_environment, ensure_examples_environment, ensure_test_programs
from tools.paths import PYTHON, ROOT
from tools.processes import run_interruptible
from tools.throw_away import throw_away_stores

FLAGS = ("--external", "--long", "--changed")
NOTHING_COLLECTED_STATUS = 5
SHOWN_CHOICES = 40
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
EXAMPLES_MARKERS = re.compile(r"(?P<negation>not\s+)?\b(long|torch|lightning|transformers|ray)\b")
EXAMPLES_MARKED = re.compile(r"pytest\.mark\.(torch|lightning|transformers|ray)\b")


@dataclass(frozen=True)
class Part:
    """Tests that are run together: chosen by a marker expression, in two processes or alone."""

    name: str
    markers: str
    alone: bool = False

    def run(self, env: Mapping[str, str], arguments: Sequence[str] = ()) -> bool:
        """Run the tests and return True if none fails. Their output goes straight to the caller's."""
        how = () if self.alone else SIDE_BY_SIDE
        pytest = [str(PYTHON), "-m", "pytest", *how, "-q", "--durations", "10", "-m", self.markers]
        status = run_interruptible([*pytest, *arguments], ROOT, env)
        return status in (0, NOTHING_COLLECTED_STATUS)


# Whole sites with a browser have the machine to themselves; everything else shares it.
SHORT_PARTS = (
    Part("tests", "not long and not site"),
    Part("tests of whole sites", "site and not long", alone=True),
)
LONG_PARTS = (
    Part("long tests", "long and not site"),
    Part("long tests of whole sites", "long and site", alone=True),
)


def test_verb(arguments: list[str]) -> int:
    """Run the short part and the gates; with --long, --changed or other arguments what they name."""
    flags = {argument for argument in arguments if argument in FLAGS}
    chosen = [argument for argument in arguments if argument not in (*FLAGS, "--")]
    ensure_environment(with_tests=True)
    external = "--external" in flags
    if "--changed" in flags:
        return _run_changed(external, chosen)
    if "--long" in flags:
        ensure_test_programs()
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
    """Return True if pytest's arguments name tests of the worked examples: by a marker or by their file."""
    after = dict(zip(arguments, arguments[1:]))
    if "-m" in after:
        return any(negation is None for negation in _examples_markers(after["-m"]))
    paths = [ROOT / argument.partition("::")[0] for argument in arguments]
    files = [path for path in paths if path.suffix == ".py" and path.is_file()]
    return any(EXAMPLES_MARKED.search(path.read_text()) for path in files)


def _examples_markers(expression: str) -> list[str | None]:
    """Return, for each marker of the worked examples in an expression of pytest, its "not " or None."""
    return [found["negation"] for found in EXAMPLES_MARKERS.finditer(expression)]


def _run_changed(external: bool, arguments: Sequence[str]) -> int:
    base, files = changed_files(ROOT)
    choices = choose_tests(ROOT, files)
    say(f"{len(files)} files differ from commit {base}; they touch {len(choices)} test files and folders")
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
    failed: list[str] = []
    with throw_away_stores(external) as env, _gates_beside(env, with_gates) as gates:
        for part in parts:
            if part.alone and not gates.wait():
                failed.append("gates")
            say(part.name.capitalize())
            if not part.run(env, arguments):
                failed.append(part.name)
    what = "All gates and tests" if with_gates else "All tests"
    verdict = f"FAILED: {', '.join(failed)}" if failed else f"{what} passed"
    say(f"{verdict} ({time.monotonic() - begin:.0f} s)")
    return 1 if failed else 0


class _Gates:
    """The gates, run by `./run check` beside the tests; their results are printed when all are done."""

    def __init__(self, process: subprocess.Popen[str] | None) -> None:
        self._process = process

    def wait(self) -> bool:
        """Wait for the gates and print their results. Returns True if all passed."""
        if self._process is None:
            return True
        output, _ = self._process.communicate()
        say("Gates")
        say(output.rstrip())
        passed = self._process.returncode == 0
        self._process = None
        return passed

    def end(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()


@contextlib.contextmanager
def _gates_beside(env: Mapping[str, str], wanted: bool) -> Iterator[_Gates]:
    """Run the gates one after the other, at a lower priority than the tests; end them with the block."""
    process = None
    if wanted:
        command = ["nice", "-n", "5", sys.executable, str(ROOT / "run"), "check", "--jobs", "1"]
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    gates = _Gates(process)
    try:
        yield gates
    finally:
        gates.end()
