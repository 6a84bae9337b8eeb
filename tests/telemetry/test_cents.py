"""Test that every view of a month shows the same cents, and that corrections stand apart from its use."""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import random
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from portal import policy
from portal.models import User
from portal.reads.money import chargeback as portal_reads
from portal.reads.money import cost_totals
from portal.reads.money.exports import export_download
from scheduler.models import Team
from telemetry.audit.cents_sql import WITH_THREE_DECIMALS, WITHOUT_DECIMALS
from telemetry.audit.ledger_audit import audit_month
from telemetry.audit.sum_audit import audit_cents
from telemetry.budgets.spending import SpendScope, period_spend
from telemetry.core.amounts import round_amount
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.core.currencies import DECIMALS_BY_CURRENCY, smallest_unit
from telemetry.ledger.cents import cent_differences
from telemetry.ledger.sums import sum_differences
from telemetry.models import (
    Charge,
    ChargeCell,
    Statement,
    StatementDay,
    StatementLine,
    StatementLineDay,
    StatementLinePerson,
)
from telemetry.money import statement_export, statement_lines, statements
from telemetry.money.billing_months import next_month
from telemetry.money.charges import charge_all_gpus
from telemetry.money.close_checks import close_checks
from telemetry.reads.chargeback import CHARGE_DIMENSIONS, DRILL_DOWN, ChargeTable, charges_by
from telemetry.reads.corrections import correction_blocks
from tests.documents import table_rows
from tests.portal.rejections import rejected
from tests.seeds import seeds
from tests.telemetry.rows import (
    at,
    begin_charges_at,
    change_in_place,
    cost_centre,
    end_hold,
    hold,
    host_state,
    price,
    price_factor,
    rates,
    workload,
)
from tests.workbooks import sheets_of
from tests.world import A100, H100, World, units_of, world_fixture

pytestmark = pytest.mark.django_db
MARCH, APRIL = dt.date(2026, 3, 1), dt.date(2026, 4, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)
SUMS_CHECK = "charge lines sum to the cells and lines of the statement, and cents to its total"


def tables(month: dt.date, viewer: User) -> Iterator[ChargeTable]:
    """Yield the table of each dimension as the viewer sees it."""
    for dimension in CHARGE_DIMENSIONS:
        yield charges_by(dimension, month, policy.visible_cells(viewer))


def viewers_of(world: World) -> list[User]:
    return [world.finance, world.vision.lead, world.vision.member, world.language.lead]


def assert_one_figure(world: World, month: dt.date) -> None:
    """Assert that all views of a month agree to the cent for every role, on every path of the drill-down.

    The paths of a random month take seconds. ``assert_tables_agree`` leaves them out.
    """
    assert_tables_agree(world, month)
    for viewer in viewers_of(world):
        assert_levels_agree(month, viewer, {})


def assert_tables_agree(world: World, month: dt.date) -> None:
    """Assert that the statement, the budgets and the tables of each dimension agree to the cent."""
    entries = statement_lines.statement_lines(month)
    totals = statements.statement_totals(month)
    for viewer in viewers_of(world):
        shown = list(tables(month, viewer))
        assert len({(table.charged, table.total.charged) for table in shown}) == 1, viewer
        for table in shown:
            assert_rows_add_up(table)
    assert (
        charges_by("team", month).charged
        == Decimal(totals["charged"])
        == sum(entry.amount for entry in entries)
    )
    assert portal_reads.conservation_equation(month)["difference"] == 0
    everything = charges_by("bucket", month, charged_only=False)
    costs = sum(group.cost for group in (*everything.groups, *everything.corrections))
    assert costs == sum(entry.cost for entry in entries) == Decimal(totals["cost"])
    by_team = charges_by("team", month)
    for each in world.teams:
        rows = [row for row in (*by_team.groups, *by_team.corrections) if row.key == each.team.pk]
        charged = sum((row.charged for row in rows), Decimal(0))
        scope = SpendScope(team=each.team.pk, currency=by_team.currency)
        assert month_spend(month, "money", scope) == charged
        assert cost_totals.team_spending([each.team], month).get(each.team.pk, Decimal(0)) == charged
    assert sum_differences(month) == []
    for viewer in (*viewers_of(world), world.auditor):
        assert_files_agree(month, viewer)


