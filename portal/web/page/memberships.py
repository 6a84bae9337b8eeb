"""Read the memberships of the signed-in user once per request."""

from __future__ import annotations

from django.http import HttpRequest

from portal.models import Membership, User


def current_memberships(request: HttpRequest, user: User) -> list[Membership]:
    """Return the memberships of the signed-in ``user`` with their teams, in order of the teams' names."""
    if not hasattr(request, "_memberships"):
        rows = Membership.objects.filter(user=user).select_related("team").order_by("team__name")
        request._memberships = list(rows)  # type: ignore[attr-defined]
    return request._memberships  # type: ignore[attr-defined, no-any-return]


def led_teams(request: HttpRequest, user: User) -> frozenset[int]:
    """Return the ids of the teams that the signed-in ``user`` leads."""
    rows = current_memberships(request, user)
    return frozenset(row.team_id for row in rows if row.role == Membership.Role.LEAD)
