"""Read data of the utilisation page that is not in ``telemetry.reads``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Sum
from django.urls import reverse

from portal import policy
from portal.models import Membership, User
from scheduler.models import Project, Reservation, Team, Workload
from telemetry.reads.usage_filters import UsageFilters
from telemetry.reads.waterfall import WorkKey


def visible_gpu_models(viewer: User) -> list[str]:
    """Return every GPU model of the visible pools."""
    return sorted(set(policy.visible_gpus(viewer).filter(retired_at=None).values_list("model", flat=True)))


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The number of GPUs of one model on one host that are not retired."""

    host: int
    host_name: str
    pool: int
    model: str
    count: int


def visible_host_gpus(viewer: User) -> list[HostGpus]:
    """Return the GPUs of the hosts that the viewer may see, by host and model, in order of host names."""
    rows = policy.visible_gpus(viewer).filter(retired_at=None)
    columns = rows.order_by("host__name").values_list("host_id", "host__name", "pool_id", "model")
    return [HostGpus(*row) for row in columns.annotate(count=Count("pk"))]


@dataclass(frozen=True)
class NamedWork:
    """The names of one row of the list of waste, for a viewer who may see them.

    ``url`` opens the workload or the reservation; "" for a project or a person. ``report_url`` opens the
    report of a workload. ``units`` is the number of requested GPUs or slices; 0 if it is not one request.
    """

    name: str
    team: Team | None
    project: str
    person: str
    email: str
    url: str
    units: int
    report_url: str = ""


def names_of_work(viewer: User, works: Collection[WorkKey]) -> dict[WorkKey, NamedWork]:
    """Return the names of the works that the viewer may see. Other works are left out."""
    rows = Project.objects.filter(pk__in={work.project for work in works}).select_related("team")
    projects = {project.pk: project for project in rows}
    shown = _shown_works(viewer, works, {pk: project.team_id for pk, project in projects.items()})
    requests, people = _requests(shown)
    others = {work.user for work in shown} - set(people) - {0}
    for row in User.objects.filter(pk__in=others).values_list("pk", "username", "email") if others else ():
        people[row[0]] = row[1:]
    return {
        work: _named(
            projects.get(work.project), people.get(work.user, ("", "")), *requests.get(work, ("", "", 0, ""))
        )
        for work in shown
    }


def visible_works(viewer: User, works: Collection[WorkKey]) -> set[WorkKey]:
    """Return the works whose names the viewer may see: those with an entry in ``names_of_work``."""
    if policy.teams_whose_waste_is_named(viewer) is None:
        return set(works)
    projects = Project.objects.filter(pk__in={work.project for work in works})
    return set(_shown_works(viewer, works, dict(projects.values_list("pk", "team_id"))))


def _named(
    project: Project | None, person: tuple[str, str], name: str, url: str, units: int, report_url: str
) -> NamedWork:
    of_project, (of_person, email) = project.name if project else "", person
    return NamedWork(
        name=name or of_project or of_person,
        team=project.team if project else None,
        project=of_project,
        person=of_person,
        email=email,
        url=url,
        units=units,
        report_url=report_url,
    )


def _shown_works(viewer: User, works: Collection[WorkKey], team_of: dict[int, int]) -> list[WorkKey]:
    """Return the works that the viewer may see by name. ``team_of`` has the team of each project."""
    named_teams = policy.teams_whose_waste_is_named(viewer)
    if named_teams is None:
        return list(works)
    led, my_projects = set(named_teams), set(policy.visible_projects(viewer).values_list("pk", flat=True))
    led_people = _people_of_only(led)

    def is_shown(work: WorkKey) -> bool:
        if not work.user:
            return work.project in my_projects
        if work.project:
            return work.user == viewer.pk or team_of.get(work.project) in led
        return work.user == viewer.pk or work.user in led_people

    return [work for work in works if is_shown(work)]


def _people_of_only(teams: set[int]) -> set[int]:
    """Return the ids of the people who are members of these teams and of no other team."""
    members: dict[int, set[int]] = {}
    for user, team in Membership.objects.filter(user__memberships__team__in=teams).values_list(
        "user", "team"
    ):
        members.setdefault(user, set()).add(team)
    return {user for user, of in members.items() if of <= teams}


_ANY_ID = UUID(int=0)


def _requests(
    works: Collection[WorkKey],
) -> tuple[dict[WorkKey, tuple[str, str, int, str]], dict[int, tuple[str, str]]]:
    """Return (name, address, units, address of the report) of the workload or the reservation of each work.

    The second dict has the name and the e-mail address of the owners of the workloads.
    """
    columns = ("pk", "name", "kind", "public_id", "units", "hosts")
    of_owner = ("owner_id", "owner__username", "owner__email")
    rows = Workload.objects.filter(pk__in={work.workload for work in works if work.workload})
    workloads, people = {}, {}
    for pk, *values, owner, username, email in rows.values_list(*columns, *of_owner):
        workloads[pk], people[owner] = values, (username, email)
    # One address for each kind of page, because there may be thousands of works.
    pages = {page: reverse(page, args=[_ANY_ID]) for page in ("notebook", "job", "workload-report")}
    reserved = {work.reservation for work in works if work.reservation}
    reservations = Reservation.objects.in_bulk(reserved)
    found = {}
    for work in works:
        if workload := workloads.get(work.workload):
            name, kind, public_id, units, hosts = workload
            page = pages["notebook" if kind == "notebook" else "job"]
            url, report_url = (
                each.replace(str(_ANY_ID), str(public_id)) for each in (page, pages["workload-report"])
            )
            found[work] = (name, url, units * hosts, report_url)
        elif reservation := reservations.get(work.reservation):
            url = reverse("reservation", args=[reservation.public_id])
            found[work] = (reservation.name, url, 0, "")
    return found, people


# The charge buckets, and the steps of the waterfall, of GPUs that are out of service.
OUT_OF_SERVICE = ("unhealthy", "maintenance")


def hosts_out_of_service(viewer: User, filters: UsageFilters) -> dict[str, list[str]]:
    """Return the visible hosts with unhealthy and with maintenance time, longest first, by charge bucket."""
    hosts = policy.visible_hosts(viewer)
    lines = filters.charges().filter(bucket__in=OUT_OF_SERVICE, gpu__host__in=hosts)
    rows: Any = lines.values_list("bucket", "gpu__host__name").annotate(seconds=Sum("slot_seconds"))
    found: dict[str, list[str]] = {}
    for bucket, host, seconds in sorted(rows, key=lambda row: (-row[2], row[1])):
        if seconds > 0:
            found.setdefault(bucket, []).append(host)
    return found
