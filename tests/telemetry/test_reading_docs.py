"""Test that docs/telemetry.md lists the readings of samples."""

from __future__ import annotations

from agent.gpu.nvml.minute_reader import MINUTE_METRICS, TRAFFIC_FIELDS
from telemetry.ingest.stream_format import READING_KINDS, SPARSE_READING_KINDS
from tests.telemetry.test_dcgm_docs import documented_rows


def test_the_documented_readings_are_those_of_the_code() -> None:
    rows = documented_rows("readings")
    periods = dict.fromkeys(READING_KINDS, "sample") | dict.fromkeys(SPARSE_READING_KINDS, "minute")
    assert [(name.strip("`"), period) for name, _, _, period, _ in rows] == list(periods.items())
    sources = {name.strip("`"): source for name, _, source, _, _ in rows}
    for name, metric in MINUTE_METRICS.items():
        assert sources[name] == f"NVML GPM {metric}"
    for name, (field, _, _) in TRAFFIC_FIELDS.items():
        assert sources[name] == f"NVML field {field}"
