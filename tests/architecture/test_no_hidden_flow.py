"""Test that go-to-definition reaches every effect: no signals, no logic in save(), locks in one place.

One module writes CSV.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from tests.architecture.sources import PRODUCT, SERVER, imported_names, modules, nodes

SIGNALS = (
    "django.db.models.signals",
    "django.dispatch",
    "django.core.signals",
    "django.contrib.auth.signals",
)

CSV_MODULE = "telemetry/core/csv_text.py"
CSV_WRITERS = ("writer", "DictWriter")


def test_no_module_imports_signals() -> None:
    found = [
        f"{path}:{line} imports {name}"
        for path, tree in modules(*SERVER, migrations=True)
        for line, name in imported_names(tree)
        if name.startswith(SIGNALS)
    ]
    assert not found


def test_no_signal_has_a_receiver_of_the_product() -> None:
    from django.db.models import signals

    own_receivers = [
        receiver
        for name in (
            "pre_save",
            "post_save",
            "pre_delete",
            "post_delete",
            "m2m_changed",
            "pre_init",
            "post_init",
        )
        for entry in getattr(signals, name).receivers
        for receiver in (entry[1], entry[1]() if isinstance(entry[1], weakref.ReferenceType) else None)
        if getattr(receiver, "__module__", "").split(".")[0] in SERVER
    ]
    assert own_receivers == []


@pytest.mark.parametrize("method", ["save", "delete", "ready", "full_clean"])
def test_models_and_apps_do_not_override_methods_that_could_hide_effects(method: str) -> None:
    found = [
        f"{path}:{node.lineno} {owner.name}.{method}"
        for path, tree in modules("portal", "telemetry", "scheduler")
        if "/models/" in path or path.endswith("apps.py")
        for owner in nodes(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name == method
    ]
    assert not found


def test_rows_are_locked_only_in_modules_whose_names_end_in_locks() -> None:
    found = [
        f"{path}:{node.lineno} {text}"
        for path, tree in modules(*SERVER)
        if not path.endswith("locks.py")
        for node in nodes(tree)
        for text in _locking(node)
    ]
    assert not found


def _locking(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Attribute) and node.attr == "select_for_update":
        return ["select_for_update"]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.lower()
        locks = ("pg_advisory", "pg_try_advisory", "for update")
        return [lock for lock in locks if lock in words and "select" in words]
    return []


def test_nvml_is_used_in_one_folder_only() -> None:
    files = {
        path for path, tree in modules() for _, name in imported_names(tree) if name.split(".")[0] == "pynvml"
    }
    assert files and all(path.startswith("agent/gpu/nvml/") for path in files), files


def test_only_one_module_of_the_product_writes_csv() -> None:
    writers = [
        path
        for path, tree in modules()
        if "csv" in {name for _, name in imported_names(tree)}
        and any(
            (isinstance(node, ast.Attribute) and node.attr in CSV_WRITERS)
            or (isinstance(node, ast.ImportFrom) and node.module == "csv")
            for node in ast.walk(tree)
        )
    ]
    assert [path for path in writers if not path.startswith("benchmarks/")] == [CSV_MODULE]


def test_no_module_has_a_catch_all_name() -> None:
    catch_all_names = {"utils", "helpers", "common", "misc", "util", "helper"}
    found = [
        path
        for path, _ in modules()
        if catch_all_names & {part.removesuffix(".py") for part in Path(path).parts}
    ]
    assert not found


def test_no_module_uses_asyncio_wait_for() -> None:
    """Forbid ``wait_for``: up to Python 3.11 it can lose a cancellation. Use ``asyncio.timeout`` instead."""
    found = [f"{path}:{line}" for path, tree in modules(*PRODUCT) for line in _wait_for_lines(tree)]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.wait_for(x, 1)",
        "import asyncio as aio\naio.wait_for(x, 1)",
        "from asyncio import wait_for as w",
    ],
)
def test_every_way_to_import_wait_for_is_found(source: str) -> None:
    assert _wait_for_lines(ast.parse(source))


def _wait_for_lines(tree: ast.Module) -> list[int]:
    imports = (alias for node in nodes(tree) if isinstance(node, ast.Import) for alias in node.names)
    module_names = {alias.asname or alias.name for alias in imports if alias.name == "asyncio"}
    attribute_lines = [
        node.lineno
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "wait_for"
        and getattr(node.value, "id", "") in module_names
    ]
    return attribute_lines + [line for line, name in imported_names(tree) if name == "asyncio.wait_for"]


def test_no_module_runs_celery_eagerly() -> None:
    words = {"task_always_eager", "CELERY_TASK_ALWAYS_EAGER"}
    found = [
        path
        for path, tree in modules(*PRODUCT, "tests")
        for node in nodes(tree)
        if isinstance(node, ast.keyword | ast.Attribute | ast.Name)
        and not isinstance(getattr(node, "ctx", None), ast.Load)
        and words & {getattr(node, name, None) for name in ("arg", "attr", "id")}
    ]
    assert not found


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("scheduler.core", "django"),
        ("telemetry.core", "django"),
        ("agent", "django"),
        ("agent.protocol", "django"),
        ("cli", "django"),
        ("cli", "agent"),
    ],
)
def test_a_package_loads_without_the_forbidden_package(module: str, forbidden: str, root: Path) -> None:
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module({module!r})
for found in pkgutil.walk_packages(getattr(package, "__path__", []), {module!r} + "."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
sys.exit({forbidden!r} in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, f"{module} loads {forbidden}: {done.stderr[-500:]}"


def test_the_scheduler_package_itself_is_empty(root: Path) -> None:
    assert (root / "scheduler" / "__init__.py").read_text().strip() == "", (
        "code there would run on every import of scheduler.core"
    )
