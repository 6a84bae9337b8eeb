"""Provide the fixtures of the demo's tests."""

from __future__ import annotations

from tests.telemetry.conftest import no_samples_of_earlier_tests, rates
from tests.world import world

__all__ = ["no_samples_of_earlier_tests", "rates", "world"]
