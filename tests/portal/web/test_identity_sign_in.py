"""Test sign-in with an identity provider: what is accepted, and which sentence refuses the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from allauth.socialaccount.models import SocialAccount
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, BreakGlassLink, IdentityProvider, Organisation, User
from portal.redis_state.sign_in_attempts import ADDRESS_LIMITS, START_LIMITS
from portal.services.people import account_security
from portal.services.people.identity import providers
from portal.services.people.password_links import password_link
from portal.sign_in.attempts import refused_identities, started_sign_ins
from portal.sign_in.oidc.discovery import PublicKey, _public_key
from portal.sign_in.oidc.id_token import verify_id_token
from portal.sign_in.oidc.providers import ProviderSettings
from portal.sign_in.oidc.refusals import SignInRefused
from scheduler.state import nudge
from tests.portal.identity_provider import (
    CLIENT_ID,
    KEY,
    KEY_ID,
    SECRET,
    SmallProvider,
    authorization_request,
    small_provider,
)
from tests.seeds import first_cases
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db

STARTS = started_sign_ins("127.0.0.1").key
REFUSALS = refused_identities("127.0.0.1").key  # the count of refusals from the address of the tests
ADA = {"sub": "ada-1", "preferred_username": "ada", "email": "ada@example.org", "name": "Ada L"}


@pytest.fixture(autouse=True)
def no_earlier_refusals() -> Iterator[None]:
    """Begin and end each test without counted refusals and starts."""
    connection = nudge.redis_connection()
    counted = [key for name in (REFUSALS, STARTS) for key in (name, f"{name}:delay")]
    connection.delete(*counted)
    yield
    connection.delete(*counted)


@pytest.fixture(scope="module")
def served() -> Iterator[SmallProvider]:
    with small_provider() as found:
        yield found


@pytest.fixture
def provider(world: World, served: SmallProvider) -> Iterator[SmallProvider]:
    """Return a provider that the portal knows, and undo the changes of the test."""
    before = dict(served.__dict__)
    served.claims, served.codes, served.token_requests = dict(ADA), {}, []
    providers.create_provider(
        actor=world.operator,
        name="Corp",
        slug="corp",
        issuer=served.issuer,
        client_id=CLIENT_ID,
        secret=SECRET,
        now=world.now,
    )
    yield served
    served.__dict__.update(before)


def signed_in_as(browser: Client) -> str:
    pk = browser.session.get("_auth_user_id")
    return User.objects.get(pk=pk).username if pk else ""


def connect(person: User, subject: str = "ada-1", slug: str = "corp") -> None:
    SocialAccount.objects.create(user=person, provider=slug, uid=subject, extra_data={})


def test_a_new_person_gets_an_account_and_returns_to_it(provider: SmallProvider) -> None:
    browser = Client()
    assert provider.answer(browser).status_code == 302
    assert signed_in_as(browser) == "ada"
    person = User.objects.get(username="ada")
    assert (person.email, person.first_name, person.has_usable_password()) == (
        "ada@example.org",
        "Ada L",
        False,
    )
    assert not (person.operator or person.finance or person.auditor)
    again = Client()
    provider.claims["preferred_username"] = "renamed"
    provider.answer(again)
    assert signed_in_as(again) == "ada" and User.objects.filter(username="renamed").count() == 0
    verbs = list(AuditEvent.objects.filter(target=f"user:{person.pk}").values_list("verb", flat=True))
    assert verbs.count("create_user_from_claims") == 1 and verbs.count("sign_in") == 2
    assert AuditEvent.objects.filter(verb="sign_in").latest("pk").after["method"] == "corp"


def test_a_sign_in_has_state_nonce_and_a_code_challenge_and_sends_the_verifier(
    provider: SmallProvider,
) -> None:
    browser = Client()
    wanted = authorization_request(browser, "corp")
    assert wanted["code_challenge_method"] == "S256" and len(wanted["nonce"]) >= 20 and wanted["state"]
    assert wanted["redirect_uri"] == f"{settings.GPUPOOL_PORTAL_URL}/accounts/oidc/corp/login/callback/"
    assert wanted["scope"].split().count("openid") == 1
    provider.answer(browser)
    assert len(provider.token_requests[-1]["code_verifier"]) >= 43
    assert provider.token_requests[-1]["client_secret"] == SECRET


def test_parameters_of_the_request_do_not_reach_the_provider(provider: SmallProvider) -> None:
    address = reverse("openid_connect_login", args=["corp"]) + "?auth_params=prompt%3Dnone&scope=admin"
    page = Client().post(address).content.decode()
    assert "prompt" not in page and "admin" not in page


def other_key(claims: dict[str, Any]) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": KEY_ID})


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, "", algorithm="none", headers={"kid": KEY_ID})


def shared_key(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, SECRET * 3, algorithm="HS256", headers={"kid": KEY_ID})


def unknown_key(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": "other"})


HOUR = 3600
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "nonce": ({"claims": {**ADA, "nonce": "of another sign-in"}}, "does not belong to this sign-in"),
    "signature": ({"sign": other_key}, "The ID token of Corp is not valid."),
    "unsigned": ({"sign": unsigned}, "The ID token of Corp is not valid."),
    "issuer of the token": ({"claims": {**ADA, "iss": "https://evil.example"}}, "was not issued by Corp"),
    "audience": ({"claims": {**ADA, "aud": "other"}}, "was issued for another program"),
    "expired": (
        {"claims": {**ADA, "exp": int(time.time()) - HOUR}},
        "The clocks differ by more than 60 seconds",
    ),
    "issued later": (
        {"claims": {**ADA, "iat": int(time.time()) + HOUR, "exp": int(time.time()) + 2 * HOUR}},
        "The clocks differ by more than 60 seconds",
    ),
    "issuer of the discovery": (
        {"discovery": {"issuer": "https://evil.example"}},
        "names itself https://evil",
    ),
    "shared key": ({"sign": shared_key}, "The ID token of Corp is not valid."),
    "unknown key": ({"sign": unknown_key}, "a key that Corp does not publish"),
    "authorized party": ({"claims": {**ADA, "azp": "other"}}, "was issued for another program"),
    "several audiences": (
        {"claims": {**ADA, "aud": [CLIENT_ID, "other"]}},
        "was issued for another program",
    ),
    "no nonce": ({"claims": {**ADA, "nonce": None}}, "does not belong to this sign-in"),
    "no token": ({"token_answer": lambda answer: {"access_token": "x"}}, "has no ID token"),
    "no object": ({"token_answer": lambda answer: ["x"]}, "Corp refused the sign-in: status 200"),
    "no JSON": ({"token_answer": lambda answer: b"<html>"}, "does not answer with JSON"),
    "too long": ({"token_answer": lambda answer: b"x" * (1024 * 1024 + 1)}, "more than 1 MiB"),
    "other person": ({"userinfo": {"sub": "somebody"}}, "sent the details of another person"),
    "no name": ({"claims": {"sub": "1", "email": "a@b.c"}}, "does not say your preferred_username"),
    "no address": ({"claims": {"sub": "1", "preferred_username": "x"}}, "does not say your email"),
    "bad name": ({"claims": {**ADA, "preferred_username": "a/b"}}, "which an account cannot have"),
    "NUL": ({"claims": {**ADA, "name": "a\0b"}}, "The ID token of Corp is not valid."),
    "empty subject": ({"claims": {**ADA, "sub": ""}, "userinfo": {"sub": ""}}, "is not valid"),
    "unsafe endpoint": ({"discovery": {"token_endpoint": "http://10.0.0.1/token"}}, "token_endpoint is"),
}


@pytest.mark.parametrize("case", first_cases(4, list(BROKEN)))
def test_a_broken_answer_is_refused_with_a_sentence_and_audited(provider: SmallProvider, case: str) -> None:
    changes, sentence = BROKEN[case]
    browser = Client()
    address = provider.callback(browser)
    provider.__dict__.update(changes)
    answer = browser.get(address)
    assert answer.status_code == 403 and sentence in answer.content.decode(), answer.content.decode()
    assert signed_in_as(browser) == "" and not User.objects.filter(username="ada").exists()
    event = AuditEvent.objects.get(verb="refuse_identity")
    assert event.after["method"] == "corp" and sentence in event.after["text"]


def published(*keys: dict[str, Any]) -> list[PublicKey]:
    """Return the keys that the portal reads from a set of keys."""
    return [key for data in keys if (key := _public_key(data))]


def test_a_key_that_names_no_algorithm_verifies_each_algorithm_of_its_kind(world: World) -> None:
    key_data = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key())), "kid": KEY_ID}
    known = ProviderSettings("corp", "Corp", "https://id.example.org", CLIENT_ID)
    now = int(time.time())
    claims = {"iss": known.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 60, "nonce": "n", "sub": "1"}
    token = jwt.encode(claims, KEY, algorithm="RS512", headers={"kid": KEY_ID})
    assert verify_id_token(token, provider=known, keys=published(key_data), nonce="n")["sub"] == "1"
    with pytest.raises(SignInRefused, match="is not valid"):
        verify_id_token(token, provider=known, keys=published({**key_data, "alg": "RS256"}), nonce="n")
    with pytest.raises(SignInRefused, match="does not belong to this sign-in"):
        verify_id_token(token, provider=known, keys=published(key_data), nonce="")


def test_keys_that_cannot_verify_signatures_are_left_out() -> None:
    good = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
    unusable: list[Any] = [
        {**good, "use": "enc"},
        {**good, "alg": "HS256"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "RSA", "n": "x"},
        {**good, "kid": 7},
        "no key",
    ]
    assert published(*unusable) == [] and len(published(good)) == 1


def test_a_clock_that_differs_by_less_than_the_leeway_is_accepted(provider: SmallProvider) -> None:
    now = int(time.time())
    provider.claims |= {"iat": now + 40, "exp": now - 20}
    browser = Client()
    provider.answer(browser)
    assert signed_in_as(browser) == "ada"


def test_an_answer_cannot_be_used_twice_or_in_another_browser(provider: SmallProvider) -> None:
    browser = Client()
    address = provider.callback(browser)
    stranger = Client().get(address)
    assert stranger.status_code == 403 and "was not started in this browser" in stranger.content.decode()
    assert browser.get(address).status_code == 302
    replayed = browser.get(address)
    assert replayed.status_code == 403 and "Start again." in replayed.content.decode()
    assert [event.after["code"] for event in AuditEvent.objects.filter(verb="refuse_identity")] == [
        "state_unknown",
        "state_unknown",
    ]


def test_many_refusals_from_one_address_do_not_fill_the_audit_log_and_lock_nobody_out(
    provider: SmallProvider,
) -> None:
    nudge.redis_connection().set(REFUSALS, ADDRESS_LIMITS.free_attempts - 2)
    for number in range(4):
        assert Client().get(f"/accounts/oidc/corp/login/callback/?code={number}&state=x").status_code == 403
    assert AuditEvent.objects.filter(verb="refuse_identity").count() == 2
    browser = Client()
    assert provider.answer(browser).status_code == 302 and signed_in_as(browser) == "ada"


def test_a_code_that_was_used_at_the_provider_is_refused(provider: SmallProvider) -> None:
    browser = Client()
    address = provider.callback(browser)
    provider.codes.clear()
    assert "refused the code of this sign-in" in browser.get(address).content.decode()


def test_an_answer_of_another_provider_is_refused(world: World, provider: SmallProvider) -> None:
    providers.create_provider(
        actor=world.operator,
        name="Evil",
        slug="evil",
        issuer="https://evil.example",
        client_id="x",
        secret="y",
        now=world.now,
    )
    browser = Client()
    address = provider.callback(browser)
    mixed = browser.get(address.replace("/corp/", "/evil/"))
    assert mixed.status_code == 403 and "was not started in this browser" in mixed.content.decode()
    named = provider.answer(Client(), iss="https://evil.example")
    assert "came from another provider than Corp" in named.content.decode()
    provider.discovery = {"authorization_response_iss_parameter_supported": True}
    assert "came from another provider than Corp" in provider.answer(Client()).content.decode()
    assert provider.answer(Client(), iss=provider.issuer).status_code == 302
    assert not provider.token_requests[1:]


def test_an_error_of_the_provider_is_shown_without_its_markup(provider: SmallProvider) -> None:
    page = provider.answer(Client(), error="<b>bad</b>").content.decode()
    assert "Corp refused the sign-in: &lt;b&gt;bad&lt;/b&gt;." in page
    assert "was cancelled" in provider.answer(Client(), error="access_denied").content.decode()


@pytest.mark.parametrize("field", ["username", "email"])
def test_an_existing_account_is_never_taken_over(world: World, provider: SmallProvider, field: str) -> None:
    person = world.vision.member
    taken = person.username.upper() if field == "username" else "Vision@Example.org"
    User.objects.filter(pk=person.pk).update(email="vision@example.org")
    provider.claims |= {"preferred_username" if field == "username" else "email": taken}
    page = provider.answer(Client()).content.decode()
    assert f"{taken} belongs to another account." in page
    assert not SocialAccount.objects.exists()


def test_one_address_of_two_people_at_the_provider_is_refused(provider: SmallProvider) -> None:
    assert provider.answer(Client()).status_code == 302
    provider.claims |= {"sub": "eve-2", "preferred_username": "eve"}
    assert "ada@example.org belongs to another account" in provider.answer(Client()).content.decode()
    assert provider.claims["sub"] not in SocialAccount.objects.values_list("uid", flat=True)


def test_a_person_connects_their_account_and_disconnects_it(world: World, provider: SmallProvider) -> None:
    person, browser = world.vision.member, Client()
    browser.force_login(person)
    page = browser.get(reverse("own-identities")).content.decode()
    assert "Connect Corp" in page and "No identity is connected" in page
    assert provider.answer(browser, process="connect").status_code == 302
    assert signed_in_as(browser) == person.username
    other = Client()
    provider.answer(other)
    assert signed_in_as(other) == person.username
    stranger = Client()
    stranger.force_login(world.stranger)
    refused = provider.answer(stranger, process="connect").content.decode()
    assert "is connected to another account" in refused
    row = SocialAccount.objects.get()
    assert row.user == person
    assert stranger.post(reverse("own-identities"), {"identity": row.pk}).status_code == 404
    browser.post(reverse("own-identities"), {"identity": row.pk})
    assert not SocialAccount.objects.exists()
    assert {"connect_identity", "disconnect_identity"} <= set(
        AuditEvent.objects.values_list("verb", flat=True)
    )


def test_the_last_way_to_sign_in_cannot_be_disconnected(provider: SmallProvider) -> None:
    browser = Client()
    provider.answer(browser)
    row = SocialAccount.objects.get()
    page = browser.post(reverse("own-identities"), {"identity": row.pk}, follow=True).content.decode()
    assert "ada could not sign in any more" in page and SocialAccount.objects.exists()


def test_connecting_needs_a_signed_in_person(provider: SmallProvider) -> None:
    begun = Client().post(reverse("openid_connect_login", args=["corp"]), {"process": "connect"})
    assert begun.status_code == 403 and "Sign in before" in begun.content.decode()


def test_a_closed_account_stays_closed(world: World, provider: SmallProvider) -> None:
    person = world.vision.member
    connect(person)
    User.objects.filter(pk=person.pk).update(is_active=False)
    browser = Client()
    provider.answer(browser)
    assert signed_in_as(browser) == ""
    assert AuditEvent.objects.get(verb="fail_sign_in").after["method"] == "closed account"


def test_a_second_factor_is_still_asked_for(world: World, provider: SmallProvider) -> None:
    person = world.vision.member
    connect(person)
    TOTP.activate(person, generate_totp_secret())
    browser = Client()
    answer = provider.answer(browser)
    assert answer.status_code == 302 and answer.headers["Location"] == reverse("mfa_authenticate")
    assert signed_in_as(browser) == ""


def test_a_provider_that_makes_no_accounts_admits_connected_people_only(
    world: World, provider: SmallProvider
) -> None:
    IdentityProvider.objects.update(creates_accounts=False)
    assert "Corp makes no accounts" in provider.answer(Client()).content.decode()
    connect(world.vision.member)
    browser = Client()
    provider.answer(browser)
    assert signed_in_as(browser) == world.vision.member.username


def test_a_test_sign_in_shows_the_claims_and_changes_nothing(world: World, provider: SmallProvider) -> None:
    IdentityProvider.objects.update(active=False)
    browser = Client()
    browser.force_login(world.operator)
    provider.claims |= {"groups": ["gpu-users"]}
    events = AuditEvent.objects.count()
    answer = provider.answer(browser, process="test")
    page = browser.get(answer.headers["Location"]).content.decode()
    assert "gpu-users" in page and "ada@example.org" in page and "No account was changed" in page
    assert signed_in_as(browser) == world.operator.username
    assert not User.objects.filter(username="ada").exists() and not SocialAccount.objects.exists()
    assert AuditEvent.objects.count() == events
    member = Client()
    member.force_login(world.vision.member)
    begun = member.post(reverse("openid_connect_login", args=["corp"]), {"process": "test"})
    assert begun.status_code == 403 and "Only an operator may test" in begun.content.decode()


def test_a_provider_that_is_off_signs_nobody_in(provider: SmallProvider) -> None:
    browser = Client()
    address = provider.callback(browser)
    IdentityProvider.objects.update(active=False)
    assert "Corp" not in Client().get(reverse("account_login")).content.decode()
    assert browser.post(reverse("openid_connect_login", args=["corp"])).status_code == 404
    assert browser.get(address).status_code == 403 and signed_in_as(browser) == ""


def test_the_pages_of_allauth_about_connected_accounts_are_off() -> None:
    for address in ("3rdparty/", "3rdparty/signup/", "3rdparty/login/error/", "social/connections/"):
        assert Client().get(f"/accounts/{address}").status_code == 404


# -- passwords, and the command for emergencies


def test_passwords_are_turned_off_only_if_an_operator_can_still_sign_in(
    world: World, provider: SmallProvider
) -> None:
    browser = Client()
    browser.force_login(world.operator)
    page = browser.post(reverse("sign-in-settings"), {"why": "x"}).content.decode()
    assert "Then no operator could sign in" in page
    assert Organisation.objects.get().local_sign_in
    connect(world.operator)
    assert browser.post(reverse("sign-in-settings"), {"why": "x"}).status_code == 302
    login = Client().get(reverse("account_login")).content.decode()
    assert 'name="password"' not in login and "Corp" in login
    given = {"login": world.operator.username, "password": PASSWORD}
    refused = Client().post(reverse("account_login"), given)
    assert refused.status_code == 200 and refused.wsgi_request.user.is_anonymous
    other = Client()
    provider.answer(other)
    assert signed_in_as(other) == world.operator.username
    kept = browser.post(reverse("identity-provider", args=["corp"]), {"action": "remove"})
    assert kept.status_code == 400 and "Then no operator could sign in" in kept.content.decode()
    assert IdentityProvider.objects.get().active


def test_no_link_sets_a_password_while_passwords_are_off(world: World, mailoutbox: list[Any]) -> None:
    person, browser = world.vision.member, Client()
    earlier = password_link(person).removeprefix(settings.GPUPOOL_PORTAL_URL)
    Organisation.objects.update(local_sign_in=False)
    refused = browser.post(reverse("account_reset_password"), {"email": person.email})
    assert "Passwords are turned off" in refused.content.decode() and not mailoutbox
    form = browser.get(earlier, follow=True)
    given = {"password1": "correct horse battery", "password2": "correct horse battery"}
    refused = browser.post(form.request["PATH_INFO"], given)
    assert "Passwords are turned off" in refused.content.decode()
    person.refresh_from_db()
    assert person.check_password(PASSWORD)
    browser.force_login(world.operator)
    made = browser.post(reverse("people"), {"username": "ada", "email": "ada@example.org"})
    assert "there is no link" in made.content.decode() and "reset/key" not in made.content.decode()
    reset = account_security.reset_password(actor=world.operator, user=person, now=world.now)
    assert reset == ""


def test_a_break_glass_link_signs_an_operator_in_once(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    Organisation.objects.update(local_sign_in=False)
    call_command("break_glass", world.operator.username)
    path = capsys.readouterr().out.strip().removeprefix(settings.GPUPOOL_PORTAL_URL)
    browser = Client()
    assert "signs an operator in once" in browser.get(path).content.decode()
    assert browser.post(path).status_code == 302 and signed_in_as(browser) == world.operator.username
    assert Client().post(path).status_code == 403
    verbs = list(AuditEvent.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs == ["create_break_glass_link", "use_break_glass_link", "sign_in", "refuse_identity"]
    assert path.split("/")[-2] not in str(list(BreakGlassLink.objects.values()))


def test_a_break_glass_link_ends_and_is_only_for_operators(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match="allowed: "):
        call_command("break_glass", world.vision.member.username)
    call_command("break_glass", world.operator.username)
    path = capsys.readouterr().out.strip().removeprefix(settings.GPUPOOL_PORTAL_URL)
    BreakGlassLink.objects.update(expires_at=world.now)
    assert Client().post(path).status_code == 403


def test_too_many_starts_from_one_address_are_refused_before_a_state_is_stored(
    provider: SmallProvider,
) -> None:
    address = reverse("openid_connect_login", args=["corp"])
    nudge.redis_connection().set(STARTS, START_LIMITS.free_attempts - 2)
    assert Client().post(address).status_code == 200
    assert Client().post(address).status_code == 200  # starts a delay for the next one
    browser = Client()
    early = browser.post(address)
    assert (
        early.status_code == 403 and "Too many attempts to sign in. Wait 10 seconds" in early.content.decode()
    )
    assert not browser.session.keys()
    assert Client().post(address, REMOTE_ADDR="192.0.2.7").status_code == 200
