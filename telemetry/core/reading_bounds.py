"""Define which readings of a GPU are possible. An impossible reading is stored as unknown.

The lower bound of each reading is 0. The upper bounds of power, memory and temperature come from the
inventory of the host. If the inventory lacks a limit, a general limit replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

FloatOrFloats = TypeVar("FloatOrFloats", float, npt.NDArray[np.float64])

POWER_FACTOR = 1.5  # highest possible power, as a multiple of the power limit
ENERGY_FACTOR = 1.2  # highest possible mean power between two readings, as a multiple of the power limit
SLOWDOWN_MARGIN_C = 30.0  # highest possible temperature above the slowdown temperature

# The general limits are above the limits of every GPU on the market. They replace an unknown limit and a
# limit that exceeds them.
GENERAL_POWER_LIMIT_W = 2_000.0
GENERAL_SLOWDOWN_C = 110.0
GENERAL_MEMORY_MIB = 1 << 20

# Upper bounds that are the same for every GPU.
COMMON_BOUNDS: Mapping[str, float] = MappingProxyType(
    {
        "utilisation": 100.0,
        "sm_active": 100.0,
        "tensor_active": 100.0,
        "memory_utilisation": 100.0,
        "energy_mj": 2.0**62,  # a counter; ``max_energy_mj`` limits its growth
        "sm_clock_mhz": 10_000.0,
        "throttle_reasons": 2.0**31 - 1,  # a bit mask
        "pcie_rx_kib": 2.0**29,  # 512 GiB/s, twice the rate of 16 lanes of PCIe 7
        "pcie_tx_kib": 2.0**29,
        "nvlink_kib": 2.0**33,  # 8 TiB/s
        "processes": 2.0**22,  # the largest pid of Linux
        "stray_processes": 2.0**22,
        "graphics_active": 100.0,
        "sm_occupancy": 100.0,
        "dram_active": 100.0,
        "fp64_active": 100.0,
        "fp32_active": 100.0,
        "fp16_active": 100.0,
        "encoder_utilisation": 100.0,
        "decoder_utilisation": 100.0,
        "fan_percent": 100.0,
        "memory_clock_mhz": 20_000.0,
        "video_clock_mhz": 10_000.0,
        "pcie_rx_bytes": 2.0**62,  # counters; ``telemetry.core.counters`` limits their growth
        "pcie_tx_bytes": 2.0**62,
        "nvlink_rx_bytes": 2.0**62,
        "nvlink_tx_bytes": 2.0**62,
    }
)

# Upper bounds of the uses of runs, hosts and processes. Counters have a bound of their growth in
# ``telemetry.core.counters``.
USE_BOUNDS: Mapping[str, float] = MappingProxyType(
    {
        "cpu_seconds": 2.0**40,
        "memory_mib": 2.0**27,  # 128 TiB
        "memory_peak_mib": 2.0**27,
        "memory_used_mib": 2.0**27,
        "io_read_bytes": 2.0**62,
        "io_written_bytes": 2.0**62,
        "network_rx_bytes": 2.0**62,
        "network_tx_bytes": 2.0**62,
        "disk_bytes": 2.0**60,
        "disk_free_bytes": 2.0**60,
        "sm_percent": 100.0,
    }
)


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """The limits of one unit (a GPU or a MIG slice). A limit is None if it is unknown.

    ``power_limit_w`` and ``slowdown_temperature_c`` are limits of the whole GPU.
    """

    memory_mib: int | None = None
    power_limit_w: float | None = None
    slowdown_temperature_c: float | None = None

    @property
    def power_w(self) -> float:
        """Return the power limit in watts, or the general limit."""
        return _known_limit(self.power_limit_w, GENERAL_POWER_LIMIT_W)


def reading_bounds(limits: UnitLimits) -> dict[str, float]:
    """Return the upper bound of each reading of a unit, by the name of the reading."""
    temperature = _known_limit(limits.slowdown_temperature_c, GENERAL_SLOWDOWN_C) + SLOWDOWN_MARGIN_C
    return {
        **COMMON_BOUNDS,
        "memory_used_mib": _known_limit(limits.memory_mib, GENERAL_MEMORY_MIB),
        "power_w": limits.power_w * POWER_FACTOR,
        "power_limit_w": limits.power_w * POWER_FACTOR,
        "temperature_c": temperature,
        "memory_temperature_c": temperature,
    }


def max_energy_mj(power_limit_w: FloatOrFloats, seconds: FloatOrFloats) -> FloatOrFloats:
    """Return the most millijoules that a GPU with this power limit can use in ``seconds``."""
    return power_limit_w * seconds * 1_000 * ENERGY_FACTOR


def _known_limit(limit: float | None, general: float) -> float:
    return float(limit) if limit is not None and 0 < limit <= general else general
