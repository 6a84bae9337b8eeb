"""Read teams, people, notices and audit records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db.models import Case, Count, F, Max, Prefetch, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce, NullIf

from portal import policy
from portal.models import ApiToken, AuditEvent, Membership, Notification, User
from portal.wording.people.audit_values import verb_code
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Pool, Project, Quota, Team, Workload
from scheduler.state.states import WorkloadState
from telemetry.core.cost_shares import split_text
from telemetry.cost_centres.names import cost_centre_labels
from telemetry.cost_centres.splits import CostSplits, Payer, load_splits

MAX_NOTICES = 500  # of one page of matters


def teams(viewer: policy.Viewer) -> list[dict[str, Any]]:
    """Return the visible teams, sorted by name.

    Each entry has the ``team``, its numbers of ``people`` and active ``projects``, and its ``guaranteed``
    GPUs.
    """
    rows = policy.visible_teams(viewer).annotate(
        people=Count("memberships", filter=Q(memberships__user__service_team=None), distinct=True),
        active_projects=Count("projects", filter=Q(projects__active=True), distinct=True),
    )
    guaranteed: dict[int, int] = {}
    for quota in Quota.objects.filter(team__in=rows.values("pk")):
        guaranteed[quota.team_id] = guaranteed.get(quota.team_id, 0) + quota.guaranteed_slots
    return [
        {
            "team": team,
            "people": team.people,
            "projects": team.active_projects,
            "guaranteed": guaranteed.get(team.pk, 0) / SLOTS_PER_GPU,
        }
        for team in rows.order_by("name")
    ]


def queue_leaders(pool: Pool) -> list[dict[str, Any]]:
    """Return one entry per team that waits in the pool. Takes one query.

    ``waiting`` is the team's number of waiting workloads. ``person`` is the user with the most waiting
    workloads in the team, and ``most_of_one`` is their number.
    """
    rows = Workload.objects.filter(pool=pool, state=WorkloadState.QUEUED)
    by_person = rows.values_list("project__team__name", "owner__username").annotate(waiting=Count("pk"))
    lines: dict[str, dict[str, Any]] = {}
    for team, person, waiting in by_person.order_by("-waiting", "project__team__name", "owner__username"):
        line = lines.setdefault(team, {"team": team, "waiting": 0, "person": person, "most_of_one": waiting})
        line["waiting"] += waiting
    return sorted(lines.values(), key=lambda line: (-line["waiting"], line["team"]))


def team_page(viewer: policy.Viewer, slug: str) -> dict[str, Any] | None:
    """Return a team's people, its projects with their last cost centre, and its quotas.

    A removed team is found, too. Return None if the viewer may not see a team with this slug.
    """
    team = policy.visible_teams_with_removed(viewer).filter(slug=slug).first()
    if team is None:
        return None
    projects = list(Project.objects.filter(team=team).order_by("name"))
    splits, labels = load_splits([project.pk for project in projects]), cost_centre_labels()
    return {
        "team": team,
        "members": list(
            Membership.objects.filter(team=team, user__service_team=None)
            .select_related("user")
            .order_by("-role", "user__username")
        ),
        "projects": [
            {
                "project": project,
                "cost_centre": _last_cost_centre(splits, labels, project),
            }
            for project in projects
        ],
        "quotas": [
            {
                "pool": quota.pool,
                "model": quota.model,
                "guaranteed": quota.guaranteed_slots / SLOTS_PER_GPU,
                "borrow": None
                if quota.borrow_limit_slots is None
                else quota.borrow_limit_slots / SLOTS_PER_GPU,
                "hours": quota.gpu_hours,
                "hours_used": quota.gpu_hours_used,
                "period": quota.hours_period,
                "used_up": quota.hours_used_up,
                "when_used_up": quota.get_when_used_up_display(),
            }
            for quota in Quota.objects.filter(team=team)
            .select_related("pool")
            .order_by("pool__name", "model")
        ],
    }


def people(viewer: policy.Viewer) -> QuerySet[User]:
    """Return the visible people with their memberships loaded. Service accounts are not people."""
    memberships = Membership.objects.select_related("team").order_by("team__name")
    return (
        policy.visible_users(viewer)
        .filter(service_team=None)
        .prefetch_related(Prefetch("memberships", queryset=memberships))
        .order_by("username")
    )


def own_notices(viewer: policy.Viewer) -> QuerySet[Notification]:
    """Return the viewer's own notices, newest first."""
    return (
        policy.visible_notifications(viewer)
        .select_related("workload__array", "reservation", "submission")
        .order_by("-at", "-pk")
    )


