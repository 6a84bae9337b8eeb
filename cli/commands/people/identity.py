"""Define the commands about identity providers and rules about claims. For operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.session import CliSession, cli, command

REASON_OPTION = click.option("--why", default="", help="The reason; it is stored in the audit log.")
SECRET_OPTION = click.option(
    "--secret-file", type=click.File("r"), help="A file with the client secret; - reads standard input."
)
CERTIFICATES_OPTION = click.option(
    "--certificates", type=click.File("r"), help="A file with PEM certificates that are also trusted."
)
SCOPES_OPTION = click.option("--scopes", help="Scopes with spaces between them; one of them is openid.")
CLAIM_OPTION = click.option("--username-claim", help="The claim with the user name of a new person.")
UNIX_CLAIMS = {
    "--uid-claim": "The claim with the Unix user number, for pools whose work runs as its owner.",
    "--gid-claim": "The claim with the Unix group number. Without it, the user number counts.",
    "--groups-claim": "The claim with the numbers of further Unix groups.",
    "--unix-name-claim": "The claim with the Unix name. Without it, the user name counts.",
    "--home-claim": "The claim with the path of the home. Without it, /home/ and the Unix name count.",
}
ACTIVE_OPTION = click.option("--on/--off", "active", default=None, help="Whether people can sign in with it.")
ACCOUNTS_OPTION = click.option(
    "--new-accounts/--no-new-accounts",
    "creates_accounts",
    default=None,
    help="Whether a new person gets an account at the first sign-in.",
)

# For each setting of a directory: the help of its option.
DIRECTORY_SETTINGS = {
    "url": "ldaps://HOST[:PORT], or ldap://HOST[:PORT] with --start-tls.",
    "bind_dn": "The DN of the service account.",
    "user_base": "The DN below which people are.",
    "user_filter": "People who match it may sign in.",
    "username_attribute": "The attribute with the user name.",
    "subject_attribute": "The attribute with the lasting id.",
    "email_attribute": "The attribute with the address.",
    "name_attribute": "The attribute with the full name.",
    "further_attributes": "Further attributes for rules, with spaces between them.",
    "group_base": "The DN below which groups are.",
    "group_kind": "groupOfNames, groupOfUniqueNames, posixGroup or activeDirectory.",
    "when_gone": "close or remove: what the sync does with people who are gone.",
    "start_tls": "Whether an ldap:// connection uses StartTLS.",
    "max_loss_percent": "A sync that would take their account or rights from more people is refused.",
}


def directory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting of a directory."""
    for name, text in reversed(DIRECTORY_SETTINGS.items()):
        option = f"--{name.replace('_', '-')}"
        if name == "start_tls":
            function = click.option(f"{option}/--no-start-tls", name, default=None, help=text)(function)
        elif name == "max_loss_percent":
            function = click.option(option, name, type=click.IntRange(1, 100), help=text)(function)
        else:
            function = click.option(option, name, help=text)(function)
    return function


