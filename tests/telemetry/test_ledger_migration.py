"""Test that the migration fills lines and cells as charging does, and that closed months keep their files."""

from __future__ import annotations

import datetime as dt
import importlib
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F, Sum

from scheduler.models import Pool, Team
from telemetry.models import Charge, ChargeCell, Statement, StatementLine
from telemetry.money import statement_export, statements
from telemetry.money.charges import charge_all_gpus
from telemetry.reads.chargeback import CHARGE_DIMENSIONS, charges_by
from tests.telemetry.test_cents import charged_march
from tests.world import World

__all__ = ["charged_march"]
pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)
migration = importlib.import_module("telemetry.migrations.0009_sums_of_earlier_charges")
later_migration = importlib.import_module("telemetry.migrations.0028_statement_line_people")
GUARDED_TABLES = (
    "telemetry_statement",
    "telemetry_statementline",
    "telemetry_statementlineday",
    "telemetry_statementlineperson",
    "telemetry_statementday",
    "telemetry_chargecell",
)
SUM_COLUMNS = ("slot_seconds", "cost", "charged", "cost_cents", "charged_cents", "used_cents", "idle_cents")


# The migration does not know columns that later migrations added.
LATER_COLUMNS = """
ALTER TABLE telemetry_statementline ALTER COLUMN currency SET DEFAULT 'EUR',
    ALTER COLUMN showback SET DEFAULT false
"""


def execute(*queries: str) -> None:
    """Run queries as the owner of the tables, as a migration does."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for query in queries:
            cursor.execute(query)


def without_triggers(*queries: str) -> None:
    execute(
        *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in GUARDED_TABLES),
        *queries,
        "SET CONSTRAINTS ALL IMMEDIATE",
        *(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in GUARDED_TABLES),
    )


def contents() -> list[Any]:
    """Return the sums of each line and cell of March, without their ids."""
    lines = StatementLine.objects.filter(statement__month=MARCH, idle_share=False)
    key = ("pool", "cost_centre", "team", "project", "workload_type", "model", "bucket", "corrected_month")
    cells = ChargeCell.objects.filter(statement__month=MARCH, line__idle_share=False)
    inner = [f"line__{name}" for name in key]
    return [
        sorted(map(str, lines.values_list(*key, *SUM_COLUMNS))),
        sorted(map(str, cells.values_list(*inner, "user", "workload", "day", *SUM_COLUMNS))),
    ]


def test_the_migration_of_an_open_month_gives_the_sums_that_charging_keeps(charged_march: World) -> None:
    before = contents()
    execute(
        "DELETE FROM telemetry_statementlineday",
        "DELETE FROM telemetry_statementlineperson",
        "DELETE FROM telemetry_chargecell",
        "DELETE FROM telemetry_statementline",
    )
    execute(LATER_COLUMNS, migration.OPEN_MONTHS, migration.LINE_CENTS, migration.CELL_CENTS)
    charge_all_gpus(AFTER + dt.timedelta(minutes=1))
    after = contents()
    # Of equal remainders, the one with the lowest id is rounded up. The migration assigns other ids.
    assert [len(rows) for rows in after] == [len(rows) for rows in before]
    assert sums() == sums(StatementLine.objects.filter(statement__month=MARCH))
    assert sums()["charged_cents"] == charges_by("team", MARCH).charged
    exact = Charge.objects.filter(month=MARCH).aggregate(charged=Sum("charged"), cost=Sum("cost"))
    assert (sums()["charged"], sums()["cost"]) == (exact["charged"], exact["cost"])


def sums(rows: Any = None) -> dict[str, Any]:
    found = ChargeCell.objects.filter(statement__month=MARCH) if rows is None else rows
    totals: dict[str, Any] = found.aggregate(**{name: Sum(name) for name in SUM_COLUMNS})
    return totals


@pytest.fixture
def closed_by_version_0_1(charged_march: World) -> World:
    """Return a world whose March was closed by version 0.1. A team and a pool were renamed later."""
    statements.set_idle_payer(MARCH, "use")
    statements.close_month(month=MARCH, closed_by=charged_march.finance, now=AFTER)
    without_triggers(
        "DELETE FROM telemetry_chargecell WHERE statement_id IN"
        " (SELECT id FROM telemetry_statement WHERE state = 'closed')",
        "DELETE FROM telemetry_statementlineday",
        "DELETE FROM telemetry_statementlineperson",
        "DELETE FROM telemetry_statementline WHERE shared_out",
        "UPDATE telemetry_statementline SET pool_id = NULL, team_id = NULL, project_id = NULL,"
        " idle_share = false, slot_seconds = 0, cost = 0, charged = 0 WHERE gpu_hours IS NOT NULL",
        "UPDATE telemetry_statement SET digest_format = 1 WHERE state = 'closed'",
    )
    Team.objects.filter(pk=charged_march.vision.team.pk).update(name="Renamed team")
    Pool.objects.filter(pk=charged_march.shared.pk).update(name="Renamed pool")
    return charged_march


def test_a_month_closed_by_version_0_1_keeps_its_csv_and_its_pages_show_the_same_cents(
    closed_by_version_0_1: World,
) -> None:
    before = statement_export.statement_csv(MARCH)
    sums = (migration.CLOSED_MONTHS, migration.LINE_CENTS, migration.CELL_CENTS)
    without_triggers(*sums, later_migration.EARLIER_PEOPLE)
    assert statement_export.statement_csv(MARCH) == before
    assert "corrected_month" not in before.splitlines()[0]
    charged = sum(
        (line.charged_cents for line in StatementLine.objects.filter(statement__month=MARCH)), Decimal(0)
    )
    assert {charges_by(dimension, MARCH).charged for dimension in CHARGE_DIMENSIONS} == {charged}
    by_cell = ChargeCell.objects.values("line").annotate(cents=Sum("charged_cents"), cost=Sum("cost_cents"))
    assert not by_cell.exclude(cents=F("line__charged_cents"), cost=F("line__cost_cents")).exists()
    assert "Vision" in {row.name for row in charges_by("team", MARCH).groups}
    assert "Shared" in {row.name for row in charges_by("pool", MARCH).groups}
    assert (
        not StatementLine.objects.filter(statement__month=MARCH, pool=None).exclude(idle_share=True).exists()
    )


def test_the_database_refuses_new_and_changed_cells_of_a_closed_month(charged_march: World) -> None:
    statements.close_month(month=MARCH, closed_by=charged_march.finance, now=AFTER)
    cell = ChargeCell.objects.filter(statement__month=MARCH).first()
    assert cell is not None
    copied = ChargeCell(line=cell.line, statement=cell.statement, day=dt.date(2027, 3, 30))
    statements.create_missing_statements({dt.date(2026, 4, 1)})
    april = Statement.objects.get(month=dt.date(2026, 4, 1))
    moved = ChargeCell.objects.create(line=cell.line, statement=april, day=dt.date(2027, 3, 29))
    for change in (
        lambda: ChargeCell.objects.filter(pk=cell.pk).update(charged_cents=0),
        lambda: ChargeCell.objects.filter(pk=cell.pk)._raw_delete(using="default"),
        lambda: ChargeCell.objects.bulk_create([copied]),
        lambda: ChargeCell.objects.filter(pk=moved.pk).update(statement=cell.statement),
        lambda: StatementLine.objects.create(statement=Statement.objects.get(month=MARCH), bucket="used"),
    ):
        with pytest.raises(DatabaseError, match="it is closed"), transaction.atomic():
            change()
