"""Reads the load that a workload declares for simulated GPUs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable

from agent.host import processes
from agent.runs.local_run import LocalRun

MAX_DECLARATION_BYTES = 4096


def declared_load(run: LocalRun, pids: Iterable[int]) -> tuple[float | None, int | None]:
    """Return the declared utilisation in percent and the declared memory in MiB; None if not declared.

    A workload declares its load in the file ``out/load`` of its run. Without this file, the environment of
    the processes ``pids`` may declare the utilisation. The workload owns the folder, so links are not
    followed and only MAX_DECLARATION_BYTES are read.
    """
    try:
        descriptor = os.open(
            run.folder / "out" / "load", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return max(
            (_load_from_environment(pid) for pid in pids), default=None, key=lambda load: load or 0.0
        ), None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None, None
        return _parse_declaration(os.read(descriptor, MAX_DECLARATION_BYTES).decode("utf-8", "replace"))
    finally:
        os.close(descriptor)


def _load_from_environment(pid: int) -> float | None:
    return _parse_declaration(processes.environment_value(pid, "GPUPOOL_SIMULATED_UTILISATION") or "")[0]


def _parse_declaration(text: str) -> tuple[float | None, int | None]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None, None
    memory = value.get("memory_mib") if isinstance(value, dict) else None
    load = value.get("utilisation") if isinstance(value, dict) else value
    load = (
        float(load)
        if isinstance(load, (int, float)) and not isinstance(load, bool) and 0 <= load <= 100
        else None
    )
    whole = isinstance(memory, int) and not isinstance(memory, bool) and 0 <= memory < 1 << 24
    return load, memory if whole else None
