"""Define the commands that create and protect accounts. For operators."""

from __future__ import annotations

import csv
from contextlib import nullcontext
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
LINK_COLUMNS = ("username", "email", "link")
REVOKE_OPTION = click.option("--revoke-tokens", is_flag=True, help="Also revoke the person's API tokens.")


@cli.group()
def person() -> None:
    """Show people, and protect their accounts."""


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
            rows = csv.writer(target)
            rows.writerow(LINK_COLUMNS)
            rows.writerows([each[name] for name in LINK_COLUMNS] for each in made)
            answer |= {"links": []}
        print_import(session, answer)
    if made and not session.json and target is None:
        output.print_table(LINK_COLUMNS, ([each[name] for name in LINK_COLUMNS] for each in made), "")


@command(person, "roles")
@click.argument("username")
@click.option("--operator/--no-operator", default=None, help="Manages hosts and pools, decides approvals.")
@click.option("--finance/--no-finance", default=None, help="Sees all charges, closes months.")
@click.option("--auditor/--no-auditor", default=None, help="Sees everything, changes nothing.")
@REVOKE_OPTION
@REASON_OPTION
@PREVIEW_OPTION
def change_roles(
    session: CliSession,
    username: str,
    operator: bool | None,
    finance: bool | None,
    auditor: bool | None,
    preview: bool,
    **fields: Any,
) -> None:
    """Change the roles of a person, which ends their sessions. Omitted roles stay."""
    roles = {"operator": operator, "finance": finance, "auditor": auditor}
    fields |= {name: given for name, given in roles.items() if given is not None}
    _change(session, username, ("change-roles", "roles"), preview, fields, "The roles of {} are changed.")


@command(person, "close")
@click.argument("username")
@REASON_OPTION
@PREVIEW_OPTION
def close_account(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """Close an account. Its sessions and its API tokens end for ever; the setting says what its work does."""
    verbs = ("close-account", "close")
    _change(session, username, verbs, preview, fields, "The account {} is closed.")


@command(person, "open")
@click.argument("username")
@REASON_OPTION
@PREVIEW_OPTION
def open_account(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """Open a closed account. Earlier sessions and tokens stay invalid."""
    _change(session, username, ("open-account", "open"), preview, fields, "The account {} is open.")


@command(person, "end-sessions")
@click.argument("username")
@REVOKE_OPTION
@REASON_OPTION
@PREVIEW_OPTION
def end_sessions(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """End all sessions of a person, with their open workspaces."""
    verbs = ("end-sessions", "end-sessions")
    _change(session, username, verbs, preview, fields, "The sessions of {} have ended.")


@command(person, "revoke-tokens")
@click.argument("username")
@click.option("--token", "tokens", type=int, multiple=True, help="The id of a token; may be repeated.")
@REASON_OPTION
@PREVIEW_OPTION
def revoke_tokens(
    session: CliSession, username: str, tokens: tuple[int, ...], preview: bool, why: str
) -> None:
    """Revoke API tokens of a person: those given with --token, or all. --preview lists the tokens."""
    fields = {"tokens": list(tokens), "why": why}
    verbs = ("revoke-tokens", "revoke-tokens")
    _change(session, username, verbs, preview, fields, "The tokens of {} are revoked.")


@command(person, "reset-password")
@click.argument("username")
@REVOKE_OPTION
@REASON_OPTION
@PREVIEW_OPTION
def reset_password(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """Make a password invalid, and print the one-time link for a new one."""
    if preview:
        return _print_effect(session, username, "reset-password")
    return _print_link(session, session.client.post(f"{_path(username)}reset-password/", fields))


@command(person, "reset-second-factor")
@click.argument("username")
@REVOKE_OPTION
@REASON_OPTION
@PREVIEW_OPTION
def reset_second_factor(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """Remove the second factor and the recovery codes of a person."""
    verbs = ("reset-second-factor", "reset-second-factor")
    _change(session, username, verbs, preview, fields, "The second factor of {} is removed.")


@command(person, "set-address")
@click.argument("username")
@click.option("--email", required=True, help="The new e-mail address.")
@REVOKE_OPTION
@REASON_OPTION
@PREVIEW_OPTION
def set_address(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """Change the e-mail address of a person."""
    verbs = ("change-address", "address")
    _change(session, username, verbs, preview, fields, "The e-mail address of {} is changed.")


@command(person, "stop-work")
@click.argument("username")
@REASON_OPTION
@PREVIEW_OPTION
def stop_work(session: CliSession, username: str, preview: bool, **fields: Any) -> None:
    """Stop all running and waiting work of a person."""
    _change(session, username, ("stop-work", "stop-work"), preview, fields, "All work of {} is stopped.")


@command(person, "remove")
@click.argument("username")
@click.option(
    "--work",
    type=click.Choice(LEAVER_WORK),
    help="What happens to the work: stop it, end it with its reservation, or let a lead take charge. "
    "Default: the setting.",
)
@REASON_OPTION
@PREVIEW_OPTION
def remove_person(session: CliSession, username: str, work: str | None, preview: bool, **fields: Any) -> None:
    """Remove a person who has left: close the account, end roles and teams, and settle the work."""
    fields |= {"work": work.replace("-", "_")} if work else {}
    _change(session, username, ("remove-person", "remove"), preview, fields, "{} is removed.")


def _change(
    session: CliSession,
    username: str,
    verbs: tuple[str, str],
    preview: bool,
    fields: dict[str, Any],
    done: str,
) -> None:
    """Send a change, or print its effect. ``verbs`` are the verb of the preview and that of the address."""
    if preview:
        return _print_effect(session, username, verbs[0])
    found = session.client.post(f"{_path(username)}{verbs[1]}/", fields)
    return output.print_json(found) if session.json else output.print_line(done.format(username))


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
