"""Test how operators protect accounts, and that each change ends sessions and keeps the audit record."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core.management import call_command
from django.test import Client

from portal.errors import Invalid, NotAllowed
from portal.models import ApiToken, AuditEvent, EntryCode, Membership, User
from portal.services.people import account_security, accounts
from portal.services.people.account_effects import preview_account_change
from portal.services.people.api_tokens import create_token, token_in_force
from portal.services.people.service_accounts import create_service_account
from portal.services.people.setup_code import is_setup_code
from portal.services.work import launch
from portal.web.calendar.ical_feed import _user_of_token, ical_feed_token
from scheduler.models import Workload
from tests.portal.rejections import rejected
from tests.world import World

pytestmark = pytest.mark.django_db

CHANGES: dict[str, Callable[..., Any]] = {
    "end_sessions": account_security.end_sessions,
    "reset_password": account_security.reset_password,
    "reset_second_factor": account_security.reset_second_factor,
    "change_address": lambda **given: account_security.change_address(email="new@example.org", **given),
    "change_roles": lambda **given: accounts.change_user(finance=True, **given),
    "close_account": lambda **given: accounts.change_user(active=False, **given),
}


def signed_in(user: User) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser


def is_signed_in(browser: Client) -> bool:
    return browser.get("/api/v1/me/").status_code == 200


@pytest.mark.parametrize("name", ["reset_password", "change_address"])
def test_a_service_account_gets_neither_a_password_nor_an_address(world: World, name: str) -> None:
    account = create_service_account(
        actor=world.operator, name="pipeline", team=world.vision.team, owner=world.vision.lead, now=world.now
    )
    with rejected("no password and no e-mail address"):
        CHANGES[name](actor=world.operator, user=account, now=world.now)
    account.refresh_from_db()
    assert account.email == "" and not account.has_usable_password()


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_ends_the_sessions_of_the_person_and_of_nobody_else(world: World, name: str) -> None:
    person = world.vision.member
    own, other = signed_in(person), signed_in(world.vision.lead)
    feed = ical_feed_token(person)
    assert is_signed_in(own) and _user_of_token(feed) == person
    CHANGES[name](actor=world.operator, user=person, now=world.now, why="stolen laptop")
    assert not is_signed_in(own)
    assert is_signed_in(other)
    assert _user_of_token(feed) is None
    event = AuditEvent.objects.latest("pk")
    assert (event.actor, event.target, event.why) == (world.operator, f"user:{person.pk}", "stolen laptop")


def test_a_closed_account_that_is_opened_again_revives_no_session_and_no_token(world: World) -> None:
    person = world.vision.member
    browser, (_, text) = signed_in(person), create_token(actor=person, name="laptop", now=world.now)
    accounts.change_user(actor=world.operator, user=person, active=False, now=world.now)
    assert not is_signed_in(browser)
    again = signed_in(person)  # the row of the session exists, but its user is closed
    accounts.change_user(actor=world.operator, user=person, active=True, now=world.now)
    for old in (browser, again):
        assert not is_signed_in(old)
    assert token_in_force(text, world.now) is None
    assert is_signed_in(signed_in(person))


def test_a_change_of_nothing_ends_no_session(world: World) -> None:
    browser = signed_in(world.operator)
    accounts.change_user(actor=world.operator, user=world.operator, operator=True, now=world.now)
    assert is_signed_in(browser)


def test_tokens_are_revoked_only_if_the_operator_asks_for_it(world: World) -> None:
    person = world.vision.member
    texts = [create_token(actor=person, name=name, now=world.now)[1] for name in ("laptop", "script")]
    kept = create_token(actor=world.vision.lead, name="other", now=world.now)[1]
    account_security.end_sessions(actor=world.operator, user=person, now=world.now)
    assert all(token_in_force(text, world.now) for text in texts)
    laptop = ApiToken.objects.get(name="laptop")
    given: dict[str, Any] = {"actor": world.operator, "user": person, "now": world.now}
    assert account_security.revoke_tokens(**given, tokens=[laptop.pk]) == ["laptop"]
    assert [bool(token_in_force(text, world.now)) for text in texts] == [False, True]
    with pytest.raises(Invalid) as refused:
        account_security.revoke_tokens(**given, tokens=[laptop.pk])
    assert "tokens" in refused.value.fields
    account_security.end_sessions(**given, revoke_tokens=True)
    assert not any(token_in_force(text, world.now) for text in texts)
    assert token_in_force(kept, world.now)
    last = AuditEvent.objects.latest("pk")
    assert last.after is not None and last.after["revoked_tokens"] == ["script"]


def test_a_reset_password_is_set_once_with_the_link(world: World) -> None:
    person, client = world.vision.member, Client()
    link = account_security.reset_password(actor=world.operator, user=person, now=world.now)
    assert not User.objects.get(pk=person.pk).has_usable_password()
    assert link.startswith("http://") and "/accounts/password/reset/key/" in link
    form_page = client.get(link, follow=True)
    passwords = {"password1": "another long enough one", "password2": "another long enough one"}
    assert client.post(form_page.request["PATH_INFO"], passwords).status_code == 302
    assert User.objects.get(pk=person.pk).check_password("another long enough one")
    assert AuditEvent.objects.latest("pk").verb == "set_password_by_link"
    assert "no longer works" in Client().get(link, follow=True).content.decode()


def test_a_new_link_ends_the_earlier_one(world: World) -> None:
    given: dict[str, Any] = {"actor": world.operator, "user": world.vision.member, "now": world.now}
    first, second = account_security.reset_password(**given), account_security.reset_password(**given)
    assert "no longer works" in Client().get(first, follow=True).content.decode()
    assert "no longer works" not in Client().get(second, follow=True).content.decode()


def test_a_reset_second_factor_leaves_no_authenticator_and_no_recovery_code(world: World) -> None:
    person = world.vision.member
    for kind in ("totp", "recovery_codes"):
        Authenticator.objects.create(user=person, type=kind, data={"seed": "x"})
    account_security.reset_second_factor(actor=world.operator, user=person, now=world.now)
    assert not Authenticator.objects.filter(user=person).exists()


def test_an_address_is_changed_with_the_old_and_the_new_one_in_the_audit_record(world: World) -> None:
    person, old = world.vision.member, world.vision.member.email
    given: dict[str, Any] = {"actor": world.operator, "user": person, "now": world.now}
    with pytest.raises(Invalid):
        account_security.change_address(**given, email="no address")
    account_security.change_address(**given, email="new@example.org")
    event = AuditEvent.objects.get(verb="change_address")
    assert event.before == {"email": old}
    assert event.after is not None and event.after["email"] == "new@example.org"
    assert User.objects.get(pk=person.pk).email == "new@example.org"


def test_all_work_of_a_person_is_stopped_and_that_of_others_continues(world: World) -> None:
    given: dict[str, Any] = {"project": world.vision.project, "pool": world.shared, "now": world.now}
    jobs: dict[str, Any] = {**given, "command": "true", "units": 1, "max_runtime_seconds": 3600}
    person, mate = world.vision.members[:2]
    for name in ("one", "two"):
        launch.submit_job(actor=person, name=name, **jobs)
    launch.submit_job(actor=mate, name="other", **jobs)
    verb: dict[str, Any] = {"actor": world.operator, "user": person, "now": world.now}
    found = preview_account_change(**verb, verb="stop_work")
    assert [row.name for row in found.waiting] == ["one", "two"] and not found.running
    assert "are stopped" in found.work_text
    assert "continue" in preview_account_change(**verb, verb="end_sessions").work_text
    assert account_security.stop_work(**verb, why="mining") == 2
    states = dict(Workload.objects.values_list("name", "state"))
    assert states == {"one": "ended", "two": "ended", "other": "queued"}
    assert account_security.stop_work(**verb) == 0
    assert AuditEvent.objects.filter(verb="cancel_workload", why="mining").count() == 2
    assert AuditEvent.objects.filter(verb="stop_work", target=f"user:{person.pk}").count() == 2


def test_the_preview_of_the_last_operator_says_that_the_account_stays_open(world: World) -> None:
    found = preview_account_change(
        actor=world.operator, user=world.operator, verb="close_account", now=world.now
    )
    assert found.code == "last_operator" and found.refused
    with rejected():
        accounts.change_user(actor=world.operator, user=world.operator, active=False, now=world.now)


@pytest.mark.parametrize("role", ["member", "lead", "finance", "auditor"])
def test_only_operators_protect_accounts(world: World, role: str) -> None:
    given: dict[str, Any] = {"actor": world.people[role], "user": world.stranger, "now": world.now}
    for change in (*CHANGES.values(), account_security.revoke_tokens, account_security.stop_work):
        with pytest.raises(NotAllowed):
            change(**given)
    with pytest.raises(NotAllowed):
        preview_account_change(**given, verb="end_sessions")


def test_an_entry_code_that_a_request_of_an_ended_session_still_issues_is_of_the_old_generation(
    world: World,
) -> None:
    """Check the race of a request that has read the user before the sessions ended, and commits after it."""
    from portal.edge.workspaces.access import AccessDenied, redeem_entry_code
    from portal.models import hash_workspace_secret
    from portal.services.work.workspaces import workspace_origin

    person = world.vision.member
    lab = launch.launch_notebook(actor=person, project=world.vision.project, pool=world.shared, now=world.now)
    label = workspace_origin(lab, world.now).label
    stale = User.objects.get(pk=person.pk).session_generation
    account_security.end_sessions(actor=world.operator, user=person, now=world.now)
    for code, generation in (("old", stale), ("new", person.session_generation)):
        EntryCode.objects.create(
            code_hash=hash_workspace_secret(code),
            user=person,
            workload=lab,
            created_at=world.now,
            expires_at=world.now + timedelta(minutes=1),
            session_generation=generation,
        )
    assert isinstance(redeem_entry_code(label, "old", world.now), AccessDenied)
    assert not isinstance(redeem_entry_code(label, "new", world.now), AccessDenied)


def test_the_command_prints_a_setup_code_only_while_nobody_has_an_account(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("setup_code")
    assert capsys.readouterr().out == ""
    Membership.objects.all().delete()
    User.objects.all().delete()
    call_command("setup_code")
    assert is_setup_code(capsys.readouterr().out)
