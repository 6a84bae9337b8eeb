"""Test the statements of cost centres as PDF: their sums, their texts, and their bytes."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
import typst
from django.test import Client
from django.urls import reverse

from portal.models import User
from portal.reads.money.exports import document_texts, export_download
from portal.services.money import months
from scheduler.models import Project, Workload
from telemetry.exports.documents.statement_pdf import TEMPLATE, document_data, set_document, statement_data
from telemetry.models import CostCentreStatement, Statement
from telemetry.reads import statement_document as reads
from telemetry.reads.statement_document import DocumentRow, StatementDocument
from tests.portal.charged_january import MONTH, charged
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = date(2026, 1, 1)
AFTER = datetime(2026, 2, 10, tzinfo=UTC)
ROW = DocumentRow(
    project="MRI",
    person="imaging-1",
    workload="fit",
    workloads=1,
    workload_type="training",
    part="used",
    model="H100-80GB",
    corrected_month=None,
    gpu_hours=Decimal("1.500"),
    price=Decimal("2.350000"),
    amount=Decimal("3.53"),
)
ATTACKS = (
    "#panic()",
    '#read("/etc/passwd")',
    "*bold* _x_ $x^2$ `raw` \\",
    "@missing <label> #import",
    "=cmd|' /C calc'!A0",
    "\u202egnp.exe \u2066x",
    "two\nlines\tand\0",
    "🚀 日本 עברית",
    "x" * 80,
    "]} #{",
)


def document_of(rows: list[DocumentRow], closed: bool = True) -> StatementDocument:
    """Return a document that is not stored."""
    statement = Statement(
        month=JANUARY,
        state="closed" if closed else "open",
        closed_at=AFTER if closed else None,
        digest="ab" * 32,
        checks=[{"check": "every line has a price", "ok": True, "figures": {}}],
    )
    total = sum((row.amount for row in rows), Decimal(0))
    row = CostCentreStatement(
        statement=statement,
        cost_centre="CC-1",
        currency="EUR",
        number="2026-01/CC-1/1",
        issuer=ATTACKS[0],
        name=ATTACKS[1],
        postal_address="\n".join(ATTACKS),
        due_on=date(2026, 3, 1),
        total=total,
    )
    return StatementDocument(row, tuple(rows), (), (ATTACKS[2],), (), None)


def pdf_of(document: StatementDocument, decimals: int) -> bytes:
    return set_document(document_data(document, decimals, document_texts()))


def query(document: StatementDocument, label: str) -> list[dict[str, Any]]:
    """Return the values that the template marks with a label."""
    data = json.dumps(statement_data(document, 2, document_texts()))
    compiler = typst.Compiler(str(TEMPLATE), ignore_system_fonts=True, sys_inputs={"data": data})
    return [entry["value"] for entry in json.loads(compiler.query(f"<{label}>"))]


def download(viewer: User, kind: str, **where: Any) -> bytes:
    return b"".join(export_download(viewer, JANUARY, where, {"kind": kind}).parts)


def test_no_name_is_read_as_markup() -> None:
    rows = [replace(ROW, project=name, person=name, workload=name, model=name) for name in ATTACKS]
    file = pdf_of(document_of(rows), 2)
    assert file.startswith(b"%PDF-") and file.rstrip().endswith(b"%%EOF")
    [first, *_] = statement_data(document_of(rows), 2, document_texts())["lines"]
    assert first["work"] == "#panic()"
    assert len(query(document_of(rows), "charged-line")) == len(ATTACKS)


def test_a_name_has_one_line_and_no_bidi_control_characters_and_its_long_words_can_be_broken() -> None:
    rows = [replace(ROW, workload=name) for name in ATTACKS]
    shown = [line["work"] for line in statement_data(document_of(rows), 2, document_texts())["lines"]]
    assert shown[5:7] == ["gnp.exe x", "two lines and"]
    assert shown[8].count("\u200b") == 4 and shown[8].replace("\u200b", "") == "x" * 80


def test_each_page_ends_with_a_subtotal_with_which_the_next_page_begins() -> None:
    rows = [replace(ROW, project=f"p{n // 7}", amount=Decimal(n) / 100, workload=f"w{n}") for n in range(100)]
    carried = query(document_of(rows), "carried")
    brought = query(document_of(rows), "brought")
    assert len(carried) >= 2 and carried == brought
    for sums in carried:
        lines = rows[: sums["number"]]
        assert Decimal(sums["sum_amount"].replace(",", "")) == sum(row.amount for row in lines)
        assert Decimal(sums["sum_hours"].replace(",", "")) == sum(row.gpu_hours for row in lines)


def test_the_same_document_has_the_same_bytes_and_an_open_month_is_marked() -> None:
    closed, provisional = document_of([ROW]), document_of([ROW], closed=False)
    assert pdf_of(closed, 2) == pdf_of(closed, 2)
    data = statement_data(provisional, 2, document_texts())
    assert data["provisional"] and not data["digest"] and not data["signatures"]
    assert pdf_of(provisional, 2) != pdf_of(closed, 2)


@pytest.mark.parametrize(
    ("decimals", "amount", "shown"),
    [(0, "-1234567", "\u22121,234,567"), (2, "3.5", "3.50"), (3, "0.001", "0.001")],
)
def test_amounts_have_the_decimals_of_the_currency(decimals: int, amount: str, shown: str) -> None:
    document = document_of([replace(ROW, amount=Decimal(amount))])
    data = statement_data(document, decimals, document_texts())
    assert data["total"] == data["lines"][0]["amount"] == shown
    assert pdf_of(document, decimals)


def test_a_statement_with_many_workloads_has_the_same_sums_in_fewer_rows(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = CostCentreStatement(
        statement=Statement.objects.get(month=JANUARY),
        cost_centre="CC-vision",
        currency="EUR",
        total=Decimal(100),
    )
    whole = reads.statement_document(row)
    monkeypatch.setattr(reads, "MAX_GROUPS", 0)
    short = reads.statement_document(row)
    assert [each.workloads for each in short.rows] == [1] and len(whole.rows) == 1
    assert (short.charged, short.rows[0].gpu_hours) == (whole.charged, whole.rows[0].gpu_hours)
    several = replace(short.rows[0], workload="", workloads=38)
    assert document_texts().work(several) == "38 workloads"


def test_the_archive_has_the_statement_of_each_cost_centre(world: World, charged: Workload) -> None:
    for state in ("open", "closed"):
        if state == "closed":
            months.close_month(actor=world.finance, month=JANUARY, now=AFTER)
        archive = zipfile.ZipFile(io.BytesIO(download(world.finance, "pdf-zip")))
        number = "1" if state == "closed" else "provisional"
        names = [f"2026-01_CC-{code}_{number}.pdf" for code in ("static", "vision")]
        assert archive.namelist() == names and archive.testzip() is None
        for name, code in zip(names, ("CC-static", "CC-vision"), strict=True):
            assert archive.read(name) == download(world.finance, "pdf", cost_centre=code)


def test_a_statement_of_an_open_month_has_the_present_names_and_charges(
    world: World, charged: Workload
) -> None:
    Project.objects.filter(pk=world.vision.project.pk).update(name="Renamed project")
    statement = Statement.objects.get(month=JANUARY)
    row = CostCentreStatement(
        statement=statement, cost_centre="CC-vision", currency="EUR", total=Decimal(100)
    )
    document = reads.statement_document(row)
    assert document.charged == 100 and {each.project for each in document.rows} == {"Renamed project"}
    assert document.teams == (world.vision.team.name,)


@pytest.mark.parametrize(
    ("role", "kind", "where", "status"),
    [
        ("lead", "pdf-zip", {}, 403),
        ("lead", "pdf", {"cost_centre": "CC-vision"}, 403),
        ("auditor", "pdf", {"cost_centre": "CC-vision"}, 200),
        ("finance", "pdf", {}, 404),
        ("finance", "pdf", {"cost_centre": "CC-language"}, 404),  # not charged in January
        ("finance", "pdf", {"cost_centre": "CC-vision", "type": "training"}, 404),
        ("finance", "pdf-zip", {"cost_centre": "CC-vision"}, 404),
    ],
)
def test_an_export_of_statements_needs_the_right_to_see_all_charges_and_accepts_no_other_filter(
    world: World, charged: Workload, role: str, kind: str, where: dict[str, str], status: int
) -> None:
    client = Client()
    client.force_login(world.people[role])
    answer = client.get(reverse("export", args=[MONTH]), {"kind": kind, **where})
    assert answer.status_code == status
