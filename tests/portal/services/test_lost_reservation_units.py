"""Test that an owner is notified if a reservation loses some of its GPUs while work runs on the rest."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from portal.models import Notification
from portal.notices import delivery
from portal.wording.notices import notice_texts
from scheduler.models import Allocation, BoundUnit, Host
from scheduler.sweeps import reservation_windows
from tests.telemetry.rows import hold, reservation, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def reservation_notices(world: World) -> list[str]:
    rows = Notification.objects.filter(user=world.vision.member, kind__startswith="reservation").order_by(
        "pk"
    )
    return [notice_texts.notice_sentence(row.kind, row.numbers) for row in rows]


def test_the_owner_of_a_used_reservation_is_notified_of_lost_gpus_and_of_their_replacement(
    world: World,
) -> None:
    units = [*units_of(world.hosts["alpha"])[:2], *units_of(world.hosts["beta"])[:2]]
    since = world.now - timedelta(minutes=5)
    booked = reservation(world, world.vision, units, since, world.now + timedelta(hours=5))
    held = hold(workload(world, world.vision, reservation=booked), units[2], since, reservation=booked)
    Host.objects.filter(name="alpha").update(admin_state="cordoned")
    for minutes in (0, 1, 10):
        reservation_windows.sweep_reservations(world.now + timedelta(minutes=minutes))
        delivery.write_notices(world.now + timedelta(minutes=minutes, seconds=5))
    assert (
        BoundUnit.objects.filter(reservation=booked, period__contains=world.now + timedelta(hours=1)).count()
        == 4
    )
    assert reservation_notices(world) == [
        "2 of the 4 GPUs of reservation sprint can't be used at present (alpha)."
        " It gets other GPUs once nothing runs inside it: end "
        "the one workload inside it, or continue with its usable GPUs."
    ]
    Allocation.objects.filter(pk=held.pk).update(period=DateTimeTZRange(since, world.now))
    reservation_windows.sweep_reservations(world.now + timedelta(minutes=11))
    delivery.write_notices(world.now + timedelta(minutes=12))
    assert "Reservation sprint leaves alpha" in reservation_notices(world)[-1]


def test_the_owner_of_an_unused_reservation_is_not_asked_to_end_work(world: World) -> None:
    since = world.now - timedelta(minutes=5)
    reservation(
        world, world.vision, units_of(world.hosts["alpha"])[:2], since, world.now + timedelta(hours=5)
    )
    Host.objects.filter(name="alpha").update(admin_state="cordoned")
    delivery.write_notices(world.now)
    assert reservation_notices(world) == []
