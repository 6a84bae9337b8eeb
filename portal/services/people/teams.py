"""Create and change teams, their projects and their members."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.input_checks import InputChecks, unique_slug
from portal.models import Membership, User
from portal.redis_state.access_revocation import publish_rights_changed
from portal.services import audit
from portal.services.people.service_accounts import release_service_accounts, service_account_rejection
from scheduler import services as scheduling
from scheduler.core.model.snapshot import Priority
from scheduler.core.rejection import OperationRejected
from scheduler.models import Project, Team

TEAM_COLOUR_COUNT = 8
MAX_TEAM_WEIGHT = 1000


def create_team(
    *,
    actor: User,
    name: str,
    now: datetime,
    tag: str = "",
    colour: int | None = None,
    weight: int = 1,
    highest_priority: int = int(Priority.HIGH),
    via: str = "web",
) -> Team:
    """Create a team. A missing colour gets a default, and so does a missing tag (up to three letters).

    Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "team.create")
    checks = InputChecks()
    name = checks.text("name", name)
    tag = checks.text("tag", tag or "".join(c for c in name if c.isalnum())[:2].upper() or "T", most=3)
    colour = checks.count(
        "colour",
        Team.with_removed.count() % TEAM_COLOUR_COUNT + 1 if colour is None else colour,
        1,
        TEAM_COLOUR_COUNT,
    )
    weight = checks.count("weight", weight, 1, MAX_TEAM_WEIGHT)
    highest = checks.count("highest_priority", highest_priority, 0, int(Priority.CRITICAL))
    checks.done()
    slug = unique_slug(name, Team.with_removed.values_list("slug", flat=True))
    try:
        with transaction.atomic():
            team = Team.objects.create(
                slug=slug,
                name=name,
                tag=tag,
                colour=colour,
                weight=weight,
                highest_priority=highest,
                created_at=now,
            )
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="create_team",
                target=team,
                after=audit.audited_fields(team, "name", "slug", "weight"),
            )
    except IntegrityError:
        raise _name_rejection(name) from None
    return team


def rename_team(*, actor: User, team: Team, name: str, now: datetime, via: str = "web") -> Team:
    """Rename a team. Its slug stays the same, and past charges keep the old name.

    Raises Invalid, OperationRejected, NotAllowed.
    """
    policy.require(actor, "team.change", team)
    checks = InputChecks()
    name = checks.text("name", name)
    checks.done()
    before = audit.audited_fields(team, "name")
    try:
        with transaction.atomic():
            Team.objects.filter(pk=team.pk).update(name=name)
            team.refresh_from_db()
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="rename_team",
                target=team,
                before=before,
                after=audit.audited_fields(team, "name"),
            )
    except IntegrityError:
        raise _name_rejection(name) from None
    return team


def create_project(*, actor: User, team: Team, name: str, now: datetime, via: str = "web") -> Project:
    """Create a project of a team. Raises Invalid, OperationRejected, NotAllowed."""
    policy.require(actor, "team.change", team)
    checks = InputChecks()
    name = checks.text("name", name)
    checks.done()
    if Project.objects.filter(team=team, name=name).exists():
        raise OperationRejected("project_name_is_taken", {"name": name, "team": team.name}, field="name")
    slug = unique_slug(name, Project.objects.filter(team=team).values_list("slug", flat=True))
    try:
        with transaction.atomic():
            project = Project.objects.create(team=team, slug=slug, name=name, created_at=now)
            scheduling.reject_if_team_removed(team)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="create_project",
                target=project,
                after=audit.audited_fields(project, "name", "slug"),
            )
    except IntegrityError:
        raise OperationRejected(
            "project_name_is_taken", {"name": name, "team": team.name}, field="name"
        ) from None
    return project


def set_project_active(
    *, actor: User, project: Project, active: bool, now: datetime, via: str = "web"
) -> Project:
    """Archive a project, or activate it again. An archived project accepts no new workloads.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "team.change", project.team)
    checks = InputChecks()
    active = checks.flag("active", active)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(project, "active")
        Project.objects.filter(pk=project.pk).update(active=active)
        project.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="set_project_active",
            target=project,
            before=before,
            after=audit.audited_fields(project, "active"),
        )
    return project


def add_member(
    *, actor: User, team: Team, user: User, now: datetime, role: str = "member", via: str = "web"
) -> Membership:
    """Add a person to a team, or change the role of a member.

    Raises Invalid, NotAllowed. Raises OperationRejected if the team was removed, and for a service account.
    """
    policy.require(actor, "team.change", team)
    checks = InputChecks()
    role = checks.choice("role", role, Membership.Role.values)
    checks.done()
    if user.is_service_account:
        raise service_account_rejection(user)
    with transaction.atomic():
        old = Membership.objects.filter(team=team, user=user).first()
        before = None if old is None else {"user": user.username, "role": old.role}
        membership, _ = Membership.objects.update_or_create(
            team=team, user=user, defaults={"role": role}, create_defaults={"role": role, "created_at": now}
        )
        scheduling.reject_if_team_removed(team)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="add_member",
            target=team,
            before=before,
            after={"user": user.username, "role": role},
        )
    return membership


def remove_member(*, actor: User, team: Team, user: User, now: datetime, via: str = "web") -> None:
    """Remove a person from a team. The person's workloads stay with the team.

    Service accounts of the team that the person owns have no owner from then on, so their tokens are refused.
    Raises NotAllowed. Raises OperationRejected if the person is not a member, and for a service account.
    """
    policy.require(actor, "team.change", team)
    if user.is_service_account:
        raise service_account_rejection(user)
    with transaction.atomic():
        old = Membership.objects.filter(team=team, user=user).first()
        if old is None:
            raise OperationRejected(
                "person_is_not_a_member", {"name": user.username, "team": team.name}, field="user"
            )
        before: dict[str, Any] = {"user": user.username, "role": old.role}
        old.delete()
        released = release_service_accounts(team, user)
        before |= {"service_accounts": released} if released else {}
        publish_rights_changed()
        audit.record(actor=actor, via=via, now=now, verb="remove_member", target=team, before=before)


def _name_rejection(name: str) -> OperationRejected:
    """Return the error for a team name that is taken. The name of a removed team stays taken."""
    if Team.objects.filter(name=name).exists():
        return OperationRejected("team_name_is_taken", {"name": name}, field="name")
    return OperationRejected("team_name_was_used", {"name": name}, field="name")
