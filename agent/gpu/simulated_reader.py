"""Simulates GPU readings that follow the activity of the workloads' real processes.

A workload may declare its load in percent, in the file $GPUPOOL_SIMULATED_LOAD or in the environment variable
GPUPOOL_SIMULATED_UTILISATION. Without a declaration, the load follows the CPU use of its process tree.
Memory, power, temperature and energy follow the load as on real GPUs. For example, an idle GPU draws its idle
power, and the temperature changes later than the power. The utilisation and the power of a MIG instance are
unknown, as on real GPUs.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.gpu import mig
from agent.gpu.reader import (
    GpuInventory,
    GpuProcess,
    GpuProcessUse,
    HardwareEvent,
    MinuteReadings,
    UnitUse,
)
from agent.gpu.simulated_faults import FAULTS_FILE, GEOMETRY_FAULTS, STRAYS_FILE
from agent.gpu.simulated_models import (
    SIMULATED_MODELS,
    SimulatedModel,
    mig_profiles_of,
    simulated_gpu_uuid,
    simulated_gpus,
)
from agent.host import processes
from agent.host.durable_files import read_json, write_json
from agent.protocol import SLOTS_PER_GPU, GeometryPart, GpuSeen, SampleRow, UnitSeen

GEOMETRIES_FILE = "simulated_geometries.json"
MIG_STEP_SECONDS = 0.05  # duration of each simulated step of a geometry change
ROOM_TEMPERATURE_C = 27.0
TEMPERATURE_LAG_SECONDS = 40.0
# Counters of errors that a simulated GPU never has.
SIMULATED_COUNTERS = (
    "pcie_replays",
    "ecc_corrected_volatile",
    "ecc_uncorrected_volatile",
    "ecc_corrected",
    "ecc_uncorrected",
    "remapped_rows_corrected",
    "remapped_rows_uncorrected",
    "row_remap_failed",
    "row_remap_pending",
    "throttle_power_ns",
    "throttle_thermal_ns",
)
CONTEXT_MIB = 520  # memory of a CUDA context


class SimulatedMigGpu:
    """A simulated GPU that implements ``mig.MigGpu``.

    Each step is written to disk before the next step begins. If the agent is killed during a change, the file
    therefore has an intermediate geometry, as a real GPU would.
    """

    def __init__(self, path: Path, gpu: str, profiles: list[str], fault: str) -> None:
        self._path, self._gpu, self._fault = path, gpu, fault
        self._initial = profiles or None

    def parts(self) -> list[str] | None:
        """Return the profiles of its instances; None if MIG mode is off."""
        profiles: list[str] | None = (read_json(self._path) or {}).get(self._gpu, self._initial)
        return profiles

    def split(self, on: bool) -> None:
        """Switch MIG mode."""
        self._step([] if on else None)

    def clear(self) -> None:
        """Remove all instances, one after the other."""
        for _ in self.parts() or ():
            self._step((self.parts() or [])[:-1])

    def make(self, part: GeometryPart) -> None:
        """Add one instance."""
        self._step([*(self.parts() or []), part.profile])

    def _step(self, profiles: list[str] | None) -> None:
        if self._fault in GEOMETRY_FAULTS:
            raise mig.MigError(GEOMETRY_FAULTS[self._fault])
        time.sleep(MIG_STEP_SECONDS)
        write_json(self._path, {**(read_json(self._path) or {}), self._gpu: profiles})


@dataclass
class _UnitHistory:
    """The last reading of a unit. The next reading continues from its values."""

    at: float | None = None
    cpu_seconds: float = 0.0
    run: str = ""
    temperature_c: float = ROOM_TEMPERATURE_C
    energy_mj: float = 0.0
    load: float = 0.0
    pids: tuple[int, ...] = ()  # of the run, those that may use the GPU
    memory_mib: int = 0
    traffic_at: float | None = None
    pcie_bytes: float = 0.0  # received; a third of it is sent


class SimulatedGpuReader:
    """Reads one simulated host.

    ``folder`` is the agent's state folder. Hardware events, stray processes (processes on a GPU that belong
    to no run) and faults can be planted as files in this folder.
    """

    simulated = True

    def __init__(self, host: str, models: list[str], slices: dict[int, list[str]], folder: Path) -> None:
        self._host, self._models, self._slices = host, models, slices
        self._geometries = folder / GEOMETRIES_FILE
        self._faults = folder / FAULTS_FILE
        self._gpus = simulated_gpus(host, models, self._present())
        self._strays = folder / STRAYS_FILE
        self._processes: list[GpuProcess] = []
        self._planted = folder / "planted"
        self._planted.mkdir(exist_ok=True, mode=0o700)
        uuids = [gpu.uuid for gpu in self._gpus]
        if read_json(folder / "simulated.json") != uuids:
            write_json(folder / "simulated.json", uuids)
        self._histories: dict[str, _UnitHistory] = {}
        self._noise = random.Random(host)

    async def hardware(self) -> GpuInventory:
        self._gpus = simulated_gpus(self._host, self._models, self._present())
        offered = {
            model: mig_profiles_of(model)
            for model in dict.fromkeys(self._models)
            if SIMULATED_MODELS[model].mig_gb
        }
        return GpuInventory(gpus=self._gpus, driver_version="simulated", mig_profiles=offered)

    def last_known(self, problem: str) -> GpuInventory | None:
        return None

    def _present(self) -> dict[int, list[str]]:
        """Return the present MIG profiles by GPU index.

        They come from the last geometry change of a GPU. Without a change, they are the initial profiles.
        """
        changed = read_json(self._geometries) or {}
        names = {simulated_gpu_uuid(self._host, index): index for index in range(len(self._models))}
        changes = {
            names[name]: profiles or []
            for name, profiles in changed.items()
            if name in names
            and {*(profiles or ())} <= {known.name for known in mig_profiles_of(self._models[names[name]])}
        }
        return {**self._slices, **changes}

    async def reshape(
        self,
        gpu: str,
        parts: Sequence[GeometryPart],
        before: Sequence[str] | None,
        locks_folder: Path,
        deadline: float,
    ) -> mig.ReshapeOutcome | None:
        index = next(known.index for known in self._gpus if known.uuid == gpu)
        fault = (read_json(self._faults) or {}).get(str(index), "")
        board = SimulatedMigGpu(self._geometries, gpu, self._slices.get(index, []), fault)
        return await asyncio.to_thread(mig.reshape_under_lock, locks_folder, gpu, board, parts, before)

    async def sample(self, uses: dict[str, UnitUse], now: float) -> list[SampleRow]:
        self._processes = self._planted_strays()
        return [self._row(gpu, unit, uses.get(unit.uuid), now) for gpu in self._gpus for unit in gpu.units]

    async def minute(self, now: float) -> MinuteReadings:
        found = MinuteReadings()
        for gpu in self._gpus:
            found.counters[gpu.uuid] = dict.fromkeys(SIMULATED_COUNTERS, 0)
            for unit in gpu.units:
                history = self._histories.setdefault(unit.uuid, _UnitHistory())
                found.units[unit.uuid] = self._minute_values(gpu, unit, history, now)
                share = None if unit.profile else history.load / max(1, len(history.pids))
                memory = history.memory_mib // max(1, len(history.pids))
                found.processes.extend(
                    GpuProcessUse(unit.uuid, pid, memory, share if share is None else round(share, 1))
                    for pid in history.pids
                )
        return found

    def _minute_values(
        self, gpu: GpuSeen, unit: UnitSeen, history: _UnitHistory, now: float
    ) -> dict[str, float]:
        board, load = SIMULATED_MODELS[gpu.model], history.load
        values: dict[str, float] = {}
        if board.compute_capability >= 90:
            shares = {"graphics": 1.0, "dram": 0.5, "fp64": 0.0, "fp32": 0.2, "fp16": 0.05}
            values = {f"{name}_active": round(load * part, 1) for name, part in shares.items()}
            values["sm_occupancy"] = round(load * 0.3, 1)
        if unit.profile:
            return values
        if history.traffic_at is not None and now > history.traffic_at:
            history.pcie_bytes += load * 900 * 1024 * (now - history.traffic_at)
        history.traffic_at = now
        return values | {
            "power_limit_w": float(board.most_w),
            "memory_clock_mhz": board.clock_mhz if load else 405,
            "video_clock_mhz": board.clock_mhz if load else 345,
            "encoder_utilisation": 0.0,
            "decoder_utilisation": 0.0,
            "pcie_rx_bytes": int(history.pcie_bytes),
            "pcie_tx_bytes": int(history.pcie_bytes / 3),
        }

    async def occupancy(self, now: float) -> tuple[list[SampleRow], list[GpuProcess]]:
        return [
            self._row(gpu, unit, None, now) for gpu in self._gpus for unit in gpu.units
        ], self._planted_strays()

    def processes(self) -> list[GpuProcess]:
        return self._processes

    async def earlier(self, now: float) -> list[HardwareEvent]:
        return []

    async def conditions(self) -> dict[str, dict[str, Any]]:
        return {}

    def _planted_strays(self) -> list[GpuProcess]:
        """Return the planted stray processes that still run.

        They are real processes of this machine. The reader reports them as processes on simulated GPUs.
        """
        strays = []
        for entry in read_json(self._strays) or []:
            if processes.is_alive(entry["pid"], entry["start_ticks"]):
                gpu = self._gpus[entry["gpu"]]
                strays.append(GpuProcess(gpu.uuid, gpu.units[0].uuid, entry["pid"], CONTEXT_MIB))
        return strays

    # Not split: it computes one field after the other. Most are known only for whole GPUs.
    def _row(self, gpu: GpuSeen, unit: UnitSeen, use: UnitUse | None, now: float) -> SampleRow:
        board = SIMULATED_MODELS[gpu.model]
        history = self._histories.setdefault(unit.uuid, _UnitHistory())
        load = self._load(history, use, now)
        own = 0 if use is None else max(use.gpu_processes, 1 if load > 0 else 0)
        strays = sum(1 for process in self._processes if process.unit == unit.uuid)
        memory = min(unit.memory_mib, _memory_used(unit, use, load, own) + strays * CONTEXT_MIB)
        whole = not unit.profile
        share = unit.slots / SLOTS_PER_GPU
        power = board.idle_w + (board.most_w * 0.97 - board.idle_w) * (load / 100) ** 0.8
        power += self._noise.uniform(-0.01, 0.01) * board.idle_w
        _advance_sensors(history, power, board, now)
        history.load, history.memory_mib = load, memory
        history.pids = () if use is None else tuple(sorted(use.pids)[:own])
        active = load * 0.82 if load else 0.0
        # Only Hopper and newer GPUs report the activity of an instance.
        has_instance_activity = board.compute_capability >= 90
        return SampleRow(
            unit=unit.uuid,
            ts=now,
            run=use.run if use else None,
            utilisation=round(load, 1) if whole else None,
            sm_active=round(active, 1) if whole or has_instance_activity else None,
            tensor_active=round(active * 0.45, 1) if whole or has_instance_activity else None,
            memory_used_mib=memory,
            memory_utilisation=round(load * 0.55, 1) if whole else None,
            power_w=round(power, 1) if whole else None,
            energy_mj=int(history.energy_mj) if whole else None,
            temperature_c=round(history.temperature_c) if whole else None,
            memory_temperature_c=round(history.temperature_c + 6) if whole else None,
            sm_clock_mhz=(board.clock_mhz if load else 345) if whole else None,
            throttle_reasons=(0 if load else 1) if whole else None,  # bit 0: the GPU is idle
            pcie_rx_kib=int(load * 900 * share) if whole else None,
            pcie_tx_kib=int(load * 300 * share) if whole else None,
            processes=own + strays,
            stray_processes=strays,
        )

    def _load(self, history: _UnitHistory, use: UnitUse | None, now: float) -> float:
        """Return the simulated utilisation since the last reading, in percent."""
        before, last_run = history.cpu_seconds, history.run
        history.cpu_seconds = use.cpu_seconds if use else 0.0
        history.run = use.run if use else ""
        if use is None:
            return 0.0
        if use.declared_utilisation_percent is not None:
            load = use.declared_utilisation_percent + (
                self._noise.uniform(-2, 2) if 5 <= use.declared_utilisation_percent <= 95 else 0
            )
        elif history.at is None or last_run != use.run or now <= history.at:
            load = 0.0
        else:
            load = 100 * max(0.0, use.cpu_seconds - before) / (now - history.at)
            load = 0.0 if load < 1 else load  # an idle process uses a little CPU
        return min(100.0, max(0.0, load))

    async def events(self, now: float) -> list[HardwareEvent]:
        events: list[HardwareEvent] = []
        for path in sorted(self._planted.glob("*.json")):
            data = read_json(path)
            if data:
                gpu = self._gpus[data["gpu"]].uuid
                detail = "planted on a simulated GPU"
                events.append(
                    HardwareEvent(path.stem, gpu, "simulated", f"xid:{data['code']}", data["ts"], detail)
                )
            path.unlink()
        return events

    async def close(self) -> None:
        return


def _memory_used(unit: UnitSeen, use: UnitUse | None, load: float, processes: int) -> int:
    if use is not None and use.declared_memory_mib is not None:
        return min(unit.memory_mib, max(0, use.declared_memory_mib))
    reserved = int(unit.memory_mib * 0.006)  # for the driver
    return min(
        unit.memory_mib, reserved + processes * CONTEXT_MIB + int(unit.memory_mib * 0.7 * min(1.0, load / 60))
    )


def _advance_sensors(history: _UnitHistory, power: float, board: SimulatedModel, now: float) -> None:
    target = ROOM_TEMPERATURE_C + 46 * power / board.most_w
    if history.at is not None and now > history.at:
        passed = now - history.at
        history.energy_mj += power * passed * 1000
        history.temperature_c += (target - history.temperature_c) * (
            1 - math.exp(-passed / TEMPERATURE_LAG_SECONDS)
        )
    elif history.at is None:
        history.temperature_c = target
    history.at = now
