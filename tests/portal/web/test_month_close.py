"""Test the page on which a month is closed: rehearsal, evidence behind each check, and two people."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import Notification, Organisation, User
from portal.models.audit import MONEY_VERBS, QUESTION_VERB
from portal.notices.delivery import write_notices
from portal.reads.money.close_evidence import check_evidence, rehearse_close
from portal.services.money import months
from portal.wording.notices.notice_texts import notice_sentence
from portal.wording.pages.money import close_texts
from scheduler.models import Workload
from telemetry.models import (
    Charge,
    ChargedUntil,
    CloseProposal,
    CostCentreStatement,
    MonthRehearsal,
    Statement,
    StatementLine,
)
from telemetry.money import close_checks
from tests.architecture.sources import ROOT
from tests.portal.charged_january import MONTH, START, charged
from tests.telemetry.rows import change_in_place, insert_copy
from tests.world import World, make_user

__all__ = ["charged"]
pytestmark = pytest.mark.django_db
JANUARY = START.date()


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def chargeback_page(user: User, month: str = MONTH) -> str:
    return client_of(user).get(reverse("chargeback"), {"month": month}).content.decode()


def close_page(user: User, **query: Any) -> str:
    return client_of(user).get(reverse("month-close", args=[MONTH]), query).content.decode()


def audit_page(user: User, **query: Any) -> str:
    return client_of(user).get(reverse("audit"), query).content.decode()


def rehearse(user: User, month: str = MONTH) -> str:
    address = reverse("month-close", args=[month])
    return client_of(user).post(address, {"verb": "rehearse"}, follow=True).content.decode()


@pytest.mark.long
def test_a_rehearsal_runs_every_check_with_the_audit_and_changes_nothing(
    world: World, charged: Workload
) -> None:
    assert "not checked yet" in close_page(world.finance)
    answer = rehearse(world.finance)
    assert re.search(r"(\d+) of \1 checks pass. Nothing has changed", answer)
    shown = close_page(world.finance)
    assert "not checked yet" not in shown and re.search(r"(\d+) of \1 pass", shown)
    assert f"started by {world.finance.username}" in shown
    assert Statement.objects.get(month=JANUARY).state == "open"
    assert not CostCentreStatement.objects.exists()


def test_the_page_of_a_close_runs_no_check_that_reads_all_charge_lines(
    world: World, charged: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearse(world.finance)
    for name in ("sum_differences", "cent_differences", "audit_month", "_gpus_with_wrong_seconds"):
        monkeypatch.setattr(close_checks, name, None)
    text = close_page(world.finance) + chargeback_page(world.finance)
    assert "every second of every GPU is in exactly one bucket" in text


def test_an_auditor_rehearses_a_close_and_others_do_not(world: World, charged: Workload) -> None:
    rehearse(world.people["auditor"])
    assert MonthRehearsal.objects.get().run_by == world.people["auditor"]
    for role in ("member", "lead", "operator"):
        address = reverse("month-close", args=[MONTH])
        answer = client_of(world.people[role]).post(address, {"verb": "rehearse"})
        assert answer.status_code == 403


def test_a_month_that_is_not_over_can_be_rehearsed(world: World, charged: Workload) -> None:
    this_month = f"{timezone.now():%Y-%m}"
    assert "has no charge yet" in rehearse(world.finance, this_month)
    text = client_of(world.finance).get(reverse("month-close", args=[this_month])).content.decode()
    assert "This month is not over" in text and "Close it for good" not in text


def test_a_line_that_the_audit_finds_is_linked(world: World, charged: Workload) -> None:
    line = Charge.objects.filter(bucket="used").earliest("pk")
    twice = insert_copy(line)
    found = rehearse_close(JANUARY, timezone.now(), audit=True)
    urls = {item.url for check in found.checks for item in check_evidence(check, JANUARY)}
    assert urls & {reverse("charge-line", args=[pk]) for pk in (line.pk, twice.pk)}
    assert {check["check"] for check in found.checks if not check["ok"]} >= {
        "every line agrees with the facts"
    }


def test_hosts_whose_gpus_are_not_charged_are_linked(world: World, charged: Workload) -> None:
    alpha = world.hosts["alpha"]
    ChargedUntil.objects.filter(gpu__host=alpha).update(until=START + timedelta(days=3))
    text = close_page(world.finance)
    assert f'<a href="{reverse("host", args=["alpha"])}">host alpha</a>' in text


def test_a_project_without_a_cost_centre_is_linked_with_who_must_act(world: World) -> None:
    check = {"check": "x", "ok": False, "figures": {"unmapped projects": ["Fold"]}}
    [item] = check_evidence(check, JANUARY)
    assert item.text == "project Fold has no cost centre: its lead or finance names one"
    assert item.url == reverse("cost-centres")


def test_a_project_whose_new_cost_centre_is_not_charged_yet_is_linked() -> None:
    check = {"check": "every change of cost centres is charged", "figures": {"not charged": ["fold/main"]}}
    [item] = check_evidence(check, JANUARY)
    assert "fold/main has a new cost centre" in item.text and item.url == reverse("cost-centres")


def test_figures_without_evidence_have_no_links() -> None:
    for figures in ({}, {"due": 0}, {"hosts": []}, {"differences": []}, {"waiting": [], "lost": []}):
        assert check_evidence({"check": "x", "ok": True, "figures": figures}, JANUARY) == []


def test_one_person_closes_a_month_on_the_page(world: World, charged: Workload) -> None:
    address = reverse("month-close", args=[MONTH])
    client = client_of(world.finance)
    answer = client.post(address, {"verb": "close", "why": "complete"}, follow=True).content.decode()
    assert "January 2026 is closed and cannot change any more" in answer
    assert Statement.objects.get(month=JANUARY).closed_by == world.finance
    assert "Rehearse" not in answer and "Its statements" in answer


@pytest.mark.long
def test_two_people_close_a_month_on_the_page(world: World, charged: Workload) -> None:
    Organisation.objects.update(two_step_close=True)
    address, auditor = reverse("month-close", args=[MONTH]), world.people["auditor"]
    assert "Propose to close it" in close_page(world.finance)
    assert "Propose to close it" not in close_page(auditor)
    client_of(world.finance).post(address, {"verb": "propose", "why": "complete"})
    proposal = CloseProposal.objects.get()
    shown = close_page(world.finance)
    assert f"{world.finance.username} proposed to close it" in shown and "Close it for good" not in shown
    refused = client_of(world.finance).post(address, {"verb": "close"})
    assert refused.status_code == 400 and "because you proposed it" in refused.content.decode()
    assert "Close it for good" in close_page(auditor)
    client_of(auditor).post(address, {"verb": "close"})
    statement = Statement.objects.get(month=JANUARY)
    assert (statement.proposed_by, statement.closed_by) == (proposal.proposed_by, auditor)


def test_the_api_rehearses_and_proposes_a_close(world: World, charged: Workload) -> None:
    Organisation.objects.update(two_step_close=True)
    client = client_of(world.finance)
    found = client.get(f"/api/v1/statements/{MONTH}/checks/", {"audit": "true"}).json()
    assert (found["over"], found["audited"], found["closed"], found["proposal"]) == (True, True, False, None)
    assert {"cost_centre": "CC-vision", "currency": "EUR", "total": "100.00"} in found["statements"]
    made = client.post(f"/api/v1/statements/{MONTH}/propose/", {}, "application/json")
    assert made.status_code == 201 and made.json()["proposed_by"] == world.finance.username
    again = client.get(f"/api/v1/statements/{MONTH}/checks/").json()
    assert again["proposal"]["expires_at"] > again["proposal"]["proposed_at"]


def test_the_api_stores_a_rehearsal_that_the_pages_show(world: World, charged: Workload) -> None:
    made = client_of(world.people["auditor"]).post(f"/api/v1/statements/{MONTH}/checks/")
    found = made.json()
    assert made.status_code == 201 and found["run_by"] == world.people["auditor"].username
    assert all(check["ok"] for check in found["checks"]) and found["focus"]["broken"] == []
    stored = MonthRehearsal.objects.get(statement__month=JANUARY)
    assert (stored.checks, stored.focus) == (found["checks"], found["focus"])
    assert close_texts.FOCUS in close_page(world.finance)


def test_finance_sees_who_changed_the_money_of_a_month(world: World, charged: Workload) -> None:
    """Change the payer of idle time of a past month. The change is listed for this month only."""
    now, auditor = timezone.now(), world.people["auditor"]
    months.set_idle_payer(actor=world.finance, month=JANUARY, payer="use", now=now, why="agreed")
    other = make_user("fin-2", finance=True)
    assert "agreed" in close_page(other) and "agreed" in close_page(auditor)
    assert "agreed" in audit_page(other, money_of=MONTH) and "agreed" not in audit_page(
        other, money_of="2026-02"
    )
    assert "agreed" not in audit_page(world.vision.lead, money_of=MONTH)


def test_every_verb_of_the_money_services_is_in_the_journal() -> None:
    found = set()
    for path in (ROOT / "portal/services/money").rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r'verb="(\w+)"', text)) | set(re.findall(r'_record\(.*"(\w+)"', text))
    assert found | {QUESTION_VERB} == set(MONEY_VERBS)


def test_the_leads_who_see_a_statement_get_one_notice_about_it(world: World, charged: Workload) -> None:
    now = timezone.now()
    months.close_month(actor=world.finance, month=JANUARY, now=now)
    write_notices(now + timedelta(minutes=1))
    write_notices(now + timedelta(minutes=2))
    notices = Notification.objects.filter(kind="statements_made")
    [notice] = notices.filter(user=world.vision.lead)
    assert not notices.filter(user__in=(world.vision.member, world.auditor)).exists()
    sentence = "January 2026 is closed. 2 statements of your teams are made."  # CC-vision and CC-static
    assert notice_sentence(notice.kind, notice.numbers) == sentence
    assert f"?month={MONTH}" in client_of(world.vision.lead).get(reverse("notifications")).content.decode()


def test_page_api_and_refusal_name_the_people_who_must_name_a_cost_centre(
    world: World, charged: Workload
) -> None:
    StatementLine.objects.filter(bucket="used").update(cost_centre="")
    for line in Charge.objects.filter(bucket="used"):
        change_in_place(line, cost_centre="")
    who = f"{world.vision.lead.username} (lead of Vision) says which cost centre pays. Finance ("
    client = client_of(world.finance)
    answer = client.post(reverse("month-close", args=[MONTH]), {"verb": "close"})
    checks = client.get(f"/api/v1/statements/{MONTH}/checks/").json()
    closed = client.post(f"/api/v1/statements/{MONTH}/close/", {}, "application/json")
    assert answer.status_code == 400 and closed.status_code == 409
    assert who in checks["unmapped"][0]["who_acts"] and checks["unmapped"][0]["charged"] == "100.00"
    for text in (answer.content.decode(), close_page(world.finance), closed.content.decode()):
        assert who in text
