"""Test the sums of statement lines per person.

A cell is the part of a line that one person, workload and day caused. The sum of a person equals the sum of
the person's cells. The sums of a closed month cannot be changed.
"""

from __future__ import annotations

import datetime as dt
import importlib
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Max, Sum

from telemetry.ledger.cents import cent_differences
from telemetry.models import ChargeCell, Statement, StatementLine, StatementLinePerson
from telemetry.money import statements
from telemetry.reads.chargeback import charges_by
from tests.telemetry.rows import rates
from tests.telemetry.test_daily_spend import march
from tests.world import World

__all__ = ["march", "rates"]
pytestmark = pytest.mark.django_db
MARCH, APRIL = dt.date(2026, 3, 1), dt.date(2026, 4, 1)
AFTER = dt.datetime(2026, 4, 1, 2, tzinfo=dt.UTC)
SUMS = ("slot_seconds", "covered_slot_seconds", "cost_cents", "charged_cents", "used_cents", "idle_cents")
KEYS = ("line", "statement", "user")
migration = importlib.import_module("telemetry.migrations.0028_statement_line_people")


def people_rows() -> list[Any]:
    return list(StatementLinePerson.objects.order_by("line", "user").values_list(*KEYS, "user_name", *SUMS))


def test_the_charge_of_each_person_on_a_line_is_the_sum_of_the_persons_cells(march: World) -> None:
    cells = ChargeCell.objects.order_by().values_list(*KEYS).annotate(Max("user_name"), *map(Sum, SUMS))
    assert people_rows() == list(cells.order_by("line", "user"))
    of_cells = charges_by("user", MARCH, ChargeCell.objects.all())
    assert charges_by("user", MARCH) == of_cells and len(of_cells.groups) > 1
    statements.close_month(month=MARCH, closed_by=march.finance, now=AFTER)
    assert charges_by("user", MARCH) == of_cells


def test_the_close_finds_charges_of_people_that_differ_from_their_statement_line(march: World) -> None:
    statement = Statement.objects.get(month=MARCH)
    assert cent_differences(statement.pk) == []
    person = StatementLinePerson.objects.filter(statement=statement, charged_cents__gt=0).first()
    assert person is not None
    StatementLinePerson.objects.filter(pk=person.pk).update(charged_cents=person.charged_cents + 1)
    [found] = cent_differences(statement.pk)
    assert found.startswith(f"line {person.line_id}: charged ") and " and people " in found


def test_the_charges_of_people_of_a_closed_month_never_change(march: World) -> None:
    statements.close_month(month=MARCH, closed_by=march.finance, now=AFTER)
    before = people_rows()
    people = StatementLinePerson.objects.filter(statement__month=MARCH)
    person = people.earliest("pk")
    line = StatementLine.objects.create(statement=statements.get_or_create_statement(APRIL))
    none: dict[str, Any] = {
        "slot_seconds": 0,
        "cost_cents": 0,
        "charged_cents": 0,
        "used_cents": 0,
        "idle_cents": 0,
    }
    none["user"] = person.user
    moved = StatementLinePerson.objects.create(line=line, statement=line.statement, **none)
    for change in (
        lambda: people.update(charged_cents=0),
        lambda: people.delete(),
        lambda: people.create(line=line, statement=person.statement, **{**none, "user": march.operator}),
        lambda: StatementLinePerson.objects.filter(pk=moved.pk).update(statement=person.statement),
    ):
        with pytest.raises(DatabaseError, match="closed, nothing changes the sums"), transaction.atomic():
            change()
    moved.delete()
    assert people_rows() == before


def test_the_migration_computes_the_charges_of_people_of_open_and_closed_months(march: World) -> None:
    before = people_rows()
    assert before
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM telemetry_statementlineperson")
        cursor.execute(migration.EARLIER_PEOPLE)
    assert people_rows() == before