def unix_claim_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the claims of the Unix identity."""
    for name, words in reversed(UNIX_CLAIMS.items()):
        function = click.option(name, help=words)(function)
    return function


@cli.group()
def identity() -> None:
    """Show and set how people sign in: identity providers, and rules about claims."""


@command(identity, "show")
def show_settings(session: CliSession) -> None:
    """List the providers and the rules, and say whether passwords are on."""
    found = session.client.get("identity/")
    if session.json:
        return output.print_json(found)
    output.print_line(f"Sign-in by password: {'on' if found['local_sign_in'] else 'off'}.")
    providers = (
        (each["slug"], each["name"], _address(each), "on" if each["active"] else "off")
        for each in found["providers"]
    )
    output.print_table(("provider", "name", "issuer or URL", "state"), providers, "There is no provider.")
    rules = (
        (str(each["id"]), each["provider"], f"{each['claim']}={each['value']}", _granted(each))
        for each in found["rules"]
    )
    return output.print_table(("rule", "provider", "claim", "gives"), rules, "There is no rule.")


@command(identity, "add")
@click.argument("name")
@click.option("--issuer", required=True, help="An https URL, exactly as the provider names itself.")
@click.option("--client-id", required=True, help="The id of the portal at the provider.")
@click.option("--slug", help="Part of the callback address. Omitted: made from the name.")
@SECRET_OPTION
@SCOPES_OPTION
@CLAIM_OPTION
@unix_claim_options
@CERTIFICATES_OPTION
@ACTIVE_OPTION
@ACCOUNTS_OPTION
@REASON_OPTION
def add_provider(session: CliSession, **fields: Any) -> None:
    """Add an identity provider. Test it before people use it."""
    found = session.client.post("identity/providers/", _body(fields))
    return output.print_json(found) if session.json else output.print_line(f"{found['slug']} is added.")


@command(identity, "set")
@click.argument("provider")
@click.option("--name", help="The label of the button on the sign-in page.")
@click.option("--issuer", help="An https URL, exactly as the provider names itself.")
@click.option("--client-id", help="The id of the portal at the provider.")
@SECRET_OPTION
@SCOPES_OPTION
@CLAIM_OPTION
@unix_claim_options
@CERTIFICATES_OPTION
@ACTIVE_OPTION
@ACCOUNTS_OPTION
@REASON_OPTION
def set_provider(session: CliSession, provider: str, **fields: Any) -> None:
    """Change an identity provider. Omitted options stay."""
    found = session.client.put(_path(provider), _body(fields))
    return output.print_json(found) if session.json else output.print_line(f"{provider} is changed.")


@command(identity, "remove")
@click.argument("provider")
@REASON_OPTION
def remove_provider(session: CliSession, provider: str, why: str) -> None:
    """Remove an identity provider with its rules and connections. Accounts and rights stay."""
    found = session.client.post(f"{_path(provider)}remove/", {"why": why})
    return output.print_json(found) if session.json else output.print_line(f"{provider} is removed.")


@command(identity, "test")
@click.argument("provider")
@click.option("--person", default="", help="A user name of a directory: shows attributes and groups.")
def run_test(session: CliSession, provider: str, person: str) -> None:
    """Test the connection to a provider, and say what is wrong."""
    found = session.client.post(f"{_path(provider)}test/", {"username": person})
    if session.json:
        return output.print_json(found)
    output.print_line(f"{'Passed' if found['passed'] else 'Failed'}: {found['text']}")
    for name, value in sorted(found["claims"].items()):
        output.print_line(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    if found["claims"]:
        output.print_line(f"The rules give: {_rights(found['granted']) or 'nothing'}")
    return None


@command(identity, "add-ldap")
@click.argument("name")
@click.option("--slug", help="A short name that never changes. Omitted: made from the name.")
@directory_options
@SECRET_OPTION
@CERTIFICATES_OPTION
@ACTIVE_OPTION
@ACCOUNTS_OPTION
@REASON_OPTION
def add_directory(session: CliSession, **fields: Any) -> None:
    """Add an LDAP directory. The secret is the password of the service account."""
    body = {"kind": "ldap", **_directory_body(fields)}
    found = session.client.post("identity/providers/", body)
    return output.print_json(found) if session.json else output.print_line(f"{found['slug']} is added.")


@command(identity, "set-ldap")
@click.argument("provider")
@click.option("--name", help="The label of the button on the sign-in page.")
@directory_options
@SECRET_OPTION
@CERTIFICATES_OPTION
@ACTIVE_OPTION
@ACCOUNTS_OPTION
@REASON_OPTION
def set_directory(session: CliSession, provider: str, **fields: Any) -> None:
    """Change an LDAP directory. Omitted options stay."""
    found = session.client.put(_path(provider), _directory_body(fields))
    return output.print_json(found) if session.json else output.print_line(f"{provider} is changed.")


@command(identity, "sync")
@click.argument("provider")
@click.option("--preview", is_flag=True, help="Only show the effect. Nothing is changed.")
@click.option("--allow-loss", is_flag=True, help="Sync although many people lose their account or rights.")
def sync_directory(session: CliSession, provider: str, preview: bool, allow_loss: bool) -> None:
    """Close accounts that a directory does not have any more, and apply the rules to present groups."""
    if not preview:
        done = session.client.post(f"{_path(provider)}sync/", {"allow_loss": allow_loss})
        return output.print_json(done) if session.json else output.print_line(done["text"])
    found = session.client.get(f"{_path(provider)}sync/preview/")
    if session.json:
        return output.print_json(found)
    output.print_line(found["text"])
    if found["closes"]:
        output.print_line(f"Accounts that would be closed: {', '.join(found['closes'])}")
    _print_changes(found["changes"])
    return output.print_line("Nothing is changed. To do it, run the command without --preview.")


@command(identity, "passwords")
@click.argument("state", type=click.Choice(["on", "off"]))
@REASON_OPTION
def set_passwords(session: CliSession, state: str, why: str) -> None:
    """Turn sign-in by password on or off."""
    found = session.client.put("identity/local-sign-in/", {"allowed": state == "on", "why": why})
    if session.json:
        return output.print_json(found)
    return output.print_line(f"Sign-in by password is {state}.")


@command(identity, "add-rule")
@click.argument("provider")
@click.argument("claim")
@click.argument("value")
@click.option("--team", default="", help="The team that people with this claim join.")
@click.option("--lead", is_flag=True, help="They are leads of the team.")
@click.option("--role", default="", help="Or: the role in the organisation that they get.")
@click.option("--preview", is_flag=True, help="Only show the effect. Nothing is changed.")
@REASON_OPTION
def add_rule(session: CliSession, preview: bool, why: str, **fields: Any) -> None:
    """Add a rule: people whose CLAIM has this VALUE get a team or a role at their next sign-in."""
    if preview:
        return _print_effect(session, {"add": fields})
    found = session.client.post("identity/rules/", {**fields, "why": why})
    return output.print_json(found) if session.json else output.print_line(f"Rule {found['id']} is added.")


@command(identity, "remove-rule")
@click.argument("rule", type=int)
@click.option("--preview", is_flag=True, help="Only show the effect. Nothing is changed.")
@REASON_OPTION
def remove_rule(session: CliSession, rule: int, preview: bool, why: str) -> None:
    """Remove a rule. The rights that it gave end at each person's next sign-in."""
    if preview:
        return _print_effect(session, {"remove": rule})
    found = session.client.post(f"identity/rules/{rule}/remove/", {"why": why})
    return output.print_json(found) if session.json else output.print_line(f"Rule {rule} is removed.")


