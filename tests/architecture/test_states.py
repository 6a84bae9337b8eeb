"""Test that every state field has a transition table and that rows change state by compare-and-swap only."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping

import pytest
from django.apps import apps
from django.db import models

from tests.architecture.sources import modules, nodes

PACKAGES = ("scheduler", "telemetry", "portal")

# Rows that record the state of another row; they are written once and never change.
RECORDS = {"HostStateChange", "GpuStateChange", "GpuStateSeen"}


def is_state(name: str) -> bool:
    return name == "state" or name.endswith("_state")


def state_fields() -> list[models.Field[object, object]]:
    return [
        field
        for package in PACKAGES
        for model in apps.get_app_config(package).get_models()
        if model.__name__ not in RECORDS
        for field in model._meta.concrete_fields
        if is_state(field.name)
    ]


def tables() -> Iterator[Mapping[object, frozenset[object]]]:
    """Yield every transition table: module constants whose names end in TRANSITIONS."""
    for package in PACKAGES:
        for name in ("state.states", "models"):
            try:
                module = importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError:
                continue
            for constant, value in vars(module).items():
                if not constant.endswith("TRANSITIONS"):
                    continue
                nested = all(isinstance(inner, Mapping) for inner in value.values())
                yield from value.values() if nested else [value]


@pytest.mark.parametrize("field", state_fields(), ids=lambda field: f"{field.model.__name__}.{field.name}")
def test_a_state_field_has_a_transition_table(field: models.Field[object, object]) -> None:
    allowed = {str(value) for value, _ in field.flatchoices}
    assert allowed, f"{field} has no closed list of states"
    assert any({str(state) for state in table} == allowed for table in tables()), (
        f"{field} with the states {sorted(allowed)} has no transition table"
    )


def test_every_target_of_a_transition_is_a_state_of_the_table() -> None:
    for table in tables():
        known = {str(state) for state in table}
        unknown = {str(target) for targets in table.values() for target in targets} - known
        assert not unknown, unknown


def test_every_state_is_initial_or_the_target_of_a_transition() -> None:
    starts = {str(getattr(field.default, "value", field.default)) for field in state_fields()}
    for table in tables():
        reached = {str(target) for targets in table.values() for target in targets}
        assert {str(state) for state in table} <= reached | starts


def test_rows_change_state_by_compare_and_swap_only() -> None:
    """Check that an UPDATE of a state names the old state in its filter.

    Assignments to attributes are not checked.
    """
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules(*PACKAGES)
        if "/core/" not in path
        for node in nodes(tree)
        if isinstance(node, ast.Call) and _updates_state_unconditionally(node)
    ]
    assert not found, f"UPDATE of a state without its old value: {found}"


def _updates_state_unconditionally(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "update":
        return False
    written = {keyword.arg for keyword in call.keywords if keyword.arg and is_state(keyword.arg)}
    if not written:
        return False
    compared = {
        (keyword.arg or "").split("__")[0]
        for inner in ast.walk(call.func.value)
        if isinstance(inner, ast.Call)
        for keyword in inner.keywords
    }
    return not written <= compared
