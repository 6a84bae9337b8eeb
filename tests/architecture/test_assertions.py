"""Test that each test states what must be true. A test without an assertion fails only if its code raises.

An assertion is `assert`, `pytest.raises`, `pytest.fail`, a call whose name contains "assert", Playwright's
`expect`, or a plain call of a helper function with an assertion. Methods don't count, because their class is
unknown. Helpers that wait don't count either: assert the result after the wait.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from tests.architecture.sources import ROOT, modules, parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef

CALLS = {"pytest.raises", "pytest.fail", "pytest.warns", "expect"}
WAITS = ("until", "wait")
# The tests without an assertion, with the reason. At most five.
EXCEPTIONS = {
    "tests/scheduler/test_stateful.py:test_the_invariants_hold_after_each_step_of_a_random_walk": (
        "the invariants of the state machine assert after each step"
    ),
}


def functions(tree: ast.Module) -> dict[str, Function]:
    """Return the functions of a module by name, without methods."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@functools.cache
def imported_helpers(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return (path, name) of each import from a module of `tests`, by its local name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            path = f"{(node.module or '').replace('.', '/')}.py"
            found |= {alias.asname or alias.name: (path, alias.name) for alias in node.names}
    return found


def asserts(path: str, tree: ast.Module, function: Function, seen: frozenset[str] = frozenset()) -> bool:
    """Return True if the function has an assertion, or calls a helper function that has one."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func) if isinstance(node.func, ast.Attribute | ast.Name) else ""
        if name in CALLS or "assert" in name.rpartition(".")[2].lower():
            return True
        if name not in seen and helper_asserts(path, tree, name, seen | {name}):
            return True
    return False


def helper_asserts(path: str, tree: ast.Module, name: str, seen: frozenset[str]) -> bool:
    """Return True if `name` is a function of this module, or an imported one, that has an assertion."""
    if name.startswith(WAITS):
        return False
    if name in imported_helpers(tree):
        path, name = imported_helpers(tree)[name]
        if not (ROOT / path).is_file():
            return False
        tree = parsed(ROOT / path)
    helper = functions(tree).get(name)
    return helper is not None and asserts(path, tree, helper, seen)


def places_without_assertion(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield the place of each test of a module that has no assertion."""
    for name, function in functions(tree).items():
        if name.startswith("test_") and not asserts(path, tree, function):
            yield f"{path}:{name}"


def test_each_test_has_an_assertion() -> None:
    files = [(path, tree) for path, tree in modules("tests") if PurePath(path).name.startswith("test_")]
    found = {place for path, tree in files for place in places_without_assertion(path, tree)}
    assert found == EXCEPTIONS.keys(), sorted(found ^ EXCEPTIONS.keys())
    assert len(EXCEPTIONS) <= 5


@pytest.mark.parametrize(
    ("body", "has_assertion"),
    [
        ("assert value", True),
        ("run()", False),
        ("with pytest.raises(ValueError):\n        run()", True),
        ("with django_assert_num_queries(2):\n        run()", True),
        ("expect(page.locator('a')).to_be_visible()", True),
        ("checked()", True),
        ("unchecked()", False),
        ("until(lambda: value)", False),
        ("value.checked()", False),
    ],
)
def test_a_helper_function_counts_if_it_asserts(body: str, has_assertion: bool) -> None:
    source = f"""
def checked():
    assert value

def unchecked():
    unchecked()

def until(happened):
    assert happened()

def test_example():
    {body}
"""
    assert list(places_without_assertion("test.py", ast.parse(source))) == (
        [] if has_assertion else ["test.py:test_example"]
    )
