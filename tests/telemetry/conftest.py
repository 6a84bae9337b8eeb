"""Provide fixtures for the telemetry tests."""

from __future__ import annotations

import pytest

from telemetry.models import Sample
from tests.telemetry.rows import at, cost_centre, pool_cost_centre, price
from tests.world import A100, H100, World, world

__all__ = ["rates", "world"]


@pytest.fixture
def rates(world: World) -> World:
    """Return the world with a rate card (H100 2.40 and A100 1.10 an hour) and cost centres since 1 March.

    The unused time of the static pool is charged to CC-110.
    """
    for model, cost in ((H100, "2.40"), (A100, "1.10")):
        price(model, cost, since=at(0, day=1))
    for each, code in ((world.vision, "CC-100"), (world.language, "CC-200"), (world.robotics, "CC-300")):
        cost_centre(each, code, at(0, day=1))
    pool_cost_centre(world.static, "CC-110", at(0, day=1))
    return world


@pytest.fixture(autouse=True)
def no_samples_of_earlier_tests(request: pytest.FixtureRequest) -> None:
    """Truncate the sample partitions, which Django does not empty after a test that commits."""
    if {"db", "transactional_db"} & set(request.fixturenames):
        request.getfixturevalue("transactional_db" if "transactional_db" in request.fixturenames else "db")
        Sample.objects.all()._raw_delete(using="default")
