"""Reads and writes files durably. After a crash or on a full disk, a file has its old or its new content."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("agent.host.durable_files")


class StateFolderError(Exception):
    """The state folder can't be used. The message gives the reason in one line."""


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically and durably: after a crash the file has either its old or its new content."""
    write_text(path, json.dumps(value))


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Write text atomically and durably. ``mode``: the permissions of a new file."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        new.unlink(missing_ok=True)
        raise
    os.replace(new, path)
    fsync_folder(path.parent)


def overwrite_in_place(path: Path, text: str) -> None:
    """Overwrite a small file in its existing disk blocks. This works even on a full disk.

    A crash during the write may damage the file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_problem(folder: Path) -> str:
    """Return the error of a write into a small file of ``folder``, or '' if the write succeeds.

    The file is written in place, so it can be written on a full disk too.
    """
    try:
        descriptor = os.open(folder / "writable", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, b"1", 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return "" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return ""


def fsync_folder(path: Path) -> None:
    """Make renames and deletions in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """Return the JSON value in ``path``; None if the file is missing or is not valid JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def read_json_or_raise(path: Path) -> Any:
    """Return the JSON value in ``path``; None if the file is missing.

    Raises StateFolderError if the file is not valid JSON. Use this function for files that prevent a second
    start of a run: a damaged file must not count as empty.
    """
    value = read_json(path)
    if value is None and path.exists():
        raise StateFolderError(f"{path} is damaged, and must not count as empty. Restore it from a copy")
    return value


@contextlib.contextmanager
def log_disk_errors(what: str) -> Iterator[None]:
    """Log an OSError of the ``with`` block instead of raising it.

    On a full disk, a raised error would end the agent. Then the leases of all its runs would expire.
    """
    try:
        yield
    except OSError as error:
        log.error("%s could not be written: %s", what, error)
