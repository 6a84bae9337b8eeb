"""Opens a run's unix socket safely. The workload owns its folder, so the names in it can't be trusted."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


class SocketMissing(Exception):
    """The run has no socket to connect to, or no socket yet."""


@contextlib.contextmanager
def socket_path(path: Path) -> Iterator[str]:
    """Yield a path through which the caller can connect to the socket at ``path``.

    The yielded path names an open descriptor of the checked socket, so nobody can replace the socket after
    the check. The path is also short enough for a socket address. Raises SocketMissing if ``path`` is a link
    or not a socket.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SocketMissing(f"{path.name}: {error.strerror}") from None
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise SocketMissing(f"{path.name} is not a socket")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
