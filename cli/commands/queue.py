"""Define the commands about the queue: its order, the fair shares, and why a workload waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from cli import output
from cli.formatting import expected_start_text, format_local_time, relative_time
from cli.lookup import find_workload
from cli.session import CliSession, cli, command


@command(cli, "queue")
@click.option("--pool", help="Only this pool.")
@click.option("--fairness", is_flag=True, help="Show each team's guarantee, use and share instead.")
def queue(session: CliSession, pool: str | None, fairness: bool) -> None:
    """Show waiting workloads in queue order, and the reason why each one waits."""
    if fairness:
        return _print_fairness(session, pool)
    rows = list(session.client.pages("queue/", pool=pool))
    if session.json:
        return output.print_json(rows)
    now = datetime.now().astimezone()
    return output.print_table(
        ("place", "id", "name", "owner", "GPUs", "pool", "waits", "expected", "why"),
        (
            (
                row["position"],
                row["id"][:8],
                row["name"],
                row["owner"],
                row["units"] * row["hosts"],
                row["pool"],
                relative_time(row["submitted_at"], now).removesuffix(" ago"),
                expected_start_text(row, now),
                row["reason"],
            )
            for row in rows
        ),
        "No waiting work is visible to you.",
    )


def _print_fairness(session: CliSession, pool: str | None) -> None:
    """Print each team's guarantee, use and share by pool."""
    pools = [pool] if pool else [row["slug"] for row in session.client.get("pools/")]
    found = {
        slug: session.client.get(f"pools/{quote(slug, safe='', errors='replace')}/fairness/")
        for slug in pools
    }
    if session.json:
        return output.print_json(found)
    for slug, rows in found.items():
        output.print_line(f"{slug}: the lowest share borrows next; 1.00 is a team's fair part.")
        output.print_table(
            ("team", "guaranteed", "held", "borrowed", "waits for", "past hours", "weight", "share"),
            (
                (
                    row["team"],
                    f"{row['guaranteed_gpus']:.4g}",
                    f"{row['held_gpus']:.4g}",
                    f"{row['borrowed_gpus']:.4g}",
                    f"{row['waiting_gpus']:.4g}",
                    f"{row['past_gpu_hours']:,.0f}",
                    row["weight"],
                    "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
                )
                for row in rows
            ),
            "No team has a quota here.",
        )
    return None


@command(cli, "why")
@click.argument("id_", metavar="ID")
@click.option("--them", metavar="ID", help="Explain why this other workload comes before ID.")
@click.option(
    "--sooner",
    is_flag=True,
    help="Also show alternatives that start sooner, and windows that could be reserved.",
)
def why(session: CliSession, id_: str, them: str | None, sooner: bool) -> None:
    """Explain why a workload waits, started or was evicted."""
    found = find_workload(session, id_)
    if them:
        return _print_comparison(session, found, find_workload(session, them))
    answer = session.client.get(f"workloads/{found['id']}/why/")
    if sooner:
        answer["sooner"] = session.client.get(f"workloads/{found['id']}/sooner/")
        answer["windows"] = session.client.get(f"workloads/{found['id']}/windows/")
    if session.json:
        return output.print_json(answer)
    output.print_line(f"{found['name']} is {answer['state']}. {answer['sentence']}".strip())
    if answer.get("reservation_problem"):  # an older portal does not send this key
        output.print_line(answer["reservation_problem"])
    now = datetime.now().astimezone()
    hidden = answer["hidden_blockers"]
    before = [f"{blocker['name']} of {blocker['owner']}" for blocker in answer["blockers"]] + (
        [f"{hidden} not visible to you"] if hidden else []
    )
    output.print_facts(
        [
            ("place", answer["position"]),
            ("expected", expected_start_text(answer, now) if answer["expected_start"] else ""),
            ("how sure", answer["past_starts"]["sentence"] if answer["expected_start"] else ""),
            ("waits for", ", ".join(before)),
            ("others first", _hidden_ahead_text(answer)),
        ]
    )
    for row in answer["ahead"]:
        output.print_line(f"goes first: {row['name']} of {row['owner']} ({row['id'][:8]}): {row['because']}")
    if sooner:
        _print_sooner(answer, now)
    for row in answer["decisions"]:
        output.print_line(f"{format_local_time(row['at'])}  {row['kind']:<8}  {row['sentence']}")
    return None


def _print_sooner(answer: dict[str, Any], now: datetime) -> None:
    """Print alternatives with an earlier start, and the windows that could be reserved."""
    for way in answer["sooner"]:
        start = "now" if way["starts_now"] else relative_time(way["expected_start"], now)
        output.print_line(f"sooner: {way['words']}: {start}")
    if not answer["sooner"]:
        output.print_line("No alternative would start sooner.")
    for window in answer["windows"]:
        needs = " (needs approval)" if window["needs_approval"] else ""
        start, end = format_local_time(window["start"]), format_local_time(window["end"])
        output.print_line(f"could be reserved: {start} to {end}{needs}")


def _hidden_ahead_text(answer: dict[str, Any]) -> str:
    """Return a text with the number of workloads ahead in the queue that are not listed.

    Returns an empty text if all workloads ahead are listed.
    """
    count = answer["ahead_more"]
    if not count:
        return ""
    return (
        f"{count} more, further ahead or not visible to you"
        if answer["ahead"]
        else f"{count} not visible to you"
    )


def _print_comparison(session: CliSession, mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Print the rule that orders two workloads, and whether ``mine`` would start without ``theirs``."""
    answer = session.client.get(f"workloads/{mine['id']}/why/{theirs['id']}/")
    if session.json:
        return output.print_json(answer)
    without = answer["without"]
    output.print_line(f"{theirs['name']} and not {mine['name']}: {answer['sentence']}")
    starts = "would start now" if without["starts_now"] else f"would not start now. {without['sentence']}"
    output.print_line(f"Without {theirs['name']}, {mine['name']} {starts}".rstrip(".") + ".")
    return None
