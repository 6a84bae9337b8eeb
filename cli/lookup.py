"""One thing by its id, the beginning of it, or its name."""

from __future__ import annotations

import shlex
import uuid
from typing import Any

from cli.client import ApiClient
from cli.errors import EXIT_NOT_FOUND, CliError
from cli.session import CliSession

OPEN_STATES = ("queued", "placed", "starting", "running", "notice", "stopping")


def find_workload(session: CliSession, id_: str) -> Any:
    """A notebook or a job. Raises CliError, which for the id or the name of an array tells where its tasks are."""
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
    """One thing by its id, the beginning of it, or its name. Raises CliError when none or several are meant."""
    try:
        return client.get(f"{path}{uuid.UUID(id_)}/")
    except ValueError:
        pass
    word = id_.strip()
    found = [
        row
        for row in client.pages(path)
        if row["id"].startswith(word.lower()) or (word and row.get("name") == word)
    ]
    still = [row for row in found if row.get("state") in (*OPEN_STATES, "confirmed", "active", "waiting")]
    found = still or found
    if len(found) == 1 and word:
        return found[0]
    if not found or not word:
        raise CliError(f"There is no {noun} {id_!r} that you may see.", EXIT_NOT_FOUND)
    raise CliError(
        f"{id_!r} could be {', '.join(row['id'][:8] for row in found[:5])}; give more of the id.",
        EXIT_NOT_FOUND,
    )
