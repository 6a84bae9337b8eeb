"""Test credits and adjustments through services, pages, API and files: input, roles, and equal figures."""

from __future__ import annotations

import datetime as dt
import io
import zipfile
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, Notification, User
from portal.notices import delivery
from portal.services.money import billing_modes, months
from portal.services.money.adjusting import decisions
from portal.services.money.adjusting.drafts import AdjustmentRequest
from portal.wording.chargeback import adjustment_texts as texts
from scheduler.models import Workload
from telemetry.models import Adjustment, Charge, CostCentre, CostCentreStatement
from telemetry.money.shared_idle import assign_due_cents
from tests.portal.charged_january import MONTH, charged
from tests.portal.reads.test_workbook_exports import sheets_of
from tests.seeds import first_cases
from tests.telemetry.rows import directory
from tests.world import World, make_user, world_fixture

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = dt.date(2026, 1, 1)


def write_january(world: World) -> World:
    """Return the organisation with a charged January and its cost centre in the directory."""
    directory("CC-vision", "CC-other")
    with transaction.atomic():
        assign_due_cents()
    return world


january = world_fixture(write_january, after=charged)


@pytest.fixture
def second(world: World) -> User:
    """Return another person of finance."""
    return make_user("finance-2", finance=True)


def request(**given: Any) -> AdjustmentRequest:
    values = {"month": JANUARY, "amount": "-12.50", "reason": "slow host", "cost_centre": "CC-vision"}
    return AdjustmentRequest(**values | given)


def propose(actor: User, **given: Any) -> Adjustment:
    return decisions.propose_adjustment(actor=actor, request=request(**given), now=timezone.now())


def approve(actor: User, row: Adjustment) -> Adjustment:
    return decisions.approve_adjustment(actor=actor, adjustment=row, now=timezone.now())


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def line_of(workload: Workload) -> Charge:
    return Charge.objects.filter(workload=workload, charged__gt=0).earliest("pk")


