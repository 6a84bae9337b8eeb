"""A simulated NVML: the processes are real, only the readings are made up, and they follow what the processes do.

A workload may declare its load (a number in the file $GPUPOOL_SIMULATED_LOAD, or GPUPOOL_SIMULATED_UTILISATION in its
environment). Without a declaration the GPU follows the CPU use of its process tree. Memory, power, temperature and the
energy counter follow the load the way they do on real boards: an idle GPU is 0 % busy and still draws its idle watts, the
temperature lags behind the power, and under MIG neither utilisation nor the board's power is known per instance.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.gpu import mig
from agent.gpu.reader import GpuInventory, GpuProcess, HardwareEvent, UnitUse
from agent.host import processes
from agent.host.gpu_locks import SLOTS_PER_GPU
from agent.host.state import StateFolderError, read_json, write_json
from agent.protocol import GeometryPart, GpuSeen, MigProfileSeen, SampleRow, UnitSeen

GEOMETRIES_FILE = "simulated_geometries.json"
FAULTS_FILE = "diagnostic_faults.json"  # what was planted: what the next diagnostic finds, or what the driver says to another geometry
MIG_STEP_SECONDS = 0.05  # that a simulated driver takes for each instance
GPU_UUID_NAMESPACE = uuid.UUID("5b0d0b5a-6f1e-4c1e-9d57-7d6a3f1c2b10")
MAX_GPUS = 64
COMPUTE_SLICES = 7
ROOM_TEMPERATURE_C = 27.0
STRAYS_FILE = "planted_strays.json"
TEMPERATURE_LAG_SECONDS = 40.0
CONTEXT_MIB = 520  # what a process that opened the GPU takes at once


@dataclass(frozen=True)
class SimulatedModel:
    """Public figures of one model (NVIDIA data sheets): memory, watts when idle and at most, boost clock, generation."""

    memory_mib: int
    idle_w: float
    most_w: float
    clock_mhz: int
    compute_capability: int
    nvlinks: int  # of a board on switches, as HGX boards have them; 0: PCIe alone
    pcie_generation: int
    mig_gb: tuple[int, ...] = ()  # of its MIG profiles, in the order of PROFILES; empty: it can't be split


SIMULATED_MODELS = {
    "H200-141GB": SimulatedModel(143771, 76, 700, 1980, 90, 18, 5, (18, 35, 35, 71, 71, 141)),
    "H100-80GB": SimulatedModel(81559, 70, 700, 1980, 90, 18, 5, (10, 20, 20, 40, 40, 80)),
    "A100-80GB": SimulatedModel(81920, 62, 400, 1410, 80, 12, 4, (10, 20, 20, 40, 40, 80)),
    "A100-40GB": SimulatedModel(40960, 52, 400, 1410, 80, 12, 4, (5, 10, 10, 20, 20, 40)),
    "L40S-48GB": SimulatedModel(46068, 35, 350, 2520, 89, 0, 4),
    "L4-24GB": SimulatedModel(23034, 12, 72, 2040, 89, 0, 4),
    "V100-32GB": SimulatedModel(32768, 40, 300, 1530, 70, 6, 3),
    "T4-16GB": SimulatedModel(15360, 10, 70, 1590, 75, 0, 3),
}
# Compute slices, memory slices and where an instance may begin (NVIDIA's MIG user guide, "Supported MIG profiles").
MIG_PROFILES: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (1, 2, (0, 2, 4, 6)),
    (2, 2, (0, 2, 4)),
    (3, 4, (0, 4)),
    (4, 4, (0,)),
    (7, 8, (0,)),
)
# What a driver may say to another geometry, by the word with which it is planted.
GEOMETRY_FAULTS = {
    "geometry-in-use": "a process still uses the GPU (planted)",
    "geometry-not-permitted": "the agent may not do that: it has to run as root (planted)",
    "geometry-reset": "the GPU needs a reset first (planted)",
}


class SimulationError(ValueError):
    """An argument that describes no possible host; the message says what is allowed."""


def parse_models(text: str) -> list[str]:
    """ "8xH100-80GB" or "4xH100-80GB,4xA100-40GB" as one model per GPU. Raises SimulationError."""
    models: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})x([A-Za-z0-9-]+)\s*", part)
        if match is None:
            raise SimulationError(f"--simulate: {part!r} is not COUNTxMODEL, like 8xH100-80GB")
        count, model = int(match[1]), match[2]
        if model not in SIMULATED_MODELS:
            raise SimulationError(f"--simulate: no model {model!r}; known are {', '.join(SIMULATED_MODELS)}")
        models += [model] * count
    if not 1 <= len(models) <= MAX_GPUS:
        raise SimulationError(f"--simulate: {len(models)} GPUs; a host has 1 to {MAX_GPUS}")
    return models


def parse_mig(text: str, models: list[str]) -> dict[int, list[str]]:
    """ "0:7x1g.10gb" or "0:2x3g.40gb,1:3x2g.20gb+1x1g.10gb" as profiles per GPU index. Raises SimulationError."""
    slices: dict[int, list[str]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d{1,3}):(.+)", part)
        if match is None:
            raise SimulationError(f"--simulate-mig: {part!r} is not GPU:COUNTxPROFILE, like 0:7x1g.10gb")
        index = int(match[1])
        if index >= len(models):
            raise SimulationError(
                f"--simulate-mig: GPU {index} in {part!r}; the host has 0 to {len(models) - 1}"
            )
        if index in slices:
            raise SimulationError(f"--simulate-mig: GPU {index} is named twice")
        slices[index] = _parse_profiles(match[2], part, models[index])
    return slices


def _parse_profiles(text: str, part: str, model: str) -> list[str]:
    profiles: list[str] = []
    for piece in text.split("+"):
        match = re.fullmatch(r"([1-7])x(([1-7])g\.(\d{1,3})gb)", piece.strip())
        if match is None:
            raise SimulationError(
                f"--simulate-mig: {piece!r} in {part!r} is not COUNTxPROFILE, like 7x1g.10gb"
            )
        profiles += [match[2]] * int(match[1])
    if SIMULATED_MODELS[model].compute_capability not in (80, 90):
        raise SimulationError(f"--simulate-mig: {model} in {part!r} has no MIG")
    compute = sum(_compute_slices_of(profile) for profile in profiles)
    memory = sum(_memory_gb_of(profile) for profile in profiles)
    if compute > COMPUTE_SLICES:
        raise SimulationError(f"--simulate-mig: {part!r} takes {compute} of {COMPUTE_SLICES} compute slices")
    if memory * 1000 > SIMULATED_MODELS[model].memory_mib * 1.049:
        raise SimulationError(f"--simulate-mig: {part!r} takes {memory} GB of {model}")
    return profiles


def _compute_slices_of(profile: str) -> int:
    return int(profile[0])


def _memory_gb_of(profile: str) -> int:
    return int(profile[3:-2])


def mig_profiles_of(model: str) -> list[MigProfileSeen]:
    """What a board of this model can be split into."""
    return [
        MigProfileSeen(f"{slices}g.{gb}gb", slices, _instance_mib(gb), len(starts), size, list(starts))
        for gb, (slices, size, starts) in zip(SIMULATED_MODELS[model].mig_gb, MIG_PROFILES, strict=False)
    ]


def _instance_mib(gigabytes: int) -> int:
    return int(gigabytes * 1024 * 0.95)


def simulated_gpu_uuid(host: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(GPU_UUID_NAMESPACE, f'{host}/{index}')}"


def simulated_gpus(host: str, models: list[str], slices: dict[int, list[str]]) -> list[GpuSeen]:
    return [_gpu(host, index, models, slices.get(index, [])) for index in range(len(models))]


def _numa_node(index: int, count: int) -> int:
    return 0 if index < (count + 1) // 2 else 1


def _topology_between(one: int, other: int, models: list[str]) -> str:
    """How two GPUs of a host reach each other: boards of one model over the switches of their baseboard, others over PCIe."""
    if models[one] == models[other] and SIMULATED_MODELS[models[one]].nvlinks:
        return "NVLink"
    same = _numa_node(one, len(models)) == _numa_node(other, len(models))
    return "one NUMA node" if same else "across NUMA nodes"


def _gpu(host: str, index: int, models: list[str], profiles: list[str]) -> GpuSeen:
    model, count = models[index], len(models)
    board = SIMULATED_MODELS[model]
    name = simulated_gpu_uuid(host, index)
    linked = bool(board.nvlinks) and models.count(model) > 1
    switched = [
        each for each in dict.fromkeys(models) if SIMULATED_MODELS[each].nvlinks and models.count(each) > 1
    ]
    units = [UnitSeen(name, "", 0, SLOTS_PER_GPU, board.memory_mib)] if not profiles else []
    first = 0
    for number, profile in enumerate(profiles):
        slots = SLOTS_PER_GPU * _compute_slices_of(profile) // COMPUTE_SLICES
        instance = f"MIG-{uuid.uuid5(GPU_UUID_NAMESPACE, f'{host}/{index}/{number}/{profile}')}"
        memory = _instance_mib(_memory_gb_of(profile))
        units.append(UnitSeen(instance, profile, first, slots, memory))
        first += slots
    return GpuSeen(
        index=index,
        uuid=name,
        model=model,
        memory_mib=board.memory_mib,
        compute_capability=board.compute_capability,
        nvlink_group=switched.index(model) if linked else None,
        numa_node=_numa_node(index, count),
        pci_bus_id=f"00000000:{0x10 + index * 8:02X}:00.0",
        units=units,
        links={
            simulated_gpu_uuid(host, other): _topology_between(index, other, models)
            for other in range(count)
            if other != index
        },
        pcie=f"x16 of x16, up to generation {board.pcie_generation}",
        nvlinks=board.nvlinks if linked else None,
    )


class SimulatedMigGpu:
    """One simulated GPU as ``mig.Board``. Each step is on disk before the next begins: an agent that is killed leaves it in
    between, as it would a real one."""

    def __init__(self, path: Path, gpu: str, profiles: list[str], fault: str) -> None:
        self._path, self._gpu, self._fault = path, gpu, fault
        self._given = profiles or None

    def parts(self) -> list[str] | None:
        """Profiles of its instances; None: it is not split."""
        found: list[str] | None = (read_json(self._path) or {}).get(self._gpu, self._given)
        return found

    def split(self, on: bool) -> None:
        """MIG mode."""
        self._step([] if on else None)

    def clear(self) -> None:
        """Every instance goes."""
        for _ in self.parts() or ():
            self._step((self.parts() or [])[:-1])

    def make(self, part: GeometryPart) -> None:
        """One more instance."""
        self._step([*(self.parts() or []), part.profile])

    def _step(self, profiles: list[str] | None) -> None:
        if self._fault in GEOMETRY_FAULTS:
            raise mig.MigError(GEOMETRY_FAULTS[self._fault])
        time.sleep(MIG_STEP_SECONDS)
        write_json(self._path, {**(read_json(self._path) or {}), self._gpu: profiles})


@dataclass
class _UnitHistory:
    """How one unit's readings go on from the last ones."""

    at: float | None = None
    cpu_seconds: float = 0.0
    run: str = ""
    temperature_c: float = ROOM_TEMPERATURE_C
    energy_mj: float = 0.0
    load: float = 0.0


