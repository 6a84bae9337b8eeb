"""Test sign-in and sync with Debian's slapd, a real LDAP directory."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, DirectorySync, Membership, User
from portal.reads.system.health import system_health
from portal.services.people.identity import directory_sync, providers, rules
from tests.ldap.running_slapd import (
    GROUPS,
    PASSWORD,
    PEOPLE,
    SERVICE,
    SERVICE_PASSWORD,
    Slapd,
    dn_of,
    group,
    person,
    slapd,
)
from tests.world import World, world

__all__ = ["world"]

pytestmark = [pytest.mark.django_db, pytest.mark.long, pytest.mark.ldap]

SLUG = "directory"
Register = Callable[..., None]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd")) as found:
        yield found


@pytest.fixture
def server(running: Slapd) -> Slapd:
    """Return the directory with three people and without groups."""
    running.clear()
    running.add(person("ada"), person("bob"), person("eve", mail=["ada@example.org"]))
    return running


@pytest.fixture
def register(world: World) -> Register:
    """Return a function that adds a directory to the portal's providers."""

    def add(server: Slapd, *, secret: str = SERVICE_PASSWORD, **changes: Any) -> None:
        common = {
            name: changes.pop(name) for name in ("ca_certificates", "creates_accounts") if name in changes
        }
        settings = {
            "url": server.tls_url,
            "bind_dn": SERVICE,
            "user_base": PEOPLE,
            "group_base": GROUPS,
            **changes,
        }
        providers.create_provider(
            actor=world.operator,
            now=world.now,
            name="Directory",
            kind="ldap",
            slug=SLUG,
            secret=secret,
            directory=settings,
            **{"ca_certificates": server.trusted, **common},
        )

    return add


def sign_in(browser: Client, username: str, password: str = PASSWORD, **fields: str) -> Any:
    address = reverse("directory-login", args=[SLUG])
    return browser.post(address, {"username": username, "password": password, **fields})


def signed_in_as(browser: Client) -> str:
    pk = browser.session.get("_auth_user_id")
    return User.objects.get(pk=pk).username if pk else ""


def refused(answer: HttpResponse, sentence: str) -> bool:
    """Return True if the answer refuses the sign-in with this sentence, and the audit log has it."""
    event = AuditEvent.objects.filter(verb="refuse_identity").latest("pk")
    said = sentence in answer.content.decode() and sentence in event.after["text"]
    return answer.status_code == 403 and said


def wrong(answer: HttpResponse) -> bool:
    """Return True if the answer says that the directory does not accept name and password."""
    sentence = "Directory does not accept this user name and password."
    return answer.status_code == 400 and sentence in answer.content.decode()


def teams_of(name: str) -> list[str]:
    return list(Membership.objects.filter(user__username=name).values_list("team__slug", flat=True))


def add_rule(world: World, value: str, **gives: Any) -> None:
    rules.create_rule(
        actor=world.operator, provider=SLUG, claim="groups", value=value, now=world.now, **gives
    )


def sync(world: World, now: dt.datetime | None = None, **options: Any) -> DirectorySync:
    return directory_sync.sync_now(actor=world.operator, provider=SLUG, now=now or world.now, **options)


@pytest.mark.parametrize("start_tls", [False, True])
def test_people_sign_in_over_tls_and_their_groups_become_teams(
    world: World, server: Slapd, register: Register, start_tls: bool
) -> None:
    server.add(group("gpu-vision", dn_of("ada")), group("gpu-money", dn_of("ada"), dn_of("bob")))
    register(server, **({"url": server.url, "start_tls": True} if start_tls else {}))
    add_rule(world, "gpu-vision", team="vision", lead=True)
    add_rule(world, "gpu-money", role="finance")
    browser = Client()
    assert sign_in(browser, "ada").status_code == 302
    assert signed_in_as(browser) == "ada" and teams_of("ada") == ["vision"]
    user = User.objects.get(username="ada")
    assert user.finance and user.email == "ada@example.org" and user.first_name == "Ada Example"
    event = AuditEvent.objects.filter(verb="sign_in").latest("pk")
    assert event.after["method"] == SLUG and browser.get(reverse("home")).status_code == 200


def test_the_page_of_the_sign_in_offers_the_directory(server: Slapd, register: Register) -> None:
    register(server)
    browser = Client()
    address = reverse("directory-login", args=[SLUG])
    assert address in browser.get(reverse("account_login")).content.decode()
    assert "Sign in with Directory" in browser.get(address).content.decode()


