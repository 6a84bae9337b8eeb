"""Check the lines of an imported file of people against each other and against the accounts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Prefetch

from portal import policy
from portal.input_checks import InputChecks, display_value
from portal.models import Membership, User
from portal.services.csv_import import ImportedRow
from portal.services.people.accounts import ROLES, checked_email, checked_roles
from portal.wording.problems import person_import_problems as problems
from scheduler.models import Team
from telemetry.core.csv_text import FORMULA_STARTS

COLUMNS = ("username", "email", "name", "teams", "roles")
# Other names of the columns, as directories of people use them.
COLUMN_ALIASES = {
    "user name": "username",
    "user_name": "username",
    "e-mail": "email",
    "full_name": "name",
    "team": "teams",
    "role": "roles",
}
NO_ROLE = "none"
_SEPARATORS = re.compile(r"[\s,;|]+")


@dataclass
class PersonRow:
    """One line with its checked values. Empty values, and ``roles`` of None, keep what an account has.

    ``account`` is the account that the line changes; None for a new person. ``teams`` has the role in each
    team.
    """

    row: ImportedRow
    username: str = ""
    email: str = ""
    full_name: str = ""
    teams: dict[str, str] = field(default_factory=dict)
    roles: dict[str, bool] | None = None
    account: User | None = None

    @property
    def new_teams(self) -> dict[str, str]:
        """Return the teams that the person joins, or in which the role changes, with the role."""
        present = (
            {}
            if self.account is None
            else {each.team.slug: str(each.role) for each in self.account.memberships.all()}
        )
        return {slug: role for slug, role in self.teams.items() if present.get(slug) != role}

    @property
    def changes(self) -> bool:
        """Return True if the line changes its account."""
        account = self.account
        assert account is not None
        return bool(
            (self.email and self.email != account.email)
            or (self.full_name and self.full_name != account.get_full_name())
            or self.new_roles
            or self.new_teams
        )

    @property
    def new_roles(self) -> dict[str, bool]:
        """Return the roles in the organisation that change, with their new values."""
        return {
            role: given for role, given in (self.roles or {}).items() if given != getattr(self.account, role)
        }


@dataclass(frozen=True)
class _Directory:
    """The accounts and teams that lines are compared with. Names and addresses are in lower case."""

    accounts: Mapping[str, User]
    names: Mapping[str, str]
    addresses: Mapping[str, str]
    teams: Mapping[str, Team]


def check_header(checks: InputChecks, header: Sequence[str]) -> None:
    """Note the problem of a header that has no user names, or an unknown or repeated column."""
    if "username" not in header or not set(header) <= set(COLUMNS) or len(set(header)) != len(header):
        given = display_value(", ".join(header))
        message = problems.HEADER_INVALID.format(given=given, allowed=", ".join(COLUMNS))
        checks.note("csv", ", ".join(header), message)


def checked_rows(actor: User, rows: Sequence[ImportedRow]) -> list[PersonRow]:
    """Return the lines with their values and states, and note their problems. Takes four queries."""
    directory = _directory(actor, [row.values.get("username", "") for row in rows])
    names: dict[str, int] = {}
    addresses: dict[str, int] = {}
    checked = []
    for row in rows:
        row.line.subject = row.values.get("username", "")[:150]
        person = _checked_row(row, directory)
        _note_repetition(row, names, person.username, problems.PERSON_IS_REPEATED)
        _note_repetition(row, addresses, person.email, problems.ADDRESS_IS_REPEATED)
        if not row.line.problems:
            is_new = person.account is None
            row.line.state = "new" if is_new else "changed" if person.changes else "unchanged"
        checked.append(person)
    return checked


def teams_by_slug(actor: User) -> dict[str, Team]:
    """Return the teams that the actor sees, by the name in their address."""
    return {team.slug: team for team in policy.visible_teams(actor)}


def _directory(actor: User, usernames: Sequence[str]) -> _Directory:
    memberships = Prefetch("memberships", queryset=Membership.objects.select_related("team"))
    found = User.objects.filter(username__in=set(usernames)).prefetch_related(memberships)
    everybody = list(User.objects.values_list("username", "email"))
    return _Directory(
        accounts={user.username: user for user in found},
        names={username.lower(): username for username, _ in everybody},
        addresses={email.lower(): username for username, email in everybody if email},
        teams=teams_by_slug(actor),
    )


def _checked_row(row: ImportedRow, directory: _Directory) -> PersonRow:
    checks, values = InputChecks(), row.values
    person = PersonRow(row, username=checks.user_name("username", values.get("username", "")))
    person.account = directory.accounts.get(person.username)
    given = display_value(person.username)
    similar = directory.names.get(person.username.lower(), person.username)
    if person.account is None and similar != person.username:
        checks.note("username", "", problems.USERNAME_IS_SIMILAR.format(given=given, name=similar))
    if person.account is not None and person.account.is_service_account:
        checks.note("username", "", problems.ACCOUNT_IS_SERVICE.format(given=given))
    elif person.account is not None and not person.account.is_active:
        checks.note("username", "", problems.ACCOUNT_IS_CLOSED.format(given=given))
    if values.get("email") or person.account is None:
        person.email = checked_email(checks, values.get("email", ""))
        owner = directory.addresses.get(person.email.lower()) if person.email else None
        if owner not in (None, person.username):
            message = problems.ADDRESS_IS_TAKEN.format(given=display_value(person.email), name=owner)
            checks.note("email", "", message)
    person.full_name = _checked_name(checks, values.get("name", ""))
    person.teams = _checked_teams(checks, values.get("teams", ""), directory.teams)
    person.roles = _checked_roles(checks, values.get("roles", ""))
    row.line.problems.extend(checks.problems.values())
    return person


def _checked_name(checks: InputChecks, text: str) -> str:
    name = checks.text("name", text, least=0, most=150)
    if name[:1] in FORMULA_STARTS and name:
        checks.note("name", "", problems.NAME_IS_FORMULA.format(given=display_value(name)))
    return name


def _checked_teams(checks: InputChecks, text: str, known: Mapping[str, Team]) -> dict[str, str]:
    """Return the role in each team. A cell is a list such as ``vision:lead language``."""
    teams: dict[str, str] = {}
    for word in _words(text):
        slug, _, role = word.partition(":")
        role = role or str(Membership.Role.MEMBER)
        if slug not in known or role not in Membership.Role.values or slug in teams:
            allowed = ", ".join(sorted(known)[:5]) or problems.NO_TEAM
            message = problems.TEAM_UNKNOWN.format(given=display_value(word), known=allowed)
            checks.note("teams", word[:80], message)
        teams[slug] = role
    return teams


def _checked_roles(checks: InputChecks, text: str) -> dict[str, bool] | None:
    """Return the roles in the organisation; None if the cell is empty."""
    words = _words(text)
    if not words:
        return None
    if words != [NO_ROLE] and not set(words) <= set(ROLES):
        checks.note("roles", text[:80], problems.ROLE_UNKNOWN.format(given=display_value(text)))
        return None
    return checked_roles(checks, {role: role in words for role in ROLES})


def _words(text: str) -> list[str]:
    return [word for word in _SEPARATORS.split(text.lower()) if word]


def _note_repetition(row: ImportedRow, lines: dict[str, int], value: str, message: str) -> None:
    key = value.lower()
    if key and key in lines:
        row.line.problems.append(message.format(given=display_value(value), line=lines[key]))
    lines.setdefault(key, row.line.number)
