"""Show the request as a command line and as an API call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django.conf import settings

from portal.web.gpu_request.field_values import SIZE_FIELDS, size_text
from portal.web.gpu_request.forms import GpuRequestForm
from portal.wording import equivalent_commands as same_request
from scheduler.models import JobArray

PLACEMENT_ARGUMENTS = (
    "nvlink",
    "labels_required",
    "labels_preferred",
    *(argument for argument, _, _ in SIZE_FIELDS.values()),
)
JOB_PLACEMENT_ARGUMENTS = ("hosts", *PLACEMENT_ARGUMENTS, "spread")


@dataclass(frozen=True)
class EquivalentCommands:
    """A request as a command line and as a curl command."""

    cli: str
    api: str


# Not split: one branch per kind of request, in the order of the API.
def equivalent_commands(form: GpuRequestForm) -> EquivalentCommands:
    """Return the command line and the API call that make the same request."""
    kind = form.selected_kind
    pool, model, profile = form.cleaned_data["target"]
    data = form.cleaned_data
    arguments: dict[str, Any] = {
        "project": f"{form.selected_project.team.slug}/{form.selected_project.slug}",
        "pool": pool.slug,
        "name": data["name"],
        "units": data["units"],
        "models": form.common()["models"],
        "profile": profile,
    }
    if kind == "reservation":
        whole = form.for_reservation()
        arguments |= {
            "start": whole["start"].astimezone(UTC),
            "end": whole["end"].astimezone(UTC),
            "why": data["why"],
        }
        arguments |= _non_default_arguments(whole, ("may_exceed_guarantee", *JOB_PLACEMENT_ARGUMENTS))
    elif kind == "notebook":
        arguments |= {"type": data["type"], "max_runtime_seconds": data["seconds"]} | _non_default_arguments(
            form.placing(), PLACEMENT_ARGUMENTS
        )
    else:
        whole = form.for_job()
        names = (
            *JOB_PLACEMENT_ARGUMENTS,
            "type",
            "priority",
            "preemptible",
            "max_runtime_seconds",
            "most_retries",
            "if_member_ends",
            "environment",
            "wanted_by",
            "command",
        )
        arguments |= _non_default_arguments(whole, names)
        arguments["array"] = data["array"].strip()
        arguments["after"] = [
            {"condition": how, "array" if isinstance(on, JobArray) else "workload": str(on.public_id)}
            for how, on in whole["after"]
        ]
    if form.recurs:
        arguments |= {name: form.for_series()[name] for name in ("weekdays", "until", "time_zone")}
        arguments["until"] = f"{arguments['until']:%Y-%m-%d}" if arguments["until"] else ""
    verb = {
        "reservation": "request_series" if form.recurs else "request_reservation",
        "notebook": "launch_notebook",
        "job": "submit_array" if arguments.get("array") else "submit_job",
    }[kind]
    given = {name: value for name, value in arguments.items() if value not in ("", [], {}, None)}
    cli_arguments = given
    if "after" in given:
        cli_arguments = given | {
            "after": [
                f"{dependency['condition']}:{dependency.get('array') or dependency['workload']}"
                for dependency in given["after"]
            ]
        }
    if "max_runtime_seconds" in given:
        cli_arguments = cli_arguments | {"max_runtime_seconds": _cli_duration(given["max_runtime_seconds"])}
    sizes = {argument: name for name, (argument, _, _) in SIZE_FIELDS.items() if argument in given}
    cli_arguments = cli_arguments | {
        argument: size_text(name, given[argument]) for argument, name in sizes.items()
    }
    return EquivalentCommands(
        same_request.cli_command(verb, cli_arguments),
        same_request.curl_command(verb, given, base=settings.GPUPOOL_PORTAL_URL),
    )


def _non_default_arguments(arguments: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return those of ``names`` whose values differ from the defaults of the API."""
    defaults = {
        "may_exceed_guarantee": False,
        "hosts": 1,
        "nvlink": False,
        "spread": False,
        **{argument: 0 for argument, _, _ in SIZE_FIELDS.values()},
        "most_retries": 0,
        "if_member_ends": "restart",
    }
    empty: tuple[Any, ...] = (None, {})
    return {n: arguments[n] for n in names if arguments[n] not in empty and arguments[n] != defaults.get(n)}


def _cli_duration(seconds: int) -> str:
    """Return a duration in the syntax of the command line: 4h, 90m, 75s."""
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
