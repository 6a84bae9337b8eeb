"""What NVML answers beside what ``nvidia-smi -q -x`` prints: two readers of one driver that should agree. For ``probe``."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as Tree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agent.gpu.reader import GpuInventory
from agent.protocol import GpuSeen, SampleRow

COMMAND_TIMEOUT_SECONDS = 30.0
MAX_XML_BYTES = 32 << 20
MEMORY_TOLERANCE_MIB = 512  # what moves between two looks is near enough when it differs by no more
POWER_TOLERANCE_WATTS, TEMPERATURE_TOLERANCE_C, UTILISATION_TOLERANCE_PERCENT = 50.0, 5.0, 100.0


class NvidiaSmiUnavailable(Exception):
    """No comparison; the message says why."""


@dataclass(frozen=True)
class FactComparison:
    """One fact of one GPU (or of the host, ``gpu`` empty) as both have it. ``same`` None: only one of them knows it."""

    gpu: str
    fact: str
    ours: Any
    theirs: Any
    same: bool | None


def read_nvidia_smi() -> str:
    """The XML of the program on this machine. Raises NvidiaSmiUnavailable."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NvidiaSmiUnavailable("nvidia-smi is not installed")
    try:
        done = subprocess.run(
            [program, "-q", "-x"], capture_output=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NvidiaSmiUnavailable(f"nvidia-smi: {error}") from None
    if done.returncode:
        raise NvidiaSmiUnavailable(
            f"nvidia-smi ended with {done.returncode}: {done.stderr.decode('utf-8', 'replace')[:200]}"
        )
    return done.stdout[:MAX_XML_BYTES].decode("utf-8", "replace")


def compare_with_nvml(text: str, hardware: GpuInventory, rows: list[SampleRow]) -> list[FactComparison]:
    """Every fact that both can have. Raises NvidiaSmiUnavailable for what is no such XML."""
    if "<!ENTITY" in text:
        raise NvidiaSmiUnavailable("nvidia-smi: its XML declares entities, which is not read")
    try:
        root = Tree.fromstring(text)
    except Tree.ParseError as error:
        raise NvidiaSmiUnavailable(f"nvidia-smi: not XML ({error})") from None
    theirs = {_element_text(gpu, "uuid"): gpu for gpu in root.iter("gpu")}
    found = [
        _compare_fact("", "driver version", hardware.driver_version, _element_text(root, "driver_version")),
        _compare_fact("", "CUDA version", hardware.cuda_version, _element_text(root, "cuda_version")),
        _compare_fact("", "GPUs", sorted(gpu.uuid for gpu in hardware.gpus), sorted(theirs)),
    ]
    of_unit = {row.unit: row for row in rows}
    for gpu in hardware.gpus:
        if gpu.uuid in theirs:
            found += _compare_gpu(gpu, of_unit.get(gpu.uuid), theirs[gpu.uuid])
    return found


def _compare_gpu(gpu: GpuSeen, row: SampleRow | None, told: Tree.Element) -> Iterator[FactComparison]:
    yield _compare_fact(
        gpu.uuid,
        "PCI address",
        _normalised_pci_address(gpu.pci_bus_id),
        _normalised_pci_address(_element_text(told, "pci/pci_bus_id")),
    )
    yield _compare_fact(
        gpu.uuid, "memory MiB", gpu.memory_mib, _element_number(told, "fb_memory_usage/total"), _within(1)
    )
    width = _element_text(told, "pci/pci_gpu_link_info/link_widths/max_link_width").removesuffix("x")
    yield _compare_fact(gpu.uuid, "PCIe lanes at most", _pcie_lanes(gpu.pcie), width)
    split = _element_text(told, "mig_mode/current_mig")
    known = split == "Enabled" if split in ("Enabled", "Disabled") else None
    yield _compare_fact(gpu.uuid, "split into instances", any(unit.profile for unit in gpu.units), known)
    instances = sum(1 for _ in told.iterfind("mig_devices/mig_device"))
    if split == "Enabled":
        yield _compare_fact(gpu.uuid, "instances", sum(1 for unit in gpu.units if unit.profile), instances)
    if row is None:
        return
    near_memory = _within(MEMORY_TOLERANCE_MIB)
    yield _compare_fact(
        gpu.uuid,
        "memory in use MiB",
        row.memory_used_mib,
        _element_number(told, "fb_memory_usage/used"),
        near_memory,
    )
    yield _compare_fact(
        gpu.uuid,
        "busy %",
        row.utilisation,
        _element_number(told, "utilization/gpu_util"),
        _within(UTILISATION_TOLERANCE_PERCENT),
    )
    yield _compare_fact(
        gpu.uuid,
        "temperature °C",
        row.temperature_c,
        _element_number(told, "temperature/gpu_temp"),
        _within(TEMPERATURE_TOLERANCE_C),
    )
    yield _compare_fact(gpu.uuid, "power W", row.power_w, _power_draw(told), _within(POWER_TOLERANCE_WATTS))
    pids = [each for each in told.iterfind("processes/process_info") if "C" in _element_text(each, "type")]
    yield _compare_fact(gpu.uuid, "processes", row.processes, len(pids))


def _power_draw(told: Tree.Element) -> float | None:
    # The names changed with the drivers: power_readings, gpu_power_readings; power_draw, instant_power_draw.
    for group in ("gpu_power_readings", "power_readings"):
        for name in ("power_draw", "instant_power_draw", "average_power_draw"):
            found = _element_number(told, f"{group}/{name}")
            if found is not None:
                return found
    return None


def _compare_fact(
    gpu: str, fact: str, ours: Any, theirs: Any, same: Callable[[Any, Any], bool] | None = None
) -> FactComparison:
    unknown = (None, "", "N/A", "[N/A]")
    if ours in unknown or theirs in unknown:
        return FactComparison(gpu, fact, ours, theirs, None)
    return FactComparison(gpu, fact, ours, theirs, same(ours, theirs) if same else str(ours) == str(theirs))


def _within(step: float) -> Callable[[Any, Any], bool]:
    return lambda ours, theirs: abs(float(ours) - float(theirs)) <= step


def _element_text(element: Tree.Element, path: str) -> str:
    found = element.findtext(path)
    return (found or "").strip()


def _element_number(element: Tree.Element, path: str) -> float | None:
    """ "81559 MiB", "123.45 W", "44 C", "55 %"; None for "N/A" and the like."""
    match = re.match(r"-?\d+(\.\d+)?", _element_text(element, path))
    return float(match[0]) if match else None


def _normalised_pci_address(text: str) -> str:
    parts = re.match(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.(\d+)$", text.strip())
    return ":".join(f"{int(part, 16):x}" for part in parts.groups()) if parts else text


def _pcie_lanes(pcie: str) -> str:
    match = re.search(r"of x(\d+)", pcie)
    return match[1] if match else ""
