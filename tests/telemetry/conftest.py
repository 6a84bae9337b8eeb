"""Provide fixtures for the telemetry tests."""

from __future__ import annotations

import pytest

from telemetry.models import Sample
from tests.telemetry.rows import rates
from tests.world import world

__all__ = ["rates", "world"]


@pytest.fixture(autouse=True)
def no_samples_of_earlier_tests(request: pytest.FixtureRequest) -> None:
    """Truncate the sample partitions, which Django does not empty after a test that commits."""
    if {"db", "transactional_db"} & set(request.fixturenames):
        request.getfixturevalue("transactional_db" if "transactional_db" in request.fixturenames else "db")
        Sample.objects.all()._raw_delete(using="default")