def assert_files_agree(month: dt.date, viewer: User) -> None:
    """Assert that the files of a viewer sum to the charges on the viewer's pages, by currency.

    FOCUS has charge lines with six decimals. Only people who see all charges get the rounding of invoices, so
    only their sum is in cents.
    """
    table, cells = charges_by("team", month, policy.visible_cells(viewer)), policy.visible_cells(viewer)
    shown = {table.currency: table.charged} | table.charged_in_other_currencies
    assert sums_of_file(month, viewer, "statement", "amount", "currency") == nonzero(shown)
    exact: dict[str, Decimal] = {}
    for line in policy.visible_charges(viewer).filter(month=month).select_related("price"):
        currency = line.price.currency if line.price else table.currency
        exact[currency] = exact.get(currency, Decimal(0)) + line.charged
    assert sums_of_file(month, viewer, "lines", "charged", "currency") == nonzero(exact)
    assert_workbook_agrees(month, viewer, nonzero(shown), nonzero(exact))
    billed = sums_of_file(month, viewer, "focus-cost-and-usage", "BilledCost", "BillingCurrency")
    assert billed == nonzero(shown if cells is None else with_sums_of_cells(exact, month, cells)), viewer


def with_sums_of_cells(
    exact: dict[str, Decimal], month: dt.date, cells: QuerySet[ChargeCell]
) -> dict[str, Decimal]:
    """Return the sums of charge lines together with those that have no charge lines: the visible shares of
    idle time, and adjustments.
    """
    rows = cells.filter(statement__month=month).filter(
        Q(line__idle_share=True) | Q(line__bucket__in=ADJUSTMENT_BUCKETS)
    )
    sums = dict(exact)
    for currency, amount in rows.values_list("line__currency", "charged"):
        sums[currency] = sums.get(currency, Decimal(0)) + amount
    return sums


def assert_workbook_agrees(
    month: dt.date, viewer: User, shown: dict[str, Decimal], exact: dict[str, Decimal]
) -> None:
    """Assert that the sheets of a viewer's workbook sum to the viewer's pages and charge lines."""
    file = b"".join(export_download(viewer, month, {}, {"kind": "xlsx"}).parts)
    sheets = sheets_of(zipfile.ZipFile(io.BytesIO(file)))
    assert sums_of_sheet(sheets["Statement lines"], "amount") == shown
    assert sums_of_sheet(sheets["Charge lines"], "charged") == exact
    start = next(at for at, row in enumerate(sheets["Summary"]) if row.get("A") == "cost_centre")
    assert sums_of_sheet(sheets["Summary"][start:], "total") == shown


def sums_of_sheet(rows: list[dict[str, Any]], column: str) -> dict[str, Decimal]:
    """Return the sums of a column by currency, without those that are zero, and compare them with the totals
    of the sheet. The first row has the labels.
    """
    letters = {label: letter for letter, label in rows[0].items()}
    sums: dict[str, Decimal] = {}
    totals: dict[str, Decimal] = {}
    for row in rows[1:]:
        currency = row.get(letters["currency"])
        if isinstance(currency, str) and currency:
            found = totals if row.get("A") == "Total" else sums
            found[currency] = found.get(currency, Decimal(0)) + Decimal(str(row.get(letters[column], 0)))
    assert not totals or nonzero(totals) == nonzero(sums)
    return nonzero(sums)


