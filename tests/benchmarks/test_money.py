"""Test the benchmark of a month on a small organisation: every step, and every planted fault."""

from __future__ import annotations

from datetime import date
from itertools import count
from pathlib import Path

import pytest

from benchmarks import money
from benchmarks.harness.focus_validator import FocusValidatorResult
from benchmarks.money_month import export_times
from benchmarks.money_month.ledger_times import charge_month
from telemetry.exports.registry import EXPORT_KINDS


@pytest.mark.long
def test_a_small_month_is_charged_audited_closed_and_shown_without_a_difference(
    db: None, settings: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GPUPOOL_LINE_LENGTH = "day"
    validated: list[list[str]] = []

    def validate(file: Path) -> FocusValidatorResult:
        validated.append(file.read_text().splitlines())
        return FocusValidatorResult("2.2.1", 3, failures=("a", "b", "c"))

    monkeypatch.setattr(export_times, "VALIDATED_ROWS", 40)
    figures = money.measure_month(64, 600, 10, charge_month, page_rounds=2, validate=validate)
    assert figures["lines"] > 1_500
    assert figures["audit_differences"] == figures["cent_differences"] == 0
    assert figures["conservation_difference"] == "0.000000"
    assert (figures["planted_faults"], figures["caught"]) == (5, 5)
    assert figures["overview_p95_ms"] > 0 and figures["drill_p95_ms"] > 0
    assert figures["identical"] is True
    assert [len(lines) for lines in validated] == [41] and "InvoiceId" in validated[0][0]
    assert (figures["focus_validator"], figures["focus_validator_failed"]) == ("2.2.1", 3)


def test_exports_that_differ_are_not_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _identical(monkeypatch, changing="") is True
    for kind in EXPORT_KINDS:
        assert _identical(monkeypatch, changing=kind) is False, kind


def _identical(monkeypatch: pytest.MonkeyPatch, changing: str) -> bool:
    """Compare exports of a stub, whose files of the kind ``changing`` differ each time."""
    files = count()

    def parts(kind: str, month: date, lines: object = None) -> list[bytes]:
        return [b"head\n", str(next(files)).encode() if kind == changing else b""]

    monkeypatch.setattr(export_times, "_parts", parts)
    return export_times._are_identical(money.MONTH, {}, None)


@pytest.mark.parametrize("gpus", ["63", "many"])
def test_a_wrong_number_of_gpus_is_refused_with_a_message(
    gpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        money.main(["--gpus", gpus])
    assert f"{gpus!r} is not a whole number from 64 to 100000" in capsys.readouterr().err
