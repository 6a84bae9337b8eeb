"""Test the workbook of a month: numbers, texts, formulas with their stored results, and a million lines."""

from __future__ import annotations

import io
import re
import zipfile
from datetime import date
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree

import pytest

from portal.models import User
from portal.reads.money.exports import export_download
from portal.services.money.billing_modes import set_billing_mode
from scheduler.models import Project, Team, Workload
from telemetry.exports import workbook
from telemetry.models import StatementLine
from telemetry.reads.chargeback import charges_by
from tests.portal.charged_january import charged
from tests.workbooks import NAMESPACE, sheets_of
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = date(2026, 1, 1)
ATTACKS = (
    "=cmd|' /C calc'!A0",
    "@SUM(A1)",
    "+1",
    "-1",
    "\u202egnp.exe",
    "🚀 日本 עברית",
    "<r><t>bold</t></r>",
    "<r>&</r>",
    "x" * 80,
    "http://example.org",
    "_x0041_",
    "12.50",
)


def workbook_of(viewer: User, where: dict[str, Any] | None = None) -> zipfile.ZipFile:
    parts = export_download(viewer, JANUARY, where or {}, {"kind": "xlsx"}).parts
    return zipfile.ZipFile(io.BytesIO(b"".join(parts)))


def formulas_of(book: zipfile.ZipFile) -> list[str]:
    found: list[str] = []
    for name in book.namelist():
        if name.startswith("xl/worksheets/"):
            tree = ElementTree.fromstring(book.read(name))
            found += [formula.text or "" for formula in tree.iterfind(".//s:f", NAMESPACE)]
    return found


def test_the_summary_has_the_total_of_each_cost_centre_as_the_page_shows_it(
    world: World, charged: Workload
) -> None:
    rows = sheets_of(workbook_of(world.finance))["Summary"]
    shown = {row["A"]: Decimal(str(row["E"])) for row in rows if "E" in row and row["E"] != "total"}
    table = charges_by("cost_centre", JANUARY)
    assert shown.pop("Total") == table.charged
    assert shown == {group.key: group.charged for group in table.groups}


def test_the_summary_names_the_part_that_is_not_invoiced(world: World, charged: Workload) -> None:
    set_billing_mode(
        actor=world.finance, team=world.vision.team, mode="showback", first_month=JANUARY, now=world.now
    )
    book = workbook_of(world.finance)
    rows = {row["A"]: row for row in sheets_of(book)["Summary"] if "G" in row and row["G"] != "not_invoiced"}
    assert (rows["CC-vision"]["E"], rows["CC-vision"]["G"]) == (100, 100)
    shown = sum(
        line.charged_cents for line in StatementLine.objects.filter(showback=True, statement__month=JANUARY)
    )
    assert rows["Total"]["G"] == float(shown) > 100  # and the dedicated pool of the team
    assert [row["G"] for name, row in rows.items() if name not in ("CC-vision", "CC-static", "Total")] == [
        0 for name in rows if name not in ("CC-vision", "CC-static", "Total")
    ]
    assert any('="showback")' in formula for formula in formulas_of(book))


def test_totals_are_formulas_over_the_statement_lines(world: World, charged: Workload) -> None:
    formulas = formulas_of(workbook_of(world.finance))
    assert any(text.startswith("SUMPRODUCT(EXACT('Statement lines'!$A$2:") for text in formulas)
    assert all(re.match(r"(SUM|SUMPRODUCT)\(|=?[A-Z]+\d+[+-][A-Z]+\d+|Summary!", text) for text in formulas)


def test_the_charge_lines_are_numbers_and_sum_to_the_statement(world: World, charged: Workload) -> None:
    sheets = sheets_of(workbook_of(world.people["member"]))
    head, *lines = sheets["Charge lines"]
    column = next(letter for letter, label in head.items() if label == "charged")
    assert sum(Decimal(str(line[column])) for line in lines) == 100
    assert "cost" not in head.values()
    User.objects.filter(pk=charged.owner_id).update(operator=True)
    operator = sheets_of(workbook_of(User.objects.get(pk=charged.owner_id)))
    assert "cost" not in [*operator["Charge lines"][0].values(), *operator["Statement lines"][0].values()]


def test_names_are_text_in_every_sheet_and_leave_the_file_valid(world: World, charged: Workload) -> None:
    lines = list(StatementLine.objects.filter(bucket="used"))
    for name in ATTACKS:
        Team.with_removed.filter(pk=world.vision.team.pk).update(name=name)
        Project.objects.filter(pk=world.vision.project.pk).update(name=name)
        book = workbook_of(world.finance, {"team": world.vision.team.pk})
        rows = sheets_of(book)["Statement lines"]
        shown = {row["C"] for row in rows if row.get("G") == "used"}
        assert shown == {f"'{name}" if name.startswith("<r>") else name.replace("_x0041_", "_x005F_x0041_")}
        assert not any(name in formula for formula in formulas_of(book))
    assert lines


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("day", date(2026, 1, 4), "2026-01-04"),
        ("corrected_month", None, "none"),
        ("corrected_month", "any", "any"),
        ("corrected_month", date(2025, 12, 1), "2025-12"),
        ("bucket", ("reserved_unused", "used"), "reserved_unused,used"),
        ("bucket", "used", "used"),
        ("pool", None, ""),
    ],
)
def test_the_summary_names_each_filter_as_the_address_does(
    world: World, charged: Workload, name: str, value: Any, text: str
) -> None:
    sheets = sheets_of(workbook_of(world.finance, {name: value}))
    assert {"A": name, "B": text} in sheets["Summary"]
    expected = charges_by("team", JANUARY, **{name: value}).charged
    checks = {row["A"]: row["B"] for row in sheets["Checks"]}
    assert Decimal(str(checks["Statement lines, EUR"])) == expected


def test_a_code_that_looks_like_a_condition_gets_its_own_total(world: World, charged: Workload) -> None:
    StatementLine.objects.filter(cost_centre="CC-vision").update(cost_centre="<5")
    rows = sheets_of(workbook_of(world.finance))["Summary"]
    assert next(row["E"] for row in rows if row.get("A") == "<5") == 100


def test_more_lines_than_a_sheet_can_have_continue_on_the_next(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sheets_of(workbook_of(world.people["lead"]))["Charge lines"]
    monkeypatch.setattr(workbook, "MAX_SHEET_LINES", 3)
    sheets = sheets_of(workbook_of(world.people["lead"]))
    parts = [rows[1:] for name, rows in sheets.items() if name.startswith("Charge lines")]
    assert len(parts) > 1 and all(len(part) <= 3 for part in parts)
    assert [row for part in parts for row in part] == whole[1:]


def test_a_workbook_of_an_open_month_says_that_it_is_provisional(world: World, charged: Workload) -> None:
    rows = sheets_of(workbook_of(world.finance))["Summary"]
    assert {"A": "State", "B": "provisional"} in rows
    assert b"provisional" in workbook_of(world.finance).read("docProps/core.xml")
