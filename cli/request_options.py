"""Define the options of requests for GPUs from a JSON schema of the request, and build request bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import click

from cli.client import ApiClient
from cli.errors import CliError
from cli.lookup import find_by_id_or_name
from cli.param_types import ComputeCapabilityType, CoresType, DurationType, MemoryType, TimestampType
from cli.session import CliSession, CommandFunction

DURATION_TYPE, TIMESTAMP_TYPE = DurationType(), TimestampType()
CORES_TYPE, MEMORY_TYPE, COMPUTE_CAPABILITY_TYPE = CoresType(), MemoryType(), ComputeCapabilityType()
TYPES_OF_UNITS: dict[str, click.ParamType[Any]] = {
    "seconds": DURATION_TYPE,
    "thousandths of a core": CORES_TYPE,
    "MiB": MEMORY_TYPE,
    "tenths": COMPUTE_CAPABILITY_TYPE,
}
# The schema is generated from the server's code and installed with this package.
SCHEMA: dict[str, dict[str, Any]] = json.loads(
    resources.files("cli").joinpath("request_schema.json").read_text("utf-8")
)["properties"]
METAVARS = {("object", ""): "NAME=VALUE", ("array", "object"): "HOW:ID"}
FOUND_IF_ONLY_ONE = ("project", "pool")
POSITIONAL = ("command",)  # properties that are given after ``--`` instead of as options


def request_options(kind: str) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the options of a notebook, job or reservation."""

    def with_options(function: CommandFunction) -> CommandFunction:
        for name, declared in reversed(SCHEMA.items()):
            if kind in declared["x-kinds"] and name not in POSITIONAL:
                function = _option(name, declared)(function)
        return function

    return with_options


def _option(name: str, declared: dict[str, Any]) -> Callable[[CommandFunction], CommandFunction]:
    """Return a decorator that adds the click option of one property of the schema.

    If the user does not give the option, its value is None or ().
    """
    option, text = declared.get("x-option") or f"--{name.replace('_', '-')}", declared["description"]
    if name in FOUND_IF_ONLY_ONE:
        text = f"{text} May be omitted if there is only one."
    if declared["type"] == "boolean":
        return click.option(option, name, is_flag=True, default=None, help=text)
    if declared["type"] in ("array", "object"):
        metavar = METAVARS.get((declared["type"], declared.get("items", {}).get("type", "")))
        return click.option(
            option, name, multiple=True, metavar=metavar, help=f"{text} May be given several times."
        )
    kind: click.ParamType[Any] | None = TYPES_OF_UNITS.get(declared.get("x-unit", ""))
    if "enum" in declared:
        kind = click.Choice(declared["enum"])
    elif declared.get("format") == "date-time":
        kind = TIMESTAMP_TYPE
    elif kind is None and declared["type"] == "integer":
        kind = click.INT
    return click.option(option, name, type=kind, help=text)


def request_body(session: CliSession, options: dict[str, Any]) -> dict[str, Any]:
    """Return the request body that the options describe.

    If the options contain no project, the user's only project is used. If they contain no pool, the only pool
    is used.
    """
    body: dict[str, Any] = {
        name: parse_pairs(value) if SCHEMA.get(name, {}).get("type") == "object" else value
        for name, value in options.items()
        if value not in (None, ())
    }
    if "models" in body:
        body["models"] = list(body["models"])
    if "reservation" in body:
        body["reservation"] = find_by_id_or_name(
            session.client, body["reservation"], "reservations/", "reservation"
        )["id"]
    if not body.get("project"):
        body["project"] = only_project(session.client)
    body["pool"] = body.get("pool") or only_pool(session.client)
    return body


def parse_pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=VALUE arguments. Raises click.UsageError."""
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r}; allowed: NAME=VALUE.")
        pairs[name] = value
    return pairs


def only_project(client: ApiClient) -> str:
    """Return the only project of the user's teams. Raises CliError if there is none or more than one."""
    teams = {membership["team"] for membership in client.get("me/")["teams"]}
    paths = [row["path"] for row in client.pages("projects/") if row["active"] and row["team"] in teams]
    if len(paths) != 1:
        raise CliError(
            f"Name a project with --project: {', '.join(paths) or 'you are in no team that has one'}."
        )
    return str(paths[0])


def only_pool(client: ApiClient) -> str:
    """Return the only pool, or the only shared pool. Raises CliError if there is none or more than one."""
    pools = client.get("pools/")
    shared = [pool["slug"] for pool in pools if pool["kind"] == "dynamic"]
    names = shared if len(shared) == 1 else [pool["slug"] for pool in pools]
    if len(names) != 1:
        raise CliError(f"Name a pool with --pool: {', '.join(names) or 'there is none'}.")
    return str(names[0])
