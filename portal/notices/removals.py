"""Find notices about removed teams and pools, and about the work of closed accounts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from portal.models import AuditEvent, Membership, User, WorkHandover
from portal.notices.pending import PendingNotice
from portal.notices.recipients import lead_ids, operator_ids


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


def work_of_leavers(since: datetime, now: datetime) -> Iterator[PendingNotice]:
    """Yield a notice to the leads of each team in which the work of a closed account was settled.

    Operators get it if the team has no lead.
    """
    events = AuditEvent.objects.filter(verb="apply_leaver_policy", at__gt=since, at__lte=now)
    for event in events.order_by("pk"):
        leads = lead_ids(event.team_id) if event.team_id is not None else set()
        numbers = {"name": event.target_name, **(event.after or {})}
        source = f"leaver:{event.pk}"
        yield PendingNotice("leaver_work", source, tuple(sorted(leads)) or operator_ids(), numbers)


def leads_in_charge(workloads: Collection[int]) -> dict[tuple[int, int], int]:
    """Return who gets the notices about work of closed accounts: (workload, owner) to the lead in charge."""
    rows = WorkHandover.objects.filter(workload__in=workloads).exclude(lead=None)
    found = rows.values_list("workload_id", "workload__owner_id", "lead_id")
    return {(workload, owner): lead for workload, owner, lead in found}


def _user_ids(names: Iterable[str]) -> Iterable[int]:
    return User.objects.filter(username__in=list(names), is_active=True).values_list("pk", flat=True)
