"""One thing by its id, the beginning of it, or its name."""

from __future__ import annotations

import shlex
import uuid
from typing import Any

from cli.client import Client
from cli.problems import NOT_FOUND, Problem
from cli.session import Session

OPEN_STATES = ("queued", "placed", "starting", "running", "notice", "stopping")


def find_work(session: Session, id_: str) -> Any:
    """A notebook or a job. Raises Problem, which for the id or the name of an array tells where its tasks are."""
    try:
        return find_named(session.client, id_, "workloads/", "notebook or job")
    except Problem as problem:
        if problem.code != NOT_FOUND or not _is_array(session.client, id_):
            raise
        raise Problem(f"{id_} is an array; its tasks: gpupool job list --array {shlex.quote(id_)}", NOT_FOUND) from None


def _is_array(client: Client, id_: str) -> bool:
    try:
        find_named(client, id_, "arrays/", "array")
    except Problem as problem:
        if problem.code != NOT_FOUND:
            raise
        return False
    return True


def find_named(client: Client, id_: str, path: str, noun: str) -> Any:
    """One thing by its id, the beginning of it, or its name. Raises Problem when none or several are meant."""
    try:
        return client.get(f"{path}{uuid.UUID(id_)}/")
    except ValueError:
        pass
    word = id_.strip()
    found = [
        row for row in client.pages(path) if row["id"].startswith(word.lower()) or (word and row.get("name") == word)
    ]
    still = [row for row in found if row.get("state") in (*OPEN_STATES, "confirmed", "active", "waiting")]
    found = still or found
    if len(found) == 1 and word:
        return found[0]
    if not found or not word:
        raise Problem(f"There is no {noun} {id_!r} that you may see.", NOT_FOUND)
    raise Problem(f"{id_!r} could be {', '.join(row['id'][:8] for row in found[:5])}; give more of the id.", NOT_FOUND)
