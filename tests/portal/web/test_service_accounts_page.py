"""Test the page of service accounts, the scopes on the page of tokens, and the settings of security."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from portal.models import ApiToken, Organisation, Submission, User
from portal.services.approvals import submissions
from tests.portal.web.test_organisation_pages import signed_in
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def test_a_token_gets_the_chosen_scopes_and_the_page_shows_them(world: World) -> None:
    client = signed_in(world.vision.member)
    assert "It may" in client.get(reverse("tokens")).content.decode()
    client.post(reverse("tokens"), {"name": "dashboard", "days": "", "scopes": ["read"]})
    token = ApiToken.objects.get()
    assert token.scopes == ["read"] and 364 < (token.expires_at - token.created_at).days <= 365
    assert re.search(r'data-label="Scopes">read<', client.get(reverse("tokens")).content.decode())
    refused = client.post(reverse("tokens"), {"name": "none", "days": "30"})
    assert refused.status_code == 400 and ApiToken.objects.count() == 1
    Organisation.objects.update(token_days=60)
    page = client.get(reverse("tokens")).content.decode()
    assert "60 days, the longest" in page and "90 days" not in page


def test_a_lead_creates_a_service_account_with_a_token_and_closes_it(world: World) -> None:
    lead, address = signed_in(world.vision.lead), reverse("service-accounts")
    form = {
        "verb": "create",
        "name": "ci",
        "team": world.vision.team.slug,
        "owner": world.vision.member.username,
        "purpose": "nightly",
    }
    assert lead.post(address, form | {"owner": "nobody"}).status_code == 400
    assert lead.post(address, form).status_code == 302
    account = User.objects.get(username="ci")
    assert account.service_owner == world.vision.member
    shown = lead.post(
        address, {"verb": "token", "account": "ci", "name": "pipeline", "days": "30", "scopes": ["submit"]}
    )
    token = ApiToken.objects.get(user=account)
    assert shown.status_code == 200 and shown.content.decode().count(token.prefix) > 1
    assert token.scopes == ["submit"]
    lead.post(address, {"verb": "revoke", "token": token.pk})
    token.refresh_from_db()
    assert token.revoked_at is not None
    lead.post(address, {"verb": "change", "account": "ci", "owner": world.vision.lead.username})
    lead.post(address, {"verb": "change", "account": "ci", "active": "no"})
    account.refresh_from_db()
    assert account.service_owner == world.vision.lead and not account.is_active
    assert "closed" in lead.get(address).content.decode()


def test_people_without_the_right_see_the_service_accounts_of_their_team_and_change_nothing(
    world: World,
) -> None:
    lead, address = signed_in(world.vision.lead), reverse("service-accounts")
    lead.post(
        address,
        {"verb": "create", "name": "ci", "team": world.vision.team.slug, "owner": world.vision.lead.username},
    )
    lead.post(
        address, {"verb": "token", "account": "ci", "name": "hidden token", "days": "", "scopes": ["read"]}
    )
    mate = signed_in(world.vision.members[1])
    page = mate.get(address).content.decode()
    assert ">ci<" in page and "hidden token" not in page and "New service account" not in page
    assert mate.post(address, {"verb": "change", "account": "ci", "active": "no"}).status_code == 403
    stranger = signed_in(world.stranger)
    assert ">ci<" not in stranger.get(address).content.decode()
    assert stranger.post(address, {"verb": "change", "account": "ci", "active": "no"}).status_code == 404
    assert User.objects.get(username="ci").is_active
    people = signed_in(world.operator).get(reverse("people")).content.decode()
    assert 'value="ci"' not in people, "service accounts are not on the page of people"


def test_an_operator_sets_the_security_of_the_organisation(world: World) -> None:
    operator, address = signed_in(world.operator), reverse("settings")
    wanted = {"verb": "security", "token_days": "90", "separate_approver": "yes"}
    wanted["leaver_work"] = "hand_over"
    assert operator.post(address, wanted).status_code == 302
    row = Organisation.objects.get()
    assert (row.token_days, row.separate_approver, row.leaver_work) == (90, True, "hand_over")
    assert operator.post(address, wanted | {"token_days": "0"}).status_code == 400
    assert operator.post(address, wanted | {"separate_approver": ""}).status_code == 302
    row.refresh_from_db()
    assert row.separate_approver is None
    assert signed_in(world.vision.member).post(address, wanted).status_code == 403


def test_the_page_of_an_own_request_says_that_another_person_decides_it(world: World) -> None:
    Organisation.objects.update(separate_approver=True)
    request = submissions.request_quota_change(
        actor=world.operator,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=3,
        now=world.now,
    )
    operator = signed_in(world.operator)
    page = operator.get(reverse("submission", args=[request.public_id])).content.decode()
    assert "another person decides it" in page and "Approve <kbd>" not in page
    decision = {"guaranteed_gpus": 3, "period": "month", "when_used_up": "borrow"}
    assert operator.post(reverse("submission-approve", args=[request.public_id]), decision).status_code == 403
    assert Submission.objects.get(pk=request.pk).state == "waiting"
