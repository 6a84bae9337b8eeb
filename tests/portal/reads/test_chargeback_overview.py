"""Test, for every role, that the figures at the top of the chargeback page equal those of its tables."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as reads
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.overview.of_viewer import overview_of_viewer
from portal.reads.money.overview.page import ChargebackOverview, chargeback_overview
from portal.web.money.overview.bridge_rows import bridge_panel
from portal.web.money.overview.spend_chart import spend_chart
from scheduler.models import Project, Workload
from telemetry.budgets.budget_checks import check_budgets
from telemetry.core.amounts import ZERO
from telemetry.models import Budget, ChargeCell, OrganisationForecast, Statement, StatementLine
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from telemetry.money.closing.statement_months import load_statement_months
from telemetry.reads.chargeback import charges_by
from telemetry.reads.daily_spend import daily_spend
from telemetry.reads.overview.spend_change import MonthPart, bridge_of_months
from tests.telemetry.conftest import rates
from tests.telemetry.rows import cost_centre, hold, price, reservation, workload
from tests.telemetry.test_cents import late_fact_about_march, random_month
from tests.world import A100, H100, TeamOfWorld, World, units_of, world_fixture

__all__ = ["rates"]
pytestmark = pytest.mark.django_db
MARCH, APRIL, MAY = dt.date(2026, 3, 1), dt.date(2026, 4, 1), dt.date(2026, 5, 1)
MAX_QUERIES = 6
QUERIES_OF_COMMITMENTS = 8  # for a viewer who sees a part of the charges


def april(day: int, hour: int = 0) -> dt.datetime:
    return dt.datetime(2026, 4, day, hour, tzinfo=dt.UTC)


NOW = april(18, 12)


def write_spring(rates: World) -> World:
    """Charge March and April up to the 18th. In April, a project is new and H100 have another price."""
    random_month(rates, random.Random(5))
    new = Project.objects.create(
        team=rates.vision.team, name="MRI labels", slug="mri-labels", created_at=april(1)
    )
    of_new = TeamOfWorld(rates.vision.team, new, rates.vision.lead, rates.vision.members)
    cost_centre(of_new, "CC-100", april(1))
    price(H100, "2.100001", "2.500003", since=april(1))
    units = units_of(rates.hosts["beta"])
    for number, team in enumerate((rates.vision, rates.language, of_new)):
        work = workload(rates, team, owner=team.member)
        hold(work, units[number], april(2 + number, 3), april(9 + number, 7), end_code="finished")
    charge_all_gpus(NOW)
    return rates


spring = world_fixture(write_spring, after=rates)


def write_corrected(rates: World) -> World:
    """Correct a closed March in April, and charge April up to the 3rd."""
    late_fact_about_march(rates)
    charge_all_gpus(april(3))
    return rates


corrected = world_fixture(write_corrected, after=rates)


def overview(viewer: User, month: dt.date = APRIL, now: dt.datetime = NOW) -> ChargebackOverview:
    return overview_of_viewer(viewer, month, now, charge_scope(viewer))


def viewers(world: World) -> list[User]:
    return [world.finance, world.auditor, world.vision.lead, world.vision.member, world.language.lead]


def test_every_figure_is_the_sum_of_the_same_cents_for_every_role(spring: World) -> None:
    for viewer in viewers(spring):
        for month in (MARCH, APRIL):
            found = overview(viewer, month)
            cells = policy.visible_cells(viewer)
            table = charges_by("team", month, cells)
            assert found.charged == table.charged == found.curve.charged
            assert [each.charged for each in found.months if each.month == month] == [table.charged]
            days = [each.charged for each in found.curve.days if each.charged is not None]
            assert sum(days, found.curve.corrections) == table.charged
            of_day = daily_spend([month], cells)
            assert sum((row.charged for row in of_day), ZERO) == table.total.charged


@pytest.mark.long
def test_each_point_of_the_chart_opens_the_lines_that_sum_to_it(corrected: World) -> None:
    found = overview(corrected.finance, APRIL, april(3))
    chart, client = spend_chart(found), Client()
    client.force_login(corrected.finance)

    def charged(url: str) -> Decimal:
        amount: Decimal = client.get(url).context["charged"]
        return amount

    assert found.curve.corrections and found.curve.days[1].charged
    own, former = chart.figure["data"][:2]
    assert charged(own["customdata"][0]) == found.curve.corrections
    assert [charged(url) for url in own["customdata"][1:]] == [
        day.charged for day in found.curve.days if day.charged is not None
    ]
    totals = [found.curve.former_corrections, *(day.former_total for day in found.curve.days)]
    assert len(former["customdata"]) == len(former["x"]) == len(found.curve.days) + 1
    for at in (1, 3, 30):
        assert charged(former["customdata"][at]) == totals[at] - totals[at - 1]  # type: ignore[operator]
    first, second = chart.rows[:2]
    assert charged(first[0]["url"]) == found.curve.corrections
    assert (second[0]["url"], second[4]["url"]) == (own["customdata"][1], former["customdata"][1])


def test_each_bar_of_the_bridge_and_each_budget_opens_its_lines(spring: World) -> None:
    Budget.objects.create(team=spring.vision.team, month=APRIL, amount=Decimal(100))
    Budget.objects.create(cost_centre="CC-100", month=APRIL, amount=Decimal(100))
    client = Client()
    client.force_login(spring.finance)
    assert len(bridge_panel(overview(spring.finance))["rows"]) > 3
    for row in client.get(reverse("chargeback"), {"month": "2026-04"}).context["budgets"]:
        assert client.get(row["url"]).context["charged"] == row["view"].spent != 0


@pytest.mark.parametrize("role", ["finance", "lead"])
def test_both_ends_and_each_step_of_the_bridge_open_the_lines_of_the_compared_days(
    spring: World, role: str
) -> None:
    found, client = overview(spring.people[role], APRIL, april(8, 12)), Client()
    client.force_login(spring.people[role])
    bridge, rows = found.change.bridge, bridge_panel(found)["rows"]
    assert bridge is not None and bridge.now != found.charged
    assert [client.get(rows[at]["url"]).context["charged"] for at in (0, -1)] == [bridge.before, bridge.now]
    urls = {step.kind: row["url"] for step, row in zip(bridge.steps, rows[1:-1], strict=True)}
    assert "last_day=2026-04-07" in urls["hours"]
    new = next(step for step in bridge.steps if step.kind == "new")
    assert client.get(urls["new"]).context["charged"] == new.amount > 0


def test_the_ends_of_the_bridge_of_a_month_that_is_over_open_whole_months(spring: World) -> None:
    rows = bridge_panel(overview(spring.finance, APRIL, dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC)))["rows"]
    assert [rows[at]["url"] for at in (0, -1)] == [
        f"{reverse('charge-lines')}?month=2026-03",
        f"{reverse('charge-lines')}?month=2026-04",
    ]


def test_the_lines_of_the_compared_days_include_the_corrections_of_earlier_months(corrected: World) -> None:
    found, client = overview(corrected.finance, APRIL, april(3)), Client()
    client.force_login(corrected.finance)
    assert found.change.bridge is not None and found.curve.corrections
    last = client.get(bridge_panel(found)["rows"][-1]["url"])
    assert last.context["charged"] == found.change.bridge.now
    assert last.context["corrected"] == found.curve.corrections


def test_the_bridge_compares_the_whole_days_so_far_with_the_same_days_of_the_month_before(
    spring: World,
) -> None:
    for viewer in viewers(spring):
        found = overview(viewer)
        bridge = found.change.bridge
        assert bridge is not None
        assert bridge.before + sum((step.amount for step in bridge.steps), ZERO) == bridge.now
        yesterday = found.curve.days[16]
        assert (yesterday.day, bridge.now) == (dt.date(2026, 4, 17), yesterday.total)
        assert bridge.before == yesterday.former_total
        assert found.change.amount == bridge.now - bridge.before


def test_the_bridge_shows_finance_the_new_project_and_the_new_price(spring: World) -> None:
    change = overview(spring.finance).change
    assert change.bridge is not None
    steps = {step.kind: step for step in change.bridge.steps}
    assert [change.project_names[key] for key in steps["new"].projects] == ["MRI labels"]
    own = charges_by("project", APRIL)
    assert steps["new"].amount == next(row.charged for row in own.groups if row.name == "MRI labels")
    price_step = steps["price"]
    assert price_step.model in (A100, H100) and price_step.price_before != price_step.price_now


@pytest.mark.parametrize("day", [2, 9, 18])
def test_lines_and_cells_give_the_same_bridge(spring: World, day: int) -> None:
    """Compare both sources early, in the middle and late in a month.

    Lines and their days are read because they are fewer than cells. Late in a month, whole lines are read,
    and the days after the compared part of the month are subtracted.
    """
    before, now = MonthPart(MARCH, MARCH.replace(day=day)), MonthPart(APRIL, APRIL.replace(day=day))
    of_lines = bridge_of_months(before, now, "EUR", None)
    assert of_lines == bridge_of_months(before, now, "EUR", ChargeCell.objects.all())
    assert of_lines.now > 0


def test_a_month_that_is_over_is_compared_as_a_whole(spring: World) -> None:
    charge_all_gpus(dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC))
    found = overview(spring.finance, APRIL, dt.datetime(2026, 5, 1, 2, tzinfo=dt.UTC))
    assert found.is_over and found.forecast is None
    assert found.change.bridge is not None and found.change.former is not None
    assert (found.change.bridge.before, found.change.bridge.now) == (
        found.change.former.charged,
        found.charged,
    )


def test_corrections_of_the_previous_month_are_a_step_of_the_bridge_and_the_start_of_the_curve(
    corrected: World,
) -> None:
    found = overview(corrected.finance, APRIL, april(3))
    assert found.curve.corrections == charges_by("team", APRIL).corrected < 0
    assert found.curve.charged == found.charged
    assert found.change.bridge is not None
    steps = {step.kind: step.amount for step in found.change.bridge.steps}
    assert steps["corrections"] == found.curve.corrections


def test_the_first_month_the_first_day_and_another_currency_are_not_compared(spring: World) -> None:
    assert overview(spring.finance, MARCH).change.missing == "first_month"
    assert overview(spring.finance, APRIL, april(1, 9)).change.missing == "first_day"
    StatementLine.objects.filter(statement__month=MARCH).update(currency="JPY")
    Statement.objects.filter(month=MARCH).update(currency="JPY")
    found = overview(spring.finance).change
    assert (found.missing, found.amount, found.bridge) == ("currency", None, None)


def test_finance_sees_the_stored_forecast_and_others_see_a_forecast_of_their_own_charges(
    spring: World,
) -> None:
    assert overview(spring.finance).forecast is None
    check_budgets(NOW)
    everything, own = overview(spring.finance).forecast, overview(spring.vision.member).forecast
    assert everything is not None and own is not None
    assert everything.expected == OrganisationForecast.objects.get().expected
    assert overview(spring.vision.member).charged <= own.low <= own.expected < everything.expected
    assert overview(spring.finance, MARCH).forecast is None


def test_a_lead_sees_the_forecast_of_the_budget_that_limits_the_same_charges(spring: World) -> None:
    Budget.objects.create(team=spring.language.team, month=APRIL, amount="900.00")
    check_budgets(NOW)
    found = overview(spring.language.lead)
    [row] = reads.budget_rows(spring.language.lead, APRIL, NOW)
    assert found.forecast == row["view"].range
    assert found.budget is not None and found.budget.covers_all
    assert (found.budget.left, found.budget.names) == (row["view"].left, (spring.language.team.name,))
    assert found.curve.days[-1].even_pace == Decimal("900.00")


@pytest.mark.parametrize("role", ["lead", "member"])
def test_the_forecast_of_a_part_includes_its_running_work_and_booked_reservations(
    spring: World, role: str
) -> None:
    viewer, other = spring.people[role], spring.language.lead
    before = overview(viewer).forecast, overview(other).forecast
    booked = units_of(spring.hosts["alpha"])[1:5]
    reservation(spring, spring.vision, booked, april(25), april(29))
    after = overview(viewer).forecast
    assert before[0] is not None and after is not None
    assert after.expected > before[0].expected + 200
    work = workload(spring, spring.vision, owner=spring.vision.member)
    Workload.objects.filter(pk=work.pk).update(predicted_seconds=10 * 86_400)
    for unit in units_of(spring.hosts["beta"])[4:7]:
        hold(work, unit, april(18, 10))
    with_work = overview(viewer).forecast
    assert with_work is not None and with_work.expected > after.expected + 200
    assert overview(other).forecast == before[1]


def test_before_the_first_charge_of_a_month_no_budget_limits_all_charges(spring: World) -> None:
    Budget.objects.create(team=spring.language.team, month=MAY, amount="900.00")
    found = overview(spring.finance, MAY, dt.datetime(2026, 5, 1, 0, 30, tzinfo=dt.UTC))
    assert found.charged == 0 and found.budget is not None
    assert (found.budget.spent, found.budget.covers_all) == (0, False)
    assert found.curve.days[0].even_pace is None


def test_budgets_of_cost_centres_take_precedence_over_budgets_of_teams(spring: World) -> None:
    Budget.objects.create(team=spring.vision.team, month=APRIL, amount="900.00")
    Budget.objects.create(cost_centre="CC-100", month=APRIL, amount="500.00")
    Budget.objects.create(cost_centre="CC-200", month=APRIL, amount="300.00")
    budget = overview(spring.finance).budget
    assert budget is not None
    assert (budget.kind, budget.amount, budget.covers_all) == ("cost_centre", Decimal("800.00"), False)
    assert overview(spring.finance).curve.days[0].even_pace is None


def test_the_terms_of_the_equation_add_up_and_only_finance_and_auditors_see_them(spring: World) -> None:
    for viewer in viewers(spring)[2:]:
        assert overview(viewer).equation is None
    equation = overview(spring.auditor).equation
    assert equation is not None and equation.holds
    amounts = {term.key: term.amount for term in equation.terms}
    assert sum(term.sign * term.amount for term in equation.terms) == amounts["cost"]
    assert amounts["charged"] == charges_by("team", APRIL).charged
    for number in range(len(equation.terms)):
        assert sum(pool.amounts[number] for pool in equation.pools) == equation.terms[number].amount


def test_the_months_are_the_last_twelve_with_their_states(spring: World) -> None:
    statements.close_month(month=MARCH, closed_by=spring.finance, now=NOW)
    assert [(each.month, each.closed) for each in overview(spring.finance).months] == [
        (MARCH, True),
        (APRIL, False),
    ]
    may = dt.datetime(2026, 5, 1, 1, tzinfo=dt.UTC)
    last = overview(spring.finance, MAY, may).months[-1]
    assert (last.month, last.charged, last.currency) == (MAY, ZERO, "EUR")
    later = dt.datetime(2027, 5, 1, 1, tzinfo=dt.UTC)
    assert [each.month for each in overview(spring.finance, APRIL, later).months] == [APRIL]


@pytest.mark.parametrize("role", ["finance", "lead", "member"])
def test_the_number_of_queries_is_bounded(spring: World, role: str) -> None:
    check_budgets(NOW)
    viewer = spring.people[role]
    given: dict[str, Any] = {
        "scope": charge_scope(viewer),
        "table": charges_by("bucket", APRIL, policy.visible_cells(viewer)),
        "budgets": reads.budget_rows(viewer, APRIL, NOW),
        "conservation": None,
        "statements": load_statement_months(),
    }
    with CaptureQueriesContext(
        connection,
    ) as queries:
        chargeback_overview(viewer, APRIL, NOW, **given)
    most = MAX_QUERIES if role == "finance" else MAX_QUERIES + QUERIES_OF_COMMITMENTS
    assert len(queries) <= most, [each["sql"][:100] for each in queries]


def test_the_total_row_of_the_tree_shows_the_same_change_as_the_figures_above_the_tree(
    corrected: World,
) -> None:
    client = Client()
    client.force_login(corrected.finance)
    shown = client.get(reverse("chargeback"), {"month": "2026-04"}).context
    assert shown["table"].corrected < 0
    assert shown["total_since"] == overview(corrected.finance, APRIL, shown["now"]).change.amount
