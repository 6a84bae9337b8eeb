"""Test that the chargeback page runs few queries, also for a month with everything that the page can show."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from unittest import mock

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from telemetry.budgets.budget_checks import check_budgets
from telemetry.models import Budget, Statement, UnusualSpend, UnusualSpendExplanation, UnusualSpendSearch
from telemetry.money.closing import rehearsals
from tests.seeds import first_cases
from tests.telemetry.rows import rates
from tests.telemetry.test_cents import corrected_march
from tests.world import World, world_fixture

__all__ = ["corrected_march", "rates"]
pytestmark = pytest.mark.django_db
MAX_QUERIES = 30
NOW = dt.datetime(2026, 4, 4, 9, tzinfo=dt.UTC)
APRIL = dt.date(2026, 4, 1)


def write_full_april(world: World) -> World:
    """Give April a budget, unusual spend with a reason, and a rehearsal. It has a correction of March."""
    team = world.vision.team
    Budget.objects.create(team=team, period="month", month=APRIL, measure="money", amount=5, currency="EUR")
    check_budgets(NOW)
    statement = Statement.objects.get(month=APRIL)
    found = UnusualSpend.objects.create(
        statement=statement,
        kind="high_day",
        team=team,
        project=world.vision.project,
        subject=world.vision.project.name,
        first_day=APRIL,
        last_day=APRIL,
        currency="EUR",
        amount=Decimal("412.80"),
        usual=Decimal("70.00"),
        figures={"project": world.vision.project.name, "gpu_hours": 172.0, "curve": ["70.00", "412.80"]},
        found_at=NOW,
    )
    UnusualSpendExplanation.objects.create(spend=found, reason="a deadline", author=world.finance, at=NOW)
    UnusualSpendSearch.objects.create(statement=statement, searched_at=NOW)
    rehearsals.rehearse_next_month(NOW)
    return world


full_april = world_fixture(write_full_april, after=corrected_march)


@pytest.mark.parametrize(
    "query", first_cases(2, [{}, {"by": "user"}, {"by": "project"}]), ids=["start", "people", "projects"]
)
@pytest.mark.parametrize(
    "now", [NOW, NOW + dt.timedelta(days=30)], ids=["present month", "month that is over"]
)
def test_the_page_runs_at_most_30_queries(full_april: World, query: dict[str, str], now: dt.datetime) -> None:
    client = Client()
    client.force_login(full_april.finance)
    with (
        mock.patch("django.utils.timezone.now", return_value=now),
        CaptureQueriesContext(connection) as queries,
    ):
        answer = client.get(reverse("chargeback"), {"month": f"{APRIL:%Y-%m}", **query})
    text = answer.content.decode()
    assert "412.80 EUR" in text and "-14.40" in text.replace("\u2212", "-")
    assert len(queries) <= MAX_QUERIES, [each["sql"][:150] for each in queries]
