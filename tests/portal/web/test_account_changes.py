"""Test that changes of passwords and second factors are audited, and that they end other sessions."""

from __future__ import annotations

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, User, WorkspaceSession
from portal.services.people.api_tokens import create_token, token_in_force
from portal.services.work import launch
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db
NEW = "another long enough one"


@pytest.fixture
def client(world: World) -> Client:
    """Return a browser in which the member has just entered the password.

    A change of the second factor requires a recently entered password.
    """
    browser = Client()
    browser.post(reverse("account_login"), {"login": world.vision.member.username, "password": PASSWORD})
    browser.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    return browser


@pytest.fixture
def hijacked(world: World) -> Client:
    """Return another browser that is signed in as the member."""
    browser = Client()
    browser.force_login(world.vision.member)
    return browser


def is_signed_in(browser: Client) -> bool:
    return browser.get("/api/v1/me/").status_code == 200


def audited_verbs(world: World) -> list[str]:
    events = AuditEvent.objects.filter(actor=world.vision.member).order_by("pk")
    assert {event.target for event in events} <= {f"user:{world.vision.member.pk}"}
    return [event.verb for event in events if event.verb != "sign_in"]


def test_a_password_change_is_audited_without_the_password(world: World, client: Client) -> None:
    form = {"oldpassword": "wrong", "password1": NEW, "password2": NEW}
    client.post(reverse("account_change_password"), form)
    assert audited_verbs(world) == []
    client.post(reverse("account_change_password"), form | {"oldpassword": PASSWORD})
    assert audited_verbs(world) == ["set_password"]
    event = AuditEvent.objects.get(verb="set_password")
    assert (event.before, event.after) == (
        None,
        {"address": "127.0.0.1", "agent": "", "revoked_tokens": []},
    )
    world.vision.member.refresh_from_db()
    assert world.vision.member.check_password(NEW)


def test_a_new_own_password_ends_other_sessions_and_keeps_this_one(
    world: World, client: Client, hijacked: Client
) -> None:
    person = world.vision.member
    lab = launch.launch_notebook(actor=person, project=world.vision.project, pool=world.shared, now=world.now)
    WorkspaceSession.objects.create(token_hash="x", user=person, workload=lab, created_at=world.now)
    _, text = create_token(actor=person, name="laptop", now=world.now)
    page = client.get(reverse("account_change_password")).content.decode()
    for part in ("Your other sessions end", "1 waiting workloads continue", "laptop", "Also revoke my API"):
        assert part in page, part
    form = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW}
    answer = client.post(reverse("account_change_password"), form, follow=True)
    assert "API tokens of yours that still work: 1." in answer.content.decode()
    assert is_signed_in(client) and not is_signed_in(hijacked)
    assert WorkspaceSession.objects.get().ended_at is not None
    assert token_in_force(text, world.now)


def test_a_new_own_password_revokes_the_tokens_if_the_person_says_so(world: World, client: Client) -> None:
    _, text = create_token(actor=world.vision.member, name="laptop", now=world.now)
    form = {"oldpassword": PASSWORD, "password1": NEW, "password2": NEW, "revoke_tokens": "on"}
    answer = client.post(reverse("account_change_password"), form, follow=True)
    assert "still work" not in answer.content.decode()
    assert token_in_force(text, world.now) is None


@pytest.mark.django_db(transaction=True)  # allauth calls the adapter after the commit
def test_each_change_of_the_second_factor_is_audited_ends_other_sessions_and_keeps_this_one(
    world: World, client: Client
) -> None:
    page = client.get(reverse("mfa_activate_totp"))
    assert "Your other sessions end" in page.content.decode()
    code = format_hotp_value(
        hotp_value(page.context["form"].secret, next(iter(yield_hotp_counters_from_time())))
    )
    for name, form in (
        ("mfa_activate_totp", {"code": code}),
        ("mfa_generate_recovery_codes", {}),
        ("mfa_deactivate_totp", {}),
    ):
        other = Client()
        other.force_login(User.objects.get(pk=world.vision.member.pk))
        assert is_signed_in(other)
        client.post(reverse(name), form)
        assert is_signed_in(client), name
        assert not is_signed_in(other), name
    assert audited_verbs(world) == ["turn_on_second_factor", "make_recovery_codes", "turn_off_second_factor"]
    assert not Authenticator.objects.filter(user=world.vision.member).exists()


def test_an_operator_who_changes_the_own_account_stays_signed_in(world: World) -> None:
    own, other = Client(), Client()
    for browser in (own, other):
        browser.force_login(world.operator)
    url = reverse("person-change", args=[world.operator.username, "end-sessions"])
    assert own.post(url, {}).status_code == 302
    assert is_signed_in(own) and not is_signed_in(other)
    answer = own.post(
        f"/api/v1/people/{world.operator.username}/end-sessions/", {}, content_type="application/json"
    )
    assert answer.status_code == 200, answer.content
    assert is_signed_in(own)
