"""Verbs on recurring reservations: one request, several windows, promised together or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Unpack
from zoneinfo import ZoneInfo

from django.db import transaction

from portal import policy
from portal.errors import Conflict
from portal.hardware_request import PlacementConstraints, field_to_change, gpu_models_of_pool
from portal.input_checks import InputChecks
from portal.models import Submission, User
from portal.planner_budget import metered_planning
from portal.services import audit
from portal.services.calendar.approved_changes import submit_for_approval
from portal.services.calendar.reservation_checks import (
    ReservationRequest,
    alternative_windows_of,
    checked_reservation_request,
)
from portal.services.money import rate_card
from portal.wording import formatting, reason_texts, request_texts
from scheduler import services as engine
from scheduler.core.promises.reservation_windows import WindowCheckResult
from scheduler.models import Pool, Project, Series
from scheduler.services.recurrence import DstOccurrence, Recurrence, dst_occurrences, occurrences
from telemetry.core.amounts import round_amount

MAX_OCCURRENCES = 100
MAX_OCCURRENCE_LENGTH = timedelta(days=1)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
AUDITED_FIELDS = ("name", "weekdays", "starts_at", "ends_at", "time_zone", "first_day", "last_day")


@dataclass(frozen=True)
class SeriesRequest:
    """What each occurrence is (``first`` is the first of them), and when they are."""

    first: ReservationRequest
    recurrence: Recurrence
    windows: list[tuple[datetime, datetime]]
    clock_changes: list[DstOccurrence]

    @property
    def payload(self) -> dict[str, Any]:
        """As JSON, for a Submission."""
        return {
            **self.first.payload,
            "weekdays": [WEEKDAYS[day] for day in sorted(self.recurrence.weekdays)],
            "until": self.recurrence.last_day.isoformat(),
            "time_zone": self.recurrence.time_zone,
            "occurrences": len(self.windows),
        }

    @property
    def columns(self) -> dict[str, Any]:
        """Keyword arguments of ``check_windows``."""
        columns = {name: value for name, value in self.first.columns.items() if name not in ("start", "end")}
        return {**columns, "windows": self.windows}


def request_series(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    name: str,
    units: int,
    start: datetime,
    end: datetime,
    weekdays: list[str],
    until: date,
    now: datetime,
    time_zone: str = "UTC",
    hosts: int = 1,
    models: list[str] | None = None,
    profile: str = "",
    why: str = "",
    may_exceed_guarantee: bool = False,
    via: str = "web",
    **placing: Unpack[PlacementConstraints],
) -> Submission | Series:
    """Reserve the same hours on some ``weekdays`` (mon to sun) from ``start``'s day to ``until``, as one thing.

    ``start`` and ``end`` give the hours by the clock of ``time_zone``; an occurrence is at most a day long. All of them fit
    or none is promised. A Submission that waits for approval where one of them alone would. Raises Conflict (which occurrence
    does not fit, and the first windows that would), Invalid, NotAllowed.
    """
    policy.require(actor, "reservation.request", project)
    wish = checked_series_request(
        project,
        pool,
        name,
        units,
        models,
        profile,
        start,
        end,
        weekdays,
        until,
        time_zone,
        now,
        hosts=hosts,
        why=why,
        may_exceed_guarantee=may_exceed_guarantee,
        **placing,
    )
    why = why.strip()
    if wish.first.needs_approval:
        refuse_unless_all_fit(engine.check_windows(now=now, owner=actor, **wish.columns), wish)
        return submit_for_approval(actor, Submission.Kind.SERIES, wish.first, wish.payload, why, now, via)
    with transaction.atomic():
        series = confirm_series(actor, wish, now)
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
    units: int,
    start: datetime,
    end: datetime,
    weekdays: list[str],
    until: date,
    now: datetime,
    time_zone: str = "UTC",
    hosts: int = 1,
    models: list[str] | None = None,
    profile: str = "",
    may_exceed_guarantee: bool = False,
    name: str = "preview",
    via: str = "web",
    **placing: Unpack[PlacementConstraints],
) -> dict[str, Any]:
    """Whether every occurrence can be had, without asking: ``occurrences`` (int), ``fits``, ``sentence`` (which does not),
    ``windows`` (the first that would do instead of that one), ``dst_occurrences`` (what is different where the clock is put
    forward or back: sentences), ``needs_approval``, ``gpus`` of each, ``price`` of all of them
    (None: no price), ``price_per_hour``, ``currency``. Raises Invalid, NotAllowed."""
    policy.require(actor, "reservation.request", project)
    wish = checked_series_request(
        project,
        pool,
        name,
        units,
        models,
        profile,
        start,
        end,
        weekdays,
        until,
        time_zone,
        now,
        hosts=hosts,
        may_exceed_guarantee=may_exceed_guarantee,
        **placing,
    )
    with metered_planning(actor, now):
        answers = engine.check_windows(now=now, owner=actor, **wish.columns)
    worst = first_unavailable_occurrence(answers)
    price = rate_card.gpu_hour_price(
        pool=pool, models=wish.first.ask.models_wanted or gpu_models_of_pool(pool), now=now
    )
    per_hour = None if price is None else price * Decimal(str(wish.first.gpus))
    hours = Decimal(int(sum((end - start).total_seconds() for start, end in wish.windows))) / 3600
    return {
        "price_per_hour": None if per_hour is None else round_amount(per_hour),
        "price": None if per_hour is None else round_amount(per_hour * hours),
        "currency": rate_card.organisation_currency(),
        "occurrences": len(wish.windows),
        "fits": worst is None,
        "sentence": "" if worst is None else unavailable_occurrences_sentence(wish, answers),
        "windows": [] if worst is None else alternative_windows_of(answers[worst]),
        "clock_changes": [
            request_texts.clock_change(change, wish.recurrence.time_zone) for change in wish.clock_changes
        ],
        "needs_approval": wish.first.needs_approval,
        "gpus": wish.first.gpus,
    }


def cancel_series(*, actor: User, series: Series, now: datetime, why: str = "", via: str = "web") -> int:
    """Give up every occurrence that is not over; how many. Raises Conflict when none is left, NotAllowed, Invalid."""
    policy.require(actor, "reservation.change", series)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        given_up = engine.cancel_series(series, now=now)
        if not given_up:
            raise Conflict(
                f"Every occurrence of {series.name} is over or cancelled; there is nothing to cancel."
            )
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
    """What is different where the clock is put forward or back, of a series that was promised."""
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


# -- shared with approvals ---------------------------------------------------------------------------------------------


def checked_series_request(
    project: Project,
    pool: Pool,
    name: Any,
    units: Any,
    models: Any,
    profile: Any,
    start: Any,
    end: Any,
    weekdays: Any,
    until: Any,
    time_zone: Any,
    now: datetime,
    hosts: Any = 1,
    why: Any = "",
    may_exceed_guarantee: Any = False,
    **placing: Unpack[PlacementConstraints],
) -> SeriesRequest:
    """Check every field, or raise Invalid with all the problems."""
    first = checked_reservation_request(
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
    checks = InputChecks()
    days = checks.choices("weekdays", weekdays, WEEKDAYS)
    if not days and "weekdays" not in checks.problems:
        checks.note("weekdays", "", f"weekdays is empty; allowed: one or more of {', '.join(WEEKDAYS)}.")
    zone = checks.time_zone("time_zone", time_zone)
    local, local_end = (at.astimezone(ZoneInfo(zone)) for at in (first.start, first.end))
    if local_end.replace(tzinfo=None) - local.replace(tzinfo=None) > MAX_OCCURRENCE_LENGTH:  # by the clock
        checks.note(
            "end",
            first.end.isoformat(),
            "end is more than a day after start; allowed for one that recurs: 24 hours.",
        )
    if isinstance(until, datetime) or not isinstance(until, date):
        checks.note("until", until, "until is no day; allowed: a date such as 2026-03-31.")
        until = local.date()
    horizon = (now + timedelta(seconds=pool.reservation_horizon_seconds)).astimezone(ZoneInfo(zone)).date()
    if not local.date() <= until <= horizon:
        words = f"until is {until:%Y-%m-%d}; allowed in {pool.name}: {local:%Y-%m-%d} to {horizon:%Y-%m-%d}."
        checks.note("until", until.isoformat(), words)
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
        checks.note(
            "until", until.isoformat(), f"until is {until:%Y-%m-%d}; none of those weekdays lies before it."
        )
    elif len(windows) > MAX_OCCURRENCES:
        last = windows[MAX_OCCURRENCES - 1][0]
        words = (
            f"until is {until:%Y-%m-%d}; allowed: {MAX_OCCURRENCES} occurrences, so up to {last:%Y-%m-%d}."
        )
        checks.note("until", until.isoformat(), words)
    checks.done()
    return SeriesRequest(first, recurrence, windows, dst_occurrences(recurrence, this_minute))


def confirm_series(owner: User, wish: SeriesRequest, now: datetime) -> Series:
    """Promise all of it, judged under the pool's lock. Raises Conflict."""
    columns = {**wish.columns, "recurrence": wish.recurrence}
    series, answers = engine.confirm_series(owner=owner, now=now, **columns)
    refuse_unless_all_fit(answers, wish)
    if series is None:
        raise Conflict(f"{wish.first.name} was not confirmed.")
    return series


