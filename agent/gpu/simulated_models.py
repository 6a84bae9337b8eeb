"""Defines the GPU models that can be simulated, parses ``--simulate``, and builds a simulated inventory."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from agent.protocol import SLOTS_PER_GPU, GpuSeen, MigProfileSeen, UnitSeen

GPU_UUID_NAMESPACE = uuid.UUID("5b0d0b5a-6f1e-4c1e-9d57-7d6a3f1c2b10")


MAX_GPUS = 64


COMPUTE_SLICES = 7


SLOWDOWN_TEMPERATURE_C = 90.0  # of every simulated GPU


@dataclass(frozen=True)
class SimulatedModel:
    """The data of one GPU model, from NVIDIA's data sheets."""

    memory_mib: int
    idle_w: float
    most_w: float
    clock_mhz: int
    compute_capability: int
    nvlinks: int  # number of NVLinks per GPU on an HGX board; 0: the model has only PCIe
    pcie_generation: int
    # Memory in GB of each MIG profile, in the order of MIG_PROFILES. Empty: the model has no MIG.
    mig_gb: tuple[int, ...] = ()


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


# Each profile: compute slices, memory slices, possible start slices. Source: NVIDIA's MIG user guide, section
# "Supported MIG profiles".
MIG_PROFILES: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    (1, 2, (0, 2, 4, 6)),
    (2, 2, (0, 2, 4)),
    (3, 4, (0, 4)),
    (4, 4, (0,)),
    (7, 8, (0,)),
)


class SimulationError(ValueError):
    """An argument has an invalid syntax or describes an impossible host. The message names the argument."""


def parse_models(text: str) -> list[str]:
    """Return the model of each GPU in a text like "8xH100-80GB" or "4xH100-80GB,4xA100-40GB".

    Raises SimulationError.
    """
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
    """Return the MIG profiles by GPU index from a text like "0:7x1g.10gb".

    Example: "0:2x3g.40gb,1:3x2g.20gb+1x1g.10gb" gives GPU 0 two instances and GPU 1 four instances.
    ``models`` is the model of each GPU. Raises SimulationError.
    """
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
    """Return the MIG profiles that a GPU of this model supports."""
    return [
        MigProfileSeen(f"{slices}g.{gb}gb", slices, _instance_mib(gb), len(starts), size, list(starts))
        for gb, (slices, size, starts) in zip(SIMULATED_MODELS[model].mig_gb, MIG_PROFILES, strict=False)
    ]


def _instance_mib(gigabytes: int) -> int:
    return int(gigabytes * 1024 * 0.95)


def simulated_gpu_uuid(host: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(GPU_UUID_NAMESPACE, f'{host}/{index}')}"


def simulated_gpus(host: str, models: list[str], slices: dict[int, list[str]]) -> list[GpuSeen]:
    """Return the GPUs of a simulated host. ``slices``: the MIG profiles by GPU index."""
    return [_gpu(host, index, models, slices.get(index, [])) for index in range(len(models))]


def _numa_node(index: int, count: int) -> int:
    return 0 if index < (count + 1) // 2 else 1


def _topology_between(first: int, second: int, models: list[str]) -> str:
    """Return the connection of two GPUs: "NVLink", "one NUMA node" or "across NUMA nodes"."""
    if models[first] == models[second] and SIMULATED_MODELS[models[first]].nvlinks:
        return "NVLink"
    same_node = _numa_node(first, len(models)) == _numa_node(second, len(models))
    return "one NUMA node" if same_node else "across NUMA nodes"


def _gpu(host: str, index: int, models: list[str], profiles: list[str]) -> GpuSeen:
    model, count = models[index], len(models)
    board = SIMULATED_MODELS[model]
    name = simulated_gpu_uuid(host, index)
    linked = bool(board.nvlinks) and models.count(model) > 1
    linked_models = [
        name for name in dict.fromkeys(models) if SIMULATED_MODELS[name].nvlinks and models.count(name) > 1
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
        nvlink_group=linked_models.index(model) if linked else None,
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
        power_limit_w=board.most_w,
        slowdown_temperature_c=SLOWDOWN_TEMPERATURE_C,
    )
