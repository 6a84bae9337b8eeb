"""Test which modules create rows, and what the cores import and call.

The rows of each model are created only in the modules or folders that are listed for it. The cores import no
module such as ``time``, ``random`` or ``os``, and do not call ``open``, ``print`` or ``input``.
"""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import imported_names, modules, nodes

# The modules or folders that create rows of a model.
WRITERS = {
    "Allocation": ("scheduler/cycle/apply.py",),
    # gangs.py records the end or restart of a gang after one member has ended. No plan makes this decision.
    "Decision": ("scheduler/cycle/apply.py", "scheduler/runs/gangs.py"),
    "Run": ("scheduler/cycle/apply.py",),
    "EdgeContact": ("scheduler/coordination/edge_contacts.py",),
    "DatabaseMaintenance": ("scheduler/services/database_maintenance.py",),
    "Recording": ("scheduler/cycle/recording.py",),
    "Workload": ("scheduler/services/",),
    "Reservation": ("scheduler/services/",),
    "Batch": ("telemetry/ingest/watermarks.py",),
    "Sample": ("telemetry/ingest/binary_copy.py",),
    "RunUse": ("telemetry/ingest/usage_rows.py",),
    "HostUse": ("telemetry/ingest/usage_rows.py",),
    "ProcessUse": ("telemetry/ingest/usage_rows.py",),
    "SampleGap": ("telemetry/ingest/watermarks.py", "telemetry/rollups/host_hours.py"),
    # No module creates Rollup instances: it is a view. StoredUse values are written to its tables.
    "Rollup": (),
    "StoredUse": (
        "telemetry/rollups/stored_readings.py",
        "demo/simulated_usage.py",
        "benchmarks/money_month/work_rows.py",
    ),
    "Alert": ("telemetry/alerts/alert_rows.py",),
    "AlertRule": ("telemetry/alerts/rules.py",),
    "CapacityStudy": ("telemetry/capacity/studies.py",),
    "RunReport": ("telemetry/reports/stored.py",),
    "RunReportUnit": ("telemetry/reports/stored.py",),
    # No module creates Charge instances: telemetry/ledger copies NewCharge values into the table.
    "Charge": (),
    "NewCharge": ("telemetry/money/charge_rows.py", "telemetry/money/settlement.py"),
    # These modules write the lines and cells of idle time and of adjustments. Those of charges are written
    # by SQL in telemetry/ledger.
    "StatementLine": ("telemetry/money/shared_idle.py", "telemetry/money/adjusting/"),
    "ChargeCell": ("telemetry/money/shared_idle.py", "telemetry/money/adjusting/"),
    "Adjustment": ("telemetry/money/adjusting/",),
    "TeamBillingMode": ("telemetry/money/pricing/billing_modes.py",),
    "BillingZone": ("telemetry/money/billing_months.py",),
    "CloseProposal": ("telemetry/money/closing/",),
    "CostCentreStatement": ("telemetry/money/closing/",),
    "Statement": ("telemetry/money/statements.py",),
    "Submission": ("portal/services/",),
    "Approval": ("portal/services/",),
    "AuditEvent": ("portal/services/",),
    "AuditSeal": ("portal/services/audit_trail/seals.py",),
    "SealedAuditEvent": ("portal/services/audit_trail/seals.py",),
    "SetupCode": ("portal/services/people/setup_code.py",),
    "IdentityProvider": ("portal/services/people/identity/providers.py",),
    "DirectorySync": ("portal/services/people/identity/directory_sync.py",),
    "ClaimRule": ("portal/services/people/identity/rules.py",),
    "ClaimGrant": ("portal/services/people/identity/rules.py",),
    "BreakGlassLink": ("portal/services/people/identity/break_glass.py",),
    "WorkHandover": ("portal/services/people/leaving/leaver_work.py",),
    "TokenAddress": ("portal/services/people/sign_ins.py",),
    "ApiToken": ("portal/services/people/api_tokens.py",),
    "IdempotencyRecord": ("portal/services/idempotency.py",),
}
# This module may create rows of every model: it writes the demo's simulated past directly as history.
DEMO_HISTORY = "demo/past_rows.py"
# Modules that build an instance for a preview and never save it.
UNSAVED = {
    "CostCentreStatement": ("telemetry/exports/documents/month_documents.py",),
    "Workload": ("scheduler/reads/previews.py",),
}
CREATING_METHODS = {"create", "bulk_create", "get_or_create", "update_or_create"}


def creating_lines(tree: ast.Module, model: str) -> list[int]:
    """Return the lines that call a method such as ``Model.objects.create()`` or build an instance."""
    return [node.lineno for node in nodes(tree) if isinstance(node, ast.Call) and creates(node, model)]


def creates(call: ast.Call, model: str) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id == model
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == model:
        return isinstance(call.func.value, ast.Name) and call.func.value.id == "models"
    names = (inner.id for inner in ast.walk(call.func.value) if isinstance(inner, ast.Name))
    return call.func.attr in CREATING_METHODS and model in names


@pytest.mark.parametrize(
    "source",
    [
        "Workload.objects.create(name='a')",
        "Workload.objects.filter(pk=1).get_or_create()",
        "Workload(name='a').save(force_insert=True)",
        "models.Workload(name='a').save()",
    ],
)
def test_every_way_to_create_a_row_is_found(source: str) -> None:
    assert creating_lines(ast.parse(source), "Workload") == [1]


@pytest.mark.parametrize("model", WRITERS)
def test_rows_are_created_in_one_place(model: str) -> None:
    found = [
        f"{path}:{line}"
        for path, tree in modules("portal", "telemetry", "scheduler", "config")
        for line in creating_lines(tree, model)
        if not path.startswith((*WRITERS[model], *UNSAVED.get(model, ()), DEMO_HISTORY))
    ]
    assert not found, f"{model} is created outside {WRITERS[model]}: {found}"


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
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("open", "print", "input")
    ]
    assert not found
