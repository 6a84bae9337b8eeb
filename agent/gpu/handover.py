"""Checks before a start that the last tenant left no process and no memory in use on a unit.

A workload has ended when its last process has exited. This check asks the GPU itself and compares its state
with the state before the last tenant. There must be no new process on the unit, and the memory in use must
not have grown. Older processes (a monitor, a stray) and restarted system services do not delay the next
tenant. A value that the unit never reported is ignored. If the unit reported a value before the last tenant
and no longer does, the next start waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.gpu.reader import GpuProcess, GpuReadError
from agent.gpu.stray_processes import is_system_service
from agent.host.durable_files import StateFolderError, read_json_or_raise, write_json
from agent.protocol import SampleRow

MEMORY_TOLERANCE_MIB = 256  # drivers allocate and release some memory on their own


class HandoverCheck:
    """The processes and the memory in use on each unit before its last tenant, by unit uuid.

    The record survives a restart of the agent. After a boot of the host the record is dropped, because a boot
    ends every tenant and the driver may report other values. If the file at ``path`` is damaged, no unit
    counts as clean.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._before: dict[str, dict[str, list[int] | int | None]] = {}
        self._damage = ""
        try:
            kept = read_json_or_raise(path) or {}
        except StateFolderError as damage:
            self._damage = str(damage)
            return
        if kept.get("boot_id") == boot:
            self._before = kept["units"]

    def describe_leftovers(
        self, units: Iterable[str], rows: Iterable[SampleRow], gpu_processes: Iterable[GpuProcess]
    ) -> str:
        """Return a description of a process or memory that an earlier tenant left on these units; '' if none.

        ``rows`` and ``gpu_processes`` must be current.

        Raises GpuReadError if a needed value is missing.
        """
        if self._damage:
            return self._damage
        readings = {row.unit: row for row in rows}
        processes = list(gpu_processes)
        for unit in units:
            before, row = self._before.get(unit), readings.get(unit)
            if row is None:
                raise GpuReadError(f"NVML does not report {unit}")
            if before is None:
                continue
            _require_known_values(unit, before, row)
            new = {process.pid for process in processes if process.unit == unit} - set(_baseline_pids(before))
            if not all(map(is_system_service, new)):
                # The text omits the owner's name, because the next tenant must not learn it.
                return f"a process of an earlier workload is still on {unit}"
            baseline_mib = before.get("memory_mib")
            if (
                isinstance(baseline_mib, int)
                and row.memory_used_mib is not None
                and row.memory_used_mib > baseline_mib + MEMORY_TOLERANCE_MIB
            ):
                leftover_mib = row.memory_used_mib - baseline_mib
                return f"{leftover_mib} MiB of an earlier workload are still in use on {unit}"
        return ""

    def record_baseline(
        self, units: Iterable[str], rows: Iterable[SampleRow], gpu_processes: Iterable[GpuProcess]
    ) -> None:
        """Store the current state of these units.

        Call this method just before a workload starts, after ``describe_leftovers`` has returned ''.
        """
        readings = {row.unit: row for row in rows}
        processes = list(gpu_processes)
        for unit in units:
            row = readings.get(unit)
            pids = sorted({process.pid for process in processes if process.unit == unit})
            self._before[unit] = {
                "pids": [*pids],
                "memory_mib": row.memory_used_mib if row else None,
                "told_processes": int(row is not None and row.processes is not None),
            }
        write_json(self._path, {"boot_id": self._boot, "units": self._before})


def _require_known_values(unit: str, before: dict[str, list[int] | int | None], row: SampleRow) -> None:
    """Raise GpuReadError if a value that was known before the last tenant is missing now."""
    if before.get("told_processes") and row.processes is None:
        raise GpuReadError(f"NVML no longer reports the processes on {unit}")
    if before.get("memory_mib") is not None and row.memory_used_mib is None:
        raise GpuReadError(f"NVML no longer reports the memory in use on {unit}")


def _baseline_pids(before: dict[str, list[int] | int | None]) -> list[int]:
    kept = before.get("pids")
    return kept if isinstance(kept, list) else []
