"""Verbs on reservations: promises of GPUs for a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NoReturn, Unpack

from django.db import transaction
from django.utils import timezone

from portal import policy
from portal.errors import Conflict
from portal.hardware_request import (
    HardwareRequest,
    PlacementConstraints,
    check_hardware_request,
    check_pool,
    check_project,
    field_to_change,
    gpu_models_of_pool,
    network_warnings,
    whole_gpus_of,
)
from portal.input_checks import InputChecks
from portal.models import Submission, SubmissionState, User
from portal.planner_budget import metered_planning
from portal.services import audit
from portal.services.money import rates_and_budgets
from portal.wording import formatting, reason_texts
from scheduler import services as engine
from scheduler.core.promises.reservation_windows import WindowCheckResult
from scheduler.models import Pool, Project, Reservation
from scheduler.state.states import OPEN_RESERVATION_STATES, ReservationState
from telemetry.core.amounts import round_amount

MIN_RESERVATION_WINDOW = timedelta(minutes=5)
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


@dataclass(frozen=True)
class ReservationRequest:
    """Everything of a reservation, checked. Times are UTC on whole seconds."""

    project: Project
    pool: Pool
    name: str
    ask: HardwareRequest
    start: datetime
    end: datetime
    may_exceed_guarantee: bool = False  # an operator is asked to let it use what other teams are guaranteed

    @property
    def gpus(self) -> float:
        """How much of whole GPUs it asks for."""
        return whole_gpus_of(self.pool, self.ask)

    @property
    def needs_approval(self) -> bool:
        """Whether an operator has to agree: above what the pool confirms at once, or into the guarantees of others."""
        return self.may_exceed_guarantee or self.gpus > self.pool.approval_above_gpus

    @property
    def payload(self) -> dict[str, Any]:
        """As JSON, for a Submission."""
        return {
            "project": self.project.pk,
            "pool": self.pool.pk,
            "name": self.name,
            "units": self.ask.units,
            "hosts": self.ask.hosts,
            "models": self.ask.models_wanted,
            "profile": self.ask.profile,
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "gpus": self.gpus,
            **self.ask.placing,
            # Asked is not allowed: the approver says so, by changing may_exceed_guarantee.
            "asks_to_exceed_guarantee": self.may_exceed_guarantee,
        }

    @property
    def columns(self) -> dict[str, Any]:
        """Keyword arguments of the engine's services."""
        return {
            "project": self.project,
            "pool": self.pool,
            "name": self.name,
            "start": self.start,
            "end": self.end,
            "may_exceed_guarantee": self.may_exceed_guarantee,
            **self.ask.columns,
        }


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


