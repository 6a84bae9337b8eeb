"""Choose the tests that a change affects.

Tests are chosen by the imports between modules. But pages, endpoints, commands and templates are used by
address or by name, without an import. For a change of any file, the tests of the folder with the same name
are therefore chosen too. Example: for a change in telemetry/money, tests/telemetry/money is chosen.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.console import RunError

MAIN_BRANCHES = ("origin/main", "main")
ALL_TESTS = "tests"
CHANGES_ALL_TESTS = ("pyproject.toml", "requirements")
READS_ALL_SOURCES = "tests/architecture"
# By folder of the code: the folder of its tests, if it is not tests/FOLDER.
TESTS_OF_FOLDER = {
    ".ci": "tests/house",
    "config": "tests/house",
    "deploy": "tests/agent",
    "examples": "tests/agent",
    "run": "tests/house",
    "scheduler/core": "tests/core",
    "static": "tests/portal/web",
    "templates": "tests/portal/web",
    "tools": "tests/house",
}


@dataclass(frozen=True)
class Choice:
    """A test file or folder to run. ``reason`` is the changed file for which it was chosen."""

    path: str
    reason: str


def changed_files(root: Path) -> tuple[str, list[str]]:
    """Return the base commit, and the files that differ from it, including untracked files.

    On a branch the base is the commit at which the branch left main; on main the base is HEAD.
    """
    base = _git(root, "rev-parse", "HEAD").strip()
    for name in MAIN_BRANCHES:
        found = subprocess.run(["git", "merge-base", "HEAD", name], cwd=root, capture_output=True, text=True)
        if found.returncode == 0:
            base = found.stdout.strip()
            break
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", base).split("\0")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return base[:12], sorted({name for name in (*changed, *untracked) if name})


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        raise RunError(f"git {arguments[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def choose_tests(root: Path, changed: Iterable[str]) -> list[Choice]:
    """Return the test files and folders that the changed files affect."""
    changed = list(changed)
    chosen: dict[str, str] = {}
    importers = _importers(root, changed)
    for name in changed:
        if PurePosixPath(name).parts[0] in CHANGES_ALL_TESTS:
            return [Choice(ALL_TESTS, name)]
        found = set(_tests_importing(name, importers)) if name.endswith(".py") else set()
        if _is_test(name) and (root / name).exists():
            found.add(name)
        for path in (*sorted(found), *_tests_by_folder(root, name, bool(found))):
            chosen.setdefault(path, name)
    folders = {path for path in chosen if (root / path).is_dir()}
    outside = [p for p in chosen if not any(str(parent) in folders for parent in PurePosixPath(p).parents)]
    return [Choice(path, chosen[path]) for path in sorted(outside)]


def _tests_by_folder(root: Path, name: str, has_importers: bool) -> Iterator[str]:
    parts = PurePosixPath(name).parts
    if parts[0] == "tests":
        return
    if name.endswith((".py", ".md")):
        yield READS_ALL_SOURCES
    for length in range(len(parts), 0, -1):
        folder = "/".join(parts[:length])
        tests = TESTS_OF_FOLDER.get(folder, f"tests/{folder}")
        if (root / tests).is_dir():
            # The tests of a whole package are many, so they run only in two cases: no test imports the
            # changed file, or the package is a program that tests may run without an import.
            if length > 1 or not has_importers or (root / parts[0] / "__main__.py").exists():
                yield tests
            return


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def _importers(root: Path, changed: Iterable[str]) -> dict[str, set[str]]:
    """Return, for each Python file, the files that import it.

    A test file also counts as an importer of each conftest.py in the folders above it.
    """
    files = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.py").split("\0")
    files = [name for name in files if name and (root / name).exists()]
    # Deleted files are included, because a file that still imports a deleted file is affected.
    modules = {_module_of(name): name for name in (*files, *changed) if name.endswith(".py")}
    importers: dict[str, set[str]] = {}
    for name in files:
        for imported in (*_imported_files(root / name, modules), *_conftests(name, modules)):
            importers.setdefault(imported, set()).add(name)
    return importers


def _module_of(name: str) -> str:
    parts = PurePosixPath(name).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_files(path: Path, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the files of the modules that ``path`` imports, and of the packages that contain them.

    Imports inside functions count too.
    """
    try:
        tree = ast.parse(path.read_text())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                if found := modules.get(".".join(parts[:length])):
                    yield found


def _conftests(name: str, modules: Mapping[str, str]) -> Iterator[str]:
    if _is_test(name):
        for folder in PurePosixPath(name).parents:
            if found := modules.get(_module_of(f"{folder}/conftest.py")):
                yield found


def _tests_importing(name: str, importers: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the test files that import a file, directly or through other modules."""
    seen, waiting = {name}, [name]
    while waiting:
        for importer in importers.get(waiting.pop(), ()):
            if importer not in seen:
                seen.add(importer)
                waiting.append(importer)
                if _is_test(importer):
                    yield importer
