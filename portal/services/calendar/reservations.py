"""Request, change, shorten and cancel reservations. A reservation promises GPUs for a time window."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from portal import policy
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
    check_time_for_approval,
    checked_reservation_request,
    checked_window_change,
    refuse_unless_window_fits,
)
from portal.wording.formatting import local_time_text
from portal.wording.problems import reservation_problems
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
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
    start: datetime,
    end: datetime,
    now: datetime,
    why: str = "",
    may_exceed_guarantee: bool = False,
    via: str = "web",
    **hardware: Any,
) -> Submission | Reservation:
    """Reserve ``units`` on each of ``hosts`` hosts, and return the confirmed Reservation.

    ``hardware`` contains the arguments of a ``HardwareRequest``, under the field names of the API.

    If an operator must approve the request, return a Submission, which reserves nothing yet. This is the case
    if the size is above the pool's threshold, or if ``may_exceed_guarantee`` requests the guarantees of other
    teams. The window is checked in both cases. Raises Invalid, NotAllowed. Raises OperationRejected, with the
    first windows that fit, if the window does not fit.
    """
    policy.require(actor, "reservation.request", project)
    request = checked_reservation_request(
        project, pool, name, start, end, now, why, may_exceed_guarantee, **hardware
    )
    why = why.strip()
    check_time_for_approval(request, now)
    if request.needs_approval:
        refuse_unless_window_fits(scheduling.check_window(now=now, owner=actor, **request.columns))
        return submit_for_approval(
            actor, Submission.Kind.RESERVATION, request, request.payload, why, now, via
        )
    with transaction.atomic():
        reservation = confirm_reservation(actor, request, now)
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
    """Cancel a reservation, stop its running workloads and end its waiting workloads.

    Raises Invalid, NotAllowed. Raises OperationRejected if the reservation is over.
    """
    policy.require(actor, "reservation.change", reservation)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(reservation, "state")
        if not scheduling.cancel_reservation(reservation, now=now):
            raise OperationRejected(
                "reservation_is_over", {"name": reservation.name, "state": reservation.state}
            )
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
    """Set an earlier end of a reservation. Raises Invalid, OperationRejected, NotAllowed."""
    policy.require(actor, "reservation.change", reservation)
    checks = InputChecks()
    end = checks.aware_datetime("end", end)
    checks.done()
    earliest = max(reservation.start, now)
    if not earliest < end < reservation.end:
        message = reservation_problems.END_NOT_EARLIER.format(
            end=local_time_text(end),
            earliest=local_time_text(earliest),
            latest=local_time_text(reservation.end),
        )
        checks.note("end", end.isoformat(), message)
    checks.done()
    with transaction.atomic():
        before = audit.audited_fields(reservation, "end")
        if not scheduling.shorten_reservation(reservation, end=end, now=now):
            raise OperationRejected(
                "reservation_cannot_be_shortened", {"name": reservation.name, "state": reservation.state}
            )
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
    """Move, shorten or extend a reservation, and return it.

    If only ``start`` is given, the length stays the same. If only ``end`` is given, the start stays the same.
    The new window is checked like the window of a new reservation, but the units of this reservation count as
    free. After the reservation has started, only its end can change, and its GPUs stay the same.

    A window that is not inside the present window needs approval if a new reservation of this size would need
    approval. In this case return a Submission; the window does not change yet. Raises Invalid, NotAllowed.
    Raises OperationRejected, with the first windows that fit, if the new window does not fit.
    """
    policy.require(actor, "reservation.change", reservation)
    with transaction.atomic():
        refuse_if_window_moved(scheduling.lock_reservation(reservation), reservation.start, reservation.end)
        first, last = checked_window_change(reservation, start, end, why, now)
        why = why.strip()
        if change_needs_approval(reservation, first, last):
            refuse_unless_window_fits(scheduling.check_change(reservation, start=first, end=last, now=now))
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