def first_unavailable_occurrence(answers: list[WindowCheckResult]) -> int | None:
    """Which occurrence is the first that does not fit."""
    return next((place for place, answer in enumerate(answers) if not answer.fits), None)


def unavailable_occurrences_sentence(wish: SeriesRequest, answers: list[WindowCheckResult]) -> str:
    """Which occurrence does not fit and why, how many more there are, and what would."""
    place = first_unavailable_occurrence(answers)
    if place is None:
        return ""
    answer, more = answers[place], sum(not answer.fits for answer in answers) - 1
    windows = alternative_windows_of(answer)
    return (
        f"Occurrence {place + 1} of {len(answers)}, {formatting.window(*wish.windows[place])}, does not fit. "
        f"{reason_texts.reason_sentence(answer.code, dict(answer.numbers))}"
        f"{f' {more} more of them do not fit either.' if more else ''}"
        f"{f' The first window of that length after it: {formatting.window(*windows[0])}.' if windows else ''}"
    )


def refuse_unless_all_fit(answers: list[WindowCheckResult], wish: SeriesRequest) -> None:
    """Raise Conflict with the first occurrence that does not fit."""
    place = first_unavailable_occurrence(answers)
    if place is not None:
        answer = answers[place]
        numbers = {**dict(answer.numbers), "occurrence": place + 1, "occurrences": len(answers)}
        field = field_to_change(answer.code, numbers, "start")
        raise Conflict(
            unavailable_occurrences_sentence(wish, answers),
            field=field,
            code=answer.code,
            numbers=numbers,
            windows=alternative_windows_of(answer),
        )


def _time_of_day(at: datetime) -> time:
    return at.time().replace(second=0, microsecond=0)