@command(identity, "mine")
def list_own(session: CliSession) -> None:
    """List the identities that are connected to your account."""
    found = session.client.get("me/identities/")
    if session.json:
        return output.print_json(found)
    rows = ((str(each["id"]), each["provider"], each["subject"]) for each in found["results"])
    return output.print_table(("id", "provider", "subject"), rows, "No identity is connected.")


@command(identity, "disconnect")
@click.argument("identity_id", type=int)
def disconnect(session: CliSession, identity_id: int) -> None:
    """Disconnect an identity from your account. Connecting one needs a browser."""
    found = session.client.post(f"me/identities/{identity_id}/disconnect/")
    return output.print_json(found) if session.json else output.print_line("It is disconnected.")


def _print_effect(session: CliSession, change: dict[str, Any]) -> None:
    found = session.client.post("identity/rules/preview/", change)
    if session.json:
        return output.print_json(found)
    output.print_line(found["text"])
    _print_changes(found["changes"])
    return output.print_line("Nothing is changed. To do it, run the command without --preview.")


def _print_changes(changes: list[dict[str, Any]]) -> None:
    for each in changes:
        output.print_line(f"{each['username']}: {_rights(each)}")


def _rights(change: dict[str, Any]) -> str:
    """Return what a person gains and loses."""
    parts = [f"joins {team} as {role}" for team, role in change["joins"].items()]
    parts += [f"leaves {team}" for team in change["leaves"]]
    parts += [f"becomes {role}" for role in change["gains"]]
    parts += [f"is no longer {role}" for role in change["loses"]]
    return "; ".join(parts)


def _address(provider: dict[str, Any]) -> str:
    """Return the issuer, or the URL of a directory."""
    return str(provider["directory"]["url"] if provider["directory"] else provider["issuer"])


def _directory_body(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request with the settings of a directory as one object."""
    body = _body(fields)
    settings = {name: body.pop(name) for name in DIRECTORY_SETTINGS if name in body}
    return {**body, "directory": settings} if settings else body


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request: the given options, and the contents of the given files."""
    secret, certificates = fields.pop("secret_file"), fields.pop("certificates")
    body = {name: value for name, value in fields.items() if value is not None}
    if secret is not None:
        body["secret"] = secret.read().strip()
    if certificates is not None:
        body["ca_certificates"] = certificates.read()
    return body


def _granted(rule: dict[str, Any]) -> str:
    return rule["role"] or f"{rule['team']} ({'lead' if rule['lead'] else 'member'})"


def _path(provider: str) -> str:
    return f"identity/providers/{quote(provider, safe='', errors='replace')}/"
