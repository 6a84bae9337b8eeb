"""Each kind of row is born in one module, and the cores touch nothing but their arguments."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import imported_names, modules

# The one place (or folder) that makes such rows.
WRITERS = {
    "Allocation": ("scheduler/cycle/apply.py",),
    # What a plan decides, and what becomes of a gang: that is decided when a member ends, and by no plan.
    "Decision": ("scheduler/cycle/apply.py", "scheduler/runs/gangs.py"),
    "Run": ("scheduler/cycle/apply.py",),
    "Recording": ("scheduler/cycle/recording.py",),
    "Workload": ("scheduler/services/",),
    "Reservation": ("scheduler/services/",),
    "Batch": ("telemetry/ingest/samples.py",),
    "Sample": ("telemetry/ingest/samples.py",),
    "Rollup": ("telemetry/rollups/roll_up.py",),
    "Charge": ("telemetry/money/charges.py",),
    "Statement": ("telemetry/money/statements.py",),
    "Submission": ("portal/services/",),
    "Approval": ("portal/services/",),
    "AuditEvent": ("portal/services/",),
}
# The demo's past has already happened, in simulated time: its rows are written as history, by one module.
PAST = "demo/simulated_past.py"
MAKING = {"create", "bulk_create", "get_or_create", "update_or_create"}


def makes(tree: ast.Module, model: str) -> list[int]:
    """Lines that call Model.objects.create() or a relative of it."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in MAKING
        and any(isinstance(inner, ast.Name) and inner.id == model for inner in ast.walk(node.func.value))
    ]


@pytest.mark.parametrize("model", WRITERS)
def test_rows_are_born_in_one_place(model: str) -> None:
    found = [
        f"{path}:{line}"
        for path, tree in modules("portal", "telemetry", "scheduler", "config")
        for line in makes(tree, model)
        if not path.startswith((*WRITERS[model], PAST))
    ]
    assert not found, f"{model} is made outside {WRITERS[model]}: {found}"


FORBIDDEN_IN_CORES = (
    "time",
    "random",
    "secrets",
    "os",
    "io",
    "pathlib",
    "socket",
    "subprocess",
    "threading",
    "logging",
)


def test_cores_have_no_clock_no_io_and_no_randomness() -> None:
    found = [
        f"{path}:{line} imports {name}"
        for path, tree in modules("scheduler", "telemetry")
        if "/core/" in path
        for line, name in imported_names(tree)
        if name.split(".")[0] in FORBIDDEN_IN_CORES
    ]
    found += [
        f"{path}:{node.lineno} calls {node.func.id}"
        for path, tree in modules("scheduler", "telemetry")
        if "/core/" in path
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("open", "print", "input")
    ]
    assert not found
