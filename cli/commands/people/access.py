"""Define the commands about API tokens, service accounts and the settings of security."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.formatting import format_local_time
from cli.param_types import TimestampType
from cli.session import CliSession, cli, command

SCOPES = ("read", "submit", "manage", "finance")
LEAVER_WORK = {
    "stop": "is stopped with its grace period",
    "reservation": "ends with its reservation; without one it is stopped",
    "hand-over": "continues until it finishes; a lead is in charge",
}
TOKEN_COLUMNS = ("id", "name", "begins with", "scopes", "last used", "ends")


@cli.group()
def token() -> None:
    """List, create and revoke API tokens."""


@cli.group("service-account")
def service_account() -> None:
    """Manage service accounts: accounts of a team for programs."""


@cli.group()
def security() -> None:
    """Show and change the life of tokens, decisions of own requests, and the work of closed accounts."""


def _account_path(name: str) -> str:
    return f"service-accounts/{quote(name, safe='', errors='replace')}/"


def _token_body(name: str, scopes: tuple[str, ...], ends: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name}
    if scopes:
        body["scopes"] = list(scopes)
    if ends:
        body["expires_at"] = ends
    return body


def _print_tokens(session: CliSession, rows: list[dict[str, Any]]) -> None:
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        TOKEN_COLUMNS,
        (
            (
                str(row["id"]),
                row["name"],
                row["prefix"],
                ", ".join(row["scopes"]),
                format_local_time(row["last_used_at"]) if row["last_used_at"] else "never",
                "revoked" if row["revoked_at"] else format_local_time(row["expires_at"]),
            )
            for row in rows
        ),
        "There is no token.",
    )


def _print_new_token(session: CliSession, made: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(made)
    output.print_line(made["token"])
    return output.print_line(
        f"The token {made['name']} has the scopes {', '.join(made['scopes'])} and ends on "
        f"{format_local_time(made['expires_at'])}. It is shown only now."
    )


SCOPE_OPTION = click.option(
    "--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="Default: read and submit."
)
ENDS_OPTION = click.option("--ends", type=TimestampType(), help="Default: as late as possible.")


@command(token, "list")
def list_tokens(session: CliSession) -> None:
    """List your tokens, without their text."""
    _print_tokens(session, list(session.client.pages("tokens/")))


@command(token, "create")
@click.argument("name")
@SCOPE_OPTION
@ENDS_OPTION
def create_token(session: CliSession, name: str, scopes: tuple[str, ...], ends: str | None) -> None:
    """Create a token. It gets no scope that your own token lacks, and ends no later."""
    _print_new_token(session, session.client.post("tokens/", _token_body(name, scopes, ends)))


@command(token, "revoke")
@click.argument("number", metavar="ID", type=click.IntRange(min=1))
def revoke_token(session: CliSession, number: int) -> None:
    """Revoke a token of yours or of a service account, and the tokens that it created."""
    revoked = session.client.post(f"tokens/{number}/revoke/")
    if session.json:
        return output.print_json(revoked)
    return output.print_line(f"The token {revoked['name']} no longer works.")


@command(service_account, "list")
def list_accounts(session: CliSession) -> None:
    """List the service accounts of your teams."""
    rows = list(session.client.pages("service-accounts/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("name", "team", "owner", "purpose", "state"),
        (
            (
                row["name"],
                row["team"],
                row["owner"] or "nobody",
                row["purpose"],
                "open" if row["active"] else "closed",
            )
            for row in rows
        ),
        "Your teams have no service account.",
    )


@command(service_account, "create")
@click.argument("name")
@click.option("--team", required=True)
@click.option("--owner", help="The person of the team who answers for it; default: you.")
@click.option("--purpose", default="", help="Such as: nightly training.")
def create_account(session: CliSession, name: str, team: str, owner: str | None, purpose: str) -> None:
    """Create a service account. For leads of the team and operators."""
    body = {"name": name, "team": team, "purpose": purpose} | ({"owner": owner} if owner else {})
    made = session.client.post("service-accounts/", body)
    if session.json:
        return output.print_json(made)
    return output.print_line(
        f"{made['name']} is created. Next: gpupool service-account token {made['name']} NAME"
    )


@command(service_account, "change")
@click.argument("name")
@click.option("--owner", help="Another person of the team.")
@click.option("--open/--close", "active", default=None, help="A closed account loses its tokens.")
def change_account(session: CliSession, name: str, owner: str | None, active: bool | None) -> None:
    """Give a service account another owner, or close or open it."""
    body = {key: value for key, value in (("owner", owner), ("active", active)) if value is not None}
    if not body:
        raise click.UsageError("Give --owner, --open or --close.")
    changed = session.client.patch(_account_path(name), body)
    if session.json:
        return output.print_json(changed)
    state = "open" if changed["active"] else "closed"
    return output.print_line(f"{changed['name']} is {state}; its owner is {changed['owner'] or 'nobody'}.")


@command(service_account, "token")
@click.argument("account")
@click.argument("name", required=False)
@SCOPE_OPTION
@ENDS_OPTION
def account_token(
    session: CliSession, account: str, name: str | None, scopes: tuple[str, ...], ends: str | None
) -> None:
    """Create a token of a service account. Without NAME, list its tokens."""
    path = f"{_account_path(account)}tokens/"
    if name is None:
        return _print_tokens(session, list(session.client.pages(path)))
    return _print_new_token(session, session.client.post(path, _token_body(name, scopes, ends)))


@command(security, "show")
def show_security(session: CliSession) -> None:
    """Show the settings of security."""
    _print_security(session, session.client.get("security-settings/"))


@command(security, "set")
@click.option("--token-days", type=int, help="The longest life of a token.")
@click.option(
    "--own-requests",
    type=click.Choice(["default", "refuse", "allow"]),
    help="May people decide their own requests? Default: not if two people have the role that decides.",
)
@click.option("--leaver-work", type=click.Choice(LEAVER_WORK), help="What happens to work of leavers.")
@click.option(
    "--second-factor",
    type=click.Choice(["nobody", "operators-and-finance", "everybody"]),
    help="The people who must have a second factor.",
)
@click.option("--step-up-minutes", type=int, help="How long a proof of identity allows protected changes.")
def set_security(
    session: CliSession,
    token_days: int | None,
    own_requests: str | None,
    leaver_work: str | None,
    second_factor: str | None,
    step_up_minutes: int | None,
) -> None:
    """Change the settings of security. For operators."""
    body: dict[str, Any] = {} if token_days is None else {"token_days": token_days}
    if own_requests is not None:
        body["separate_approver"] = {"default": None, "refuse": True, "allow": False}[own_requests]
    if leaver_work is not None:
        body["leaver_work"] = leaver_work.replace("-", "_")
    if second_factor is not None:
        body["second_factor_for"] = second_factor.replace("-", "_")
    if step_up_minutes is not None:
        body["step_up_minutes"] = step_up_minutes
    if not body:
        raise click.UsageError(
            "Give --token-days, --own-requests, --leaver-work, --second-factor or --step-up-minutes."
        )
    _print_security(session, session.client.patch("security-settings/", body))


def _print_security(session: CliSession, found: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(found)
    decided = "another person" if found["separate_approver_in_force"] else "their author or another operator"
    default = " (default)" if found["separate_approver"] is None else ""
    return output.print_facts(
        [
            ("tokens last", f"at most {found['token_days']} days"),
            ("requests of operators are decided by", f"{decided}{default}"),
            ("work of closed accounts", LEAVER_WORK.get(found.get("leaver_work", "").replace("_", "-"))),
            ("a second factor is required of", found["second_factor_for"].replace("_", " ")),
            ("a proof of identity lasts", f"{found['step_up_minutes']} minutes"),
        ]
    )
