"""Define the commands about notice channels."""

from __future__ import annotations

from typing import Any

import click

from cli import output
from cli.formatting import format_local_time
from cli.session import CliSession, cli, command

KINDS = ("mail", "webhook", "service")
TOPICS = ("work", "reservations", "approvals", "hosts", "money", "alerts", "access")
DIGESTS = ("none", "hourly", "daily")


@cli.group()
def channel() -> None:
    """Manage notice channels: mail, webhooks and chat services that get your notices."""


def _path(session: CliSession, name: str) -> str:
    """Return the path of the channel with this name or id."""
    rows = list(session.client.pages("notice-channels/"))
    found = [row for row in rows if name in (row["id"], row["name"])]
    if len(found) != 1:
        names = ", ".join(row["name"] for row in rows) or "none"
        problem = "is not the name of one channel" if not found else "is the name of several; give the id"
        raise click.UsageError(f"NAME is {name!r}, which {problem}; allowed: {names}")
    return f"notice-channels/{found[0]['id']}/"


def _state(row: dict[str, Any]) -> str:
    if not row["active"]:
        return "switched off"
    if row["failing_since"]:
        return f"fails since {format_local_time(row['failing_since'])}: {row['failure']}"
    sent = row["last_sent_at"]
    return f"last message {format_local_time(sent)}" if sent else "no message yet"


TOPIC_OPTION = click.option(
    "--topic", "topics", type=click.Choice(TOPICS), multiple=True, help="Default: all topics."
)
DIGEST_OPTION = click.option("--digest", type=click.Choice(DIGESTS), help="none: send each notice at once.")
QUIET_OPTION = click.option(
    "--quiet", metavar="FROM-UNTIL", help="Such as 22:00-07:00, in your time zone; none: no quiet hours."
)


def _body(
    topics: tuple[str, ...], digest: str | None, quiet: str | None, address: str | None
) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if topics:
        body["topics"] = list(topics)
    if digest:
        body["digest"] = digest
    if quiet == "none":
        body |= {"quiet_from": None, "quiet_until": None}
    elif quiet:
        begin, dash, end = quiet.partition("-")
        if not dash:
            raise click.UsageError(f"--quiet is {quiet!r}; allowed: FROM-UNTIL, such as 22:00-07:00, or none")
        body |= {"quiet_from": begin, "quiet_until": end}
    if address is not None:
        body["address"] = address
    return body


@command(channel, "list")
def list_channels(session: CliSession) -> None:
    """List your notice channels and those of the teams that you lead."""
    rows = list(session.client.pages("notice-channels/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("name", "for", "kind", "goes to", "about", "when", "state"),
        (
            (
                row["name"],
                row["team"] or "you",
                row["kind"],
                row["address"],
                ", ".join(row["topics"]),
                row["digest"],
                _state(row),
            )
            for row in rows
        ),
        "You have no notice channel.",
    )


@command(channel, "create")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), required=True)
@click.option("--address", help="Your own mail needs none.")
@click.option("--team", help="A team that you lead; default: you.")
@TOPIC_OPTION
@DIGEST_OPTION
@QUIET_OPTION
def create_channel(
    session: CliSession,
    name: str,
    kind: str,
    address: str | None,
    team: str | None,
    topics: tuple[str, ...],
    digest: str | None,
    quiet: str | None,
) -> None:
    """Create a notice channel."""
    body = {"name": name, "kind": kind, **_body(topics or TOPICS, digest, quiet, address)}
    made = session.client.post("notice-channels/", body | ({"team": team} if team else {}))
    if session.json:
        return output.print_json(made)
    output.print_line(f"{made['name']} is created. Next: gpupool channel test {made['name']}")
    if made["secret"]:
        output.print_line(f"Its messages are signed with {made['secret']}, which is shown only now.")
    return None


@command(channel, "change")
@click.argument("name")
@click.option("--address")
@click.option("--on/--off", "active", default=None)
@TOPIC_OPTION
@DIGEST_OPTION
@QUIET_OPTION
def change_channel(
    session: CliSession,
    name: str,
    address: str | None,
    active: bool | None,
    topics: tuple[str, ...],
    digest: str | None,
    quiet: str | None,
) -> None:
    """Change a notice channel. NAME is its name or its id."""
    body = _body(topics, digest, quiet, address) | ({} if active is None else {"active": active})
    if not body:
        raise click.UsageError("Give --address, --on, --off, --topic, --digest or --quiet.")
    changed = session.client.patch(_path(session, name), body)
    if session.json:
        return output.print_json(changed)
    return output.print_line(f"{changed['name']} is changed: {_state(changed)}.")


@command(channel, "remove")
@click.argument("name")
def remove_channel(session: CliSession, name: str) -> None:
    """Remove a notice channel, its waiting messages and its log."""
    removed = session.client.post(f"{_path(session, name)}remove/")
    if session.json:
        return output.print_json(removed)
    return output.print_line(f"{removed['name']} is removed.")


@command(channel, "test")
@click.argument("name")
def test_channel(session: CliSession, name: str) -> None:
    """Send a test message through a notice channel."""
    sent = session.client.post(f"{_path(session, name)}test/")
    if session.json:
        return output.print_json(sent)
    return output.print_line(f"A test message is on its way. Next: gpupool channel log {name}")


@command(channel, "log")
@click.argument("name")
def channel_log(session: CliSession, name: str) -> None:
    """List the messages of a notice channel, newest first."""
    rows = list(session.client.pages(f"{_path(session, name)}messages/"))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("id", "written", "state", "attempts", "answer", "notices"),
        (
            (
                row["id"],
                format_local_time(row["created_at"]),
                row["state"],
                str(row["attempts"]),
                row["answer"],
                " ".join(row["texts"]),
            )
            for row in rows
        ),
        "There is no message.",
    )


@command(channel, "send-again")
@click.argument("message", metavar="MESSAGE_ID", type=click.UUID)
def send_again(session: CliSession, message: Any) -> None:
    """Send a message again that was sent or has failed. It keeps its id."""
    sent = session.client.post(f"notice-messages/{message}/send-again/")
    if session.json:
        return output.print_json(sent)
    return output.print_line("The message is sent again.")