@pytest.mark.parametrize(
    ("given", "field", "words"),
    first_cases(
        4,
        [
            ({"amount": "0"}, "amount", "not 0"),
            ({"amount": "1.005"}, "amount", "2 decimals"),
            ({"amount": "x"}, "amount", "allowed"),
            ({"amount": "-1E+9999999"}, "amount", "to 1,000,000,000"),
            ({"kind": "gift"}, "kind", "adjustment, credit"),
            ({"reason": ""}, "reason", "allowed: at least 1"),
            ({"cost_centre": "CC-99"}, "cost_centre", "such as CC-other"),
            ({"month": dt.date(2199, 1, 1)}, "month", "not closed"),
            ({"kind": "credit"}, "charge", "exactly one"),
            ({"charge": 1}, "charge", "only a credit"),
            ({"kind": "credit", "charge": 999_999_999}, "charge", "the id of a charge line"),
            ({"kind": "credit", "line": 999_999_999}, "line", "the id of a statement line"),
            ({"kind": "credit", "credited_month": JANUARY, "amount": "5"}, "amount", "a negative amount"),
            (
                {"kind": "credit", "credited_month": dt.date(2020, 1, 1)},
                "credited_month",
                "a month with charges",
            ),
        ],
    ),
)
def test_wrong_input_is_refused_with_field_value_and_allowed_values(
    january: World, given: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(Invalid) as found:
        propose(january.finance, **given)
    assert field in found.value.fields and words in found.value.fields[field]
    assert found.value.fields[field].startswith((field, "charge, line"))


def test_a_credit_has_the_owner_of_its_charge_line(january: World, charged: Workload) -> None:
    line = line_of(charged)
    row = propose(january.finance, kind="credit", charge=line.pk, cost_centre="", amount="-1")
    assert (row.cost_centre, row.team_id, row.project_id) == (
        line.cost_centre,
        line.team_id,
        line.project_id,
    )
    for wrong, field in (
        ({"cost_centre": "CC-other"}, "cost_centre"),
        ({"team": january.language.team}, "team"),
        ({"project": january.language.project}, "project"),
    ):
        with pytest.raises(Invalid) as found:
            propose(january.finance, kind="credit", charge=line.pk, amount="-1", **wrong)
        assert field in found.value.fields


def test_a_retired_cost_centre_gets_credits_only(january: World) -> None:
    CostCentre.objects.filter(code="CC-vision").update(retired_from=timezone.now())
    with pytest.raises(Invalid, match="retired"):
        propose(january.finance)
    assert propose(january.finance, kind="credit", credited_month=JANUARY).state == "proposed"


def test_the_chargeback_page_shows_a_cost_centre_that_has_no_charge_but_an_adjustment(
    january: World, second: User
) -> None:
    approve(second, propose(january.finance, cost_centre="CC-other", amount="4.25"))
    query = {"month": MONTH, "cost_centre": "CC-other"}
    assert "4.25" in signed_in(second).get(reverse("chargeback"), query).content.decode()
    assert (
        signed_in(second).get(reverse("chargeback"), {"month": MONTH, "bucket": "credit"}).status_code == 200
    )


def test_a_month_that_is_closed_is_refused_with_the_open_months(january: World) -> None:
    months.close_month(actor=january.finance, month=JANUARY, now=timezone.now())
    with pytest.raises(Invalid) as found:
        propose(january.finance)
    words = found.value.fields["month"]
    assert "2026-01;" in words and f"{timezone.now():%Y-%m}" in words


@pytest.mark.parametrize("role", ["member", "lead", "operator", "auditor", "stranger"])
def test_only_finance_proposes_and_decides(january: World, second: User, role: str) -> None:
    row, person = propose(january.finance), january.people[role]
    given: dict[str, Any] = {"actor": person, "adjustment": row, "now": timezone.now()}
    for call in (
        lambda: propose(person),
        lambda: decisions.approve_adjustment(**given),
        lambda: decisions.reject_adjustment(**given, note="no"),
        lambda: decisions.withdraw_adjustment(**given, reason="no"),
    ):
        with pytest.raises(NotAllowed):
            call()


def test_each_step_is_in_the_audit_log_and_sends_its_notices(january: World, second: User) -> None:
    row = propose(january.finance, team=january.vision.team)
    delivery.write_notices(timezone.now())
    assert Notification.objects.filter(kind="adjustment_proposed").values_list("user", flat=True).get() == (
        second.pk
    )
    approve(second, row)
    delivery.write_notices(timezone.now())
    told = Notification.objects.filter(kind="adjustment_decided").values_list("user", flat=True)
    assert set(told) == {january.finance.pk, january.vision.lead.pk}
    verbs = AuditEvent.objects.filter(target__startswith="adjustment").values_list("verb", flat=True)
    assert sorted(verbs) == ["approve_adjustment", "propose_adjustment"]


def test_a_member_and_a_lead_see_the_approved_amounts_on_their_charges(
    january: World, charged: Workload, second: User
) -> None:
    line = line_of(charged)
    row = propose(january.finance, kind="credit", charge=line.pk, cost_centre="", amount="-1")
    pages = {name: signed_in(person) for name, person in january.people.items()}
    url = reverse("adjustment", args=[row.number])
    assert pages["member"].get(url).status_code == 404
    approve(second, row)
    seen = {name: client.get(url).status_code for name, client in pages.items()}
    assert {name for name, status in seen.items() if status == 200} >= {
        "member",
        "lead",
        "finance",
        "auditor",
    }
    assert seen["stranger"] == 404


def test_a_person_who_sees_a_credit_does_not_see_the_total_of_the_cost_centre(
    january: World, charged: Workload, second: User
) -> None:
    row = propose(january.finance, kind="credit", charge=line_of(charged).pk, cost_centre="", amount="-1")
    url = f"/api/v1/adjustments/{row.number}/"
    assert signed_in(second).get(url).json()["effect"]["before"] == "100.00"
    approve(second, row)
    for role in ("member", "lead"):
        found = signed_in(january.people[role]).get(url).json()
        assert (found["amount"], found["effect"]) == ("-1.00", None), role


def test_the_pages_propose_show_the_effect_and_approve(january: World, second: User) -> None:
    client = signed_in(january.finance)
    body = {"kind": "adjustment", "month": "2026-01-01", "amount": "-12.50", "cost_centre": "CC-vision"}
    assert client.post(reverse("adjustment-new"), body).status_code == 400
    answer = client.post(reverse("adjustment-new"), body | {"reason": "slow host"})
    url = answer.headers["Location"]
    page = client.get(url).content.decode()
    assert "100.00" in page and "87.50" in page and "Approve it" not in page
    assert client.post(url, {"verb": "approve"}).status_code == 400
    other = signed_in(second)
    assert other.post(url, {"verb": "reject", "note": ""}).status_code == 400
    assert other.post(url, {"verb": "approve"}).status_code == 302
    listed = other.get(reverse("adjustments")).content.decode()
    assert "slow host" in listed and texts.STATES["approved"] in listed
    taken_back = other.post(url, {"verb": "withdraw", "reason": "wrong"}).headers["Location"]
    assert taken_back != url and "withdraws it" in other.get(url).content.decode()
    waiting = other.get(reverse("adjustments"), {"month": "2026-01"}).content.decode()
    assert texts.STATES["proposed"] in waiting
    assert (
        "No credit or adjustment" in other.get(reverse("adjustments"), {"month": "2026-02"}).content.decode()
    )


@pytest.mark.parametrize(("amount", "operator"), [("-12.50", "+"), ("12.50", "−")])
def test_the_equation_subtracts_the_adjustments_in_a_term_of_their_own(
    january: World, second: User, amount: str, operator: str
) -> None:
    """The first term of the equation is the amount that the page shows as charged."""
    approve(second, propose(january.finance, amount=amount))
    client = signed_in(january.finance)
    context = client.get(reverse("chargeback"), {"month": MONTH}).context
    equation = context["overview"]["equation"]
    terms = {term["label"]: term for term in equation["terms"]}
    assert terms["Charged"]["amount"] == context["overview"]["hero"]["charged"]
    taken_out = terms["Adjustments taken out"]
    assert (taken_out["operator"], taken_out["amount"]) == (operator, "12.50")
    assert taken_out["url"] == f"{reverse('adjustments')}?month={MONTH}" and equation["holds"]
    found = client.get("/api/v1/chargeback/", {"month": MONTH}).json()["overview"]["equation"]
    *left, cost = [Decimal(term["amount"]) * (term["sign"] or 1) for term in found["terms"]]
    assert sum(left) == cost and [term["key"] for term in found["terms"]][1] == "adjusted"
    columns = list(zip(*[pool["amounts"] for pool in equation["pools"]], strict=True))
    assert [abs(sum(column)) for column in columns] == [abs(Decimal(t["amount"])) for t in found["terms"]]


def test_the_effect_on_a_statement_leaves_showback_out(january: World) -> None:
    row = propose(january.finance, team=january.vision.team)
    other = propose(january.finance)
    billing_modes.set_billing_mode(
        actor=january.finance,
        team=january.vision.team,
        mode="showback",
        first_month=JANUARY,
        now=timezone.now(),
    )
    effects = [decisions.effect_of(each) for each in (row, other)]
    assert [(each.before, each.after) for each in effects] == [(0, 0), (0, Decimal("-12.50"))]


def test_page_api_and_files_show_the_same_total(january: World, second: User) -> None:
    approve(second, propose(january.finance, team=january.vision.team, project=january.vision.project))
    approve(second, propose(january.finance, cost_centre="CC-other", amount="4.25"))
    months.close_month(actor=january.finance, month=JANUARY, now=timezone.now())
    client = signed_in(january.finance)
    rows = CostCentreStatement.objects.filter(statement__month=JANUARY)
    totals = {row.cost_centre: row.total for row in rows}
    assert (totals["CC-vision"], totals["CC-other"]) == (Decimal("87.50"), Decimal("4.25"))
    number = f"{MONTH}/CC-vision/1"
    page = client.get(reverse("cost-centre-statement", args=[number])).content.decode()
    assert "Adjustments" in page and "slow host" in page and "87.50" in page
    found = client.get(f"/api/v1/cost-centre-statements/{number}/").json()
    assert [row["amount"] for row in found["adjustments"]] == ["-12.50"]
    amounts = [*found["rows"], *found["corrections"], *found["adjustments"]]
    assert sum(Decimal(row["amount"]) for row in amounts) == Decimal(found["statement"]["total"])
    export = reverse("export", args=[MONTH])
    statement = client.get(export, {"kind": "statement"}).getvalue().decode()  # type: ignore[attr-defined]
    assert "credit" not in statement and ",adjustment," in statement
    book = client.get(export, {"kind": "xlsx"}).getvalue()  # type: ignore[attr-defined]
    sheet = sheets_of(zipfile.ZipFile(io.BytesIO(book)))["Adjustments"]
    assert [row["H"] for row in sheet[1:]] == [-12.5, 4.25]
    pdf = client.get(export, {"kind": "pdf", "cost_centre": "CC-vision"})
    assert pdf.status_code == 200


def test_the_api_proposes_and_decides(january: World, second: User) -> None:
    client = signed_in(january.finance)
    body = {"month": "2026-01-01", "amount": "-12.50", "reason": "slow host", "cost_centre": "CC-vision"}
    made = client.post("/api/v1/adjustments/", body, content_type="application/json")
    assert made.status_code == 201
    assert made.json()["effect"] == {"before": "100.00", "after": "87.50", "currency": "EUR"}
    url = f"/api/v1/adjustments/{made.json()['number']}/"
    refused = client.post(f"{url}approve/", {}, content_type="application/json")
    assert refused.status_code == 409 and refused.json()["code"] == "adjustment_needs_another_person"
    other = signed_in(second)
    assert other.post(f"{url}approve/", {}, content_type="application/json").json()["state"] == "approved"
    assert client.get("/api/v1/adjustments/", {"state": "proposed"}).json()["results"] == []
    taken = other.post(f"{url}withdraw/", {"reason": "wrong"}, content_type="application/json").json()
    assert (taken["amount"], taken["withdraws"]) == ("12.50", made.json()["number"])
