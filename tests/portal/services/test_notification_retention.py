"""Test that notifications are deleted after the retention that the setting defines."""

from __future__ import annotations

import datetime as dt

from pytest_django.fixtures import Settings

from portal.models import Notification
from portal.notices import delivery
from tests.world import World

DAY = dt.timedelta(days=1)


def test_old_notifications_are_deleted_whether_read_or_not(world: World, settings: Settings) -> None:
    settings.GPUPOOL_NOTICE_DAYS = 30
    for number, age in enumerate((40, 31, 29)):
        Notification.objects.create(
            user=world.vision.member,
            kind="ended",
            source=f"test {number}",
            at=world.now - age * DAY,
            read_at=world.now if number else None,
        )
    assert delivery.delete_old_notices(world.now) == 2
    assert list(Notification.objects.values_list("source", flat=True)) == ["test 2"]
