"""Test the package `tools/`: its imports, how it ends processes, and how it chooses tests for a change."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.changed_tests import Choice, choose_tests
from tools.gates import gates
from tools.testing import (
    COMPILE,
    LONG_PARTS,
    SHORT_PARTS,
    Part,
    _Command,
    _run_lanes,
    has_compiled_tests,
    selects_examples,
)
from tools.verbs import VERBS

IGNORES_SIGNALS = """
import signal, subprocess, sys, time

from tools.processes import descendants, end_remaining_descendants, ending_descendants

script = "trap '' TERM INT HUP; setsid sh -c 'sleep 600; true' & sleep 600; true"
with ending_descendants():
    subprocess.Popen(["sh", "-c", script], start_new_session=True)
    time.sleep(0.5)
    end_remaining_descendants(terminate_seconds=0.2)
print(len(descendants(__import__("os").getpid())))
"""


def test_processes_that_ignore_signals_are_killed(root: Path) -> None:
    command = [sys.executable, "-c", IGNORES_SIGNALS]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_tools_import_the_standard_library_only(root: Path) -> None:
    for path in (root / "tools").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            packages = {name.partition(".")[0] for name in names}
            assert packages <= {*sys.stdlib_module_names, "tools"}, path


def test_run_is_one_page_that_an_old_python_can_parse(root: Path) -> None:
    text = (root / "run").read_text()
    tree = ast.parse(text, feature_version=(3, 4))
    assert len(text.splitlines()) <= 80
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.AnnAssign)]
    assert not strings, "Python 3.5 has neither f-strings nor annotations of variables"
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= set(sys.stdlib_module_names), "tools/ is imported after the check only"


def test_an_old_python_is_replaced_by_a_newer_one(root: Path, tmp_path: Path) -> None:
    newer = tmp_path / "python3.14"
    newer.write_text('#!/bin/sh\necho "newer $@"\n')
    newer.chmod(0o755)
    script = (
        "import runpy, sys; sys.version_info = (3, 8, 0); "
        f"sys.argv = ['run', 'status', '--json']; runpy.run_path({str(root / 'run')!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=30)
    # `./run` calls the newer Python with "-c" first, to see if it works. Check only the output of the last
    # call.
    assert done.stdout.splitlines()[-1] == f"newer {root / 'run'} status --json"
    newer.unlink()
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed; this is 3.8" in done.stderr


def test_help_lists_every_verb(root: Path) -> None:
    page = (root / "run").read_text()
    assert not [verb for verb in VERBS if f"./run {verb} " not in page]


def test_pre_commit_runs_every_gate(root: Path) -> None:
    text = (root / ".pre-commit-config.yaml").read_text()
    assert not [gate.name for gate in gates() if f"./run check {gate.name}\n" not in text]


@pytest.mark.parametrize("parts", [SHORT_PARTS, LONG_PARTS], ids=["short", "long"])
def test_every_test_belongs_to_exactly_one_part(root: Path, parts: Sequence[Part]) -> None:
    """Check for each file: one part runs its tests with the marker ``site``, and one part its other tests."""
    for path in sorted(root.glob("tests/**/test_*.py")):
        file = str(path.relative_to(root))
        kinds = [part.markers for part in parts if part.chosen_paths([file])]
        other = [kind for kind in kinds if kind.endswith("not site")]
        sites = [kind for kind in kinds if kind not in other]
        assert len(other) == 1, (file, kinds)
        assert len(sites) == 1 or (not sites and "mark.site" not in path.read_text()), (file, kinds)


def test_no_test_is_outside_the_parts() -> None:
    assert {part.markers for part in SHORT_PARTS} == {"not long and not site", "site and not long"}
    assert {part.markers for part in LONG_PARTS} == {"(long or hypothesis) and not site", "long and site"}


def test_only_one_part_names_databases_after_its_processes() -> None:
    for parts in (SHORT_PARTS, LONG_PARTS):
        assert sum(part.database and part.processes > 1 for part in parts) == 1
        assert sum(part.database and part.processes == 1 for part in parts) <= 1


def test_one_process_compiles_the_modules_of_a_new_checkout(tmp_path: Path) -> None:
    assert not has_compiled_tests(tmp_path)
    compiled = tmp_path / "tests" / "scheduler" / "__pycache__" / "test_world.cpython-311-pytest-9.pyc"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert has_compiled_tests(tmp_path)
    assert Path(COMPILE[0]).name.startswith("python") and "--collect-only" in COMPILE


def test_lanes_run_at_the_same_time_and_their_commands_one_after_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run two lanes whose commands wait for files of each other, so that another order would never end."""

    def command(name: str, script: str) -> _Command:
        return _Command(name, ["sh", "-c", f"cd {tmp_path} && {script}"], dict(os.environ))

    wait = "while [ ! -e {} ]; do sleep 0.01; done"
    failed = _run_lanes(
        [
            [command("one", f"{wait.format('second')}; echo from one"), command("three", "exit 5")],
            [
                command("first", "touch first; echo from first; exit 1"),
                command("second", "test -e first && touch second && echo from second"),
            ],
        ]
    )
    assert failed == ["first"]
    shown = capfd.readouterr().out
    order = [shown.index(text) for text in ("from one", "from first", "from second")]
    assert order == sorted(order)


