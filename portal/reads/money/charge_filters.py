"""Check the filters of charges that a request names.

An object that the viewer may not see gets the same answer as an object that does not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any

from django.db.models import Q, QuerySet

from portal import policy
from portal.input_checks import InputChecks, display_value
from portal.models import Membership, User
from portal.reads.money.charged_months import parse_month
from portal.wording.pages.money import money_pages
from scheduler.models import Pool, Project, Team, Workload, WorkloadType
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.models import Charge, ChargeBucketChoices, CostCentre, CostCentreShare, StatementLine
from telemetry.money.billing_months import next_month
from telemetry.reads.chargeback import (
    ANY_MONTH,
    CHARGE_DIMENSIONS,
    DRILL_DOWN,
    NO_MONTH,
    SPAN_FILTERS,
    charge_condition,
)

# Filters in the order in which they are applied. The drill-down comes last, in the order of its levels.
FILTERS = (*SPAN_FILTERS, *(name for name in CHARGE_DIMENSIONS if name not in DRILL_DOWN), *DRILL_DOWN)
MAX_KEY_LENGTH = 80
MAX_ID_DIGITS = 18


def _teams(viewer: User) -> QuerySet[Any]:
    teams = Team.with_removed.all()
    return teams if policy.sees_all_charges(viewer) else teams.filter(pk__in=policy.my_team_ids(viewer))


def _projects(viewer: User) -> QuerySet[Any]:
    return Project.objects.filter(team__in=_teams(viewer))


def _users(viewer: User) -> QuerySet[Any]:
    if policy.sees_all_charges(viewer):
        return User.objects.all()
    led = policy.my_team_ids(viewer, Membership.Role.LEAD)
    return User.objects.filter(
        Q(pk=viewer.pk) | Q(pk__in=Membership.objects.filter(team__in=led).values("user"))
    )


def _workloads(viewer: User) -> QuerySet[Any]:
    if policy.sees_all_charges(viewer):
        return Workload.objects.all()
    led = policy.my_team_ids(viewer, Membership.Role.LEAD)
    return Workload.objects.filter(Q(owner=viewer) | Q(project__team__in=led))


# The objects whose charges the viewer may see, for each dimension whose keys are primary keys. Operators see
# every team, but not the charges of every team. If they could filter by any team, a page could wrongly show
# that a team has no charges.
VISIBLE_OBJECTS: dict[str, Callable[[User], QuerySet[Any]]] = {
    "team": _teams,
    "project": _projects,
    "pool": policy.visible_pools_with_removed,
    "user": _users,
    "workload": _workloads,
}


def filtered_teams(viewer: User) -> frozenset[int] | None:
    """Return the ids of the teams by which the viewer may filter charges. None means all teams that the
    viewer sees, which are also the teams whose budgets the viewer sees.
    """
    if policy.sees_all_charges(viewer) or not policy.sees_all_teams(viewer):
        return None
    return frozenset(_teams(viewer).values_list("pk", flat=True))


def checked_filters(viewer: User, month: date, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the filters of ``telemetry.reads.chargeback``, by dimension.

    The values of ``given`` are keys as texts: primary keys, or names such as the code of a cost centre. An
    empty text selects the charges without a value. Raises Invalid for a key that the viewer may not see, or
    that does not exist.
    """
    checks = InputChecks()
    lines = policy.visible_charges(viewer).filter(month=month)
    where: dict[str, Any] = {}
    for name in FILTERS:
        if name in LIST_FILTERS:
            if name in given:
                where[name] = _list_filter(checks, name, given[name], lines, month)
        elif name in given and given[name] == "":
            where[name] = None if name in VISIBLE_OBJECTS else ""
        elif name in given:
            found = _parse_key(name, given[name])
            keys = [] if found is None else [found]
            where[name] = _only_visible(checks, viewer, lines, month, name, given[name], keys)
    checks.done()
    return where


def checked_cost_centre(viewer: User, code: str) -> str:
    """Return the code of a cost centre whose charges the viewer may see. Raises Invalid for another code."""
    where = named_filters(viewer, policy.visible_charges(viewer), {"cost_centre": code})
    return str(where["cost_centre"])


def named_filters(
    viewer: User, lines: QuerySet[Charge], given: Mapping[str, str], month: date | None = None
) -> dict[str, Any]:
    """Return the filters like ``checked_filters``, but from the names in the API, such as a team's slug.

    ``lines`` are the visible charges: of ``month``, or of all months if it is None. Raises Invalid.
    """
    checks = InputChecks()
    where = {
        name: _list_filter(checks, name, given[name], lines, month)
        if name in LIST_FILTERS
        else _only_visible(checks, viewer, lines, month, name, given[name], _keys_of_name(name, given[name]))
        for name in FILTERS
        if name in given
    }
    checks.done()
    return where


def _list_filter(
    checks: InputChecks, name: str, text: str, lines: QuerySet[Charge], month: date | None
) -> Any:
    """Return the value of a filter in LIST_FILTERS. Otherwise, note a problem."""
    try:
        return LIST_FILTERS[name](text, lines, month)
    except ValueError:
        sentence = money_pages.FILTER_UNKNOWN.format(
            field=name, given=display_value(text), allowed=money_pages.ALLOWED_FILTERS[name]
        )
        checks.note(name, text[:MAX_KEY_LENGTH], sentence)
        return None


def _buckets(text: str, lines: QuerySet[Charge], month: date | None) -> str | tuple[str, ...]:
    """Return a bucket, or a tuple of several. Raises ValueError for an unknown bucket."""
    names = tuple(text.split(","))
    known = {*ChargeBucketChoices.values, *ADJUSTMENT_BUCKETS}
    if any(name not in known for name in names):
        raise ValueError("bucket: unknown")
    return names[0] if len(names) == 1 else names