def test_a_wrong_password_an_empty_one_and_an_unknown_person_are_refused_alike(
    server: Slapd, register: Register
) -> None:
    register(server)
    browser = Client()
    assert wrong(sign_in(browser, "ada", "wrong"))
    assert wrong(sign_in(browser, "nobody"))
    empty = sign_in(browser, "ada", "")  # slapd accepts a bind with an empty password without a check
    assert empty.status_code == 400 and signed_in_as(browser) == ""
    assert sign_in(browser, "ada", "\x00").status_code == 400 and signed_in_as(browser) == ""
    assert AuditEvent.objects.filter(verb="fail_sign_in", after__method=SLUG).count() == 2


def test_an_empty_password_is_refused_also_without_the_form(server: Slapd, register: Register) -> None:
    from portal.sign_in.ldap.directory import open_directory
    from portal.sign_in.oidc.providers import find_provider

    register(server)
    provider = find_provider(SLUG)
    assert provider is not None
    now = dt.datetime.now(dt.UTC)
    with open_directory(provider) as directory:
        assert directory.sign_in("ada", PASSWORD, now) is not None
        assert directory.sign_in("ada", "", now) is None


def test_many_wrong_passwords_delay_the_next_attempt_of_this_name_only(
    server: Slapd, register: Register
) -> None:
    register(server)
    browser = Client()
    assert sign_in(Client(), "ada").status_code == 302
    for _ in range(5):
        assert wrong(sign_in(browser, "ada", "wrong"))
    early = sign_in(browser, "ada")
    assert early.status_code == 429 and signed_in_as(browser) == ""
    assert AuditEvent.objects.filter(verb="delay_sign_in").latest("pk").target_name == "ada"
    assert sign_in(browser, "bob").status_code == 302


@pytest.mark.parametrize(
    "name", ["*", "a*", "ada)(uid=*", "ada)(|(uid=*", "\\61da", "*)(objectClass=*", "50%s"]
)
def test_characters_of_filters_in_a_user_name_stand_for_themselves(
    server: Slapd, register: Register, name: str
) -> None:
    register(server)
    assert wrong(sign_in(Client(), name))
    assert not SocialAccount.objects.exists()


def test_a_person_whose_name_has_characters_of_filters_signs_in(
    world: World, server: Slapd, register: Register
) -> None:
    dn = f"cn=Odd \\28100%s\\29 \\2A,{PEOPLE}"
    server.add((dn, {**person("odd")[1], "cn": ["Odd (100%s) *"]}), group("gpu-vision", dn))
    register(server)
    add_rule(world, "gpu-vision", team="vision")
    browser = Client()
    assert sign_in(browser, "odd").status_code == 302
    assert signed_in_as(browser) == "odd" and teams_of("odd") == ["vision"]


def test_an_untrusted_certificate_is_refused(world: World, server: Slapd, register: Register) -> None:
    register(server, ca_certificates="")
    assert refused(sign_in(Client(), "ada"), "The certificate of Directory is not trusted.")
    test = providers.run_connection_test(actor=world.operator, slug=SLUG, now=world.now)
    assert not test.passed and "The certificate of Directory is not trusted." in test.text


@pytest.mark.parametrize("start_tls", [False, True])
def test_a_certificate_for_another_name_is_refused(
    register: Register, tmp_path: Path, start_tls: bool
) -> None:
    with slapd(tmp_path, host="other.example") as other:
        register(other, **({"url": other.url, "start_tls": True} if start_tls else {}))
        assert refused(sign_in(Client(), "ada"), "The certificate of Directory is not trusted.")


def test_a_wrong_service_account_is_refused_and_no_attempt_is_counted(
    world: World, server: Slapd, register: Register
) -> None:
    register(server, secret="wrong")
    for _ in range(7):
        assert refused(sign_in(Client(), "ada"), "Directory refuses the service account of the portal.")
    test = providers.run_connection_test(actor=world.operator, slug=SLUG, now=world.now)
    assert not test.passed and "refuses the service account" in test.text


