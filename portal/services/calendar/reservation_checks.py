"""Check the arguments of reservations. Reject windows that do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from portal.hardware_request import (
    MIN_RESERVATION_WINDOW,
    check_hardware_request,
    exceeds_approval_threshold,
    field_to_change,
    network_warnings,
    whole_gpus_of,
)
from portal.input_checks import InputChecks
from portal.wording import formatting, request_texts
from portal.wording.formatting import local_time_text
from portal.wording.problems import reservation_problems
from scheduler.core.promises.reservation_windows import WindowCheckResult
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project, Reservation
from scheduler.requests import HardwareRequest
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState

# A payload always contains these keys. It contains other hardware arguments only if they have a value.
PAYLOAD_NAMES = ("units", "hosts", "models", "profile")


@dataclass(frozen=True, kw_only=True)
class ReservationRequest(HardwareRequest):
    """A request for one reservation whose arguments are checked. Times are UTC, in whole seconds."""

    project: Project
    pool: Pool
    name: str
    start: datetime
    end: datetime
    # True requests the use of other teams' guarantees. An operator decides about such a request.
    may_exceed_guarantee: bool = False

    @property
    def gpus(self) -> float:
        """Return the size of the requested hardware in whole GPUs."""
        return whole_gpus_of(self.pool, self)

    @property
    def needs_approval(self) -> bool:
        """Return True if an operator must approve the request.

        This is the case if it is larger than the pool's threshold or may use the guarantees of other teams.
        """
        return self.may_exceed_guarantee or exceeds_approval_threshold(self.pool, self)

    @property
    def payload(self) -> dict[str, Any]:
        """Return the request as JSON values, for a submission."""
        hardware = self.hardware_arguments()
        return {
            "project": self.project.pk,
            "pool": self.pool.pk,
            "name": self.name,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "gpus": self.gpus,
            **{name: value for name, value in hardware.items() if value or name in PAYLOAD_NAMES},
            # The payload omits may_exceed_guarantee, because only the approver may grant it.
            "asks_to_exceed_guarantee": self.may_exceed_guarantee,
        }

    @property
    def columns(self) -> dict[str, Any]:
        """Return the keyword arguments for the functions in ``scheduler.services``."""
        return {
            "project": self.project,
            "pool": self.pool,
            "name": self.name,
            "start": self.start,
            "end": self.end,
            "may_exceed_guarantee": self.may_exceed_guarantee,
            **self.hardware_columns(),
        }


def refuse_unless_window_fits(answer: WindowCheckResult) -> None:
    """Raise OperationRejected if the window does not fit.

    The error has the engine's reason and the first windows that fit.
    """
    if not answer.fits:
        raise_window_conflict(answer)


def checked_reservation_request(
    project: Project,
    pool: Pool,
    name: Any,
    start: Any,
    end: Any,
    now: datetime,
    why: Any = "",
    may_exceed_guarantee: Any = False,
    **hardware: Any,
) -> ReservationRequest:
    """Check the arguments and return the request. Raises Invalid with all problems."""
    checks = InputChecks()
    asked = check_hardware_request(checks, project, pool, hardware)
    name = checks.text("name", name)
    checks.text("why", why, least=0, most=1000, lines=True)
    exceed = checks.flag("may_exceed_guarantee", may_exceed_guarantee)
    first, last = checks.aware_datetime("start", start), checks.aware_datetime("end", end)
    if not {"start", "end"} & checks.problems.keys():
        _check_window(checks, pool, first, last, now)
    checks.done()
    return ReservationRequest(
        **vars(asked),
        project=project,
        pool=pool,
        name=name,
        start=first.replace(microsecond=0),
        end=last.replace(microsecond=0),
        may_exceed_guarantee=exceed,
    )


def check_time_for_approval(request: ReservationRequest, now: datetime) -> None:
    """Raise Invalid if the request needs approval but starts now or earlier.

    A submission expires at the start of its reservation, so the new submission would expire at once.
    """
    if request.needs_approval and request.start <= now:
        checks = InputChecks()
        checks.note("start", request.start.isoformat(), request_texts.too_late_to_approve(request.start))
        checks.done()


def checked_window_change(
    reservation: Reservation, start: datetime | None, end: datetime | None, why: str, now: datetime
) -> tuple[datetime, datetime]:
    """Check the new window of a reservation like the window of a new reservation. Return its start and end.

    If only ``start`` is given, the length stays the same. If only ``end`` is given, the start stays the same.
    Raises Invalid. Raises OperationRejected if the reservation is over.
    """
    checks = InputChecks()
    checks.text("why", why, least=0, most=1000, lines=True)
    if reservation.state not in OPEN_RESERVATION_STATES:
        raise OperationRejected(
            "reservation_cannot_change", {"name": reservation.name, "state": reservation.state}
        )
    first = (
        reservation.start if start is None else checks.aware_datetime("start", start).replace(microsecond=0)
    )
    if end is not None:
        last = checks.aware_datetime("end", end).replace(microsecond=0)
    else:
        last = reservation.end if start is None else first + (reservation.end - reservation.start)
    checks.done()
    if (first, last) == (reservation.start, reservation.end):
        message = reservation_problems.WINDOW_UNCHANGED.format(end=local_time_text(last))
        checks.note("end", last.isoformat(), message)
    elif first != reservation.start and reservation.state == ReservationState.ACTIVE:
        message = reservation_problems.START_IS_FIXED.format(
            start=local_time_text(first), started=local_time_text(reservation.start)
        )
        checks.note("start", first.isoformat(), message)
    elif last <= now:
        checks.note(
            "end",
            last.isoformat(),
            reservation_problems.END_IS_PAST.format(end=local_time_text(last), now=local_time_text(now)),
        )
    else:
        _check_window(
            checks, reservation.pool, first, last, min(now, first) if first == reservation.start else now
        )
    checks.done()
    return first, last


def raise_window_conflict(answer: WindowCheckResult) -> NoReturn:
    field = field_to_change(answer.code, dict(answer.numbers), "start")
    raise OperationRejected(answer.code, answer.numbers, answer.first_windows, field=field)


def alternative_windows_of(answer: WindowCheckResult) -> list[tuple[datetime, datetime]]:
    """Return the first windows that fit, as pairs of start and end."""
    return [
        (datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC))
        for w in answer.first_windows
    ]


def reservation_warnings(request: ReservationRequest) -> list[str]:
    """Return warnings about an unusual window or unreachable hosts, as sentences.

    The request is accepted in spite of the warnings.
    """
    warnings = []
    if request.start.weekday() >= 5:
        warnings.append(reservation_problems.STARTS_ON_WEEKEND)
    if request.end - request.start > timedelta(days=3):
        warnings.append(reservation_problems.LONGER_THAN_THREE_DAYS)
    return warnings + network_warnings(request.pool, request)


def _check_window(checks: InputChecks, pool: Pool, start: datetime, end: datetime, now: datetime) -> None:
    horizon = now + timedelta(seconds=pool.reservation_horizon_seconds)
    longest = timedelta(seconds=pool.longest_reservation_seconds)
    if start < now.replace(second=0, microsecond=0):
        checks.note(
            "start",
            start.isoformat(),
            reservation_problems.START_IS_PAST.format(start=local_time_text(start), now=local_time_text(now)),
        )
    elif start > horizon:
        checks.note(
            "start",
            start.isoformat(),
            reservation_problems.START_BEYOND_HORIZON.format(
                start=local_time_text(start), pool=pool.name, horizon=local_time_text(horizon)
            ),
        )
    if end <= start:
        checks.note(
            "end",
            end.isoformat(),
            reservation_problems.END_BEFORE_START.format(
                end=local_time_text(end), start=local_time_text(start)
            ),
        )
    elif end - start < MIN_RESERVATION_WINDOW:
        checks.note(
            "end",
            end.isoformat(),
            reservation_problems.WINDOW_TOO_SHORT.format(
                end=local_time_text(end), start=local_time_text(start)
            ),
        )
    elif end - start > longest:
        checks.note(
            "end",
            end.isoformat(),
            reservation_problems.WINDOW_TOO_LONG.format(
                end=local_time_text(end), pool=pool.name, longest=formatting.duration(longest)
            ),
        )
