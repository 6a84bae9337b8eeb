"""Test as every role that no page, API answer or file about money shows the charges of others.

Each role requests every address with its own keys and with guessed keys of others. Names, reasons and amounts
of the two tenants are the texts that are searched for. The command line prints answers of the API.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlencode

import duckdb
import pytest
from django.test import Client
from django.urls import reverse

from telemetry.exports.registry import EXPORT_KINDS
from telemetry.models import Charge, CostCentreStatement, UnusualSpend
from tests.portal.two_tenants import MONTHS, NOW, Tenants, adjustment_numbers, tenants
from tests.world import World

__all__ = ["tenants"]
pytestmark = [pytest.mark.django_db, pytest.mark.timeout(600)]
# The short part has the role that sees most of the pool and none of its charges.
ROLES = (
    "operator",
    "stranger",
    "other team",
    "other lead",
    "team mate",
    "member",
    "lead",
    "auditor",
)
GROUPINGS = ("cost_centre", "team", "project", "user", "type", "pool", "model", "bucket")
ENDED = (200, 302, 400, 403, 404)  # no address fails
CENTRES = ("CC-100", "CC-110", "CC-200", "CC-300")


@pytest.fixture(autouse=True)
def in_april() -> Iterator[None]:
    """Let the clock show a time in April, because some pages show the current month."""
    with mock.patch("django.utils.timezone.now", return_value=NOW):
        yield


def filters_of(world: World) -> list[dict[str, Any]]:
    """Return filters with the keys of both tenants."""
    found: list[dict[str, Any]] = [{"cost_centre": code} for code in CENTRES]
    for team in (world.vision, world.language):
        found += [{"team": team.team.pk}, {"project": team.project.pk}]
        found += [{"user": person.pk} for person in (team.lead, *team.members)]
    works = Charge.objects.filter(workload__isnull=False).order_by().values_list("workload", flat=True)
    found += [{"workload": key} for key in sorted(set(works))]
    return [*found, {"day": "2026-03-31"}, {"last_day": "2026-03-31"}, {"bucket": "used,credit,adjustment"}]


def named_filters_of(world: World) -> list[dict[str, Any]]:
    """Return the same filters as the API takes them."""
    found: list[dict[str, Any]] = [{"cost_centre": code} for code in CENTRES]
    for team in (world.vision, world.language):
        found += [{"team": team.team.slug}, {"project": f"{team.team.slug}/{team.project.slug}"}]
        found += [{"user": person.username} for person in (team.lead, *team.members)]
    works = (
        Charge.objects.filter(workload__isnull=False).order_by().values_list("workload__public_id", flat=True)
    )
    return [*found, *({"workload": key} for key in sorted(set(works)))]


def pages(world: World) -> Iterator[str]:
    """Yield the addresses of all pages about money, and of their files."""
    for month in MONTHS:
        in_month = {"month": month}
        for name in ("chargeback", "charge-lines", "adjustments", "cost-centre-statements"):
            yield f"{reverse(name)}?{urlencode(in_month)}"
        for by in GROUPINGS:
            yield f"{reverse('chargeback')}?{urlencode({**in_month, 'by': by, 'format': 'csv'})}"
            yield f"{reverse('charge-tree-rows')}?{urlencode({**in_month, 'by': by})}"
        yield f"{reverse('chargeback')}?{urlencode({**in_month, 'q': 'run'})}"
        for where in filters_of(world):
            yield f"{reverse('charge-lines')}?{urlencode({**in_month, **where})}"
            yield f"{reverse('chargeback')}?{urlencode({**in_month, **where, 'format': 'csv'})}"
        for team in (world.vision, world.language):
            for kind in ("statement", "xlsx", "focus-cost-and-usage"):
                where = {"kind": kind, "team": team.team.pk}
                yield f"{reverse('export', args=[month])}?{urlencode(where)}"
        for name in ("chargeback-days", "chargeback-changes", "month-close", "idle-payer"):
            yield reverse(name, args=[month])
    yield from pages_of_one()


def pages_of_one() -> Iterator[str]:
    """Yield the addresses of pages that show one object, of pages without a month, and of whole exports."""
    yield from (f"{reverse('export', args=['2026-03'])}?kind={kind}" for kind in EXPORT_KINDS)
    for name in ("budgets", "cost-centres", "billing-settings", "showback", "rate-card", "adjustment-new"):
        yield reverse(name)
    yield from (reverse("cost-centre", args=[code]) for code in CENTRES)
    yield from (reverse("adjustment", args=[number]) for number in adjustment_numbers())
    yield from (reverse("cost-centre-statement", args=[row.number]) for row in documents())
    yield from (reverse("unusual-spend", args=[row.pk]) for row in UnusualSpend.objects.all())
    yield from (reverse("charge-line", args=[row.pk]) for row in charges())


def answers(world: World) -> Iterator[str]:
    """Yield the addresses of all answers of the API about money."""
    for path in ("charges", "chargeback", "statements", "adjustments", "cost-centre-statements", "budgets"):
        yield f"{path}/"
    for path in ("cost-centres", "cost-centre-shares", "prices", "billing", "billing/modes", "refund-limits"):
        yield f"{path}/"
    for month in MONTHS:
        for path in ("charges", "chargeback", "adjustments", "cost-centre-statements"):
            yield f"{path}/?month={month}"
        for path in ("", "checks/", "unusual-spend/", "idle-payer/"):
            yield f"statements/{month}/{path}"
        for where in named_filters_of(world):
            yield f"statements/{month}/export/?{urlencode({'kind': 'lines', **where})}"
        for code in CENTRES:
            yield f"adjustments/?{urlencode({'month': month, 'cost_centre': code})}"
            yield f"cost-centre-statements/?{urlencode({'month': month, 'cost_centre': code})}"
    yield from (f"charges/?{urlencode(where)}" for where in named_filters_of(world))
    yield from (f"adjustments/{number}/" for number in adjustment_numbers())
    yield from (f"cost-centre-statements/{row.number}/" for row in documents())
    yield from (f"charges/{row.pk}/" for row in charges())
    yield from (f"cost-centres/{code}/" for code in CENTRES)


def documents() -> list[CostCentreStatement]:
    return list(CostCentreStatement.objects.order_by("number"))


def charges() -> list[Charge]:
    return list(Charge.objects.filter(workload__isnull=False).order_by("pk"))


def text_of(answer: Any, folder: Path) -> str:
    """Return everything in an answer that a person can read, except the text of PDF files."""
    body = answer.getvalue()
    kind = answer.headers.get("Content-Type", "")
    if "spreadsheetml" in kind:
        book = zipfile.ZipFile(io.BytesIO(body))
        return "".join(book.read(name).decode() for name in book.namelist() if name.endswith(".xml"))
    if "parquet" in kind:
        path = folder / "file.parquet"
        path.write_bytes(body)
        with duckdb.connect(":memory:") as database:
            return str(database.execute(f"SELECT * FROM '{path}'").fetchall())
    return "" if kind.startswith(("application/pdf", "application/zip")) else body.decode()


def assert_shows_only(role: str, tenants: Tenants, found: dict[str, str]) -> None:
    """Assert that the texts of a role's answers, by address, have no texts that are not allowed.

    They must have all allowed texts, except the numbers of statements.
    """
    leaks = {
        address: sorted(secret for secret in tenants.secrets_of(role) if secret in text)
        for address, text in found.items()
    }
    assert {address: secrets for address, secrets in leaks.items() if secrets} == {}
    # An amount has a separator of thousands on pages, and none in answers of the API.
    everything = "\n".join(found.values()).replace(",", "")
    shown = {text.replace(",", "") for text in tenants.allowed[role] if "/" not in text}
    assert {text for text in shown if text not in everything} == set()


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_pages_and_files_about_money_show_only_the_charges_that_the_role_may_see(
    tenants: Tenants, role: str, tmp_path: Path
) -> None:
    client, found = Client(), {}
    client.force_login(tenants.people[role])
    for address in pages(tenants.world):
        answer = client.get(address)
        assert answer.status_code in ENDED, address
        found[address] = text_of(answer, tmp_path)
    assert_shows_only(role, tenants, found)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_answers_of_the_api_about_money_show_only_the_charges_that_the_role_may_see(
    tenants: Tenants, role: str, tmp_path: Path
) -> None:
    client, found = Client(), {}
    client.force_login(tenants.people[role])
    for path in answers(tenants.world):
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code in ENDED, path
        found[path] = text_of(answer, tmp_path)
    assert_shows_only(role, tenants, found)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_a_role_gets_the_pdf_of_exactly_the_statements_that_it_sees(tenants: Tenants, role: str) -> None:
    client, got = Client(), set()
    client.force_login(tenants.people[role])
    for row in documents():
        query = {"kind": "pdf", "cost_centre": row.cost_centre}
        answer = client.get(reverse("export", args=["2026-03"]), query)
        if answer.status_code == 200:
            assert answer.getvalue().startswith(b"%PDF")
            got.add(row.number)
    listed = json.loads(client.get("/api/v1/cost-centre-statements/").content)["results"]
    seen = {"finance": {row.number for row in documents()}, "auditor": {row.number for row in documents()}}
    seen |= {"lead": {"2026-03/CC-100/1", "2026-03/CC-110/1"}, "other lead": {"2026-03/CC-200/1"}}
    assert got == {row["number"] for row in listed} == seen.get(role, set())
    whole = client.get(reverse("export", args=["2026-03"]), {"kind": "pdf-zip"})
    assert whole.status_code == (200 if role in ("finance", "auditor") else 403)