def _day(text: str, lines: QuerySet[Charge], month: date | None) -> date:
    """Return a day of the month, or of a month that it corrects. Raises ValueError for another text."""
    if len(text) != len("2026-03-12") or not text.isascii():
        raise ValueError("day: not a date")
    day = date.fromisoformat(text)
    is_own = month is None or month <= day < next_month(month)
    if not is_own and not lines.filter(day=day).exists():
        raise ValueError("day: in no month of the statement")
    return day


def _last_day(text: str, lines: QuerySet[Charge], month: date | None) -> date:
    """Return a day of the month; of any month if it is None. Raises ValueError for another text."""
    if len(text) != len("2026-03-12") or not text.isascii():
        raise ValueError("last_day: not a date")
    day = date.fromisoformat(text)
    if month is not None and not month <= day < next_month(month):
        raise ValueError("last_day: not in the month")
    return day


def _corrected_month(text: str, lines: QuerySet[Charge], month: date | None) -> date | str | None:
    """Return the value of ``corrected_month`` for ``charge_condition``: a month, ANY_MONTH or None.

    Raises ValueError if no visible line corrects the month.
    """
    if text in (ANY_MONTH, NO_MONTH):
        return ANY_MONTH if text == ANY_MONTH else None
    corrected = parse_month(text)
    if corrected is None or not lines.filter(charge_condition({"corrected_month": corrected})).exists():
        raise ValueError("corrected_month: not corrected")
    return corrected


# Filters whose values are not keys of objects. Each has a function that takes the text, the visible lines and
# the month, and returns the value for ``where``.
LIST_FILTERS: dict[str, Callable[[str, QuerySet[Charge], date | None], Any]] = {
    "bucket": _buckets,
    "corrected_month": _corrected_month,
    "day": _day,
    "last_day": _last_day,
}


def _only_visible(
    checks: InputChecks,
    viewer: User,
    lines: QuerySet[Charge],
    month: date | None,
    name: str,
    text: str,
    keys: Sequence[int | str],
) -> int | str | None:
    """Return the key whose charges the viewer may see.

    Note a problem unless exactly one of ``keys`` is such a key.
    """
    seen = [
        key for key in keys if _is_visible(viewer, name, key) or _is_charged(viewer, lines, month, name, key)
    ]
    if len(seen) == 1:
        return seen[0]
    sentence = money_pages.FILTER_UNKNOWN.format(
        field=name, given=display_value(text), allowed=money_pages.ALLOWED_FILTERS[name]
    )
    checks.note(name, text[:MAX_KEY_LENGTH], sentence)
    return None


def _parse_key(name: str, text: str) -> int | str | None:
    if name not in VISIBLE_OBJECTS:
        return text if len(text) <= MAX_KEY_LENGTH and text.isprintable() else None
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS else None


def _keys_of_name(name: str, text: str) -> list[int | str]:
    """Return the keys of all objects with this name, whether the viewer may see them or not."""
    if not text.isprintable():  # PostgreSQL rejects NUL
        return []
    if name == "project":
        team, slash, slug = text.partition("/")
        by = {"team__slug": team, "slug": slug} if slash else {"slug": text}
        return list(Project.objects.filter(**by).values_list("pk", flat=True))
    if name == "workload":
        return (
            list(Workload.objects.filter(public_id=text).values_list("pk", flat=True))
            if _is_uuid(text)
            else []
        )
    if name == "user":
        return list(User.objects.filter(username=text).values_list("pk", flat=True))
    if name in ("team", "pool"):
        rows: Any = Team if name == "team" else Pool
        return list(rows.with_removed.filter(slug=text).values_list("pk", flat=True))
    key = _parse_key(name, text)
    return [] if key is None else [key]


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _is_visible(viewer: User, name: str, key: int | str) -> bool:
    """Return True if the viewer may see the object with this key. The object may have no charges."""
    if name in VISIBLE_OBJECTS:
        return VISIBLE_OBJECTS[name](viewer).filter(pk=key).exists()
    if name == "type":
        return key in WorkloadType.values
    if name == "cost_centre":
        return _is_visible_code(viewer, str(key))
    return policy.visible_gpus(viewer).filter(model=key).exists()


def _is_visible_code(viewer: User, code: str) -> bool:
    """Return True if the viewer sees a project, a statement or an adjustment of the cost centre.

    People who see all charges also know the codes of the directory and of dedicated pools.
    """
    sources: list[QuerySet[Any]] = [
        policy.visible_adjustments(viewer).filter(cost_centre=code),
        policy.visible_documents(viewer).filter(cost_centre=code),
        CostCentreShare.objects.filter(code=code, project__in=_projects(viewer)),
    ]
    if policy.sees_all_charges(viewer):
        sources += [CostCentre.objects.filter(code=code), CostCentreShare.objects.filter(code=code)]
    return any(rows.exists() for rows in sources)


def _is_charged(viewer: User, lines: QuerySet[Charge], month: date | None, name: str, key: int | str) -> bool:
    """Return True if one of ``lines`` has the key. This allows keys of objects that were removed.

    For cost centres, statement lines are read: charge lines have no index of cost centres, and there may be
    millions of them.
    """
    if name != "cost_centre":
        return lines.filter(**{CHARGE_DIMENSIONS[name][0]: key}).exists()
    cells = policy.visible_cells(viewer)
    rows: QuerySet[Any] = (
        StatementLine.objects.filter(cost_centre=key)
        if cells is None
        else cells.filter(line__cost_centre=key)
    )
    return (rows if month is None else rows.filter(statement__month=month)).exists()
