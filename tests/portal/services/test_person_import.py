"""Test the import of people from a CSV file: one wrong line refuses the whole file."""

from __future__ import annotations

from typing import Any

import pytest

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, Membership, Organisation, User
from portal.services.people import accounts, service_accounts
from portal.services.people.imports import person_import
from tests.seeds import first_cases
from tests.world import World

pytestmark = pytest.mark.django_db

HEADER = "username,email,name,teams,roles\n"
ADA = "ada,ada@example.org,Ada Lovelace,vision:lead language,finance\n"


def states(world: World, text: str) -> list[tuple[int, str]]:
    report = person_import.preview_people_import(actor=world.operator, text=text, now=world.now)
    return [(line.number, line.state) for line in report.lines]


def run(world: World, text: str, **changes: Any) -> person_import.PeopleImport:
    return person_import.import_people(actor=world.operator, text=text, now=world.now, **changes)


def problem(world: World, text: str) -> str:
    """Return the only problem that a preview shows, and check that the import writes nothing."""
    report = person_import.preview_people_import(actor=world.operator, text=text, now=world.now)
    [found] = [each for line in report.lines for each in line.problems]
    before = _rows()
    with pytest.raises(Invalid, match="Nothing is imported"):
        run(world, text)
    assert _rows() == before
    return found


def _rows() -> tuple[Any, ...]:
    people = list(User.objects.order_by("pk").values())
    return people, Membership.objects.count(), AuditEvent.objects.count()


def test_a_new_person_gets_an_account_with_teams_roles_and_a_link_but_no_password(world: World) -> None:
    assert states(world, HEADER + ADA) == [(2, "new")]
    assert not User.objects.filter(username="ada").exists() and not AuditEvent.objects.exists()
    done = run(world, HEADER + ADA, why="new year", via="cli")
    ada = User.objects.get(username="ada")
    assert (ada.get_full_name(), ada.email, ada.finance, ada.operator) == (
        "Ada Lovelace",
        "ada@example.org",
        True,
        False,
    )
    assert not ada.has_usable_password()
    roles = Membership.objects.filter(user=ada).values_list("team__slug", "role")
    assert set(roles) == {("vision", "lead"), ("language", "member")}
    events = AuditEvent.objects.values_list("verb", "actor_name", "via", "why")
    about = (world.operator.username, "cli", "new year")
    assert sorted(events) == [("add_member", *about), ("add_member", *about), ("create_user", *about)]
    [link] = person_import.first_password_links(done.created)
    assert link.username == "ada" and "/password/" in link.link
    assert states(world, HEADER + ADA) == [(2, "unchanged")]


def test_a_link_sets_the_first_password_once(world: World, client: Any) -> None:
    [link] = person_import.first_password_links(run(world, HEADER + ADA).created)
    page = client.get(link.link.partition("://")[2].partition("/")[2].join(("/", "")), follow=True)
    form = {"password1": "correct horse battery", "password2": "correct horse battery"}
    client.post(page.request["PATH_INFO"], form)
    ada = User.objects.get(username="ada")
    assert ada.check_password("correct horse battery")
    assert person_import.first_password_links([ada]) == []


def test_people_get_no_links_while_passwords_are_off(world: World) -> None:
    Organisation.objects.update(local_sign_in=False)
    assert person_import.first_password_links(run(world, HEADER + ADA).created) == []


def test_a_changed_line_changes_only_what_its_cells_name(world: World) -> None:
    person = world.vision.member
    accounts.change_user(actor=world.operator, user=person, finance=True, now=world.now)
    person.refresh_from_db()
    generation = person.session_generation
    text = f"username,name,e-mail,team,role\n{person.username},New Name,,language,\n"
    assert states(world, text) == [(2, "changed")]
    run(world, text)
    changed = User.objects.get(pk=person.pk)
    assert (changed.get_full_name(), changed.email, changed.finance) == ("New Name", person.email, True)
    teams = Membership.objects.filter(user=person).values_list("team__slug", flat=True)
    assert set(teams) == {"vision", "language"}  # nobody leaves a team
    assert changed.session_generation == generation
    run(world, f"username,email,roles\n{person.username},new@example.org,none\n")
    changed.refresh_from_db()
    assert (changed.email, changed.finance) == ("new@example.org", False)
    assert changed.session_generation > generation  # a changed address ends the sessions


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffuser name;e-mail;name\nada;ada@example.org;Ada\n",
        "USERNAME\tEMAIL\tNAME\r\nada\tada@example.org\t Ada \r\n\r\n",
        'email,username,name\n"ada@example.org",ada,"Ada"\n',
    ],
)
def test_files_of_spreadsheets_are_read(world: World, text: str) -> None:
    run(world, text)
    assert User.objects.get(username="ada").get_full_name() == "Ada"


