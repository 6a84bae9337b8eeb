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


# Values of nvmlGpuTopologyLevel_t: the closest common ancestor of two GPUs in the PCI topology.
TOPOLOGY_LEVELS = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "across NUMA nodes",
}


def _cuda_version_text(number: int | None) -> str:
    """Return NVML's CUDA version number as text; '' if unknown. Example: 12040 becomes "12.4"."""
    return "" if not number else f"{number // 1000}.{number % 1000 // 10}"


def _has_nvlink_between(partners: set[str], other_bus_id: str, other_partners: set[str]) -> bool:
    return "switch" in partners & other_partners or (bool(other_bus_id) and other_bus_id.lower() in partners)


def _pci_bus_id(index: int) -> str:
    """Return the PCI address of a GPU, even if no other value can be read; '' if the address is unknown."""
    handle = value_or_none(pynvml.nvmlDeviceGetHandleByIndex, index)
    pci = value_or_none(pynvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
    return as_text(pci.busId) if pci is not None else ""


class NvmlSystem:
    """All GPUs of this host."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.gpus: list[NvmlGpu] = []
        self.unread: dict[int, str] = {}  # reason why a GPU can't be read, by GPU index
        self.unwatched: list[int] = []  # indices of GPUs that do not report hardware events
        self._registered: set[int] = set()  # indices of GPUs whose events were registered
        self.events_set = value_or_none(pynvml.nvmlEventSetCreate)
        for index in range(pynvml.nvmlDeviceGetCount()):
            self._open(index)

    def _open(self, index: int) -> None:
        """Open the GPU at ``index``. If it can't be read, add it to ``unread``."""
        try:
            gpu = NvmlGpu(index)
        except pynvml.NVMLError as error:
            self.unread[index] = str(error)
            return
        self.unread.pop(index, None)
        self.gpus = sorted([*self.gpus, gpu], key=lambda known: known.index)
        if (
            index not in self._registered
        ):  # after a second registration the driver might queue each event twice
            self._registered.add(index)
            if not self._watch(gpu):
                self.unwatched.append(index)

    def _open_unread(self) -> None:
        for index in sorted(self.unread):
            self._open(index)

    def _watch(self, gpu: NvmlGpu) -> bool:
        """Register this GPU's hardware events. Return False if the driver does not support them."""
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
        """Return the inventory as a JSON object. First try again to open the GPUs that could not be read."""
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
        """Return the MIG profiles by GPU model.

        GPUs of the same model may report different placements, because some drivers report them only while
        MIG mode is on. The result has the profiles of the GPU that reports the most placements.
        """
        offers: dict[str, list[dict[str, Any]]] = {}
        for gpu in self.gpus:
            found = [
                {key: value for key, value in profile.items() if key != "id"}
                for profile in mig_profiles(gpu.handle)
            ]
            placements = sum(len(profile["starts"]) for profile in found)
            most = sum(len(profile["starts"]) for profile in offers.get(gpu.model, []))
            if placements > most or (found and gpu.model not in offers):
                offers[gpu.model] = found
        return offers

    def _seen(self) -> list[dict[str, Any]]:
        """Return each GPU as a JSON object, with its NVLink group and its connection to each other GPU."""
        groups = self._groups()
        seen = [gpu.seen() for gpu in self.gpus]
        for gpu, row in zip(self.gpus, seen, strict=True):
            row["nvlink_group"] = groups.get(gpu.index)
            row["links"] = {}
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
                    row["links"][other.uuid] = way
        return seen

    def _groups(self) -> dict[int, int]:
        """Return the number of the NVLink group by GPU index. A GPU without an active NVLink has no group.

        All GPUs on NVSwitches form one group. Other GPUs form a group if NVLinks connect them, directly or
        through other GPUs.
        """
        partners = {gpu.index: gpu.partners() for gpu in self.gpus}
        group_of = {gpu.index: gpu.index for gpu in self.gpus if gpu.links and any(gpu.links.values())}
        linked = [gpu for gpu in self.gpus if gpu.index in group_of]
        for gpu in linked:
            for other in linked:
                if _has_nvlink_between(partners[gpu.index], other.pci_bus_id, partners[other.index]):
                    low, high = sorted((group_of[gpu.index], group_of[other.index]))
                    group_of = {index: low if group == high else group for index, group in group_of.items()}
        numbers = {group: number for number, group in enumerate(sorted(set(group_of.values())))}
        return {index: numbers[group] for index, group in group_of.items()}

    def reshape(self, about: dict[str, Any]) -> dict[str, Any] | None:
        """Change the MIG geometry of a GPU.

        Return a ReshapeOutcome as a JSON object, or None if another process holds a part of the GPU. After
        each attempt the GPU is opened again, because its instances may have changed. If the GPU can't be
        opened, it is added to ``unread``.
        """
        locks_folder, uuid, parts, before = mig.request_from_json(about)
        self._open_unread()
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if gpu is None and self.unread:  # the GPU may be unreadable because an earlier attempt changed it
            reasons = "; ".join(f"GPU {index}: {why}" for index, why in sorted(self.unread.items()))
            return asdict(mig.ReshapeOutcome("unsure", f"it can't be read ({reasons})"))
        if gpu is None:
            return asdict(mig.ReshapeOutcome("failed", "this host does not have that GPU"))
        try:
            outcome = mig.reshape_under_lock(locks_folder, uuid, NvmlMigGpu(gpu.handle), parts, before)
        finally:
            self.gpus.remove(gpu)
            self._open(gpu.index)
        return None if outcome is None else asdict(outcome)

    def conditions(self) -> dict[str, dict[str, Any]]:
        """Return the values that ``agent.gpu.conditions`` compares, by GPU uuid."""
        return {gpu.uuid: gpu.condition() for gpu in self.gpus}

    def sample(self) -> list[dict[str, Any]]:
        """Return one reading per unit."""
        return [row for gpu in self.gpus for row in gpu.samples()]

    def minute(self) -> list[dict[str, Any]]:
        """Return the values of each GPU that are read once a minute."""
        return [gpu.minute() for gpu in self.gpus]

    def occupancy(self) -> list[dict[str, Any]]:
        """Return the memory in use and the processes of each unit."""
        return [row for gpu in self.gpus for row in gpu.occupancy()]

    def events(self) -> list[dict[str, Any]]:
        """Return the hardware events that the driver queued since the last call."""
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
