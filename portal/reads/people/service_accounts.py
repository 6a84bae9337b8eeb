"""Read service accounts with their tokens."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Prefetch, Q, QuerySet

from portal import policy
from portal.models import ApiToken, Membership, User
from scheduler.models import Team


@dataclass(frozen=True)
class ServiceAccountRow:
    """A service account, its tokens that are in force or expired, and whether the viewer may change it."""

    account: User
    tokens: list[ApiToken]
    may_change: bool


def service_accounts(viewer: User) -> list[ServiceAccountRow]:
    """Return the visible service accounts by name. Only people who may change an account see its tokens."""
    tokens = ApiToken.objects.filter(revoked_at=None).order_by("-created_at")
    rows = (
        policy.visible_service_accounts(viewer)
        .select_related("service_team", "service_owner")
        .prefetch_related(Prefetch("api_tokens", queryset=tokens))
        .order_by("username")
    )
    changeable = set(_changeable(viewer, rows).values_list("pk", flat=True))
    return [
        ServiceAccountRow(
            row, list(row.api_tokens.all()) if row.pk in changeable else [], row.pk in changeable
        )
        for row in rows
    ]


def teams_with_new_accounts(viewer: User) -> QuerySet[Team]:
    """Return the teams in which the viewer may create service accounts, by name."""
    if policy.may(viewer, "team.create"):
        return Team.objects.order_by("name")
    if viewer.auditor or viewer.is_service_account:
        return Team.objects.none()
    return Team.objects.filter(pk__in=policy.my_team_ids(viewer, Membership.Role.LEAD)).order_by("name")


def _changeable(viewer: User, rows: QuerySet[User]) -> QuerySet[User]:
    """Return the rows that the viewer may change: the rule ``service_account.change``, as one query."""
    if viewer.auditor or viewer.is_service_account:
        return rows.none()
    if policy.may(viewer, "user.change"):
        return rows
    return rows.filter(
        Q(service_owner=viewer) | Q(service_team__in=policy.my_team_ids(viewer, Membership.Role.LEAD))
    )
