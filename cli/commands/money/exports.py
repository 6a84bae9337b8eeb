"""Define the command that downloads the charges of a month as a file."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import click

from cli import output
from cli.errors import EXIT_UNREACHABLE, CliError
from cli.session import CliSession, cli, command

LAST_LINE = re.compile(rb"# rows: (\d+) sha256: ([0-9a-f]{64})[,;\t]*\r\n\Z")
LAST_LINE_BYTES = 1000  # the last line of a CSV file is shorter
PART_BYTES = 1 << 20


@command(cli, "export")
@click.option("--month", required=True, help="Such as 2026-10.")
@click.option("--kind", required=True, help="Such as statement, lines, xlsx or pdf.")
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), required=True, metavar="FILE")
@click.option("--separator", type=click.Choice(["comma", "semicolon", "tab"]), help="Of a CSV file.")
@click.option("--decimal", type=click.Choice(["point", "comma"]), help="Decimal sign of a CSV file.")
@click.option("--cost-centre", help="Only the charges of this cost centre.")
@click.option("--currency", help="Currency of the statement (kind pdf), if the cost centre has several.")
@click.option("--team", help="Only the charges of this team.")
@click.option("--project", help="Only the charges of this project: team/project.")
@click.option("--user", help="Only the charges of this person.")
@click.option("--workload", metavar="ID", help="Only the charges of this workload.")
@click.option("--type", help="Only this type of workload: training, inference, interactive or other.")
@click.option("--pool", help="Only the charges of this pool.")
@click.option("--model", help="Only this model of GPU, such as H100-80GB.")
@click.option("--bucket", help="Only this bucket, or several with commas between them: used,reserved_unused.")
@click.option("--day", help="Only the time of this billing day: 2026-10-12.")
@click.option("--last-day", help="Only the days of the month up to this one, with its corrections.")
@click.option(
    "--corrected-month", help="Only the corrections of this month (2026-09), of any month, or none of them."
)
def export(session: CliSession, month: str, path: Path, **query: Any) -> None:
    """Download the charges of a month as a file, and check that the file is complete."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as file:
            media_type = session.client.download(f"statements/{month}/export/", file, **query)
        if media_type == "text/csv" and query["kind"].startswith("focus-"):
            checked = _checked_by_server(session, month, part, query)
        else:
            checked = checked_file(part, media_type)
        facts = {"file": str(path), "bytes": part.stat().st_size, **checked}
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if session.json:
        return output.print_json(facts)
    rows = f", {facts['rows']:,} rows" if "rows" in facts else ""
    return output.print_line(f"{path}: {facts['bytes']:,} bytes{rows}, sha256 {facts['sha256']}.")


def _checked_by_server(session: CliSession, month: str, path: Path, query: dict[str, Any]) -> dict[str, Any]:
    """Return the SHA-256 digest of a file that cannot contain its own digest.

    Raises CliError if the portal returns a different digest. Then the file is cut off, or the charges of an
    open month have changed.
    """
    answer = io.BytesIO()
    session.client.download(f"statements/{month}/export/", answer, **query, checksum="sha256")
    digest = _digest(path, path.stat().st_size)
    if not answer.getvalue().decode().startswith(f"{digest} "):
        raise _cut_off()
    return {"sha256": digest}


def checked_file(path: Path, media_type: str) -> dict[str, Any]:
    """Return the SHA-256 digest of a complete file, and the number of rows of a CSV file.

    Raises CliError if the file is not complete: its last line, its table of contents or its end is missing.
    """
    facts: dict[str, Any] = {"sha256": _digest(path, path.stat().st_size)}
    if media_type == "text/csv":
        return facts | _csv_rows(path)
    if media_type == "application/pdf":
        complete = _end_of(path).rstrip().endswith(b"%%EOF")
    elif media_type == "application/vnd.apache.parquet":
        complete = _end_of(path).endswith(b"PAR1")
    else:
        complete = zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip() is None
    if not complete:
        raise _cut_off()
    return facts


def _csv_rows(path: Path) -> dict[str, Any]:
    found = LAST_LINE.search(_end_of(path))
    if found is None:
        raise _cut_off()
    length = path.stat().st_size - len(found.group(0))
    if _digest(path, length) != found.group(2).decode():
        raise _cut_off()
    return {"rows": int(found.group(1))}


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_LINE_BYTES))
        return file.read()


def _digest(path: Path, length: int) -> str:
    """Return the SHA-256 digest of the first ``length`` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length > 0 and (part := file.read(min(length, PART_BYTES))):
            digest.update(part)
            length -= len(part)
    return digest.hexdigest()


def _cut_off() -> CliError:
    return CliError(
        "The file is not complete or was changed on its way. Nothing is stored.", EXIT_UNREACHABLE
    )
