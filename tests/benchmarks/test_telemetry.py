"""Test the benchmark of telemetry on a small fleet: samples through the whole path, without a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import telemetry
from benchmarks.telemetry_month import kept_year, sample_path


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


def test_a_complete_year_is_kept_and_years_with_other_parameters_are_removed(tmp_path: Path) -> None:
    folder = kept_year.kept_folder(64, tmp_path)
    unlike = kept_year.kept_folder(128, tmp_path)
    old = tmp_path / folder.name.replace(f"version-{kept_year.VERSION}", "version-0")
    for each in (folder, unlike, old):
        each.mkdir()
        (each / kept_year.COMPLETE).touch()
    kept_year.remove_unusable(folder)
    assert (folder.exists(), unlike.exists(), old.exists()) == (True, True, False)
    (folder / kept_year.COMPLETE).unlink()  # the run that wrote it was interrupted
    kept_year.remove_unusable(folder)
    assert not folder.exists()
