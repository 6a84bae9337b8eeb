"""Request, preview and cancel recurring reservations.

A recurring reservation is a series of occurrences. All occurrences are confirmed, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction

from portal import policy
from portal.hardware_request import field_to_change, gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import Submission, User
from portal.planner_budget import metered_planning
from portal.services import audit
from portal.services.calendar.approved_changes import submit_for_approval
from portal.services.calendar.reservation_checks import (
    ReservationRequest,
    alternative_windows_of,
    check_time_for_approval,
    checked_reservation_request,
)
from portal.services.money import rate_card
from portal.wording import request_texts
from portal.wording.problems import reservation_problems
from portal.wording.refusal_texts import refusal_sentence
from scheduler import services as scheduling
from scheduler.core.promises.reservation_windows import WindowCheckResult
from scheduler.core.rejection import OperationRejected
from scheduler.models import Pool, Project, Series
from scheduler.services.recurrence import DstOccurrence, Recurrence, dst_occurrences, occurrences
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import smallest_unit
from telemetry.reads.prices import load_current_prices

MAX_OCCURRENCES = 100
MAX_OCCURRENCE_LENGTH = timedelta(days=1)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
AUDITED_FIELDS = ("name", "weekdays", "starts_at", "ends_at", "time_zone", "first_day", "last_day")


@dataclass(frozen=True)
class SeriesRequest:
    """A request for a recurring reservation whose arguments are checked.

    ``first`` describes the first occurrence. ``windows`` contains the start and end of every occurrence.
    """

    first: ReservationRequest
    recurrence: Recurrence
    windows: list[tuple[datetime, datetime]]
    clock_changes: list[DstOccurrence]

    @property
    def payload(self) -> dict[str, Any]:
        """Return the request as JSON values, for a submission."""
        return {
            **self.first.payload,
            "weekdays": [WEEKDAYS[day] for day in sorted(self.recurrence.weekdays)],
            "until": self.recurrence.last_day.isoformat(),
            "time_zone": self.recurrence.time_zone,
            "occurrences": len(self.windows),
        }

    @property
    def columns(self) -> dict[str, Any]:
        """Return the keyword arguments for ``check_windows``."""
        columns = {name: value for name, value in self.first.columns.items() if name not in ("start", "end")}
        return {**columns, "windows": self.windows}


def request_series(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    name: str,
    start: datetime,
    end: datetime,
    weekdays: list[str],
    until: date,
    now: datetime,
    time_zone: str = "UTC",
    why: str = "",
    may_exceed_guarantee: bool = False,
    via: str = "web",
    **hardware: Any,
) -> Submission | Series:
    """Reserve the same hours on ``weekdays`` (mon to sun), from the day of ``start`` to the day ``until``.

    The reserved hours are the times of day of ``start`` and ``end`` in ``time_zone``. An occurrence is at
    most one day long. All occurrences are confirmed, or none. If the first occurrence, as a single
    reservation, would need approval, return a Submission, which reserves nothing yet.

    Raises Invalid, NotAllowed. Raises OperationRejected if an occurrence does not fit. The error names the
    first such occurrence and the first windows that fit.
    """
    policy.require(actor, "reservation.request", project)
    request = checked_series_request(
        project,
        pool,
        name,
        start,
        end,
        weekdays,
        until,
        time_zone,
        now,
        why=why,
        may_exceed_guarantee=may_exceed_guarantee,
        **hardware,
    )
    why = why.strip()
    check_time_for_approval(request.first, now)
    if request.first.needs_approval:
        refuse_unless_all_fit(scheduling.check_windows(now=now, owner=actor, **request.columns), request)
        return submit_for_approval(
            actor, Submission.Kind.SERIES, request.first, request.payload, why, now, via
        )
    with transaction.atomic():
        series = confirm_series(actor, request, now)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_series",
            target=series,
            why=why,
            after=audit.audited_fields(series, *AUDITED_FIELDS),
        )
    return series


def preview_series(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    start: datetime,
    end: datetime,
    weekdays: list[str],
    until: date,
    now: datetime,
    time_zone: str = "UTC",
    may_exceed_guarantee: bool = False,
    name: str = "preview",
    via: str = "web",
    **hardware: Any,
) -> dict[str, Any]:
    """Check every occurrence without reserving anything. Raises Invalid, NotAllowed.

    The result has these keys:

    - ``occurrences``: the number of occurrences. ``fits``: True if all of them fit.
    - ``sentence``: a text about the first occurrence that does not fit; empty if all fit.
    - ``windows``: the first windows that fit instead of this occurrence.
    - ``clock_changes``: a sentence for each occurrence that differs because the clocks change on its day.
    - ``needs_approval``: True if an operator must approve the series.
    - ``gpus``: the GPUs of one occurrence.
    - ``price``: the price of all occurrences. ``price_per_hour``: the price of all requested GPUs for one
      hour. Both are None if a model has no price.
    - ``currency``: the currency of the present month.
    """
    policy.require(actor, "reservation.request", project)
    request = checked_series_request(
        project,
        pool,
        name,
        start,
        end,
        weekdays,
        until,
        time_zone,
        now,
        may_exceed_guarantee=may_exceed_guarantee,
        **hardware,
    )
    check_time_for_approval(request.first, now)
    with metered_planning(actor, now):
        answers = scheduling.check_windows(now=now, owner=actor, **request.columns)
    worst = first_unavailable_occurrence(answers)
    prices = load_current_prices(now)
    price = rate_card.gpu_hour_price(prices, pool, request.first.models_wanted or gpu_models_of_pool(pool))
    unit = smallest_unit(prices.currency)
    per_hour = None if price is None else price * Decimal(str(request.first.gpus))
    hours = Decimal(int(sum((end - start).total_seconds() for start, end in request.windows))) / 3600
    return {
        "price_per_hour": None if per_hour is None else round_amount(per_hour, unit),
        "price": None if per_hour is None else round_amount(per_hour * hours, unit),
        "currency": prices.currency,
        "occurrences": len(request.windows),
        "fits": worst is None,
        "sentence": "" if worst is None else unavailable_occurrences_sentence(request, answers),
        "windows": [] if worst is None else alternative_windows_of(answers[worst]),
        "clock_changes": [
            request_texts.clock_change(change, request.recurrence.time_zone)
            for change in request.clock_changes
        ],
        "needs_approval": request.first.needs_approval,
        "gpus": request.first.gpus,
    }


def cancel_series(*, actor: User, series: Series, now: datetime, why: str = "", via: str = "web") -> int:
    """Cancel every occurrence that is not over, and return the number of cancelled occurrences.

    Raises Invalid, NotAllowed. Raises OperationRejected if all occurrences are over.
    """
    policy.require(actor, "reservation.change", series)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        given_up = scheduling.cancel_series(series, now=now)
        if not given_up:
            raise OperationRejected("series_is_over", {"name": series.name})
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="cancel_series",
            target=series,
            why=why,
            after={"given_up": given_up},
        )
    return given_up


def clock_changes_of(series: Series) -> list[str]:
    """Return a sentence for each occurrence that differs because the clocks change on its day."""
    recurrence = Recurrence(
        frozenset(series.weekdays),
        series.starts_at,
        series.ends_at,
        series.time_zone,
        series.first_day,
        series.last_day,
    )
    changes = dst_occurrences(recurrence, series.created_at)
    return [request_texts.clock_change(change, series.time_zone) for change in changes]


def checked_series_request(
    project: Project,
    pool: Pool,
    name: Any,
    start: Any,
    end: Any,
    weekdays: Any,
    until: Any,
    time_zone: Any,
    now: datetime,
    why: Any = "",
    may_exceed_guarantee: Any = False,
    **hardware: Any,
) -> SeriesRequest:
    """Check the arguments and return the request. Raises Invalid.

    The arguments of the first occurrence are checked first. Then the other arguments are checked.
    """
    first = checked_reservation_request(
        project,
        pool,
        name,
        start,
        end,
        now,
        why=why,
        may_exceed_guarantee=may_exceed_guarantee,
        **hardware,
    )
    checks = InputChecks()
    days = checks.choices("weekdays", weekdays, WEEKDAYS)
    if not days and "weekdays" not in checks.problems:
        checks.note("weekdays", "", reservation_problems.WEEKDAYS_EMPTY.format(allowed=", ".join(WEEKDAYS)))
    zone = checks.time_zone("time_zone", time_zone)
    local, local_end = (at.astimezone(ZoneInfo(zone)) for at in (first.start, first.end))
    # Compare the times of day that people enter, so that a change of the clocks does not affect the length.
    if local_end.replace(tzinfo=None) - local.replace(tzinfo=None) > MAX_OCCURRENCE_LENGTH:
        checks.note(
            "end",
            first.end.isoformat(),
            reservation_problems.OCCURRENCE_TOO_LONG,
        )
    if isinstance(until, datetime) or not isinstance(until, date):
        checks.note("until", until, reservation_problems.UNTIL_IS_NO_DATE)
        until = local.date()
    horizon = (now + timedelta(seconds=pool.reservation_horizon_seconds)).astimezone(ZoneInfo(zone)).date()
    if not local.date() <= until <= horizon:
        message = reservation_problems.UNTIL_OUT_OF_RANGE.format(
            until=until, pool=pool.name, first=local, last=horizon
        )
        checks.note("until", until.isoformat(), message)
    checks.done()
    recurrence = Recurrence(
        frozenset(WEEKDAYS.index(day) for day in days),
        _time_of_day(local),
        _time_of_day(local_end),
        zone,
        local.date(),
        until,
    )
    this_minute = now.replace(second=0, microsecond=0)
    windows = occurrences(recurrence, this_minute, MAX_OCCURRENCES)
    if not windows:
        checks.note("until", until.isoformat(), reservation_problems.NO_OCCURRENCE.format(until=until))
    elif len(windows) > MAX_OCCURRENCES:
        last = windows[MAX_OCCURRENCES - 1][0]
        message = reservation_problems.TOO_MANY_OCCURRENCES.format(
            until=until, most=MAX_OCCURRENCES, last=last
        )
        checks.note("until", until.isoformat(), message)
    checks.done()
    return SeriesRequest(first, recurrence, windows, dst_occurrences(recurrence, this_minute))


def confirm_series(owner: User, request: SeriesRequest, now: datetime) -> Series:
    """Confirm all occurrences of the series, or none. Raises OperationRejected if one does not fit."""
    columns = {**request.columns, "recurrence": request.recurrence}
    series, answers = scheduling.confirm_series(owner=owner, now=now, **columns)
    refuse_unless_all_fit(answers, request)
    if series is None:
        raise OperationRejected("reservation_was_not_confirmed", {"name": request.first.name})
    return series


def first_unavailable_occurrence(answers: list[WindowCheckResult]) -> int | None:
    """Return the index of the first occurrence that does not fit; None if all fit.

    ``answers`` contains one result for each occurrence.
    """
    return next((place for place, answer in enumerate(answers) if not answer.fits), None)


def unavailable_occurrences_sentence(request: SeriesRequest, answers: list[WindowCheckResult]) -> str:
    """Return a sentence about the occurrences that do not fit. The text is empty if all fit.

    The sentence names the first such occurrence, the reason, the number of further such occurrences, and a
    window that fits.
    """
    rejection = series_rejection(request, answers)
    return "" if rejection is None else refusal_sentence(rejection)


def refuse_unless_all_fit(answers: list[WindowCheckResult], request: SeriesRequest) -> None:
    """Raise OperationRejected if an occurrence does not fit. The error names the first such occurrence."""
    rejection = series_rejection(request, answers)
    if rejection is not None:
        raise rejection


def series_rejection(request: SeriesRequest, answers: list[WindowCheckResult]) -> OperationRejected | None:
    """Return the error for the first occurrence of a series that does not fit.

    Return None if all occurrences fit.
    """
    place = first_unavailable_occurrence(answers)
    if place is None:
        return None
    answer, (start, end) = answers[place], request.windows[place]
    numbers = {
        **dict(answer.numbers),
        "occurrence": place + 1,
        "occurrences": len(answers),
        "occurrence_start": start.isoformat(),
        "occurrence_end": end.isoformat(),
        "more_occurrences": sum(not answer.fits for answer in answers) - 1,
    }
    field = field_to_change(answer.code, numbers, "start")
    return OperationRejected(
        answer.code, numbers, answer.first_windows, field=field, operation="confirm_series"
    )


def _time_of_day(at: datetime) -> time:
    return at.time().replace(second=0, microsecond=0)
