"""Define commands about telemetry: answers of the utilisation page, files, and the retention."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cli import output
from cli.commands.money.exports import checked_file
from cli.formatting import format_bytes
from cli.request_options import TIMESTAMP_TYPE
from cli.session import CliSession, cli, command

FILES = ("rollups", "cubes", "samples")
MAX_DECIMALS = 3
MAX_DAY_DIGITS = 8
UNLIMITED = "unlimited"


@command(cli, "utilisation")
@click.argument("answer")
@click.option("--period", help="Such as 24h, 7d, 30d, month, last or 365d. Default: 7d.")
@click.option("--start", type=TIMESTAMP_TYPE, help="Together with --end, instead of --period.")
@click.option("--end", type=TIMESTAMP_TYPE, help="At most 400 days after the start.")
@click.option("--compare", help="Compared period: before (the default), 4w, 52w or off.")
@click.option("--pool", help="Only this pool.")
@click.option("--team", help="Only this team.")
@click.option("--model", help="Only this GPU model.")
@click.option("--project", help="Only this project: team/project.")
@click.option("--person", help="Only the work of this person.")
@click.option("--type", help="Only this type of workload.")
@click.option("--by", help="Group of the answer use-by: team, project, user, type, model, host or gpu.")
@click.option("--waste", help="Rows of the answer waste: person, project or workload.")
@click.option("--step", help="Step of the answer waste: empty, idle, inefficient or reserved_unused.")
@click.option("--shown", help="Of the answer waste: all, for the trend of each row.")
@click.option("--host", help="For host-gpus, gpu-hours, gpu-runs and run-samples.")
@click.option("--gpu", help="For gpu-hours, gpu-runs and run-samples.")
@click.option("--run", help="For run-samples: the id of a workload.")
@click.option("--size", help="For wait-requests: the number of GPUs.")
def utilisation(session: CliSession, answer: str, **query: Any) -> None:
    """Show an answer of the utilisation page, such as waterfall, waste, waits, use-by or fleet."""
    found = session.client.get(f"utilisation/{answer}/", **query)
    if session.json:
        return output.print_json(found)
    rows = (tuple(_text(row[column]) for column in found["columns"]) for row in found["rows"])
    output.print_table(tuple(found["columns"]), rows, "Nothing in this period.")
    return None


@command(cli, "download")
@click.argument("what", type=click.Choice(FILES))
@click.option("--start", type=TIMESTAMP_TYPE, required=True, help="Start of the period.")
@click.option("--end", type=TIMESTAMP_TYPE, required=True, help="End of the period.")
@click.option("--kind", type=click.Choice(["csv", "parquet"]), default="csv", help="Kind of file.")
@click.option("--level", help="Of rollups: minute, hour or day. Of cubes: hour or day.")
@click.option("--pool", help="Only this pool.")
@click.option("--host", help="Only this host (rollups and samples).")
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), required=True, metavar="FILE")
def download(session: CliSession, what: str, path: Path, **query: Any) -> None:
    """Download rollups, cubes or samples as a file, and check that the file is complete."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            media_type = session.client.download(f"{what}/", file, **query)
        facts: dict[str, Any] = {"file": str(path), "bytes": part.stat().st_size}
        facts |= checked_file(part, media_type)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if session.json:
        return output.print_json(facts)
    rows = f", {facts['rows']:,} rows" if "rows" in facts else ""
    return output.print_line(f"{path}: {facts['bytes']:,} bytes{rows}.")


@cli.group()
def retention() -> None:
    """Show and set how long samples and rollups are kept."""


@command(retention, "show")
def show_retention(session: CliSession) -> None:
    """Show how long each level is kept, and its bytes. For operators and auditors."""
    return _print_retention(session, session.client.get("retention/"))


@command(retention, "set")
@click.option("--sample-days", help="Days of raw samples, at least 2.")
@click.option("--minute-days", help="Days of minute rollups, more than raw samples.")
@click.option("--hour-days", help=f"Days of hour rollups, or {UNLIMITED}.")
@click.option("--day-days", help=f"Days of day rollups, or {UNLIMITED}.")
@click.option("--why", default="", help="Stored in the audit log.")
@click.option("--preview", is_flag=True, help="Only show the days and bytes before and after the change.")
def set_retention(session: CliSession, why: str, preview: bool, **given: str | None) -> None:
    """Set how long samples and rollups are kept; levels that are not given stay. For operators."""
    days = {name: _days(text) for name, text in given.items() if text is not None}
    if not preview:
        return _print_retention(session, session.client.put("retention/", {**days, "why": why}))
    rows = session.client.post("retention/preview/", days)
    if session.json:
        return output.print_json(rows)
    output.print_table(
        ("level", "kept", "kept after", "stored", "when full", "when full after"),
        (
            (
                row["level"],
                _kept(row["days"]),
                _kept(row["days_after"]),
                format_bytes(row["stored_bytes"]),
                _full(row["days"], row["full_bytes"]),
                _full(row["days_after"], row["full_bytes_after"]),
            )
            for row in rows
        ),
        "Nothing is stored.",
    )
    if shorter := [row["level"] for row in rows if row["deletes"]]:
        output.print_line(f"Older data of these levels would be deleted: {', '.join(shorter)}.")
    return output.print_line("Nothing is changed. To do it, run the command without --preview.")


def _days(text: str) -> int | str:
    """Return the number in a text, or the text. The portal checks it."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DAY_DIGITS else text


def _print_retention(session: CliSession, found: dict[str, Any]) -> None:
    if session.json:
        return output.print_json(found)
    return output.print_table(
        ("level", "kept", "stored", "when full"),
        (
            (
                row["level"],
                _kept(row["days"]),
                format_bytes(row["stored_bytes"]),
                _full(row["days"], row["full_bytes"]),
            )
            for row in found["levels"]
        ),
        "Nothing is stored.",
    )


def _kept(days: int | None) -> str:
    return UNLIMITED if days is None else f"{days:,} days"


def _full(days: int | None, size: int | None) -> str:
    return "it grows" if days is None else format_bytes(size)


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list):  # a trend
        return " ".join("-" if point is None else f"{point:,.1f}" for point in value)
    return f"{value:,.{MAX_DECIMALS}f}" if isinstance(value, float) else str(value)
