"""Run PostgreSQL on data that is kept between runs, such as the generated year of a benchmark."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.service_environment import kept_passwords
from tools.stores import embedded_stores
from tools.throw_away import start_stores

STOP_SECONDS = 60


@contextlib.contextmanager
def kept_postgres(folder: Path) -> Iterator[str]:
    """Run PostgreSQL during the block, and yield the address of its database for the owner's role.

    Its data is in ``folder`` and stays there. Raises RunError if it does not start, for example because
    another process uses the data.
    """
    (folder / "log").mkdir(mode=0o700, parents=True, exist_ok=True)
    stores = embedded_stores(folder, kept_passwords(folder))
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        start_stores(stores, ("postgres",), running)
        yield stores.url("owner")
    finally:
        for child in running.values():
            child.send_signal(signal.SIGINT)  # end the sessions and write all data
            child.wait(STOP_SECONDS)
