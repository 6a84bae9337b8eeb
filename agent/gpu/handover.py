"""Is a GPU as it was before its last tenant? Asked of NVML for each unit before the next one starts there.

The end of a workload is told when its last process has gone. Here the GPU itself is asked once more: no process on it that was not
there before the last tenant, and the memory in use no higher than then. What was there before (a monitor, somebody's stray) is not
the tenant's and keeps nobody waiting, nor does a service of the system that was started again. What a unit never told says nothing
against it; one that told it before its last tenant and does not tell it now can't be asked, and is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.gpu.reader import GpuProcess, GpuReadError
from agent.gpu.stray_processes import is_system_service
from agent.host.durable_files import StateFolderError, read_json_or_raise, write_json
from agent.protocol import SampleRow

MEMORY_TOLERANCE_MIB = 256  # what drivers keep or give back by themselves


class HandoverCheck:
    """By unit uuid: the processes and the memory that were there before its last tenant. Kept over restarts of the agent, not of
    the host: after a boot nothing of an earlier tenant is left, and the driver may have begun anew with other figures.

    Where ``path`` is damaged no unit counts as clean.
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

    def left(self, units: Iterable[str], rows: Iterable[SampleRow], found: Iterable[GpuProcess]) -> str:
        """What earlier tenants left on these units, in words; '' when there is nothing. ``rows``, ``found``: read just now.

        Raises GpuReadError where that can't be known.
        """
        if self._damage:
            return self._damage
        readings = {row.unit: row for row in rows}
        there = list(found)
        for unit in units:
            before, row = self._before.get(unit), readings.get(unit)
            if row is None:
                raise GpuReadError(f"NVML does not tell of {unit}")
            if before is None:
                continue
            if before.get("told_processes") and row.processes is None:
                raise GpuReadError(f"who computes on {unit} is not told any more")
            if before.get("memory_mib") is not None and row.memory_used_mib is None:
                raise GpuReadError(f"the memory in use on {unit} is not told any more")
            new = {each.pid for each in there if each.unit == unit} - set(_baseline_pids(before))
            if not all(map(is_system_service, new)):
                return f"a process of an earlier workload is still on {unit}"  # whose it was is not for the next tenant
            most = before.get("memory_mib")
            if (
                isinstance(most, int)
                and row.memory_used_mib is not None
                and row.memory_used_mib > most + MEMORY_TOLERANCE_MIB
            ):
                return f"{row.memory_used_mib - most} MiB of an earlier workload are still in use on {unit}"
        return ""

    def record_baseline(
        self, units: Iterable[str], rows: Iterable[SampleRow], found: Iterable[GpuProcess]
    ) -> None:
        """Somebody starts on these units, which ``left`` has found clean: remember how they are now."""
        readings = {row.unit: row for row in rows}
        there = list(found)
        for unit in units:
            row = readings.get(unit)
            pids = sorted({each.pid for each in there if each.unit == unit})
            self._before[unit] = {
                "pids": [*pids],
                "memory_mib": row.memory_used_mib if row else None,
                "told_processes": int(row is not None and row.processes is not None),
            }
        write_json(self._path, {"boot_id": self._boot, "units": self._before})


def _baseline_pids(before: dict[str, list[int] | int | None]) -> list[int]:
    kept = before.get("pids")
    return kept if isinstance(kept, list) else []
