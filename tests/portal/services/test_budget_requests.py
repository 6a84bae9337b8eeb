"""Test requests for a new budget: a lead asks, finance decides."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.errors import Invalid, NotAllowed
from portal.models import Notification, Submission
from portal.notices import delivery
from portal.services.approvals import decisions, effects
from portal.services.approvals.budget_requests import request_budget
from portal.wording.notices.notice_texts import notice_sentence
from portal.wording.request_texts import submission_summary
from scheduler.core.rejection import OperationRejected
from telemetry.models import Budget, CostCentreShare
from tests.telemetry.rows import directory
from tests.world import World

pytestmark = pytest.mark.django_db
MARCH = date(2026, 3, 1)


def ask(world: World, **changes: Any) -> Submission:
    """Request a budget of 500.00 for Vision in March."""
    fields: dict[str, Any] = {
        "actor": world.vision.lead,
        "team": world.vision.team,
        "month": MARCH,
        "amount": "500",
        "why": "a deadline",
        "now": world.now,
    }
    return request_budget(**(fields | changes))


def test_an_approved_request_changes_the_amount_of_a_budget_and_keeps_its_action(world: World) -> None:
    budget = Budget.objects.create(team=world.vision.team, month=MARCH, amount="100", action="refuse_new")
    row = ask(world)
    budget.refresh_from_db()
    assert budget.amount == 100, "nothing changes before the decision"
    decisions.approve_submission(actor=world.finance, submission=row, now=world.now)
    budget.refresh_from_db()
    assert (budget.amount, budget.action, row.state) == (500, "refuse_new", "approved")


def test_finance_may_approve_another_amount(world: World) -> None:
    row = ask(world, period="year", month=date(2026, 1, 1))
    decisions.approve_submission(
        actor=world.finance, submission=row, changes={"amount": "450.00"}, now=world.now
    )
    budget = Budget.objects.get()
    assert (budget.amount, budget.period, budget.action) == (450, "year", "notify")
    with pytest.raises(Invalid, match="amount"):
        decisions.approve_submission(
            actor=world.finance,
            submission=ask(world),
            changes={"amount": "1.001"},
            now=world.now,
        )


def test_only_a_lead_asks_and_only_finance_decides(world: World) -> None:
    for person in (world.vision.member, world.operator, world.finance, world.language.lead):
        with pytest.raises(NotAllowed):
            ask(world, actor=person)
    row = ask(world)
    for person in (world.operator, world.vision.lead, world.auditor):
        with pytest.raises(NotAllowed):
            decisions.approve_submission(actor=person, submission=row, now=world.now)
    assert row in policy.visible_submissions(world.finance)


def test_a_second_request_for_the_same_budget_is_refused_while_one_waits(world: World) -> None:
    ask(world)
    with pytest.raises(OperationRejected) as refused:
        ask(world, amount="600")
    assert refused.value.code == "budget_request_waits"
    ask(world, measure="gpu_hours")


def test_a_lead_requests_the_budget_of_a_project_and_of_a_cost_centre(world: World) -> None:
    vision = world.vision
    directory("CC-vision", "CC-language")
    for team, code in ((vision, "CC-vision"), (world.language, "CC-language")):
        CostCentreShare.objects.create(
            project=team.project, code=code, valid_from=world.now, created_at=world.now
        )
    path = f"{vision.team.slug}/{vision.project.slug}"
    of_project, of_centre = ask(world, project=vision.project), ask(world, cost_centre="CC-vision")
    assert (of_project.payload["project"], of_centre.payload["cost_centre"]) == (path, "CC-vision")
    ask(world)  # the budget of the team is another one
    with pytest.raises(OperationRejected) as refused:
        ask(world, project=vision.project, amount="600")
    assert refused.value.numbers == {"owner": vision.project.name}
    assert f"for March 2026, project {path}" in submission_summary("budget", of_project.payload)
    assert "for March 2026, cost centre CC-vision" in submission_summary("budget", of_centre.payload)
    assert effects.approval_effect(of_centre, world.now)["sentence"].startswith("CC-vision has no such")
    for row in (of_project, of_centre):
        decisions.approve_submission(actor=world.finance, submission=row, now=world.now)
    budgets = set(Budget.objects.values_list("team", "project", "cost_centre", "amount"))
    assert budgets == {(None, vision.project.pk, "", 500), (None, None, "CC-vision", 500)}


def test_a_project_or_a_cost_centre_of_another_team_is_refused(world: World) -> None:
    directory("CC-language")
    CostCentreShare.objects.create(
        project=world.language.project, code="CC-language", valid_from=world.now, created_at=world.now
    )
    with pytest.raises(Invalid, match=f"allowed: {world.vision.team.slug}/{world.vision.project.slug}"):
        ask(world, project=world.language.project)
    with pytest.raises(Invalid, match="cost_centre is 'CC-language'"):
        ask(world, cost_centre="CC-language")


def test_the_page_and_the_api_offer_the_budgets_of_projects_and_cost_centres(world: World) -> None:
    directory("CC-vision")
    CostCentreShare.objects.create(
        project=world.vision.project, code="CC-vision", valid_from=world.now, created_at=world.now
    )
    client = Client()
    client.force_login(world.vision.lead)
    address, now = reverse("budget-request", args=[world.vision.team.slug]), timezone.now()
    project = f"project:{world.vision.project.pk}"
    choices = client.get(address).context["form"].fields["owner"].choices
    assert [key for key, _ in choices] == ["team", project, "cost_centre:CC-vision"]
    form = {"period": "month", "month": f"{now:%Y-%m}", "measure": "money", "amount": "750.00", "why": ""}
    for owner in (project, "cost_centre:CC-vision"):
        assert client.post(address, {**form, "owner": owner}).status_code == 302
    body = {"team": world.vision.team.slug, "month": f"{now:%Y}-01-01", "period": "year", "amount": "900"}
    path = f"{world.vision.team.slug}/{world.vision.project.slug}"
    answer = client.post("/api/v1/budgets/requests/", {**body, "project": path}, "application/json")
    assert (answer.status_code, answer.json()["payload"]["project"]) == (202, path)
    assert Submission.objects.filter(kind="budget").count() == 3
    operator = Client()
    operator.force_login(world.operator)
    for row in Submission.objects.filter(kind="budget"):
        for viewer in (client, operator):
            page = viewer.get(reverse("submission", args=[row.public_id]))
            assert page.status_code == 200
            assert ("Finance compares it" in page.content.decode()) == ("cost_centre" in row.payload)
    assert operator.get(reverse("approvals")).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"month": date(2026, 2, 1)},
        {"period": "quarter"},
        {"period": "week"},
        {"amount": "-1"},
        {"amount": "1.001"},
        {"measure": "watts"},
    ],
)
def test_a_request_with_a_wrong_value_is_refused(world: World, wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        ask(world, **wrong)


def test_the_effect_names_the_present_budget(world: World) -> None:
    row = ask(world)
    assert "has no such budget now" in effects.approval_effect(row, world.now)["sentence"]
    Budget.objects.create(team=world.vision.team, month=MARCH, amount="100")
    sentence = effects.approval_effect(row, world.now)["sentence"]
    assert sentence == "Vision has 100.00 EUR now, of which 0.00 EUR are spent."


def test_finance_is_notified_of_a_request(world: World) -> None:
    row = ask(world)
    delivery.write_notices(world.now + timedelta(minutes=1))
    notices = Notification.objects.filter(kind="approval_wanted")
    assert {notice.user for notice in notices} == {world.finance}
    sentence = notice_sentence(notices[0].kind, notices[0].numbers, world.finance)
    assert "a budget of 500.00 EUR for March 2026" in sentence
    assert row.state == "waiting"
