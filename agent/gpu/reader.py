"""The seam between the agent and whatever reads GPUs: real NVML in a process of its own, or a simulated one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.gpu.mig import ReshapeOutcome
from agent.protocol import GeometryPart, GpuSeen, MigProfileSeen, SampleRow


@dataclass(frozen=True)
class GpuInventory:
    """What a host has. ``devices``: per unit uuid the device nodes that its holder needs beside the shared ones."""

    gpus: list[GpuSeen]
    driver_version: str = ""
    notes: list[str] = field(default_factory=list)
    devices: dict[str, list[str]] = field(default_factory=dict)
    cuda_version: str = ""  # the newest that the driver supports
    mig_profiles: dict[str, list[MigProfileSeen]] = field(
        default_factory=dict
    )  # by model: what it can be split into
    lost: dict[str, str] = field(
        default_factory=dict
    )  # by uuid: why a GPU can't be read; it is here as it was last known
    unread: str = ""  # why none of it could be read: all of it is as it was last known
    unidentified_gpu_indices: list[int] = field(
        default_factory=list
    )  # indices of GPUs that can't be read and never could be: only notes tell

    @property
    def unreadable(self) -> frozenset[str | int]:
        """What can't be read of it: uuids, and the indices of those that were never known."""
        known = {gpu.uuid for gpu in self.gpus} if self.unread else self.lost.keys()
        return frozenset([*known, *self.unidentified_gpu_indices])

    def recovered_since(self, before: GpuInventory) -> list[int]:
        """Indices of the GPUs that can be read now and could not be ``before``."""
        read = [gpu for gpu in self.gpus if gpu.uuid not in self.unreadable]
        return [gpu.index for gpu in read if before.unreadable & {gpu.uuid, gpu.index}]


@dataclass(frozen=True)
class UnitUse:
    """What the run that holds a unit does, as far as the host can see without asking the GPU."""

    run: str
    pids: frozenset[int]
    cpu_seconds: float  # of all its processes, since it began
    gpu_processes: int  # of these, processes that may compute: for a notebook its kernels
    declared_utilisation_percent: float | None = None  # simulated GPUs only: what the workload says of itself
    declared_memory_mib: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a unit, as the GPU's driver has it."""

    gpu: str  # uuids
    unit: str
    pid: int
    memory_mib: int | None = None


@dataclass(frozen=True)
class HardwareEvent:
    """Something that happened to a GPU: ``code`` like "xid:79"."""

    event_id: str
    gpu: str
    source: str
    code: str
    ts: float
    detail: str = ""


class GpuReadError(Exception):
    """The driver said no, or nothing in time."""


class GpuReader(Protocol):
    """Reads the GPUs of one host."""

    simulated: bool

    async def hardware(self) -> GpuInventory:
        """The inventory."""

    def last_known(self, problem: str) -> GpuInventory | None:
        """The inventory as it was read last, by this agent or one before it; ``problem``: why it can't be read now. None: never."""

    async def sample(self, uses: dict[str, UnitUse], now: float) -> list[SampleRow]:
        """One row per unit, stamped ``now`` (seconds since the epoch). ``uses``: by unit uuid. What can't be read is None."""

    async def occupancy(self, now: float) -> tuple[list[SampleRow], list[GpuProcess]]:
        """Memory in use by unit, and who computes there. Between two samples: those measure since the one before. A unit that can't
        be read has no row. Raises GpuReadError."""

    def processes(self) -> list[GpuProcess]:
        """Who computed on the GPUs at the last sample."""

    async def earlier(self, now: float) -> list[HardwareEvent]:
        """What happened since the host was started and before this agent was; the same ids each time."""

    async def conditions(self) -> dict[str, dict[str, Any]]:
        """By GPU uuid: what can be wrong with it without an event, as ``agent.gpu.conditions`` reads it. Raises GpuReadError."""

    async def events(self, now: float) -> list[HardwareEvent]:
        """What happened since the last call."""

    async def reshape(
        self,
        gpu: str,
        parts: Sequence[GeometryPart],
        before: Sequence[str] | None,
        locks_folder: Path,
        deadline: float,
    ) -> ReshapeOutcome | None:
        """Split a GPU otherwise (``agent.gpu.mig``). None: somebody holds a part of it. Raises GpuReadError; asked again it goes on."""

    async def close(self) -> None:
        """Let go of the hardware."""
