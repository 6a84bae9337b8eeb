"""Test the benchmark of telemetry on a small fleet: samples through the whole path, without a difference."""

from __future__ import annotations

import pytest

from benchmarks import telemetry
from benchmarks.telemetry_month import sample_path


@pytest.mark.long
def test_a_small_fleet_is_ingested_rolled_up_and_rebuilt_without_a_difference(db: None) -> None:
    steps = ("path", "live", "packed", "rebuild", "sql", "fields")
    figures = telemetry.measure(16, 1, 2, steps, sample_path.roll_up_hours)
    assert figures["rows"] == 16 * 360
    assert figures["lost_after_faults"] == figures["doubled_after_faults"] == 0
    assert figures["packed_differences"] == 0 < figures["packed_samples"]
    assert figures["rebuild_differences"] == 0 < figures["rebuilt_rollups"]
    assert figures["sql_differences_24h"] == 0 < figures["sql_compared"]
    assert figures["dcgm_fields_read"] >= 40


@pytest.mark.parametrize("gpus", ["63", "many"])
def test_a_wrong_number_of_gpus_is_refused_with_a_message(
    gpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        telemetry.main(["--gpus", gpus])
    assert f"{gpus!r} is not a whole number from 64 to 100000" in capsys.readouterr().err
