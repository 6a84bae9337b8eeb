"""Find an object by its id, the start of its id, or its name."""

from __future__ import annotations

import shlex
import uuid
from typing import Any

from cli.client import ApiClient
from cli.errors import EXIT_NOT_FOUND, CliError
from cli.session import CliSession

OPEN_STATES = ("queued", "placed", "starting", "running", "notice", "stopping")


def find_workload(session: CliSession, id_: str) -> Any:
    """Return the notebook or job with this id, id prefix or name.

    Raises CliError if none or several match. If the id belongs to an array, the error message has the command
    that lists the tasks of the array.
    """
    try:
        return find_by_id_or_name(session.client, id_, "workloads/", "notebook or job")
    except CliError as problem:
        if problem.code != EXIT_NOT_FOUND or not _is_array(session.client, id_):
            raise
        raise CliError(
            f"{id_} is an array; its tasks: gpupool job list --array {shlex.quote(id_)}", EXIT_NOT_FOUND
        ) from None


def _is_array(client: ApiClient, id_: str) -> bool:
    try:
        find_by_id_or_name(client, id_, "arrays/", "array")
    except CliError as problem:
        if problem.code != EXIT_NOT_FOUND:
            raise
        return False
    return True


def find_by_id_or_name(client: ApiClient, id_: str, path: str, noun: str) -> Any:
    """Return the object with this id, id prefix or name. Raises CliError if none or several match.

    If some of the matching objects have not ended, the ended objects are ignored.
    """
    try:
        return client.get(f"{path}{uuid.UUID(id_)}/")
    except ValueError:
        pass
    text = id_.strip()
    rows = [
        row
        for row in client.pages(path)
        if row["id"].startswith(text.lower()) or (text and row.get("name") == text)
    ]
    open_rows = [row for row in rows if row.get("state") in (*OPEN_STATES, "confirmed", "active", "waiting")]
    rows = open_rows or rows
    if len(rows) == 1 and text:
        return rows[0]
    if not rows or not text:
        raise CliError(f"There is no {noun} {id_!r} that is visible to you.", EXIT_NOT_FOUND)
    raise CliError(
        f"{id_!r} could be {', '.join(row['id'][:8] for row in rows[:5])}; give more of the id.",
        EXIT_NOT_FOUND,
    )
