"""gpupool_contract: what a workload needs to be stopped gently and go on later. No dependencies; copy it where you like.

import gpupool_contract as gpupool

start = load(gpupool.checkpoint_dir() / "state.json")       # None on the first attempt
for step in range(start, steps):
    train(step)
    if gpupool.notice():                                     # asked to go: save, say so, leave
        save(gpupool.checkpoint_dir() / "state.json")
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
    """A folder of this workload alone that later attempts find again."""
    return Path(os.environ["GPUPOOL_CHECKPOINT_DIR"])


def attempt() -> int:
    """Which attempt this is, from 1."""
    return int(os.environ.get("GPUPOOL_ATTEMPT", "1"))


def notice() -> dict[str, Any] | None:
    """The notice, {"code", "stop_at"} (stop_at: seconds since the epoch, or None), or None while there is none."""
    path = os.environ.get("GPUPOOL_NOTICE", "")
    try:
        return json.loads(Path(path).read_text()) if path else None
    except (FileNotFoundError, ValueError):
        return None


def checkpoint_done() -> None:
    """Say that the checkpoint is written. Call it after the files are closed."""
    folder = checkpoint_dir()
    new = folder / f".done.{os.getpid()}.{threading.get_ident()}"
    new.write_text(str(attempt()))
    os.replace(new, folder / ".done")


def on_notice(call: Callable[[], None]) -> None:
    """Have ``call`` run in the main thread when a notice comes (SIGUSR1). Keep it short: set a flag, save after the step."""
    signal.signal(signal.SIGUSR1, lambda *_: call())


def hosts() -> list[str]:
    """Where the hosts of this job are reached, by rank; empty where it runs on one."""
    return [each for each in os.environ.get("GPUPOOL_HOSTS", "").split(",") if each]


def host_rank() -> int:
    """Which of the hosts of this job this is, from 0."""
    return int(os.environ.get("GPUPOOL_HOST_RANK", "0"))


def serve_port(port: int) -> None:
    """Pass everything that comes to $GPUPOOL_DOOR, which the portal opens to the owner of this job, on to a port here; for ever."""
    import asyncio

    folder, name = os.path.split(os.environ["GPUPOOL_DOOR"])
    os.chdir(folder)  # the address of a socket has room for a short path only

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
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
        os.rename(f"{name}.new", name)  # it appears when it answers
        await server.serve_forever()

    asyncio.run(serve())


def declare_load(utilisation: float, memory_mib: int | None = None) -> None:
    """On a simulated GPU: how busy it shall say it is, in per cent. On a real GPU this changes nothing."""
    path = os.environ.get("GPUPOOL_SIMULATED_LOAD")
    if path:
        new = f"{path}.{os.getpid()}"
        Path(new).write_text(json.dumps({"utilisation": utilisation, "memory_mib": memory_mib}))
        os.replace(new, path)


if __name__ == "__main__":  # gpupool door PORT
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or not 1 <= int(sys.argv[1]) <= 65_535:
        sys.exit("usage: gpupool door PORT")
    serve_port(int(sys.argv[1]))
