"""Plants faults, events and stray processes on simulated GPUs, through files in the agent's state folder."""

from __future__ import annotations

import uuid
from pathlib import Path

from agent.host import processes
from agent.host.durable_files import StateFolderError, read_json, write_json

# File with the planted fault of each GPU, by GPU index. The fault makes diagnostics or geometry changes fail.
FAULTS_FILE = "diagnostic_faults.json"


STRAYS_FILE = "planted_strays.json"


# By fault name that ``plant-fault`` accepts: the driver error of a geometry change.
GEOMETRY_FAULTS = {
    "geometry-in-use": "a process still uses the GPU (planted)",
    "geometry-not-permitted": "the agent may not do that: it has to run as root (planted)",
    "geometry-reset": "the GPU needs a reset first (planted)",
}


def require_simulated_gpu(folder: Path, gpu: int) -> None:
    """Raise StateFolderError unless ``folder`` belongs to an agent with a simulated GPU of this index."""
    gpus = read_json(folder / "simulated.json")
    if gpus is None:
        raise StateFolderError(f"--state: {folder} is not the state folder of an agent with simulated GPUs")
    if not 0 <= gpu < len(gpus):
        raise StateFolderError(f"--gpu: {gpu} is not one of 0 to {len(gpus) - 1}")


def plant_stray(folder: Path, gpu: int, pid: int) -> None:
    """Make an agent report the real process ``pid`` on a simulated GPU. Raises StateFolderError."""
    require_simulated_gpu(folder, gpu)
    process = processes.read_process(pid)
    if process is None:
        raise StateFolderError(f"--pid: {pid} is not a process of this machine")
    entry = {"gpu": gpu, "pid": pid, "start_ticks": process.start_ticks}
    write_json(folder / STRAYS_FILE, [*(read_json(folder / STRAYS_FILE) or []), entry])


def plant_xid(folder: Path, gpu: int, code: int, now: float) -> str:
    """Plant an XID event on a simulated GPU and return the id of the event.

    The agent reports the event when it next reads its GPUs. Raises StateFolderError.
    """
    require_simulated_gpu(folder, gpu)
    event = uuid.uuid4().hex
    write_json(folder / "planted" / f"{event}.json", {"gpu": gpu, "code": code, "ts": now})
    return event


def plant_fault(folder: Path, gpu: int, fault: str) -> None:
    """Make the diagnostics or the geometry changes of a simulated GPU fail from now on.

    ``fault`` is the diagnostic check that shall fail (memory, bandwidth or arithmetic), or a key of
    GEOMETRY_FAULTS. An empty ``fault`` removes the planted fault. Raises StateFolderError.
    """
    require_simulated_gpu(folder, gpu)
    write_json(folder / FAULTS_FILE, {**(read_json(folder / FAULTS_FILE) or {}), str(gpu): fault})