class SimulatedGpuReader:
    """Readings for one simulated host. ``folder`` is the agent's state folder; planted events come through it."""

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
        self._courses: dict[str, _UnitHistory] = {}
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
        """By index: the profiles that it has now, as it was started or as it was split since."""
        changed = read_json(self._geometries) or {}
        names = {simulated_gpu_uuid(self._host, index): index for index in range(len(self._models))}
        since = {
            names[name]: profiles or []
            for name, profiles in changed.items()
            if name in names
            and {*(profiles or ())} <= {one.name for one in mig_profiles_of(self._models[names[name]])}
        }
        return {**self._slices, **since}

    async def reshape(
        self,
        gpu: str,
        parts: Sequence[GeometryPart],
        before: Sequence[str] | None,
        locks_folder: Path,
        deadline: float,
    ) -> mig.ReshapeOutcome | None:
        index = next(each.index for each in self._gpus if each.uuid == gpu)
        fault = (read_json(self._faults) or {}).get(str(index), "")
        board = SimulatedMigGpu(self._geometries, gpu, self._slices.get(index, []), fault)
        return await asyncio.to_thread(mig.reshape_under_lock, locks_folder, gpu, board, parts, before)

    async def sample(self, uses: dict[str, UnitUse], now: float) -> list[SampleRow]:
        self._processes = self._planted_strays()
        return [self._row(gpu, unit, uses.get(unit.uuid), now) for gpu in self._gpus for unit in gpu.units]

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
        """Real processes that are said to compute on a simulated GPU."""
        found = []
        for entry in read_json(self._strays) or []:
            if processes.is_alive(entry["pid"], entry["start_ticks"]):
                gpu = self._gpus[entry["gpu"]]
                found.append(GpuProcess(gpu.uuid, gpu.units[0].uuid, entry["pid"], CONTEXT_MIB))
        return found

    def _row(self, gpu: GpuSeen, unit: UnitSeen, use: UnitUse | None, now: float) -> SampleRow:
        board = SIMULATED_MODELS[gpu.model]
        course = self._courses.setdefault(unit.uuid, _UnitHistory())
        load = self._load(course, use, now)
        own = 0 if use is None else max(use.gpu_processes, 1 if load > 0 else 0)
        strays = sum(1 for each in self._processes if each.unit == unit.uuid)
        memory = min(unit.memory_mib, _memory_used(unit, use, load, own) + strays * CONTEXT_MIB)
        whole = not unit.profile
        share = unit.slots / SLOTS_PER_GPU
        power = board.idle_w + (board.most_w * 0.97 - board.idle_w) * (load / 100) ** 0.8
        power += self._noise.uniform(-0.01, 0.01) * board.idle_w
        _advance_sensors(course, power, board, now)
        active = load * 0.82 if load else 0.0
        knows_instances = board.compute_capability >= 90  # per-instance activity: Hopper and newer
        return SampleRow(
            unit=unit.uuid,
            ts=now,
            run=use.run if use else None,
            utilisation=round(load, 1) if whole else None,
            sm_active=round(active, 1) if whole or knows_instances else None,
            tensor_active=round(active * 0.45, 1) if whole or knows_instances else None,
            memory_used_mib=memory,
            memory_utilisation=round(load * 0.55, 1) if whole else None,
            power_w=round(power, 1) if whole else None,
            energy_mj=int(course.energy_mj) if whole else None,
            temperature_c=round(course.temperature_c) if whole else None,
            memory_temperature_c=round(course.temperature_c + 6) if whole else None,
            sm_clock_mhz=(board.clock_mhz if load else 345) if whole else None,
            throttle_reasons=(0 if load else 1) if whole else None,  # bit 0: the GPU is idle
            pcie_rx_kib=int(load * 900 * share) if whole else None,
            pcie_tx_kib=int(load * 300 * share) if whole else None,
            processes=own + strays,
            stray_processes=strays,
        )

    def _load(self, course: _UnitHistory, use: UnitUse | None, now: float) -> float:
        """Per cent of time that kernels ran since the last look."""
        before, course_run = course.cpu_seconds, course.run
        course.cpu_seconds = use.cpu_seconds if use else 0.0
        course.run = use.run if use else ""
        if use is None:
            return 0.0
        if use.declared_utilisation_percent is not None:
            load = use.declared_utilisation_percent + (
                self._noise.uniform(-2, 2) if 5 <= use.declared_utilisation_percent <= 95 else 0
            )
        elif course.at is None or course_run != use.run or now <= course.at:
            load = 0.0
        else:
            load = 100 * max(0.0, use.cpu_seconds - before) / (now - course.at)
            load = 0.0 if load < 1 else load  # a process that only waits burns a little CPU
        return min(100.0, max(0.0, load))

    async def events(self, now: float) -> list[HardwareEvent]:
        found: list[HardwareEvent] = []
        for path in sorted(self._planted.glob("*.json")):
            data = read_json(path)
            if data:
                gpu = self._gpus[data["gpu"]].uuid
                detail = "planted on a simulated GPU"
                found.append(
                    HardwareEvent(path.stem, gpu, "simulated", f"xid:{data['code']}", data["ts"], detail)
                )
            path.unlink()
        return found

    async def close(self) -> None:
        return


