"""Test that changes of passwords and second factors are in the audit log, without the secrets."""

from __future__ import annotations

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent
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


def audited_verbs(world: World) -> list[str]:
    events = AuditEvent.objects.filter(actor=world.vision.member).order_by("pk")
    assert {event.target for event in events} <= {f"user:{world.vision.member.pk}"}
    return [event.verb for event in events]


def test_a_password_change_is_audited_without_the_password(world: World, client: Client) -> None:
    form = {"oldpassword": "wrong", "password1": NEW, "password2": NEW}
    client.post(reverse("account_change_password"), form)
    assert audited_verbs(world) == []
    client.post(reverse("account_change_password"), form | {"oldpassword": PASSWORD})
    assert audited_verbs(world) == ["set_password"]
    event = AuditEvent.objects.get()
    assert (event.before, event.after) == (None, None)
    world.vision.member.refresh_from_db()
    assert world.vision.member.check_password(NEW)


def test_second_factor_changes_are_audited(
    world: World, client: Client, django_capture_on_commit_callbacks: object
) -> None:
    page = client.get(reverse("mfa_activate_totp"))
    code = format_hotp_value(
        hotp_value(page.context["form"].secret, next(iter(yield_hotp_counters_from_time())))
    )
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        client.post(reverse("mfa_activate_totp"), {"code": code})
    assert Authenticator.objects.filter(user=world.vision.member, type="totp").exists()
    assert audited_verbs(world) == ["turn_on_second_factor"]
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        client.post(reverse("mfa_generate_recovery_codes"))
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        client.post(reverse("mfa_deactivate_totp"))
    assert audited_verbs(world) == ["turn_on_second_factor", "make_recovery_codes", "turn_off_second_factor"]
    assert not Authenticator.objects.filter(user=world.vision.member).exists()
