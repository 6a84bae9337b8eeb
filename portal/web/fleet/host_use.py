"""Build the panel with the use of a host, and the table of the error counters of its GPUs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from portal.web.components.quantities import data_size, grouped
from portal.wording import host_texts
from portal.wording.pages import fleet_pages
from scheduler.models import Host
from telemetry.reads.usage.gpu_counters import GpuCounter, gpu_counters
from telemetry.reads.usage.host_use import DeviceUse, UsedAmount, host_use_summary

MIB_PER_GIB = 1024
NANOSECONDS = "_ns"


def host_use_panel(host: Host, now: datetime) -> dict[str, Any] | None:
    """Return the table of a host's use with the time of its last reading; None without a reading."""
    used = host_use_summary(host, now)
    if used is None:
        return None
    rows = [
        _row(fleet_pages.HOST_CPU, used.cpu_cores, lambda value: grouped(value, 1)),
        _row(fleet_pages.HOST_MEMORY, used.memory_mib, lambda value: f"{value / MIB_PER_GIB:,.1f} GiB"),
        *_device_rows(fleet_pages.HOST_DISK_TRAFFIC, used.disks),
        *_device_rows(fleet_pages.HOST_NETWORK_TRAFFIC, used.networks),
    ]
    free = ""
    if used.disk_bytes is not None and used.disk_free_bytes is not None:
        free = fleet_pages.HOST_DISK_FREE.format(
            free=data_size(used.disk_free_bytes), size=data_size(used.disk_bytes)
        )
    return {
        "at": used.at,
        "free": free,
        "table": {
            "caption": fleet_pages.HOST_USE_TITLE,
            "columns": [
                {"label": label, "numeric": numeric} for label, numeric in fleet_pages.HOST_USE_COLUMNS
            ],
            "rows": rows,
        },
    }


def _device_rows(labels: tuple[str, str], devices: list[DeviceUse]) -> list[list[str | None]]:
    return [
        _row(label.format(name=device.name), amount, lambda value: f"{data_size(value)}/s")
        for device in devices
        for label, amount in zip(labels, (device.bytes_in, device.bytes_out), strict=True)
    ]


def _row(label: str, amount: UsedAmount, text: Callable[[float], str]) -> list[str | None]:
    values = (amount.now, amount.mean, amount.peak)
    return [label, *(None if value is None else text(value) for value in values)]


def gpu_counter_rows(host: Host) -> list[dict[str, Any]]:
    """Return the counters of a host's GPUs that are not 0, as texts."""
    return [
        {
            "gpu": each.gpu,
            "label": host_texts.READING_LABELS[each.reading][0],
            "value": _value_text(each),
            "source": host_texts.READING_SOURCES[each.source],
            "since": each.since,
        }
        for each in gpu_counters(host)
    ]


def _value_text(counter: GpuCounter) -> str:
    if counter.reading.endswith(NANOSECONDS):
        return f"{grouped(counter.value / 1e9, 1)} s"
    return grouped(counter.value)
