"""Find the users who receive the notices for operators, for finance and for team leads."""

from __future__ import annotations

from collections.abc import Iterable

from portal.models import Membership, User


def display_name(username: str) -> str:
    """Return the name of a user as pages show it."""
    user = User.objects.filter(username=username).first()
    return (user.get_full_name() if user else "") or username


def operator_ids() -> tuple[int, ...]:
    """Return the ids of active operators."""
    return tuple(User.objects.filter(operator=True, is_active=True).values_list("pk", flat=True))


def finance_ids() -> tuple[int, ...]:
    """Return the ids of active users of finance."""
    return tuple(User.objects.filter(finance=True, is_active=True).values_list("pk", flat=True))


def service_account_owners() -> dict[int, int]:
    """Return the id of the owner for each service account that has one. The owner gets its notices."""
    rows = User.objects.exclude(service_team=None).exclude(service_owner=None)
    return dict(rows.values_list("pk", "service_owner_id"))


def lead_ids(team_id: int) -> set[int]:
    """Return the ids of a team's leads."""
    leads: Iterable[int] = Membership.objects.filter(team_id=team_id, role=Membership.Role.LEAD).values_list(
        "user_id", flat=True
    )
    return set(leads)
