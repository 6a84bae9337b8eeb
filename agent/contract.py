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


def declare_load(utilisation: float, memory_mib: int | None = None) -> None:
    """On a simulated GPU: how busy it shall say it is, in per cent. On a real GPU this changes nothing."""
    path = os.environ.get("GPUPOOL_SIMULATED_LOAD")
    if path:
        new = f"{path}.{os.getpid()}"
        Path(new).write_text(json.dumps({"utilisation": utilisation, "memory_mib": memory_mib}))
        os.replace(new, path)
