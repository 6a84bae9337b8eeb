"""From the words of a request to rows, always out of what the asker may see."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from portal import policy
from portal.api.base import choose
from portal.errors import Invalid, Missing
from portal.models import Template, User
from portal.validation import shown
from scheduler.models import Host, JobArray, Pool, Project, Reservation, Team, Workload

MOST_NAMES = 10


def pool_of(user: User, slug: str) -> Pool:
    """A pool by its slug. Raises Invalid."""
    return choose(policy.visible_pools(user), "pool", slug, "the slug of a pool", slug=slug)


def host_at(user: User, name: str, rows: QuerySet[Host] | None = None) -> Host:
    """The host that an address names, out of those that may be seen. Raises Missing, which names those."""
    visible = policy.visible_hosts(user) if rows is None else rows
    host = visible.filter(name=name).first()
    if host is None:
        names = list(policy.visible_hosts(user).order_by("name").values_list("name", flat=True)[: MOST_NAMES + 1])
        more = ", and others in the list of hosts" if len(names) > MOST_NAMES else ""
        known = f"{', '.join(names[:MOST_NAMES])}{more}" if names else "none: there is no host that you may see"
        raise Missing("host", name, known)
    return host


def team_of(user: User, slug: str) -> Team:
    """A team by its slug. Raises Invalid."""
    return choose(policy.visible_teams(user), "team", slug, "the slug of a team", slug=slug)


def project_of(user: User, path: str) -> Project:
    """A project as team/project, or by its slug alone where that names one. Raises Invalid."""
    team, slash, slug = path.partition("/")
    rows = policy.visible_projects(user).select_related("team")
    found = list(rows.filter(team__slug=team, slug=slug)[:2] if slash else rows.filter(slug=path)[:2])
    if len(found) != 1:
        known = [f"{p.team.slug}/{p.slug}" for p in policy.launchable_projects(user).select_related("team")[:10]]
        allowed = ", ".join(known) or "none: you are in no team"
        raise Invalid({"project": f"project is {shown(path)}; allowed: {allowed}."}, {"project": path})
    return found[0]


def reservation_of(user: User, public_id: UUID | None) -> Reservation | None:
    """A reservation by its id; None stays None. Raises Invalid."""
    if public_id is None:
        return None
    rows = policy.visible_reservations(user)
    return choose(rows, "reservation", str(public_id), "the id of a reservation", public_id=public_id)


def after_of(user: User, given: list[dict[str, Any]]) -> list[tuple[str, Workload | JobArray]]:
    """What a job waits for: conditions, and workloads or arrays. Raises Invalid."""
    return [(each["condition"], _awaited(user, each)) for each in given]


def _awaited(user: User, each: dict[str, Any]) -> Workload | JobArray:
    if "array" in each:
        rows = policy.visible_arrays(user)
        return choose(rows, "after", str(each["array"]), "the id of an array", public_id=each["array"])
    work = policy.visible_workloads(user)
    return choose(work, "after", str(each["workload"]), "the id of a workload", public_id=each["workload"])


def template_of(slug: str | None) -> Template | None:
    """A template by its slug; None stays None. Raises Invalid."""
    return (
        None if slug is None else choose(Template.objects.all(), "template", slug, "the slug of a template", slug=slug)
    )


def work_arguments(user: User, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a launching verb, with rows in the place of words."""
    found = dict(given)
    found["project"] = project_of(user, given["project"])
    found["pool"] = pool_of(user, given["pool"])
    if "reservation" in given:
        found["reservation"] = reservation_of(user, given["reservation"])
    if "after" in given:
        found["after"] = after_of(user, given["after"])
    if "template" in given:
        found["template"] = template_of(given["template"])
    return found