def sums_of_file(month: dt.date, viewer: User, kind: str, column: str, currency: str) -> dict[str, Decimal]:
    """Return the sums of a column of a CSV file by currency, without those that are zero."""
    text = b"".join(export_download(viewer, month, {}, {"kind": kind}).parts).decode()
    sums: dict[str, Decimal] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row[column]:  # the last line has no amount
            sums[row[currency]] = sums.get(row[currency], Decimal(0)) + Decimal(row[column])
    return nonzero(sums)


def nonzero(sums: dict[str, Decimal]) -> dict[str, Decimal]:
    return {currency: amount for currency, amount in sums.items() if amount}


def move_cent(line: StatementLine, cell: ChargeCell, cent: Decimal) -> None:
    """Change the cents of a line, of one of its cells, and of all sums of this cell."""
    sums: tuple[Any, ...] = (
        line,
        cell,
        StatementLineDay.objects.get(line=line, day=cell.day),
        StatementLinePerson.objects.get(line=line, user=cell.user_id),
        StatementDay.objects.get(statement=line.statement, day=cell.day, currency=line.currency),
    )
    for row in sums:
        change_in_place(row, charged_cents=row.charged_cents + cent)


@pytest.mark.long
def test_the_audit_finds_a_cent_that_was_moved_between_two_lines_with_all_their_sums(
    charged_march: World,
) -> None:
    statement = Statement.objects.get(month=MARCH)
    assert list(audit_cents(MARCH)) == []
    lines = StatementLine.objects.filter(statement=statement, bucket="used", charged_cents__gt=1)
    first, second = lines.order_by("pk")[:2]
    for line, cent in ((first, Decimal("-0.01")), (second, Decimal("0.01"))):
        cell = line.cells.filter(charged_cents__gt=1).earliest("pk")
        move_cent(line, cell, cent)
    assert cent_differences(statement.pk) == [] and sum_differences(MARCH) == []
    found = {each.subject: each for each in audit_cents(MARCH)}
    assert {f"statement line {first.pk}", f"statement line {second.pk}"} <= set(found)
    moved = found[f"statement line {first.pk}"]
    assert Decimal(moved.expected) - Decimal(moved.found) == Decimal("0.01")
    assert moved.field == "charged in cents" and f"expected: {moved.expected}" in str(moved)
    assert "cents" in {each.as_json()["check"] for each in audit_month(MARCH, AFTER)}


def test_the_audit_finds_a_cent_that_was_moved_between_two_cells_of_a_line(charged_march: World) -> None:
    for line in StatementLine.objects.filter(bucket="used").order_by("pk"):
        cells = list(line.cells.filter(charged_cents__gt=1).order_by("pk")[:2])
        if len(cells) == 2:
            break
    for cell, cent in zip(cells, (Decimal("-0.01"), Decimal("0.01")), strict=True):
        change_in_place(cell, charged_cents=cell.charged_cents + cent)
    assert {each.subject for each in audit_cents(MARCH)} == {
        f"cell {cell.pk} of statement line {line.pk}" for cell in cells
    }


@pytest.mark.parametrize(
    ("column", "value"),
    [("cost_centre", "CC-x"), ("model", "x"), ("bucket", "maintenance"), ("charged_cents", Decimal("0.01"))],
)
def test_the_audit_finds_a_changed_statement_line(charged_march: World, column: str, value: Any) -> None:
    line = StatementLine.objects.filter(bucket="used", charged_cents__gt=1).earliest("pk")
    change_in_place(line, **{column: value})
    found = [str(each) for each in audit_cents(MARCH)]
    subject = f"statement line {line.pk}" if column == "charged_cents" else "no statement line"
    assert [text for text in found if text.startswith(f"{subject}: ")], found


def test_the_audit_has_the_decimals_of_each_currency_of_its_own() -> None:
    for decimals, codes in ((0, WITHOUT_DECIMALS), (3, WITH_THREE_DECIMALS)):
        assert {code for code, own in DECIMALS_BY_CURRENCY.items() if own == decimals} == set(codes.split())
    assert set(DECIMALS_BY_CURRENCY.values()) == {0, 2, 3}


