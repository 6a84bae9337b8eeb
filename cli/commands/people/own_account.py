"""Define the commands about the own account: preferences, browser sessions, second factors and sign-ins."""

from __future__ import annotations

from typing import Any

import click

from cli import output
from cli.session import CliSession, cli, command


@cli.group("account")
def own_account() -> None:
    """Show and change the own account; passwords and second factors are changed in the browser."""


@command(own_account, "set")
@click.option("--time-zone", help="Such as Europe/Berlin. An empty text: that of the browser.")
@click.option("--theme", type=click.Choice(["system", "light", "dark"]), help="The theme of the pages.")
def set_preferences(session: CliSession, time_zone: str | None, theme: str | None) -> None:
    """Change the own time zone or theme."""
    body = {key: value for key, value in (("time_zone", time_zone), ("theme", theme)) if value is not None}
    if not body:
        raise click.UsageError("Give --time-zone or --theme.")
    me = session.client.patch("me/", body)
    if session.json:
        return output.print_json(me)
    return output.print_facts([("time zone", me["time_zone"] or "as the browser"), ("theme", me["theme"])])


@command(own_account, "sessions")
def list_sessions(session: CliSession) -> None:
    """List the browsers in which you are signed in."""
    rows = list(session.client.pages("me/sessions/"))
    if session.json:
        return output.print_json(rows)
    cells = ((str(row["id"]), row["device"], row["address"], row["last_used_at"]) for row in rows)
    return output.print_table(("id", "device", "address", "last use"), cells, "No session is listed.")


@command(own_account, "end-session")
@click.argument("session_id", type=int)
def end_session(session: CliSession, session_id: int) -> None:
    """End one browser session, with its notebooks and live pages."""
    ended = session.client.post(f"me/sessions/{session_id}/end/")
    if session.json:
        return output.print_json(ended)
    return output.print_line(f"The session of {ended['device']} at {ended['address']} has ended.")


@command(own_account, "end-sessions")
@click.option("--revoke-tokens", is_flag=True, help="Also revoke all API tokens, with the one in use.")
def end_sessions(session: CliSession, revoke_tokens: bool) -> None:
    """End all browser sessions."""
    body: dict[str, Any] = {"revoke_tokens": True} if revoke_tokens else {}
    done = session.client.post("me/sessions/end/", body)
    if session.json:
        return output.print_json(done)
    revoked = ", ".join(done["revoked_tokens"]) or "none"
    return output.print_line(f"All browser sessions have ended. Revoked tokens: {revoked}.")


@command(own_account, "second-factors")
def list_second_factors(session: CliSession) -> None:
    """List the second factors of the own account."""
    found = session.client.get("me/second-factors/")
    if session.json:
        return output.print_json(found)
    cells = (
        (row["kind"], row["name"], "" if row["codes_left"] is None else str(row["codes_left"]))
        for row in found["results"]
    )
    return output.print_table(("kind", "name", "codes left"), cells, "No second factor is set up.")


@command(own_account, "sign-ins")
def list_sign_ins(session: CliSession) -> None:
    """List the latest sign-ins to the own account."""
    found = session.client.get("me/sign-ins/")
    if session.json:
        return output.print_json(found)
    cells = ((row["at"], row["event"], row["address"], row["method"]) for row in found["results"])
    return output.print_table(("at", "event", "address", "how"), cells, "No sign-in is recorded.")
