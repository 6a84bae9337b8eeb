"""Return the CLI command and the API call that are equivalent to a form."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from scheduler.requests import WorkloadRequest, request_fields

Arguments = Mapping[str, Any]
DECLARED = {each.argument: each for each in request_fields(WorkloadRequest)}
# Arguments that are not fields of a request, each with its command-line option.
OTHER_OPTIONS = {"weekdays": "on"}

# verb -> (CLI command, HTTP method, API path)
CLI_AND_API_OF_VERB: dict[str, tuple[str, str, str]] = {
    "launch_notebook": ("notebook launch", "POST", "/api/v1/notebooks/"),
    "submit_job": ("job run", "POST", "/api/v1/jobs/"),
    "request_reservation": ("reservation create", "POST", "/api/v1/reservations/"),
    "request_series": ("reservation create", "POST", "/api/v1/series/"),
    "request_quota_change": ("quota request", "POST", "/api/v1/quotas/requests/"),
    "submit_array": ("job run", "POST", "/api/v1/arrays/"),
    "cancel_workload": ("cancel", "POST", "/api/v1/workloads/{id}/cancel/"),
    "extend_workload": ("extend", "POST", "/api/v1/workloads/{id}/extend/"),
}


def cli_command(verb: str, arguments: Arguments, *, target: str = "") -> str:
    """Return the CLI command that is equivalent to a form.

    The options are in the order of ``arguments``; empty values are omitted. The value of the argument
    ``command`` comes last, after ``--``.
    """
    parts = ["gpupool", *CLI_AND_API_OF_VERB[verb][0].split(), *([target] if target else [])]
    for name, value in arguments.items():
        if name != "command":
            parts += _option_words(name, value)
    command = arguments.get("command")
    line = " ".join(shlex.quote(part) for part in parts)
    if not command:
        return line
    # `job run` accepts the whole command as one word. Quote it if the shell would interpret a character.
    plain = re.fullmatch(r"[\w@%+=:,./ -]+", command)
    return f"{line} -- {command if plain else shlex.quote(command)}"


# Not split: each type of value has one rule, and the first rule that matches decides.
def _option_words(name: str, value: Any) -> list[str]:
    """Return an argument as command-line words; [] if it is empty."""
    option, _, negative = cli_option(name).partition("/")
    if value in (None, "", [], {}, ()):
        return []
    if isinstance(value, bool):
        return [option] if value else [negative] if negative else []
    if isinstance(value, list | tuple):
        return [word for item in value for word in (option, _item_text(item))]
    if isinstance(value, Mapping):
        return [word for key, item in value.items() for word in (option, f"{key}={item}")]
    declared = DECLARED.get(name)
    if declared is not None and declared.unit:
        return [option, quantity_text(declared.unit, value)]
    return [option, value.isoformat() if isinstance(value, datetime) else str(value)]


def curl_command(verb: str, arguments: Arguments, *, target: str = "", base: str = "") -> str:
    """Return the equivalent curl command. The token comes from the environment."""
    _, method, path = CLI_AND_API_OF_VERB[verb]
    body = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in arguments.items()
        if value not in (None, "")
    }
    url = f"{base}{path.replace('{id}', target)}"
    return (
        f'curl -X {method} {shlex.quote(url)} \\\n  -H "Authorization: Bearer $GPUPOOL_TOKEN" \\\n'
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )


def cli_option(argument: str) -> str:
    """Return the command-line option of an argument, such as ``--gpus``.

    A flag with a negative form has both, separated by ``/``.
    """
    declared = DECLARED.get(argument)
    if declared is not None and declared.option:
        return declared.option
    return f"--{OTHER_OPTIONS.get(argument, argument).replace('_', '-')}"


def quantity_text(unit: str, value: int) -> str:
    """Convert a number of the API to the text that forms and the CLI use.

    Examples: ``4h``, ``90m``, ``2.5`` (CPU cores or GiB) or ``8.0`` (compute capability).
    """
    if unit == "seconds":
        for size, suffix in ((3600, "h"), (60, "m")):
            if value % size == 0:
                return f"{value // size}{suffix}"
        return f"{value}s"
    if unit == "tenths":
        return f"{value / 10:.1f}"
    per_unit = {"thousandths of a core": 1000, "MiB": 1024}.get(unit, 1)
    return f"{Decimal(value) / per_unit:.4f}".rstrip("0").rstrip(".")


def _item_text(item: Any) -> str:
    """Return a list item as an option value; a dependency becomes ``CONDITION:ID``."""
    if not isinstance(item, Mapping):
        return str(item)
    return f"{item['condition']}:{item.get('array') or item['workload']}"
