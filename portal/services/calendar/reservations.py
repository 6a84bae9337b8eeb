"""Verbs on reservations: promises of GPUs for a window."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from django.db import transaction

from portal import policy
from portal.errors import Conflict
from portal.hardware_request import (
    PlacementConstraints,
)
from portal.input_checks import InputChecks
from portal.models import Submission, User
from portal.services import audit
from portal.services.calendar.approved_changes import (
    change_needs_approval,
    change_window,
    confirm_reservation,
    refuse_if_window_moved,
    submit_for_approval,
    submit_window_change,
)
from portal.services.calendar.reservation_checks import (
    checked_reservation_request,
    checked_window_change,
    local_time_text,
    refuse_unless_change_fits,
    refuse_unless_reservation_fits,
)
from scheduler import services as engine
from scheduler.models import Pool, Project, Reservation

AUDITED_FIELDS = (
    "name",
    "units",
    "models_wanted",
    "profile",
    "start",
    "end",
    "state",
    "may_exceed_guarantee",
)


def request_reservation(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    name: str,
    units: int,
    start: datetime,
    end: datetime,
    now: datetime,
    hosts: int = 1,
    models: list[str] | None = None,
    profile: str = "",
    why: str = "",
    may_exceed_guarantee: bool = False,
    via: str = "web",
    **placing: Unpack[PlacementConstraints],
) -> Submission | Reservation:
    """``units`` on each of ``hosts`` hosts: a confirmed Reservation, or a Submission that waits for approval and holds nothing.

    It waits when it is above the pool's threshold, or when ``may_exceed_guarantee`` asks an operator to let it use what
    other teams are guaranteed. The window is checked first.
    Raises Conflict (with the first windows that fit), Invalid, NotAllowed.
    """
    policy.require(actor, "reservation.request", project)
    wish = checked_reservation_request(
        project,
        pool,
        name,
        units,
        models,
        profile,
        start,
        end,
        now,
        hosts=hosts,
        why=why,
        may_exceed_guarantee=may_exceed_guarantee,
        **placing,
    )
    why = why.strip()
    if wish.needs_approval:
        refuse_unless_reservation_fits(engine.check_window(now=now, owner=actor, **wish.columns), wish)
        return submit_for_approval(actor, Submission.Kind.RESERVATION, wish, wish.payload, why, now, via)
    with transaction.atomic():
        reservation = confirm_reservation(actor, wish, now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_reservation",
            target=reservation,
            why=why,
            after=audit.audited_fields(reservation, *AUDITED_FIELDS),
        )
    return reservation


def cancel_reservation(
    *, actor: User, reservation: Reservation, now: datetime, why: str = "", via: str = "web"
) -> Reservation:
    """Give it up; what runs inside it is told to go. Raises Conflict when it is over, NotAllowed, Invalid."""
    policy.require(actor, "reservation.change", reservation)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(reservation, "state")
        if not engine.cancel_reservation(reservation, now=now):
            raise Conflict(f"{reservation.name} is already {reservation.state}; there is nothing to cancel.")
        reservation.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_reservation",
            target=reservation,
            why=why,
            before=before,
            after=audit.audited_fields(reservation, "state"),
        )
    return reservation


def shorten_reservation(
    *, actor: User, reservation: Reservation, end: datetime, now: datetime, via: str = "web"
) -> Reservation:
    """Let it end earlier. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "reservation.change", reservation)
    checks = InputChecks()
    end = checks.aware_datetime("end", end)
    checks.done()
    earliest = max(reservation.start, now)
    if not earliest < end < reservation.end:
        words = f"end is {local_time_text(end)}; allowed: after {local_time_text(earliest)} and before its end now, {local_time_text(reservation.end)}."
        checks.note("end", end.isoformat(), words)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(reservation, "end")
        if not engine.shorten_reservation(reservation, end=end, now=now):
            raise Conflict(f"{reservation.name} is {reservation.state}; it can't be shortened.")
        reservation.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="shorten_reservation",
            target=reservation,
            before=before,
            after=audit.audited_fields(reservation, "end"),
        )
    return reservation


def change_reservation(
    *,
    actor: User,
    reservation: Reservation,
    now: datetime,
    start: datetime | None = None,
    end: datetime | None = None,
    why: str = "",
    via: str = "web",
) -> Submission | Reservation:
    """Move, shorten or extend it: ``start`` alone moves it as it is, ``end`` alone changes its length.

    Checked like a new one, itself left out. Once it has begun only its end can change, and it keeps its GPUs. Any change
    that is not within its present window waits for approval where a new one like it would: then a Submission is answered
    and the window stays as it is. Raises Conflict (with the first windows that fit), Invalid, NotAllowed.
    """
    policy.require(actor, "reservation.change", reservation)
    with transaction.atomic():
        refuse_if_window_moved(engine.lock_reservation(reservation), reservation.start, reservation.end)
        first, last = checked_window_change(reservation, start, end, why, now)
        why = why.strip()
        if change_needs_approval(reservation, first, last):
            refuse_unless_change_fits(engine.check_change(reservation, start=first, end=last, now=now))
            return submit_window_change(actor, reservation, first, last, why, now, via)
        before = audit.audited_fields(reservation, "start", "end")
        change_window(reservation, first, last, now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="change_reservation",
            target=reservation,
            why=why,
            before=before,
            after=audit.audited_fields(reservation, "start", "end"),
        )
    return reservation
