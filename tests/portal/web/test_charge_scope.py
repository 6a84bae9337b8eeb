"""Test that pages and files say whose charges they show, and that an address names only existing objects."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from portal.models import Membership, User
from portal.reads.money.charge_scope import charge_scope
from portal.services.money import months
from portal.services.money.adjusting import decisions
from portal.services.money.adjusting.drafts import AdjustmentRequest
from portal.wording.chargeback.charge_scope_texts import TEAM_SUM
from scheduler.models import Workload
from telemetry.models import Budget, Charge
from tests.portal.charged_january import MONTH, charged, unusual_spend_of
from tests.seeds import first_cases
from tests.telemetry.rows import directory
from tests.world import World, make_user

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = date(2026, 1, 1)

# Role: (kind of the scope, a part of the sentence on the page).
SCOPES = {
    "finance": ("all", "As finance you see the charges of every team."),
    "auditor": ("all", "As an auditor you see the charges of every team."),
    "lead": ("led_teams", "As lead you see all charges of Vision, and your own charges in other teams."),
    "member": ("own", "You see only your own charges."),
    "team mate": ("own", "You see only your own charges."),
    "operator": ("none", "As an operator you may not see the charges of others"),
    "stranger": ("none", "You are in no team and have no charges of your own."),
}


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def page(world: World, role: str, **query: Any) -> str:
    answer = signed_in(world.people[role]).get(reverse("chargeback"), {"month": MONTH, **query})
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("role", SCOPES)
def test_the_page_says_whose_charges_it_shows(world: World, charged: Workload, role: str) -> None:
    kind, sentence = SCOPES[role]
    text = page(world, role)
    assert sentence in text
    assert "The lead of a team sees all charges of the team." in text
    assert charge_scope(world.people[role]).kind == kind


@pytest.mark.parametrize("role", ["operator", "stranger"])
def test_somebody_who_may_see_no_charges_is_not_told_that_nothing_is_charged(
    world: World, charged: Workload, role: str
) -> None:
    text = page(world, role)
    assert "You may not see these charges" in text and "Finance and auditors see" in text
    assert "Nothing is charged" not in text and "<table" not in text
    client = signed_in(world.people[role])
    assert client.get(reverse("chargeback"), {"month": MONTH, "format": "csv"}).status_code == 403
    assert client.get(reverse("export", args=[MONTH]), {"kind": "lines"}).status_code == 403


def test_an_operator_who_was_charged_sees_those_charges(world: World, charged: Workload) -> None:
    charged_user = world.vision.member
    Membership.objects.filter(user=charged_user).delete()
    charged_user.operator = True
    charged_user.save()
    text = page(world, "member")
    assert "You see only your own charges." in text and "100.00" in text


def test_an_empty_table_of_a_member_speaks_of_the_member_only(world: World, charged: Workload) -> None:
    assert "Nothing is charged to you in this month" in page(world, "team mate")
    assert "Nothing is charged in this month" in page(world, "finance", cost_centre="CC-language")


def test_an_operator_gets_links_only_to_the_charges_of_budgets_that_open(
    world: World, charged: Workload
) -> None:
    operator = world.vision.member
    operator.operator = True
    operator.save()
    for owner in (
        {"team": world.vision.team},
        {"team": world.robotics.team},
        {"project": world.vision.project},
        {"project": world.robotics.project},
    ):
        Budget.objects.create(month=JANUARY, amount=1000, **owner)
    client = signed_in(operator)
    answer = client.get(reverse("chargeback"), {"month": MONTH})
    urls = [row["url"] for row in answer.context["budgets"]]
    assert len(urls) == 4 and sum(map(bool, urls)) == 2
    assert all(client.get(url).status_code == 200 for url in urls if url)
    assert 'href=""' not in answer.content.decode()


@pytest.mark.parametrize("role", ["finance", "lead", "member"])
def test_every_row_of_a_csv_file_has_the_scope(world: World, charged: Workload, role: str) -> None:
    client, last_level = (
        signed_in(world.people[role]),
        {
            "cost_centre": "CC-vision",
            "team": world.vision.team.pk,
            "project": world.vision.project.pk,
            "type": "training",
            "workload": charged.pk,
        },
    )
    for query in ({}, last_level):
        download = client.get(reverse("chargeback"), {"month": MONTH, "format": "csv", **query})
        rows = list(csv.DictReader(io.StringIO(download.getvalue().decode())))[:-1]
        assert {row["scope"] for row in rows} == {SCOPES[role][0]}


def test_the_lines_of_a_workload_say_whose_they_are(world: World, charged: Workload) -> None:
    assert "You see only your own charges." in page(world, "member", workload=charged.pk)


@pytest.mark.parametrize(
    ("role", "sentence"),
    [
        ("finance", "You see the budgets of every team."),
        ("operator", "You see the budgets of every team."),
        ("member", "You see the budgets of Vision. Each counts the charges of everybody in its team"),
        ("stranger", "You are in no team, so you see no budgets."),
    ],
)
def test_the_page_of_budgets_says_whose_budgets_it_shows(world: World, role: str, sentence: str) -> None:
    assert sentence in signed_in(world.people[role]).get(reverse("budgets")).content.decode()


@pytest.mark.parametrize("role", ["finance", "lead"])
def test_each_page_about_one_amount_says_whose_charges_the_viewer_sees(
    world: World, charged: Workload, role: str
) -> None:
    spend = unusual_spend_of(charged)
    directory("CC-vision")
    row = decisions.propose_adjustment(
        actor=world.finance,
        request=AdjustmentRequest(
            kind="credit",
            month=JANUARY,
            amount="-12.50",
            reason="slow host",
            charge=Charge.objects.latest("charged").pk,
        ),
        now=timezone.now(),
    )
    decisions.approve_adjustment(
        actor=make_user("finance-2", finance=True), adjustment=row, now=timezone.now()
    )
    months.close_month(actor=world.finance, month=JANUARY, now=datetime(2026, 2, 10, tzinfo=UTC))
    pages = {
        "cost-centre-statement": "2026-01/CC-vision/1",
        "adjustment": row.number,
        "unusual-spend": spend.pk,
        "cost-centre": "CC-vision",
        "job": charged.public_id,
        "workload-report": charged.public_id,
    }
    client = signed_in(world.people[role])
    for name, key in pages.items():
        answer = client.get(reverse(name, args=[key]), {"tab": "cost"})
        if role == "finance" and name in ("job", "workload-report"):
            assert answer.status_code == 404  # finance sees charges, not the pages of work
        else:
            assert answer.status_code == 200, name
            shows_charges = name != "cost-centre" or role == "finance"
            assert (SCOPES[role][1] in answer.content.decode()) == shows_charges, name


def test_the_home_page_says_that_a_budget_counts_everybody_in_the_team(world: World) -> None:
    month = timezone.now().date().replace(day=1)
    Budget.objects.create(team=world.vision.team, month=month, amount=1000)
    assert TEAM_SUM in signed_in(world.people["member"]).get(reverse("home")).content.decode()


# -- addresses -----------------------------------------------------------------------------------------------


def refusal(world: World, role: str, **query: Any) -> str:
    """Return the sentence of a refused address."""
    answer = signed_in(world.people[role]).get(reverse("chargeback"), {"month": MONTH, **query})
    assert answer.status_code == 404
    return str(answer.context["message"])


UNKNOWN = {
    "cost_centre": "CC-nowhere",
    "team": "91000001",
    "project": "91000001",
    "type": "dancing",
    "workload": "91000001",
    "user": "91000001",
    "pool": "91000001",
    "model": "B999",
    "bucket": "lost",
}


@pytest.mark.parametrize(
    ("field", "wanted"),
    first_cases(
        2,
        [
            *((field, "") for field in UNKNOWN),
            *(
                pytest.param(field, "csv", marks=[] if field == "team" else [pytest.mark.long])
                for field in UNKNOWN
            ),
        ],
    ),
)
def test_an_unknown_object_is_refused_with_field_value_and_what_is_allowed(
    world: World, charged: Workload, field: str, wanted: str
) -> None:
    text = refusal(world, "finance", **{field: UNKNOWN[field]}, **({"format": wanted} if wanted else {}))
    assert f"{field} is '{UNKNOWN[field]}'; allowed: " in text


@pytest.mark.parametrize("field", ["team", "user", "cost_centre", "pool", "model", "workload"])
@pytest.mark.parametrize(
    "value",
    ["-1", *(pytest.param(text, marks=pytest.mark.long) for text in ("'", "9" * 40, "x" * 300, "\u202e1"))],
)
def test_a_malformed_key_is_refused(world: World, charged: Workload, field: str, value: str) -> None:
    assert f"{field} is " in refusal(world, "finance", **{field: value})


@pytest.mark.parametrize(
    "role",
    [
        pytest.param("member", marks=pytest.mark.long),
        pytest.param("lead", marks=pytest.mark.long),
        "other team",
    ],
)
def test_an_object_that_the_viewer_may_not_see_answers_like_one_that_does_not_exist(
    world: World, charged: Workload, role: str
) -> None:
    hidden = {
        "team": world.robotics.team.pk,
        "project": world.robotics.project.pk,
        "cost_centre": "CC-robotics",
    }
    hidden |= {
        "user": world.robotics.member.pk,
        "pool": world.static.pk if role == "other team" else 91000001,
    }
    for field, value in hidden.items():
        missing = refusal(world, role, **{field: UNKNOWN[field]})
        assert refusal(world, role, **{field: value}) == missing.replace(UNKNOWN[field], str(value))


def test_a_member_cannot_ask_for_the_charges_of_a_team_mate(world: World, charged: Workload) -> None:
    person, work = {"user": world.vision.member.pk}, {"workload": charged.pk}
    for query in (person, work):
        refusal(world, "team mate", **query)
        page(world, "lead", **query)
        page(world, "member", **query)


def test_a_known_object_without_charges_in_the_month_shows_an_empty_table(
    world: World, charged: Workload
) -> None:
    for query in ({"team": world.language.team.pk}, {"type": "inference"}, {"user": world.language.lead.pk}):
        assert "Nothing is charged in this month" in page(world, "finance", **query)


@pytest.mark.parametrize("dimension", ["user", "pool", "model", "bucket"])
def test_every_dimension_can_be_a_filter(world: World, charged: Workload, dimension: str) -> None:
    line = Charge.objects.filter(workload=charged).latest("pk")
    keys = {"user": line.user_id, "pool": line.pool_id, "model": line.model, "bucket": line.bucket}
    assert "100.00" in page(world, "finance", **{dimension: keys[dimension]})


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"by": "planet"}, "by is 'planet'; allowed: cost_centre, team,"),
        ({"colour": "red"}, "'colour' is not a parameter of this page; allowed: month, by,"),
        ({"format": "xml"}, "format is 'xml'; allowed: csv"),
    ],
)
def test_an_unknown_parameter_grouping_or_format_is_refused(
    world: World, charged: Workload, query: dict[str, str], says: str
) -> None:
    assert says in refusal(world, "finance", **query)


@pytest.mark.parametrize("name", ["chargeback", "charge-lines"])
@pytest.mark.parametrize("option", [{"separator": "comma"}, {"decimal": "point"}])
def test_a_separator_or_a_decimal_sign_without_a_csv_file_is_refused(
    world: World, charged: Workload, name: str, option: dict[str, str]
) -> None:
    client, [(field, value)] = signed_in(world.finance), option.items()
    answer = client.get(reverse(name), {"month": MONTH, **option})
    assert answer.status_code == 404
    assert answer.context["message"] == f"{field} is '{value}'; allowed: only with format=csv."
    assert client.get(reverse(name), {"month": MONTH, "format": "csv", **option}).status_code == 200


def test_an_export_without_a_dialect_refuses_a_separator(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    for kind in ("xlsx", "focus-cost-and-usage"):
        answer = client.get(reverse("export", args=[MONTH]), {"kind": kind, "separator": "semicolon"})
        says = "separator is 'semicolon'; allowed: only with kind statement, lines."
        assert (answer.status_code, answer.context["message"]) == (404, says)
        refused = client.get(f"/api/v1/statements/{MONTH}/export/", {"kind": kind, "decimal": "comma"})
        [error] = refused.json()["errors"]
        assert (refused.status_code, error["field"], error["value"]) == (400, "decimal", "comma")


@pytest.mark.parametrize(("given", "needed"), [("first", "last"), ("last", "first")])
def test_a_file_of_the_fleet_refuses_one_end_of_a_row_of_hosts(world: World, given: str, needed: str) -> None:
    answer = signed_in(world.operator).get(reverse("utilisation-level-csv", args=["fleet"]), {given: "alpha"})
    assert answer.status_code == 404
    assert f"{given} is 'alpha'; allowed: together with {needed}." in answer.context["message"]


@pytest.mark.parametrize("role", ["finance", "lead"])
def test_an_unknown_cost_centre_is_refused_without_a_search_of_all_charges(
    world: World, charged: Workload, role: str
) -> None:
    client = signed_in(world.people[role])
    with CaptureQueriesContext(connection) as queries:
        answer = client.get("/api/v1/adjustments/", {"cost_centre": "CC-nowhere"})
    assert answer.status_code == 400
    assert not [each["sql"] for each in queries if 'FROM "telemetry_charge"' in each["sql"]]
    for month in (MONTH, "2026-02"):
        shown = client.get(reverse("chargeback"), {"month": month, "cost_centre": "CC-nowhere"})
        assert shown.status_code == 404


@pytest.mark.parametrize("field", ["pool", "team", "model"])
def test_an_unknown_filter_of_utilisation_is_refused(world: World, field: str) -> None:
    answer = signed_in(world.operator).get(reverse("utilisation"), {field: "nowhere"})
    assert answer.status_code == 404
    assert f"{field} is &#x27;nowhere&#x27;; allowed: " in answer.content.decode()


@pytest.mark.parametrize("name", ["cost-centre-statements", "adjustments"])
def test_a_list_refuses_a_parameter_that_it_does_not_have(world: World, charged: Workload, name: str) -> None:
    answer = signed_in(world.finance).get(reverse(name), {"cost_centre": "CC-vision"})
    assert answer.status_code == 404
    assert "'cost_centre' is not a parameter of this page; allowed: month" in answer.context["message"]


@pytest.mark.parametrize("endpoint", ["cost-centre-statements", "adjustments"])
def test_a_list_of_the_api_refuses_an_unknown_cost_centre(
    world: World, charged: Workload, endpoint: str
) -> None:
    address = f"/api/v1/{endpoint}/"
    for role, code in (("finance", "CC-nowhere"), ("lead", "CC-robotics"), ("lead", "CC-nowhere")):
        answer = signed_in(world.people[role]).get(address, {"cost_centre": code})
        [error] = answer.json()["errors"]
        assert (answer.status_code, error["field"], error["value"]) == (400, "cost_centre", code)
        assert f"cost_centre is '{code}'; allowed: " in error["message"]
    for role, code in (("finance", "CC-static"), ("finance", "CC-vision"), ("lead", "CC-vision")):
        answer = signed_in(world.people[role]).get(address, {"cost_centre": code})
        assert (answer.status_code, answer.json()["count"]) == (200, 0)


# -- months --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "month",
    [
        "2025-12",
        "2199-01",
        "2026-00",
        "٢٠٢٦-01",
        *(pytest.param(month, marks=pytest.mark.long) for month in ("1999-01", "2026-1", "2026-01-01")),
    ],
)
def test_a_month_without_charges_or_in_the_future_is_refused(
    world: World, charged: Workload, month: str
) -> None:
    client, now = signed_in(world.finance), timezone.now()
    for address in (f"{reverse('chargeback')}?month={month}", reverse("month-close", args=[month])):
        answer = client.get(address)
        assert answer.status_code == 404
        assert f"2026-01 to {now:%Y-%m}" in answer.content.decode()


def test_the_first_month_leads_to_no_earlier_month(world: World, charged: Workload) -> None:
    assert "?month=2025-12" not in page(world, "finance")
    assert "?month=2026-01" in page(world, "finance", month="2026-02")


def test_before_the_first_charge_only_the_present_month_is_shown(world: World) -> None:
    client, now = signed_in(world.finance), timezone.now()
    assert client.get(reverse("chargeback")).status_code == 200
    last = (now.replace(day=1) - timedelta(days=1)).strftime("%Y-%m")
    assert client.get(reverse("chargeback"), {"month": last}).status_code == 404
    assert client.post(reverse("month-close", args=[last])).status_code == 404
