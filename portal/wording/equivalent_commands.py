"""Show a form's request as a CLI command and as an API call, to copy."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

Arguments = Mapping[str, Any]

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
    """Return the CLI command equivalent to a form. Options keep their order; ``command`` follows ``--``;
    empty values are omitted.
    """
    parts = ["gpupool", *CLI_AND_API_OF_VERB[verb][0].split(), *([target] if target else [])]
    for name, value in arguments.items():
        if name == "command" or value in (None, "", [], {}, ()):
            continue
        option = f"--{_CLI_OPTION_OF_ARGUMENT.get(name, name).replace('_', '-')}"
        if isinstance(value, bool):
            parts += [option] if value else [f"--no-{option[2:]}"] if name == "preemptible" else []
        elif isinstance(value, list | tuple):
            parts += [word for item in value for word in (option, str(item))]
        elif isinstance(value, Mapping):
            parts += [word for key, item in value.items() for word in (option, f"{key}={item}")]
        else:
            parts += [option, value.isoformat() if isinstance(value, datetime) else str(value)]
    command = arguments.get("command")
    line = " ".join(shlex.quote(part) for part in parts)
    if not command:
        return line
    # Quote the command as one word if a shell would interpret it; `job run` takes one word as a whole command.
    plain = re.fullmatch(r"[\w@%+=:,./ -]+", command)
    return f"{line} -- {command if plain else shlex.quote(command)}"


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


_CLI_OPTION_OF_ARGUMENT = {
    "units": "gpus",
    "models": "model",
    "max_runtime_seconds": "max-runtime",
    "labels_required": "label",
    "environment": "env",
    "weekdays": "on",
    "labels_preferred": "prefer",
    "cpu_milli": "cpus",
    "memory_mib": "memory",
    "min_memory_mib": "min-memory",
}
