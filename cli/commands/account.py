"""Define the commands to sign in and out, and the command about the integrity of audit records."""

from __future__ import annotations

import sys

import click

from cli import credentials, output
from cli.client import ApiClient
from cli.session import CliSession, cli, command


@command(cli, "login")
@click.option("--url", prompt="URL of the portal", help="Such as https://gpu.example.org")
@click.option(
    "--token",
    prompt="Token",
    hide_input=True,
    help="A token from the portal's page API tokens. Give - to read the token from standard input.",
)
def sign_in(session: CliSession, url: str, token: str) -> None:
    """Store the portal's address and a token, after testing them."""
    text = sys.stdin.readline().strip() if token == "-" else token.strip()
    made = credentials.Credentials(credentials.normalised_portal_url(url), text)
    me = ApiClient(made).get("me/")
    place = credentials.credentials_path()
    credentials.save_credentials(made, place)
    if session.json:
        output.print_json({"url": made.url, "username": me["username"]})
    else:
        output.print_line(f"Signed in to {made.url} as {me['username']}. Kept in {place}.")


@command(cli, "logout")
def sign_out(session: CliSession) -> None:
    """Delete the token on this machine; revoke it in the portal to disable it everywhere."""
    credentials.credentials_path().unlink(missing_ok=True)
    output.print_json({}) if session.json else output.print_line("Signed out on this machine.")


@command(cli, "me")
def whoami(session: CliSession) -> None:
    """Show the user of the token, with roles and teams."""
    me = session.client.get("me/")
    if session.json:
        return output.print_json(me)
    roles = [name for name in ("operator", "finance", "auditor") if me[name]]
    teams = [f"{membership['team']} ({membership['role']})" for membership in me["teams"]]
    return output.print_facts(
        [
            ("name", me["username"]),
            ("portal", session.client.login.url),
            ("roles", ", ".join(roles)),
            ("teams", ", ".join(teams)),
        ]
    )


@cli.group("audit")
def audit() -> None:
    """Show whether audit records were removed or changed."""


@command(audit, "integrity")
def show_integrity(session: CliSession) -> None:
    """Show the seals of the audit records, the findings of their last check, and the lag of their stream."""
    state = session.client.get("audit/integrity/")
    if session.json:
        return output.print_json(state)
    for sentence in state["sentences"]:
        output.print_line(sentence)
    if state["digest"]:
        output.print_line(f"Last seal: {state['seal']}:{state['digest']}")
    return None