def preview_reservation(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    units: int,
    start: datetime,
    end: datetime,
    now: datetime,
    hosts: int = 1,
    models: list[str] | None = None,
    profile: str = "",
    may_exceed_guarantee: bool = False,
    name: str = "preview",
    via: str = "web",
    **placing: Unpack[PlacementConstraints],
) -> dict[str, Any]:
    """Whether the window can be had, without asking for it.

    Returns ``fits`` (bool), ``code`` and ``numbers``, ``windows`` (the first that fit, as (start, end) datetimes),
    ``needs_approval`` (bool), ``gpus`` (float), ``price`` (Decimal for the whole window, or None), ``price_per_hour``,
    ``currency``, and ``warnings`` (sentences that don't block). Raises Invalid, NotAllowed.
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
        may_exceed_guarantee=may_exceed_guarantee,
        **placing,
    )
    with metered_planning(actor, now):
        answer = engine.check_window(now=now, owner=actor, **wish.columns)
    price = rates_and_budgets.gpu_hour_price(
        pool=pool, models=wish.ask.models_wanted or gpu_models_of_pool(pool), now=now
    )
    hours = Decimal(int((wish.end - wish.start).total_seconds())) / 3600
    per_hour = None if price is None else round_amount(price * Decimal(str(wish.gpus)))
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "windows": alternative_windows_of(answer),
        "needs_approval": wish.needs_approval,
        "gpus": wish.gpus,
        "price_per_hour": per_hour,
        "price": None if price is None else round_amount(price * Decimal(str(wish.gpus)) * hours),
        "currency": rates_and_budgets.organisation_currency(),
        "warnings": reservation_warnings(wish),
    }


def first_fitting_windows(
    *,
    actor: User,
    project: Project,
    pool: Pool,
    units: int,
    length: timedelta,
    now: datetime,
    hosts: int = 1,
    models: list[str] | None = None,
    profile: str = "",
    may_exceed_guarantee: bool = False,
    **placing: Unpack[PlacementConstraints],
) -> list[tuple[datetime, datetime]]:
    """The first windows of a length that fit, for who has named no start that could be. Raises Invalid, NotAllowed."""
    policy.require(actor, "reservation.request", project)
    wish = checked_reservation_request(
        project,
        pool,
        "preview",
        units,
        models,
        profile,
        now,
        now + length,
        now,
        hosts=hosts,
        may_exceed_guarantee=may_exceed_guarantee,
        **placing,
    )
    asked = {name: value for name, value in wish.columns.items() if name not in ("name", "start", "end")}
    with metered_planning(actor, now):
        return engine.first_windows(length=length, owner=actor, now=now, **asked)


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


def change_window(reservation: Reservation, start: datetime, end: datetime, now: datetime) -> None:
    """Give it exactly this window, judged under the pool's lock; inside a transaction. Raises Conflict with the reason and the
    windows that fit."""
    refuse_unless_change_fits(engine.change_reservation(reservation, start=start, end=end, now=now))
    reservation.refresh_from_db()
    if (reservation.start, reservation.end) != (
        start,
        end,
    ):  # the engine has begun it meanwhile: its start stays
        raise Conflict(
            f"{reservation.name} has begun meanwhile, at {local_time_text(reservation.start)}: only its end can change.",
            field="start",
        )


def apply_submitted_change(reservation: Reservation, payload: Mapping[str, Any], now: datetime) -> None:
    """Give it the window that a Submission asks for; inside a transaction. Raises Conflict, also when its window is not the one
    that the change was asked for; Invalid."""
    fresh = engine.lock_reservation(reservation)
    change_window(reservation, *submitted_window(fresh, payload, now), now)


def submitted_window(
    reservation: Reservation, payload: Mapping[str, Any], now: datetime
) -> tuple[datetime, datetime]:
    """The window that a Submission asks for, checked again: by now it may have begun, or the window may be past.

    Raises Conflict when somebody has moved it since, or an old start would come back with a new end; Invalid.
    """
    start, end = (datetime.fromisoformat(payload[name]) for name in ("start", "end"))
    refuse_if_window_moved(
        reservation, *(datetime.fromisoformat(payload[name]) for name in ("start_now", "end_now"))
    )
    return checked_window_change(reservation, None if start == reservation.start else start, end, "", now)


def refuse_if_window_moved(reservation: Reservation, start: datetime, end: datetime) -> None:
    """Whoever asks for a change means the window that they saw."""
    if (reservation.start, reservation.end) != (start, end):
        words = f"{reservation.name} was changed meanwhile: {local_time_text(reservation.start)} to {local_time_text(reservation.end)}"
        raise Conflict(f"{words}. Look at it again and ask anew.", field="end")


def change_needs_approval(reservation: Reservation, start: datetime, end: datetime) -> bool:
    """A new one of its size would wait for approval, and the change takes time that it does not have yet."""
    within = reservation.start <= start and end <= reservation.end
    ask = HardwareRequest(
        **{name: getattr(reservation, name) for name in HardwareRequest.__dataclass_fields__}
    )
    large = whole_gpus_of(reservation.pool, ask) > reservation.pool.approval_above_gpus
    return not within and (large or reservation.may_exceed_guarantee)


def refuse_unless_change_fits(answer: WindowCheckResult) -> None:
    """Raise Conflict with the engine's reason and the first windows that fit."""
    if not answer.fits:
        raise_window_conflict(answer)


