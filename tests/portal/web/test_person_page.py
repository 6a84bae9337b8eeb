"""Test the page of an account, and the pages that show the effect of a change before it is made."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, User
from portal.services.people.api_tokens import create_token
from portal.services.work import launch
from tests.seeds import first_cases
from tests.world import PASSWORD, World

pytestmark = pytest.mark.django_db

NEW = "another long enough one"


@pytest.fixture
def operator(world: World) -> Client:
    browser = Client()
    browser.force_login(world.operator)
    return browser


def change_url(person: User, verb: str) -> str:
    return reverse("person-change", args=[person.username, verb])


def test_the_page_shows_the_account_its_sign_ins_and_each_change(world: World, operator: Client) -> None:
    person = world.vision.member
    create_token(actor=person, name="laptop", now=world.now)
    Client().post(
        reverse("account_login"),
        {"login": person.username, "password": PASSWORD},
        REMOTE_ADDR="198.51.100.7",
    )
    page = operator.get(reverse("person", args=[person.username])).content.decode()
    for part in (person.email, "laptop", "sign in", "198.51.100.7", "Reset the password", "Stop the work"):
        assert part in page, part
    assert "Open the account" not in page and "Close the account" in page
    assert f'href="{reverse("person", args=[person.username])}"' in operator.get("/people/").content.decode()


def test_a_page_first_shows_what_happens_to_running_work_and_changes_nothing(
    world: World, operator: Client
) -> None:
    person = world.vision.member
    launch.launch_notebook(actor=person, project=world.vision.project, pool=world.shared, now=world.now)
    for verb in ("reset-password", "change-roles", "end-sessions"):
        page = operator.get(change_url(person, verb)).content.decode()
        assert "0 running and 1 waiting workloads continue." in page, verb
    for verb in ("stop-work", "close-account"):
        page = operator.get(change_url(person, verb)).content.decode()
        assert "workloads are stopped with their grace period." in page, verb
    person.refresh_from_db()
    assert person.is_active and person.session_generation == 0


def test_roles_and_addresses_are_changed_with_a_reason(world: World, operator: Client) -> None:
    person = world.vision.member
    page = operator.get(change_url(person, "change-roles")).content.decode()
    assert 'name="finance"' in page
    assert (
        operator.post(change_url(person, "change-roles"), {"finance": "on", "why": "new job"}).status_code
        == 302
    )
    assert operator.post(change_url(person, "change-address"), {"email": "nothing"}).status_code == 400
    assert operator.post(change_url(person, "change-address"), {"email": "n@example.org"}).status_code == 302
    person.refresh_from_db()
    assert (person.finance, person.operator, person.email) == (True, False, "n@example.org")
    assert AuditEvent.objects.get(verb="change_user").why == "new job"


def test_a_closed_account_is_opened_again(world: World, operator: Client) -> None:
    person = world.vision.member
    for verb, active in (("close-account", False), ("open-account", True)):
        assert operator.post(change_url(person, verb), {}).status_code == 302
        person.refresh_from_db()
        assert person.is_active is active


def test_single_tokens_are_revoked_by_their_boxes(world: World, operator: Client) -> None:
    person = world.vision.member
    laptop, _ = create_token(actor=person, name="laptop", now=world.now)
    script, _ = create_token(actor=person, name="script", now=world.now)
    page = operator.get(change_url(person, "revoke-tokens")).content.decode()
    assert "laptop" in page and "script" in page
    assert operator.post(change_url(person, "revoke-tokens"), {"tokens": [laptop.pk]}).status_code == 302
    assert operator.post(change_url(person, "revoke-tokens"), {"tokens": ["999999"]}).status_code == 400
    laptop.refresh_from_db()
    script.refresh_from_db()
    assert laptop.revoked_at and not script.revoked_at


def test_the_link_of_a_reset_password_is_shown_once(world: World, operator: Client) -> None:
    person = world.vision.member
    answer = operator.post(change_url(person, "reset-password"), {})
    assert answer["Cache-Control"] == "no-store"
    link = re.search(r"http://[^<\s]*/accounts/password/reset/key/[^<\s]+", answer.content.decode())
    assert link is not None
    again = operator.get(reverse("person", args=[person.username])).content.decode()
    assert "/accounts/password/reset/key/" not in again
    assert link[0] not in str(AuditEvent.objects.values_list("after", flat=True))


def test_a_new_person_sets_the_first_password_with_a_one_time_link(world: World, operator: Client) -> None:
    values = {"username": "ada", "email": "ada@example.org", "full_name": "Ada"}
    page = operator.post(reverse("people"), values).content.decode()
    link = re.search(r"http://[^<\s]*(/accounts/password/reset/key/[^<\s]+)", page)
    assert link is not None
    assert not User.objects.get(username="ada").has_usable_password()
    browser = Client()
    form = browser.get(link[1], follow=True)
    answer = browser.post(form.request["PATH_INFO"], {"password1": NEW, "password2": NEW})
    assert answer.status_code == 302
    signed_in = browser.post(reverse("account_login"), {"login": "ada", "password": NEW})
    assert signed_in.status_code == 302
    assert "no longer works" in Client().get(link[1], follow=True).content.decode()


@pytest.mark.parametrize("name", first_cases(2, ["nobody", "x" * 300, "\u202e"]))
def test_an_unknown_person_and_an_unknown_change_are_not_found(
    world: World, operator: Client, name: str
) -> None:
    assert operator.get(reverse("person", args=[name])).status_code == 404
    assert operator.post(reverse("person-change", args=[name, "end-sessions"])).status_code == 404
    assert operator.get(change_url(world.vision.member, "delete-everything")).status_code == 404
