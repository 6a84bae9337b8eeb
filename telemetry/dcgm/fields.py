"""Define which fields of DCGM are read, and which readings they give.

The names of the fields are those of DCGM 4. Names of earlier versions are alternatives. ``docs/telemetry.md``
lists the fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1 / 1024
PER_CENT = 100.0
# The GPU is measured over a period, so that a ratio may be a little above 1.
MAX_RATIO = 1.01

# DCGM's sentinels for a value that is missing: no data, not found, not supported, not permitted.
# A family of 16 values each, see dcgm_structs.h.
_BLANK_INT32 = 0x7FFFFFF0
_BLANK_FP64 = 2.0**47
_BLANK_INT64 = 2.0**63 - 1_024  # the largest float below 2**63; a 64-bit sentinel becomes 2**63 as a float
_BLANK_FAMILY = 16


@dataclass(frozen=True, slots=True)
class FieldSource:
    """Fields whose sum, multiplied by ``factor``, is a reading. The sum is unknown if one of them is."""

    fields: tuple[str, ...]
    factor: float = 1.0
    per_instance: bool = False  # True: DCGM measures each MIG instance by itself, not only the whole GPU

    @property
    def is_ratio(self) -> bool:
        """Return True if the field is a ratio from 0 to 1."""
        return self.factor == PER_CENT


def _device(name: str, factor: float = 1.0) -> FieldSource:
    return FieldSource((f"DCGM_FI_DEV_{name}",), factor)


def _ratio(name: str) -> FieldSource:
    return FieldSource((f"DCGM_FI_PROF_{name}",), PER_CENT, per_instance=True)


# The columns of Sample that DCGM fills, each with its sources. The first source with a known value counts.
# The energy counter and the processes are not filled: a counter from two sources would fall, and only the
# agent knows to which workload a process belongs.
SAMPLE_FIELDS: Mapping[str, tuple[FieldSource, ...]] = MappingProxyType(
    {
        "utilisation": (_device("GPU_UTIL"),),
        "sm_active": (_ratio("SM_ACTIVE"),),
        "tensor_active": (_ratio("PIPE_TENSOR_ACTIVE"),),
        "memory_used_mib": (FieldSource(("DCGM_FI_DEV_FB_USED",), per_instance=True),),
        "memory_utilisation": (_device("MEM_COPY_UTIL"),),
        "power_w": (_device("POWER_USAGE"), _device("POWER_USAGE_INSTANT")),
        "temperature_c": (_device("GPU_TEMP"),),
        "memory_temperature_c": (_device("MEMORY_TEMP"),),
        "sm_clock_mhz": (_device("SM_CLOCK"),),
        "throttle_reasons": (_device("CLOCKS_EVENT_REASONS"), _device("CLOCK_THROTTLE_REASONS")),
        "pcie_rx_kib": (
            FieldSource(("DCGM_FI_PROF_PCIE_RX_BYTES",), KIB),
            _device("PCIE_RX_THROUGHPUT"),
        ),
        "pcie_tx_kib": (
            FieldSource(("DCGM_FI_PROF_PCIE_TX_BYTES",), KIB),
            _device("PCIE_TX_THROUGHPUT"),
        ),
        "nvlink_kib": (FieldSource(("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"), KIB),),
        "graphics_active": (_ratio("GR_ENGINE_ACTIVE"),),
        "sm_occupancy": (_ratio("SM_OCCUPANCY"),),
        "dram_active": (_ratio("DRAM_ACTIVE"),),
        "fp64_active": (_ratio("PIPE_FP64_ACTIVE"),),
        "fp32_active": (_ratio("PIPE_FP32_ACTIVE"),),
        "fp16_active": (_ratio("PIPE_FP16_ACTIVE"),),
        "encoder_utilisation": (_device("ENC_UTIL"),),
        "decoder_utilisation": (_device("DEC_UTIL"),),
        "fan_percent": (_device("FAN_SPEED"),),
        "power_limit_w": (_device("POWER_MGMT_LIMIT"), _device("ENFORCED_POWER_LIMIT")),
        "memory_clock_mhz": (_device("MEM_CLOCK"),),
        "video_clock_mhz": (_device("VIDEO_CLOCK"),),
    }
)

XID = "xid"
# Counters and flags that seldom change, by the reading that they give. A row is stored when one changes.
SLOW_FIELDS: Mapping[str, FieldSource] = MappingProxyType(
    {
        XID: _device("XID_ERRORS"),
        "pcie_replays": _device("PCIE_REPLAY_COUNTER"),
        "ecc_corrected_volatile": _device("ECC_SBE_VOL_TOTAL"),
        "ecc_uncorrected_volatile": _device("ECC_DBE_VOL_TOTAL"),
        "ecc_corrected": _device("ECC_SBE_AGG_TOTAL"),
        "ecc_uncorrected": _device("ECC_DBE_AGG_TOTAL"),
        "retired_pages_corrected": _device("RETIRED_SBE"),
        "retired_pages_uncorrected": _device("RETIRED_DBE"),
        "retired_pages_pending": _device("RETIRED_PENDING"),
        "remapped_rows_corrected": _device("CORRECTABLE_REMAPPED_ROWS"),
        "remapped_rows_uncorrected": _device("UNCORRECTABLE_REMAPPED_ROWS"),
        "row_remap_failed": _device("ROW_REMAP_FAILURE"),
        "row_remap_pending": _device("ROW_REMAP_PENDING"),
        "nvlink_flit_errors": _device("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
        "nvlink_data_errors": _device("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
        "nvlink_replays": _device("NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
        "nvlink_recoveries": _device("NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
        "throttle_power_ns": _device("POWER_VIOLATION"),
        "throttle_thermal_ns": _device("THERMAL_VIOLATION"),
        "throttle_sync_boost_ns": _device("SYNC_BOOST_VIOLATION"),
        "throttle_board_limit_ns": _device("BOARD_LIMIT_VIOLATION"),
        "throttle_low_utilisation_ns": _device("LOW_UTIL_VIOLATION"),
        "throttle_reliability_ns": _device("RELIABILITY_VIOLATION"),
    }
)
# Counters that only agents read, with NVML.
AGENT_SLOW_READINGS = ("throttle_sw_thermal_ns", "throttle_hw_thermal_ns", "throttle_hw_power_brake_ns")
# Agents report XIDs as events, not as a reading.
SLOW_READINGS = (*SLOW_FIELDS, *AGENT_SLOW_READINGS)
SLOW_READINGS_OF_AGENTS = frozenset({*SLOW_FIELDS, *AGENT_SLOW_READINGS} - {XID})
# A counter of nanoseconds grows at each scrape while the GPU is throttled. It is stored at most this often.
THROTTLE_INTERVAL_SECONDS = 300


def sources() -> Iterator[FieldSource]:
    """Yield the sources of all readings."""
    for alternatives in SAMPLE_FIELDS.values():
        yield from alternatives
    yield from SLOW_FIELDS.values()


READ_FIELDS = frozenset(name for source in sources() for name in source.fields)


def known_value(value: float) -> float | None:
    """Return the value of a field; None if it is not finite or one of DCGM's sentinels."""
    if not math.isfinite(value) or value >= _BLANK_INT64:
        return None
    for blank in (_BLANK_INT32, _BLANK_FP64):
        if blank <= value < blank + _BLANK_FAMILY:
            return None
    return value


def reading_of(source: FieldSource, values: Mapping[str, float]) -> float | None:
    """Return the reading that a source gives with the known ``values`` of one GPU, by field."""
    if not all(name in values for name in source.fields):
        return None
    total = sum(values[name] for name in source.fields)
    if source.is_ratio and 1 < total <= MAX_RATIO:
        total = 1.0
    return total * source.factor