# -- shared with approvals ---------------------------------------------------------------------------------------------


def checked_reservation_request(
    project: Project,
    pool: Pool,
    name: Any,
    units: Any,
    models: Any,
    profile: Any,
    start: Any,
    end: Any,
    now: datetime,
    hosts: Any = 1,
    why: Any = "",
    may_exceed_guarantee: Any = False,
    **placing: Unpack[PlacementConstraints],
) -> ReservationRequest:
    """Check every field of a reservation, or raise Invalid with all the problems."""
    checks = InputChecks()
    check_project(checks, project)
    check_pool(checks, pool, project.team)
    ask = check_hardware_request(
        checks, pool=pool, units=units, hosts=hosts, models=models, profile=profile, **placing
    )
    name = checks.text("name", name)
    checks.text("why", why, least=0, most=1000, lines=True)
    exceed = checks.flag("may_exceed_guarantee", may_exceed_guarantee)
    first, last = checks.aware_datetime("start", start), checks.aware_datetime("end", end)
    if not {"start", "end"} & checks.problems.keys():
        _check_window(checks, pool, first, last, now)
    checks.done()
    return ReservationRequest(
        project, pool, name, ask, first.replace(microsecond=0), last.replace(microsecond=0), exceed
    )


def checked_window_change(
    reservation: Reservation, start: datetime | None, end: datetime | None, why: str, now: datetime
) -> tuple[datetime, datetime]:
    """The new window, checked like that of a new one. Raises Invalid, and Conflict when it is over."""
    checks = InputChecks()
    checks.text("why", why, least=0, most=1000, lines=True)
    if reservation.state not in OPEN_RESERVATION_STATES:
        raise Conflict(f"{reservation.name} is {reservation.state}; it can't be changed.")
    first = (
        reservation.start if start is None else checks.aware_datetime("start", start).replace(microsecond=0)
    )
    if end is not None:
        last = checks.aware_datetime("end", end).replace(microsecond=0)
    else:
        last = reservation.end if start is None else first + (reservation.end - reservation.start)
    checks.done()
    if (first, last) == (reservation.start, reservation.end):
        words = f"end is {local_time_text(last)}, as it is; allowed: another start or another end."
        checks.note("end", last.isoformat(), words)
    elif first != reservation.start and reservation.state == ReservationState.ACTIVE:
        words = f"start is {local_time_text(first)}; it has begun at {local_time_text(reservation.start)}: only its end can change."
        checks.note("start", first.isoformat(), words)
    elif last <= now:
        checks.note(
            "end",
            last.isoformat(),
            f"end is {local_time_text(last)}, which is past; allowed: after {local_time_text(now)}.",
        )
    else:
        _check_window(
            checks, reservation.pool, first, last, min(now, first) if first == reservation.start else now
        )
    checks.done()
    return first, last


def confirm_reservation(owner: User, wish: ReservationRequest, now: datetime) -> Reservation:
    """Promise it, judged under the pool's lock. Raises Conflict with the reason and the first windows that fit."""
    reservation, answer = engine.confirm_reservation(owner=owner, now=now, **wish.columns)
    refuse_unless_reservation_fits(answer, wish)
    if reservation is None:
        raise Conflict(f"{wish.name} was not confirmed.")
    return reservation


def refuse_unless_reservation_fits(answer: WindowCheckResult, wish: ReservationRequest) -> None:
    """Raise Conflict with the engine's reason and the first windows that fit."""
    if not answer.fits:
        raise_window_conflict(answer)


