"""Find the rows that a request names. A row that the user may not see is treated as missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Model, QuerySet
from django.http import Http404

from portal import policy
from portal.errors import Invalid, ObjectNotFound
from portal.input_checks import display_value
from portal.models import Template, User
from portal.wording.pages import api_answers
from scheduler.models import Host, JobArray, Pool, Project, Reservation, Team, Workload

MAX_NAMES_IN_ERROR = 10


def visible_pool(user: User, slug: str) -> Pool:
    """Return the pool with this slug. Raises Invalid."""
    return get_named_row(policy.visible_pools(user), "pool", slug, "the slug of a pool", slug=slug)


def visible_host(user: User, name: str, rows: QuerySet[Host] | None = None) -> Host:
    """Return the host with this name. Search in ``rows``, or in the visible hosts if it is None.

    Raises ObjectNotFound. Its message lists the hosts that the user may see.
    """
    visible = policy.visible_hosts(user) if rows is None else rows
    host = visible.filter(name=name).first()
    if host is None:
        names = list(
            policy.visible_hosts(user)
            .order_by("name")
            .values_list("name", flat=True)[: MAX_NAMES_IN_ERROR + 1]
        )
        more = ", and others in the list of hosts" if len(names) > MAX_NAMES_IN_ERROR else ""
        known = (
            f"{', '.join(names[:MAX_NAMES_IN_ERROR])}{more}"
            if names
            else "none: there is no host that you may see"
        )
        raise ObjectNotFound("host", name, known)
    return host


def hosts_of_files(user: User, given: Mapping[str, Any]) -> QuerySet[Host]:
    """Return the hosts of a file of telemetry, with removed hosts: those that ``pool`` and ``host`` select.

    Without these parameters, the result has all hosts that the user may see. Raises Invalid.
    """
    hosts = policy.visible_hosts_with_removed(user)
    if "pool" in given:
        hosts = hosts.filter(pool=visible_pool(user, given["pool"]))
    if "host" in given:
        named = get_named_row(hosts, "host", given["host"], "the name of a host", name=given["host"])
        hosts = hosts.filter(name=named.name)
    return hosts


def visible_team(user: User, slug: str) -> Team:
    """Return the team with this slug. Raises Invalid."""
    return get_named_row(policy.visible_teams(user), "team", slug, "the slug of a team", slug=slug)


def visible_project(user: User, path: str) -> Project:
    """Return the project with the path ``team/project``. Raises Invalid.

    The slug of the project alone is enough if only one visible project has this slug.
    """
    team, slash, slug = path.partition("/")
    rows = policy.visible_projects(user).select_related("team")
    found = list(rows.filter(team__slug=team, slug=slug)[:2] if slash else rows.filter(slug=path)[:2])
    if len(found) != 1:
        known = [
            f"{p.team.slug}/{p.slug}" for p in policy.launchable_projects(user).select_related("team")[:10]
        ]
        allowed = ", ".join(known) or "none: you are in no team"
        raise Invalid(
            {"project": api_answers.PROJECT_NOT_ALLOWED.format(given=display_value(path), allowed=allowed)},
            {"project": path},
        )
    return found[0]


def visible_reservation(user: User, public_id: UUID | None) -> Reservation | None:
    """Return the reservation with this id, or None if the id is None. Raises Invalid."""
    if public_id is None:
        return None
    rows = policy.visible_reservations(user)
    return get_named_row(rows, "reservation", str(public_id), "the id of a reservation", public_id=public_id)


def dependencies_of(user: User, given: list[dict[str, Any]]) -> list[tuple[str, Workload | JobArray]]:
    """Return a job's dependencies. Each is a pair: the required outcome, and the workload or array.

    Raises Invalid.
    """
    return [(each["condition"], _dependency(user, each)) for each in given]


def _dependency(user: User, each: dict[str, Any]) -> Workload | JobArray:
    if "array" in each:
        rows = policy.visible_arrays(user)
        return get_named_row(rows, "after", str(each["array"]), "the id of an array", public_id=each["array"])
    work = policy.visible_workloads(user)
    return get_named_row(
        work, "after", str(each["workload"]), "the id of a workload", public_id=each["workload"]
    )


def template_by_slug(slug: str | None) -> Template | None:
    """Return the template with this slug, or None if the slug is None. Raises Invalid."""
    return (
        None
        if slug is None
        else get_named_row(Template.objects.all(), "template", slug, "the slug of a template", slug=slug)
    )


def workload_arguments(user: User, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a launch request. Names and ids are replaced by the rows that they name.

    Raises Invalid.
    """
    found = dict(given)
    found["project"] = visible_project(user, given["project"])
    found["pool"] = visible_pool(user, given["pool"])
    if "reservation" in given:
        found["reservation"] = visible_reservation(user, given["reservation"])
    if "after" in given:
        found["after"] = dependencies_of(user, given["after"])
    if "template" in given:
        found["template"] = template_by_slug(given["template"])
    return found


Row = TypeVar("Row", bound=Model)


def get_visible_or_404(rows: QuerySet[Row], **by: Any) -> Row:
    """Return the first of ``rows`` that matches ``by``. Raises Http404 if no row matches.

    ``rows`` contains only rows that the user may see.
    """
    row = rows.filter(**by).first()
    if row is None:
        raise Http404
    return row


def get_named_row(rows: QuerySet[Row], field: str, value: str, noun: str, **by: Any) -> Row:
    """Return the first of ``rows`` that matches ``by``. Raises Invalid if no row matches.

    ``field`` and ``value`` are the field of the request and its value, for the error message.
    """
    row = rows.filter(**by).first()
    if row is None:
        raise Invalid(
            {
                field: api_answers.OBJECT_NOT_VISIBLE.format(
                    field=field, given=display_value(value), what=noun
                )
            },
            {field: value},
        )
    return row
