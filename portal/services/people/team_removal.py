"""Remove a team. The preview of the removal makes the same checks."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import checked_reason
from portal.models import ClaimGrant, ClaimRule, Membership, User
from portal.redis_state.access_revocation import publish_rights_changed
from portal.services import audit
from portal.services.people.service_accounts import close_service_accounts
from portal.services.removal_effect import (
    RemovalEffect,
    refusal_of,
    waiting_submissions,
    withdraw_submissions,
)
from scheduler import services as scheduling
from scheduler.models import Project, Quota, Team


def preview_team_removal(*, actor: User, team: Team, now: datetime) -> RemovalEffect:
    """Return the effect of removing a team. Raises NotAllowed."""
    policy.require(actor, "team.remove", team)
    members = Membership.objects.filter(team=team).order_by("user__username")
    projects = Project.objects.filter(team=team, active=True).order_by("name")
    quotas = Quota.objects.filter(team=team).select_related("team", "pool")
    return RemovalEffect(
        "remove_team",
        team.name,
        members=list(members.values_list("user__username", flat=True)),
        projects=list(projects.values_list("name", flat=True)),
        quotas=list(quotas.order_by("pool__name", "model")),
        submissions=waiting_submissions(team=team),
        **refusal_of(lambda: scheduling.check_team_removal(team, now)),
    )


def remove_team(*, actor: User, team: Team, now: datetime, why: str = "", via: str = "web") -> Team:
    """Remove a team. Its memberships, quotas and rules end. Its projects and service accounts close.

    Its history stays. Raises Invalid, NotAllowed. Raises OperationRejected while the team owns a pool or has
    work or reservations.
    """
    policy.require(actor, "team.remove", team)
    why = checked_reason(why)
    with transaction.atomic():
        effect = preview_team_removal(actor=actor, team=team, now=now)
        authors = withdraw_submissions(team=team)
        scheduling.remove_team(team, now=now)
        authors |= withdraw_submissions(team=team)
        close_service_accounts(team, now)
        Membership.objects.filter(team=team).delete()
        ClaimRule.objects.filter(team=team).delete()
        ClaimGrant.objects.filter(team=team).delete()
        publish_rights_changed()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="remove_team",
            target=team,
            before={
                **audit.audited_fields(team, "name", "slug"),
                "members": effect.members,
                "projects": effect.projects,
                "authors": sorted(authors),
            },
            why=why,
        )
    return team
