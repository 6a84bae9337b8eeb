"""Test that the changes that do the most harm need a fresh proof of identity."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from allauth.account.internal.flows.login import AUTHENTICATION_METHODS_SESSION_KEY
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.test import Client
from django.urls import reverse

import portal.services
from portal.models import AuditEvent, User
from portal.services.people.api_tokens import create_token
from portal.services.people.security_settings import change_security_settings
from portal.services.step_up import STEP_UP_VERBS
from scheduler.models import Host
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db
SERVICES = Path(portal.services.__path__[0])


def browser_of(user: User, *, minutes: float) -> Client:
    """Return a browser in which the user gave the password so many minutes ago."""
    browser = Client()
    browser.force_login(user)
    session = browser.session
    for record in session[AUTHENTICATION_METHODS_SESSION_KEY]:
        record["at"] = time.time() - minutes * 60
    session.save()
    return browser


def revoke(browser: Client, host: Host) -> int:
    return browser.post(f"/api/v1/hosts/{host.name}/revoke/", {}, content_type="application/json").status_code


def verbs_of_services() -> list[str]:
    """Return the verb of each call of ``require_fresh_proof``; ``*`` if it is a variable."""
    found = []
    for path in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require_fresh_proof":
                verb = node.args[1]
                found.append(str(verb.value) if isinstance(verb, ast.Constant) else "*")
    return found


def test_each_verb_that_needs_a_fresh_proof_is_checked_in_one_place() -> None:
    # account_security passes four verbs through one function.
    passed_on = {"end_sessions", "reset_password", "reset_second_factor", "change_address"}
    assert sorted(verbs_of_services()) == sorted([*(STEP_UP_VERBS - passed_on), "*"])


def changes(world: World) -> dict[str, tuple[User, str, dict[str, object]]]:
    """Return for each verb the person, the address in the API, and the body."""
    person, host = world.vision.member.username, next(iter(world.hosts.values())).name
    operator, finance, api = world.operator, world.finance, "/api/v1/"
    price = {"model": "H100", "cost": "1.00", "price": "2.00", "valid_from": "2027-01-01T00:00:00Z"}
    return {
        "close_month": (finance, f"{api}statements/2026-02/close/", {}),
        "revoke_host": (operator, f"{api}hosts/{host}/revoke/", {}),
        "set_price": (finance, f"{api}prices/", price),
        "end_sessions": (operator, f"{api}people/{person}/end-sessions/", {}),
        "revoke_tokens": (operator, f"{api}people/{person}/revoke-tokens/", {}),
        "reset_password": (operator, f"{api}people/{person}/reset-password/", {}),
        "reset_second_factor": (operator, f"{api}people/{person}/reset-second-factor/", {}),
        "change_address": (operator, f"{api}people/{person}/address/", {"email": "new@example.org"}),
        "stop_work": (operator, f"{api}people/{person}/stop-work/", {}),
        "remove_person": (operator, f"{api}people/{person}/remove/", {}),
        "change_user": (operator, f"{api}people/{person}/close/", {}),
    }


def test_an_old_session_gets_a_refusal_with_a_code_for_each_of_these_changes(world: World) -> None:
    browsers = {user.pk: browser_of(user, minutes=11) for user in (world.operator, world.finance)}
    before = AuditEvent.objects.count()
    for verb, (user, address, body) in changes(world).items():
        answer = browsers[user.pk].post(address, body, content_type="application/json")
        assert answer.status_code == 403, (verb, answer.content)
        assert answer.json()["code"] == "fresh_proof_required", verb
        assert answer.json()["numbers"] == {"minutes": 10}
    assert AuditEvent.objects.count() == before


def test_a_proof_of_the_last_minutes_allows_the_change_and_the_setting_says_how_many(world: World) -> None:
    host = world.hosts["v1"] if "v1" in world.hosts else next(iter(world.hosts.values()))
    change_security_settings(actor=world.operator, step_up_minutes=3, now=world.now)
    assert revoke(browser_of(world.operator, minutes=4), host) == 403
    assert revoke(browser_of(world.operator, minutes=2), host) == 200


def test_a_password_is_no_proof_for_a_person_with_a_second_factor(world: World) -> None:
    TOTP.activate(world.operator, generate_totp_secret())
    RecoveryCodes.activate(world.operator)
    browser, host = browser_of(world.operator, minutes=0), next(iter(world.hosts.values()))
    assert revoke(browser, host) == 403
    to_password = browser.get(reverse("account_reauthenticate"))
    assert to_password.status_code == 302 and reverse("mfa_reauthenticate") in to_password.headers["Location"]
    code = RecoveryCodes(world.operator.authenticator_set.get(type="recovery_codes")).get_unused_codes()[0]
    browser.post(reverse("mfa_reauthenticate"), {"code": code})
    assert revoke(browser, host) == 200


def test_a_page_asks_for_the_proof_and_then_carries_out_the_form(world: World) -> None:
    person = world.vision.member
    browser = browser_of(world.operator, minutes=11)
    address = reverse("person-change", args=[person.username, "change-address"])
    answer = browser.post(address, {"email": "new@example.org", "why": "moved"})
    assert answer.status_code == 302
    assert answer.headers["Location"].startswith(reverse("account_reauthenticate"))
    done = browser.post(answer.headers["Location"], {"password": PASSWORD, "next": address})
    person.refresh_from_db()
    assert done.status_code == 302 and person.email == "new@example.org"
    event = AuditEvent.objects.get(verb="change_address")
    assert event.why == "moved" and event.actor == world.operator


def test_a_request_with_a_token_needs_no_proof(world: World) -> None:
    _, text = create_token(actor=world.operator, name="script", scopes=["manage"], now=world.now)
    host = next(iter(world.hosts.values()))
    answer = Client().post(
        f"/api/v1/hosts/{host.name}/revoke/",
        {},
        content_type="application/json",
        headers={"Authorization": f"Bearer {text}"},
    )
    assert answer.status_code == 200


def test_a_person_without_the_right_is_not_asked_for_a_proof(world: World) -> None:
    browser = browser_of(world.vision.member, minutes=11)
    answer = browser.post(
        f"/api/v1/hosts/{next(iter(world.hosts))}/revoke/", {}, content_type="application/json"
    )
    assert answer.status_code in (403, 404) and "code" not in answer.json()
