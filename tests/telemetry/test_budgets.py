"""Test budgets: each threshold raises one notice, and a used-up budget closes the budget gate.

While the gate is closed, the engine starts no work on this budget. It opens when the budget is raised or its
month ends.
"""

from __future__ import annotations

import datetime as dt

import pytest

from scheduler.models import BudgetGate
from telemetry.models import Budget, BudgetAlert, Charge
from telemetry.money.budgets import check_budgets
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.budget_status import find_budget_status
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)


def spend_24(world: World) -> None:
    """Charge ten hours of one H100 at 2.40 an hour."""
    hold(
        workload(world, world.language), units_of(world.hosts["alpha"])[0], at(9), at(19), end_code="finished"
    )
    charge_all_gpus(at(20, 5))


def test_each_threshold_raises_one_notice(rates: World) -> None:
    budget = Budget.objects.create(team=rates.language.team, month=MARCH, amount="30.00")
    spend_24(rates)
    assert check_budgets(at(20, 6)) == 2
    assert check_budgets(at(20, 7)) == 0
    assert list(BudgetAlert.objects.values_list("percent", flat=True).order_by("percent")) == [50, 80]
    budget.refresh_from_db()
    assert budget.notified_percent == 80
    assert not BudgetGate.objects.exists()


def test_a_used_up_budget_closes_the_gate_and_raising_it_opens_the_gate(rates: World) -> None:
    budget = Budget.objects.create(team=rates.language.team, month=MARCH, amount="20.00", action="refuse_new")
    spend_24(rates)
    check_budgets(at(20, 6))
    gate = BudgetGate.objects.get()
    assert (gate.team, gate.action, gate.until) == (
        rates.language.team,
        "refuse_new",
        dt.datetime(2026, 4, 1, tzinfo=dt.UTC),
    )
    assert gate.numbers == {"limit": "20.00", "spent": "24.00", "month": "2026-03-01", "measure": "money"}
    Budget.objects.filter(pk=budget.pk).update(amount="100.00")
    check_budgets(at(20, 7))
    assert not BudgetGate.objects.exists()


def test_a_budget_of_gpu_hours_counts_charged_hours_whatever_their_price(rates: World) -> None:
    Budget.objects.create(
        team=rates.language.team, month=MARCH, measure="gpu_hours", amount="12.00", action="refuse_new"
    )
    spend_24(rates)
    assert check_budgets(at(20, 6)) == 2, "10 of 12 hours pass the thresholds of 50 and 80 percent"
    assert not BudgetGate.objects.exists()
    evicted = hold(
        workload(rates, rates.language),
        units_of(rates.hosts["alpha"])[1],
        at(9),
        at(19),
        end_code="checkpointed",
    )
    charge_all_gpus(at(20, 7))
    assert Charge.objects.filter(allocation=evicted, bucket="preempted").exists()
    used = find_budget_status(MARCH, at(20, 8), team=rates.language.team.pk, measure="gpu_hours")
    lines = Charge.objects.filter(bucket__in=("used", "reserved_unused"), team=rates.language.team)
    assert used is not None and used.spent * 840 * 3600 == sum(line.slot_seconds for line in lines)
    Budget.objects.update(amount="10.00")
    check_budgets(at(20, 9))
    gate = BudgetGate.objects.get()
    assert (gate.action, gate.numbers["limit"], gate.numbers["measure"]) == (
        "refuse_new",
        "10.00",
        "gpu_hours",
    )


def test_if_money_and_gpu_hours_are_used_up_one_gate_is_closed_and_names_the_money(rates: World) -> None:
    for measure in ("gpu_hours", "money"):
        Budget.objects.create(
            team=rates.language.team, month=MARCH, measure=measure, amount="5.00", action="refuse_new"
        )
    spend_24(rates)
    check_budgets(at(20, 6))
    assert BudgetGate.objects.get().numbers["measure"] == "money"
    Budget.objects.filter(measure="money").update(amount="100.00")
    check_budgets(at(20, 7))
    assert BudgetGate.objects.get().numbers["measure"] == "gpu_hours"


def test_the_gate_opens_with_the_next_month(rates: World) -> None:
    Budget.objects.create(
        project=rates.language.project, month=MARCH, amount="20.00", action="stop_borrowing"
    )
    spend_24(rates)
    check_budgets(at(20, 6))
    assert BudgetGate.objects.get().project == rates.language.project
    check_budgets(dt.datetime(2026, 4, 1, 0, 1, tzinfo=dt.UTC))
    assert not BudgetGate.objects.exists()


def test_a_forecast_above_the_budget_raises_a_notice_after_the_first_days_of_the_month(rates: World) -> None:
    Budget.objects.create(team=rates.language.team, month=MARCH, amount="60.00")
    spend_24(rates)
    check_budgets(at(20, 6))
    assert not BudgetAlert.objects.filter(forecast=True).exists()
    check_budgets(at(12, day=5))
    assert BudgetAlert.objects.filter(forecast=True, percent=100).exists()
