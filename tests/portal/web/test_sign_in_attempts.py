"""Test how attempts to sign in are limited, recorded and kept from locking people out."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.core import mail
from django.test import Client, RequestFactory
from django.urls import reverse
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.log_mail import LogMailBackend
from config.secrets_in_logs import without_secrets
from portal.models import AuditEvent, TokenAddress, User
from portal.redis_state.sign_in_attempts import AttemptCounter, count_attempt
from portal.services.people import accounts, sign_ins
from portal.services.people.api_tokens import create_token
from portal.sign_in.attempts import counters_of_attempt
from portal.sign_in.client import client_address, client_of
from scheduler.state import nudge
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db

TOO_MANY = "Too many wrong passwords"
STRANGER, HOME, OFFICE = "203.0.113.9", "198.51.100.7", "2001:db8:1:2::3"


@pytest.fixture(autouse=True)
def no_earlier_attempts() -> Iterator[None]:
    """Begin and end each test without counted attempts."""

    connection = nudge.redis_connection()

    def forget() -> None:
        keys = list(connection.scan_iter(f"{nudge.SITE}:sign-in:*"))
        if keys:
            connection.delete(*keys)

    forget()
    yield
    forget()


def attempt(login: str, password: str, address: str, client: Client | None = None) -> str:
    """Try to sign in, and return the text of the answer; empty if it succeeded."""
    browser = client or Client()
    answer = browser.post(
        reverse("account_login"),
        {"login": login, "password": password},
        REMOTE_ADDR=address,
        HTTP_USER_AGENT="test browser",
    )
    return "" if answer.status_code == 302 else answer.content.decode()


def counters(login: str, address: str) -> list[AttemptCounter]:
    """Return the counters of an attempt with a name that nobody has."""
    return counters_of_attempt(RequestFactory().get("/", REMOTE_ADDR=address), login, [])


def fail(login: str, address: str, count: int = 5, client: Client | None = None) -> None:
    for number in range(count):
        assert TOO_MANY not in attempt(login, f"wrong {number}", address, client), number


def events(person: User | None = None) -> list[AuditEvent]:
    rows = AuditEvent.objects.order_by("pk")
    return list(rows.filter(target=f"user:{person.pk}") if person else rows)


def test_wrong_passwords_from_one_address_delay_only_this_address(world: World) -> None:
    person = world.vision.member
    fail(person.username, STRANGER)
    assert f"{TOO_MANY}. Try again in 10 seconds." in attempt(person.username, PASSWORD, STRANGER)
    assert attempt(person.username, PASSWORD, HOME) == ""


def test_the_name_and_the_address_of_a_person_share_one_count(world: World) -> None:
    person = world.vision.member
    User.objects.filter(pk=person.pk).update(email="Ada@example.org")
    for login in (person.username, "ada@EXAMPLE.org", person.username.upper(), "ada@example.org"):
        fail(login, STRANGER, 1)
    fail("ada@example.org", STRANGER, 1)
    for login in (person.username, "ada@example.org"):
        assert TOO_MANY in attempt(login, PASSWORD, STRANGER)


def test_a_name_that_nobody_has_is_delayed_in_the_same_way(world: World) -> None:
    fail("nobody", STRANGER)
    assert TOO_MANY in attempt("nobody", "wrong", STRANGER)


def test_ipv6_addresses_of_one_network_share_a_count(world: World) -> None:
    person = world.vision.member
    for number in range(5):
        fail(person.username, f"2001:db8:1:2::{number}", 1)
    assert TOO_MANY in attempt(person.username, PASSWORD, OFFICE)
    assert attempt(person.username, PASSWORD, "2001:db8:1:3::1") == ""


def test_a_person_who_signed_in_before_is_not_locked_out_by_strangers_at_the_same_address(
    world: World,
) -> None:
    person, browser = world.vision.member, Client()
    assert attempt(person.username, PASSWORD, OFFICE, browser) == ""
    browser.post(reverse("account_logout"))
    fail(person.username, OFFICE)
    assert TOO_MANY in attempt(person.username, PASSWORD, OFFICE)
    assert attempt(person.username, PASSWORD, OFFICE, browser) == ""
    other = Client()
    other.cookies["gpupool_device"] = "forged:cookie"
    assert TOO_MANY in attempt(person.username, PASSWORD, OFFICE, other)


def test_a_remembered_browser_has_a_limit_of_its_own(world: World) -> None:
    person, browser = world.vision.member, Client()
    assert attempt(person.username, PASSWORD, HOME, browser) == ""
    browser.post(reverse("account_logout"))
    fail(person.username, HOME, client=browser)
    assert TOO_MANY in attempt(person.username, PASSWORD, HOME, browser)


def test_a_right_password_ends_the_count(world: World) -> None:
    person = world.vision.member
    for _ in range(3):
        fail(person.username, HOME, 3)
        assert attempt(person.username, PASSWORD, HOME) == ""


def test_the_delay_doubles_with_each_further_wrong_password(world: World) -> None:
    person = world.vision.member
    fail(person.username, STRANGER)
    for seconds in (20, 40):
        for key in nudge.redis_connection().scan_iter(f"{nudge.SITE}:sign-in:*:delay"):
            nudge.redis_connection().delete(key)  # as if the delay had passed
        fail(person.username, STRANGER, 1)
        assert f"Try again in {seconds} seconds." in attempt(person.username, PASSWORD, STRANGER)


def test_one_address_cannot_try_the_names_of_many_people(world: World) -> None:
    for number in range(49):
        assert count_attempt(counters(f"nobody-{number}", STRANGER)).seconds == 0
    fail("nobody-49", STRANGER, 1)
    assert TOO_MANY in attempt(world.vision.member.username, PASSWORD, STRANGER)
    assert attempt(world.vision.member.username, PASSWORD, HOME) == ""


def test_without_redis_people_sign_in(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = redis.Redis(port=9, retry=Retry(NoBackoff(), 0))
    monkeypatch.setattr(nudge, "redis_connection", lambda: closed)
    assert attempt(world.vision.member.username, PASSWORD, HOME) == ""


@pytest.mark.parametrize(
    ("trusted", "sender", "forwarded", "client"),
    [
        ((), STRANGER, HOME, STRANGER),
        (("127.0.0.1/32",), STRANGER, HOME, STRANGER),
        (("127.0.0.1/32",), "127.0.0.1", HOME, HOME),
        (("127.0.0.1/32",), "127.0.0.1", f"6.6.6.6, {HOME}", HOME),
        (("127.0.0.1/32", "10.0.0.0/8"), "127.0.0.1", f"6.6.6.6, {HOME}, 10.1.1.1", HOME),
        (("127.0.0.1/32",), "127.0.0.1", "nonsense", "127.0.0.1"),
        (("127.0.0.1/32",), "::ffff:127.0.0.1", HOME, HOME),
        (("127.0.0.1/32",), "", HOME, "unknown"),
    ],
)
def test_the_address_behind_trusted_proxies_counts_and_a_forged_one_does_not(
    settings: Any, trusted: tuple[str, ...], sender: str, forwarded: str, client: str
) -> None:
    settings.GPUPOOL_TRUSTED_PROXIES = tuple(ipaddress.ip_network(each) for each in trusted)
    request = RequestFactory().get("/", REMOTE_ADDR=sender, HTTP_X_FORWARDED_FOR=forwarded)
    assert client_address(request) == client


def test_sign_ins_failures_lockouts_and_sign_outs_are_in_the_audit_log_and_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    person, browser = world.vision.member, Client()
    caplog.set_level(logging.INFO, "portal.services.people.sign_ins")
    fail(person.username, HOME)
    attempt(person.username, "a sixth one", HOME)
    attempt(person.username, PASSWORD, OFFICE, browser)
    browser.post(reverse("account_logout"), REMOTE_ADDR=OFFICE)
    verbs = ["fail_sign_in"] * 5 + ["delay_sign_in", "sign_in", "sign_out"]
    found = events(person)
    assert [event.verb for event in found] == verbs
    assert [event.actor for event in found] == [None] * 6 + [person] * 2
    for event, address in zip(found, [HOME] * 6 + [OFFICE] * 2, strict=True):
        assert event.after is not None and event.after["address"] == address
    last = found[-2].after
    assert last == {"address": OFFICE, "agent": "test browser", "method": "password"}
    text = "\n".join(str(record.msg) for record in caplog.records)
    for word in ("fail sign in", "delay sign in", "sign out", "refused during a delay", HOME, OFFICE):
        assert word in text, word
    assert "a sixth one" not in text and "wrong 1" not in text


def test_a_name_that_nobody_has_is_not_stored_because_it_may_be_a_password(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    attempt("hunter2-my-password", "x", STRANGER)
    event = AuditEvent.objects.get(verb="fail_sign_in")
    assert event.target == "organisation:1"
    assert event.after is not None and event.after["address"] == STRANGER
    assert "hunter2" not in str(event.after) + "".join(str(record.msg) for record in caplog.records)


def test_a_closed_account_and_a_wrong_second_factor_are_recorded_failures(world: World) -> None:
    person = world.vision.member
    TOTP.activate(person, generate_totp_secret())
    RecoveryCodes.activate(person)
    browser = Client()
    attempt(person.username, PASSWORD, HOME, browser)
    browser.post(reverse("mfa_authenticate"), {"code": "000000"}, REMOTE_ADDR=HOME)
    code = RecoveryCodes(person.authenticator_set.get(type="recovery_codes")).get_unused_codes()[0]
    browser.post(reverse("mfa_authenticate"), {"code": code}, REMOTE_ADDR=HOME)
    accounts.change_user(actor=world.operator, user=person, active=False, now=world.now)
    attempt(person.username, PASSWORD, HOME)
    methods = [(event.verb, (event.after or {}).get("method")) for event in events(person)]
    assert methods == [
        ("fail_sign_in", "second factor"),
        ("sign_in", "password, recovery_codes"),
        ("change_user", None),
        ("fail_sign_in", "closed account"),
    ]


def test_attempts_with_the_right_password_of_a_closed_account_are_delayed_too(world: World) -> None:
    person = world.vision.member
    accounts.change_user(actor=world.operator, user=person, active=False, now=world.now)
    for _ in range(5):
        attempt(person.username, PASSWORD, HOME)
    assert TOO_MANY in attempt(person.username, PASSWORD, HOME)
    assert len([event for event in events(person) if event.verb == "fail_sign_in"]) == 5


def test_the_first_use_of_a_token_from_each_address_is_recorded(world: World) -> None:
    token, text = create_token(actor=world.vision.member, name="laptop", now=world.now)
    sign_ins._recent_token_uses.clear()
    for address in (HOME, HOME, OFFICE, "2001:db8:1:2::99"):
        headers = {"Authorization": f"Bearer {text}", "User-Agent": "curl/8"}
        assert Client().get("/api/v1/me/", headers=headers, REMOTE_ADDR=address).status_code == 200
    found = AuditEvent.objects.filter(verb="use_token_from_new_address").order_by("pk")
    assert [(event.target, (event.after or {})["address"]) for event in found] == [
        (f"apitoken:{token.pk}", HOME),
        (f"apitoken:{token.pk}", OFFICE),
    ]
    assert found[0].after == {"address": HOME, "agent": "curl/8"}
    assert set(TokenAddress.objects.values_list("address", flat=True)) == {HOME, "2001:db8:1:2::"}


def test_the_link_of_the_mail_about_a_new_password_begins_with_the_url_of_the_portal(
    world: World, settings: Any
) -> None:
    settings.GPUPOOL_PORTAL_URL = "https://gpus.example.org"
    person = world.vision.member
    User.objects.filter(pk=person.pk).update(email="ada@example.org")
    for address in ("ada@example.org", "nobody@example.org"):
        answer = Client().post(reverse("account_reset_password"), {"email": address}, HTTP_HOST="localhost")
        assert answer.status_code == 302
    known, unknown = mail.outbox
    assert "https://gpus.example.org/accounts/password/reset/key/" in str(known.body)
    for message in (known, unknown):
        assert "localhost" not in f"{message.subject} {message.body}"
    assert [event.verb for event in events(person)] == ["request_password_reset"]


def test_a_mail_that_is_written_into_the_log_has_no_link(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    link = "http://127.0.0.1:8470/accounts/password/reset/key/2-abcdef-123/"
    message = mail.EmailMessage("Password reset", f"Click here:\n{link}\n", to=["ada@example.org"])
    assert LogMailBackend().send_messages([message]) == 1
    text = "".join(str(record.msg) for record in caplog.records)
    assert "ada@example.org" in text and "(hidden)" in text and "abcdef" not in text


@pytest.mark.parametrize(
    "text",
    [
        "Internal Server Error: /accounts/password/reset/key/SECRET/",
        "GET http://w1.notebooks.example.net/.gpupool/enter?code=SECRET&x=1 failed",
        "Not Found: /calendar/feed/SECRET.ics",
        "Forbidden: /accounts/break-glass/SECRET/",
        "GET /accounts/oidc/corp/login/callback/?code=SECRET&state=SECRET HTTP/1.1",
    ],
)
def test_secret_addresses_are_hidden_in_logs(text: str) -> None:
    assert "SECRET" not in without_secrets(text) and "(hidden)" in without_secrets(text)


def test_the_agent_of_a_client_is_shortened_and_has_no_control_characters() -> None:
    client = client_of(RequestFactory().get("/", HTTP_USER_AGENT="a\x1b[31m" + "x" * 1000))
    assert len(client.agent) == 200 and "\x1b" not in client.agent
