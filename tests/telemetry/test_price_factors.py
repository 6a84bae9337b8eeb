"""Test price factors: the price of work is multiplied by the factors of its priority and its type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.db import DatabaseError, IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.amounts import MICRO, value_between
from telemetry.core.charge_model import CHARGED_BUCKETS, GpuHold, GpuTimeline, Rate, WorkFactor
from telemetry.core.charge_pieces import asset_cost, charge_pieces, price_pieces
from telemetry.models import Charge, PriceFactor
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.prices import load_current_prices
from tests.telemetry.rows import (
    at,
    change_in_place,
    end_hold,
    hold,
    price,
    price_factor,
    reservation,
    workload,
)
from tests.telemetry.test_charges import assert_conserved
from tests.world import H100, World, units_of

MARCH = dt.date(2026, 3, 1)
SINCE = at(0, day=1)
factors = st.decimals(min_value="0.0001", max_value=100, places=4)
rates_of_price = st.decimals(min_value=0, max_value=1000, places=6)
seconds = st.lists(st.integers(0, 3 * 86_400), min_size=2, max_size=6, unique=True).map(sorted)
db = pytest.mark.django_db


def charged(gpu: GpuTimeline, moments: list[dt.datetime]) -> list[Decimal]:
    """Return the charge of each of the charging runs that end at ``moments``, except the first."""
    return [
        sum((piece.charged for piece in price_pieces(charge_pieces(gpu, low, high))), Decimal(0))
        for low, high in zip(moments, moments[1:], strict=False)
    ]


@given(cost=rates_of_price, list_price=rates_of_price, factor=factors, edges=seconds)
def test_runs_of_any_length_sum_to_the_value_at_the_price_with_its_factor(
    cost: Decimal, list_price: Decimal, factor: Decimal, edges: list[int]
) -> None:
    moments = [SINCE + dt.timedelta(seconds=edge) for edge in edges]
    rate = Rate(SINCE, cost, list_price, 1)
    work = GpuHold(1, 0, 840, SINCE, factors=(WorkFactor(SINCE, factor, 1),))
    whole = value_between(moments[0], moments[-1], rate.price_with(factor), SINCE)
    assert sum(charged(GpuTimeline((work,), rates=(rate,)), moments)) == whole


@given(
    cost=rates_of_price,
    list_price=rates_of_price,
    by_work=st.lists(factors, min_size=2, max_size=4),
    changes=st.lists(st.tuples(st.integers(1, 2 * 86_400), factors), max_size=3),
    edges=seconds,
)
def test_factors_never_change_the_cost_and_each_piece_is_charged_at_its_own_price(
    cost: Decimal,
    list_price: Decimal,
    by_work: list[Decimal],
    changes: list[tuple[int, Decimal]],
    edges: list[int],
) -> None:
    rate = Rate(SINCE, cost, list_price, 1)
    later = tuple(WorkFactor(SINCE + dt.timedelta(seconds=at_), factor) for at_, factor in sorted(changes))
    holds = tuple(
        GpuHold(number, 100 * number, 100 * (number + 1), SINCE, factors=(WorkFactor(SINCE, factor), *later))
        for number, factor in enumerate(by_work, 1)
    )
    gpu = GpuTimeline(holds, rates=(rate,))
    low, high = (SINCE + dt.timedelta(seconds=edge) for edge in (edges[0], edges[-1]))
    pieces = price_pieces(charge_pieces(gpu, low, high))
    assert sum(piece.cost for piece in pieces) == asset_cost((rate,), low, high)
    for piece in pieces:
        own = rate.price_with(piece.factor.factor) if piece.factor else rate.price
        exact = own * piece.slot_seconds / 840 / 3600 if piece.owner.bucket in CHARGED_BUCKETS else 0
        assert abs(piece.charged - exact) < 3 * MICRO


@db
def test_factors_of_priority_and_type_multiply_the_price_but_not_the_cost(rates: World) -> None:
    price(H100, "2.00", "3.00", since=at(8))
    low = price_factor("0.5", since=at(8), priority=0)
    inference = price_factor("1.25", since=at(8), workload_type="inference")
    unit = units_of(rates.hosts["alpha"])[0]
    work = workload(rates, rates.vision, priority=0, type="inference")
    allocation = hold(work, unit, at(9), at(11), end_code="finished")
    charge_all_gpus(at(12, 5))
    [line] = Charge.objects.filter(allocation=allocation)
    assert (line.cost, line.charged) == (Decimal("4.000000"), Decimal("3.750000"))
    assert (line.priority_factor, line.type_factor) == (low, inference)
    assert (line.price_factor, line.work_price) == (Decimal("0.625"), Decimal("1.875000"))
    assert_conserved()
    assert list(audit_ledger(MARCH, at(12, 5))) == []


@db
def test_a_factor_begins_at_its_time_and_the_line_is_cut_there(rates: World) -> None:
    price_factor("0.5", since=at(10, 30), priority=1)
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9), at(12), end_code="finished")
    charge_all_gpus(at(13))
    lines = Charge.objects.filter(allocation=allocation).order_by("start")
    assert [(line.end, line.charged) for line in lines] == [
        (at(10, 30), Decimal("3.600000")),
        (at(12), Decimal("1.800000")),
    ]
    assert list(audit_ledger(MARCH, at(13))) == []


@db
def test_a_factor_of_a_pool_replaces_the_general_one_from_its_own_date_on(rates: World) -> None:
    price_factor("0.5", since=at(8), priority=1)
    price_factor("2", since=at(10), priority=1, pool=rates.shared)
    price_factor("0.1", since=at(11), priority=1)
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9), at(12), end_code="finished")
    charge_all_gpus(at(13))
    amounts = Charge.objects.filter(allocation=allocation).order_by("start").values_list("charged", flat=True)
    assert list(amounts) == [Decimal("1.200000"), Decimal("9.600000")]
    assert list(audit_ledger(MARCH, at(13))) == []


@db
def test_time_that_is_paid_for_in_any_case_has_no_factor(rates: World) -> None:
    """A reservation is charged for its window, and the team of a dedicated pool for all of its time."""
    price_factor("0.5", since=at(8), workload_type="training")
    first, *_ = units_of(rates.hosts["alpha"])
    booked = reservation(rates, rates.vision, [first], at(9), at(11))
    reserved = hold(
        workload(rates, rates.vision), first, at(9), at(10), end_code="finished", reservation=booked
    )
    own = units_of(rates.hosts["delta"])[0]
    assert own.gpu.pool_id == rates.static.pk
    dedicated = hold(
        workload(rates, rates.vision, pool=rates.static), own, at(9), at(10), end_code="finished"
    )
    charge_all_gpus(at(12))
    for allocation in (reserved, dedicated):
        [line] = Charge.objects.filter(allocation=allocation)
        assert line.price is not None
        assert (line.type_factor, line.charged) == (None, line.price.price_per_gpu_hour)
    assert list(audit_ledger(MARCH, at(12))) == []


@db
def test_a_late_end_is_charged_with_the_same_factors(rates: World) -> None:
    price_factor("0.5", since=at(8), priority=1)
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9))
    charge_all_gpus(at(12, 5))
    end_hold(allocation, at(11), "finished")
    charge_all_gpus(at(13, 5))
    total = sum(Charge.objects.filter(allocation=allocation).values_list("charged", flat=True))
    assert total == Decimal("2.400000")
    assert_conserved()
    assert list(audit_ledger(MARCH, at(13, 5))) == []


@db
def test_the_audit_finds_a_line_without_its_factor_and_a_line_across_a_change(rates: World) -> None:
    price_factor("0.5", since=at(8), priority=1)
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9), at(11), end_code="finished")
    charge_all_gpus(at(12, 5))
    [line] = Charge.objects.filter(allocation=allocation)
    with transaction.atomic():
        change_in_place(line, priority_factor=None)
        found = {(each.line, each.field) for each in audit_ledger(MARCH, at(12, 5))}
        assert found == {(line.pk, "priority factor"), (line.pk, "charged")}
        transaction.set_rollback(True)
    row = PriceFactor.objects.create(priority=1, factor=2, valid_from=at(14), created_at=at(8))
    change_in_place(row, valid_from=at(10))
    assert {(each.line, each.field) for each in audit_ledger(MARCH, at(12, 5))} == {(line.pk, "end")}


@db
def test_the_database_refuses_a_factor_in_charged_time_and_changes_of_factors(rates: World) -> None:
    row = price_factor("0.5", since=at(8), priority=1)
    charge_all_gpus(at(12))
    refused = [
        lambda: price_factor("0.7", since=at(10), priority=0),
        lambda: price_factor("0.7", since=at(10), priority=0, pool=rates.shared),
        lambda: PriceFactor.objects.filter(pk=row.pk).update(factor=1),
        lambda: row.delete(),
        lambda: price_factor("0", since=at(20), priority=1),
        lambda: price_factor("1", since=at(20), priority=1, workload_type="training"),
        lambda: price_factor("1", since=at(20)),
    ]
    for number, change in enumerate(refused):
        with pytest.raises((DatabaseError, IntegrityError)), transaction.atomic():
            change()
            pytest.fail(f"change {number} was accepted")
    price_factor("0.7", since=at(12), priority=0)


@db
def test_present_prices_include_the_factors_of_work(rates: World) -> None:
    price_factor("0.5", since=at(8), priority=0)
    price_factor("1.5", since=at(8), workload_type="inference")
    prices, pool = load_current_prices(at(9)), rates.shared.pk
    assert prices.of(pool, H100) == Decimal("2.40")
    assert prices.of_work(pool, H100, (0, "inference"), 420) == Decimal("0.90")
    assert prices.of_work(pool, H100, (0, "inference"), in_reservation=True) == Decimal("2.40")
    assert prices.of_work(rates.static.pk, H100, (0, "inference")) == Decimal("2.40")