def own_matters(viewer: policy.Viewer) -> QuerySet[Any]:
    """Return the matters of the viewer's notices: unread ones first, then by their newest notice.

    Each has its key ``matter_key``, its numbers of notices (``count``) and of ``unread`` ones, and the
    time of its newest notice (``latest``).
    """
    rows: QuerySet[Any] = (
        _with_matter_key(policy.visible_notifications(viewer))
        .order_by()
        .values("matter_key")
        .annotate(
            latest=Max("at"),
            count=Count("pk"),
            unread=Count("pk", filter=Q(read_at=None)),
            has_unread=Case(When(unread__gt=0, then=1), default=0),
        )
        .order_by("-has_unread", "-latest", "matter_key")
    )
    return rows


def unread_matters(viewer: policy.Viewer) -> int:
    """Return the number of matters with a notice that the viewer has not read."""
    unread = _with_matter_key(policy.visible_notifications(viewer).filter(read_at=None))
    return int(unread.aggregate(count=Count("matter_key", distinct=True))["count"])


def notices_of_matters(viewer: policy.Viewer, keys: Collection[str]) -> dict[str, list[Notification]]:
    """Return the viewer's notices of these matters, the newest first. At most MAX_NOTICES are read."""
    found: dict[str, list[Notification]] = {key: [] for key in keys}
    rows = _with_matter_key(own_notices(viewer)).filter(matter_key__in=keys)
    for notice in rows[:MAX_NOTICES]:
        found[notice.matter_key].append(notice)
    return found


def _with_matter_key(rows: QuerySet[Notification]) -> QuerySet[Any]:
    """Annotate notices with the key of their matter. A notice without a matter is its own matter."""
    return rows.annotate(matter_key=Coalesce(NullIf("matter", Value("")), "source"))


def own_tokens(viewer: policy.Viewer) -> QuerySet[ApiToken]:
    """Return the viewer's own API tokens, newest first, with revoked tokens at the end."""
    return policy.visible_tokens(viewer).order_by(F("revoked_at").asc(nulls_first=True), "-created_at")


def audit_events(
    viewer: policy.Viewer, *, words: str = "", verb: str = "", actor: str = ""
) -> QuerySet[AuditEvent]:
    """Return visible audit records, newest first.

    ``words`` must occur in the target, in its name or in the reason. ``verb`` is a verb or its words, as the
    page shows them. ``actor`` must match exactly. An empty argument does not filter.
    """
    rows = policy.visible_audit(viewer).select_related("team")
    if words:
        rows = rows.filter(
            Q(target_name__icontains=words) | Q(target__icontains=words) | Q(why__icontains=words)
        )
    if verb:
        rows = rows.filter(verb=verb_code(verb))
    if actor:
        rows = rows.filter(actor_name=actor)
    return rows.order_by("-at", "-pk")


def pools(viewer: policy.Viewer) -> QuerySet[Pool]:
    """Return the visible pools with their number of hosts."""
    return (
        policy.visible_pools(viewer)
        .select_related("team")
        .annotate(host_count=Count("hosts", filter=Q(hosts__removed_at=None)))
        .order_by("name")
    )


def all_teams() -> QuerySet[Team]:
    """Return every team, for forms that only operators use."""
    return Team.objects.order_by("name")


def _last_cost_centre(splits: CostSplits, labels: Mapping[str, str], project: Project) -> str:
    """Return the names of the cost centres of a project's last split; empty if it has none."""
    periods = splits.periods(Payer(project=project.pk))
    return split_text(periods[-1].split, labels) if periods else ""
