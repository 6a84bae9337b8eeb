"""Carry out requests and changes of reservations, either directly or after an approval."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.hardware_request import exceeds_approval_threshold, whole_gpus_of
from portal.models import Submission, SubmissionState, User
from portal.services import audit
from portal.services.calendar.reservation_checks import (
    ReservationRequest,
    checked_window_change,
    refuse_unless_window_fits,
)
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import Reservation
from scheduler.requests import HardwareRequest


def change_window(reservation: Reservation, start: datetime, end: datetime, now: datetime) -> None:
    """Change the window of a reservation under the pool's lock. Call it inside a transaction.

    Raises OperationRejected with the reason and the first windows that fit. Also raises OperationRejected if
    the start should change, but the engine has already started the reservation.
    """
    refuse_unless_window_fits(scheduling.change_reservation(reservation, start=start, end=end, now=now))
    reservation.refresh_from_db()
    # The engine may have started the reservation since the check. A started reservation keeps its start.
    if (reservation.start, reservation.end) != (start, end):
        numbers = {"name": reservation.name, "start": reservation.start.isoformat()}
        raise OperationRejected("reservation_has_started", numbers, field="start")


def apply_submitted_change(reservation: Reservation, payload: Mapping[str, Any], now: datetime) -> None:
    """Set the reservation's window to the window of an approved submission. Call it inside a transaction.

    Raises Invalid or OperationRejected, for example if the window has changed since the submission.
    """
    fresh = scheduling.lock_reservation(reservation)
    change_window(reservation, *submitted_window(fresh, payload, now), now)


def submitted_window(
    reservation: Reservation, payload: Mapping[str, Any], now: datetime
) -> tuple[datetime, datetime]:
    """Check the submitted window again, because time has passed, and return its start and end.

    Raises Invalid. Raises OperationRejected if the reservation is over or if its window has changed since the
    submission.
    """
    start, end = (datetime.fromisoformat(payload[name]) for name in ("start", "end"))
    refuse_if_window_moved(
        reservation, *(datetime.fromisoformat(payload[name]) for name in ("start_now", "end_now"))
    )
    return checked_window_change(reservation, None if start == reservation.start else start, end, "", now)


def refuse_if_window_moved(reservation: Reservation, start: datetime, end: datetime) -> None:
    """Raise OperationRejected if the reservation's window is no longer from ``start`` to ``end``."""
    if (reservation.start, reservation.end) != (start, end):
        window = {"start": reservation.start.isoformat(), "end": reservation.end.isoformat()}
        raise OperationRejected("reservation_window_moved", {"name": reservation.name, **window}, field="end")


def change_needs_approval(reservation: Reservation, start: datetime, end: datetime) -> bool:
    """Return True if an operator must approve the change of the window.

    A window inside the present window never needs approval. Any other window needs it if the reservation is
    larger than the pool's threshold or may use the guarantees of other teams.
    """
    within = reservation.start <= start and end <= reservation.end
    hardware = HardwareRequest.from_row(reservation)
    large = exceeds_approval_threshold(reservation.pool, hardware)
    return not within and (large or reservation.may_exceed_guarantee)


def confirm_reservation(owner: User, request: ReservationRequest, now: datetime) -> Reservation:
    """Confirm a reservation under the pool's lock.

    Raises OperationRejected with the reason and the first windows that fit.
    """
    reservation, answer = scheduling.confirm_reservation(owner=owner, now=now, **request.columns)
    refuse_unless_window_fits(answer)
    if reservation is None:
        raise OperationRejected("reservation_was_not_confirmed", {"name": request.name})
    return reservation


def submit_window_change(
    actor: User, reservation: Reservation, start: datetime, end: datetime, why: str, now: datetime, via: str
) -> Submission:
    """Submit a change of a reservation's window for approval.

    Call it inside a transaction that has locked the reservation. Raises OperationRejected if another change
    of this reservation already waits for approval.
    """
    waiting = Submission.objects.filter(
        kind=Submission.Kind.WINDOW_CHANGE, state=SubmissionState.WAITING, reservation=reservation
    )
    if waiting.exists():
        raise OperationRejected("window_change_waits", {"name": reservation.name}, field="end")
    hardware = HardwareRequest.from_row(reservation)
    payload = {
        "reservation": reservation.pk,
        "project": reservation.project_id,
        "name": reservation.name,
        "units": reservation.units,
        "hosts": reservation.hosts,
        "models": list(reservation.models_wanted),
        "profile": reservation.profile,
        "gpus": whole_gpus_of(reservation.pool, hardware),
        "start": start.isoformat(),
        "end": end.isoformat(),
        "start_now": reservation.start.isoformat(),
        "end_now": reservation.end.isoformat(),
    }
    submission = Submission.objects.create(
        kind=Submission.Kind.WINDOW_CHANGE,
        team=reservation.project.team,
        pool=reservation.pool,
        author=actor,
        why=why,
        payload=payload,
        state=SubmissionState.WAITING,
        reservation=reservation,
        created_at=now,
    )
    audit.record(
        actor=actor,
        via=via,
        now=now,
        verb="change_reservation",
        target=submission,
        team_id=reservation.project.team_id,
        after=payload,
        why=why,
    )
    return submission


def submit_for_approval(
    actor: User,
    kind: str,
    request: ReservationRequest,
    payload: dict[str, Any],
    why: str,
    now: datetime,
    via: str,
) -> Submission:
    """Create a submission with this payload, for the project and the pool of ``request``."""
    with transaction.atomic():
        submission = Submission.objects.create(
            kind=kind,
            team=request.project.team,
            pool=request.pool,
            author=actor,
            why=why,
            payload=payload,
            state=SubmissionState.WAITING,
            created_at=now,
        )
        scheduling.reject_if_removed(request.pool, request.project)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=f"request_{kind}",
            target=submission,
            team_id=request.project.team_id,
            after=payload,
            why=why,
        )
    return submission
