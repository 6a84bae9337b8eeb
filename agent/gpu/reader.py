"""Defines the interface between the agent and its GPU reader: the NVML process or a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.gpu.mig import ReshapeOutcome
from agent.protocol import GeometryPart, GpuSeen, MigProfileSeen, SampleRow


@dataclass(frozen=True)
class GpuInventory:
    """The GPUs of a host.

    ``devices``: by unit uuid, the paths of its device nodes, without the nodes that all GPUs share.
    """

    gpus: list[GpuSeen]
    driver_version: str = ""
    notes: list[str] = field(default_factory=list)
    devices: dict[str, list[str]] = field(default_factory=dict)
    cuda_version: str = ""  # the newest version that the driver supports
    mig_profiles: dict[str, list[MigProfileSeen]] = field(default_factory=dict)  # by model
    # By uuid of each unreadable GPU: the reason. ``gpus`` has the last known values of these GPUs.
    lost: dict[str, str] = field(default_factory=dict)
    unread: str = ""  # why NVML as a whole could not be read; ``gpus`` then has the last known values
    unidentified_gpu_indices: list[int] = field(default_factory=list)  # indices of GPUs that were never read

    @property
    def unreadable(self) -> frozenset[str | int]:
        """Return the uuids of unreadable GPUs, and the indices of GPUs that were never identified."""
        known = {gpu.uuid for gpu in self.gpus} if self.unread else self.lost.keys()
        return frozenset([*known, *self.unidentified_gpu_indices])

    def recovered_since(self, before: GpuInventory) -> list[int]:
        """Return the indices of the GPUs that are readable now and were unreadable in ``before``."""
        read = [gpu for gpu in self.gpus if gpu.uuid not in self.unreadable]
        return [gpu.index for gpu in read if before.unreadable & {gpu.uuid, gpu.index}]


@dataclass(frozen=True)
class UnitUse:
    """The activity of the run that holds a unit, measured on the host without reading the GPU."""

    run: str
    pids: frozenset[int]
    cpu_seconds: float  # CPU time of all processes of the run since its start
    gpu_processes: int  # number of processes that may use the GPU; for a notebook only its kernels
    # The load that the workload declared for its simulated GPUs; None: not declared.
    declared_utilisation_percent: float | None = None
    declared_memory_mib: int | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a unit, as the driver reports it."""

    gpu: str  # uuid of the GPU
    unit: str  # uuid of the unit; equal to ``gpu`` if the unit is the whole GPU
    pid: int
    memory_mib: int | None = None


@dataclass(frozen=True)
class GpuProcessUse:
    """The use of a unit by one compute process."""

    unit: str
    pid: int
    memory_mib: int | None = None
    sm_percent: float | None = None  # share of time in which it used the SMs; None: not measured


@dataclass(frozen=True)
class MinuteReadings:
    """The values of the GPUs that are read once a minute. Unknown values are left out.

    ``units``: by unit uuid, fields of ``protocol.UnitMinuteSeen``. ``counters``: by GPU uuid, counters and
    flags.
    """

    units: dict[str, dict[str, Any]] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    processes: list[GpuProcessUse] = field(default_factory=list)


@dataclass(frozen=True)
class HardwareEvent:
    """An event of a GPU, with a ``code`` like "xid:79"."""

    event_id: str
    gpu: str
    source: str
    code: str
    ts: float
    detail: str = ""


class GpuReadError(Exception):
    """The driver returned an error or did not answer in time."""


class GpuReader(Protocol):
    """Reads the GPUs of one host."""

    simulated: bool

    async def hardware(self) -> GpuInventory:
        """Return the inventory. Raises GpuReadError."""

    def last_known(self, problem: str) -> GpuInventory | None:
        """Return the last known inventory, also from before a restart of the agent; None if none is known.

        ``problem``: why the hardware can't be read now.
        """

    async def sample(self, uses: dict[str, UnitUse], now: float) -> list[SampleRow]:
        """Return one row per unit, with the time ``now`` (seconds since the epoch).

        Values that can't be read are None. ``uses``: by unit uuid, the activity of the run on the unit.
        """

    async def minute(self, now: float) -> MinuteReadings:
        """Return the values that are read once a minute. Percentages are means since the last call.

        The result is empty if the GPUs can't be read.
        """

    async def occupancy(self, now: float) -> tuple[list[SampleRow], list[GpuProcess]]:
        """Return a row with the memory in use for each unit, and the processes on the units.

        Raises GpuReadError. A unit that can't be read has no row. Unlike ``sample``, this call does not
        affect the rates that the next sample measures.
        """

    def processes(self) -> list[GpuProcess]:
        """Return the processes on the GPUs at the last sample."""

    async def earlier(self, now: float) -> list[HardwareEvent]:
        """Return the events between the boot of the host and the start of this agent.

        Each event has the same id on every call.
        """

    async def conditions(self) -> dict[str, dict[str, Any]]:
        """Return the values that ``agent.gpu.conditions`` compares, by GPU uuid. Raises GpuReadError."""

    async def events(self, now: float) -> list[HardwareEvent]:
        """Return the events since the last call."""

    async def reshape(
        self,
        gpu: str,
        parts: Sequence[GeometryPart],
        before: Sequence[str] | None,
        locks_folder: Path,
        deadline: float,
    ) -> ReshapeOutcome | None:
        """Change the MIG geometry of a GPU with ``agent.gpu.mig``.

        Return None if another process holds a lock on a part of the GPU. Raises GpuReadError; a repeated call
        then continues the change.
        """

    async def close(self) -> None:
        """Release the hardware."""
