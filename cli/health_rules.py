"""What is done by itself when a GPU reports an event: the table of rules, and what operators change of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.session import Session, cli, command
from cli.words import Duration, length

ACTIONS = click.Choice(["note", "warn", "quarantine_gpu", "cordon", "drain"])
COUNTS = click.Choice(["events", "people"])
WHY = click.option("--why", default="", help="Kept in the record.")
ACTION_HELP = "note: nothing; warn: operators are told; quarantine_gpu: the GPU is taken out; cordon, drain: the host is closed."
REPEATS = click.option("--repeats", type=int, help="Only once it came so often within --within.")
WITHIN = click.option("--within", "window_seconds", type=Duration(), help="Such as 24h.")
COUNTED = click.option("--counts", type=COUNTS, help="people: all events of one person's work on a GPU count as one.")
ORIGINS = {"default": "as it began", "changed": "changed", "added": "added"}


@cli.group("health-rule")
def health_rule() -> None:
    """What is done by itself when a GPU reports an event. CODE is such as xid:79; 79 is as good."""


@command(health_rule, "list")
@click.argument("words", nargs=-1, metavar="[CODE OR WORDS OF ITS MEANING]...")
@click.option("--changed", is_flag=True, help="Only what operators changed or added.")
@click.option("--action", type=ACTIONS, help="Only rules that do this.")
def list_rules(session: Session, words: tuple[str, ...], changed: bool, action: str | None) -> None:
    """What is done at how many events within which time, who recommends it, and where others do something else.

    "3 people's work": events of one person's work on a GPU count as one.
    """
    find = " ".join(_code(word) for word in words) or None
    rows = list(session.client.pages("health-rules/", find=find, changed=changed or None, action=action))
    if session.json:
        return output.as_json(rows)
    output.table(
        ("rule", "meaning", "action", "when", "is", "source", "others differ"),
        (
            (
                row["code"],
                row["meaning"],
                row["action"],
                _at(row),
                ORIGINS[row["origin"]],
                _without_address(row["source"]),
                _without_address(row["elsewhere"]),
            )
            for row in rows
        ),
        "No rule is changed or added." if changed and not words else "No rule is found so; an event without a rule is noted.",
    )
    return output.say("All of one, with sources: gpupool health-rule show CODE") if rows else None


@command(health_rule, "show")
@click.argument("code")
def show(session: Session, code: str) -> None:
    """One rule: what it does, what it began with, and the sources."""
    row = session.client.get(_path(code))
    if session.json:
        return output.as_json(row)
    return output.facts(
        [
            ("rule", row["code"]),
            ("meaning", row["meaning"]),
            ("action", row["action"]),
            ("when", _at(row)),
            ("is", ORIGINS[row["origin"]]),
            ("began as", _does(row["default"]) if row["origin"] == "changed" else ""),
            ("source", row["source"]),
            ("others differ", row["elsewhere"]),
        ]
    )


@command(health_rule, "set")
@click.argument("code")
@click.option("--action", type=ACTIONS, help=ACTION_HELP)
@REPEATS
@WITHIN
@COUNTED
@WHY
def set_rule(session: Session, code: str, why: str, **given: Any) -> None:
    """Change what is done; what is not given stays. For operators."""
    change = {name: value for name, value in given.items() if value is not None}
    if not change:
        raise click.UsageError("Give what shall change: --action, --repeats, --within or --counts.")
    row = session.client.put(_path(code), {**change, "why": why})
    if session.json:
        return output.as_json(row)
    output.say(f"{row['code']} ({row['meaning']}): {_does(row)}.")
    if row["origin"] == "changed":
        output.say(f"It began as {_does(row['default'])}; back to that: gpupool health-rule reset {row['code']}")
    return None


@command(health_rule, "reset")
@click.argument("code")
@WHY
def reset(session: Session, code: str, why: str) -> None:
    """Put a changed rule back to what it began with. For operators."""
    row = session.client.post(f"{_path(code)}reset/", {"why": why})
    output.as_json(row) if session.json else output.say(f"{row['code']} is as it began: {_does(row)}.")


@command(health_rule, "add")
@click.argument("code")
@click.option("--meaning", required=True, help="What the event is, in a few words.")
@click.option("--action", type=ACTIONS, required=True, help=ACTION_HELP)
@REPEATS
@WITHIN
@COUNTED
@click.option("--source", help="Who recommends it; this organisation unless given.")
@WHY
def add(session: Session, code: str, why: str, **given: Any) -> None:
    """A rule for a code that has none; until then its events are noted. For operators."""
    body = {name: value for name, value in given.items() if value is not None}
    row = session.client.post("health-rules/", {"code": _code(code), **body, "why": why})
    output.as_json(row) if session.json else output.say(f"{row['code']} ({row['meaning']}): {_does(row)}.")


@command(health_rule, "remove")
@click.argument("code")
@WHY
def remove(session: Session, code: str, why: str) -> None:
    """Take a rule out that was added; its events are noted again. For operators."""
    row = session.client.post(f"{_path(code)}remove/", {"why": why})
    output.as_json(row) if session.json else output.say(f"{row['code']} has no rule any more: its events are noted.")


def _code(text: str) -> str:
    return f"xid:{text}" if text.isascii() and text.isdigit() else text


def _path(code: str) -> str:
    return f"health-rules/{quote(_code(code), safe='', errors='replace')}/"


def _does(row: dict[str, Any]) -> str:
    return f"{row['action']}, {_at(row)}"


def _at(row: dict[str, Any]) -> str:
    if row["repeats"] == 1:
        return "at the first"
    of = "people's work " if row["counts"] == "people" else ""
    return f"at {row['repeats']} {of}within {length(row['window_seconds'])}"


def _without_address(source: str) -> str:
    """Who says it; the whole of it is in ``show``."""
    return source.partition(" (")[0]
