"""Apply the policy for the work of people whose accounts are closed.

The policy is a setting of the installation. A removal can choose another one for its person. A task applies
it to every closed account twice a minute, however the account was closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from portal.models import LeaverWork, Membership, Organisation, User, WorkHandover
from portal.services import audit
from portal.services.people.leaving.stopping import cancel_unless_shared, stop_workload
from scheduler.core.reasons import ReasonCode
from scheduler.models import Reservation, Team, Workload
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState, WorkloadState

MAX_NAMES = 20


def policy_for(user: User) -> LeaverWork:
    """Return the policy for the work of a person: that of the removal, or that of the installation."""
    organisation = Organisation.objects.first() or Organisation()
    return LeaverWork(user.leaver_work or organisation.leaver_work)


def apply_leaver_policies(now: datetime) -> int:
    """Apply the policy to every closed account with work or reservations. Return the number of workloads.

    A repeated call does no harm: it finds only what is not settled.
    """
    work = Workload.objects.filter(owner=OuterRef("pk")).exclude(state=WorkloadState.ENDED)
    held = Reservation.objects.filter(owner=OuterRef("pk"), state__in=OPEN_RESERVATION_STATES)
    closed = User.objects.filter(Exists(work) | Exists(held), is_active=False, service_team=None)
    return sum(apply_policy(user, now) for user in closed.order_by("pk"))


def apply_policy(
    user: User, now: datetime, *, actor: User | None = None, why: str = "", via: str = "program"
) -> int:
    """Apply the policy to the work of one person. Return the number of workloads that changed.

    Each workload and reservation changes in a transaction of its own, so that no lock is held for long.
    """
    chosen = policy_for(user)
    if chosen == LeaverWork.HAND_OVER:
        return _hand_over(user, now, actor, why, via)
    work, reservations = _unsettled(user, chosen)
    stopped = [each for each in work if stop_workload(actor, each, now, why, via)]
    _record(user, chosen, stopped, {}, now, actor, why, via)
    for reservation in reservations:
        cancel_unless_shared(actor, user, reservation, now, why, via)
    return len(stopped)


def _unsettled(user: User, chosen: LeaverWork) -> tuple[list[Workload], list[Reservation]]:
    """Return the work to stop, and the reservations to cancel.

    With RESERVATION, active reservations last until their end with the work in them.
    """
    work = _open_work(user).exclude(stop_requested=str(ReasonCode.CANCELLED))
    reservations = Reservation.objects.filter(owner=user, state__in=OPEN_RESERVATION_STATES)
    if chosen == LeaverWork.RESERVATION:
        work = work.exclude(reservation__state=ReservationState.ACTIVE)
        reservations = reservations.exclude(state=ReservationState.ACTIVE)
    return list(work), list(reservations.order_by("pk"))


def _hand_over(user: User, now: datetime, actor: User | None, why: str, via: str) -> int:
    """Put a lead of its team in charge of each workload, and record it.

    Work whose lead has left the team, or has closed the account, gets another lead.
    """
    present = Membership.objects.filter(
        user=OuterRef("handover__lead"),
        team=OuterRef("project__team"),
        role=Membership.Role.LEAD,
        user__is_active=True,
    )
    work = list(_open_work(user).filter(~Exists(present)).annotate(known=F("handover__pk")))
    leads = _leads({each.project.team_id for each in work})
    # A team without a lead is recorded once. Later calls look for a lead only.
    changed = [each for each in work if each.known is None or each.project.team_id in leads]
    with transaction.atomic():
        for each in changed:
            lead = leads.get(each.project.team_id)
            WorkHandover.objects.update_or_create(workload=each, defaults={"lead": lead, "at": now})
        _record(user, LeaverWork.HAND_OVER, changed, leads, now, actor, why, via)
    return len(changed)


def _open_work(user: User) -> QuerySet[Workload]:
    rows = Workload.objects.filter(owner=user).exclude(state=WorkloadState.ENDED)
    return rows.select_related("pool", "project__team").order_by("pk")


def _leads(team_ids: set[int]) -> dict[int, User]:
    """Return the lead of each team who has been in it longest. Closed accounts lead nothing."""
    rows = Membership.objects.filter(
        Q(team__in=team_ids), role=Membership.Role.LEAD, user__is_active=True, user__service_team=None
    )
    leads: dict[int, User] = {}
    for row in rows.select_related("user").order_by("created_at", "pk"):
        leads.setdefault(row.team_id, row.user)
    return leads


def _record(
    user: User,
    chosen: LeaverWork,
    work: Sequence[Workload],
    leads: Mapping[int, User],
    now: datetime,
    actor: User | None,
    why: str,
    via: str,
) -> None:
    """Write one audit record for each team whose work changed. Notices to its leads come from it."""
    by_team: dict[Team, list[str]] = defaultdict(list)
    for each in work:
        by_team[each.project.team].append(each.name)
    for team, names in by_team.items():
        lead = leads.get(team.pk)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="apply_leaver_policy",
            target=user,
            team_id=team.pk,
            after={
                "policy": str(chosen),
                "team": team.name,
                "workloads": len(names),
                "names": names[:MAX_NAMES],
                "lead": lead.username if lead else "",
            },
            why=why,
        )
