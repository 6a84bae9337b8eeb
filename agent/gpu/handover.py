"""Checks before a start that the last workload left no process and no memory in use on a unit.

A unit is a whole GPU or a MIG instance. The end of all processes of a workload does not prove that the GPU is
clean. Therefore this check reads the GPU and compares it with its state before the last workload. There must
be no new process on the unit, and the memory in use must not have grown. Older processes (a monitor, a stray)
and restarted system services do not delay the next workload.

A value that the unit never reported is ignored. If the unit reported a value before the last workload and
does not report it now, the next start waits.
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
    """The processes and the memory in use on each unit before its last workload, by unit uuid.

    The file at ``path`` keeps these values for a restarted agent. Values from an earlier boot of the host are
    dropped, because a boot ends every workload and the driver may report other values afterwards. If the file
    is damaged, no unit counts as clean.
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
        """Describe a process or memory in use that an earlier workload left on these units; '' if none.

        ``rows`` and ``gpu_processes`` must be current readings. Raises GpuReadError if a unit is missing from
        ``rows``, or if a value is missing that the unit reported before the last workload.
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
                # The text omits the owner of the process, because the next workload's owner sees the text.
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
    """Raise GpuReadError if a value that was known before the last workload is missing now."""
    if before.get("told_processes") and row.processes is None:
        raise GpuReadError(f"NVML no longer reports the processes on {unit}")
    if before.get("memory_mib") is not None and row.memory_used_mib is None:
        raise GpuReadError(f"NVML no longer reports the memory in use on {unit}")


def _baseline_pids(before: dict[str, list[int] | int | None]) -> list[int]:
    kept = before.get("pids")
    return kept if isinstance(kept, list) else []
