"""Remove a person who has left: end what they can do, and settle what they leave behind.

The rules are in docs/operations.md, "When a person or a team leaves".
"""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal import policy
from portal.input_checks import InputChecks
from portal.models import ClaimGrant, Membership, User
from portal.services import audit
from portal.services.people import account_security, accounts
from portal.services.removal_effect import withdraw_submissions
from scheduler import services as scheduling
from scheduler.models import Reservation, Workload
from scheduler.state.states import OPEN_RESERVATION_STATES, WorkloadState


def remove_person(
    *,
    actor: User,
    user: User,
    now: datetime,
    stop_work: bool = True,
    why: str = "",
    via: str = "web",
) -> User:
    """Close an account, take its roles and teams, and withdraw its requests. Its history stays.

    Sessions, workspaces and API tokens end at once. With ``stop_work``, the person's work is stopped, and
    their reservations are cancelled unless somebody else has work in them; otherwise both stay with the
    project. The account is closed first, and a repeated call completes a removal that was interrupted.

    Raises Invalid, NotAllowed. Raises OperationRejected if no operator would remain.
    """
    policy.require(actor, "user.change")
    return write_removal(actor=actor, user=user, now=now, stop_work=stop_work, why=why, via=via)


def write_removal(
    *,
    actor: User | None,
    user: User,
    now: datetime,
    stop_work: bool = True,
    why: str = "",
    via: str = "web",
) -> User:
    """Remove a person. The caller has checked the permission.

    Without an actor, the portal itself removes the person. Raises Invalid, OperationRejected.
    """
    checks = InputChecks()
    stop_work = checks.flag("stop_work", stop_work)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        memberships = Membership.objects.filter(user=user).order_by("team__slug")
        teams = [f"{row.team.slug} ({row.role})" for row in memberships.select_related("team")]
        accounts.write_user_change(
            actor=actor,
            user=user,
            now=now,
            operator=False,
            finance=False,
            auditor=False,
            active=False,
            why=why,
            via=via,
        )
        withdraw_submissions(author=user)
        ClaimGrant.objects.filter(user=user).delete()
        Membership.objects.filter(user=user).delete()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="remove_person",
            target=user,
            before={"teams": teams},
            after={"stop_work": stop_work},
            why=why,
        )
    if stop_work:
        account_security.write_stop_of_work(actor=actor, user=user, now=now, why=why, via=via)
        for reservation in Reservation.objects.filter(owner=user, state__in=OPEN_RESERVATION_STATES):
            _cancel_unless_shared(actor, user, reservation, now, why, via)
    return user


def _cancel_unless_shared(
    actor: User | None, user: User, reservation: Reservation, now: datetime, why: str, via: str
) -> None:
    """Cancel a reservation of a removed person, unless somebody else has work in it."""
    others = Workload.objects.filter(reservation=reservation).exclude(owner=user)
    with transaction.atomic():
        if others.exclude(state=WorkloadState.ENDED).exists():
            return
        before = audit.audited_fields(reservation, "state")
        if not scheduling.cancel_reservation(reservation, now=now):
            return
        reservation.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_reservation",
            target=reservation,
            before=before,
            after=audit.audited_fields(reservation, "state"),
            why=why,
        )
