"""Test the account page, the list of browser sessions, and codes of second factors."""

from __future__ import annotations

import pytest
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from portal.models import ApiToken, AuditEvent, BrowserSession, User
from portal.redis_state.sign_in_attempts import use_code_once
from portal.services.people.api_tokens import create_token
from portal.wording.people.device_texts import device_name
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
EDGE = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0"


def signed_in(user: User, address: str = "192.0.2.7", agent: str = FIREFOX) -> Client:
    """Return a browser in which the user has signed in with the password."""
    browser = Client(REMOTE_ADDR=address, HTTP_USER_AGENT=agent)
    browser.post(reverse("account_login"), {"login": user.username, "password": PASSWORD})
    return browser


def is_signed_in(browser: Client) -> bool:
    return browser.get("/api/v1/me/").status_code == 200


def recovery_codes(user: User) -> list[str]:
    TOTP.activate(user, generate_totp_secret())
    codes: list[str] = RecoveryCodes.activate(user).get_unused_codes()
    return codes


def test_the_page_has_each_section_and_lists_the_browsers_with_device_and_address(world: World) -> None:
    person = world.vision.member
    create_token(actor=person, name="laptop", now=world.now)
    browser = signed_in(person)
    signed_in(person, "198.51.100.24", EDGE)
    page = browser.get(reverse("account")).content.decode()
    for section in ("profile", "password", "second-factor", "sessions", "tokens", "ways", "sign-ins"):
        assert f'id="{section}"' in page, section
    for text in ("Firefox, Linux", "Edge, Windows", "198.51.100.24", "this one", "laptop", person.email):
        assert text in page, text


def test_the_earlier_addresses_lead_to_their_sections(world: World) -> None:
    browser = signed_in(world.vision.member)
    for address, section in (
        ("/preferences/", "profile"),
        ("/accounts/2fa/", "second-factor"),
        ("/accounts/2fa/webauthn/", "second-factor"),
    ):
        answer = browser.get(address)
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/account/#{section}")


def test_one_session_ends_and_the_others_stay(world: World) -> None:
    person = world.vision.member
    mine, lost = signed_in(person), signed_in(person, "198.51.100.24", EDGE)
    row = BrowserSession.objects.get(address="198.51.100.24")
    assert mine.post(reverse("account"), {"verb": "end-session", "session": row.pk}).status_code == 302
    assert is_signed_in(mine) and not is_signed_in(lost)
    assert not Session.objects.filter(session_key=row.session_key).exists()
    event = AuditEvent.objects.get(verb="end_own_session")
    assert event.actor == person and (event.before or {})["address"] == "198.51.100.24"


def test_a_repeated_request_to_end_a_session_gets_the_first_answer(world: World) -> None:
    mine = signed_in(world.vision.member)
    signed_in(world.vision.member, "198.51.100.24", EDGE)
    row = BrowserSession.objects.get(address="198.51.100.24")
    key = {"Idempotency-Key": "0b8f6c3e-end-of-a-session"}
    address = f"/api/v1/me/sessions/{row.pk}/end/"
    answers = [mine.post(address, {}, content_type="application/json", headers=key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json() and answers[0].json()["device"] == "Edge, Windows"


def test_nobody_ends_a_session_of_another_person(world: World) -> None:
    other = signed_in(world.language.member)
    row = BrowserSession.objects.get(user=world.language.member)
    browser = signed_in(world.vision.member)
    assert browser.post(reverse("account"), {"verb": "end-session", "session": row.pk}).status_code == 404
    assert browser.post(f"/api/v1/me/sessions/{row.pk}/end/").status_code == 404
    assert is_signed_in(other)


def test_signing_out_everywhere_keeps_only_this_browser_and_the_tokens(world: World) -> None:
    person = world.vision.member
    create_token(actor=person, name="laptop", now=world.now)
    mine, others = signed_in(person), [signed_in(person, f"198.51.100.{n}") for n in (1, 2)]
    mine.post(reverse("account"), {"verb": "end-sessions"})
    assert is_signed_in(mine) and not any(is_signed_in(other) for other in others)
    assert [row["address"] for row in mine.get("/api/v1/me/sessions/").json()["results"]] == ["192.0.2.7"]
    assert ApiToken.objects.filter(revoked_at=None).count() == 1


def test_a_token_lists_and_ends_sessions_and_can_be_revoked_with_them(world: World) -> None:
    person = world.vision.member
    _, text = create_token(actor=person, name="laptop", now=world.now)
    browser, program = signed_in(person), Client(headers={"Authorization": f"Bearer {text}"})
    found = program.get("/api/v1/me/sessions/").json()["results"]
    assert [(row["device"], row["address"]) for row in found] == [("Firefox, Linux", "192.0.2.7")]
    body = {"revoke_tokens": True}
    done = program.post("/api/v1/me/sessions/end/", body, content_type="application/json")
    assert done.json() == {"revoked_tokens": ["laptop"]}
    assert not is_signed_in(browser) and program.get("/api/v1/me/").status_code == 401


def test_second_factors_and_sign_ins_are_listed_without_secrets(world: World) -> None:
    person = world.vision.member
    browser, codes = signed_in(person), recovery_codes(person)
    found = browser.get("/api/v1/me/second-factors/")
    kinds = [(row["kind"], row["codes_left"]) for row in found.json()["results"]]
    assert kinds == [("totp", None), ("recovery_codes", 10)]
    page = browser.get(reverse("account")).content.decode()
    assert "Recovery codes, 10 left" in " ".join(page.split())
    assert not any(code in found.content.decode() + page for code in codes)
    (event,) = browser.get("/api/v1/me/sign-ins/").json()["results"]
    assert (event["address"], event["device"], event["method"]) == ("192.0.2.7", "Firefox, Linux", "password")


def test_wrong_codes_from_several_addresses_delay_the_account_and_not_others(world: World) -> None:
    person, address = world.vision.member, reverse("mfa_authenticate")
    codes = recovery_codes(person)
    for number in range(5):
        signed_in(person, f"198.51.100.{number}").post(address, {"code": "000000"})
    browser = signed_in(person, "203.0.113.9")
    answer = browser.post(address, {"code": codes[0]}).content.decode()
    assert "Too many wrong codes. Try again in" in answer and not is_signed_in(browser)
    delays = AuditEvent.objects.filter(verb="delay_sign_in", target=f"user:{person.pk}")
    assert [(event.after or {})["seconds"] for event in delays] == [10]
    other, other_codes = world.language.member, recovery_codes(world.language.member)
    browser = signed_in(other, "203.0.113.9")
    browser.post(address, {"code": other_codes[0]})
    assert is_signed_in(browser)


def test_a_code_signs_in_once(world: World) -> None:
    person, address = world.vision.member, reverse("mfa_authenticate")
    code = recovery_codes(person)[0]
    first, second = signed_in(person), signed_in(person, "198.51.100.24")
    first.post(address, {"code": code})
    second.post(address, {"code": code})
    assert is_signed_in(first) and not is_signed_in(second)


def test_two_requests_with_one_code_are_not_both_accepted(world: World) -> None:
    # Both requests may read the row of the second factor before either has saved it.
    assert use_code_once(1, "123 456")
    assert not use_code_once(1, "123456")
    assert use_code_once(2, "123456")


@pytest.mark.parametrize(
    ("agent", "name"), [(FIREFOX, "Firefox, Linux"), (EDGE, "Edge, Windows"), ("", "Unknown program")]
)
def test_a_device_is_named_by_browser_and_system(agent: str, name: str) -> None:
    assert device_name(agent) == name
