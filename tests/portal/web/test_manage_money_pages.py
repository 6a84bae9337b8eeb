"""Test utilisation and chargeback: sums match, access is limited, and a closed month does not change."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal

import pytest
from django.http import HttpResponseBase
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import Submission, User
from portal.reads.utilisation.answers import ANSWERS
from portal.reads.utilisation.query import DIMENSIONS
from scheduler.models import Workload
from telemetry.models import Budget, BudgetForecast, CostCentre, Statement
from tests.portal.charged_january import MONTH, START, charged
from tests.portal.web.test_work_pages import ask_data
from tests.seeds import first_cases
from tests.world import H100, World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def body_of(download: HttpResponseBase) -> str:
    """Return a CSV download of charges without its last line, which counts the rows."""
    return download.getvalue().decode().removesuffix("\r\n").rpartition("\r\n")[0]  # type: ignore[attr-defined]


def test_drilling_down_ends_at_lines_whose_sum_is_the_charge(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    query = {"month": MONTH}
    page = client.get(reverse("chargeback"), query)
    assert page.status_code == 200
    assert "100.00" in page.content.decode()  # 4 GPUs x 10 h x 2.50
    steps = (
        ("cost_centre", "CC-vision"),
        ("team", str(world.vision.team.pk)),
        ("project", str(world.vision.project.pk)),
        ("type", "training"),
        ("workload", str(charged.pk)),
    )
    for name, value in steps:
        query[name] = value
        page = client.get(reverse("chargeback"), query)
        assert page.status_code == 200, name
    rows = list(
        csv.DictReader(io.StringIO(body_of(client.get(reverse("chargeback"), query | {"format": "csv"}))))
    )
    assert sum(Decimal(row["charged"]) for row in rows) == Decimal(100)
    assert {row["workload"] for row in rows} == {"fit"}


def test_the_conservation_line_is_shown_with_a_difference_of_zero(world: World, charged: Workload) -> None:
    page = signed_in(world.finance).get(reverse("chargeback"), {"month": MONTH}).content.decode()
    assert "Does it add up?" in page
    assert ">0.00</b>" in page.replace("</svg>", ">")


def test_the_shown_figures_of_the_conservation_line_add_up_to_the_cent(
    world: World, charged: Workload
) -> None:
    page = signed_in(world.finance).get(reverse("chargeback"), {"month": MONTH}).content.decode()
    line = page.split('class="equation"')[1].split("check-result")[0]
    figures = [Decimal(figure.replace(",", "")) for figure in re.findall(r"<b>([\d,]+\.\d\d)</b>", line)]
    charged_to_teams, margin, not_sold, overhead, cost = figures
    assert not_sold % 1 != 0  # a whole number would hide missing cents
    assert charged_to_teams - margin + not_sold + overhead == cost


def test_members_see_their_own_charges_and_people_of_other_teams_do_not(
    world: World, charged: Workload
) -> None:
    mine = signed_in(world.vision.member).get(reverse("chargeback"), {"month": MONTH}).content.decode()
    theirs = signed_in(world.language.lead).get(reverse("chargeback"), {"month": MONTH}).content.decode()
    assert "CC-vision" in mine and "Does it add up?" not in mine
    assert "CC-vision" not in theirs and "Nothing is charged to your teams or to you in this month" in theirs


@pytest.mark.long
def test_finance_closes_the_month_once(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    assert "every second of every GPU" in client.get(reverse("month-close", args=[MONTH])).content.decode()
    assert client.post(reverse("month-close", args=[MONTH]), {"why": "on time"}).status_code == 302
    assert Statement.objects.get(month="2026-01-01").state == "closed"
    assert "Not signed" in client.get(reverse("chargeback"), {"month": MONTH}).content.decode()
    assert client.post(reverse("month-close", args=[MONTH]), {"why": "again"}).status_code == 400


@pytest.mark.parametrize("role", ["member", "lead", "operator", "auditor", "stranger"])
def test_only_finance_closes_a_month_or_sets_a_price(world: World, charged: Workload, role: str) -> None:
    client = signed_in(world.people[role])
    assert client.post(reverse("month-close", args=[MONTH]), {}).status_code == 403
    price = {"pool": "", "model": H100, "cost": "1", "price": "1", "valid_from": "2126-01-01T00:00"}
    assert client.post(reverse("rate-card"), price).status_code == 403
    assert not Statement.objects.filter(state="closed").exists()


def test_a_price_and_a_budget_are_set_for_the_future(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    price = {
        "pool": "",
        "model": H100,
        "cost": "1.5",
        "price": "x",
        "valid_from": "2126-01-01T00:00",
        "note": "",
    }
    assert client.post(reverse("rate-card"), price).status_code == 400
    assert client.post(reverse("rate-card"), price | {"price": "1.75"}).status_code == 302
    assert (
        client.post(
            reverse("budgets"),
            {
                "verb": "budget",
                "team": "vision",
                "month": "2126-01",
                "measure": "gpu_hours",
                "amount": "9",
                "action": "notify",
            },
        ).status_code
        == 302
    )
    assert Budget.objects.get().measure == "gpu_hours"


def test_finance_sets_a_refund_limit_on_the_rate_card(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    limit = {
        "verb": "refund_limit",
        "pool": "shared",
        "forgiven_minutes": "10081",
        "valid_from": "2126-01-01T00:00",
    }
    refused = client.post(reverse("rate-card"), limit)
    assert refused.status_code == 400 and "0 to 10,080 minutes" in refused.content.decode()
    assert client.post(reverse("rate-card"), limit | {"forgiven_minutes": "30"}).status_code == 302
    page = client.get(reverse("rate-card")).content.decode()
    assert "at most the last 60 minutes" in page and "at most the last 30 minutes from" in page
    assert signed_in(world.operator).post(reverse("rate-card"), limit).status_code == 403


def test_the_unused_time_of_a_dedicated_pool_has_its_own_label(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    query = {"month": MONTH, "cost_centre": "CC-static", "team": str(world.vision.team.pk)}
    assert "dedicated pool, unused" in client.get(reverse("chargeback"), query).content.decode()
    query |= {"project": "", "type": "", "workload": ""}
    page = client.get(reverse("chargeback"), query).content.decode()
    assert "charged: dedicated pool, unused" in page and "reserved but not used" not in page


def test_finance_sees_the_effect_of_each_payer_of_idle_time_and_chooses_one(
    world: World, charged: Workload
) -> None:
    client, url = signed_in(world.finance), reverse("idle-payer", args=[MONTH])
    assert url in client.get(reverse("chargeback"), {"month": MONTH}).content.decode()
    page = client.get(url).content.decode()
    assert "Robotics" in page and "Set the payer" in page
    assert client.post(url, {"payer": "nobody"}).status_code == 400
    assert client.post(url, {"payer": "guarantee", "why": "agreed"}).status_code == 302
    assert Statement.objects.get(month=START).idle_payer == "guarantee"
    auditor = signed_in(world.auditor)
    assert "Set the payer" not in auditor.get(url).content.decode()
    assert auditor.post(url, {"payer": "use"}).status_code == 403


@pytest.mark.parametrize("month", ["2026-13", "x", "0000-01", "9999-01", "2026"])
def test_an_invalid_month_is_not_found(world: World, month: str) -> None:
    assert signed_in(world.finance).get(reverse("chargeback"), {"month": month}).status_code == 404


# -- utilisation ---------------------------------------------------------------------------------------------


PERIOD = {"start": "2026-01-01", "end": "2026-02-01"}


def test_utilisation_ends_now_and_shows_waits_in_human_units(world: World) -> None:
    before = timezone.now()
    page = signed_in(world.operator).get(reverse("utilisation"), {"period": "24h"}).content.decode()
    assert any(f"{moment:%H:%M}. Coverage" in page for moment in (before, timezone.now()))
    assert "Typical wait" in page and "19 of 20 wait at most" in page
    assert not re.search(r"\bp(50|95)\b", page)


@pytest.mark.parametrize("role", ["member", "operator", "finance", "stranger"])
def test_every_role_may_read_the_utilisation_pages(world: World, charged: Workload, role: str) -> None:
    page = signed_in(world.people[role]).get(reverse("utilisation"), PERIOD)
    assert page.status_code == 200
    assert "Where the GPU-hours go" in page.content.decode()


@pytest.mark.parametrize("dimension", first_cases(2, [name for name, _ in DIMENSIONS]))
def test_utilisation_is_shown_by_every_dimension(world: World, charged: Workload, dimension: str) -> None:
    assert (
        signed_in(world.operator).get(reverse("utilisation"), PERIOD | {"by": dimension}).status_code == 200
    )


@pytest.mark.parametrize("chart", first_cases(3, ANSWERS))
def test_every_chart_has_its_csv_with_a_header(world: World, charged: Workload, chart: str) -> None:
    response = signed_in(world.operator).get(reverse("utilisation-csv", args=[chart]), PERIOD)
    assert response.status_code == 200
    assert response.getvalue().decode().splitlines()[0] == ",".join(ANSWERS[chart].columns)


def test_the_steps_of_the_waterfall_sum_to_the_capacity(world: World, charged: Workload) -> None:
    text = (
        signed_in(world.operator)
        .get(reverse("utilisation-csv", args=["waterfall"]), PERIOD)
        .getvalue()
        .decode()
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sum(float(row["gpu_hours"]) for row in rows[1:]) == pytest.approx(float(rows[0]["gpu_hours"]))
    assert sum(Decimal(row["cost"]) for row in rows[1:]) == Decimal(rows[0]["cost"])


def test_users_of_other_teams_are_not_named(world: World, charged: Workload) -> None:
    url = reverse("utilisation-csv", args=["use-by"])
    assert (
        world.vision.member.username
        in signed_in(world.operator).get(url, PERIOD | {"by": "user"}).getvalue().decode()
    )
    assert (
        world.vision.member.username
        not in signed_in(world.language.member).get(url, PERIOD | {"by": "user"}).getvalue().decode()
    )


@pytest.mark.parametrize(
    "query",
    [
        {"period": "x"},
        {"start": "2026-01-01"},
        {"start": "2026-02-01", "end": "2026-01-01"},
        {"start": "1", "end": "9999-12-31"},
        {"by": "x"},
    ],
)
def test_an_invalid_period_is_refused_with_what_is_allowed(world: World, query: dict[str, str]) -> None:
    assert signed_in(world.operator).get(reverse("utilisation"), query).status_code == 404


@pytest.mark.parametrize(
    ("role", "sees"), [("member", False), ("lead", False), ("finance", True), ("auditor", True)]
)
def test_the_cost_of_gpus_is_shown_only_to_roles_that_see_everything(
    world: World, charged: Workload, role: str, sees: bool
) -> None:
    client = signed_in(world.people[role])
    card = client.get(reverse("rate-card")).content.decode()
    assert ">2.50<" in card and (">2.0301<" in card) is sees
    lines = {
        "month": MONTH,
        "cost_centre": "CC-vision",
        "team": world.vision.team.pk,
        "project": world.vision.project.pk,
        "type": "training",
        "workload": charged.pk,
        "format": "csv",
    }
    for query in ({"month": MONTH, "format": "csv"}, lines):
        head = next(csv.reader(io.StringIO(client.get(reverse("chargeback"), query).getvalue().decode())))
        assert ("cost" in head) is sees and "charged" in head
    period = {"start": "2026-01-01", "end": "2026-02-01"}
    steps = list(
        csv.DictReader(
            io.StringIO(
                client.get(reverse("utilisation-csv", args=["waterfall"]), period).getvalue().decode()
            )
        )
    )
    assert any(step["cost"] for step in steps) is sees


# -- budgets -------------------------------------------------------------------------------------------------


def test_pages_show_a_budget_of_gpu_hours_beside_that_of_money(world: World) -> None:
    month = timezone.now().date().replace(day=1)
    for measure, amount in (("money", "1000.00"), ("gpu_hours", "90.00")):
        Budget.objects.create(team=world.vision.team, month=month, measure=measure, amount=amount)
    page = signed_in(world.finance).get(reverse("budgets")).content.decode()
    assert "1,000.00" in page and "90.0 GPU-h" in page
    home = signed_in(world.vision.member).get(reverse("home"))
    (panel,) = home.context["panels"]
    assert [(bar["label"][:9], bar["text"]) for bar in panel["budgets"]][1] == ("GPU-hours", "90 left of 90")
    assert len(panel["budgets"]) == 2


def test_the_page_of_budgets_shows_the_range_and_the_record_of_a_forecast(world: World) -> None:
    now = timezone.now()
    year = Budget.objects.create(
        team=world.vision.team, period="year", month=now.date().replace(month=1, day=1), amount="1000.00"
    )
    BudgetForecast.objects.create(
        budget=year,
        expected=700,
        low=650,
        high=812,
        past_periods=10,
        past_inside=9,
        past_error=0.063,
        as_of=now,
    )
    page = " ".join(signed_in(world.finance).get(reverse("budgets")).content.decode().split())
    assert "€650.00 to €812.00" in page
    assert "9 of 10 years ended inside the range; the median error was 6 %." in page
    assert f"{now:%Y}</span>" in page


def test_a_lead_requests_a_different_budget_on_a_page_and_finance_finds_the_request(world: World) -> None:
    lead, url = signed_in(world.vision.lead), reverse("budget-request", args=["vision"])
    assert (
        reverse("budget-request", args=["vision"])
        in lead.get(reverse("team", args=["vision"])).content.decode()
    )
    form = {
        "owner": "team",
        "period": "month",
        "month": "2126-04",
        "measure": "money",
        "amount": "x",
        "why": "",
    }
    assert lead.post(url, form).status_code == 400
    assert lead.post(url, form | {"amount": "750.00"}).status_code == 302
    page = signed_in(world.finance).get(reverse("budgets")).content.decode()
    row = Submission.objects.get(kind="budget")
    assert "A budget of 750.00 EUR for April 2126" in page
    assert reverse("submission", args=[row.public_id]) in page
    approve = reverse("submission-approve", args=[row.public_id])
    assert signed_in(world.finance).post(approve, {"amount": "700.00", "comment": ""}).status_code == 302
    assert str(Budget.objects.get().amount) == "700.00"


def test_a_budget_request_names_an_invalid_month_and_the_allowed_form(world: World) -> None:
    wrong = {"owner": "team", "period": "month", "month": "2026-13", "measure": "money", "amount": "500"}
    answer = signed_in(world.vision.lead).post(reverse("budget-request", args=["vision"]), wrong)
    assert answer.status_code == 400
    assert "allowed: a year and a month, such as 2026-03" in answer.content.decode()


def test_only_finance_and_auditors_see_budgets_of_cost_centres(world: World) -> None:
    Budget.objects.create(cost_centre="CC-88", month=timezone.now().date().replace(day=1), amount="10.00")
    assert "CC-88" in signed_in(world.finance).get(reverse("budgets")).content.decode()
    assert "CC-88" not in signed_in(world.vision.lead).get(reverse("budgets")).content.decode()


def test_finance_sets_the_budget_of_a_cost_centre_for_a_quarter(world: World) -> None:
    now = timezone.now()
    CostCentre.objects.create(code="CC-88", created_at=now)
    form = {
        "verb": "budget",
        "cost_centre": "CC-88",
        "period": "quarter",
        "month": "2126-04",
        "measure": "money",
        "amount": "9",
        "action": "stop_running",
    }
    client = signed_in(world.finance)
    assert client.post(reverse("budgets"), form | {"month": "2126-05"}).status_code == 400
    assert client.post(reverse("budgets"), form).status_code == 302
    assert Budget.objects.get().cost_centre == "CC-88"


def test_a_request_shows_the_gpu_hours_that_remain_after_it(world: World) -> None:
    client, month = signed_in(world.vision.member), timezone.now().date().replace(day=1)
    data = ask_data(world, kind="job", command="true", count="2", length="3", length_unit="hours")
    assert client.post(reverse("ask-preview"), data).context["preview"]["price"]["hours_left"] is None
    Budget.objects.create(team=world.vision.team, month=month, measure="gpu_hours", amount="4.00")
    price = client.post(reverse("ask-preview"), data).context["preview"]["price"]
    assert (price["hours_left"], price["hours_over"]) == ("-2.0", True)
