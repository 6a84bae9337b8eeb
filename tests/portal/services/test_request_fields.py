"""Test that each field of a request is declared once.

Forms, API, command line, input checks and rows are all derived from this declaration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

import cli.main
from portal.api.calendar.serializers import ReservationShape, ReservationWish
from portal.api.work.request_serializers import JobWish, NotebookWish
from portal.api.work.workload_serializers import WorkloadShape
from portal.errors import Invalid
from portal.hardware_request import checked_value
from portal.input_checks import InputChecks
from portal.services.work import launch
from portal.services.work.request_checks import checked_job_request
from portal.web.gpu_request.field_values import FIELD_FOR_ARGUMENT
from portal.web.gpu_request.forms import GpuRequestForm
from portal.web.gpu_request.options import GpuRequestOptions
from portal.wording import request_texts
from portal.wording.equivalent_commands import cli_command
from scheduler.core.model.snapshot import Ask
from scheduler.cycle import core_values
from scheduler.models import HardwareColumns, Reservation, Workload
from scheduler.request_schema import request_schema
from scheduler.requests import (
    HARDWARE_COLUMNS,
    HardwareRequest,
    Labels,
    RequestField,
    WorkloadRequest,
    request_fields,
)
from tests.world import H100, World

FIELDS = request_fields(WorkloadRequest)
HARDWARE = request_fields(HardwareRequest)
BODIES = {"notebook": NotebookWish, "job": JobWish, "reservation": ReservationWish}
CLI_COMMANDS = {
    "notebook": ("notebook", "launch"),
    "job": ("job", "run"),
    "reservation": ("reservation", "create"),
}
SCHEMA_FILE = Path(cli.main.__file__).with_name("request_schema.json")


def name_of(declared: RequestField) -> str:
    return declared.name


def other_value(declared: RequestField) -> Any:
    """Return a value that differs from the default."""
    if declared.type is bool:
        return not declared.default
    if declared.choices:
        return declared.choices[-1][0]
    if declared.type is int:
        return max(declared.low, 1) + 1
    if declared.type == Labels:
        return {"A": "b"}
    return ("x",) if declared.max_items else "x"


def test_the_command_line_ships_with_the_present_schema() -> None:
    from jsonschema import Draft202012Validator  # this import takes two seconds in each process of the tests

    message = "run: ./run manage request_schema > cli/request_schema.json"
    assert json.loads(SCHEMA_FILE.read_text()) == request_schema(), message
    Draft202012Validator.check_schema(request_schema())


def test_the_columns_of_hardware_are_the_fields_of_a_request() -> None:
    assert {column.name for column in HardwareColumns._meta.get_fields()} == set(HARDWARE_COLUMNS)


@pytest.mark.parametrize("declared", FIELDS, ids=name_of)
def test_every_kind_of_request_has_its_fields_in_the_api_and_on_the_command_line(
    declared: RequestField,
) -> None:
    for kind in declared.kinds:
        fields = BODIES[kind]().fields
        assert fields[declared.argument].required == (kind in declared.required_in)
        group, verb = CLI_COMMANDS[kind]
        command = getattr(cli.main.cli.commands[group], "commands")[verb]  # noqa: B009  click's groups hide it
        options = {parameter.name for parameter in command.params}
        assert declared.argument in options or declared.argument == "command"
    for kind in BODIES.keys() - set(declared.kinds):
        assert declared.argument not in BODIES[kind]().fields


@pytest.mark.parametrize("declared", HARDWARE, ids=name_of)
def test_hardware_is_stored_shown_and_planned(declared: RequestField) -> None:
    request = HardwareRequest(**{"units": 1, declared.name: other_value(declared)})
    for shape in (WorkloadShape, ReservationShape):
        assert declared.argument in shape().fields
    assert HardwareRequest.from_row(Reservation(**request.hardware_columns())) == HardwareRequest(
        **request.hardware_columns()
    )
    planned = {"models_wanted": "models", "labels_required": "labels"}.get(declared.name, declared.name)
    if planned in Ask.__dataclass_fields__:
        assert core_values.ask_from_row(request) != Ask(units=1)
    if declared.name not in ("units", "hosts", "models_wanted", "profile"):
        row = Workload(**request.hardware_columns())
        assert request_texts.placement_rows(row), "its page does not show it"


@pytest.mark.django_db
def test_the_request_form_has_every_field(world: World) -> None:
    options = GpuRequestOptions.of(world.vision.member, world.now, "EUR")
    form = GpuRequestForm(options=options)
    expected = {FIELD_FOR_ARGUMENT.get(each.argument, each.argument) for each in FIELDS}
    assert expected - form.fields.keys() == set()
    sections = {name: {field.name for field in fields} for name, fields in form.sections.items()}
    in_sections = [each for each in FIELDS if each.form_field]
    assert [each for each in in_sections if each.form_field not in sections[each.form_section]] == []


@pytest.mark.parametrize(
    "declared", [each for each in FIELDS if each.type is int and not each.choices], ids=name_of
)
def test_numbers_outside_their_bounds_are_refused_with_the_bounds(declared: RequestField) -> None:
    for value in (declared.low - 1, declared.high + 1, True, "1"):
        checks = InputChecks()
        checked_value(checks, declared, value)
        message = checks.problems[declared.argument]
        assert f"{declared.low:,} to {declared.high:,}" in message and str(value) in message


@pytest.mark.django_db
def test_a_request_is_the_same_from_its_arguments_to_its_row_and_back(world: World) -> None:
    chosen: dict[str, Any] = {
        "command": "true\nfalse",
        "units": 1,
        "models": [H100],
        "min_memory_mib": 1024,
        "min_compute_capability": 80,
        "priority": "low",
        "max_runtime_seconds": 600,
        "wanted_by": datetime(2026, 4, 1, tzinfo=UTC),
    }
    refer_to_rows = ("project", "pool", "profile", "reservation", "after")
    given = {
        each.argument: other_value(each)
        for each in request_fields(WorkloadRequest, "job")
        if each.name not in refer_to_rows
    } | chosen
    request = checked_job_request(world.vision.project, world.shared, world.now, **given)
    row = Workload(**request.columns())
    assert WorkloadRequest.from_row(row).columns() == request.columns()
    arguments = request.arguments() | {"priority": "low"}
    assert {name: arguments[name] for name in given} == given


@pytest.mark.django_db
def test_an_argument_that_is_no_field_raises_an_error(world: World) -> None:
    with pytest.raises(TypeError, match="memroy_mib"):
        checked_job_request(world.vision.project, world.shared, world.now, memroy_mib=1)


@pytest.mark.django_db
def test_every_wrong_field_is_named_with_its_value_and_what_is_allowed(world: World) -> None:
    wrong: Mapping[str, Any] = {
        "hosts": 0,
        "cpu_milli": -1,
        "nvlink": "yes",
        "type": "play",
        "most_retries": 99,
    }
    with pytest.raises(Invalid) as refusal:
        launch.submit_job(
            actor=world.vision.member,
            project=world.vision.project,
            pool=world.shared,
            now=world.now,
            name="x",
            command="true",
            **wrong,
        )
    assert refusal.value.fields.keys() == wrong.keys()
    for name, message in refusal.value.fields.items():
        assert message.startswith(f"{name} is ") and "allowed: " in message


@pytest.mark.parametrize("declared", [each for each in FIELDS if each.unit], ids=name_of)
def test_the_equivalent_command_gives_a_quantity_that_the_option_reads_back(declared: RequestField) -> None:
    value = declared.high if declared.unit == "tenths" else 7200
    value = min(value, 90) if declared.unit == "tenths" else value
    option, text = cli_command("submit_job", {declared.argument: value}).split()[-2:]
    run = getattr(cli.main.cli.commands["job"], "commands")["run"]  # noqa: B009  click's groups hide it
    parameter: click.Parameter = next(each for each in run.params if option in each.opts)
    assert parameter.type.convert(text, None, None) == value
