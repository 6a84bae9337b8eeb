"""Define the commands that show the answers of the utilisation page, and that download telemetry as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cli import output
from cli.commands.money.exports import checked_file
from cli.request_options import TIMESTAMP_TYPE
from cli.session import CliSession, cli, command

FILES = ("rollups", "cubes", "samples")
MAX_DECIMALS = 3


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
@click.option("--host", help="For host-gpus, gpu-runs and run-samples.")
@click.option("--gpu", help="For gpu-runs and run-samples.")
@click.option("--run", help="For run-samples: the id of a workload.")
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


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.{MAX_DECIMALS}f}" if isinstance(value, float) else str(value)