def test_a_base_that_does_not_exist_is_named(world: World, server: Slapd, register: Register) -> None:
    register(server, user_base=f"ou=nowhere,{PEOPLE}")
    test = providers.run_connection_test(actor=world.operator, slug=SLUG, now=world.now, username="ada")
    assert not test.passed and "Directory has no entry ou=nowhere" in test.text


def test_a_directory_that_is_away_is_named_and_locks_nobody_out(
    world: World, register: Register, tmp_path: Path
) -> None:
    with slapd(tmp_path) as away:
        away.add(person("ada"))
        register(away)
        assert sign_in(Client(), "ada").status_code == 302
    for _ in range(7):
        assert refused(sign_in(Client(), "ada"), "Directory does not answer at ldaps://")
    browser = Client()
    browser.force_login(world.operator)
    assert browser.get(reverse("home")).status_code == 200


def test_a_referral_to_another_server_is_not_followed(
    world: World, server: Slapd, register: Register
) -> None:
    """Check a reference among the results of a search, and a base that is a referral itself."""
    elsewhere = f"ou=elsewhere,{PEOPLE}"
    server.add(
        (
            elsewhere,
            {
                "objectClass": ["referral", "extensibleObject"],
                "ou": ["elsewhere"],
                "ref": ["ldap://127.0.0.1:1/ou=people,dc=other"],
            },
        )
    )
    register(server)
    assert sign_in(Client(), "ada").status_code == 302
    row = providers.IdentityProvider.objects.get(slug=SLUG)
    providers.change_provider(
        actor=world.operator, provider=row, now=world.now, directory={"user_base": elsewhere}
    )
    assert refused(sign_in(Client(), "ada"), "Directory refers to another server")


def test_nested_groups_count_also_in_a_circle(world: World, server: Slapd, register: Register) -> None:
    server.add(
        group("inner", dn_of("ada"), f"cn=outer,{GROUPS}"),
        group("outer", f"cn=inner,{GROUPS}"),
        group("others", dn_of("bob")),
    )
    register(server)
    add_rule(world, "outer", team="vision")
    add_rule(world, "others", role="finance")
    assert sign_in(Client(), "ada").status_code == 302
    assert teams_of("ada") == ["vision"] and not User.objects.get(username="ada").finance


def test_posix_groups_count_by_name_and_by_number(world: World, server: Slapd, register: Register) -> None:
    posix = {"objectClass": ["posixGroup"]}
    server.set(
        dn_of("ada"),
        objectClass=["inetOrgPerson", "posixAccount"],
        uidNumber=["1001"],
        gidNumber=["700"],
        homeDirectory=["/home/ada"],
    )
    server.add(
        (f"cn=primary,{GROUPS}", {**posix, "cn": ["primary"], "gidNumber": ["700"]}),
        (f"cn=named,{GROUPS}", {**posix, "cn": ["named"], "gidNumber": ["701"], "memberUid": ["ada"]}),
        (f"cn=other,{GROUPS}", {**posix, "cn": ["other"], "gidNumber": ["702"], "memberUid": ["bob"]}),
    )
    register(server, group_kind="posixGroup")
    test = providers.run_connection_test(actor=world.operator, slug=SLUG, now=world.now, username="ada")
    assert test.claims["groups"] == ["named", "primary"]


def test_one_address_of_two_people_is_refused_and_the_owner_connects(
    world: World, server: Slapd, register: Register
) -> None:
    register(server)
    assert sign_in(Client(), "ada").status_code == 302
    assert refused(sign_in(Client(), "eve"), "The address ada@example.org belongs to another account.")
    member = world.vision.member
    User.objects.filter(pk=member.pk).update(email="bob@example.org")
    browser = Client()
    assert refused(sign_in(browser, "bob"), "The address bob@example.org belongs to another account.")
    browser.force_login(member)
    assert sign_in(browser, "bob", process="connect").status_code == 302
    later = Client()
    sign_in(later, "bob")
    assert signed_in_as(later) == member.username
    assert "Disconnect" in browser.get(reverse("own-identities")).content.decode()


def test_people_without_an_account_are_refused_if_the_settings_say_so(
    server: Slapd, register: Register
) -> None:
    register(server, creates_accounts=False)
    assert refused(sign_in(Client(), "ada"), "You have no account")