PROBLEMS = first_cases(
    5,
    [
        (ADA + "ADA,b@example.org,B,,\n", "which line 2 has already"),
        (ADA + "bob,ADA@example.org,B,,\n", "which line 2 has already"),
        ("ada,{lead_email},A,,\n", "which the account {lead} has"),
        ("{lead_upper},x@example.org,A,,\n", "but the account {lead} exists"),
        ("ci,,,,\n", "a service account; allowed: a person"),
        ("{stranger},,,,\n", "a closed account"),
        ("ada,ada@example.org,=HYPERLINK(1),,\n", "name is '=HYPERLINK(1)'; allowed: a text that"),
        ("=ada,ada@example.org,Ada,,\n", "username is '=ada'; allowed: 1 to 150 letters"),
        ("ada,,Ada,,\n", "email is ''; allowed: an address"),
        ("ada,ada@example.org,Ada,nowhere,\n", "teams is 'nowhere'; allowed: names in addresses of teams"),
        ("ada,ada@example.org,Ada,vision:boss,\n", "teams is 'vision:boss'"),
        ("ada,ada@example.org,Ada,,chief\n", "roles is 'chief'; allowed: none, or one or more of operator"),
        ("ada,ada@example.org,Ada,,auditor finance\n", "auditor"),
        ("ada,ada@example.org,Ada\n", "the line has 3 cells; allowed: 5"),
        ("{operator},,,,none\n", "is the last operator"),
    ],
)


@pytest.mark.parametrize(("text", "expected"), PROBLEMS)
def test_a_wrong_line_names_field_value_and_what_is_allowed(world: World, text: str, expected: str) -> None:
    service_accounts.create_service_account(
        actor=world.operator, team=world.vision.team, owner=world.vision.lead, name="ci", now=world.now
    )
    User.objects.filter(pk=world.stranger.pk).update(is_active=False)
    lead = world.vision.lead
    names = {
        "lead": lead.username,
        "lead_email": lead.email,
        "lead_upper": lead.username.upper(),
        "stranger": world.stranger.username,
        "operator": world.operator.username,
    }
    assert expected.format(**names) in problem(world, HEADER + text.format(**names))


def test_a_file_may_replace_the_last_operator(world: World) -> None:
    lead = world.vision.lead.username
    run(world, f"username,roles\n{world.operator.username},none\n{lead},operator\n")
    assert list(User.objects.filter(operator=True).values_list("username", flat=True)) == [lead]


def test_a_header_without_user_names_or_with_unknown_columns_is_refused(world: World) -> None:
    for header in ("email,name\n", "username,age\n", "username,username\n"):
        with pytest.raises(Invalid, match="username is required"):
            states(world, header + "a,b\n")


def test_only_operators_import_people(world: World) -> None:
    for verb in (person_import.preview_people_import, person_import.import_people):
        with pytest.raises(NotAllowed):
            verb(actor=world.finance, text=HEADER + ADA, now=world.now)


@pytest.mark.parametrize("count", [300, pytest.param(person_import.MAX_ROWS, marks=pytest.mark.long)])
def test_people_are_imported_with_few_queries(
    world: World, django_assert_max_num_queries: Any, count: int
) -> None:
    lines = [f"p{n},p{n}@example.org,Person {n},vision,\n" for n in range(count)]
    with django_assert_max_num_queries(80):
        done = run(world, HEADER + "".join(lines))
    assert len(done.created) == count == Membership.objects.filter(user__in=done.created).count()


def test_a_file_has_at_most_ten_thousand_people(world: World) -> None:
    lines = [f"p{n},p{n}@example.org,,,\n" for n in range(person_import.MAX_ROWS + 1)]
    with pytest.raises(Invalid, match="10001 lines; allowed: 1 to 10000"):
        states(world, HEADER + "".join(lines))
