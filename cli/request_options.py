"""Defines the options of requests for GPUs, and builds the request from them."""

from __future__ import annotations

from typing import Any

import click

from cli.client import ApiClient
from cli.errors import CliError
from cli.lookup import find_by_id_or_name
from cli.param_types import ComputeCapabilityType, CoresType, DurationType, MemoryType, TimestampType
from cli.session import CliSession, CommandFunction

DURATION_TYPE, TIMESTAMP_TYPE = DurationType(), TimestampType()
CORES_TYPE, MEMORY_TYPE, COMPUTE_CAPABILITY_TYPE = CoresType(), MemoryType(), ComputeCapabilityType()
WORKLOAD_TYPE = click.Choice(["training", "inference", "interactive", "other"])


def gpu_options(function: CommandFunction) -> CommandFunction:
    """Add the options of every request for GPUs."""
    for option in reversed(
        (
            click.option("--project", help="TEAM/PROJECT; may be omitted if you have only one."),
            click.option("--pool", help="May be omitted if there is only one."),
            click.option("--gpus", type=int, help="Number of GPUs on each host."),
            click.option(
                "--model", "models", multiple=True, help="Such as H100-80GB; repeat for a second choice."
            ),
            click.option("--profile", help="A MIG slice, such as 1g.10gb; default: whole GPUs."),
        )
    ):
        function = option(function)
    return function


def run_options(function: CommandFunction) -> CommandFunction:
    """Add the options of every workload."""
    for option in reversed(
        (
            click.option("--name", help="Name of the workload."),
            click.option("--type", "type_", type=WORKLOAD_TYPE),
            click.option("--max-runtime", type=DURATION_TYPE, help="Such as 90m, 8h, 1d."),
            click.option("--reservation", "inside", help="ID of a reservation to run inside."),
        )
    ):
        function = option(function)
    return function


def requirement_options(function: CommandFunction) -> CommandFunction:
    """Add the options for requirements on the GPUs and hosts."""
    for option in reversed(
        (
            click.option(
                "--cpus",
                "cpu_milli",
                type=CORES_TYPE,
                help="CPU cores on each host; default: no limit.",
            ),
            click.option(
                "--memory",
                "memory_mib",
                type=MEMORY_TYPE,
                help="Memory on each host, such as 64G; default: no limit.",
            ),
            click.option(
                "--min-memory",
                "min_memory_mib",
                type=MEMORY_TYPE,
                help="Minimum memory of each GPU, such as 40G.",
            ),
            click.option(
                "--min-compute-capability",
                type=COMPUTE_CAPABILITY_TYPE,
                help="Minimum compute capability of each GPU, such as 8.0 (A100) or 9.0 (H100).",
            ),
            click.option(
                "--nvlink", is_flag=True, default=None, help="All GPUs of a host in one NVLink group."
            ),
            click.option(
                "--label",
                "labels",
                multiple=True,
                metavar="NAME=VALUE",
                help="Only on hosts with this label.",
            ),
            click.option(
                "--prefer", multiple=True, metavar="NAME=VALUE", help="Prefer hosts with this label."
            ),
        )
    ):
        function = option(function)
    return function


def placement_options(function: CommandFunction) -> CommandFunction:
    """Add the requirement options and those for the number of hosts."""
    function = click.option(
        "--spread", is_flag=True, default=None, help="Spread over hosts that share as little as possible."
    )(function)
    return click.option("--hosts", type=int, help="Number of hosts.")(requirement_options(function))


def request_body(session: CliSession, options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options under the API's names, with the only project and pool as defaults."""
    labels = label_fields(options.pop("labels", ()), options.pop("prefer", ()))
    names = {"gpus": "units", "type_": "type", "max_runtime": "max_runtime_seconds", "inside": "reservation"}
    body = {
        names.get(name, name): value for name, value in options.items() if value not in (None, ())
    } | labels
    if "models" in body:
        body["models"] = list(body["models"])
    if "reservation" in body:
        body["reservation"] = find_by_id_or_name(
            session.client, body["reservation"], "reservations/", "reservation"
        )["id"]
    body.setdefault("project", None)
    body["project"] = body["project"] or only_project(session.client)
    body["pool"] = body.get("pool") or only_pool(session.client)
    return body


def label_fields(labels: tuple[str, ...], prefer: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the required and preferred labels under the API's names; empty ones are left out."""
    wanted = {"labels_required": parse_pairs(labels), "labels_preferred": parse_pairs(prefer)}
    return {name: pairs for name, pairs in wanted.items() if pairs}


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
    """Return the only project of the user's teams. Raises CliError if there are none or several."""
    teams = {membership["team"] for membership in client.get("me/")["teams"]}
    paths = [row["path"] for row in client.pages("projects/") if row["active"] and row["team"] in teams]
    if len(paths) != 1:
        raise CliError(
            f"Name a project with --project: {', '.join(paths) or 'you are in no team that has one'}."
        )
    return str(paths[0])


def only_pool(client: ApiClient) -> str:
    """Return the only pool, or the only shared one. Raises CliError if there are none or several."""
    pools = client.get("pools/")
    shared = [pool["slug"] for pool in pools if pool["kind"] == "dynamic"]
    names = shared if len(shared) == 1 else [pool["slug"] for pool in pools]
    if len(names) != 1:
        raise CliError(f"Name a pool with --pool: {', '.join(names) or 'there is none'}.")
    return str(names[0])
