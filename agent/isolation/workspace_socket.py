"""Opens a run's unix socket safely. The folder belongs to the workload, so a name in it is not trusted."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path


class SocketMissing(Exception):
    """The run has no socket to connect to (yet)."""


@contextlib.contextmanager
def socket_path(path: Path) -> Iterator[str]:
    """Yield a path for a connection to the socket at ``path``. Raises SocketMissing, also for a link.

    The yielded path names the open descriptor of the checked socket, so nobody can replace the socket in
    between. It is also short enough for a socket address.
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