def test_a_part_runs_the_wanted_tests_that_belong_to_it() -> None:
    part = Part("tests", "not long", ("tests",), excluded=("tests/agent",))
    assert part.chosen_paths([]) == ["tests"]
    assert part.chosen_paths(["tests/agent/test_runs.py", "tests/core"]) == ["tests/core"]
    assert Part("sites", "site", ("tests/e2e",)).chosen_paths(["tests", "tests/house"]) == ["tests/e2e"]


@pytest.mark.parametrize(
    ("arguments", "selected"),
    [
        (["tests/core", "-q"], False),
        (["-m", "torch"], True),
        (["-m", "long and not site"], True),
        (["-m", "not long and not site", "tests/agent/test_examples.py"], False),
        (["tests/agent/test_examples.py", "-q"], True),
        (["tests/agent"], False),
    ],
)
def test_the_examples_environment_is_made_for_their_tests(arguments: list[str], selected: bool) -> None:
    assert selects_examples(arguments) is selected


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a small repository: two modules of which one imports the other, a page, and tests."""
    files = {
        "scheduler/__init__.py": "",
        "scheduler/low.py": "",
        "scheduler/high.py": "from scheduler import low\n",
        "agent/__main__.py": "",
        "agent/daemon.py": "",
        "demo/organisation.py": "",
        "portal/web/views.py": "",
        "templates/page.html": "",
        "tests/conftest.py": "",
        "tests/agent/test_daemon.py": "import agent.daemon\n",
        "tests/architecture/test_layers.py": "",
        "tests/demo/test_organisation.py": "",
        "tests/scheduler/test_high.py": "def test_it():\n    import scheduler.high\n",
        "tests/scheduler/test_other.py": "",
        "tests/portal/web/test_views.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "chosen"),
    [
        ("scheduler/low.py", ["tests/architecture", "tests/scheduler/test_high.py"]),
        ("agent/daemon.py", ["tests/agent", "tests/architecture"]),
        ("scheduler/removed.py", ["tests/architecture", "tests/scheduler"]),
        ("demo/organisation.py", ["tests/architecture", "tests/demo"]),
        ("portal/web/views.py", ["tests/architecture", "tests/portal/web"]),
        ("templates/page.html", ["tests/portal/web"]),
        ("tests/scheduler/test_other.py", ["tests/scheduler/test_other.py"]),
        ("tests/conftest.py", ["tests"]),
    ],
)
def test_a_change_selects_the_affected_tests(repository: Path, changed: str, chosen: list[str]) -> None:
    found = choose_tests(repository, [changed])
    if chosen == ["tests"]:
        chosen = sorted(str(path.relative_to(repository)) for path in repository.rglob("test_*.py"))
    assert found == [Choice(path, changed) for path in chosen]


def test_a_change_of_the_requirements_selects_all_tests(repository: Path) -> None:
    assert choose_tests(repository, ["requirements/base.txt"]) == [Choice("tests", "requirements/base.txt")]
