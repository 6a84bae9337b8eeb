"""What NVML answers beside what ``nvidia-smi -q -x`` prints: two readers of one driver that should agree. For ``probe``."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as Tree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agent.meter import Hardware
from agent.protocol import GpuSeen, SampleRow

DEADLINE_SECONDS = 30.0
LARGEST_XML = 32 << 20
MEMORY_STEP_MIB = 512  # what moves between two looks is near enough when it differs by no more
WATTS, DEGREES, PER_CENT = 50.0, 5.0, 100.0


class NotThere(Exception):
    """No comparison; the message says why."""


@dataclass(frozen=True)
class Compared:
    """One fact of one GPU (or of the host, ``gpu`` empty) as both have it. ``same`` None: only one of them knows it."""

    gpu: str
    fact: str
    ours: Any
    theirs: Any
    same: bool | None


def printed() -> str:
    """The XML of the program on this machine. Raises NotThere."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotThere("nvidia-smi is not installed")
    try:
        done = subprocess.run([program, "-q", "-x"], capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotThere(f"nvidia-smi: {error}") from None
    if done.returncode:
        raise NotThere(f"nvidia-smi ended with {done.returncode}: {done.stderr.decode('utf-8', 'replace')[:200]}")
    return done.stdout[:LARGEST_XML].decode("utf-8", "replace")


def compare(text: str, hardware: Hardware, rows: list[SampleRow]) -> list[Compared]:
    """Every fact that both can have. Raises NotThere for what is no such XML."""
    if "<!ENTITY" in text:
        raise NotThere("nvidia-smi: its XML declares entities, which is not read")
    try:
        root = Tree.fromstring(text)
    except Tree.ParseError as error:
        raise NotThere(f"nvidia-smi: not XML ({error})") from None
    theirs = {_text(gpu, "uuid"): gpu for gpu in root.iter("gpu")}
    found = [
        _one("", "driver version", hardware.driver_version, _text(root, "driver_version")),
        _one("", "CUDA version", hardware.cuda_version, _text(root, "cuda_version")),
        _one("", "GPUs", sorted(gpu.uuid for gpu in hardware.gpus), sorted(theirs)),
    ]
    of_unit = {row.unit: row for row in rows}
    for gpu in hardware.gpus:
        if gpu.uuid in theirs:
            found += _gpu(gpu, of_unit.get(gpu.uuid), theirs[gpu.uuid])
    return found


def _gpu(gpu: GpuSeen, row: SampleRow | None, told: Tree.Element) -> Iterator[Compared]:
    yield _one(gpu.uuid, "PCI address", _address(gpu.pci_bus_id), _address(_text(told, "pci/pci_bus_id")))
    yield _one(gpu.uuid, "memory MiB", gpu.memory_mib, _number(told, "fb_memory_usage/total"), _near(1))
    width = _text(told, "pci/pci_gpu_link_info/link_widths/max_link_width").removesuffix("x")
    yield _one(gpu.uuid, "PCIe lanes at most", _lanes(gpu.pcie), width)
    split = _text(told, "mig_mode/current_mig")
    known = split == "Enabled" if split in ("Enabled", "Disabled") else None
    yield _one(gpu.uuid, "split into instances", any(unit.profile for unit in gpu.units), known)
    instances = sum(1 for _ in told.iterfind("mig_devices/mig_device"))
    if split == "Enabled":
        yield _one(gpu.uuid, "instances", sum(1 for unit in gpu.units if unit.profile), instances)
    if row is None:
        return
    near_memory = _near(MEMORY_STEP_MIB)
    yield _one(gpu.uuid, "memory in use MiB", row.memory_used_mib, _number(told, "fb_memory_usage/used"), near_memory)
    yield _one(gpu.uuid, "busy %", row.utilisation, _number(told, "utilization/gpu_util"), _near(PER_CENT))
    yield _one(gpu.uuid, "temperature °C", row.temperature_c, _number(told, "temperature/gpu_temp"), _near(DEGREES))
    yield _one(gpu.uuid, "power W", row.power_w, _power(told), _near(WATTS))
    pids = [each for each in told.iterfind("processes/process_info") if "C" in _text(each, "type")]
    yield _one(gpu.uuid, "processes", row.processes, len(pids))


def _power(told: Tree.Element) -> float | None:
    # The names changed with the drivers: power_readings, gpu_power_readings; power_draw, instant_power_draw.
    for group in ("gpu_power_readings", "power_readings"):
        for name in ("power_draw", "instant_power_draw", "average_power_draw"):
            found = _number(told, f"{group}/{name}")
            if found is not None:
                return found
    return None


def _one(gpu: str, fact: str, ours: Any, theirs: Any, same: Callable[[Any, Any], bool] | None = None) -> Compared:
    unknown = (None, "", "N/A", "[N/A]")
    if ours in unknown or theirs in unknown:
        return Compared(gpu, fact, ours, theirs, None)
    return Compared(gpu, fact, ours, theirs, same(ours, theirs) if same else str(ours) == str(theirs))


def _near(step: float) -> Callable[[Any, Any], bool]:
    return lambda ours, theirs: abs(float(ours) - float(theirs)) <= step


def _text(element: Tree.Element, path: str) -> str:
    found = element.findtext(path)
    return (found or "").strip()


def _number(element: Tree.Element, path: str) -> float | None:
    """ "81559 MiB", "123.45 W", "44 C", "55 %"; None for "N/A" and the like."""
    match = re.match(r"-?\d+(\.\d+)?", _text(element, path))
    return float(match[0]) if match else None


def _address(text: str) -> str:
    parts = re.match(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.(\d+)$", text.strip())
    return ":".join(f"{int(part, 16):x}" for part in parts.groups()) if parts else text


def _lanes(pcie: str) -> str:
    match = re.search(r"of x(\d+)", pcie)
    return match[1] if match else ""
