"""Reads real GPUs through NVML. A process of its own:  python -m agent.gpu.nvml

A call into a hung driver can block for ever, and ending a process inside NVML has hung GPUs. So this process does nothing
but answer questions, one JSON line each, and the agent goes on when an answer does not come (see ``nvml_meter``).

    {"id": 1, "ask": "hardware" | "sample" | "occupancy" | "events" | "conditions"}
    {"id": 1, "ask": "reshape", "about": {...}}      about and answer are those of agent.gpu.mig
        ->   {"id": 1, "answer": ...} or {"id": 1, "error": "..."}

The only module that imports pynvml. What a GPU does not support is None in its answer; nothing is guessed.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pynvml

from agent.gpu import mig
from agent.host.gpu_locks import SLOTS_PER_GPU
from agent.protocol import GeometryPart

MAX_PLACEMENTS = 16  # of one profile on one GPU; NVML has 7 at most
COMPUTE_SLICES = 7  # of every GPU that can be split into MIG instances
GPM_METRICS = {
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}
WATCHED_EVENT_TYPES = (pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeDoubleBitEccError)
MAX_EVENTS_PER_READ = 100
MARKETED_MEMORY_GB = tuple(
    int(size) for size in "4 6 8 10 11 12 16 20 24 32 40 48 64 72 80 94 96 128 141 144 180 192 288".split()
)
# The NVIDIA driver tells which minor of /dev/nvidia-caps guards a MIG instance here.
MIG_CAPABILITIES_FOLDER = Path("/proc/driver/nvidia/capabilities")
# nvmlGpuTopologyLevel_t: the nearest that two GPUs have in common.
TOPOLOGY_LEVELS = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "across NUMA nodes",
}
NVLINK_ERROR_COUNTERS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
)
NVLINK_THROUGHPUT_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
)  # KiB, all links
ALL_LINKS = 0xFFFFFFFF  # as a field's scope


def value_or_none(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or None where this GPU or driver does not support the question."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def model_name(name: str, memory_mib: int) -> str:
    """ "NVIDIA H100 80GB HBM3" with its memory as "H100-80GB": the family, and the size it is sold as."""
    plain = re.sub(r"^(NVIDIA|Tesla|Quadro|GeForce)\s+", "", re.sub(r"^NVIDIA\s+", "", name)).replace(
        "GeForce ", ""
    )
    family = re.match(r"(RTX (?:PRO )?\w+(?: Ti| SUPER| Ada)?|GTX \w+|[A-Z]{1,2}\d+[A-Za-z]*)", plain)
    size = min(MARKETED_MEMORY_GB, key=lambda sold: abs(sold - memory_mib / 1024))
    return f"{family[1].replace(' ', '-') if family else plain.replace(' ', '-')}-{size}GB"


class NvmlGpu:
    """One GPU and its MIG instances."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = as_text(pynvml.nvmlDeviceGetUUID(self.handle))
        self.minor = value_or_none(pynvml.nvmlDeviceGetMinorNumber, self.handle)
        self.memory_mib = pynvml.nvmlDeviceGetMemoryInfo(self.handle).total >> 20
        self.model = model_name(as_text(pynvml.nvmlDeviceGetName(self.handle)), self.memory_mib)
        self.instances = self._instances()
        self.earlier: dict[str, Any] = {}  # per unit: the last GPM sample
        pci = value_or_none(pynvml.nvmlDeviceGetPciInfo, self.handle)
        self.pci_bus_id = as_text(pci.busId) if pci is not None else ""
        self.links = self._links()
        self.link_bytes: tuple[float, int] | None = None  # the moment and the counter of the last sample

    def _instances(self) -> list[dict[str, Any]]:
        mode = value_or_none(pynvml.nvmlDeviceGetMigMode, self.handle)
        if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return []
        found = []
        for number in range(value_or_none(pynvml.nvmlDeviceGetMaxMigDeviceCount, self.handle) or 0):
            handle = value_or_none(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self.handle, number)
            if handle is not None:
                found.append(self._instance(handle))
        found.sort(key=lambda instance: (instance["start"], instance["gi"]))
        first = 0
        for instance in found:
            instance["first_slot"] = first
            first += instance["slots"]
        return found

    def _instance(self, handle: Any) -> dict[str, Any]:
        attributes = pynvml.nvmlDeviceGetAttributes(handle)
        gi = pynvml.nvmlDeviceGetGpuInstanceId(handle)
        part = value_or_none(pynvml.nvmlDeviceGetGpuInstanceById, self.handle, gi)
        info = value_or_none(pynvml.nvmlGpuInstanceGetInfo, part) if part is not None else None
        profile = re.search(r"MIG (\S+)", as_text(value_or_none(pynvml.nvmlDeviceGetName, handle)))
        gigabytes = round(attributes.memorySizeMB / 1024)
        return {
            "handle": handle,
            "uuid": as_text(pynvml.nvmlDeviceGetUUID(handle)),
            "gi": gi,
            "ci": value_or_none(pynvml.nvmlDeviceGetComputeInstanceId, handle) or 0,
            "start": info.placement.start if info is not None else gi,
            "slots": SLOTS_PER_GPU * attributes.gpuInstanceSliceCount // COMPUTE_SLICES,
            "profile": profile[1] if profile else f"{attributes.gpuInstanceSliceCount}g.{gigabytes}gb",
            "memory_mib": attributes.memorySizeMB,
        }

    @property
    def is_split(self) -> bool:
        mode = value_or_none(pynvml.nvmlDeviceGetMigMode, self.handle)
        return bool(mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE)

    def seen(self) -> dict[str, Any]:
        """As ``protocol.GpuSeen``, with the device nodes of each unit beside it."""
        capability = value_or_none(pynvml.nvmlDeviceGetCudaComputeCapability, self.handle) or (0, 0)
        units = [
            {key: instance[key] for key in ("uuid", "profile", "first_slot", "slots", "memory_mib")}
            for instance in self.instances
        ]
        if not self.is_split:
            units = [
                {
                    "uuid": self.uuid,
                    "profile": "",
                    "first_slot": 0,
                    "slots": SLOTS_PER_GPU,
                    "memory_mib": self.memory_mib,
                }
            ]
        return {
            "index": self.index,
            "uuid": self.uuid,
            "model": self.model,
            "memory_mib": self.memory_mib,
            "compute_capability": capability[0] * 10 + capability[1],
            "nvlink_group": None,
            "nvlinks": sum(self.links.values()) if self.links else None,
            "pcie": self._pcie(),
            "numa_node": value_or_none(pynvml.nvmlDeviceGetNumaNodeId, self.handle),
            "pci_bus_id": self.pci_bus_id,
            "units": units,
        }

    def _links(self) -> dict[int, int]:
        """Of each NVLink that this board has: 1 when it is up."""
        states = {
            link: value_or_none(pynvml.nvmlDeviceGetNvLinkState, self.handle, link)
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        }
        return {link: int(state) for link, state in states.items() if state is not None}

    def _pcie(self) -> str:
        width = value_or_none(pynvml.nvmlDeviceGetCurrPcieLinkWidth, self.handle)
        most = value_or_none(pynvml.nvmlDeviceGetMaxPcieLinkWidth, self.handle)
        generation = value_or_none(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, self.handle)
        if not width or not most:
            return ""
        return f"x{width} of x{most}" + (f", up to generation {generation}" if generation else "")

    def partners(self) -> set[str]:
        """What the links that are up lead to: "switch", or the PCI address of another GPU."""
        found = set()
        for link, is_up in self.links.items():
            if not is_up:
                continue
            kind = value_or_none(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, self.handle, link)
            other = value_or_none(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, self.handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                found.add("switch")
            elif other is not None and as_text(other.busId):
                found.add(as_text(other.busId).lower())
        return found

    def condition(self) -> dict[str, Any]:
        """What ``agent.gpu.conditions`` makes events of. None: not supported, or not known just now."""
        rows = value_or_none(pynvml.nvmlDeviceGetRemappedRows, self.handle)
        self.links = self._links() or self.links
        errors = [
            value_or_none(pynvml.nvmlDeviceGetNvLinkErrorCounter, self.handle, link, kind)
            for link, is_up in self.links.items()
            if is_up
            for kind in NVLINK_ERROR_COUNTERS
        ]
        known = [count for count in errors if count is not None]
        return {
            "lost": self._is_lost(),
            "recovery": self._field_value(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
            "uncorrectable": value_or_none(
                pynvml.nvmlDeviceGetTotalEccErrors,
                self.handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            ),
            "remapped": rows[1] if rows else None,
            "remap_pending": bool(rows[2]) if rows else None,
            "remap_failed": bool(rows[3]) if rows else None,
            "clock_reasons": value_or_none(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self.handle),
            "links": {str(link): state for link, state in self.links.items()},
            "link_errors": sum(known) if known else None,
        }

    def _is_lost(self) -> bool:
        try:
            pynvml.nvmlDeviceGetTemperature(self.handle, pynvml.NVML_TEMPERATURE_GPU)
        except pynvml.NVMLError as error:
            return bool(error.value == pynvml.NVML_ERROR_GPU_IS_LOST)
        return False

    def devices(self) -> dict[str, list[str]]:
        """Per unit: the device nodes it needs beside the ones all GPUs share."""
        node = f"/dev/nvidia{self.minor}" if self.minor is not None else ""
        found = {self.uuid: [node] if node else []}
        for instance in self.instances:
            base = MIG_CAPABILITIES_FOLDER / f"gpu{self.minor}" / "mig" / f"gi{instance['gi']}"
            guards = [
                _capability_device(base / "access"),
                _capability_device(base / f"ci{instance['ci']}" / "access"),
            ]
            found[instance["uuid"]] = [name for name in [node, *guards] if name]
        return found

    def samples(self) -> list[dict[str, Any]]:
        """One reading per unit, in the words of ``protocol.SampleRow``, with the pids of its compute processes."""
        if not self.is_split:
            return [
                {
                    "unit": self.uuid,
                    **self._whole(),
                    **self._gpm(self.uuid, None),
                    **self._processes(self.handle),
                }
            ]
        return [
            {
                "unit": instance["uuid"],
                "memory_used_mib": used_mib(
                    value_or_none(pynvml.nvmlDeviceGetMemoryInfo, instance["handle"])
                ),
                **self._gpm(instance["uuid"], instance["gi"]),
                **self._processes(instance["handle"]),
            }
            for instance in self.instances
        ]

    def occupancy(self) -> list[dict[str, Any]]:
        """Per unit its memory in use and its compute processes: nothing of what ``samples`` measures from look to look."""
        units = self.instances if self.is_split else [{"uuid": self.uuid, "handle": self.handle}]
        return [
            {
                "unit": unit["uuid"],
                "memory_used_mib": used_mib(value_or_none(pynvml.nvmlDeviceGetMemoryInfo, unit["handle"])),
                **self._processes(unit["handle"]),
            }
            for unit in units
        ]

    def _whole(self) -> dict[str, Any]:
        rates = value_or_none(pynvml.nvmlDeviceGetUtilizationRates, self.handle)
        power = value_or_none(pynvml.nvmlDeviceGetPowerUsage, self.handle)
        return {
            "utilisation": rates.gpu if rates is not None else None,
            "memory_utilisation": rates.memory if rates is not None else None,
            "memory_used_mib": used_mib(value_or_none(pynvml.nvmlDeviceGetMemoryInfo, self.handle)),
            "power_w": power / 1000 if power is not None else None,
            "energy_mj": value_or_none(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.handle),
            "temperature_c": value_or_none(
                pynvml.nvmlDeviceGetTemperature, self.handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            "memory_temperature_c": self._field(pynvml.NVML_FI_DEV_MEMORY_TEMP),
            "sm_clock_mhz": value_or_none(pynvml.nvmlDeviceGetClockInfo, self.handle, pynvml.NVML_CLOCK_SM),
            "throttle_reasons": value_or_none(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self.handle),
            "pcie_rx_kib": value_or_none(
                pynvml.nvmlDeviceGetPcieThroughput, self.handle, pynvml.NVML_PCIE_UTIL_RX_BYTES
            ),
            "pcie_tx_kib": value_or_none(
                pynvml.nvmlDeviceGetPcieThroughput, self.handle, pynvml.NVML_PCIE_UTIL_TX_BYTES
            ),
            "nvlink_kib": self._link_kib(),
        }

    def _field(self, number: int) -> int | None:
        return (
            self._field_value(number) or None
        )  # 0 degrees is how some boards say that they have no such sensor

    def _field_value(self, number: int, scope: int = 0) -> int | None:
        values = value_or_none(pynvml.nvmlDeviceGetFieldValues, self.handle, [(number, scope)])
        if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        wide = values[0].valueType in (
            pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
            pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG,
        )
        return int(values[0].value.ullVal if wide else values[0].value.uiVal)

    def _link_kib(self) -> int | None:
        """KiB a second over all its links since the last look; None where they are not counted, and at the first look."""
        counts = (
            [self._field_value(number, ALL_LINKS) for number in NVLINK_THROUGHPUT_FIELDS]
            if self.links
            else []
        )
        known = [count for count in counts if count is not None]
        if not known or len(known) < len(counts):
            return None
        before, now = self.link_bytes, time.monotonic()
        self.link_bytes = (now, sum(known))
        if before is None or now <= before[0] or sum(known) < before[1]:
            return None
        return int((sum(known) - before[1]) / (now - before[0]))

    def _processes(self, handle: Any) -> dict[str, Any]:
        found = value_or_none(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if found is None:
            return {"pids": None}
        return {"pids": [[process.pid, bytes_to_mib(process.usedGpuMemory)] for process in found]}

    def _gpm(self, unit: str, instance: int | None) -> dict[str, Any]:
        """SM and tensor activity since the last look (Hopper and newer); None elsewhere and at the first look."""
        unknown: dict[str, Any] = dict.fromkeys(GPM_METRICS)
        support = value_or_none(pynvml.nvmlGpmQueryDeviceSupport, self.handle)
        if support is None or not support.isSupportedDevice:
            return unknown
        sample = value_or_none(pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return unknown
        if instance is None:
            taken = value_or_none(pynvml.nvmlGpmSampleGet, self.handle, sample)
        else:
            taken = value_or_none(pynvml.nvmlGpmMigSampleGet, self.handle, instance, sample)
        if taken is None:
            value_or_none(pynvml.nvmlGpmSampleFree, sample)
            return unknown
        before = self.earlier.get(unit)
        self.earlier[unit] = sample
        if before is None:
            return unknown
        measured = _rate_between(before, sample)
        value_or_none(pynvml.nvmlGpmSampleFree, before)
        return {**unknown, **measured}


def mig_profiles(handle: Any) -> list[dict[str, Any]]:
    """As ``protocol.MigProfileSeen``, with NVML's ``id``. Where instances may begin some drivers tell only while MIG is on."""
    if value_or_none(pynvml.nvmlDeviceGetMigMode, handle) is None:
        return []
    found = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(handle, number)
        if info is None:
            continue
        gigabytes = round(info.memorySizeMB / 1024)
        name = re.search(r"MIG (\S+)", as_text(getattr(info, "name", b"")))
        places = _placements(handle, info.id)
        found.append(
            {
                "id": info.id,
                "name": name[1] if name else f"{info.sliceCount}g.{gigabytes}gb",
                "slices": info.sliceCount,
                "memory_mib": info.memorySizeMB,
                "most": info.instanceCount,
                "size": places[0][1] if places else 0,
                "starts": [start for start, _ in places],
            }
        )
    return found


def _profile_info(handle: Any, number: int) -> Any:
    """With its name where the driver is new enough to tell it."""
    info = value_or_none(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
    return (
        info
        if info is not None
        else value_or_none(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, number, 1)
    )


def _placements(handle: Any, profile: int) -> list[tuple[int, int]]:
    """(start, size) of each place where an instance may begin, on an empty GPU; none where the driver does not tell."""
    found = (pynvml.c_nvmlGpuInstancePlacement_t * MAX_PLACEMENTS)()
    count = ctypes.c_uint(MAX_PLACEMENTS)
    if (
        value_or_none(
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, handle, profile, found, ctypes.byref(count)
        )
        is None
    ):
        return []
    return sorted((place.start, place.size) for place in found[: count.value])


class NvmlMigGpu:
    """One real GPU as ``mig.Board``: every refusal of the driver is a Trouble in words."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._profiles = mig_profiles(handle)
        self._names = {profile["id"]: profile["name"] for profile in self._profiles}

    def parts(self) -> list[str] | None:
        """Profiles of its instances, '' for one without a compute instance. None: it is not split."""
        mode = _mig_call("MIG mode", pynvml.nvmlDeviceGetMigMode, self._handle)
        if mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return None
        return [self._names[profile] if _compute_instances(gi) else "" for profile, gi in self._instances()]

    def split(self, on: bool) -> None:
        """MIG mode, now. Where it would need a reset first, what is pending is taken back."""
        wanted = pynvml.NVML_DEVICE_MIG_ENABLE if on else pynvml.NVML_DEVICE_MIG_DISABLE
        status = _mig_call("MIG mode", pynvml.nvmlDeviceSetMigMode, self._handle, wanted)
        mode = _mig_call("MIG mode", pynvml.nvmlDeviceGetMigMode, self._handle)
        if mode[0] == wanted:
            return
        value_or_none(pynvml.nvmlDeviceSetMigMode, self._handle, mode[0])
        raise mig.MigError(f"MIG mode: {_error_text(status) if status else 'the GPU needs a reset first'}")

    def clear(self) -> None:
        """Compute instances first, then what they lie in."""
        for profile, gi in self._instances():
            for ci in _compute_instances(gi):
                _mig_call(f"taking {self._names[profile]} away", pynvml.nvmlComputeInstanceDestroy, ci)
            _mig_call(f"taking {self._names[profile]} away", pynvml.nvmlGpuInstanceDestroy, gi)

    def make(self, part: GeometryPart) -> None:
        """The instance, and one compute instance that is all of it. What can't be completed is taken away again by ``clear``."""
        # Now that MIG is on the driver may know more places than before.
        profile = next((one for one in self._profiles if one["name"] == part.profile), None)
        if profile is None:
            raise mig.MigError(f"{part.profile}: not a profile of this GPU")
        what = f"making {part.profile}"
        if part.start is None or not profile["size"]:
            gi = _mig_call(what, pynvml.nvmlDeviceCreateGpuInstance, self._handle, profile["id"])
        else:
            place = pynvml.c_nvmlGpuInstancePlacement_t(part.start, profile["size"])
            call = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
            gi = _mig_call(what, call, self._handle, profile["id"], ctypes.byref(place))
        for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            info = _compute_profile(gi, number)
            if info is not None and info.sliceCount == profile["slices"]:
                _mig_call(what, pynvml.nvmlGpuInstanceCreateComputeInstance, gi, info.id)
                return
        raise mig.MigError(f"{what}: the driver has no compute instance of {profile['slices']} slices")

    def _instances(self) -> list[tuple[int, Any]]:
        """(id of the profile, handle) of each."""
        found = []
        for profile in self._profiles:
            handles = (pynvml.c_nvmlGpuInstance_t * MAX_PLACEMENTS)()
            count = ctypes.c_uint(MAX_PLACEMENTS)
            call = pynvml.nvmlDeviceGetGpuInstances
            if value_or_none(call, self._handle, profile["id"], handles, ctypes.byref(count)) is not None:
                found += [(profile["id"], handle) for handle in handles[: count.value]]
        return found


def _compute_profile(gi: Any, number: int) -> Any:
    shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
    return value_or_none(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gi, number, shared, 1)


def _compute_instances(gi: Any) -> list[Any]:
    found: list[Any] = []
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _compute_profile(gi, number)
        if info is None:
            continue
        handles = (pynvml.c_nvmlComputeInstance_t * MAX_PLACEMENTS)()
        count = ctypes.c_uint(MAX_PLACEMENTS)
        if (
            value_or_none(
                pynvml.nvmlGpuInstanceGetComputeInstances, gi, info.id, handles, ctypes.byref(count)
            )
            is not None
        ):
            found += handles[: count.value]
    return found


# What the driver's refusals mean for whoever wanted another geometry.
NVML_ERROR_TEXTS = {
    pynvml.NVML_ERROR_IN_USE: "a process still uses the GPU",
    pynvml.NVML_ERROR_NO_PERMISSION: "the agent may not do that: it has to run as root",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset first",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "it does not fit on the GPU",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "the GPU or its driver does not support that",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the driver does not reach the GPU",
}


def _error_text(code: int) -> str:
    return NVML_ERROR_TEXTS.get(code) or str(pynvml.NVMLError(code))


def _mig_call(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise mig.MigError(f"{what}: {_error_text(error.value)}") from None


def _rate_between(before: Any, after: Any) -> dict[str, Any]:
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(GPM_METRICS)
    question.sample1, question.sample2 = before, after
    for place, metric in enumerate(GPM_METRICS.values()):
        question.metrics[place].metricId = metric
    if value_or_none(pynvml.nvmlGpmMetricsGet, question) is None:
        return {}
    return {
        name: min(100.0, max(0.0, question.metrics[place].value))
        for place, name in enumerate(GPM_METRICS)
        if question.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS
        and question.metrics[place].value == question.metrics[place].value
    }


def used_mib(memory: Any) -> int | None:
    return memory.used >> 20 if memory is not None else None


def bytes_to_mib(used: int | None) -> int | None:
    return None if used is None else int(used) >> 20


def _cuda_version_text(number: int | None) -> str:
    """12040 as "12.4"."""
    return "" if not number else f"{number // 1000}.{number % 1000 // 10}"


def _pci_bus_id(index: int) -> str:
    """Also of a GPU that says nothing else, where the driver still knows it; '' else."""
    handle = value_or_none(pynvml.nvmlDeviceGetHandleByIndex, index)
    pci = value_or_none(pynvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
    return as_text(pci.busId) if pci is not None else ""


def _capability_device(path: Path) -> str:
    try:
        minor = re.search(r"DeviceFileMinor:\s*(\d+)", path.read_text())
    except OSError:
        return ""
    return f"/dev/nvidia-caps/nvidia-cap{minor[1]}" if minor else ""


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
            found = [{key: value for key, value in one.items() if key != "id"} for one in mig_profiles(gpu.handle)]
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


def main() -> int:
    """Answer until the questions end."""
    try:
        reader = NvmlSystem()
    except pynvml.NVMLError as error:
        print(json.dumps({"id": 0, "error": str(error)}), flush=True)
        return 1
    asks: dict[str, Callable[[], Any]] = {
        "hardware": reader.hardware,
        "sample": reader.sample,
        "occupancy": reader.occupancy,
        "events": reader.events,
        "conditions": reader.conditions,
    }
    for line in sys.stdin:
        question = json.loads(line)
        try:
            about = question.get("about")
            answer = {
                "id": question["id"],
                "answer": reader.reshape(about) if about else asks[question["ask"]](),
            }
        except pynvml.NVMLError as error:
            answer = {"id": question["id"], "error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