def month_spend(month: dt.date, measure: str, scope: SpendScope) -> Decimal:
    return period_spend(scope, measure, month, next_month(month))


def assert_rows_add_up(table: ChargeTable) -> None:
    for row in (*table.groups, table.total, *table.corrections):
        parts = row.used + row.idle + row.unmeasured + row.reserved_unused + row.idle_share + row.adjustment
        assert row.charged == parts
        assert row.charged == round_amount(row.charged, smallest_unit(row.currency))
    assert table.total.charged == sum((group.charged for group in table.groups), Decimal(0))


def assert_levels_agree(month: dt.date, viewer: User, where: dict[str, Any]) -> None:
    """Assert on every path of the drill-down that a table sums to the row above it."""
    if len(where) == len(DRILL_DOWN):
        return
    dimension, cells = DRILL_DOWN[len(where)], policy.visible_cells(viewer)
    for row in charges_by(dimension, month, cells, **where).groups:
        path = {**where, dimension: row.key}
        for below in ("user", "model", "bucket"):
            assert charges_by(below, month, cells, **path).total.charged == row.charged
        assert_levels_agree(month, viewer, path)


def random_month(world: World, dice: random.Random, currency: str = "EUR") -> None:
    """Hold random units for random times at prices that do not divide evenly."""
    price(H100, "2.345677", f"2.{dice.randint(400_000, 999_999)}", since=at(0, day=10), currency=currency)
    price(A100, "1.000001", since=at(0, day=12), currency=currency)
    price_factor(f"0.{dice.randint(1, 9999):04}", since=at(0, day=11), workload_type="training")
    units = [*units_of(world.hosts["alpha"])[:3], *units_of(world.hosts["gamma"], "1g.5gb")[:4]]
    for unit in units:
        second = dice.randint(0, 40_000)
        for _ in range(dice.randint(1, 3)):
            start = at(9) + dt.timedelta(seconds=second)
            second += dice.randint(60, 500_000)
            team = dice.choice(world.teams)
            work = workload(world, team, owner=dice.choice([*team.members, team.lead]))
            end_code = dice.choice(["finished", "failed", "killed_at_grace", "gpu_error"])
            hold(work, unit, start, at(9) + dt.timedelta(seconds=second), end_code=end_code)
            second += dice.randint(1, 50_000)


def write_charged_march(world: World) -> World:
    """Return a world with random work in March, which is charged and open."""
    random_month(world, random.Random(5))
    charge_all_gpus(AFTER)
    return world


charged_march = world_fixture(write_charged_march, after=rates)


def test_all_views_agree_to_the_cent_for_every_role_at_every_level(rates: World) -> None:
    begin_charges_at(rates, at(0, day=31))
    price(H100, "2.345677", "2.876543", since=at(6, day=31))
    alpha = units_of(rates.hosts["alpha"])
    for unit, team, type_ in zip(alpha, rates.teams, ("training", "inference", "other"), strict=False):
        start = at(3, 7, 13, day=31)
        hold(workload(rates, team, type=type_), unit, start, at(17, 33, day=31), end_code="failed")
    charge_all_gpus(at(12, day=31))
    charge_all_gpus(AFTER)
    statements.set_idle_payer(MARCH, "use")
    assert_one_figure(rates, MARCH)
    statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER)
    assert_tables_agree(rates, MARCH)


@pytest.mark.parametrize("seed", seeds(short=0, total=4))
def test_all_views_agree_to_the_cent_for_every_role_whatever_was_charged_and_how_often(
    rates: World, seed: int
) -> None:
    dice = random.Random(seed)
    random_month(rates, dice)
    moments = sorted(at(10) + dt.timedelta(seconds=dice.randint(0, 29 * 86_400)) for _ in range(2))
    for moment in (*moments, AFTER):
        charge_all_gpus(moment)
    statements.set_idle_payer(MARCH, dice.choice(["operator", "guarantee", "use"]))
    assert_one_figure(rates, MARCH)
    statements.close_month(month=MARCH, closed_by=rates.finance, now=AFTER)
    assert_one_figure(rates, MARCH)


