"""Define the command that shows the health of the installation."""

from __future__ import annotations

import click

from cli import output
from cli.session import CliSession, cli, command

STATES = ("good", "unknown", "attention", "bad")


@command(cli, "system")
@click.option("--state", type=click.Choice(STATES), multiple=True, help="Only checks in this state.")
def system(session: CliSession, state: tuple[str, ...]) -> None:
    """Show the checks of the installation: processes, queues, lags, storage, certificates, backups."""
    health = session.client.get("system/")
    checks = [each for each in health["checks"] if not state or each["state"] in state]
    if session.json:
        return output.print_json({**health, "checks": checks})
    output.print_line(f"Version {health['version']}; the worst state is {health['state']}.")
    rows = ((each["label"], each["text"], each["state"], each["limit"], each["advice"]) for each in checks)
    return output.print_table(
        ("check", "value", "state", "limit", "what to do"), rows, "No check is in this state."
    )
