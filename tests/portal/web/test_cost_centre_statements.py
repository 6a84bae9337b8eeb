"""Test the pages, the API and the command line of the statements of cost centres."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, Organisation, User
from portal.reads.money.exports import document_texts
from portal.services.money import billing_settings, months
from portal.web.money.closing.document_sheets import FIRST_SHEET_ROWS, SHEET_ROWS, make_sheets
from telemetry.exports.documents.statement_pdf import statement_data
from telemetry.models import CostCentreStatement
from telemetry.money.charges import charge_all_gpus
from telemetry.money.statements import close_month
from telemetry.reads.statement_document import DocumentRow, corrected_lines, statement_document
from tests.portal.charged_january import START, charged
from tests.telemetry.conftest import rates
from tests.telemetry.test_cents import APRIL, MARCH, corrected_march
from tests.world import World, world_fixture

__all__ = ["charged", "corrected_march", "rates"]
pytestmark = pytest.mark.django_db
NUMBER = "2026-01/CC-vision/1"


def write_closed(world: World) -> CostCentreStatement:
    """Close January and return vision's statement."""
    Organisation.objects.update(name="Northern Institute", tax_text="internal, no VAT")
    months.close_month(actor=world.finance, month=START.date(), now=START + timedelta(days=40))
    return CostCentreStatement.objects.get(number=NUMBER)


closed = world_fixture(write_closed, after=charged)


def page(user: User, number: str = NUMBER) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(reverse("cost-centre-statement", args=[number]))
    return response.content.decode() if response.status_code == 200 else str(response.status_code)


def test_the_page_of_a_statement_shows_its_number_its_lines_and_its_total(
    world: World, closed: CostCentreStatement
) -> None:
    text = re.sub(r"\s+", " ", page(world.finance))
    for expected in (NUMBER, "Northern Institute", "internal, no VAT", "100.00", "40.000", "2.50", "fit"):
        assert expected in text, expected
    assert closed.statement.digest in text
    assert "Page 1 of " in text


def test_the_list_shows_the_statements_of_a_month_and_their_total(
    world: World, closed: CostCentreStatement
) -> None:
    client = Client()
    client.force_login(world.finance)
    text = client.get(reverse("cost-centre-statements")).content.decode()
    numbers = CostCentreStatement.objects.values_list("number", flat=True)
    assert all(number in text for number in numbers)
    total = sum(CostCentreStatement.objects.values_list("total", flat=True), Decimal(0))
    assert f"{total:,.2f} EUR" in text


def test_a_lead_sees_the_statement_of_a_cost_centre_that_only_teams_of_the_lead_use(
    world: World, closed: CostCentreStatement
) -> None:
    assert NUMBER in page(world.vision.lead)
    assert page(world.vision.member) == "404"
    assert page(world.language.lead) == "404"
    assert NUMBER in page(world.people["auditor"])
    assert page(world.finance, "2026-01/CC-none/1") == "404"


def test_the_digest_can_be_checked_on_the_page(world: World, closed: CostCentreStatement) -> None:
    client = Client()
    client.force_login(world.finance)
    answer = client.post(reverse("cost-centre-statement", args=[NUMBER]), follow=True)
    assert "The digest of January 2026 is valid" in answer.content.decode()


def test_the_api_returns_the_statement_with_rows_that_sum_to_its_total(
    world: World, closed: CostCentreStatement
) -> None:
    client = Client()
    client.force_login(world.finance)
    found = client.get(f"/api/v1/cost-centre-statements/{NUMBER}/").json()
    assert Decimal(found["statement"]["total"]) == sum(Decimal(row["amount"]) for row in found["rows"])
    listed = client.get("/api/v1/cost-centre-statements/", {"month": "2026-01", "cost_centre": "CC-vision"})
    assert [row["number"] for row in listed.json()["results"]] == [NUMBER]


def test_each_row_of_a_statement_opens_the_charge_lines_that_sum_to_it(
    world: World, closed: CostCentreStatement
) -> None:
    client = Client()
    client.force_login(world.finance)
    shown = client.get(reverse("cost-centre-statement", args=[closed.number])).context
    rows = [entry for sheet in shown["sheets"] for entry in sheet.rows if entry.row is not None]
    amounts: dict[str, Decimal] = {}
    for entry in rows:
        amounts[entry.url] = amounts.get(entry.url, Decimal(0)) + entry.row.amount
    assert sum(amounts.values()) == closed.total == 100
    for url, amount in amounts.items():
        assert client.get(url).context["charged"] == amount


