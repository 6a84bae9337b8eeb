"""Test the dates of prices and closed months: each refusal names the reason and the limit."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.errors import Invalid
from portal.services.money import months, rate_card, start_dates
from scheduler.models import Gpu
from telemetry.models import Charge, Price
from tests.portal.rejections import rejected
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db


@pytest.fixture
def charged_to(world: World) -> datetime:
    """Charge one H100 of the shared pool for vision up to 41 minutes and 10 seconds of the present hour."""
    end = world.now.replace(minute=41, second=10)
    charge(world, end)
    return end


def charge(world: World, end: datetime) -> Charge:
    return Charge.objects.create(
        pool=world.shared,
        month=date(2026, 3, 1),
        bucket="used",
        day=(end - timedelta(hours=2)).date(),
        start=end - timedelta(hours=2),
        end=end,
        slots=840,
        slot_seconds=840 * 7200,
        gpu=Gpu.objects.filter(model=H100).earliest("pk"),
        model=H100,
        team=world.vision.team,
        project=world.vision.project,
        cost_centre="CC-1",
        cost=Decimal(4),
        charged=Decimal(4),
        created_at=end,
    )


def set_price(world: World, valid_from: datetime, now: datetime, **also: Any) -> Price:
    fields: dict[str, Any] = {"model": H100, "cost": "1.80", "price": "2.10", "actor": world.finance}
    return rate_card.set_price(**(fields | also), valid_from=valid_from, now=now)


def test_a_start_in_charged_time_is_refused_with_the_reason_and_the_earliest_time(
    world: World, charged_to: datetime
) -> None:
    with pytest.raises(Invalid) as refused:
        set_price(world, world.now, charged_to + timedelta(minutes=1))
    assert refused.value.fields == {
        "valid_from": (
            f"valid_from is 2026-03-02T09:00:00+00:00, but {H100} is already charged until "
            "2026-03-02 09:41 UTC; allowed: 2026-03-02 09:42 UTC or later."
        )
    }


def test_the_earliest_time_that_a_refusal_names_is_accepted(world: World, charged_to: datetime) -> None:
    earliest = world.now.replace(minute=42)
    set_price(world, earliest, charged_to + timedelta(minutes=1))
    assert Price.objects.filter(model=H100, valid_from=earliest, price_per_gpu_hour=Decimal("2.10")).exists()


def test_a_start_in_this_hour_is_accepted_if_nothing_is_charged_after_it(world: World) -> None:
    set_price(world, world.now, world.now + timedelta(minutes=50))
    assert Price.objects.filter(model=H100, valid_from=world.now, price_per_gpu_hour=Decimal("2.10")).exists()


def test_a_past_start_is_refused_with_the_earliest_time(world: World) -> None:
    with pytest.raises(Invalid, match="which is past; allowed: 2026-03-02 09:00 UTC or later"):
        set_price(world, world.now - timedelta(days=40), world.now + timedelta(minutes=50))


def test_a_second_row_of_the_same_time_is_refused_as_a_duplicate(world: World) -> None:
    set_price(world, world.now, world.now)
    with rejected("has a price from that time already"):
        set_price(world, world.now, world.now)


def test_charges_of_another_pool_or_model_do_not_matter(world: World, charged_to: datetime) -> None:
    now = charged_to + timedelta(minutes=1)
    set_price(world, world.now, now, model=A100)
    set_price(world, world.now, now, model=A100, pool=world.static)
    with pytest.raises(Invalid, match="H100-80GB in Shared is already charged"):
        set_price(world, world.now, now, pool=world.shared)


def test_time_that_is_charged_between_the_check_and_the_insert_is_refused_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trigger of the database rejects the price; the service says why."""
    real, calls = start_dates.charged_until, []

    def charged_after_the_first_check(valid_from: datetime, **charged: Any) -> datetime | None:
        calls.append(valid_from)
        found = real(valid_from, **charged)
        if len(calls) == 1:
            charge(world, world.now.replace(minute=41))
        return found

    monkeypatch.setattr(start_dates, "charged_until", charged_after_the_first_check)
    with pytest.raises(Invalid, match="already charged until 2026-03-02 09:41 UTC"):
        set_price(world, world.now, world.now.replace(minute=42))
    assert not Price.objects.exists()


def test_the_database_rejects_a_price_in_charged_time(world: World, charged_to: datetime) -> None:
    fields = {"cost_per_gpu_hour": 1, "price_per_gpu_hour": 1, "created_at": world.now}
    with pytest.raises(IntegrityError), transaction.atomic():
        Price.objects.create(model=H100, valid_from=world.now, **fields)


def test_a_month_before_the_first_charge_cannot_be_closed(world: World, charged_to: datetime) -> None:
    with pytest.raises(Invalid, match="month is 2026-02, before the first charge; allowed: 2026-03 or later"):
        months.close_month(actor=world.finance, month=date(2026, 2, 1), now=world.now + timedelta(days=60))
