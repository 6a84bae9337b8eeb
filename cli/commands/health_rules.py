"""Define the commands about health rules: the actions on hardware events, and how operators change them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.formatting import format_duration
from cli.param_types import DurationType
from cli.session import CliSession, cli, command

ACTION_TYPE = click.Choice(["note", "warn", "quarantine_gpu", "cordon", "drain"])
COUNT_TYPE = click.Choice(["events", "people"])
REASON_OPTION = click.option("--why", default="", help="Stored in the audit log.")
ACTION_HELP = (
    "note: only record it; warn: notify operators; quarantine_gpu: take the GPU out of service; "
    "cordon, drain: close the host."
)
REPEATS_OPTION = click.option("--repeats", type=int, help="Act only after this many events within --within.")
WINDOW_OPTION = click.option("--within", "window_seconds", type=DurationType(), help="Such as 24h.")
COUNTS_OPTION = click.option(
    "--counts", type=COUNT_TYPE, help="people: all events of one person's work on a GPU count as one."
)
ORIGIN_TEXTS = {"default": "as it began", "changed": "changed", "added": "added"}


@cli.group("health-rule")
def health_rule() -> None:
    """Show and change the automatic actions on hardware events of GPUs. CODE is e.g. xid:79 or 79."""


@command(health_rule, "list")
@click.argument("words", nargs=-1, metavar="[CODE OR WORDS]...")
@click.option("--changed", is_flag=True, help="Only rules that operators changed or added.")
@click.option("--action", type=ACTION_TYPE, help="Only rules with this action.")
def list_rules(session: CliSession, words: tuple[str, ...], changed: bool, action: str | None) -> None:
    """Show the rules: action, threshold, source of the recommendation, and sources that differ.

    "at 3 people's work" means: after events in the work of 3 different people. Several events of one person's
    work on a GPU count as one.
    """
    find = " ".join(_normalised_code(word) for word in words) or None
    rows = list(session.client.pages("health-rules/", find=find, changed=changed or None, action=action))
    if session.json:
        return output.print_json(rows)
    output.print_table(
        ("rule", "meaning", "action", "when", "is", "source", "others differ"),
        (
            (
                row["code"],
                row["meaning"],
                row["action"],
                _threshold_text(row),
                ORIGIN_TEXTS[row["origin"]],
                _short_source(row["source"]),
                _short_source(row["elsewhere"]),
            )
            for row in rows
        ),
        "No rule is changed or added."
        if changed and not words
        else "No rule matches. An event without a rule is only recorded.",
    )
    return output.print_line("One rule with its sources: gpupool health-rule show CODE") if rows else None


@command(health_rule, "show")
@click.argument("code")
def show(session: CliSession, code: str) -> None:
    """Show one rule: its action, its default, and the sources."""
    row = session.client.get(_rule_path(code))
    if session.json:
        return output.print_json(row)
    return output.print_facts(
        [
            ("rule", row["code"]),
            ("meaning", row["meaning"]),
            ("action", row["action"]),
            ("when", _threshold_text(row)),
            ("is", ORIGIN_TEXTS[row["origin"]]),
            ("began as", _action_text(row["default"]) if row["origin"] == "changed" else ""),
            ("source", row["source"]),
            ("others differ", row["elsewhere"]),
        ]
    )


@command(health_rule, "set")
@click.argument("code")
@click.option("--action", type=ACTION_TYPE, help=ACTION_HELP)
@REPEATS_OPTION
@WINDOW_OPTION
@COUNTS_OPTION
@REASON_OPTION
def set_rule(session: CliSession, code: str, why: str, **given: Any) -> None:
    """Change a rule; options that are not given keep their values. For operators."""
    change = {name: value for name, value in given.items() if value is not None}
    if not change:
        raise click.UsageError("Give at least one of --action, --repeats, --within or --counts.")
    row = session.client.put(_rule_path(code), {**change, "why": why})
    if session.json:
        return output.print_json(row)
    output.print_line(f"{row['code']} ({row['meaning']}): {_action_text(row)}.")
    if row["origin"] == "changed":
        output.print_line(
            f"Default: {_action_text(row['default'])}; to restore it: gpupool health-rule reset {row['code']}"
        )
    return None


@command(health_rule, "reset")
@click.argument("code")
@REASON_OPTION
def reset(session: CliSession, code: str, why: str) -> None:
    """Reset a changed rule to its default. For operators."""
    row = session.client.post(f"{_rule_path(code)}reset/", {"why": why})
    output.print_json(row) if session.json else output.print_line(
        f"{row['code']} has its default again: {_action_text(row)}."
    )


@command(health_rule, "add")
@click.argument("code")
@click.option("--meaning", required=True, help="Meaning of the event, in a few words.")
@click.option("--action", type=ACTION_TYPE, required=True, help=ACTION_HELP)
@REPEATS_OPTION
@WINDOW_OPTION
@COUNTS_OPTION
@click.option("--source", help="Who recommends the action; default: this organisation.")
@REASON_OPTION
def add(session: CliSession, code: str, why: str, **given: Any) -> None:
    """Add a rule for a code. Without a rule, its events are only recorded. For operators."""
    body = {name: value for name, value in given.items() if value is not None}
    row = session.client.post("health-rules/", {"code": _normalised_code(code), **body, "why": why})
    output.print_json(row) if session.json else output.print_line(
        f"{row['code']} ({row['meaning']}): {_action_text(row)}."
    )


@command(health_rule, "remove")
@click.argument("code")
@REASON_OPTION
def remove(session: CliSession, code: str, why: str) -> None:
    """Remove a rule that was added. From then on its events are only recorded. For operators."""
    row = session.client.post(f"{_rule_path(code)}remove/", {"why": why})
    output.print_json(row) if session.json else output.print_line(
        f"{row['code']} has no rule now: its events are only recorded."
    )


def _normalised_code(text: str) -> str:
    return f"xid:{text}" if text.isascii() and text.isdigit() else text


def _rule_path(code: str) -> str:
    return f"health-rules/{quote(_normalised_code(code), safe='', errors='replace')}/"


def _action_text(row: dict[str, Any]) -> str:
    return f"{row['action']}, {_threshold_text(row)}"


def _threshold_text(row: dict[str, Any]) -> str:
    if row["repeats"] == 1:
        return "at the first event"
    of = "people's work " if row["counts"] == "people" else ""
    return f"at {row['repeats']} {of}within {format_duration(row['window_seconds'])}"


def _short_source(source: str) -> str:
    """Return the name of the source, without its details; ``show`` prints the whole source."""
    return source.partition(" (")[0]
