"""List, cancel and open workloads, for the commands of notebooks and jobs."""

from __future__ import annotations

import webbrowser
from datetime import datetime
from typing import Any

from cli import output
from cli.formatting import relative_time
from cli.lookup import find_workload
from cli.session import CliSession

POLL_SECONDS = 1.0


def print_created(session: CliSession, made: Any) -> None:
    """Print a workload that was just submitted."""
    if session.json:
        return output.print_json(made)
    output.print_line(
        f"{made['name']} ({made['id']}) is {made['state']}: {gpu_request_text(made)} in {made['pool']}."
    )
    if made.get("warning"):
        output.print_line(made["warning"])
    return (
        output.print_line(f"See why it waits: gpupool why {made['id'][:8]}")
        if made["state"] == "queued"
        else None
    )


def gpu_request_text(row: Any) -> str:
    """Return the requested GPUs, e.g. ``2 hosts, each 8 x H100-80GB``."""
    count = f"{row['hosts']} hosts, each {row['units']}" if row["hosts"] > 1 else row["units"]
    return f"{count} x {' or '.join(row['models']) or 'any'}{' ' + row['profile'] if row['profile'] else ''}"


def list_workloads(session: CliSession, path: str, everything: bool, **only: str) -> None:
    """Print workloads in a table.

    If ``everything`` is False, only the user's own workloads that have not ended are printed.
    """
    query: dict[str, Any] = {**only} if everything else {"mine": True, "state": "open", **only}
    rows = list(session.client.pages(path, **query))
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("id", "name", "state", "GPUs", "pool", "submitted", "started", "owner"),
        (
            (
                row["id"][:8],
                row["name"],
                row["outcome"] if row["state"] == "ended" else row["state"],
                row["units"] * row["hosts"],
                row["pool"],
                relative_time(row["submitted_at"], now),
                relative_time(row["started_at"], now),
                row["owner"],
            )
            for row in rows
        ),
        "None. To include workloads of your teams and ended ones: --all",
    )


def cancel_workload(session: CliSession, id_: str, reason: str) -> None:
    """Cancel a workload and print its new state."""
    answer = session.client.post(f"workloads/{find_workload(session, id_)['id']}/cancel/", {"why": reason})
    if session.json:
        return output.print_json(answer)
    return output.print_line(
        f"{answer['name']} is {'cancelled' if answer['state'] == 'ended' else 'stopping'}."
    )


def open_in_browser(session: CliSession, workload: Any, print_only: bool) -> None:
    """Open a workload in the browser, or print its address."""
    answer = session.client.post(f"workloads/{workload['id']}/open/")
    if session.json:
        return output.print_json(answer)
    if not print_only and webbrowser.open(answer["url"]):
        return output.print_line(f"{workload['name']} opens in the browser.")
    return print(answer["url"])