def _memory_used(unit: UnitSeen, use: UnitUse | None, load: float, processes: int) -> int:
    if use is not None and use.declared_memory_mib is not None:
        return min(unit.memory_mib, max(0, use.declared_memory_mib))
    reserved = int(unit.memory_mib * 0.006)  # what the driver keeps for itself
    return min(
        unit.memory_mib, reserved + processes * CONTEXT_MIB + int(unit.memory_mib * 0.7 * min(1.0, load / 60))
    )


def _advance_sensors(course: _UnitHistory, power: float, board: SimulatedModel, now: float) -> None:
    target = ROOM_TEMPERATURE_C + 46 * power / board.most_w
    if course.at is not None and now > course.at:
        passed = now - course.at
        course.energy_mj += power * passed * 1000
        course.temperature_c += (target - course.temperature_c) * (
            1 - math.exp(-passed / TEMPERATURE_LAG_SECONDS)
        )
    elif course.at is None:
        course.temperature_c = target
    course.at = now


def require_simulated_gpu(folder: Path, gpu: int) -> None:
    """Raises StateFolderError where no agent with simulated GPUs has this state folder, or its host has no GPU of this index."""
    gpus = read_json(folder / "simulated.json")
    if gpus is None:
        raise StateFolderError(f"--state: {folder} is not the state folder of an agent with simulated GPUs")
    if not 0 <= gpu < len(gpus):
        raise StateFolderError(f"--gpu: {gpu} is not one of 0 to {len(gpus) - 1}")


def plant_stray(folder: Path, gpu: int, pid: int) -> None:
    """Have a simulated agent find this real process on a GPU. Raises StateFolderError."""
    require_simulated_gpu(folder, gpu)
    process = processes.read_process(pid)
    if process is None:
        raise StateFolderError(f"--pid: {pid} is not a process of this machine")
    entry = {"gpu": gpu, "pid": pid, "start_ticks": process.start_ticks}
    write_json(folder / STRAYS_FILE, [*(read_json(folder / STRAYS_FILE) or []), entry])


def plant_xid(folder: Path, gpu: int, code: int, now: float) -> str:
    """Put a hardware event before a simulated agent; it reports it at its next look. Gives the event's id. Raises StateFolderError."""
    require_simulated_gpu(folder, gpu)
    event = uuid.uuid4().hex
    write_json(folder / "planted" / f"{event}.json", {"gpu": gpu, "code": code, "ts": now})
    return event
