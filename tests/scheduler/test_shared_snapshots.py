"""Test the snapshot shared within one request: explanations share it, and writes use current rows."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from scheduler import services
from scheduler.cycle import snapshot
from scheduler.cycle.request_snapshot_cache import share_snapshots, take_cached_snapshot
from scheduler.models import Reservation
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def test_within_a_request_a_snapshot_of_the_same_pools_and_time_is_read_once(world: World) -> None:
    now, pools = timezone.now(), [world.shared.pk]
    with share_snapshots():
        first = take_cached_snapshot(pools, now)
        assert take_cached_snapshot(pools, now) is first
        with share_snapshots():
            assert take_cached_snapshot(pools, now) is first
        assert take_cached_snapshot(pools, now + timedelta(seconds=1)) is not first
        assert take_cached_snapshot([world.static.pk], now) is not first
    with share_snapshots():
        assert take_cached_snapshot(pools, now) is not first
    assert take_cached_snapshot(pools, now) is not take_cached_snapshot(pools, now)


def test_a_reservation_is_checked_against_current_rows_even_within_a_request(world: World) -> None:
    now = timezone.now()
    request = {
        "project": world.vision.project,
        "pool": world.shared,
        "start": now + timedelta(hours=1),
        "end": now + timedelta(hours=2),
        "now": now,
        "units": 8,
        "hosts": 1,
        "models_wanted": [H100],
    }
    with share_snapshots():
        assert services.check_window(**request).fits
        row, _ = services.confirm_reservation(owner=world.vision.member, name="first", **request)
        assert row is not None
        assert services.check_window(**request).fits, "the check uses the snapshot of the request"
        second, answer = services.confirm_reservation(owner=world.vision.member, name="second", **request)
        assert (second, answer.fits) == (None, False)
        moved = services.check_change(row, end=now + timedelta(hours=3), now=now)
        assert moved.fits
    assert Reservation.objects.count() == 1
    assert len(snapshot.take_snapshot([world.shared.pk], now).reservations) == 1
