"""Show the request as a command line and as an API call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

from django.conf import settings

from portal.web.gpu_request.forms import GpuRequestForm
from portal.wording import equivalent_commands as same_request
from scheduler.models import JobArray
from scheduler.requests import WorkloadRequest, request_fields

# Values that the API uses for absent arguments. The commands leave out arguments with these values.
# `preemptible` is excluded, because for a job the API's default is True, unlike the declared default.
DEFAULTS: dict[str, Any] = {
    each.argument: each.default
    for each in request_fields(WorkloadRequest)
    if each.default is not None and each.name not in ("preemptible", "priority")
} | {"may_exceed_guarantee": False}


@dataclass(frozen=True)
class EquivalentCommands:
    """A request as a command line and as a curl command."""

    cli: str
    api: str


def equivalent_commands(form: GpuRequestForm) -> EquivalentCommands:
    """Return the command line and the API call that make the same request."""
    pool, _, _ = form.cleaned_data["target"]
    whole = form.arguments()
    arguments = whole | {
        "project": f"{form.selected_project.team.slug}/{form.selected_project.slug}",
        "pool": pool.slug,
    }
    if form.selected_kind == "reservation":
        verb = "request_series" if form.recurs else "request_reservation"
        arguments |= {name: whole[name].astimezone(UTC) for name in ("start", "end")}
        if form.recurs:
            arguments["until"] = f"{whole['until']:%Y-%m-%d}" if whole["until"] else ""
    else:
        array = form.cleaned_data["array"].strip() if form.selected_kind == "job" else ""
        verb = {"notebook": "launch_notebook", "job": "submit_array" if array else "submit_job"}[
            form.selected_kind
        ]
        arguments |= {"array": array} | _references(whole)
    given = {
        name: value
        for name, value in arguments.items()
        if value not in ("", [], {}, None) and (name not in DEFAULTS or value != DEFAULTS[name])
    }
    return EquivalentCommands(
        same_request.cli_command(verb, given),
        same_request.curl_command(verb, given, base=settings.GPUPOOL_PORTAL_URL),
    )


def _references(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments ``reservation`` and ``after`` (dependencies) with public ids instead of rows."""
    reservation = arguments["reservation"]
    return {
        "reservation": str(reservation.public_id) if reservation else "",
        "after": [
            {"condition": how, "array" if isinstance(on, JobArray) else "workload": str(on.public_id)}
            for how, on in arguments.get("after", ())
        ],
    }
