"""Options of everything that asks for GPUs, and the request that they make."""

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
    """Options of everything that asks for GPUs."""
    for option in reversed(
        (
            click.option("--project", help="team/project; not needed when you have one only."),
            click.option("--pool", help="Not needed when there is one only."),
            click.option("--gpus", type=int, help="How many (on each host)."),
            click.option(
                "--model", "models", multiple=True, help="Such as H100-80GB; again for a second choice."
            ),
            click.option("--profile", help="A slice, such as 1g.10gb; whole GPUs unless given."),
        )
    ):
        function = option(function)
    return function


def run_options(function: CommandFunction) -> CommandFunction:
    """Options of everything that runs."""
    for option in reversed(
        (
            click.option("--name", help="How people call it."),
            click.option("--type", "type_", type=WORKLOAD_TYPE),
            click.option("--max-runtime", type=DURATION_TYPE, help="Such as 90m, 8h, 1d."),
            click.option("--reservation", "inside", help="ID of a reservation to run inside."),
        )
    ):
        function = option(function)
    return function


def requirement_options(function: CommandFunction) -> CommandFunction:
    """Options that say what it needs of its GPUs and of each host, and on which hosts."""
    for option in reversed(
        (
            click.option(
                "--cpus",
                "cpu_milli",
                type=CORES_TYPE,
                help="CPU cores on each host; not limited unless given.",
            ),
            click.option(
                "--memory",
                "memory_mib",
                type=MEMORY_TYPE,
                help="On each host, such as 64G; not limited unless given.",
            ),
            click.option(
                "--min-memory", "min_memory_mib", type=MEMORY_TYPE, help="Of each GPU, at least: such as 40G."
            ),
            click.option(
                "--min-compute-capability",
                type=COMPUTE_CAPABILITY_TYPE,
                help="Of each GPU, at least: such as 8.0 (A100) or 9.0 (H100).",
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
                "--prefer", multiple=True, metavar="NAME=VALUE", help="Rather on hosts with this label."
            ),
        )
    ):
        function = option(function)
    return function


def placement_options(function: CommandFunction) -> CommandFunction:
    """The same, and over how many hosts."""
    function = click.option(
        "--spread", is_flag=True, default=None, help="Over hosts that share as little as can be."
    )(function)
    return click.option("--hosts", type=int, help="Over so many hosts.")(requirement_options(function))


def request_body(session: CliSession, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, under the API's names; project and pool where there is only one."""
    labels = label_fields(given.pop("labels", ()), given.pop("prefer", ()))
    names = {"gpus": "units", "type_": "type", "max_runtime": "max_runtime_seconds", "inside": "reservation"}
    body = {names.get(name, name): value for name, value in given.items() if value not in (None, ())} | labels
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
    wanted = {"labels_required": parse_pairs(labels), "labels_preferred": parse_pairs(prefer)}
    return {name: pairs for name, pairs in wanted.items() if pairs}


def parse_pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r}; allowed: NAME=VALUE.")
        pairs[name] = value
    return pairs


def only_project(client: ApiClient) -> str:
    mine = {each["team"] for each in client.get("me/")["teams"]}
    found = [row["path"] for row in client.pages("projects/") if row["active"] and row["team"] in mine]
    if len(found) != 1:
        raise CliError(
            f"Name a project with --project: {', '.join(found) or 'you are in no team that has one'}."
        )
    return str(found[0])


def only_pool(client: ApiClient) -> str:
    pools = client.get("pools/")
    shared = [pool["slug"] for pool in pools if pool["kind"] == "dynamic"]
    names = shared if len(shared) == 1 else [pool["slug"] for pool in pools]
    if len(names) != 1:
        raise CliError(f"Name a pool with --pool: {', '.join(names) or 'there is none'}.")
    return str(names[0])
