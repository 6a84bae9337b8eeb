"""Test sign-in with Canaille, a real OpenID Connect server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, Membership, User
from portal.services.people.identity import providers, rules
from tests.oidc.running_server import CLIENT_ID, SCOPES, SECRET, SLUG, Canaille, canaille, person
from tests.portal.identity_provider import authorization_address
from tests.world import World, world

__all__ = ["world"]

pytestmark = [pytest.mark.django_db, pytest.mark.long, pytest.mark.canaille]

Register = Callable[..., None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaille]:
    """Run a server with a certificate that is valid for its address."""
    people = [person("ada"), person("bob"), person("eve", "ada@example.org")]
    with canaille(people, tmp_path_factory.mktemp("canaille"), host="127.0.0.1") as found:
        yield found


@pytest.fixture
def register(world: World) -> Register:
    """Return a function that adds a server to the portal's providers."""

    def add(server: Canaille, **changes: Any) -> None:
        given = {
            "name": "Canaille",
            "slug": SLUG,
            "issuer": server.issuer,
            "client_id": CLIENT_ID,
            "secret": SECRET,
            "scopes": " ".join(SCOPES),
            "username_claim": "sub",
            "ca_certificates": server.trusted,
            **changes,
        }
        providers.create_provider(actor=world.operator, now=world.now, **given)

    return add


def sign_in(server: Canaille, browser: Client, name: str, process: str = "login") -> Any:
    """Sign in with the server, and return the portal's answer."""
    return browser.get(server.sign_in(authorization_address(browser, SLUG, process), name))


def signed_in_as(browser: Client) -> str:
    pk = browser.session.get("_auth_user_id")
    return User.objects.get(pk=pk).username if pk else ""


def refused(answer: HttpResponse, sentence: str) -> bool:
    """Return True if the answer refuses the sign-in with this sentence, and the audit log has it."""
    event = AuditEvent.objects.filter(verb="refuse_identity").latest("pk")
    said = sentence in answer.content.decode() and sentence in event.after["text"]
    return answer.status_code == 403 and said


def groups_of(name: str) -> list[str]:
    return list(Membership.objects.filter(user__username=name).values_list("team__slug", flat=True))


def test_people_sign_in_and_their_groups_become_teams(
    world: World, server: Canaille, register: Register
) -> None:
    register(server)
    given: dict[str, Any] = {"actor": world.operator, "provider": SLUG, "claim": "groups", "now": world.now}
    rules.create_rule(**given, value="gpu-vision", team="vision", lead=True)
    rules.create_rule(**given, value="gpu-money", role="finance")
    server.set_groups("ada", "gpu-vision", "gpu-money")
    browser = Client()
    assert sign_in(server, browser, "ada").status_code == 302
    assert signed_in_as(browser) == "ada" and groups_of("ada") == ["vision"]
    assert User.objects.get(username="ada").finance

    server.set_groups("ada")  # removed while signed in: the session goes on with its rights
    assert browser.get(reverse("home")).status_code == 200 and groups_of("ada") == ["vision"]
    effect = rules.preview_rules(actor=world.operator, now=world.now)
    assert (effect.joins, effect.leaves) == (0, 0)  # the claims seen last have the groups
    other = Client()
    sign_in(server, other, "ada")
    assert groups_of("ada") == [] and not User.objects.get(username="ada").finance
    assert signed_in_as(other) == "ada" and signed_in_as(browser) == "ada"
    assert browser.get(reverse("home")).status_code == 302  # the lost role ended the other session


def test_the_test_of_an_operator_shows_the_claims(world: World, server: Canaille, register: Register) -> None:
    register(server, active=False)
    test = providers.run_connection_test(actor=world.operator, slug=SLUG, now=world.now)
    assert test.passed and "RS256" in test.algorithms
    server.set_groups("ada", "gpu-vision")
    browser = Client()
    browser.force_login(world.operator)
    answer = sign_in(server, browser, "ada", "test")
    page = browser.get(answer.headers["Location"]).content.decode()
    assert "gpu-vision" in page and "ada@example.org" in page
    assert not User.objects.filter(username="ada").exists()


def test_one_address_of_two_people_is_refused_and_the_owner_connects(
    world: World, server: Canaille, register: Register
) -> None:
    register(server)
    assert sign_in(server, Client(), "ada").status_code == 302
    answer = sign_in(server, Client(), "eve")
    assert refused(answer, "The address ada@example.org belongs to another account.")
    member = world.vision.member
    User.objects.filter(pk=member.pk).update(email="bob@example.org")
    browser = Client()
    assert refused(sign_in(server, browser, "bob"), "The address bob@example.org belongs to another account.")
    browser.force_login(member)
    assert sign_in(server, browser, "bob", "connect").status_code == 302
    assert SocialAccount.objects.get(user=member).uid == "bob"
    later = Client()
    sign_in(server, later, "bob")
    assert signed_in_as(later) == member.username


def test_a_replayed_code_is_refused_by_the_server_and_by_the_portal(
    server: Canaille, register: Register
) -> None:
    register(server)
    browser = Client()
    address = server.sign_in(authorization_address(browser, SLUG), "ada")
    assert browser.get(address).status_code == 302
    assert refused(browser.get(address), "Start again.")
    fresh = authorization_address(browser, SLUG)
    state = fresh.partition("state=")[2].partition("&")[0]
    replayed = address.replace(address.partition("state=")[2].partition("&")[0], state)
    assert refused(browser.get(replayed), "Canaille refused the code of this sign-in")
    again = Client()
    assert sign_in(server, again, "ada").status_code == 302 and signed_in_as(again) == "ada"


def test_answers_of_another_issuer_are_refused(server: Canaille, register: Register) -> None:
    register(server)
    browser = Client()
    address = server.sign_in(authorization_address(browser, SLUG), "ada")
    assert "&iss=https%3A" in address
    mixed = browser.get(address.replace("127.0.0.1", "127.0.0.2"))
    assert refused(mixed, "The answer came from another provider than Canaille.")
    address = server.sign_in(authorization_address(browser, SLUG), "ada")
    assert refused(browser.get(address.partition("&iss=")[0]), "came from another provider")


def test_a_wrong_secret_is_refused(server: Canaille, register: Register) -> None:
    register(server, secret="wrong")
    assert refused(sign_in(server, Client(), "ada"), "Canaille refused the sign-in: invalid_client.")


def test_an_untrusted_certificate_is_refused(world: World, server: Canaille, register: Register) -> None:
    register(server, ca_certificates="")
    begun = Client().post(reverse("openid_connect_login", args=[SLUG]))
    assert refused(begun, "The certificate of Canaille is not trusted.")
    test = providers.run_connection_test(actor=world.operator, slug=SLUG, now=world.now)
    assert not test.passed and "The certificate of Canaille is not trusted." in test.text


def test_a_certificate_for_another_name_is_refused(register: Register, tmp_path: Path) -> None:
    with canaille([person("ada")], tmp_path, host="other.example") as wrong:
        register(wrong)
        begun = Client().post(reverse("openid_connect_login", args=[SLUG]))
    assert refused(begun, "The certificate of Canaille is not trusted.")


@pytest.mark.parametrize("offset", [-7200, 7200])
def test_a_server_whose_clock_is_wrong_is_refused(register: Register, tmp_path: Path, offset: int) -> None:
    with canaille([person("ada")], tmp_path, clock_offset=offset) as wrong:
        register(wrong)
        answer = sign_in(wrong, Client(), "ada")
    assert refused(answer, "The clocks differ by more than 60 seconds")
    assert not User.objects.filter(username="ada").exists()
