"""Define the commands about Unix identities and about the limit of a team's homes. For operators."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.commands.people.accounts import REASON_OPTION, person
from cli.commands.removal import team
from cli.formatting import gib_or_none
from cli.session import CliSession, command


@command(person, "unix-identity")
@click.argument("username")
def show_unix_identity(session: CliSession, username: str) -> None:
    """Show the Unix identity of a person or service account."""
    _print_identity(session, session.client.get(_path(username)))


@command(person, "set-unix-identity")
@click.argument("username")
@click.option("--uid", type=int, required=True, help="The user number on the file server.")
@click.option("--gid", type=int, help="The group number. Omitted: the user number.")
@click.option(
    "--group", "groups", type=int, multiple=True, help="A further group; may be given several times."
)
@click.option("--name", help="The Unix name. Omitted: the user name.")
@click.option("--home", help="The path of the home on the hosts. Omitted: /home/ and the Unix name.")
@REASON_OPTION
def set_unix_identity(session: CliSession, username: str, **fields: Any) -> None:
    """Set the user as which work of a person runs, in pools whose work runs as its owner.

    New work has the new identity. Providers no longer change it.
    """
    body = {
        name: list(value) if name == "groups" else value
        for name, value in fields.items()
        if value is not None
    }
    _print_identity(session, session.client.put(_path(username), body))


@command(person, "remove-unix-identity")
@click.argument("username")
@REASON_OPTION
def remove_unix_identity(session: CliSession, username: str, why: str) -> None:
    """Remove the Unix identity of a person. Running and waiting work keeps it."""
    found = session.client.post(f"{_path(username)}remove/", {"why": why})
    if session.json:
        return output.print_json(found)
    return output.print_line(f"The Unix identity of {username} is removed.")


@command(team, "home-limit")
@click.argument("slug")
@click.argument("gib")
@click.option("--reason", default="", help="Stored in the audit log.")
def set_home_limit(session: CliSession, slug: str, gib: str, reason: str) -> None:
    """Set the largest size of new homes of a team in GiB; none: the limit of the pool."""
    path = f"teams/{quote(slug, safe='', errors='replace')}/home-limit/"
    found = session.client.put(path, {"home_limit_gib": gib_or_none(gib), "why": reason})
    if session.json:
        return output.print_json(found)
    limit = found["home_limit_gib"]
    return output.print_line(
        f"New homes of {slug} have {f'at most {limit} GiB' if limit else 'the limit of the pool'}."
    )


def _print_identity(session: CliSession, found: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(found)
    groups = ", ".join(map(str, found["groups"]))
    facts = [(name, str(found[name])) for name in ("username", "name", "uid", "gid")]
    set_by = found["provider"] or "an operator"
    return output.print_facts([*facts, ("groups", groups), ("home", found["home"]), ("set by", set_by)])


def _path(username: str) -> str:
    return f"people/{quote(username, safe='', errors='replace')}/unix-identity/"
