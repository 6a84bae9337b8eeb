"""Lets a workload save its state before it is stopped, and resume later (module gpupool_contract).

The module has no dependencies and may be copied freely.

import gpupool_contract as gpupool

state_file = gpupool.checkpoint_dir() / "state.json"
first = load_next_step(state_file) if state_file.exists() else 0     # no file on the first attempt
for step in range(first, steps):
    train(step)
    if gpupool.notice():                         # a stop follows: save, acknowledge, exit
        save(state_file, next_step=step + 1)
        gpupool.checkpoint_done()
        raise SystemExit(0)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def checkpoint_dir() -> Path:
    """Return the checkpoint folder of this workload. Later attempts use the same folder."""
    return Path(os.environ["GPUPOOL_CHECKPOINT_DIR"])


def attempt() -> int:
    """Return the number of this attempt, from 1."""
    return int(os.environ.get("GPUPOOL_ATTEMPT", "1"))


def notice() -> dict[str, Any] | None:
    """Return the stop notice, or None if none has arrived.

    A notice is a dict with the keys "code" (the reason) and "stop_at". The value of "stop_at" is the time of
    the stop in epoch seconds, or None if no time is set.
    """
    path = os.environ.get("GPUPOOL_NOTICE", "")
    try:
        return json.loads(Path(path).read_text()) if path else None
    except (FileNotFoundError, ValueError):
        return None


def checkpoint_done() -> None:
    """Acknowledge that the checkpoint is written. Call it after the files are closed."""
    folder = checkpoint_dir()
    new = folder / f".done.{os.getpid()}.{threading.get_ident()}"
    new.write_text(str(attempt()))
    os.replace(new, folder / ".done")


def on_notice(call: Callable[[], None]) -> None:
    """Run ``call`` in the main thread when a notice arrives (SIGUSR1).

    Keep ``call`` short: let it set a flag, and save after the step.
    """
    signal.signal(signal.SIGUSR1, lambda *_: call())


def hosts() -> list[str]:
    """Return the addresses of the hosts of this job in the order of their ranks; [] for a job on one host."""
    return [host for host in os.environ.get("GPUPOOL_HOSTS", "").split(",") if host]


def host_rank() -> int:
    """Return the rank of this host in the job, from 0."""
    return int(os.environ.get("GPUPOOL_HOST_RANK", "0"))


def serve_port(port: int) -> None:
    """Forward connections of the job's owner from the socket $GPUPOOL_DOOR to a local port."""
    import asyncio

    folder, name = os.path.split(os.environ["GPUPOOL_DOOR"])
    os.chdir(folder)  # the path in a socket address must be short

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except ConnectionError:
            writer.close()

    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return writer.close()  # nothing listens there yet
        try:
            await asyncio.gather(pump(reader, outer), pump(inner, writer))
        finally:
            outer.close()
            writer.close()

    async def serve() -> None:
        if os.path.exists(name):
            os.unlink(name)
        server = await asyncio.start_unix_server(caller, f"{name}.new")
        os.chmod(f"{name}.new", 0o600)
        os.rename(f"{name}.new", name)  # rename the socket only when it accepts connections
        await server.serve_forever()

    asyncio.run(serve())


def declare_load(utilisation: float, memory_mib: int | None = None) -> None:
    """Set the utilisation (percent) and the memory in use (MiB) that a simulated GPU reports.

    On a real GPU the call has no effect.
    """
    path = os.environ.get("GPUPOOL_SIMULATED_LOAD")
    if path:
        new = f"{path}.{os.getpid()}"
        Path(new).write_text(json.dumps({"utilisation": utilisation, "memory_mib": memory_mib}))
        os.replace(new, path)


if __name__ == "__main__":  # gpupool door PORT
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or not 1 <= int(sys.argv[1]) <= 65_535:
        sys.exit("usage: gpupool door PORT")
    serve_port(int(sys.argv[1]))
