"""Keeps the last GPU inventory of the host in the agent's state folder.

If a GPU or NVML can't be read when the agent starts, the stored inventory tells the agent which GPUs its runs
use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent.gpu.kernel_log import same_device
from agent.gpu.reader import GpuInventory
from agent.host.durable_files import log_disk_errors, read_json, write_json
from agent.protocol import GpuSeen, MigProfileSeen, ProtocolError, parse


class HardwareCache:
    """The last inventory of one host. If ``path`` is None, nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.hardware = _read_cache(path) if path is not None else None

    def keep(self, hardware: GpuInventory) -> None:
        """Store the inventory that was just read."""
        if self._path is not None and hardware != self.hardware:
            with log_disk_errors("the hardware that was found"):
                write_json(self._path, dataclasses.asdict(hardware))
        self.hardware = hardware

    def without_nvml(self, problem: str) -> GpuInventory | None:
        """Return the last inventory with a note that NVML can't be read; None if no inventory is known.

        ``problem``: why NVML can't be read.
        """
        if self.hardware is None or not self.hardware.gpus:
            return None
        note = (
            f"No workload starts on the GPUs of this host: NVML does not answer ({problem}). "
            "The inventory is the last known one; running work continues. The agent keeps asking NVML."
        )
        return dataclasses.replace(self.hardware, notes=[note], unread=problem)


def with_lost_gpus(
    read: GpuInventory, unread: Iterable[dict[str, Any]], known: GpuInventory | None
) -> GpuInventory:
    """Return ``read`` plus the last known entries of the GPUs that can't be read.

    ``unread`` has a dict for each GPU that the driver counts but can't read: its "index", its PCI address
    "pci" ('' if unknown) and the error "why". The entries come from ``known``, the last inventory. A GPU that
    is not in ``known`` only gets a note, and its index is added to ``unidentified_gpu_indices``.
    """
    readable = {gpu.uuid for gpu in read.gpus}
    missing = [gpu for gpu in known.gpus if gpu.uuid not in readable] if known is not None else []
    gpus, lost, notes, devices = list(read.gpus), {}, list(read.notes), dict(read.devices)
    unidentified = []
    for entry in sorted(unread, key=lambda entry: entry["index"]):
        gpu = _match_unread(entry, missing)
        if gpu is None or known is None:
            unidentified.append(entry["index"])
            notes.append(f"GPU {entry['index']} can't be read ({entry['why']}), and it was never identified.")
            continue
        missing.remove(gpu)
        gpus.append(dataclasses.replace(gpu, index=entry["index"]))
        lost[gpu.uuid] = entry["why"]
        notes.append(f"GPU {entry['index']} can't be read ({entry['why']}): its entry is the last known one.")
        uuids = [gpu.uuid, *(unit.uuid for unit in gpu.units)]
        devices |= {uuid: known.devices[uuid] for uuid in uuids if uuid in known.devices}
    gpus.sort(key=lambda gpu: gpu.index)
    return dataclasses.replace(
        read, gpus=gpus, lost=lost, notes=notes, devices=devices, unidentified_gpu_indices=unidentified
    )


def _match_unread(unread: dict[str, Any], missing: list[GpuSeen]) -> GpuSeen | None:
    """Return the GPU of ``missing`` that has the PCI address of ``unread``; None if there is none.

    If the address is unknown, compare the index instead.
    """
    if unread["pci"]:
        return next(
            (gpu for gpu in missing if gpu.pci_bus_id and same_device(unread["pci"], gpu.pci_bus_id)), None
        )
    return next((gpu for gpu in missing if gpu.index == unread["index"]), None)


def _read_cache(path: Path) -> GpuInventory | None:
    kept = read_json(path)
    try:
        return None if kept is None else _parse_cache(kept)
    except (ProtocolError, KeyError, TypeError, AttributeError):
        return None  # damaged, or written by a newer agent before a downgrade


def _parse_cache(kept: dict[str, Any]) -> GpuInventory:
    return GpuInventory(
        gpus=[parse(GpuSeen, gpu) for gpu in kept["gpus"]],
        driver_version=str(kept["driver_version"]),
        devices={str(unit): [str(node) for node in nodes] for unit, nodes in kept["devices"].items()},
        cuda_version=str(kept["cuda_version"]),
        mig_profiles={
            str(model): [parse(MigProfileSeen, profile) for profile in profiles]
            for model, profiles in kept["mig_profiles"].items()
        },
    )
