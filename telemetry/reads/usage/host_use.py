"""Return the use of CPU, memory, disks and networks of one host in the last hour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.models import Host
from telemetry.core.counters import (
    MAX_GAP_SECONDS,
    MAX_IO_BYTES,
    MAX_NETWORK_BYTES,
    CounterReading,
    Growth,
    growths,
    max_cpu_seconds,
)
from telemetry.models import HostUse

WINDOW = timedelta(hours=1)
CURRENT = timedelta(seconds=MAX_GAP_SECONDS)  # longest age of a present reading


@dataclass(frozen=True)
class UsedAmount:
    """A use of the host: now, and its mean and peak in the last hour. None: not measured."""

    now: float | None
    mean: float | None
    peak: float | None


@dataclass(frozen=True)
class DeviceUse:
    """The traffic of one disk or network interface, in bytes per second."""

    name: str
    bytes_in: UsedAmount
    bytes_out: UsedAmount


@dataclass(frozen=True)
class HostUseSummary:
    """The use of a host. ``at`` is the time of the last reading."""

    at: datetime
    cpu_cores: UsedAmount
    memory_mib: UsedAmount
    disk_bytes: int | None
    disk_free_bytes: int | None
    disks: list[DeviceUse]
    networks: list[DeviceUse]


def host_use_summary(host: Host, now: datetime) -> HostUseSummary | None:
    """Return the use of a host; None if its agent has reported none in the last hour. Runs one query."""
    rows = list(HostUse.objects.filter(host=host, ts__gt=now - WINDOW, ts__lte=now).order_by("ts"))
    if not rows:
        return None
    last = rows[-1]
    current = now - CURRENT
    memory = [row.memory_used_mib for row in rows if row.memory_used_mib is not None]
    return HostUseSummary(
        at=last.ts,
        cpu_cores=_rate(rows, [row.cpu_seconds for row in rows], max_cpu_seconds(host.cpu_milli), current),
        memory_mib=UsedAmount(
            last.memory_used_mib if last.ts > current else None,
            sum(memory) / len(memory) if memory else None,
            max(memory, default=None),
        ),
        disk_bytes=last.disk_bytes,
        disk_free_bytes=last.disk_free_bytes,
        disks=_devices(rows, [row.disks for row in rows], MAX_IO_BYTES, current),
        networks=_devices(rows, [row.networks for row in rows], MAX_NETWORK_BYTES, current),
    )


def _devices(
    rows: Sequence[HostUse], counts: Sequence[dict[str, list[int]]], highest: float, current: datetime
) -> list[DeviceUse]:
    """Return the traffic of each device. Counters of devices are never added before their growth is known."""
    names = sorted({name for each in counts for name in each})
    return [
        DeviceUse(
            name,
            *(
                _rate(rows, [each[name][way] if name in each else None for each in counts], highest, current)
                for way in (0, 1)
            ),
        )
        for name in names
    ]


def _rate(
    rows: Sequence[HostUse], values: Iterable[float | None], highest: float, current: datetime
) -> UsedAmount:
    readings = [CounterReading(row.ts.timestamp(), value) for row, value in zip(rows, values, strict=True)]
    known = growths(readings, highest)
    if not known:
        return UsedAmount(None, None, None)
    last = known[-1]
    return UsedAmount(
        last.per_second if last.end > current.timestamp() else None,
        _mean(known),
        max(each.per_second for each in known),
    )


def _mean(known: Sequence[Growth]) -> float:
    return sum(each.amount for each in known) / sum(each.end - each.start for each in known)
