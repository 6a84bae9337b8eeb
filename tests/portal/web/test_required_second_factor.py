"""Test that people whose role needs a second factor reach nothing before they have one."""

from __future__ import annotations

from io import StringIO

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, User
from portal.services.people.api_tokens import create_token
from portal.services.people.security_settings import change_security_settings
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db
ENROLMENT = "/account/second-factor/"


@pytest.fixture
def required(world: World) -> World:
    """Require a second factor of operators and finance."""
    change_security_settings(actor=world.operator, second_factor_for="operators_and_finance", now=world.now)
    return world


def signed_in(user: User) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser


def test_every_page_leads_an_operator_without_a_second_factor_to_the_enrolment(required: World) -> None:
    for user in (required.operator, required.finance):
        browser = signed_in(user)
        for name in ("home", "account", "people", "settings", "notebooks", "tokens"):
            answer = browser.get(reverse(name))
            assert (answer.status_code, answer.headers.get("Location")) == (302, ENROLMENT), name
        page = browser.get(ENROLMENT).content.decode()
        assert "Your role needs a second factor" in page and reverse("mfa_activate_totp") in page
        assert browser.get(reverse("mfa_activate_totp"), follow=True).status_code == 200


def test_the_api_and_the_entry_to_a_notebook_are_closed_to_the_session(required: World) -> None:
    browser = signed_in(required.operator)
    for answer in (browser.get("/api/v1/me/"), browser.post("/api/v1/workloads/", {})):
        assert answer.status_code == 403 and answer.json()["code"] == "second_factor_required"
    entry = browser.post(reverse("notebook-open", args=["00000000-0000-0000-0000-000000000000"]))
    assert (entry.status_code, entry.headers["Location"]) == (302, ENROLMENT)


def test_a_second_factor_opens_everything_and_losing_it_closes_it_again(required: World) -> None:
    browser = signed_in(required.operator)
    TOTP.activate(required.operator, generate_totp_secret())
    assert browser.get(reverse("home")).status_code == 200
    Authenticator.objects.filter(user=required.operator).delete()
    assert browser.get(reverse("home")).status_code == 302


def test_other_people_and_requests_with_a_token_are_not_asked(required: World) -> None:
    assert signed_in(required.vision.member).get(reverse("home")).status_code == 200
    _, text = create_token(actor=required.operator, name="script", now=required.now)
    answer = Client().get("/api/v1/me/", headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 200


def test_everybody_includes_people_without_a_role(world: World) -> None:
    change_security_settings(actor=world.operator, second_factor_for="everybody", now=world.now)
    assert signed_in(world.vision.member).get(reverse("home")).headers["Location"] == ENROLMENT


def test_the_only_operator_who_lost_the_second_factor_signs_in_with_a_break_glass_link(
    required: World,
) -> None:
    TOTP.activate(required.operator, generate_totp_secret())
    old, out = signed_in(required.operator), StringIO()
    call_command("break_glass", required.operator.username, "--remove-second-factor", stdout=out)
    assert old.get("/api/v1/me/").status_code in (401, 403)
    browser = Client()
    assert browser.post("/accounts" + out.getvalue().strip().split("/accounts", 1)[1]).status_code == 302
    assert browser.get(reverse("home")).headers["Location"] == ENROLMENT
    assert browser.get(reverse("mfa_activate_totp"), follow=True).status_code == 200
    event = AuditEvent.objects.get(verb="create_break_glass_link")
    assert event.after is not None and event.after["removed_second_factor"] is True


def test_a_sign_in_with_the_password_leads_to_the_enrolment(required: World) -> None:
    browser = Client()
    form = {"login": required.operator.username, "password": PASSWORD}
    answer = browser.post(reverse("account_login"), form, follow=True)
    assert answer.redirect_chain[-1][0] == ENROLMENT