def test_two_projects_of_a_cost_centre_have_the_same_figure_in_every_table(world: World) -> None:
    """Each of four lines costs 1,749.625/4. Tables that round their own sums differ by a cent."""
    price(H100, "2.40", since=at(0, day=1))
    price(A100, "0", since=at(0, day=1))
    for each in world.teams:
        cost_centre(each, "CC-5200", at(0, day=1))
    price(H100, "1.749625", since=at(0, day=3))
    for unit, team in zip(units_of(world.hosts["alpha"]), [*world.teams, world.vision], strict=False):
        hold(workload(world, team), unit, at(0, day=4), at(10, 25, day=14), end_code="finished")
    charge_all_gpus(AFTER)
    figures = {
        charges_by("cost_centre", MARCH).total.charged,
        charges_by("team", MARCH, cost_centre="CC-5200").total.charged,
        charges_by("user", MARCH, cost_centre="CC-5200").total.charged,
        sum((month_spend(MARCH, "money", SpendScope(team=each.team.pk)) for each in world.teams), Decimal(0)),
        sum(entry.amount for entry in statement_lines.statement_lines(MARCH)),
    }
    assert len(figures) == 1


def test_cents_that_the_total_lacks_go_to_the_largest_remainders_and_on_a_tie_to_the_first(
    rates: World,
) -> None:
    price(H100, "0.004", since=at(0, day=1), pool=rates.shared)
    for unit, team in zip(units_of(rates.hosts["alpha"]), rates.teams, strict=False):
        hold(workload(rates, team), unit, at(9), at(10), end_code="finished")
    charge_all_gpus(at(10, 5))
    lines = StatementLine.objects.filter(pool=rates.shared, bucket="used").order_by("pk")
    # Three charges of 0.4 cents are 1.2 cents, together with the charges of the other pool.
    assert [line.charged for line in lines] == [Decimal("0.004")] * 3
    assert [line.charged_cents for line in lines] == [Decimal("0.01"), Decimal(0), Decimal(0)]


def test_charging_again_writes_no_cents_again(charged_march: World) -> None:
    before = versions()
    charge_all_gpus(AFTER + dt.timedelta(minutes=1))
    assert versions() == before


def versions() -> list[Any]:
    """Return the identity of the stored version of each statement line and cell of March."""
    with connection.cursor() as cursor:
        found = []
        for table in ("telemetry_statementline", "telemetry_chargecell"):
            cursor.execute(
                f"SELECT t.id, t.ctid::text FROM {table} t"
                " JOIN telemetry_statement s ON s.id = t.statement_id WHERE s.month = %s ORDER BY t.id",
                [MARCH],
            )
            found.append(cursor.fetchall())
    return found


def test_a_charge_that_is_reversed_in_its_month_leaves_nothing_in_its_cell(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.language), unit, at(11, 50))
    charge_all_gpus(at(12, 30))
    end_hold(allocation, at(12, 45), "killed_at_grace")
    charge_all_gpus(at(13, 10))
    used = ChargeCell.objects.get(workload=allocation.workload, line__bucket="used")
    assert (used.slot_seconds, used.charged, used.charged_cents) == (0, 0, 0)
    assert "Language" not in {group.name for group in charges_by("team", MARCH).groups}
    assert_one_figure(rates, MARCH)


