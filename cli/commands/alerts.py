"""Define the commands about alerts: the list, acknowledge, snooze, and the rules of a pool."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.param_types import DurationType
from cli.session import CliSession, cli, command

REASON_OPTION = click.option("--why", default="", help="Stored in the audit log.")
KIND_NAMES = (
    "held_empty, held_idle, over_asked, reserved_unused, hot, throttled, ecc_growth, telemetry_gap, "
    "clock_skew, long_wait"
)
SECONDS_PER_MINUTE = 60


@cli.group("alerts")
def alerts() -> None:
    """Show alerts of pools, acknowledge and snooze them, and change the rules of a pool."""


@command(alerts, "list")
@click.option("--kind", help=f"One of {KIND_NAMES}.")
@click.option("--pool", help="Slug of a pool.")
@click.option("--state", help="open (default), firing, acknowledged, snoozed, ended or all.")
def list_alerts(session: CliSession, kind: str | None, pool: str | None, state: str | None) -> None:
    """Show alerts, new ones first."""
    rows = list(session.client.pages("alerts/", kind=kind, pool=pool, state=state))
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("alert", "state", "pool", "what", "evidence", "since", "id"),
        (
            (
                row["label"],
                row["state"],
                row["pool"],
                row["subject"],
                row["evidence"],
                row["began_at"],
                row["id"],
            )
            for row in rows
        ),
        "No alert.",
    )


@command(alerts, "ack")
@click.argument("alert")
@REASON_OPTION
def acknowledge(session: CliSession, alert: str, why: str) -> None:
    """Record that you have seen an alert. ALERT is its id. For operators."""
    row = session.client.post(f"alerts/{quote(alert, safe='')}/acknowledge/", {"why": why})
    if session.json:
        return output.print_json(row)
    return output.print_line(f"{row['label']}, {row['subject']}: acknowledged.")


@command(alerts, "snooze")
@click.argument("alert")
@click.option("--for", "seconds", type=DurationType(), required=True, help="Such as 8h.")
@REASON_OPTION
def snooze(session: CliSession, alert: str, seconds: int, why: str) -> None:
    """Silence an alert for a time. ALERT is its id. For operators."""
    given = {"minutes": seconds // SECONDS_PER_MINUTE, "why": why}
    row = session.client.post(f"alerts/{quote(alert, safe='')}/snooze/", given)
    if session.json:
        return output.print_json(row)
    return output.print_line(f"{row['label']}, {row['subject']}: snoozed until {row['snoozed_until']}.")


@command(alerts, "rules")
@click.argument("pool")
def list_rules(session: CliSession, pool: str) -> None:
    """Show the alert rules of a pool."""
    rows = session.client.get(f"pools/{quote(pool, safe='')}/alert-rules/")
    if session.json:
        return output.print_json(rows)
    return output.print_table(
        ("rule", "begins", "ends", "stops work", "is"),
        (
            (
                row["kind"],
                _threshold(row, "begin") if row["rule"]["enabled"] else "off",
                _threshold(row, "end"),
                f"after {row['rule']['notice_minutes']} min" if row["rule"]["stop_work"] else "",
                "default" if row["is_default"] else "changed",
            )
            for row in rows
        ),
        "No rule.",
    )


@command(alerts, "set-rule")
@click.argument("pool")
@click.argument("kind")
@click.option("--begin", type=float, help="An alert begins at this value or more.")
@click.option("--end", type=float, help="An alert ends at this value or less; below --begin.")
@click.option("--begin-minutes", type=int, help="Time for which the value must hold to begin.")
@click.option("--end-minutes", type=int, help="Time for which the value must hold to end.")
@click.option("--enabled/--disabled", default=None, help="Use the rule, or have no such alerts.")
@click.option("--stop-work/--keep-work", default=None, help="Stop unused work after a warning, or keep it.")
@click.option("--notice-minutes", type=int, help="Time from the warning to the stop.")
@click.option("--postpone-times", type=int, help="How often owners may postpone the stop; 0: never.")
@click.option("--postpone-minutes", type=int, help="Longest time of one postponement.")
@REASON_OPTION
def set_rule(session: CliSession, pool: str, kind: str, why: str, **given: Any) -> None:
    """Change an alert rule of a pool; options that are not given keep their values. For operators."""
    change = {name: value for name, value in given.items() if value is not None}
    if not change:
        raise click.UsageError("Give at least one option that changes the rule.")
    return _print_rule(session, session.client.put(_rule_path(pool, kind), {**change, "why": why}))


@command(alerts, "reset-rule")
@click.argument("pool")
@click.argument("kind")
@REASON_OPTION
def reset_rule(session: CliSession, pool: str, kind: str, why: str) -> None:
    """Restore the default of an alert rule of a pool. For operators."""
    return _print_rule(session, session.client.post(f"{_rule_path(pool, kind)}reset/", {"why": why}))


def _rule_path(pool: str, kind: str) -> str:
    return f"pools/{quote(pool, safe='')}/alert-rules/{quote(kind, safe='')}/"


def _print_rule(session: CliSession, row: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(row)
    return output.print_line(
        f"{row['kind']}: begins at {_threshold(row, 'begin')}, ends at {_threshold(row, 'end')}."
    )


def _threshold(row: dict[str, Any], side: str) -> str:
    return f"{row['rule'][side]:g} {row['unit']} for {row['rule'][f'{side}_minutes']} min"
