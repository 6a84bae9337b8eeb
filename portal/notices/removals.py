"""Find notices about removed teams and pools, for their users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from portal.models import AuditEvent, Membership, User
from portal.notices.pending import PendingNotice


def removals(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice about each removed team or pool to the affected users.

    These are the former members of the team, the leads of the teams that had a quota in the pool, and the
    authors of withdrawn submissions. Members and authors come from the audit record of the removal. The leads
    are the present leads of the teams.
    """
    events = AuditEvent.objects.filter(verb__in=("remove_team", "remove_pool"), at__gt=since, at__lte=now)
    for event in events.order_by("pk"):
        before = event.before or {}
        users = set(_user_ids([*before.get("members", ()), *before.get("authors", ())]))
        users |= set(
            Membership.objects.filter(
                team__slug__in=before.get("teams", ()), role=Membership.Role.LEAD
            ).values_list("user_id", flat=True)
        )
        numbers = {"name": event.target_name, "by": event.actor_name, "why": event.why}
        kind = "team_removed" if event.verb == "remove_team" else "pool_removed"
        source = f"removed:{event.pk}"
        yield PendingNotice(kind, source, tuple(sorted(users)), numbers, actor=event.actor_id)


def _user_ids(names: Iterable[str]) -> Iterable[int]:
    return User.objects.filter(username__in=list(names), is_active=True).values_list("pk", flat=True)
