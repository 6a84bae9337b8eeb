"""Test the PDF of a cost centre that has statements in two currencies: a currency selects the statement."""

from __future__ import annotations

import datetime as dt
import io
import zipfile
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.errors import Invalid
from portal.models import User
from portal.reads.money.charge_scope import charge_scope
from portal.reads.money.exports import ExportDownload, document_currencies, export_download
from portal.services.money import months
from portal.web.money.exports import export_menu
from telemetry.models import CostCentreStatement
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_currencies import AFTER, APRIL, MARCH, change_of_currency, priced_world
from tests.world import World, units_of, world_fixture

pytestmark = [pytest.mark.django_db, pytest.mark.long]
AFTER_APRIL = at(2, day=1).replace(month=5)
BOTH = ["JPY", "EUR"]


def write_april(world: World) -> World:
    """Charge vision in JPY in April, and correct its March, which was charged in EUR."""
    change_of_currency(world)
    start = at(9, day=4).replace(month=4)
    unit = units_of(world.hosts["alpha"])[2]
    hold(workload(world, world.vision), unit, start, start.replace(hour=12), end_code="finished")
    charge_all_gpus(AFTER_APRIL)
    return world


april = world_fixture(write_april)


def pdf(viewer: User, code: str = "CC-100", **given: str) -> ExportDownload:
    return export_download(viewer, APRIL, {"cost_centre": code}, {"kind": "pdf", **given})


def refusal(viewer: User, code: str = "CC-100", **given: str) -> dict[str, str]:
    with pytest.raises(Invalid) as raised:
        pdf(viewer, code, **given)
    return raised.value.fields


@pytest.mark.parametrize("state", ["open", "closed"])
def test_each_currency_of_a_cost_centre_has_its_own_file(april: World, state: str) -> None:
    if state == "closed":
        months.close_month(actor=april.finance, month=APRIL, now=AFTER_APRIL)
    assert document_currencies(april.finance, APRIL, "CC-100") == BOTH
    files = {currency: pdf(april.finance, currency=currency) for currency in BOTH}
    end = "-provisional.pdf" if state == "open" else ".pdf"
    assert {each.name for each in files.values()} == {
        f"gpupool-2026-04-pdf-CC-100-{currency}{end}" for currency in BOTH
    }
    archive = export_download(april.finance, APRIL, {}, {"kind": "pdf-zip"})
    entries = zipfile.ZipFile(io.BytesIO(b"".join(archive.parts)))
    made = [b"".join(each.parts) for each in files.values()]
    assert made[0] != made[1]
    ours = [entries.read(name) for name in entries.namelist() if "CC-100" in name]
    assert sorted(ours) == sorted(made)


def test_the_currency_is_required_and_must_be_the_currency_of_a_statement(april: World) -> None:
    assert refusal(april.finance) == {
        "currency": "currency is missing; allowed: JPY, EUR, because CC-100 has a statement in each."
    }
    assert refusal(april.finance, currency="USD") == {"currency": "currency is 'USD'; allowed: EUR, JPY."}
    assert refusal(april.finance, "CC-300", currency="EUR") == {
        "cost_centre": "cost_centre is 'CC-300'; allowed: a cost centre that is charged in 2026-04."
    }


def test_a_cost_centre_with_one_statement_needs_no_currency(april: World) -> None:
    assert pdf(april.finance, "CC-200").name == pdf(april.finance, "CC-200", currency="JPY").name
    assert refusal(april.finance, "CC-200", currency="EUR") == {
        "currency": "currency is 'EUR'; allowed: JPY."
    }


def test_other_kinds_have_no_currency(april: World) -> None:
    with pytest.raises(Invalid, match="currency is 'EUR'; allowed: no currency, because lines contains"):
        export_download(april.finance, APRIL, {}, {"kind": "lines", "currency": "EUR"})


def test_a_lead_gets_only_the_statements_that_the_lead_sees(april: World) -> None:
    months.close_month(actor=april.finance, month=APRIL, now=AFTER_APRIL)
    lead = april.vision.lead
    seen = list(document_currencies(lead, APRIL, "CC-100"))
    assert seen == BOTH and b"".join(pdf(lead, currency="EUR").parts).startswith(b"%PDF-")
    assert document_currencies(lead, APRIL, "CC-200") == []


def test_the_menu_of_a_cost_centre_offers_each_currency(april: World) -> None:
    scope = charge_scope(april.finance)
    offered = {}
    for code in ("CC-100", "CC-200", "CC-300"):
        menu = export_menu(april.finance, APRIL, {"cost_centre": code}, scope, is_closed=False)
        offered[code] = [(each["note"], each["url"]) for each in menu.choices if "kind=pdf" in each["url"]]
    assert [note for note, _ in offered["CC-100"]] == ["its statement in JPY", "its statement in EUR"]
    assert [url.partition("?")[2] for _, url in offered["CC-100"]] == [
        f"cost_centre=CC-100&kind=pdf&currency={currency}" for currency in BOTH
    ]
    assert [note for note, _ in offered["CC-200"]] == ["its statement"]
    assert "currency" not in offered["CC-200"][0][1] and offered["CC-300"] == []


def test_the_api_and_the_page_of_a_statement_name_the_currency(april: World) -> None:
    months.close_month(actor=april.finance, month=APRIL, now=AFTER_APRIL)
    client = Client()
    client.force_login(april.finance)
    for row in CostCentreStatement.objects.filter(statement__month=APRIL, cost_centre="CC-100"):
        page: Any = client.get(reverse("cost-centre-statement", args=[row.number]))
        assert page.context["pdf_url"].endswith(f"kind=pdf&cost_centre=CC-100&currency={row.currency}")
        query = {"kind": "pdf", "cost_centre": "CC-100", "currency": row.currency}
        answer = client.get("/api/v1/statements/2026-04/export/", query)
        assert f"CC-100-{row.currency}.pdf" in answer.headers["Content-Disposition"]
        assert b"".join(answer.streaming_content) == b"".join(pdf(april.finance, currency=row.currency).parts)
    answer = client.get("/api/v1/statements/2026-04/export/", {"kind": "pdf", "cost_centre": "CC-100"})
    assert answer.status_code == 400 and "allowed: JPY, EUR" in answer.content.decode()


def test_the_api_of_a_statement_keeps_the_decimals_of_its_currency(world: World) -> None:
    priced_world(world, "KWD")
    unit = units_of(world.hosts["alpha"])[0]
    hold(workload(world, world.vision), unit, at(9), at(9) + dt.timedelta(seconds=1000), end_code="finished")
    charge_all_gpus(AFTER)
    statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)
    client = Client()
    client.force_login(world.finance)
    found = client.get("/api/v1/cost-centre-statements/2026-03/CC-100/1/").json()
    total = CostCentreStatement.objects.get(cost_centre="CC-100").total
    assert total in (Decimal("0.833"), Decimal("0.834"))
    assert found["statement"]["total"] == str(total)
    assert sum(Decimal(row["amount"]) for row in found["rows"]) == total
