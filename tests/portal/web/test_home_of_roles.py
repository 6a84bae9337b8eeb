"""Test what the home page offers and shows to operators, finance, and people without a team."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.urls import reverse
from django.utils import timezone

from portal.models import Submission, User
from portal.reads.fleet.gpu_overview import attention_list, fleet_overview
from portal.reads.money.overview.month_figures import by_expected_share
from portal.wording.home import dashboard_texts
from scheduler.models import Host, Workload
from telemetry.models import Budget
from tests.portal.charged_january import charged
from tests.portal.web.work_samples import make_waiting, queue_job, signed_in
from tests.world import World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db


def content(user: User, page: str = "home") -> str:
    return " ".join(signed_in(user).get(reverse(page)).content.decode().split())


@pytest.mark.parametrize("page", ["home", "queue", "volumes", "calendar"])
@pytest.mark.parametrize("role", ["operator", "finance"])
def test_a_person_without_a_team_is_offered_no_request(world: World, role: str, page: str) -> None:
    assert reverse("ask") not in content(world.people[role], page)
    assert reverse("notebook-launch") not in content(world.people[role], page)


def test_a_member_is_offered_requests(world: World) -> None:
    for page in ("home", "queue"):
        assert reverse("ask") in content(world.vision.member, page)


def submission(world: World, kind: str, hours: int) -> Submission:
    return Submission.objects.create(
        created_at=timezone.now() - timedelta(hours=hours),
        kind=kind,
        team=world.vision.team,
        author=world.vision.lead,
        payload={"period": "month", "month": "2026-01-01", "currency": "EUR", "amount": "10"}
        if kind == Submission.Kind.BUDGET
        else {"model": "H100", "guaranteed_gpus": 2},
    )


def test_an_operator_sees_requests_by_age_with_the_oldest_first(world: World) -> None:
    young = submission(world, Submission.Kind.QUOTA_CHANGE, 2)
    old = submission(world, Submission.Kind.QUOTA_CHANGE, 26)
    page = signed_in(world.operator).get(reverse("home"))
    decisions = page.context["operations"]["decisions"]
    assert [item["row"].pk for item in decisions["rows"]] == [old.pk, young.pk]
    assert decisions["finding"] == "2 requests wait, the oldest for 26 h."
    assert page.content.decode().index(str(old.public_id)) < page.content.decode().index(str(young.public_id))


def test_finance_sees_only_the_requests_that_it_decides(world: World) -> None:
    submission(world, Submission.Kind.QUOTA_CHANGE, 5)
    budget = submission(world, Submission.Kind.BUDGET, 3)
    decisions = signed_in(world.finance).get(reverse("home")).context["money"]["decisions"]
    assert [item["row"].pk for item in decisions["rows"]] == [budget.pk]


def test_an_operator_sees_the_hosts_that_the_fleet_page_lists(world: World) -> None:
    Host.objects.filter(name="beta").update(admin_state="cordoned", state_reason="new fans")
    page = signed_in(world.operator).get(reverse("home"))
    hosts = page.context["operations"]["hosts"]
    now = timezone.now()
    listed = attention_list(world.operator, fleet_overview(world.operator, now), now)
    assert {row["name"] for row in hosts["rows"]} == {row["host"] for row in listed}
    assert "new fans" in page.content.decode()
    fleet = signed_in(world.operator).get(reverse("fleet")).context["figures"]
    assert f"{fleet['out']} out of service" in hosts["summary"]


def test_queue_pressure_counts_the_requested_gpus_of_each_model(world: World) -> None:
    make_waiting(world, world.vision, "wide", units=8)
    queue_job(world, world.language, "pair", units=2)
    bars = signed_in(world.operator).get(reverse("home")).context["operations"]["pressure"]
    h100 = next(row for row in bars if "H100" in row["label"])
    assert h100["forecast"] == 10 and h100["text"].endswith("2 workloads wait for 10")


def test_the_figures_of_finance_are_those_of_the_chargeback_page(world: World, charged: Workload) -> None:
    client = signed_in(world.finance)
    home, chargeback = client.get(reverse("home")), client.get(reverse("chargeback"))
    assert home.context["money"]["hero"] == chargeback.context["overview"]["hero"]
    assert "Charged today" in home.content.decode()
    close = home.context["money"]["close"]
    month = f"{home.context['money']['close_month']:%Y-%m}"
    there = client.get(reverse("chargeback"), {"month": month}).context["close"]
    assert (close.month, close.finding) == (there.month, there.finding)
    assert f"{reverse('chargeback')}?month={month}#sum" in home.content.decode()


def test_a_refresh_of_the_home_page_reads_no_figures_of_finance(world: World) -> None:
    answer = signed_in(world.finance).get(reverse("home"), {"part": "live"})
    assert answer.status_code == 200 and "Charged today" not in answer.content.decode()


def test_people_who_do_not_see_all_charges_get_no_figures_of_finance(world: World) -> None:
    for user in (world.operator, world.vision.lead):
        assert signed_in(user).get(reverse("home")).context["money"] is None


def test_budgets_come_by_their_expected_share(world: World) -> None:
    month = timezone.now().date().replace(day=1)
    Budget.objects.create(
        team=world.vision.team,
        month=month,
        period="month",
        currency="EUR",
        measure="money",
        amount=Decimal(0),
    )
    money = signed_in(world.finance).get(reverse("home")).context["money"]
    assert [row["expected_percent"] for row in money["budgets"]] == ["0 %"]  # nothing is spent
    assert money["budgets_finding"] == "None of 1 budget is expected to reach 90 %."

    class View:
        def __init__(self, spent: int, forecast: int | None) -> None:
            self.spent, self.amount, self.measure = Decimal(spent), Decimal(100), "money"
            self.forecast = None if forecast is None else Decimal(forecast)

    given = {"calm": View(10, 89), "near": View(10, 90), "over": View(10, 130), "spent": View(101, None)}
    rows = by_expected_share([{"name": name, "view": view} for name, view in given.items()])
    assert [(row["name"], row["near_limit"]) for row in rows] == [
        ("over", True),
        ("spent", True),
        ("near", True),
        ("calm", False),
    ]


def test_the_finding_about_budgets_names_at_most_three() -> None:
    assert dashboard_texts.budgets_finding([], 0, 0) == "There is no budget for this month."
    assert dashboard_texts.budgets_finding(["a"], 1, 6).endswith("by the forecast: a.")
    assert dashboard_texts.budgets_finding(["a", "b", "c", "d"], 4, 6).endswith(
        "by the forecast: a, b and 2 more."
    )
