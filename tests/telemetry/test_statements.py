"""Test monthly statements: they add up exactly, and a closed statement never changes."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Sequence
from decimal import Decimal

import pytest
from django.db import DatabaseError, transaction
from hypothesis import given
from hypothesis import strategies as st

from scheduler.models import Allocation, Project, Team
from telemetry.core.amounts import CENT, MICRO, round_amount
from telemetry.ingest import agent_api, redis_client
from telemetry.ingest.samples import drain_stream
from telemetry.ingest.stream_format import SAMPLE_STREAM_KEY
from telemetry.models import Charge, ChargedUntil, HealthRule, HostHoursRecorded, Statement, StatementLine
from telemetry.money import close_checks, reconciliation, statement_export, statement_lines, statements
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.chargeback import charges_by
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.portal.rejections import rejected
from tests.telemetry.rows import (
    at,
    batch,
    cost_centre,
    end_hold,
    hold,
    host_state,
    price,
    rates,
    reservation,
    workload,
)
from tests.world import A100, H100, World, units_of, world_fixture

pytestmark = pytest.mark.django_db
FIGURES = ("charged", "margin", "uncharged", "idle", "overhead", "cost")
MARCH, APRIL = dt.date(2026, 3, 1), dt.date(2026, 4, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)


def write_busy_march(world: World) -> World:
    """Return a world whose March has charges in every bucket, at prices that do not divide evenly."""
    price(H100, "2.345677", "2.999999", since=at(0, day=10))
    alpha, gamma = units_of(world.hosts["alpha"]), units_of(world.hosts["gamma"], "1g.5gb")
    hold(workload(world, world.vision), alpha[0], at(9, 7, 13), at(23, 11, 59, day=20), end_code="finished")
    hold(
        workload(world, world.language),
        alpha[1],
        at(9),
        at(15, 3, 7, day=3),
        end_code="killed_at_grace",
        checkpoint=at(12, day=3),
    )
    hold(workload(world, world.robotics), alpha[2], at(9), at(17, 33, day=5), end_code="gpu_error")
    hold(
        workload(world, world.robotics, kind="notebook"),
        gamma[0],
        at(9),
        at(17, 33, 1, day=15),
        end_code="idle",
    )
    booked = reservation(world, world.language, alpha[3:5], at(9, day=6), at(17, day=9))
    hold(
        workload(world, world.language),
        alpha[3],
        at(12, day=6),
        at(17, day=7),
        end_code="finished",
        reservation=booked,
    )
    host_state(world.hosts["beta"], at(3, day=8), lease="silent")
    host_state(world.hosts["beta"], at(9, 30, 30, day=8), admin="maintenance")
    host_state(world.hosts["beta"], at(12, day=8))
    hold(workload(world, world.vision), units_of(world.hosts["beta"])[0], at(20, day=31))
    charge_all_gpus(AFTER)
    return world


busy_march = world_fixture(write_busy_march, after=rates)


def running_allocation() -> Allocation:
    """Return the allocation that still runs at the end of March."""
    return Allocation.objects.get(period__upper_inf=True)


amounts = st.integers(-(10**10), 10**10).map(lambda n: n * MICRO)


def reconciled(parts: Sequence[Decimal], by: Decimal = Decimal(0)) -> reconciliation.CostReconciliation:
    """Return the reconciliation of a pool with the terms ``parts``, and with a cost that is lower than their
    sum by ``by``.
    """
    exact = reconciliation.CostTerms(*parts)
    cents = reconciliation.CostTerms(*map(round_amount, parts))
    return reconciliation.CostReconciliation(1, "p", "EUR", exact, cents, exact.total - by)


def balance_of(row: dict[str, str]) -> Decimal:
    """Return the left side of a shown equation minus its right side."""
    shown = {name: Decimal(row[name]) for name in FIGURES}
    left = shown["charged"] - shown["margin"] + shown["uncharged"] + shown["idle"] + shown["overhead"]
    return left - shown["cost"]


@given(st.lists(st.tuples(*[amounts] * 5), max_size=6))
def test_shown_pool_amounts_add_up_and_the_shown_cost_is_within_three_cents_of_the_exact_cost(
    figures: list[tuple[Decimal, ...]],
) -> None:
    pools = [reconciled(parts) for parts in figures]
    for pool, row in zip(pools, reconciliation.reconciliation_in_cents(pools), strict=True):
        assert balance_of(row) == 0
        assert abs(Decimal(row["cost"]) - pool.cost) < 3 * CENT
        assert all(Decimal(row[name]) == round_amount(Decimal(row[name])) for name in FIGURES)


def test_an_unbalanced_pool_shows_its_difference() -> None:
    one = Decimal("10.00")
    [row] = reconciliation.reconciliation_in_cents(
        [reconciled([one, Decimal(0), Decimal(0), one, Decimal(0)], Decimal("-0.05"))]
    )
    assert (row["charged"], row["idle"], row["cost"]) == ("10.00", "10.00", "20.05")


@pytest.mark.parametrize("by", ["0.01", "-0.01", "0.000001", "-0.000001", "3.004"])
@given(parts=st.tuples(*[amounts] * 5))
def test_a_small_difference_is_shown_in_spite_of_rounding(by: str, parts: tuple[Decimal, ...]) -> None:
    [row] = reconciliation.reconciliation_in_cents([reconciled(parts, Decimal(by))])
    seen = {"0.000001": "0.01", "-0.000001": "-0.01", "3.004": "3.00"}.get(by, by)
    assert balance_of(row) == Decimal(seen)


def test_the_charged_amount_is_the_same_in_the_lines_the_tables_and_the_statement(
    busy_march: World,
) -> None:
    totals = statements.statement_totals(MARCH)
    for name in ("charged", "cost"):
        assert sum(Decimal(pool[name]) for pool in totals["pools"]) == Decimal(totals[name])
    assert sum(line.amount for line in statement_lines.statement_lines(MARCH)) == Decimal(totals["charged"])
    assert charges_by("team", MARCH).total.charged == Decimal(totals["charged"])


def test_each_pools_sum_equals_the_cost_of_its_gpus_to_the_last_decimal(busy_march: World) -> None:
    pools = {pool.pool_name: pool for pool in reconciliation.reconcile_costs(MARCH)}
    assert set(pools) == {"Shared", "Vision only"}
    for pool in pools.values():
        assert pool.holds
        assert pool.total == pool.cost
    shared = pools["Shared"].exact
    assert min(shared.charged, shared.uncharged, shared.idle, shared.overhead, shared.margin) > 0
    whole_month = Decimal((dt.datetime(2026, 4, 1, tzinfo=dt.UTC) - at(9)).total_seconds()) / 3600
    assert pools["Vision only"].cost == round_amount(4 * whole_month * Decimal("1.10"), Decimal("0.000001"))


def test_the_lines_sum_to_the_total_to_the_cent(busy_march: World) -> None:
    lines = statement_lines.statement_lines(MARCH)
    totals = statements.statement_totals(MARCH)
    assert sum(line.amount for line in lines) == Decimal(totals["charged"])
    assert sum(line.cost for line in lines) == Decimal(totals["cost"])
    for pool in totals["pools"]:
        balance = (
            Decimal(pool["charged"])
            - Decimal(pool["margin"])
            + Decimal(pool["uncharged"])
            + Decimal(pool["idle"])
            + Decimal(pool["overhead"])
        )
        assert balance == Decimal(pool["cost"])


def test_prices_at_cost_make_no_margin(rates: World) -> None:
    hold(
        workload(rates, rates.vision),
        units_of(rates.hosts["gamma"], "1g.5gb")[0],
        at(9, 0, 1),
        at(9, 7, 7),
        end_code="failed",
    )
    charge_all_gpus(at(12, 5))
    assert {pool.exact.margin for pool in reconciliation.reconcile_costs(MARCH)} == {Decimal(0)}


def test_the_statement_of_a_closed_month_stays_the_same_byte_for_byte(busy_march: World) -> None:
    world = busy_march
    open_end = running_allocation()
    statement = statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)
    before, totals = statement_export.statement_csv(MARCH), statements.statement_totals(MARCH)
    assert len(statement.digest) == 64

    Team.objects.filter(pk=world.vision.team.pk).update(name="Renamed")
    Project.objects.filter(pk=world.vision.project.pk).update(name="Renamed")
    price(H100, "99", since=AFTER + dt.timedelta(hours=2))
    cost_centre(world.vision, "CC-999", at(0, day=15))
    end_hold(open_end, at(22, day=31), "finished")
    late_samples(world)
    charge_all_gpus(AFTER + dt.timedelta(hours=3))

    assert statement_export.statement_csv(MARCH) == before
    assert statements.statement_totals(MARCH) == totals
    late = Charge.objects.filter(corrects__month=MARCH, month=APRIL)
    # The work ended two hours before the month. The end was reported after the close, so April takes back two
    # hours at 2.999999.
    assert sum(line.charged for line in late) == Decimal("-5.999998")
    assert sum(line.cost for line in late) == 0
    assert all(pool.holds for pool in reconciliation.reconcile_costs(APRIL))


def late_samples(world: World) -> None:
    """Ingest and roll up samples of the last hours of the closed month."""
    HostHoursRecorded.objects.create(until=at(20, day=31))
    stream = redis_client.redis_client()
    stream.delete(SAMPLE_STREAM_KEY)
    late = batch(1, units_of(world.hosts["beta"])[0], at(20, 30, day=31), 60)
    agent_api.enqueue_batch(world.hosts["beta"].pk, late, AFTER)
    assert drain_stream(stream, AFTER).rows == 60
    assert roll_up_due_buckets(AFTER).rows > 0


def test_the_database_refuses_every_change_of_a_closed_month(busy_march: World) -> None:
    statement = statements.close_month(month=MARCH, closed_by=busy_march.finance, now=AFTER)
    line = statement.lines.first()
    assert line is not None
    refused = (
        lambda: Statement.objects.filter(pk=statement.pk).update(digest="0"),
        lambda: Statement.objects.filter(pk=statement.pk).update(state="open"),
        lambda: Statement.objects.filter(pk=statement.pk)._raw_delete(using="default"),
        lambda: StatementLine.objects.filter(pk=line.pk).update(charged_cents=0),
        lambda: StatementLine.objects.filter(pk=line.pk)._raw_delete(using="default"),
        lambda: StatementLine.objects.bulk_create([StatementLine(**{**vars_of(line), "id": None})]),
    )
    for change in refused:
        with pytest.raises(DatabaseError), transaction.atomic():
            change()


def vars_of(line: StatementLine) -> dict[str, object]:
    return {field.attname: getattr(line, field.attname) for field in line._meta.concrete_fields}


def test_an_unfinished_month_cannot_be_closed(rates: World) -> None:
    with rejected("over"):
        statements.close_month(month=APRIL, closed_by=rates.finance, now=AFTER)


def test_a_month_can_be_closed_only_once(busy_march: World) -> None:
    statements.close_month(month=MARCH, closed_by=busy_march.finance, now=AFTER)
    with rejected("closed already"):
        statements.close_month(month=MARCH, closed_by=busy_march.finance, now=AFTER)


def test_a_month_that_is_not_fully_charged_stays_open_and_gives_the_reason(rates: World) -> None:
    charge_all_gpus(at(12, 5, day=20))
    with rejected("charged to the end"):
        statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER)
    assert Statement.objects.get(month=MARCH).state == "open"
    assert not StatementLine.objects.exclude(gpu_hours=None).exists()


def test_a_month_with_an_unpriced_gpu_stays_open(world: World) -> None:
    price(A100, "1", since=at(0, day=1))
    charge_all_gpus(AFTER)
    with rejected("every line has a price"):
        statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)


def test_an_empty_month_is_not_closed(rates: World) -> None:
    with rejected("something was charged"):
        statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER)


def test_a_month_whose_history_is_still_loading_stays_open(busy_march: World) -> None:
    ChargedUntil.objects.filter(gpu=units_of(busy_march.hosts["alpha"])[0].gpu).update(since=at(0, day=15))
    with rejected("charged from the time it was added"):
        statements.close_month(month=MARCH, closed_by=busy_march.finance, now=AFTER)


def test_a_missing_second_in_the_ledger_prevents_the_close(busy_march: World) -> None:
    done = ChargedUntil.objects.order_by("gpu").first()
    assert done is not None
    ChargedUntil.objects.filter(pk=done.pk).update(since=done.since - dt.timedelta(seconds=1))
    failing = [check["check"] for check in close_checks.close_checks(MARCH) if not check["ok"]]
    assert "every second of every GPU is in exactly one bucket" in failing
    assert any("cost of the GPUs" in check for check in failing)


@pytest.mark.parametrize("payer", ["guarantee", "use"])
def test_shared_idle_time_is_charged_in_full_and_only_to_teams(busy_march: World, payer: str) -> None:
    idle = sum(line.cost for line in statement_lines.statement_lines(MARCH) if line.bucket == "unallocated")
    assert statements.set_idle_payer(MARCH, payer)
    shared = [line for line in statement_lines.statement_lines(MARCH) if line.bucket == "unallocated"]
    assert sum(line.amount for line in shared if line.team) == idle
    assert {line.team for line in shared} <= {"Vision", "Language", "Robotics"}


def test_the_csv_contains_the_lines_of_the_statement(busy_march: World) -> None:
    rows = list(csv.DictReader(io.StringIO(statement_export.statement_csv(MARCH))))
    lines = statement_lines.statement_lines(MARCH)
    assert len(rows) == len(lines)
    assert sum(Decimal(row["amount"]) for row in rows) == sum(line.amount for line in lines)
    assert {row["currency"] for row in rows} == {"EUR"}
    assert rows[0]["used_share"] == ""  # no sample: unknown, not zero


def test_a_name_that_looks_like_a_formula_is_exported_as_text(rates: World) -> None:
    Team.objects.filter(pk=rates.vision.team.pk).update(name="=1+1")
    charge_all_gpus(at(12, 5))
    names = {row["team"] for row in csv.DictReader(io.StringIO(statement_export.statement_csv(MARCH)))}
    assert "'=1+1" in names
    assert "=1+1" not in names


def test_the_default_health_rules_are_installed(db: None) -> None:
    assert HealthRule.objects.get(code="xid:79").action == "cordon"
    assert HealthRule.objects.get(code="xid:13").action == "note"
