"""Test the stored forecast of all charges of the present month."""

from __future__ import annotations

import datetime as dt

import pytest

from telemetry.budgets.budget_checks import check_budgets
from telemetry.models import OrganisationForecast
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.chargeback import charges_by
from tests.telemetry.rows import at, hold, reservation, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)


def spend_ten_hours(world: World) -> None:
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.language), unit, at(9), at(19), end_code="finished")
    charge_all_gpus(at(20, 5))


def test_all_charges_are_forecast_once_three_whole_days_are_known(rates: World) -> None:
    spend_ten_hours(rates)
    check_budgets(at(12, day=4))
    assert not OrganisationForecast.objects.exists()
    check_budgets(at(12, day=5))
    forecast = OrganisationForecast.objects.get(month=MARCH)
    assert charges_by("team", MARCH).charged <= forecast.low <= forecast.expected <= forecast.high
    assert (forecast.currency, forecast.as_of) == ("EUR", at(12, day=5))
    check_budgets(at(12, 59, day=5))
    assert OrganisationForecast.objects.get().as_of == at(12, day=5)
    check_budgets(at(13, day=5))
    assert OrganisationForecast.objects.get().as_of == at(13, day=5)


def test_the_forecast_of_all_charges_includes_booked_reservations(rates: World) -> None:
    spend_ten_hours(rates)
    check_budgets(at(12, day=5))
    before = OrganisationForecast.objects.get().expected
    booked = units_of(rates.hosts["alpha"])[1:3]
    reservation(rates, rates.vision, booked, at(0, day=20), at(0, day=22))
    check_budgets(at(14, day=5))
    assert OrganisationForecast.objects.get().expected > before + 50