@pytest.mark.parametrize("way", ["userAccountControl", "shadowExpire"])
def test_a_disabled_entry_is_refused(server: Slapd, register: Register, way: str) -> None:
    register(server)
    value = "514" if way == "userAccountControl" else "1"
    kinds = ["inetOrgPerson", "extensibleObject"]
    server.set(dn_of("ada"), objectClass=kinds, **{way: [value]})
    assert refused(sign_in(Client(), "ada"), "Directory says that your account is disabled.")
    assert wrong(sign_in(Client(), "ada", "wrong"))  # a stranger does not learn that it is disabled


def test_people_who_do_not_match_the_filter_are_unknown(server: Slapd, register: Register) -> None:
    register(server, user_filter="(&(objectClass=person)(!(employeeType=guest)))")
    server.set(dn_of("bob"), employeeType=["guest"])
    assert sign_in(Client(), "ada").status_code == 302
    assert wrong(sign_in(Client(), "bob"))


def test_the_attributes_of_active_directory_are_understood(
    world: World, server: Slapd, register: Register
) -> None:
    """Check a binary lasting id, which stays the same if the person gets another name."""
    identifier = bytes(range(16))
    server.set(
        dn_of("ada"),
        objectClass=["inetOrgPerson", "extensibleObject"],
        sAMAccountName=["ada.l"],
        objectGUID=[identifier],
        userAccountControl=["512"],
    )
    members = {"objectClass": ["group"], "cn": ["gpu"], "member": [dn_of("ada")]}
    server.add((f"cn=gpu,{GROUPS}", members))
    register(
        server,
        username_attribute="sAMAccountName",
        subject_attribute="objectGUID",
        group_kind="activeDirectory",
    )
    add_rule(world, "gpu", team="vision")
    assert sign_in(Client(), "ada.l").status_code == 302
    account = SocialAccount.objects.get(user__username="ada.l")
    assert account.uid == "03020100-0504-0706-0809-0a0b0c0d0e0f" and teams_of("ada.l") == ["vision"]
    server.set(dn_of("ada"), sAMAccountName=["ada.byron"])
    assert sync(world).text == "0 accounts were closed, 0 joined, 0 left, of 1 people."
    browser = Client()
    sign_in(browser, "ada.byron")
    assert signed_in_as(browser) == "ada.l"


def test_the_test_of_an_operator_shows_attributes_groups_and_what_the_rules_give(
    world: World, server: Slapd, register: Register
) -> None:
    server.add(group("gpu-vision", dn_of("ada")))
    server.set(dn_of("ada"), employeeType=["researcher"])
    register(server, further_attributes="employeeType")
    add_rule(world, "gpu-vision", team="vision", lead=True)
    browser = Client()
    browser.force_login(world.operator)
    address = reverse("identity-provider", args=[SLUG])
    page = browser.post(address, {"action": "test", "person": "ada"}).content.decode()
    assert "Passed." in page and "researcher" in page and "ada@example.org" in page
    assert "lead of vision" in page and PASSWORD not in page and "userPassword" not in page
    page = browser.post(address, {"action": "test", "person": "nobody"}).content.decode()
    assert "Directory has no person nobody who may use the portal." in page
    assert not User.objects.filter(username="ada").exists()


def test_a_group_that_is_removed_while_signed_in_ends_rights_and_sessions_by_the_sync(
    world: World, server: Slapd, register: Register
) -> None:
    server.add(group("gpu-vision", dn_of("ada")), group("gpu-money", dn_of("ada")))
    register(server, max_loss_percent=100)
    add_rule(world, "gpu-vision", team="vision")
    add_rule(world, "gpu-money", role="finance")
    browser = Client()
    sign_in(browser, "ada")
    assert browser.get(reverse("home")).status_code == 200 and teams_of("ada") == ["vision"]
    server.delete(f"cn=gpu-vision,{GROUPS}")
    server.delete(f"cn=gpu-money,{GROUPS}")
    plan = directory_sync.preview_sync(actor=world.operator, provider=SLUG, now=world.now)
    assert plan.text == "0 accounts would be closed, 0 would join, 1 would leave, of 1 people."
    assert teams_of("ada") == ["vision"]
    assert sync(world).text == "0 accounts were closed, 0 joined, 1 left, of 1 people."
    assert teams_of("ada") == [] and not User.objects.get(username="ada").finance
    assert browser.get(reverse("home")).status_code == 302


