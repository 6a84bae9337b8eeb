"""Test budgets: each threshold raises one notice, and a used-up budget closes the budget gate.

While the gate is closed, the engine starts no work on this budget. It opens when the budget is raised or its
month ends.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from scheduler.models import BudgetGate, Command, Reservation
from telemetry.budgets.budget_checks import check_budgets
from telemetry.budgets.commitments import committed_spend
from telemetry.budgets.spending import SpendScope
from telemetry.models import Budget, BudgetAlert, BudgetForecast, Charge, CostCentreShare
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.budget_status import find_budget_status
from tests.documents import table_rows
from tests.seeds import first_cases
from tests.telemetry.rows import at, hold, rates, reservation, workload
from tests.world import H100, World, units_of, world_fixture

pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)


def write_spent_24(world: World) -> World:
    """Return a world in which Language has been charged ten hours of one H100 at 2.40 an hour."""
    hold(
        workload(world, world.language), units_of(world.hosts["alpha"])[0], at(9), at(19), end_code="finished"
    )
    charge_all_gpus(at(20, 5))
    return world


spent_24 = world_fixture(write_spent_24, after=rates)


def test_each_threshold_raises_one_notice(spent_24: World) -> None:
    budget = Budget.objects.create(team=spent_24.language.team, month=MARCH, amount="30.00")
    assert check_budgets(at(20, 6)) == 2
    assert check_budgets(at(20, 7)) == 0
    assert list(BudgetAlert.objects.values_list("percent", flat=True).order_by("percent")) == [50, 80]
    budget.refresh_from_db()
    assert budget.notified_percent == 80
    assert not BudgetGate.objects.exists()


def test_the_documented_budgets_have_these_notices_and_gates(spent_24: World) -> None:
    rows = table_rows("budgets")
    assert [amount for amount, *_ in rows] == ["60.00", "48.00", "30.00", "24.00"]
    for amount, notices, gate in rows:
        with transaction.atomic():
            budget = Budget.objects.create(
                team=spent_24.language.team, month=MARCH, amount=amount, action="refuse_new"
            )
            check_budgets(at(20, 6))
            percents = budget.alerts.order_by("percent").values_list("percent", flat=True)
            found = ", ".join(f"{percent} %" for percent in percents) or "none"
            closed = "closed" if BudgetGate.objects.exists() else "open"
            assert (found, closed) == (notices, gate), amount
            transaction.set_rollback(True)


def test_a_used_up_budget_closes_the_gate_and_raising_it_opens_the_gate(spent_24: World) -> None:
    budget = Budget.objects.create(
        team=spent_24.language.team, month=MARCH, amount="20.00", action="refuse_new"
    )
    check_budgets(at(20, 6))
    gate = BudgetGate.objects.get()
    assert (gate.team, gate.action, gate.until) == (
        spent_24.language.team,
        "refuse_new",
        dt.datetime(2026, 4, 1, tzinfo=dt.UTC),
    )
    assert gate.numbers == {
        "limit": "20.00",
        "spent": "24.00",
        "month": "2026-03-01",
        "measure": "money",
        "currency": "EUR",
    }
    Budget.objects.filter(pk=budget.pk).update(amount="100.00")
    check_budgets(at(20, 7))
    assert not BudgetGate.objects.exists()


def test_a_budget_of_gpu_hours_counts_charged_hours_whatever_their_price(spent_24: World) -> None:
    Budget.objects.create(
        team=spent_24.language.team, month=MARCH, measure="gpu_hours", amount="12.00", action="refuse_new"
    )
    assert check_budgets(at(20, 6)) == 2, "10 of 12 hours pass the thresholds of 50 and 80 percent"
    assert not BudgetGate.objects.exists()
    evicted = hold(
        workload(spent_24, spent_24.language),
        units_of(spent_24.hosts["alpha"])[1],
        at(9),
        at(19),
        end_code="checkpointed",
    )
    charge_all_gpus(at(20, 7))
    assert Charge.objects.filter(allocation=evicted, bucket="preempted").exists()
    used = find_budget_status(MARCH, at(20, 8), team=spent_24.language.team.pk, measure="gpu_hours")
    lines = Charge.objects.filter(bucket__in=("used", "reserved_unused"), team=spent_24.language.team)
    assert used is not None and used.spent * 840 * 3600 == sum(line.slot_seconds for line in lines)
    Budget.objects.update(amount="10.00")
    check_budgets(at(20, 9))
    gate = BudgetGate.objects.get()
    assert (gate.action, gate.numbers["limit"], gate.numbers["measure"]) == (
        "refuse_new",
        "10.00",
        "gpu_hours",
    )


def test_if_money_and_gpu_hours_are_used_up_one_gate_is_closed_and_names_the_money(spent_24: World) -> None:
    for measure in ("gpu_hours", "money"):
        Budget.objects.create(
            team=spent_24.language.team, month=MARCH, measure=measure, amount="5.00", action="refuse_new"
        )
    check_budgets(at(20, 6))
    assert BudgetGate.objects.get().numbers["measure"] == "money"
    Budget.objects.filter(measure="money").update(amount="100.00")
    check_budgets(at(20, 7))
    assert BudgetGate.objects.get().numbers["measure"] == "gpu_hours"


def test_the_gate_opens_with_the_next_month(spent_24: World) -> None:
    Budget.objects.create(
        project=spent_24.language.project, month=MARCH, amount="20.00", action="stop_borrowing"
    )
    check_budgets(at(20, 6))
    assert BudgetGate.objects.get().project == spent_24.language.project
    check_budgets(dt.datetime(2026, 4, 1, 0, 1, tzinfo=dt.UTC))
    assert not BudgetGate.objects.exists()


def test_a_forecast_above_the_budget_raises_a_notice_once_three_days_are_known(spent_24: World) -> None:
    budget = Budget.objects.create(team=spent_24.language.team, month=MARCH, amount="60.00")
    check_budgets(at(12, day=4))
    assert not BudgetForecast.objects.exists()
    assert not BudgetAlert.objects.filter(forecast=True).exists()
    check_budgets(at(12, day=5))
    assert BudgetAlert.objects.filter(forecast=True, percent=100).exists()
    forecast = BudgetForecast.objects.get(budget=budget)
    assert Decimal(24) <= forecast.low <= forecast.expected <= forecast.high


def test_a_forecast_is_made_anew_once_an_hour(spent_24: World) -> None:
    budget = Budget.objects.create(team=spent_24.language.team, month=MARCH, amount="60.00")
    for minute, as_of in ((0, at(12, day=6)), (59, at(12, day=6))):
        check_budgets(at(12, minute, day=6))
        assert BudgetForecast.objects.get(budget=budget).as_of == as_of
    check_budgets(at(13, day=6))
    assert BudgetForecast.objects.get(budget=budget).as_of == at(13, day=6)


def test_a_forecast_includes_running_work_and_booked_reservations(rates: World) -> None:
    units = units_of(rates.hosts["alpha"])
    hold(workload(rates, rates.language, predicted_seconds=48 * 3600), units[0], at(9))
    booked = reservation(rates, rates.vision, units[1:3], at(0, day=20), at(0, day=22))
    committed = committed_spend(
        {
            SpendScope(team=rates.language.team.pk),
            SpendScope(project=rates.vision.project.pk),
            SpendScope(cost_centre="CC-VISION"),
        },
        "gpu_hours",
        at(12),
        dt.datetime(2026, 4, 1, tzinfo=dt.UTC),
    )
    running = committed[SpendScope(team=rates.language.team.pk)]
    assert running == {dt.date(2026, 3, 2): 12, dt.date(2026, 3, 3): 24, dt.date(2026, 3, 4): 9}
    assert committed[SpendScope(project=booked.project_id)] == {
        dt.date(2026, 3, 20): 48,
        dt.date(2026, 3, 21): 48,
    }
    Reservation.objects.filter(pk=booked.pk).update(models_wanted=[H100])
    in_money = committed_spend({SpendScope(project=rates.vision.project.pk)}, "money", at(12), at(0, day=21))
    assert in_money[SpendScope(project=rates.vision.project.pk)][dt.date(2026, 3, 20)] == pytest.approx(
        48 * 2.40
    )


@pytest.mark.parametrize(
    ("period", "first", "until"),
    [
        ("month", dt.date(2026, 3, 1), dt.date(2026, 4, 1)),
        ("quarter", dt.date(2026, 1, 1), dt.date(2026, 4, 1)),
        ("year", dt.date(2026, 1, 1), dt.date(2027, 1, 1)),
    ],
)
def test_a_budget_closes_its_gate_until_the_end_of_its_period(
    spent_24: World, period: str, first: dt.date, until: dt.date
) -> None:
    Budget.objects.create(
        team=spent_24.language.team, period=period, month=first, amount="20.00", action="refuse_new"
    )
    check_budgets(at(20, 6))
    gate = BudgetGate.objects.get()
    assert gate.until.date() == until
    assert gate.numbers.get("period", "month") == period


def test_of_two_used_up_budgets_the_gate_names_the_one_that_ends_last(spent_24: World) -> None:
    for period, first in (("year", dt.date(2026, 1, 1)), ("month", MARCH)):
        Budget.objects.create(
            team=spent_24.language.team, period=period, month=first, amount="20.00", action="refuse_new"
        )
    check_budgets(at(20, 6))
    assert BudgetGate.objects.get().numbers["period"] == "year"


def test_a_used_up_budget_of_a_cost_centre_closes_the_gates_of_its_projects(spent_24: World) -> None:
    code = CostCentreShare.objects.get(project=spent_24.language.project).code
    Budget.objects.create(cost_centre=code, month=MARCH, amount="20.00", action="refuse_new")
    check_budgets(at(20, 6))
    gates = BudgetGate.objects.all()
    centres = CostCentreShare.objects.filter(code=code).values_list("project_id", flat=True)
    assert {gate.project_id for gate in gates} == set(centres)
    assert {gate.numbers["cost_centre"] for gate in gates} == {code}


def test_a_used_up_budget_stops_running_work_with_a_notice_if_it_says_so(spent_24: World) -> None:
    Budget.objects.create(team=spent_24.language.team, month=MARCH, amount="20.00", action="stop_running")
    running = workload(spent_24, spent_24.language)
    hold(running, units_of(spent_24.hosts["alpha"])[2], at(19))
    other = workload(spent_24, spent_24.vision)
    hold(other, units_of(spent_24.hosts["alpha"])[3], at(19))
    check_budgets(at(20, 6))
    running.refresh_from_db()
    other.refresh_from_db()
    assert (running.state, running.stop_requested) == ("notice", "budget_closed")
    assert other.state == "running"
    assert BudgetGate.objects.get().action == "refuse_new"
    notices = Command.objects.filter(run__workload=running, verb="notice")
    assert [notice.stop_at for notice in notices] == [
        at(20, 6) + dt.timedelta(seconds=spent_24.shared.notice_seconds)
    ]
    check_budgets(at(20, 7))
    assert Command.objects.filter(run__workload=running).count() == 1, "a notice is given once"


@pytest.mark.parametrize(
    "fields",
    first_cases(
        2,
        [
            {"period": "quarter", "month": dt.date(2026, 3, 1)},
            {"period": "year", "month": dt.date(2026, 4, 1)},
            {"period": "month", "month": dt.date(2026, 3, 2)},
            {"team": None},
            {"cost_centre": "CC-1"},
        ],
    ),
)
def test_the_database_rejects_a_budget_without_one_owner_or_with_a_wrong_first_day(
    rates: World, fields: dict[str, Any]
) -> None:
    valid = {"team": rates.language.team, "month": MARCH, "amount": "1"}
    with pytest.raises(IntegrityError), transaction.atomic():
        Budget.objects.create(**(valid | fields))
