"""Test the benchmark of a month on a small organisation: every step, and every planted fault."""

from __future__ import annotations

import pytest

from benchmarks import money
from benchmarks.money_month.ledger_times import charge_month


@pytest.mark.long
def test_a_small_month_is_charged_audited_closed_and_shown_without_a_difference(
    db: None, settings: pytest.FixtureRequest
) -> None:
    settings.GPUPOOL_LINE_LENGTH = "day"
    figures = money.measure_month(64, 600, 10, charge_month, page_rounds=2)
    assert figures["lines"] > 1_500
    assert figures["audit_differences"] == figures["cent_differences"] == 0
    assert figures["conservation_difference"] == "0.000000"
    assert (figures["planted_faults"], figures["caught"]) == (5, 5)
    assert figures["overview_p95_ms"] > 0 and figures["drill_p95_ms"] > 0
    assert figures["identical"] is True


@pytest.mark.parametrize("gpus", ["63", "many"])
def test_a_wrong_number_of_gpus_is_refused_with_a_message(
    gpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        money.main(["--gpus", gpus])
    assert f"{gpus!r} is not a whole number from 64 to 100000" in capsys.readouterr().err
