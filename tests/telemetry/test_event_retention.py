"""Test the retention of handled hardware events."""

from __future__ import annotations

import datetime as dt

from pytest_django.fixtures import Settings

from telemetry.health import rules
from telemetry.models import HealthEvent
from tests.world import World, world

__all__ = ["world"]
DAY = dt.timedelta(days=1)


def test_handled_events_are_deleted_after_the_retention_period(world: World, settings: Settings) -> None:
    settings.GPUPOOL_HEALTH_EVENT_DAYS = 31
    for number, (age, handled) in enumerate(((40, True), (40, False), (5, True))):
        at = world.now - age * DAY
        HealthEvent.objects.create(
            host=world.hosts["alpha"],
            event_id=str(number),
            source="agent",
            code="xid:79",
            at=at,
            received_at=at,
            handled_at=at if handled else None,
        )
    assert rules.purge_old_events(world.now) == 1
    assert sorted(HealthEvent.objects.values_list("event_id", flat=True)) == ["1", "2"]
    assert rules.purge_old_events(world.now) == 0
