"""Reads the values of one GPU that are needed only once a minute."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pynvml

from agent.gpu.nvml.activity import ActivityMeter
from agent.gpu.nvml.calls import SupportedCalls

MINUTE_METRICS = {
    "graphics_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "sm_occupancy": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "fp64_active": pynvml.NVML_GPM_METRIC_FP64_UTIL,
    "fp32_active": pynvml.NVML_GPM_METRIC_FP32_UTIL,
    "fp16_active": pynvml.NVML_GPM_METRIC_FP16_UTIL,
}
ALL_LINKS = 0xFFFFFFFF  # scope of a field value: the total of all NVLinks
KIB = 1024
# By reading: (field, scope, factor). The counters of NVLinks are in KiB.
TRAFFIC_FIELDS = {
    "pcie_rx_bytes": (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0, 1),
    "pcie_tx_bytes": (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0, 1),
    "nvlink_rx_bytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS, KIB),
    "nvlink_tx_bytes": (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS, KIB),
}
NVLINK_FIELDS = ("nvlink_rx_bytes", "nvlink_tx_bytes")
# Counters and flags of a GPU, by the name under which the server stores them.
COUNTER_FIELDS = {
    "pcie_replays": pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    "retired_pages_corrected": pynvml.NVML_FI_DEV_RETIRED_SBE,
    "retired_pages_uncorrected": pynvml.NVML_FI_DEV_RETIRED_DBE,
    "retired_pages_pending": pynvml.NVML_FI_DEV_RETIRED_PENDING,
    "remapped_rows_corrected": pynvml.NVML_FI_DEV_REMAPPED_COR,
    "remapped_rows_uncorrected": pynvml.NVML_FI_DEV_REMAPPED_UNC,
    "row_remap_pending": pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    "row_remap_failed": pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    "nvlink_flit_errors": pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    "nvlink_data_errors": pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    "nvlink_replays": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    "nvlink_recoveries": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    "throttle_power_ns": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    "throttle_thermal_ns": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    "throttle_sync_boost_ns": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "throttle_board_limit_ns": pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
    "throttle_low_utilisation_ns": pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION,
    "throttle_reliability_ns": pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY,
    "throttle_sw_thermal_ns": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    "throttle_hw_thermal_ns": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    "throttle_hw_power_brake_ns": pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
}
ECC_COUNTERS = {
    "ecc_corrected_volatile": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
    "ecc_uncorrected_volatile": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    "ecc_corrected": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
    "ecc_uncorrected": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
}


class MinuteReader:
    """Reads one GPU once a minute. A value that the GPU lacks is tried only once."""

    def __init__(self, handle: Any, calls: SupportedCalls) -> None:
        self._handle = handle
        self._calls = calls
        self._activity = ActivityMeter(handle, calls, MINUTE_METRICS)
        self._processes_seen_at = 0  # NVML's time of the last sample of processes, in microseconds

    def unit_readings(self, unit: str, instance: int | None) -> dict[str, Any]:
        """Return the activity of a unit since the last call. Unknown values are None."""
        return self._activity.measure(unit, instance)

    def whole_readings(self, has_links: bool) -> dict[str, Any]:
        """Return values of the whole GPU. They say nothing about a MIG instance."""
        value = self._calls.value
        limit = value("power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit)
        encoder = value("encoder", pynvml.nvmlDeviceGetEncoderUtilization)
        decoder = value("decoder", pynvml.nvmlDeviceGetDecoderUtilization)
        traffic = {name: of for name, of in TRAFFIC_FIELDS.items() if has_links or name not in NVLINK_FIELDS}
        counts = self._calls.fields((field, scope) for field, scope, _ in traffic.values())
        return {
            "power_limit_w": limit / 1000 if limit is not None else None,
            "memory_clock_mhz": value("memory clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            "video_clock_mhz": value("video clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_VIDEO),
            "fan_percent": value("fan", pynvml.nvmlDeviceGetFanSpeed),
            "encoder_utilisation": encoder[0] if encoder is not None else None,
            "decoder_utilisation": decoder[0] if decoder is not None else None,
            **{
                name: counts[field] * factor
                for name, (field, _, factor) in traffic.items()
                if field in counts
            },
        }

    def counters(self) -> dict[str, int]:
        """Return the known counters and flags of the GPU by name."""
        known = self._calls.fields((field, 0) for field in COUNTER_FIELDS.values())
        found = {name: known[field] for name, field in COUNTER_FIELDS.items() if field in known}
        for name, arguments in ECC_COUNTERS.items():
            count = self._calls.value(name, pynvml.nvmlDeviceGetTotalEccErrors, *arguments)
            if count is not None:
                found[name] = count
        return found

    def sm_shares(self) -> dict[int, float] | None:
        """Return the mean SM share of each process since the last call, in percent, by pid.

        NVML lists only processes that used the GPU. None: not measured, as on a GPU in MIG mode.
        """
        samples = self._calls.value("process use", _process_samples, self._processes_seen_at)
        if samples is None:
            return None
        shares: dict[int, list[int]] = defaultdict(list)
        for sample in samples:
            shares[sample.pid].append(sample.smUtil)
            self._processes_seen_at = max(self._processes_seen_at, sample.timeStamp)
        return {pid: min(100.0, sum(values) / len(values)) for pid, values in shares.items()}


def _process_samples(handle: Any, since: int) -> list[Any]:
    try:
        found: list[Any] = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_SUCCESS:  # pynvml raises this if there is no sample
            return []
        raise
    return found
