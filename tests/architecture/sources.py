"""Parse the product's source files for the architecture tests."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SERVER = ("config", "demo", "portal", "telemetry", "scheduler")
PRODUCT = (*SERVER, "agent", "cli", "benchmarks")


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file; each file is parsed once."""
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's tree; each tree is walked once."""
    return tuple(ast.walk(tree))


def modules(*packages: str, migrations: bool = False) -> Iterator[tuple[str, ast.Module]]:
    """Yield (path relative to the checkout, syntax tree) of every module of the packages."""
    for package in packages or PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            if migrations or "migrations" not in path.parts:
                yield str(path.relative_to(ROOT)), parsed(path)


def imported_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import of a module, also inside functions."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
