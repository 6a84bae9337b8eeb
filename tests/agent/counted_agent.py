"""Run the agent with a counter for each step of its loops, and with intervals that a test has chosen.

A step is one call of a function in ``STEPS``. To prove that something does not happen, a test waits until the
agent has completed a step several times. The test then does not depend on the speed of the machine. Run as a
module, this file starts an agent:

    python -m tests.agent.counted_agent COUNTS CONSTANTS ARGUMENT...
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

COUNT = struct.Struct("<q")
# The counted functions: {step: (module, class or "" for a module-level function, function)}.
STEPS = {
    "shim_poll": ("agent.runs.manager", "RunManager", "look"),
    "desired": ("agent.daemon", "Agent", "on_desired"),
    "join": ("agent.daemon", "", "join_pool"),
    "session": ("agent.server.connection", "SyncConnection", "_run_session"),
    "disk_check": ("agent.runs.disk_pressure", "DiskPressure", "look"),
    "sample": ("agent.monitoring", "HostMonitor", "_look_for_strays"),
    "notebook_probe": ("agent.monitoring", "HostMonitor", "_probe_notebook"),
    "network_rules": ("agent.isolation.workload_network", "WorkloadNetwork", "_restore"),
    "mig_step": ("agent.gpu.simulated_reader", "SimulatedMigGpu", "_step"),
}


def read_count(folder: Path, step: str) -> int:
    """Return how often the agents that count in this folder have completed the step."""
    try:
        return int(COUNT.unpack((folder / step).read_bytes())[0])
    except FileNotFoundError:
        return 0


def count_steps(folder: Path) -> None:
    """Make this process count each step from now on, in one file per step."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, (module_name, class_name, function) in STEPS.items():
        owner = importlib.import_module(module_name)
        if class_name:
            owner = getattr(owner, class_name)
        setattr(owner, function, _counted(getattr(owner, function), _counter(folder, step)))


def _counter(folder: Path, step: str) -> Callable[[], None]:
    """Return a function that adds 1 to the count of the step.

    The counter file keeps its size, so that a count can be written even to a full disk.
    """
    path, lock, count = folder / step, threading.Lock(), read_count(folder, step)
    path.write_bytes(COUNT.pack(count))
    file = path.open("r+b", buffering=0)

    def add() -> None:
        nonlocal count
        with lock:
            count += 1
            file.seek(0)
            file.write(COUNT.pack(count))

    return add


def _counted(function: Callable[..., Any], add: Callable[[], None]) -> Callable[..., Any]:
    """Return the function, changed so that it calls `add` at the end of each call."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            finally:
                add()

    else:

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                add()

    return run


def set_constants(constants: Mapping[str, float]) -> None:
    """Replace constants of the agent's modules, each named like `agent.reconciler.SHIM_POLL_SECONDS`."""
    for name, value in constants.items():
        module_name, _, constant = name.rpartition(".")
        module = importlib.import_module(module_name)
        assert isinstance(getattr(module, constant), (int, float)), name
        setattr(module, constant, value)


def main() -> int:
    import agent.cli

    folder, constants, *arguments = sys.argv[1:]
    count_steps(Path(folder))
    set_constants(json.loads(constants))
    sys.argv[1:] = arguments
    return agent.cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
