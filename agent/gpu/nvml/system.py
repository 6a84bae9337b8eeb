"""Reads all GPUs of the host through NVML."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pynvml

from agent.gpu import mig
from agent.gpu.nvml.calls import as_text, value_or_none
from agent.gpu.nvml.device import NvmlGpu
from agent.gpu.nvml.mig_device import NvmlMigGpu, mig_profiles

WATCHED_EVENT_TYPES = (pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError)


MAX_EVENTS_PER_READ = 100


# nvmlGpuTopologyLevel_t: the nearest that two GPUs have in common.
TOPOLOGY_LEVELS = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "across NUMA nodes",
}


def _cuda_version_text(number: int | None) -> str:
    """12040 as "12.4"."""
    return "" if not number else f"{number // 1000}.{number % 1000 // 10}"


def _pci_bus_id(index: int) -> str:
    """Also of a GPU that says nothing else, where the driver still knows it; '' else."""
    handle = value_or_none(pynvml.nvmlDeviceGetHandleByIndex, index)
    pci = value_or_none(pynvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
    return as_text(pci.busId) if pci is not None else ""


class NvmlSystem:
    """All GPUs of this machine."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.gpus: list[NvmlGpu] = []
        self.unread: dict[int, str] = {}  # by index: why a GPU that the driver counts can't be read
        self.unwatched: list[int] = []
        self._asked_to_watch: set[int] = set()  # by index
        self.events_set = value_or_none(pynvml.nvmlEventSetCreate)
        for index in range(pynvml.nvmlDeviceGetCount()):
            self._open(index)

    def _open(self, index: int) -> None:
        """One that can't be read keeps nobody from the others."""
        try:
            gpu = NvmlGpu(index)
        except pynvml.NVMLError as error:
            self.unread[index] = str(error)
            return
        self.unread.pop(index, None)
        self.gpus = sorted([*self.gpus, gpu], key=lambda each: each.index)
        if index not in self._asked_to_watch:  # asked a second time the driver might queue each event twice
            self._asked_to_watch.add(index)
            if not self._watch(gpu):
                self.unwatched.append(index)

    def _open_unread(self) -> None:
        for index in sorted(self.unread):
            self._open(index)

    def _watch(self, gpu: NvmlGpu) -> bool:
        """Have the driver queue what happens to this GPU; False where it can't."""
        supported = value_or_none(pynvml.nvmlDeviceGetSupportedEventTypes, gpu.handle)
        wanted = sum(kind for kind in WATCHED_EVENT_TYPES if supported is not None and supported & kind)
        if not wanted or self.events_set is None:
            return False
        try:
            pynvml.nvmlDeviceRegisterEvents(gpu.handle, wanted, self.events_set)
        except pynvml.NVMLError:
            return False
        return True

    def hardware(self) -> dict[str, Any]:
        """The inventory. GPUs that could not be read are looked at once more."""
        self._open_unread()
        notes = [f"GPU {index} does not report hardware events." for index in self.unwatched]
        notes += [
            f"GPU {gpu.index} is in MIG mode and has no instances."
            for gpu in self.gpus
            if gpu.is_split and not gpu.instances
        ]
        devices: dict[str, list[str]] = {}
        for gpu in self.gpus:
            devices.update(gpu.devices())
        return {
            "gpus": self._seen(),
            "driver_version": as_text(value_or_none(pynvml.nvmlSystemGetDriverVersion)),
            "cuda_version": _cuda_version_text(value_or_none(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
            "notes": notes,
            "devices": devices,
            "mig_profiles": self._offers(),
            "unread": [
                {"index": index, "pci": _pci_bus_id(index), "why": why}
                for index, why in sorted(self.unread.items())
            ],
        }

    def _offers(self) -> dict[str, list[dict[str, Any]]]:
        """By model: what it can be split into. Of equal boards the one that tells most counts."""
        offers: dict[str, list[dict[str, Any]]] = {}
        for gpu in self.gpus:
            found = [
                {key: value for key, value in one.items() if key != "id"} for one in mig_profiles(gpu.handle)
            ]
            if sum(len(one["starts"]) for one in found) > sum(
                len(one["starts"]) for one in offers.get(gpu.model, [])
            ) or (found and gpu.model not in offers):
                offers[gpu.model] = found
        return offers

    def _seen(self) -> list[dict[str, Any]]:
        """Every GPU, with the group of those that reach each other over NVLink, and how it reaches the others."""
        groups = self._groups()
        seen = [gpu.seen() for gpu in self.gpus]
        for gpu, told in zip(self.gpus, seen, strict=True):
            told["nvlink_group"] = groups.get(gpu.index)
            told["links"] = {}
            for other in self.gpus:
                if other is gpu:
                    continue
                group = groups.get(gpu.index)
                level = value_or_none(pynvml.nvmlDeviceGetTopologyCommonAncestor, gpu.handle, other.handle)
                way = (
                    "NVLink"
                    if group is not None and group == groups.get(other.index)
                    else TOPOLOGY_LEVELS.get(level, "")
                )
                if way:
                    told["links"][other.uuid] = way
        return seen

    def _groups(self) -> dict[int, int]:
        """By GPU index, the number of its NVLink group: all on switches are one, others are one when links lead between them."""
        partners = {gpu.index: gpu.partners() for gpu in self.gpus}
        of = {gpu.index: gpu.index for gpu in self.gpus if gpu.links and any(gpu.links.values())}
        for gpu in self.gpus:
            for other in self.gpus:
                if (
                    gpu.index in of
                    and other.index in of
                    and (
                        "switch" in partners[gpu.index] & partners[other.index]
                        or (other.pci_bus_id and other.pci_bus_id.lower() in partners[gpu.index])
                    )
                ):
                    low, high = sorted((of[gpu.index], of[other.index]))
                    of = {index: low if group == high else group for index, group in of.items()}
        numbers = {group: number for number, group in enumerate(sorted(set(of.values())))}
        return {index: numbers[group] for index, group in of.items()}

    def reshape(self, about: dict[str, Any]) -> dict[str, Any] | None:
        """Split a GPU otherwise; its instances, and what may have changed with a reset, are read anew, whatever came of it. A GPU
        that can't be read then is one of the unread: its old instances may be gone."""
        locks_folder, uuid, parts, before = mig.request_from_json(about)
        self._open_unread()
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if gpu is None and self.unread:  # it may be one of these, and changed when this was asked before
            whys = "; ".join(f"GPU {index}: {why}" for index, why in sorted(self.unread.items()))
            return asdict(mig.ReshapeOutcome("unsure", f"it can't be read ({whys})"))
        if gpu is None:
            return asdict(mig.ReshapeOutcome("failed", "this host does not have that GPU"))
        try:
            outcome = mig.reshape_under_lock(locks_folder, uuid, NvmlMigGpu(gpu.handle), parts, before)
        finally:
            self.gpus.remove(gpu)
            self._open(gpu.index)
        return None if outcome is None else asdict(outcome)

    def conditions(self) -> dict[str, dict[str, Any]]:
        """By GPU uuid: what can be wrong with it without an event."""
        return {gpu.uuid: gpu.condition() for gpu in self.gpus}

    def sample(self) -> list[dict[str, Any]]:
        """One reading per unit."""
        return [row for gpu in self.gpus for row in gpu.samples()]

    def occupancy(self) -> list[dict[str, Any]]:
        """Memory and processes per unit."""
        return [row for gpu in self.gpus for row in gpu.occupancy()]

    def events(self) -> list[dict[str, Any]]:
        """What the driver queued since the last call."""
        found: list[dict[str, Any]] = []
        while self.events_set is not None and len(found) < MAX_EVENTS_PER_READ:
            event = value_or_none(pynvml.nvmlEventSetWait_v2, self.events_set, 1)
            if event is None:
                break
            code = (
                f"xid:{event.eventData}"
                if event.eventType == pynvml.nvmlEventTypeXidCriticalError
                else "ecc:double_bit"
            )
            found.append(
                {"gpu": as_text(value_or_none(pynvml.nvmlDeviceGetUUID, event.device)), "code": code}
            )
        return found