def test_a_new_group_gives_rights_by_the_sync(world: World, server: Slapd, register: Register) -> None:
    register(server)
    add_rule(world, "gpu-vision", team="vision")
    sign_in(Client(), "ada")
    server.add(group("gpu-vision", dn_of("ada")))
    assert sync(world).text == "0 accounts were closed, 1 joined, 0 left, of 1 people."
    assert teams_of("ada") == ["vision"]


def test_people_who_are_gone_or_disabled_are_closed_by_the_sync(
    world: World, server: Slapd, register: Register
) -> None:
    register(server)
    browsers = {name: Client() for name in ("ada", "bob")}
    for name, browser in browsers.items():
        assert sign_in(browser, name).status_code == 302
    server.delete(dn_of("ada"))
    server.set(dn_of("bob"), objectClass=["inetOrgPerson", "extensibleObject"], shadowExpire=["1"])
    assert sync(world, allow_loss=True).closed == 2
    for name, browser in browsers.items():
        assert not User.objects.get(username=name).is_active
        assert browser.get(reverse("home")).status_code == 302
    event = AuditEvent.objects.filter(verb="change_user").latest("pk")
    assert event.why == "Directory does not have the person any more, or has disabled them."


def test_people_who_are_gone_are_removed_with_their_teams_if_the_settings_say_so(
    world: World, server: Slapd, register: Register
) -> None:
    server.add(group("gpu-vision", dn_of("ada")))
    register(server, when_gone="remove", max_loss_percent=100)
    add_rule(world, "gpu-vision", team="vision")
    sign_in(Client(), "ada")
    server.delete(dn_of("ada"))
    assert sync(world).closed == 1
    assert not User.objects.get(username="ada").is_active and teams_of("ada") == []
    assert AuditEvent.objects.filter(verb="remove_person").exists()


def test_a_sync_that_would_take_too_much_changes_nothing_and_is_reported(
    world: World, server: Slapd, register: Register
) -> None:
    register(server)
    for name in ("ada", "bob"):
        sign_in(Client(), name)
    server.delete(dn_of("ada"))
    done = sync(world)
    assert (done.outcome, done.closed) == ("refused", 1) and "1 of 2 people would lose" in done.text
    assert User.objects.get(username="ada").is_active
    [check] = [each for each in system_health(world.operator, world.now).checks if each.check == "directory"]
    assert (check.subject, check.state) == ("Directory", "bad") and check.text == done.text
    assert sync(world, allow_loss=True).outcome == "done"
    [check] = [each for each in system_health(world.operator, world.now).checks if each.check == "directory"]
    assert check.state == "good"


def test_a_sync_with_a_directory_that_is_away_changes_nothing_and_is_reported(
    world: World, register: Register, tmp_path: Path
) -> None:
    with slapd(tmp_path) as away:
        away.add(person("ada"))
        register(away)
        sign_in(Client(), "ada")
    done = sync(world)
    assert done.outcome == "failed" and "Directory does not answer at ldaps://" in done.text
    assert User.objects.get(username="ada").is_active
    [check] = [each for each in system_health(world.operator, world.now).checks if each.check == "directory"]
    assert check.state == "bad"


def test_the_last_operator_stays_although_the_directory_does_not_have_them(
    world: World, server: Slapd, register: Register
) -> None:
    register(server, max_loss_percent=100)
    sign_in(Client(), "ada")
    User.objects.filter(operator=True).update(operator=False)
    User.objects.filter(username="ada").update(operator=True)
    server.delete(dn_of("ada"))
    directory_sync.sync_due_directories(world.now)
    assert DirectorySync.objects.get().closed == 0
    assert User.objects.get(username="ada").is_active


def test_the_nightly_sync_runs_once_a_day_and_is_repeated_after_a_failure(
    world: World, server: Slapd, register: Register
) -> None:
    register(server)
    hour = dt.timedelta(hours=1)
    assert directory_sync.sync_due_directories(world.now) == 1
    assert directory_sync.sync_due_directories(world.now + 23 * hour) == 0
    row = providers.IdentityProvider.objects.get(slug=SLUG)
    providers.change_provider(actor=world.operator, provider=row, now=world.now, secret="wrong")
    assert directory_sync.sync_due_directories(world.now + 24 * hour) == 1
    assert directory_sync.sync_due_directories(world.now + 25 * hour) == 1
    assert [each.outcome for each in DirectorySync.objects.order_by("pk")] == ["done", "failed", "failed"]
