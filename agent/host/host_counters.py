"""Reads the use of CPU, memory, disks and networks by all processes of this host, from /proc and /sys."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agent.protocol import DeviceTrafficSeen, HostUseSeen

SECTOR_BYTES = 512  # unit of /proc/diskstats, whatever the disk's own sectors are
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Columns of the line "cpu" in /proc/stat that count busy time: user, nice, system, irq, softirq.
BUSY_COLUMNS = (0, 1, 2, 5, 6)

T = TypeVar("T")


def host_use(
    folder: Path, ts: float, uptime: float, proc: Path = Path("/proc"), system: Path = Path("/sys")
) -> HostUseSeen:
    """Return the use of the host. ``folder``: its file system's size and free space are reported."""
    space = _or_none(lambda: os.statvfs(folder))
    return HostUseSeen(
        ts=ts,
        uptime=round(uptime, 6),
        cpu_seconds=_or_none(lambda: busy_seconds((proc / "stat").read_text())),
        memory_used_mib=_or_none(lambda: used_memory_mib((proc / "meminfo").read_text())),
        disk_bytes=space.f_blocks * space.f_frsize if space is not None else None,
        disk_free_bytes=space.f_bavail * space.f_frsize if space is not None else None,
        disks=_or_none(lambda: _disks(proc, system)) or [],
        networks=_or_none(lambda: _networks(proc, system)) or [],
    )


def busy_seconds(text: str) -> float:
    """Return the busy time of all cores since the boot, from the text of /proc/stat."""
    fields = text.splitlines()[0].split()[1:]
    return sum(int(fields[column]) for column in BUSY_COLUMNS) / TICKS_PER_SECOND


def used_memory_mib(text: str) -> int:
    """Return the memory in use without droppable caches, from the text of /proc/meminfo."""
    sizes = {line.partition(":")[0]: int(line.split()[1]) for line in text.splitlines() if ":" in line}
    return (sizes["MemTotal"] - sizes["MemAvailable"]) >> 10


def interface_bytes(text: str) -> dict[str, tuple[int, int]]:
    """Return (received, sent) bytes by interface, without the loopback, from the text of /proc/net/dev."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 9 and name.strip() != "lo":
            found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def process_network_bytes(pids: set[int], proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Return the bytes that processes have received and sent in a network namespace of their own.

    Returns None if they share the network of the host, or if nothing can be read. A namespace with only a
    loopback has no traffic.
    """
    own = _or_none(lambda: os.stat(proc / "self/ns/net").st_ino)
    for pid in sorted(pids):
        space = _or_none(lambda pid=pid: os.stat(proc / str(pid) / "ns/net").st_ino)  # type: ignore[misc]
        if own is None or space is None or space == own:
            continue
        text = _or_none(lambda pid=pid: (proc / str(pid) / "net/dev").read_text())  # type: ignore[misc]
        if text is not None:
            counts = interface_bytes(text).values()
            return sum(received for received, _ in counts), sum(sent for _, sent in counts)
    return None


def _disks(proc: Path, system: Path) -> list[DeviceTrafficSeen]:
    """Return the traffic of each disk. Partitions and devices made of other devices are left out."""
    found = []
    for line in (proc / "diskstats").read_text().splitlines():
        fields = line.split()
        if len(fields) >= 10 and (system / "block" / fields[2] / "device").exists():
            sectors = int(fields[5]), int(fields[9])
            found.append(DeviceTrafficSeen(fields[2], *(count * SECTOR_BYTES for count in sectors)))
    return found


def _networks(proc: Path, system: Path) -> list[DeviceTrafficSeen]:
    """Return the traffic of each network interface with a device. Without one, of all but the loopback."""
    counts = interface_bytes((proc / "net/dev").read_text())
    real = {name for name in counts if (system / "class/net" / name / "device").exists()}
    return [
        DeviceTrafficSeen(name, *both) for name, both in sorted(counts.items()) if name in real or not real
    ]


def _or_none(read: Callable[[], T]) -> T | None:
    """Return the result; None if a file can't be read or has another format."""
    try:
        return read()
    except (OSError, ValueError, KeyError, IndexError):
        return None
