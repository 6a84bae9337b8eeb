"""Define the commands that create and protect accounts. For operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.commands.people.access import LEAVER_WORK
from cli.csv_import import import_file, new_private_file, print_import
from cli.session import CliSession, cli, command

REASON_OPTION = click.option("--why", default="", help="The reason; it is stored in the audit log.")
PREVIEW_OPTION = click.option(
    "--preview", is_flag=True, help="Only show the effect, also on running work. Nothing is changed."
)
FieldsFunction = Callable[..., dict[str, Any]]
LINK_COLUMNS = ("username", "email", "link")
REVOKE_OPTION = click.option("--revoke-tokens", is_flag=True, help="Also revoke the person's API tokens.")


@cli.group()
def person() -> None:
    """Show people, and protect their accounts."""


def change_command(
    name: str, effect: str, done: str, path: str = "", *, revokes: bool = False
) -> Callable[[FieldsFunction], click.Command]:
    """Return a decorator that makes a command of the group ``person`` from a function.

    The function gets the command's own options, and returns the fields of the request. ``effect`` is the verb
    of the preview, ``path`` that of the address (``name`` if empty), and ``done`` the confirmation with the
    user name. An answer with a link prints the link instead. ``revokes`` adds ``--revoke-tokens``.
    """

    def wrap(function: FieldsFunction) -> click.Command:
        @wraps(function)
        def call(session: CliSession, username: str, preview: bool, why: str, **options: Any) -> None:
            if preview:
                return _print_effect(session, username, effect)
            fields = {"why": why}
            if revokes:
                fields |= {"revoke_tokens": options.pop("revoke_tokens")}
            fields |= function(**options)
            found = session.client.post(f"{_path(username)}{path or name}/", fields)
            if "link" in found:
                return _print_link(session, found)
            return output.print_json(found) if session.json else output.print_line(done.format(username))

        for option in (PREVIEW_OPTION, REASON_OPTION, *((REVOKE_OPTION,) if revokes else ())):
            option(call)
        return command(person, name)(click.argument("username")(call))

    return wrap


@command(person, "list")
def list_people(session: CliSession) -> None:
    """List the people that you may see."""
    found = session.client.get("people/", page_size=200)
    if session.json:
        return output.print_json(found)
    rows = ((each["username"], each["name"], _roles(each), _teams(each)) for each in found["results"])
    return output.print_table(("user name", "name", "roles", "teams"), rows, "You see nobody.")


@command(person, "show")
@click.argument("username")
def show_person(session: CliSession, username: str) -> None:
    """Show one person, with roles and teams."""
    found = session.client.get(_path(username))
    if session.json:
        return output.print_json(found)
    account = "open" if found["active"] else "closed"
    facts = [("user name", found["username"]), ("name", found["name"]), ("account", account)]
    return output.print_facts([*facts, ("roles", _roles(found)), ("teams", _teams(found))])


@command(person, "create")
@click.argument("username")
@click.option("--email", required=True, help="The e-mail address.")
@click.option("--name", "full_name", default="", help="The person's full name.")
@click.option("--operator", is_flag=True, help="Manages hosts and pools, decides approvals.")
@click.option("--finance", is_flag=True, help="Sees all charges, closes months.")
@click.option("--auditor", is_flag=True, help="Sees everything, changes nothing.")
def create_person(session: CliSession, username: str, **fields: Any) -> None:
    """Create an account, and print the one-time link with which the person sets a password."""
    _print_link(session, session.client.post("people/", {"username": username, **fields}))


@command(person, "import")
@click.argument("file", type=click.File("rb"))
@click.option("--preview", is_flag=True, help="Only show what the import would do.")
@click.option(
    "--links",
    type=click.Path(dir_okay=False, writable=True),
    help="A new file for the one-time links of new people; otherwise they are printed.",
)
@REASON_OPTION
def import_people(session: CliSession, file: Any, preview: bool, links: str | None, why: str) -> None:
    """Import people from a CSV file; print the links of new people. "-" reads standard input."""
    with new_private_file(links) if links and not preview else nullcontext() as target:
        answer = import_file(session, "people-import/", file, preview=preview, why=why)
        made = answer.get("links", [])
        if target is not None:
            # No user name, address or link has a tab.
            rows = [LINK_COLUMNS, *([each[name] for name in LINK_COLUMNS] for each in made)]
            target.writelines("\t".join(row) + "\n" for row in rows)
            answer |= {"links": []}
        print_import(session, answer)
    if made and not session.json and target is None:
        output.print_table(LINK_COLUMNS, ([each[name] for name in LINK_COLUMNS] for each in made), "")


@change_command("roles", "change-roles", "The roles of {} are changed.", revokes=True)
@click.option("--operator/--no-operator", default=None, help="Manages hosts and pools, decides approvals.")
@click.option("--finance/--no-finance", default=None, help="Sees all charges, closes months.")
@click.option("--auditor/--no-auditor", default=None, help="Sees everything, changes nothing.")
def change_roles(**roles: bool | None) -> dict[str, Any]:
    """Change the roles of a person, which ends their sessions. Omitted roles stay."""
    return {name: given for name, given in roles.items() if given is not None}


@change_command("close", "close-account", "The account {} is closed.")
def close_account() -> dict[str, Any]:
    """Close an account. Its sessions and its API tokens end for ever; the setting says what its work does."""
    return {}


@change_command("open", "open-account", "The account {} is open.")
def open_account() -> dict[str, Any]:
    """Open a closed account. Earlier sessions and tokens stay invalid."""
    return {}


@change_command("end-sessions", "end-sessions", "The sessions of {} have ended.", revokes=True)
def end_sessions() -> dict[str, Any]:
    """End all sessions of a person, with their open workspaces."""
    return {}


@change_command("revoke-tokens", "revoke-tokens", "The tokens of {} are revoked.")
@click.option("--token", "tokens", type=int, multiple=True, help="The id of a token; may be repeated.")
def revoke_tokens(tokens: tuple[int, ...]) -> dict[str, Any]:
    """Revoke API tokens of a person: those given with --token, or all. --preview lists the tokens."""
    return {"tokens": list(tokens)}


@change_command("reset-password", "reset-password", "", revokes=True)
def reset_password() -> dict[str, Any]:
    """Make a password invalid, and print the one-time link for a new one."""
    return {}


@change_command(
    "reset-second-factor", "reset-second-factor", "The second factor of {} is removed.", revokes=True
)
def reset_second_factor() -> dict[str, Any]:
    """Remove the second factor and the recovery codes of a person."""
    return {}


@change_command(
    "set-address", "change-address", "The e-mail address of {} is changed.", "address", revokes=True
)
@click.option("--email", required=True, help="The new e-mail address.")
def set_address(email: str) -> dict[str, Any]:
    """Change the e-mail address of a person."""
    return {"email": email}


@change_command("stop-work", "stop-work", "All work of {} is stopped.")
def stop_work() -> dict[str, Any]:
    """Stop all running and waiting work of a person."""
    return {}


@change_command("remove", "remove-person", "{} is removed.")
@click.option(
    "--work",
    type=click.Choice(list(LEAVER_WORK)),
    help="What happens to the work: stop it, end it with its reservation, or let a lead take charge. "
    "Default: the setting.",
)
def remove_person(work: str | None) -> dict[str, Any]:
    """Remove a person who has left: close the account, end roles and teams, and settle the work."""
    return {"work": work.replace("-", "_")} if work else {}


def _print_effect(session: CliSession, username: str, verb: str) -> None:
    found = session.client.get(f"{_path(username)}effect/", verb=verb)
    if session.json:
        return output.print_json(found)
    output.print_line(f"{found['name']}: {found['text']}")
    if found["refused"]:
        output.print_line(f"Refused now: {found['refused']}")
    output.print_line(found["work_text"])
    output.print_line(f"Open workspaces: {found['workspaces']}.")
    tokens = ", ".join(f"{token['name']} (id {token['id']})" for token in found["tokens"])
    output.print_line(f"API tokens in force: {tokens or 'none'}.")
    return output.print_line("Nothing is changed. To do it, run the command without --preview.")


def _print_link(session: CliSession, found: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(found)
    if not found["link"]:
        return output.print_line(f"{found['username']} gets no link: passwords are turned off.")
    output.print_line(f"Give this link to {found['username']}. It sets a password, once and within 3 days:")
    return output.print_line(found["link"])


def _path(username: str) -> str:
    return f"people/{quote(username, safe='', errors='replace')}/"


def _roles(found: dict[str, Any]) -> str:
    return ", ".join(name for name in ("operator", "finance", "auditor") if found[name])


def _teams(found: dict[str, Any]) -> str:
    return ", ".join(f"{membership['team']} ({membership['role']})" for membership in found["teams"])