def late_fact_about_march(world: World) -> None:
    """Close March. Then 98 hours of Vision on 27 to 31 March turn out to be lost with a silent host.

    In April the team is renamed and uses 1 hour.
    """
    begin_charges_at(world, at(0, day=27))
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(20, day=27), at(22, day=31), end_code="finished")
    charge_all_gpus(AFTER)
    statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)
    Team.objects.filter(pk=world.vision.team.pk).update(name="Perception")
    host_state(world.hosts["alpha"], at(22, day=27), lease="silent")
    host_state(world.hosts["alpha"], at(4, day=28))
    hour = AFTER + dt.timedelta(hours=1)
    hold(workload(world, world.vision), unit, hour, hour + dt.timedelta(hours=1), end_code="finished")
    charge_all_gpus(AFTER + dt.timedelta(hours=6))


def write_corrected_march(world: World) -> World:
    """Return a world whose closed March has a correction in April."""
    late_fact_about_march(world)
    return world


corrected_march = world_fixture(write_corrected_march, after=rates)


def test_after_a_rename_a_team_that_used_one_hour_shows_one_hour(corrected_march: World) -> None:
    table = charges_by("team", APRIL, pool=corrected_march.shared.pk)
    assert [(row.name, row.gpu_hours, row.charged) for row in table.groups] == [
        ("Perception", 1.0, Decimal("2.40"))
    ]
    assert [(row.name, row.corrected_month, row.charged) for row in table.corrections] == [
        ("Perception", MARCH, Decimal("-14.40"))
    ]
    names = {entry.team for entry in statement_lines.statement_lines(APRIL)}
    assert "Perception" in names and "Vision" not in names
    assert "Vision" in {entry.team for entry in statement_lines.statement_lines(MARCH)}
    assert [row.name for row in charges_by("team", MARCH, pool=corrected_march.shared.pk).groups] == [
        "Vision"
    ]
    assert_tables_agree(corrected_march, APRIL)


def test_the_documented_corrections_are_those_of_the_ledger(corrected_march: World) -> None:
    rows = []
    for month in (MARCH, APRIL):
        table = charges_by("team", month, project=corrected_march.vision.project.pk)
        for group in (*table.groups, *table.corrections):
            corrects = f"{group.corrected_month:%B %Y}" if group.corrected_month else ""
            hours = f"{group.gpu_hours:.0f}"
            rows.append([f"{month:%B %Y}", group.name, corrects, hours, str(group.charged)])
    assert table_rows("corrections") == rows


def test_a_correction_names_its_cost_centre_its_month_and_its_reason(corrected_march: World) -> None:
    blocks = {block.cost_centre: block for block in correction_blocks(APRIL) if block.charged}
    assert set(blocks) == {"CC-100"}
    block = blocks["CC-100"]
    assert (block.corrected_month, block.charged, block.gpu_hours) == (MARCH, Decimal("-14.40"), -6.0)
    rows = portal_reads.correction_rows(corrected_march.finance, APRIL, {})
    assert ["host alpha was silent 27 Mar 22:00 to 28 Mar 04:00 UTC"] in [row.causes for row in rows]
    others = portal_reads.correction_rows(corrected_march.language.lead, APRIL, {})
    assert [row.block.charged for row in others if row.block.charged] == []


def test_hours_of_corrections_do_not_count_as_hours_of_the_month(corrected_march: World) -> None:
    assert month_spend(APRIL, "gpu_hours", SpendScope(project=corrected_march.vision.project.pk)) == 1
    hours = statements.statement_totals(APRIL)["gpu_hours"]
    assert Decimal(hours["used"]) == 1
    text = statement_export.statement_csv(APRIL)
    assert any(",2026-03,-6.000000," in row for row in text.splitlines())


@pytest.mark.long
def test_shared_idle_time_is_in_the_statement_and_on_the_pages(charged_march: World) -> None:
    before = charges_by("team", MARCH).charged
    idle = statements.statement_totals(MARCH)
    statements.set_idle_payer(MARCH, "use")
    after = charges_by("team", MARCH)
    shared = sum(Decimal(pool["idle"]) for pool in idle["pools"])
    assert sum(Decimal(pool["idle"]) for pool in statements.statement_totals(MARCH)["pools"]) == 0
    assert abs(after.charged - before - shared) <= Decimal("0.01")  # the total is rounded once
    assert after.total.idle_share > 0
    assert_tables_agree(charged_march, MARCH)
    statements.set_idle_payer(MARCH, "operator")
    assert charges_by("team", MARCH).charged == before
    assert not StatementLine.objects.filter(idle_share=True).exists()


