"""Test that functions are small, and that each large function has a reason why it is not split.

Branches of a function: each ``if`` and ``elif``, each conditional expression, each ``for`` and ``while``,
each ``with``, each ``except``, each operand of ``and`` or ``or`` after the first, and each ``for`` of a
comprehension. Branches of a nested function count for the nested function only; branches of a lambda count
for the enclosing function. A function with more than MAX_BRANCHES branches has a comment that begins with
"Not split:", above its first line (or its first decorator) or before the first statement of its body.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest

from tests.architecture.sources import PRODUCT, ROOT, parsed

MAX_BRANCHES = 12
MAX_LARGE_FUNCTIONS = 30
REASON = "# Not split:"
FOLDERS = (*PRODUCT, "deploy", "examples", "tests", "tools")
BRANCHING = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.ExceptHandler,
    ast.comprehension,
)
LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.alias, ast.operator, ast.cmpop)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class LargeFunction:
    """A function with more than MAX_BRANCHES branches."""

    place: str
    branches: int
    has_reason: bool


def branches_by_function(tree: ast.Module) -> dict[Function, int]:
    """Return the number of branches of each function of a module, by the rule at the top of this module."""
    counts: dict[Function, int] = {}
    remaining: list[tuple[ast.AST, Function | None]] = [(tree, None)]
    while remaining:
        node, function = remaining.pop()
        if isinstance(node, Function):
            function = node
            counts[node] = 0
        elif function is not None and isinstance(node, BRANCHING):
            counts[function] += 1
        elif function is not None and isinstance(node, ast.BoolOp):
            counts[function] += len(node.values) - 1
        # Names, constants and their contexts contain no branches; skipping them halves the time.
        remaining.extend(
            (child, function) for child in ast.iter_child_nodes(node) if not isinstance(child, LEAVES)
        )
    return counts


def has_reason(function: Function, lines: list[str]) -> bool:
    """Return True if a comment above the function or at the beginning of its body gives the reason."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    above = first - 1
    while above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    has_docstring = ast.get_docstring(function) is not None and len(function.body) > 1
    statement = function.body[1 if has_docstring else 0]
    before = (function.body[0].end_lineno or 0) if has_docstring else function.lineno
    near = [*lines[above : first - 1], *lines[before : statement.lineno - 1]]
    return any(line.lstrip().startswith(REASON) for line in near)


def large_functions() -> list[LargeFunction]:
    """Return the large functions of the repository, without migrations."""
    large = []
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        if "migrations" in path.parts:
            continue
        for function, count in branches_by_function(parsed(path)).items():
            if count > MAX_BRANCHES:
                lines = path.read_text(encoding="utf-8").splitlines()
                place = f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
                large.append(LargeFunction(place, count, has_reason(function, lines)))
    return large


def test_large_functions_are_few_and_each_says_why_it_is_not_split() -> None:
    large = large_functions()
    without = [f"{each.place}: {each.branches} branches" for each in large if not each.has_reason]
    assert not without, f"split these, or write a comment {REASON!r} above:\n" + "\n".join(without)
    shown = "\n".join(f"{each.branches} {each.place}" for each in large)
    assert len(large) <= MAX_LARGE_FUNCTIONS, (
        f"{len(large)} functions; allowed: {MAX_LARGE_FUNCTIONS}\n{shown}"
    )


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return 1", 0),
        ("if a:\n  pass\n elif b:\n  pass\n else:\n  pass", 2),
        ("return 1 if a else 2", 1),
        ("for x in a:\n  while x:\n   pass", 2),
        ("with a, b:\n  pass", 1),
        ("try:\n  pass\n except OSError:\n  pass\n except ValueError:\n  pass", 2),
        ("return a and b and c or d", 3),
        ("return [x for y in a for x in y if x]", 2),
        ("return sorted(a, key=lambda x: x or b)", 1),
        ("def inner():\n  if a:\n   pass\n return inner", 0),
        ("async with a:\n  async for x in b:\n   pass", 2),
    ],
)
def test_branches_are_counted_by_the_rule(body: str, count: int) -> None:
    counts = branches_by_function(ast.parse(f"async def f():\n {body}\n"))
    assert {function.name: found for function, found in counts.items()}["f"] == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Not split: a reason.\ndef f():\n    return 1\n", True),
        ("# Not split: a reason\n# of two lines.\n@cache\ndef f():\n    return 1\n", True),
        ("def f():\n    # Not split: a reason.\n    return 1\n", True),
        ('def f():\n    """Return 1."""\n    # Not split: a reason.\n    return 1\n', True),
        ("def f():\n    return 1\n", False),
        ("# Not split: another function.\n\ndef f():\n    return 1\n", False),
        ("def f():\n    if a:\n        # Not split: too late.\n        return 1\n", False),
    ],
)
def test_a_reason_is_found_above_a_function_or_at_the_beginning_of_its_body(
    text: str, expected: bool
) -> None:
    (function,) = branches_by_function(ast.parse(text))
    assert has_reason(function, text.splitlines()) is expected
