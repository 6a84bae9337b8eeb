"""Test daily sums: those of a month equal its cells and its statement lines, whether it is open or closed."""

from __future__ import annotations

import datetime as dt
import importlib
import random
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from portal import policy
from telemetry.core.amounts import ZERO
from telemetry.ledger.cents import cent_differences
from telemetry.models import ChargeCell, Statement, StatementDay, StatementLine, StatementLineDay
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.chargeback import CHARGE_DIMENSIONS, charges_by
from telemetry.reads.daily_spend import daily_spend
from tests.telemetry.rows import rates
from tests.telemetry.test_cents import random_month
from tests.world import World, world_fixture

pytestmark = pytest.mark.django_db
MARCH, APRIL = dt.date(2026, 3, 1), dt.date(2026, 4, 1)
MIDDLE = dt.datetime(2026, 3, 14, 5, tzinfo=dt.UTC)
AFTER = dt.datetime(2026, 4, 1, 2, tzinfo=dt.UTC)
migration = importlib.import_module("telemetry.migrations.0017_statement_line_days")


def day_rows() -> list[list[Any]]:
    """Return the daily sums of all statement lines and of all statements."""
    columns = ("statement", "day", "slot_seconds", "charged_cents")
    return [
        list(StatementLineDay.objects.order_by("line", "day").values_list(*columns, "line")),
        list(StatementDay.objects.order_by("statement", "day", "currency").values_list(*columns, "currency")),
    ]


def write_march(world: World) -> World:
    """Return a world that was charged twice, with idle time that teams pay."""
    random_month(world, random.Random(3))
    charge_all_gpus(MIDDLE)
    statements.set_idle_payer(MARCH, "use")
    charge_all_gpus(AFTER)
    return world


march = world_fixture(write_march, after=rates)


def test_the_daily_charges_of_each_dimension_sum_to_the_charges_of_its_table_for_every_role(
    march: World,
) -> None:
    for viewer in (march.finance, march.vision.lead, march.vision.member):
        cells = policy.visible_cells(viewer)
        for dimension in CHARGE_DIMENSIONS:
            sums: dict[Any, Decimal] = {}
            for row in daily_spend([MARCH, APRIL], cells, dimension=dimension):
                if row.month == MARCH:
                    sums[row.key] = sums.get(row.key, ZERO) + row.charged
            table = charges_by(dimension, MARCH, cells)
            assert {key: charged for key, charged in sums.items() if charged} == {
                group.key: group.charged for group in table.groups if group.charged
            }
        hours = sum(row.slot_seconds for row in daily_spend([MARCH], cells)) / 3_024_000
        assert hours == pytest.approx(charges_by("team", MARCH, cells).total.gpu_hours)


def test_the_charge_of_a_team_on_a_day_is_the_sum_of_its_cells_of_that_day(march: World) -> None:
    [day] = [row for row in daily_spend([MARCH], team=march.vision.team.pk) if row.day == dt.date(2026, 3, 3)]
    cells = ChargeCell.objects.filter(line__team=march.vision.team, day=day.day)
    assert day.charged == sum((cell.charged_cents for cell in cells), ZERO) > 0


def test_an_unknown_dimension_is_refused(rates: World) -> None:
    with pytest.raises(ValueError, match="dimension: 'colour' is not one of cost_centre"):
        daily_spend([MARCH], dimension="colour")


def test_the_close_finds_a_daily_charge_that_differs_from_its_statement_line(march: World) -> None:
    statement = Statement.objects.get(month=MARCH)
    assert cent_differences(statement.pk) == []
    day = StatementLineDay.objects.filter(statement=statement, charged_cents__gt=0).first()
    assert day is not None
    StatementLineDay.objects.filter(pk=day.pk).update(charged_cents=day.charged_cents + 1)
    [of_line, of_day] = cent_differences(statement.pk)
    assert of_line.startswith(f"line {day.line_id}: charged ")
    assert of_day.startswith(f"day {day.day} in EUR: charged ")


def test_the_daily_charges_of_a_closed_month_never_change(march: World) -> None:
    statements.close_month(month=MARCH, closed_by=march.finance, now=AFTER)
    day = StatementLineDay.objects.filter(statement__month=MARCH).first()
    assert day is not None
    [before, totals] = day_rows()
    total = StatementDay.objects.filter(statement=day.statement)
    line = StatementLine.objects.create(statement=statements.get_or_create_statement(APRIL))
    days = StatementLineDay.objects.filter(statement=day.statement)
    new = {"day": APRIL, "slot_seconds": 0, "charged_cents": 0}
    moved = StatementLineDay.objects.create(line=line, statement=line.statement, **new)
    for change in (
        lambda: days.update(charged_cents=0),
        lambda: days.delete(),
        lambda: days.create(line=day.line, statement=day.statement, **new),
        lambda: StatementLineDay.objects.filter(pk=moved.pk).update(statement=day.statement),
        lambda: total.update(charged_cents=0),
        lambda: total.delete(),
        lambda: total.create(statement=day.statement, currency="JPY", **new),
    ):
        with pytest.raises(DatabaseError, match="closed, nothing changes its days"), transaction.atomic():
            change()
    moved.delete()
    assert day_rows() == [before, totals]


def test_the_migration_computes_the_daily_charges_of_open_and_closed_months(march: World) -> None:
    before = day_rows()
    assert all(before)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM telemetry_statementlineday")
        cursor.execute("DELETE FROM telemetry_statementday")
        cursor.execute(migration.EARLIER_DAYS)
    assert day_rows() == before
