"""Locks a record that hosts with shared homes write."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("agent.storage.locked_record")


class RecordLocked(Exception):
    """Another host holds the lock of a record. Try again soon."""


@contextlib.contextmanager
def locked_record(path: Path, waiting: str) -> Iterator[None]:
    """Lock the file during the ``with`` block, if the file system supports locks.

    Raises RecordLocked with the text ``waiting`` if another host holds the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordLocked(waiting) from None
        except OSError as error:
            log.debug("%s: no locks here: %s", path, error)
        yield
    finally:
        os.close(descriptor)
