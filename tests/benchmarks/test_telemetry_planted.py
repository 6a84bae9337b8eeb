"""Test the benchmark of alerts on planted cases in a small form."""

from __future__ import annotations

import pytest

from benchmarks import telemetry_planted

pytestmark = [pytest.mark.django_db, pytest.mark.long]


def test_planted_cases_are_found_and_hard_clean_cases_are_not() -> None:
    assert telemetry_planted.measure(each=5, clean=15) == {
        "planted": {"idle": 5, "over_ask": 5, "no_show": 5},
        "precision": {"idle": 1.0, "over_ask": 1.0, "no_show": 1.0},
        "recall": {"idle": 1.0, "over_ask": 1.0, "no_show": 1.0},
    }
