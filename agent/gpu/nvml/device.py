"""Reads one GPU and its MIG instances through NVML."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pynvml

from agent.gpu.nvml.activity import ActivityMeter
from agent.gpu.nvml.calls import SupportedCalls, as_text, value_or_none
from agent.gpu.nvml.minute_reader import ALL_LINKS, MinuteReader
from agent.protocol import SLOTS_PER_GPU

COMPUTE_SLICES = 7  # number of compute slices of a GPU that supports MIG


GPM_METRICS = {
    "sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}


# The nominal memory sizes of GPUs on the market.
NOMINAL_GB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 192, 288)


# Folder of the driver's files for MIG instances. A file has the minor number of a device in /dev/nvidia-caps.
MIG_CAPABILITIES_FOLDER = Path("/proc/driver/nvidia/capabilities")


NVLINK_ERROR_COUNTERS = (
    pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
    pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
    pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
)


NVLINK_THROUGHPUT_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
)  # KiB sent, KiB received


def model_name(name: str, memory_mib: int) -> str:
    """Return the model name: the product family and the nominal memory size.

    Example: "NVIDIA H100 80GB HBM3" becomes "H100-80GB".
    """
    plain = re.sub(r"^(NVIDIA|Tesla|Quadro|GeForce)\s+", "", re.sub(r"^NVIDIA\s+", "", name)).replace(
        "GeForce ", ""
    )
    family = re.match(r"(RTX (?:PRO )?\w+(?: Ti| SUPER| Ada)?|GTX \w+|[A-Z]{1,2}\d+[A-Za-z]*)", plain)
    size = min(NOMINAL_GB, key=lambda nominal: abs(nominal - memory_mib / 1024))
    return f"{family[1].replace(' ', '-') if family else plain.replace(' ', '-')}-{size}GB"


class NvmlGpu:
    """One GPU and its MIG instances, as NVML reports them."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = as_text(pynvml.nvmlDeviceGetUUID(self.handle))
        self.minor = value_or_none(pynvml.nvmlDeviceGetMinorNumber, self.handle)
        self.memory_mib = pynvml.nvmlDeviceGetMemoryInfo(self.handle).total >> 20
        self.model = model_name(as_text(pynvml.nvmlDeviceGetName(self.handle)), self.memory_mib)
        self.instances = self._instances()
        self.calls = SupportedCalls(self.handle)
        self.activity = ActivityMeter(self.handle, self.calls, GPM_METRICS)
        self.minute_reader = MinuteReader(self.handle, self.calls)
        pci = value_or_none(pynvml.nvmlDeviceGetPciInfo, self.handle)
        self.pci_bus_id = as_text(pci.busId) if pci is not None else ""
        self.links = self._links()
        # At the last sample: time.monotonic, and the total traffic of all NVLinks in KiB.
        self.link_bytes: tuple[float, int] | None = None

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
        """Return this GPU as a JSON object with the fields of ``protocol.GpuSeen``."""
        capability = value_or_none(pynvml.nvmlDeviceGetCudaComputeCapability, self.handle) or (0, 0)
        units = [
            {
                **{key: instance[key] for key in ("uuid", "profile", "first_slot", "slots", "memory_mib")},
                "instance": instance["gi"],
            }
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
            "power_limit_w": self._power_limit_w(),
            "slowdown_temperature_c": value_or_none(
                pynvml.nvmlDeviceGetTemperatureThreshold,
                self.handle,
                pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
            ),
        }

    def _power_limit_w(self) -> float | None:
        """Return the highest power limit that can be set, because an operator may raise the present limit."""
        limits = value_or_none(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self.handle)
        return limits[1] / 1000 if limits else None

    def _links(self) -> dict[int, int]:
        """Return the state of this GPU's NVLinks by link number: 1 if the link is up, 0 if it is down."""
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
        """Return the peers of the NVLinks that are up. A peer is "switch" or the PCI address of a GPU."""
        found = set()
        for link, is_up in self.links.items():
            if not is_up:
                continue
            kind = value_or_none(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, self.handle, link)
            remote = value_or_none(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, self.handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                found.add("switch")
            elif remote is not None and as_text(remote.busId):
                found.add(as_text(remote.busId).lower())
        return found

    def condition(self) -> dict[str, Any]:
        """Return the values that ``agent.gpu.conditions`` compares.

        A value is None if it is unsupported or unknown at present.
        """
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
        """Return the paths of the device nodes by unit uuid, without the nodes that all GPUs share."""
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
        """Return one reading per unit.

        A reading has fields of ``protocol.SampleRow``, and under "pids" the unit's compute processes as a
        list of [pid, memory in MiB]. "pids" is None if the driver does not report them.
        """
        if not self.is_split:
            return [
                {
                    "unit": self.uuid,
                    **self._whole(),
                    **self.activity.measure(self.uuid, None),
                    **self._processes(self.handle),
                }
            ]
        return [
            {
                "unit": instance["uuid"],
                "memory_used_mib": used_mib(
                    value_or_none(pynvml.nvmlDeviceGetMemoryInfo, instance["handle"])
                ),
                **self.activity.measure(instance["uuid"], instance["gi"]),
                **self._processes(instance["handle"]),
            }
            for instance in self.instances
        ]

    def occupancy(self) -> list[dict[str, Any]]:
        """Return the memory in use and the compute processes of each unit, with the keys of ``samples``.

        Rates are not read here. A rate covers the time since the last read, so an extra read would change the
        rates of the next sample.
        """
        units = self.instances if self.is_split else [{"uuid": self.uuid, "handle": self.handle}]
        return [
            {
                "unit": unit["uuid"],
                "memory_used_mib": used_mib(value_or_none(pynvml.nvmlDeviceGetMemoryInfo, unit["handle"])),
                **self._processes(unit["handle"]),
            }
            for unit in units
        ]

    def minute(self) -> dict[str, Any]:
        """Return the values that are read once a minute: of each unit, of the GPU, and of its processes.

        A process has the keys "unit", "pid", "memory_mib" and "sm_percent". The values of a whole GPU are not
        those of its MIG instances, so instances do not have them.
        """
        reader = self.minute_reader
        if self.is_split:
            units = {each["uuid"]: reader.unit_readings(each["uuid"], each["gi"]) for each in self.instances}
            shares, handles = None, {each["uuid"]: each["handle"] for each in self.instances}
        else:
            whole = reader.whole_readings(bool(self.links))
            units = {self.uuid: {**whole, **reader.unit_readings(self.uuid, None)}}
            shares, handles = reader.sm_shares(), {self.uuid: self.handle}
        processes = [
            {
                "unit": unit,
                "pid": pid,
                "memory_mib": memory,
                "sm_percent": None if shares is None else shares.get(pid, 0.0),
            }
            for unit, handle in handles.items()
            for pid, memory in self._processes(handle)["pids"] or ()
        ]
        return {"gpu": self.uuid, "units": units, "counters": reader.counters(), "processes": processes}

    def _whole(self) -> dict[str, Any]:
        value = self.calls.value
        rates = value("rates", pynvml.nvmlDeviceGetUtilizationRates)
        power = value("power", pynvml.nvmlDeviceGetPowerUsage)
        return {
            "utilisation": rates.gpu if rates is not None else None,
            "memory_utilisation": rates.memory if rates is not None else None,
            "memory_used_mib": used_mib(value_or_none(pynvml.nvmlDeviceGetMemoryInfo, self.handle)),
            "power_w": power / 1000 if power is not None else None,
            "energy_mj": value("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption),
            "temperature_c": value(
                "temperature", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU
            ),
            "memory_temperature_c": self._field(pynvml.NVML_FI_DEV_MEMORY_TEMP),
            "sm_clock_mhz": value("SM clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            "throttle_reasons": value("clock reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons),
            "pcie_rx_kib": value(
                "PCIe received", pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_RX_BYTES
            ),
            "pcie_tx_kib": value(
                "PCIe sent", pynvml.nvmlDeviceGetPcieThroughput, pynvml.NVML_PCIE_UTIL_TX_BYTES
            ),
            "nvlink_kib": self._link_kib(),
        }

    def _field(self, number: int) -> int | None:
        return self._field_value(number) or None  # boards without the sensor may report 0 degrees

    def _field_value(self, number: int, scope: int = 0) -> int | None:
        return self.calls.fields([(number, scope)]).get(number)

    def _link_kib(self) -> int | None:
        """Return the traffic of all NVLinks since the last sample, in KiB/s.

        Returns None at the first sample, after a reset of the counter, or if the GPU reports no traffic.
        """
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


def used_mib(memory: Any) -> int | None:
    return memory.used >> 20 if memory is not None else None


def bytes_to_mib(used: int | None) -> int | None:
    return None if used is None else int(used) >> 20


def _capability_device(path: Path) -> str:
    try:
        minor = re.search(r"DeviceFileMinor:\s*(\d+)", path.read_text())
    except OSError:
        return ""
    return f"/dev/nvidia-caps/nvidia-cap{minor[1]}" if minor else ""
