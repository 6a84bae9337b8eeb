"""Read the last sample of each GPU and slice as metrics."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from portal.reads.monitoring.definitions import MetricValues
from telemetry.reads.live_readings import LiveUnitReading, live_unit_readings

BYTES_PER_MIB = 1024 * 1024
PERCENT = 100
HERTZ_PER_MEGAHERTZ = 1_000_000
MILLIJOULES = 1_000


def single_gpu_metrics(now: datetime) -> dict[str, MetricValues]:
    """Return the readings that pages show now, in base units. Takes one query.

    A reading that is unknown or older than 90 seconds is absent.
    """
    values: dict[str, MetricValues] = {name: [] for name in _READINGS}
    for unit in live_unit_readings(now):
        slice_name = unit.uuid if unit.profile else ""
        labels = (unit.pool_slug, unit.model, unit.host_name, str(unit.gpu_index), slice_name)
        for name, reading in _READINGS.items():
            value = reading(unit)
            if value is not None:
                values[name].append((labels, value))
    return values


def _scaled(field: str, factor: float) -> Callable[[LiveUnitReading], float | None]:
    def reading(unit: LiveUnitReading) -> float | None:
        value = getattr(unit, field)
        return None if value is None else value * factor

    return reading


_READINGS: dict[str, Callable[[LiveUnitReading], float | None]] = {
    "gpupool_gpu_held": lambda unit: int(unit.allocation is not None),
    "gpupool_gpu_sample_timestamp_seconds": lambda unit: None if unit.at is None else unit.at.timestamp(),
    "gpupool_gpu_utilisation_ratio": _scaled("utilisation", 1 / PERCENT),
    "gpupool_gpu_sm_active_ratio": _scaled("sm_active", 1 / PERCENT),
    "gpupool_gpu_tensor_active_ratio": _scaled("tensor_active", 1 / PERCENT),
    "gpupool_gpu_memory_used_bytes": _scaled("memory_used_mib", BYTES_PER_MIB),
    "gpupool_gpu_memory_bytes": _scaled("memory_mib", BYTES_PER_MIB),
    "gpupool_gpu_power_watts": _scaled("power_w", 1),
    "gpupool_gpu_energy_joules_total": _scaled("energy_mj", 1 / MILLIJOULES),
    "gpupool_gpu_temperature_celsius": _scaled("temperature_c", 1),
    "gpupool_gpu_sm_clock_hertz": _scaled("sm_clock_mhz", HERTZ_PER_MEGAHERTZ),
    "gpupool_gpu_processes": _scaled("processes", 1),
}
