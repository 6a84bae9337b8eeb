"""Test the demo's simulated past: the product's code charges it, its costs reconcile, its rows are marked."""

from __future__ import annotations

import datetime as dt

import pytest

from demo.simulated_usage import defer_charges, load_simulated_usage
from telemetry.models import Charge, Rollup, RollupDue, Sample, SettledAllocation
from telemetry.money import reconciliation
from telemetry.money.charges import charge_all_gpus
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = [pytest.mark.django_db, pytest.mark.long]
START, END = at(0, day=3), at(12, 20, day=9)


@pytest.fixture
def past(rates: World) -> World:
    units = units_of(rates.hosts["alpha"])
    teams = rates.teams
    defer_charges(END)
    for number in range(60):
        work = workload(
            rates,
            teams[number % 3],
            simulated=True,
            kind="notebook" if number % 5 == 0 else "job",
            type=("training", "interactive", "inference", "other")[number % 4],
        )
        start = START + dt.timedelta(hours=number * 2.5)
        hold(
            work, units[number % 8], start, start + dt.timedelta(hours=5, minutes=number), end_code="finished"
        )
    return rates


def load(world: World) -> list[tuple[int, int, str]]:
    steps: list[tuple[int, int, str]] = []
    load_simulated_usage({}, start=START, end=END, now=END, progress=lambda *step: steps.append(step))
    return steps


def test_loading_history_reports_progress_and_its_charges_reconcile(past: World) -> None:
    steps = load(past)
    assert [step[0] for step in steps] == sorted(step[0] for step in steps)
    assert steps[-1][:2] == (steps[-1][1], steps[-1][1])
    assert all(pool.holds for pool in reconciliation.reconcile_costs(dt.date(2026, 3, 1)))
    used = Charge.objects.filter(bucket="used")
    assert used.count() > 50
    assert all(
        line.simulated and line.evidence.covered_slot_seconds and line.evidence.used_slot_seconds is not None
        for line in used
    )


def test_hourly_and_daily_rollups_of_history_agree_and_only_the_last_day_has_samples(past: World) -> None:
    load(past)
    hours = Rollup.objects.filter(resolution=3600)
    assert hours.exists()
    assert all(row.simulated and row.covered_seconds <= row.held_seconds for row in hours)
    today = END.replace(hour=0, minute=0, second=0, microsecond=0)
    assert sum(row.held_seconds for row in hours.filter(bucket__lt=today)) == pytest.approx(
        sum(row.held_seconds for row in Rollup.objects.filter(resolution=86_400))
    )
    assert Sample.objects.filter(ts__lt=END - dt.timedelta(days=1)).count() == 0
    assert Sample.objects.count() > 1000
    roll_up_due_buckets(END + dt.timedelta(minutes=2))
    assert Rollup.objects.filter(resolution=60).exists()
    assert not RollupDue.objects.filter(resolution=60).exists()


def test_loading_history_again_changes_nothing_and_charging_continues_from_its_end(past: World) -> None:
    load(past)
    before = (Rollup.objects.count(), Charge.objects.count(), Sample.objects.count())
    load(past)
    assert (Rollup.objects.count(), Charge.objects.count(), Sample.objects.count()) == before
    charge_all_gpus(END + dt.timedelta(hours=2))
    assert all(pool.holds for pool in reconciliation.reconcile_costs(dt.date(2026, 3, 1)))
    assert not Charge.objects.filter(reversal=True).exists()
    assert SettledAllocation.objects.count() == 60
