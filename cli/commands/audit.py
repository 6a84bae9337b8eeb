"""Define the command about the integrity of the audit records."""

from __future__ import annotations

from cli import output
from cli.session import CliSession, cli, command


@cli.group("audit")
def audit() -> None:
    """Show whether audit records were removed or changed."""


@command(audit, "integrity")
def show_integrity(session: CliSession) -> None:
    """Show the seals of the audit records, what their last check found, and the lag of their stream."""
    state = session.client.get("audit/integrity/")
    if session.json:
        return output.print_json(state)
    for sentence in state["sentences"]:
        output.print_line(sentence)
    if state["digest"]:
        output.print_line(f"Last seal: {state['seal']}:{state['digest']}")
    return None
