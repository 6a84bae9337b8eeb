"""Test that charging step by step, with a close and corrections, gives the ledger of one run that knows all
facts.

The history has random work, reservations, states, prices, factors, splits, credits and adjustments. Some
facts are late, also about the closed month.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Count, Sum
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from telemetry.audit.ledger_audit import audit_month
from telemetry.core.amounts import MICRO
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.ledger.sums import sum_differences
from telemetry.models import Adjustment, AdjustmentState, Charge, StatementLine
from telemetry.money import statements
from telemetry.money.billing_months import forget_calendar, month_bounds
from telemetry.money.charges import charge_all_gpus
from telemetry.money.reconciliation import reconcile_costs
from telemetry.reads.chargeback import charges_by
from tests.telemetry.random_adjustments import RandomAdjustments
from tests.telemetry.random_ledger import RandomLedger
from tests.telemetry.rows import at, begin_charges_at
from tests.telemetry.test_billing_calendar import ZONES
from tests.telemetry.test_billing_zones import use_zone
from tests.telemetry.test_cents import assert_one_figure, assert_tables_agree
from tests.telemetry.test_currencies import priced_world
from tests.telemetry.test_statements import APRIL, MARCH
from tests.world import World

pytestmark = pytest.mark.django_db
CLOSED_AT = dt.datetime(2026, 4, 2, tzinfo=dt.UTC)  # March is over in every time zone
NOW = dt.datetime(2026, 4, 5, tzinfo=dt.UTC)
PRICE_SCALES = {"JPY": 150, "EUR": 1, "KWD": 1}
IDLE_PAYERS = ("operator", "guarantee", "use")
# What a charge is for. Cost centres are compared apart, because their shares are rounded for each line.
OWNER = ("gpu", "day", "bucket", "team_id", "project_id", "user_id", "workload_type")
Sums = dict[tuple[Any, ...], dict[str, Any]]


def write_history(world: World, seed: int, currency: str, *, charged: bool) -> None:
    """Write the facts of ``seed`` until NOW. If ``charged``, charge in steps and close March between them."""
    ledger = RandomLedger(world, random.Random(seed), currency, charged=charged)
    # A line uses the split in force at its start. So only a split that begins with a day moves the same time,
    # however late the lines were written.
    ledger.splits_begin_with_days = True
    ledger.charge_until(CLOSED_AT, 3)
    adjusting = random.Random(f"adjustments of {seed}")  # the facts are the same without adjustments
    if charged:
        statements.set_idle_payer(MARCH, IDLE_PAYERS[seed % 3])
        RandomAdjustments(world, adjusting, MARCH, MARCH).write(4, CLOSED_AT)
        statements.close_month(
            month=MARCH, closed_by=world.finance, now=CLOSED_AT, missing_samples_reason="no agent runs"
        )
    ledger.closed_until = month_bounds(APRIL)[0]
    ledger.charge_until(NOW, 3)
    charge_all_gpus(NOW)
    if charged:
        RandomAdjustments(world, adjusting, APRIL, MARCH).write(8, NOW)


def charged_by(*columns: str) -> Sums:
    """Return slot-seconds, cost, charge and number of the charge lines by the columns, without empty sums."""
    rows = Charge.objects.order_by().values(*columns)
    sums = rows.annotate(
        slots_held=Sum("slot_seconds"), costs=Sum("cost"), charges=Sum("charged"), lines=Count("pk")
    )
    return {
        tuple(row[name] for name in columns): row
        for row in sums
        if row["slots_held"] or row["costs"] or row["charges"]
    }


def assert_equal_sums(found: Sums, right: Sums, *, split: bool = False) -> None:
    """Assert that two ledgers charge the same, apart from the rounding of each line."""
    nothing = {"slots_held": 0, "costs": Decimal(0), "charges": Decimal(0), "lines": 0}
    for key in found.keys() | right.keys():
        one, other = found.get(key, nothing), right.get(key, nothing)
        lines = one["lines"] + other["lines"]
        assert abs(one["slots_held"] - other["slots_held"]) <= (lines if split else 0), key
        for name in ("costs", "charges"):
            assert abs(one[name] - other[name]) <= lines * MICRO, (key, name)


def assert_adjustments_are_shown(month: dt.date) -> None:
    """Assert that the approved amounts, and no others, are in the tables and in the total of a month."""
    approved = Adjustment.objects.filter(statement__month=month, state=AdjustmentState.APPROVED)
    amount = approved.aggregate(amount=Sum("amount"))["amount"] or Decimal(0)
    table = charges_by("bucket", month)
    shown = [row.charged for row in table.groups if row.key in ADJUSTMENT_BUCKETS]
    assert sum(shown, Decimal(0)) == table.total.adjustment == amount


def assert_any_history_is_right(
    world: World,
    seed: int,
    zone: str,
    currency: str,
    assert_views_agree: Callable[[World, dt.date], None] = assert_one_figure,
) -> None:
    use_zone(zone, MARCH)
    priced_world(world, currency, PRICE_SCALES[currency])
    with transaction.atomic():
        write_history(world, seed, currency, charged=False)
        right, right_shares = charged_by(*OWNER), charged_by("cost_centre", "day", "bucket")
        cost = Charge.objects.aggregate(cost=Sum("cost"))
        transaction.set_rollback(True)
    write_history(world, seed, currency, charged=True)
    assert_equal_sums(charged_by(*OWNER), right)
    assert_equal_sums(charged_by("cost_centre", "day", "bucket"), right_shares, split=True)
    assert Charge.objects.aggregate(cost=Sum("cost")) == cost
    for month in (MARCH, APRIL):
        assert [str(each) for each in audit_month(month, NOW)] == []
        assert sum_differences(month) == []
        assert all(pool.holds for pool in reconcile_costs(month))
        assert_adjustments_are_shown(month)
        assert_views_agree(world, month)


@pytest.mark.long
def test_corrections_of_the_last_days_of_a_month_add_up_to_one_run_that_knows_all_facts(world: World) -> None:
    """Charge only from 30 March on, and compare no drill-down. The long tests do both for a whole month."""
    begin_charges_at(world, at(0, day=30))
    assert_any_history_is_right(world, 1, "America/New_York", "KWD", assert_tables_agree)
    assert StatementLine.objects.filter(statement__month=APRIL, corrected_month=MARCH).exists()
    approved = Adjustment.objects.filter(statement__month=APRIL, state=AdjustmentState.APPROVED)
    assert set(approved.values_list("kind", flat=True)) == {"credit", "adjustment"}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "zone", "currency"),
    [(1, "Australia/Lord_Howe", "JPY"), (2, "America/New_York", "KWD")],
)
def test_corrections_of_a_closed_month_add_up_to_one_run_that_knows_all_facts(
    world: World, seed: int, zone: str, currency: str
) -> None:
    assert_any_history_is_right(world, seed, zone, currency)
    assert StatementLine.objects.filter(statement__month=APRIL, corrected_month=MARCH).exists()


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(
    max_examples=10,
    phases=[Phase.explicit, Phase.generate],  # no shrinking of a failing example: each takes seconds
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(13956, "America/New_York", "JPY")
@example(8719, ZONES[2], "KWD")  # a correction leaves a line with 0.000002 and no time
@given(st.integers(0, 2**32), st.sampled_from(ZONES), st.sampled_from(sorted(PRICE_SCALES)))
def test_any_order_of_facts_gives_the_ledger_of_one_run_that_knows_all_facts(
    world: World, seed: int, zone: str, currency: str
) -> None:
    with transaction.atomic():
        assert_any_history_is_right(world, seed, zone, currency)
        transaction.set_rollback(True)
    forget_calendar()