def raise_window_conflict(answer: WindowCheckResult) -> NoReturn:
    windows = alternative_windows_of(answer)
    numbers = dict(answer.numbers)
    first = (
        f" The first window of that length that fits starts {local_time_text(windows[0][0])}."
        if windows
        else ""
    )
    raise Conflict(
        f"{reason_texts.reason_sentence(answer.code, numbers)}{first}",
        field=field_to_change(answer.code, numbers, "start"),
        code=answer.code,
        numbers=numbers,
        windows=windows,
    )


def alternative_windows_of(answer: WindowCheckResult) -> list[tuple[datetime, datetime]]:
    """The windows that would fit, as datetimes."""
    return [
        (datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC))
        for w in answer.first_windows
    ]


def reservation_warnings(wish: ReservationRequest) -> list[str]:
    """What is worth a second look and blocks nothing."""
    found = []
    if wish.start.weekday() >= 5:
        found.append("It starts on a weekend.")
    if wish.end - wish.start > timedelta(days=3):
        found.append("It is longer than three days: unused time is charged too.")
    return found + network_warnings(wish.pool, wish.ask)


def _check_window(checks: InputChecks, pool: Pool, start: datetime, end: datetime, now: datetime) -> None:
    horizon = now + timedelta(seconds=pool.reservation_horizon_seconds)
    longest = timedelta(seconds=pool.longest_reservation_seconds)
    if start < now.replace(second=0, microsecond=0):
        checks.note(
            "start",
            start.isoformat(),
            f"start is {local_time_text(start)}, which is past; allowed: from {local_time_text(now)} on.",
        )
    elif start > horizon:
        checks.note(
            "start",
            start.isoformat(),
            f"start is {local_time_text(start)}; allowed in {pool.name}: up to {local_time_text(horizon)}.",
        )
    if end <= start:
        checks.note(
            "end",
            end.isoformat(),
            f"end is {local_time_text(end)}; allowed: after the start, {local_time_text(start)}.",
        )
    elif end - start < MIN_RESERVATION_WINDOW:
        checks.note(
            "end",
            end.isoformat(),
            f"end is {local_time_text(end)}; allowed: at least 5 minutes after the start, {local_time_text(start)}.",
        )
    elif end - start > longest:
        checks.note(
            "end",
            end.isoformat(),
            f"end is {local_time_text(end)}; allowed in {pool.name}: up to {formatting.duration(longest)} after the start.",
        )


def submit_window_change(
    actor: User, reservation: Reservation, start: datetime, end: datetime, why: str, now: datetime, via: str
) -> Submission:
    """Inside a transaction, under the reservation's lock."""
    waiting = Submission.objects.filter(
        kind=Submission.Kind.WINDOW_CHANGE, state=SubmissionState.WAITING, reservation=reservation
    )
    if waiting.exists():
        raise Conflict(
            f"A change of {reservation.name} already waits for approval; withdraw it first.", field="end"
        )
    ask = HardwareRequest(
        **{name: getattr(reservation, name) for name in HardwareRequest.__dataclass_fields__}
    )
    payload = {
        "reservation": reservation.pk,
        "project": reservation.project_id,
        "name": reservation.name,
        "units": reservation.units,
        "hosts": reservation.hosts,
        "models": list(reservation.models_wanted),
        "profile": reservation.profile,
        "gpus": whole_gpus_of(reservation.pool, ask),
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


def local_time_text(moment: datetime) -> str:
    """In the person's time zone, which is named; the API's is UTC."""
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M %Z}"


def submit_for_approval(
    actor: User,
    kind: str,
    wish: ReservationRequest,
    payload: dict[str, Any],
    why: str,
    now: datetime,
    via: str,
) -> Submission:
    """Have ``payload``, which ``wish`` is or begins, wait for approval."""
    with transaction.atomic():
        submission = Submission.objects.create(
            kind=kind,
            team=wish.project.team,
            pool=wish.pool,
            author=actor,
            why=why,
            payload=payload,
            state=SubmissionState.WAITING,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb=f"request_{kind}",
            target=submission,
            team_id=wish.project.team_id,
            after=payload,
            why=why,
        )
    return submission