def test_a_line_that_was_inserted_past_the_sums_keeps_the_month_open_and_is_named(
    charged_march: World,
) -> None:
    """Insert a reversal and the same line for another team. Both agree with every other check."""
    line = Charge.objects.filter(bucket="used", reversal=False, corrections=None).first()
    assert line is not None
    moved = Charge.objects.get(pk=line.pk)
    reversal = Charge.objects.get(pk=line.pk)
    reversal.pk, reversal.corrects_id, reversal.reversal = None, line.pk, True
    reversal.slots, reversal.slot_seconds = -line.slots, -line.slot_seconds
    reversal.cost, reversal.charged = -line.cost, -line.charged
    other = next(each for each in charged_march.teams if each.team.pk != line.team_id)
    moved.pk, moved.corrects_id = None, line.pk
    moved.team, moved.team_name, moved.project = other.team, other.team.name, other.project
    Charge.objects.bulk_create([reversal, moved])
    failing = [check for check in close_checks(MARCH) if not check["ok"]]
    assert [check["check"] for check in failing] == [SUMS_CHECK]
    assert f"team {other.team.pk}" in " ".join(failing[0]["figures"]["differences"])
    with rejected("charge lines sum to the cells"):
        statements.close_month(month=MARCH, closed_by=charged_march.finance, now=AFTER)


@pytest.mark.parametrize("table", ["telemetry_statementline", "telemetry_chargecell"])
def test_a_changed_sum_or_a_changed_cent_keeps_the_month_open(charged_march: World, table: str) -> None:
    for column in ("charged", "charged_cents"):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {table} SET {column} = {column} + 0.01 WHERE id = (SELECT min(id) FROM {table})"
            )
            failing = [check["check"] for check in close_checks(MARCH) if not check["ok"]]
            assert failing == [SUMS_CHECK]
            transaction.set_rollback(True)
    assert all(check["ok"] for check in close_checks(MARCH))


def test_the_pages_of_a_closed_month_keep_its_names_and_cents(charged_march: World) -> None:
    statements.close_month(month=MARCH, closed_by=charged_march.finance, now=AFTER)
    shown = [charges_by(dimension, MARCH) for dimension in CHARGE_DIMENSIONS]
    for each in charged_march.teams:
        Team.objects.filter(pk=each.team.pk).update(name=f"{each.team.name} renamed")
        User.objects.filter(pk=each.member.pk).update(username=f"{each.member.username}-renamed")
        cost_centre(each, "CC-999", at(0, day=15))
    price(H100, "99", since=AFTER + dt.timedelta(hours=2))
    charge_all_gpus(AFTER + dt.timedelta(hours=8))
    assert [charges_by(dimension, MARCH) for dimension in CHARGE_DIMENSIONS] == shown
    assert Statement.objects.get(month=MARCH).currency == "EUR"


def test_a_table_needs_at_most_three_queries_at_every_level(
    charged_march: World, django_assert_max_num_queries: Any
) -> None:
    where: dict[str, Any] = {}
    for dimension in DRILL_DOWN:
        with django_assert_max_num_queries(1 if dimension == "type" else 3):
            table = charges_by(dimension, MARCH, **where)
        where[dimension] = table.groups[0].key


def test_statement_lines_are_in_the_same_order_each_time(charged_march: World) -> None:
    entries = statement_lines.statement_lines(MARCH)
    keys = [(entry.pool, entry.cost_centre, entry.team, entry.project) for entry in entries]
    assert keys == sorted(keys)
    assert all(first != second for first, second in itertools.pairwise(entries))
