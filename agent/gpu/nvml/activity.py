"""Measures activity with GPM, the performance counters of NVML (Hopper and newer GPUs)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pynvml

from agent.gpu.nvml.calls import SupportedCalls, value_or_none


class ActivityMeter:
    """Measures metrics of the units of one GPU, each over the time since the last call for the unit."""

    def __init__(self, handle: Any, calls: SupportedCalls, metrics: Mapping[str, int]) -> None:
        """Create a meter. ``metrics``: NVML's number of each metric, by the name of the reading."""
        self._handle = handle
        self._calls = calls
        self._metrics = metrics
        self._earlier: dict[str, Any] = {}  # by unit uuid: the last GPM sample

    def measure(self, unit: str, instance: int | None) -> dict[str, Any]:
        """Return the metrics of a unit in percent.

        ``instance``: the id of the GPU instance if the unit is a MIG instance, otherwise None. The values are
        None at the first call, and on GPUs older than Hopper.
        """
        unknown: dict[str, Any] = dict.fromkeys(self._metrics)
        support = self._calls.value("gpm", pynvml.nvmlGpmQueryDeviceSupport)
        if support is None or not support.isSupportedDevice:
            return unknown
        sample = value_or_none(pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return unknown
        if instance is None:
            taken = value_or_none(pynvml.nvmlGpmSampleGet, self._handle, sample)
        else:
            taken = value_or_none(pynvml.nvmlGpmMigSampleGet, self._handle, instance, sample)
        if taken is None:
            value_or_none(pynvml.nvmlGpmSampleFree, sample)
            return unknown
        before = self._earlier.get(unit)
        self._earlier[unit] = sample
        if before is None:
            return unknown
        measured = self._between(before, sample)
        value_or_none(pynvml.nvmlGpmSampleFree, before)
        return {**unknown, **measured}

    def _between(self, before: Any, after: Any) -> dict[str, Any]:
        """Return the metrics in percent between two samples; {} if the driver can't compute them."""
        question = pynvml.c_nvmlGpmMetricsGet_t()
        question.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(self._metrics)
        question.sample1, question.sample2 = before, after
        for number, metric in enumerate(self._metrics.values()):
            question.metrics[number].metricId = metric
        if value_or_none(pynvml.nvmlGpmMetricsGet, question) is None:
            return {}
        return {
            name: min(100.0, max(0.0, question.metrics[number].value))
            for number, name in enumerate(self._metrics)
            if question.metrics[number].nvmlReturn == pynvml.NVML_SUCCESS
            and question.metrics[number].value == question.metrics[number].value
        }
