"""Import people from a CSV file: create accounts, and change names, addresses, roles and teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.hashers import make_password
from django.db import IntegrityError, transaction

from portal import locks, policy
from portal.models import Membership, User
from portal.services import audit
from portal.services.csv_import import (
    MAX_FILE_CHARACTERS,
    ImportReport,
    problems_of,
    read_rows,
    reject_wrong_lines,
    report_of,
)
from portal.services.people import account_security, accounts, teams
from portal.services.people.identity.sign_in import local_sign_in_allowed
from portal.services.people.imports.rows import (
    COLUMN_ALIASES,
    PersonRow,
    check_header,
    checked_rows,
    teams_by_slug,
)
from portal.services.people.password_links import password_link
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected

MAX_ROWS = 10_000
BATCH = 1_000


@dataclass
class PeopleImport(ImportReport):
    """The report of an import, and the accounts that it created."""

    created: list[User] = field(default_factory=list)


@dataclass(frozen=True)
class FirstPasswordLink:
    """The one-time link with which a person sets the first password."""

    username: str
    email: str
    link: str


def preview_people_import(*, actor: User, text: str, now: datetime) -> ImportReport:
    """Return the effect that an import would have, line by line. Nothing is written.

    Raises NotAllowed. Raises Invalid if the file has no readable header or too many lines.
    """
    policy.require(actor, "user.change")
    with transaction.atomic():
        rows = _changed_rows(text, {"actor": actor, "now": now, "via": "web", "why": ""})
        transaction.set_rollback(True)
    return report_of([person.row for person in rows])


def import_people(*, actor: User, text: str, now: datetime, why: str = "", via: str = "web") -> PeopleImport:
    """Import a CSV file of people in one transaction. Return the effect of each line.

    The import adds and changes. It closes no account, and nobody leaves a team. Raises NotAllowed. Raises
    Invalid if a line is wrong; nothing is written in this case. Raises OperationRejected if somebody else
    creates one of the accounts at the same time.
    """
    policy.require(actor, "user.change")
    context: dict[str, Any] = {"actor": actor, "now": now, "via": via, "why": why}
    with transaction.atomic():
        # Changes of operators wait for the import. Otherwise both could take the role from the last operator.
        locks.lock_organisation()
        rows = _changed_rows(text, context)
        report = report_of([person.row for person in rows])
        reject_wrong_lines(report)
        created = _create([person for person in rows if person.account is None], context)
    return PeopleImport(report.lines, created)


def first_password_links(people: Sequence[User]) -> list[FirstPasswordLink]:
    """Return the links with which people set their first passwords. Empty if passwords are off.

    People who have set a password, or whose account is closed, get no link.
    """
    if not local_sign_in_allowed():
        return []
    return [
        FirstPasswordLink(user.username, user.email, password_link(user))
        for user in people
        if user.is_active and not user.has_usable_password() and not user.is_service_account
    ]


def _changed_rows(text: str, context: Mapping[str, Any]) -> list[PersonRow]:
    """Return the checked lines. Changes of accounts are written; new accounts are not."""
    _, rows = read_rows(
        text,
        max_rows=MAX_ROWS,
        max_characters=MAX_FILE_CHARACTERS,
        check_header=check_header,
        aliases=COLUMN_ALIASES,
    )
    people = checked_rows(context["actor"], rows)
    changed = [person for person in people if person.row.line.state == "changed"]
    # New operators come first, so that a file may replace the last operator.
    for person in sorted(changed, key=lambda each: not each.new_roles.get("operator")):
        with problems_of(person.row):
            _change(person, context)
    return people


def _change(person: PersonRow, context: Mapping[str, Any]) -> None:
    """Make the changes of one line with the services that operators use for one account."""
    user = person.account
    assert user is not None
    without_reason = {name: value for name, value in context.items() if name != "why"}
    if person.full_name and person.full_name != user.get_full_name():
        accounts.change_name(user=user, full_name=person.full_name, **context)
    if person.email and person.email != user.email:
        account_security.change_address(user=user, email=person.email, **context)
    if person.new_roles:
        roles: dict[str, Any] = dict(person.new_roles)
        accounts.change_user(user=user, **roles, **context)
    if person.new_teams:
        known = teams_by_slug(context["actor"])
        for slug, role in person.new_teams.items():
            teams.add_member(team=known[slug], user=user, role=role, **without_reason)


def _create(people: Sequence[PersonRow], context: Mapping[str, Any]) -> list[User]:
    """Create the accounts of new people without passwords, with their teams."""
    if not people:
        return []
    now: datetime = context["now"]
    known = teams_by_slug(context["actor"])
    for slug in {slug for person in people for slug in person.teams}:
        scheduling.reject_if_team_removed(known[slug])
    users = [
        User(
            username=person.username,
            email=person.email,
            first_name=person.full_name,
            password=make_password(None),
            **(person.roles or {}),
        )
        for person in people
    ]
    try:
        with transaction.atomic():
            User.objects.bulk_create(users, BATCH)
    except IntegrityError:
        raise OperationRejected("accounts_changed_meanwhile", field="csv") from None
    joined = [
        Membership(user=user, team=known[slug], role=role, created_at=now)
        for user, person in zip(users, people, strict=True)
        for slug, role in person.teams.items()
    ]
    Membership.objects.bulk_create(joined, BATCH)
    made = [(user, audit.audited_fields(user, "username", "email", *accounts.ROLES)) for user in users]
    audit.record_many(verb="create_user", targets=made, **context)
    members = [(each.team, {"user": each.user.username, "role": each.role}) for each in joined]
    audit.record_many(verb="add_member", targets=members, **context)
    return users
