"""Define the commands that launch, open, stop and list notebooks."""

from __future__ import annotations

import time
from typing import Any

import click

from cli import output
from cli.errors import CliError
from cli.lookup import find_workload
from cli.request_options import request_body, request_options
from cli.session import CliSession, cli, command
from cli.workload_actions import (
    POLL_SECONDS,
    cancel_workload,
    list_workloads,
    open_in_browser,
    print_created,
)


@cli.group()
def notebook() -> None:
    """Launch, open and stop notebooks."""


@command(notebook, "launch")
@request_options("notebook")
@click.option("--template", help="Default values for options that are not given.")
@click.option("--open", "open_it", is_flag=True, help="Wait until it is ready and open it in the browser.")
@click.option("--wait", is_flag=True, help="Wait until it is ready.")
def launch_notebook(
    session: CliSession, open_it: bool, wait: bool, template: str | None, **given: Any
) -> None:
    """Launch JupyterLab as a notebook."""
    body = request_body(session, given) | ({"template": template} if template else {})
    made = session.client.post("notebooks/", body)
    if wait or open_it:
        made = _wait_until_ready(session, made["id"])
    if open_it:
        return open_in_browser(session, made, print_only=False)
    return print_created(session, made)


@command(notebook, "open")
@click.argument("id_", metavar="ID")
@click.option("--print", "print_only", is_flag=True, help="Print the address without opening a browser.")
def open_notebook(session: CliSession, id_: str, print_only: bool) -> None:
    """Open a running notebook in the browser. The address works once, within a minute."""
    open_in_browser(session, find_workload(session, id_), print_only)


@command(notebook, "stop")
@click.argument("id_", metavar="ID")
def stop_notebook(session: CliSession, id_: str) -> None:
    """Stop a notebook; its files stay in your home."""
    cancel_workload(session, id_, "")


@command(notebook, "list")
@click.option("--all", "everything", is_flag=True, help="Also notebooks of your teams, and ended notebooks.")
def list_notebooks(session: CliSession, everything: bool) -> None:
    """List your notebooks."""
    list_workloads(session, "notebooks/", everything)


def _wait_until_ready(session: CliSession, id_: str) -> Any:
    """Poll until the notebook is ready, printing its progress. Raises CliError if it ends first."""
    last_progress = ""
    while True:
        answer = session.client.get(f"workloads/{id_}/")
        run_ = answer["runs"][0] if answer["runs"] else {}
        if answer["state"] == "ended":
            raise CliError(
                f"{answer['name']} ended before it was ready: {answer['outcome'].replace('_', ' ')}."
            )
        if run_.get("ready_at") and answer["state"] in ("running", "notice"):
            return answer
        progress = f"{answer['state']}: {run_.get('step') or answer['reason']}".rstrip(": ")
        if progress != last_progress and not session.json:
            output.print_line(progress)
        last_progress = progress
        time.sleep(POLL_SECONDS)
