"""Build requests from the payloads of submissions. A payload is the request as JSON values."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.utils.dateparse import parse_datetime

from portal.hardware_request import hardware_arguments_in
from portal.models import Submission
from portal.services.calendar import (
    recurring_reservations,
    reservation_checks,
)
from scheduler.models import Pool, Project, Reservation


def reservation_to_change(submission: Submission) -> Reservation:
    return Reservation.objects.select_related("project__team", "pool").get(
        pk=submission.payload["reservation"]
    )


def series_request_of(
    submission: Submission, payload: dict[str, Any], now: datetime
) -> recurring_reservations.SeriesRequest:
    project = Project.objects.select_related("team").get(pk=payload["project"])
    return recurring_reservations.checked_series_request(
        project,
        pool_of_submission(submission),
        payload["name"],
        _datetime_of(payload["start"]),
        _datetime_of(payload["end"]),
        payload["weekdays"],
        date.fromisoformat(payload["until"]),
        payload["time_zone"],
        now,
        may_exceed_guarantee=payload.get("may_exceed_guarantee", False),
        **hardware_arguments_in(payload),
    )


def reservation_request_of(
    submission: Submission, payload: dict[str, Any], now: datetime
) -> reservation_checks.ReservationRequest:
    project = Project.objects.select_related("team").get(pk=payload["project"])
    return reservation_checks.checked_reservation_request(
        project,
        pool_of_submission(submission),
        payload["name"],
        _datetime_of(payload["start"]),
        _datetime_of(payload["end"]),
        now,
        may_exceed_guarantee=payload.get("may_exceed_guarantee", False),
        **hardware_arguments_in(payload),
    )


def pool_of_submission(submission: Submission) -> Pool:
    if submission.pool is None:
        raise ValueError(f"submission {submission.pk} has no pool")
    return submission.pool


def expiry_of(submission: Submission) -> datetime | None:
    """Return the time at which an undecided submission expires. Return None if it never expires.

    A reservation or a series expires at its start. A window change that moves the start expires at the
    earlier of the old and the new start, because a reservation that has started cannot move. A window change
    that keeps the start expires at the old end.
    """
    payload = submission.payload
    if submission.kind in (Submission.Kind.RESERVATION, Submission.Kind.SERIES):
        return datetime.fromisoformat(payload["start"])
    if submission.kind != Submission.Kind.WINDOW_CHANGE:
        return None
    start, start_now, end_now = (
        datetime.fromisoformat(payload[name]) for name in ("start", "start_now", "end_now")
    )
    return end_now if start == start_now else min(start, start_now)


def _datetime_of(value: Any) -> Any:
    """Parse a time in ISO format. Return any other value unchanged.

    Payloads store times as ISO text, but an operator's changes contain datetimes.
    """
    if not isinstance(value, str):
        return value
    try:
        return parse_datetime(value) or value
    except ValueError:
        return value


def json_values(payload: dict[str, Any] | None) -> dict[str, Any] | None:
    if payload is None:
        return None
    return {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in payload.items()
    }
