"""Signing in and out."""

from __future__ import annotations

import sys

import click

from cli import login, output
from cli.client import Client
from cli.session import Session, cli, command


@command(cli, "login")
@click.option("--url", prompt="URL of the portal", help="Such as https://gpu.example.org")
@click.option(
    "--token",
    prompt="Token",
    hide_input=True,
    help="Made in the portal under API tokens; - reads it from standard input.",
)
def sign_in(session: Session, url: str, token: str) -> None:
    """Keep the portal's address and a token, after trying them."""
    text = sys.stdin.readline().strip() if token == "-" else token.strip()
    made = login.Login(login.checked_url(url), text)
    me = Client(made).get("me/")
    place = login.path()
    login.save(made, place)
    if session.json:
        output.as_json({"url": made.url, "username": me["username"]})
    else:
        output.say(f"Signed in to {made.url} as {me['username']}. Kept in {place}.")


@command(cli, "logout")
def sign_out(session: Session) -> None:
    """Forget the token here; revoke it in the portal to end it everywhere."""
    login.path().unlink(missing_ok=True)
    output.as_json({}) if session.json else output.say("Signed out on this machine.")


@command(cli, "me")
def whoami(session: Session) -> None:
    """Who the token speaks for."""
    me = session.client.get("me/")
    if session.json:
        return output.as_json(me)
    roles = [name for name in ("operator", "finance", "auditor") if me[name]]
    teams = [f"{each['team']} ({each['role']})" for each in me["teams"]]
    return output.facts(
        [
            ("name", me["username"]),
            ("portal", session.client.login.url),
            ("roles", ", ".join(roles)),
            ("teams", ", ".join(teams)),
        ]
    )
