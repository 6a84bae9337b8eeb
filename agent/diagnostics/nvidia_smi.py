"""Compares NVML's values with the output of ``nvidia-smi -q -x``, for the command ``agent probe``."""

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
# Memory in use, power, temperature and utilisation change between the NVML read and the run of nvidia-smi.
# A difference up to these limits counts as equal.
MEMORY_TOLERANCE_MIB = 512
POWER_TOLERANCE_WATTS, TEMPERATURE_TOLERANCE_C, UTILISATION_TOLERANCE_PERCENT = 50.0, 5.0, 100.0


class NvidiaSmiUnavailable(Exception):
    """The comparison is not possible; the message gives the reason."""


@dataclass(frozen=True)
class FactComparison:
    """The value of one fact from NVML (``ours``) and from nvidia-smi (``theirs``).

    ``gpu`` is the uuid of the GPU, or '' for a fact of the host. ``same`` is None if NVML or nvidia-smi does
    not report the fact.
    """

    gpu: str
    fact: str
    ours: Any
    theirs: Any
    same: bool | None


def read_nvidia_smi() -> str:
    """Return the XML that nvidia-smi prints. Raises NvidiaSmiUnavailable."""
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
    """Compare the values of NVML with the XML ``text`` of nvidia-smi.

    Raises NvidiaSmiUnavailable if ``text`` is not XML.
    """
    if "<!ENTITY" in text:
        raise NvidiaSmiUnavailable("nvidia-smi: its XML declares entities, which are not supported")
    try:
        root = Tree.fromstring(text)
    except Tree.ParseError as error:
        raise NvidiaSmiUnavailable(f"nvidia-smi: not XML ({error})") from None
    elements = {_element_text(gpu, "uuid"): gpu for gpu in root.iter("gpu")}
    comparisons = [
        _compare_fact("", "driver version", hardware.driver_version, _element_text(root, "driver_version")),
        _compare_fact("", "CUDA version", hardware.cuda_version, _element_text(root, "cuda_version")),
        _compare_fact("", "GPUs", sorted(gpu.uuid for gpu in hardware.gpus), sorted(elements)),
    ]
    rows_by_unit = {row.unit: row for row in rows}
    for gpu in hardware.gpus:
        if gpu.uuid in elements:
            comparisons += _compare_gpu(gpu, rows_by_unit.get(gpu.uuid), elements[gpu.uuid])
    return comparisons


def _compare_gpu(gpu: GpuSeen, row: SampleRow | None, element: Tree.Element) -> Iterator[FactComparison]:
    yield _compare_fact(
        gpu.uuid,
        "PCI address",
        _normalised_pci_address(gpu.pci_bus_id),
        _normalised_pci_address(_element_text(element, "pci/pci_bus_id")),
    )
    yield _compare_fact(
        gpu.uuid, "memory MiB", gpu.memory_mib, _element_number(element, "fb_memory_usage/total"), _within(1)
    )
    width = _element_text(element, "pci/pci_gpu_link_info/link_widths/max_link_width").removesuffix("x")
    yield _compare_fact(gpu.uuid, "PCIe lanes at most", _pcie_lanes(gpu.pcie), width)
    mig_mode = _element_text(element, "mig_mode/current_mig")
    known = mig_mode == "Enabled" if mig_mode in ("Enabled", "Disabled") else None
    yield _compare_fact(gpu.uuid, "split into instances", any(unit.profile for unit in gpu.units), known)
    instances = sum(1 for _ in element.iterfind("mig_devices/mig_device"))
    if mig_mode == "Enabled":
        yield _compare_fact(gpu.uuid, "instances", sum(1 for unit in gpu.units if unit.profile), instances)
    if row is None:
        return
    near_memory = _within(MEMORY_TOLERANCE_MIB)
    yield _compare_fact(
        gpu.uuid,
        "memory in use MiB",
        row.memory_used_mib,
        _element_number(element, "fb_memory_usage/used"),
        near_memory,
    )
    yield _compare_fact(
        gpu.uuid,
        "busy %",
        row.utilisation,
        _element_number(element, "utilization/gpu_util"),
        _within(UTILISATION_TOLERANCE_PERCENT),
    )
    yield _compare_fact(
        gpu.uuid,
        "temperature °C",
        row.temperature_c,
        _element_number(element, "temperature/gpu_temp"),
        _within(TEMPERATURE_TOLERANCE_C),
    )
    yield _compare_fact(
        gpu.uuid, "power W", row.power_w, _power_draw(element), _within(POWER_TOLERANCE_WATTS)
    )
    pids = [
        process
        for process in element.iterfind("processes/process_info")
        if "C" in _element_text(process, "type")
    ]
    yield _compare_fact(gpu.uuid, "processes", row.processes, len(pids))


def _power_draw(element: Tree.Element) -> float | None:
    # Drivers of different versions use different names for these elements.
    for group in ("gpu_power_readings", "power_readings"):
        for name in ("power_draw", "instant_power_draw", "average_power_draw"):
            watts = _element_number(element, f"{group}/{name}")
            if watts is not None:
                return watts
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
    return (element.findtext(path) or "").strip()


def _element_number(element: Tree.Element, path: str) -> float | None:
    """Return the number in a text such as "81559 MiB", "123.45 W" or "55 %"; None for "N/A"."""
    match = re.match(r"-?\d+(\.\d+)?", _element_text(element, path))
    return float(match[0]) if match else None


def _normalised_pci_address(text: str) -> str:
    parts = re.match(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.(\d+)$", text.strip())
    return ":".join(f"{int(part, 16):x}" for part in parts.groups()) if parts else text


def _pcie_lanes(pcie: str) -> str:
    match = re.search(r"of x(\d+)", pcie)
    return match[1] if match else ""