def test_a_correction_names_the_statement_and_the_line_that_it_corrects(corrected_march: World) -> None:
    may = datetime(2026, 5, 1, 2, tzinfo=UTC)
    charge_all_gpus(may)
    close_month(month=APRIL, closed_by=corrected_march.finance, now=may)
    found = [statement_document(each) for each in CostCentreStatement.objects.filter(statement__month=APRIL)]
    [document] = [each for each in found if each.corrections]
    march = CostCentreStatement.objects.get(
        statement__month=MARCH, cost_centre=document.statement.cost_centre
    )
    of_march, text = statement_document(march).rows, page(corrected_march.finance, document.statement.number)
    printed = statement_data(document, 2, document_texts())["corrections"]
    corrected = corrected_lines(document)
    assert len(corrected) == len(document.corrections) == len(printed) > 0
    for entry, line, typeset in zip(document.corrections, corrected, printed, strict=True):
        assert line.number == march.number and line.line is not None
        assert of_march[line.line - 1].subject == entry.subject
        assert typeset["corrects"].replace("\u200b", "") == f"{march.number}, line {line.line}"
        assert typeset["price"] == "2.40"
        assert f">{march.number}, line {line.line}</a>" in text
    client = Client()
    client.force_login(corrected_march.finance)
    shown = client.get(reverse("cost-centre-statement", args=[document.statement.number]))
    reasons = [each["why"] for each in shown.context["corrections"]]
    assert [each["why"].replace("\u200b", "") for each in printed] == reasons
    assert "host alpha was silent 27 Mar 22:00 to 28 Mar 04:00 UTC" in reasons


def row(number: int) -> DocumentRow:
    hours, amount = Decimal("0.500"), Decimal("1.00")
    return DocumentRow(
        "p", f"u{number // 3}", f"w{number}", 1, "training", "used", "H", None, hours, None, amount
    )


@pytest.mark.parametrize("count", [0, 1, FIRST_SHEET_ROWS, SHEET_ROWS, 200])
@pytest.mark.parametrize("corrections", [0, 3])
def test_each_page_carries_the_total_of_the_pages_before_it(count: int, corrections: int) -> None:
    sheets = make_sheets([row(number) for number in range(count)], corrections)
    lines = [entry for sheet in sheets for entry in sheet.rows if entry.kind == "line"]
    assert [entry.number for entry in lines] == list(range(1, count + 1))
    for before, after in zip(sheets, sheets[1:], strict=False):
        assert before.carried == after.brought or not after.rows
        assert len(before.rows) <= SHEET_ROWS
        if before.rows and after.rows:
            assert before.rows[-1].kind == "line"
    done = 0
    for sheet in sheets:
        done += sum(1 for entry in sheet.rows if entry.kind == "line")
        if sheet.carried:
            assert sheet.carried == (done * Decimal("0.500"), done * Decimal("1.00"))
    assert [sheet.end for sheet in sheets] == [False] * (len(sheets) - 1) + [True]


def test_finance_changes_the_settings_of_billing_and_the_change_is_audited(world: World) -> None:
    client = Client()
    client.force_login(world.finance)
    body = {"tax_text": "internal", "payment_days": 10, "two_step_close": True, "why": "policy 7"}
    assert client.put("/api/v1/billing/", json.dumps(body), "application/json").status_code == 200
    row = Organisation.objects.get()
    assert (row.tax_text, row.payment_days, row.two_step_close) == ("internal", 10, True)
    event = AuditEvent.objects.get(verb="change_billing_settings")
    assert (event.before["payment_days"], event.after["payment_days"], event.why) == (30, 10, "policy 7")
    refused = client.put("/api/v1/billing/", json.dumps({"payment_days": 366}), "application/json")
    assert refused.status_code == 400 and "366" in refused.content.decode()
    page_body = {"tax_text": "x", "payment_days": "-1"}
    assert "0 to 365" in client.post(reverse("billing-settings"), page_body).content.decode()


def test_settings_of_billing_do_not_change_a_closed_statement(
    world: World, closed: CostCentreStatement
) -> None:
    billing_settings.change_billing_settings(
        actor=world.finance, tax_text="other", payment_days=1, two_step_close=False, now=world.now
    )
    again = CostCentreStatement.objects.get(number=NUMBER)
    assert (again.tax_text, again.due_on) == (closed.tax_text, closed.due_on)
