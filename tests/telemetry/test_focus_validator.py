"""Test that focus-validator, the validator of the FinOps Foundation, accepts the file of FOCUS 1.2."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from django.db import connection, transaction

from benchmarks.harness import focus_validator
from benchmarks.harness.focus_validator import FOCUS_VALIDATOR_VERSION, run_focus_validator
from telemetry.exports.focus.files import focus_csv
from telemetry.money.shared_idle import assign_due_cents
from tests.telemetry.test_adjustments import approved, charge, credit_of
from tests.telemetry.test_focus import COST, OPTIONS, close, everything
from tests.telemetry.test_statements import MARCH, busy_march
from tests.world import World

__all__ = ["busy_march"]


@pytest.mark.long
@pytest.mark.timeout(900)  # installs the validator first
@pytest.mark.django_db
def test_focus_validator_finds_no_failure(busy_march: World, tmp_path: Path) -> None:
    with transaction.atomic():
        assign_due_cents()
    approved(busy_march, "-1.00", **credit_of(charge()))
    approved(busy_march, "7.25", cost_centre="CC-900")
    close(busy_march)
    path = tmp_path / "focus.csv"
    path.write_bytes(b"".join(focus_csv(COST, MARCH, everything(), OPTIONS, "1.2")))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_focus_validator, path)
        while wait([running], timeout=10).not_done:  # PostgreSQL ends a transaction that is idle for a minute
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        result = running.result()
    if result.version is None:
        pytest.skip(result.reason)
    assert result.version == FOCUS_VALIDATOR_VERSION
    assert result.failures == ()
    assert result.failed == 0
    assert result.passed > 100


def test_without_a_new_python_the_result_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(focus_validator, "find_python", lambda: None)
    result = run_focus_validator(tmp_path / "focus.csv")
    assert (result.version, result.failed) == (None, None)
    assert "3.12" in result.reason


def test_a_python_that_cannot_install_it_is_reported(tmp_path: Path) -> None:
    result = run_focus_validator(tmp_path / "focus.csv", python=tmp_path / "python")
    assert (result.version, result.failed) == (None, None)
    assert "did not run" in result.reason


def test_the_summary_of_the_validator_is_read() -> None:
    output = (
        "Total: 4 | Pass: 1 | Fail: 2 | Skipped: 1\n--- Failures ---\n"
        "- SkuId-C-005-C: violations=2; wrong\n- InvoiceId-C-004-C: violations=5; not this alternative\n"
    )
    result = focus_validator._result_of(output)
    assert (result.failed, result.passed) == (1, 1)
    assert result.failures == ("SkuId-C-005-C: violations=2; wrong",)
    both = focus_validator._result_of(f"{output}- InvoiceId-C-003-C: violations=5; OR failed\n")
    assert both.failed == 3
