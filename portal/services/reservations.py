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
from portal.models import Submission, SubmissionState, User
from portal.questions import asking
from portal.services import audit, money
from portal.services.asks import (
    AskFields,
    Placing,
    check_ask,
    check_pool,
    check_project,
    field_at_fault,
    gpus_of,
    models_of,
    network_warnings,
)
from portal.validation import Checks
from portal.wording import phrases, reasons
from scheduler import services as engine
from scheduler.core.model import WindowAnswer
from scheduler.models import Pool, Project, Reservation
from scheduler.states import PROMISED, ReservationState
from telemetry.core.money import rounded

SHORTEST_WINDOW = timedelta(minutes=5)
TOLD = ("name", "units", "models_wanted", "profile", "start", "end", "state", "may_exceed_guarantee")


@dataclass(frozen=True)
class Wish:
    """Everything of a reservation, checked. Times are UTC on whole seconds."""

    project: Project
    pool: Pool
    name: str
    ask: AskFields
    start: datetime
    end: datetime
    may_exceed_guarantee: bool = False  # an operator is asked to let it use what other teams are guaranteed

    @property
    def gpus(self) -> float:
        """How much of whole GPUs it asks for."""
        return gpus_of(self.pool, self.ask)

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
    **placing: Unpack[Placing],
) -> Submission | Reservation:
    """``units`` on each of ``hosts`` hosts: a confirmed Reservation, or a Submission that waits for approval and holds nothing.

    It waits when it is above the pool's threshold, or when ``may_exceed_guarantee`` asks an operator to let it use what
    other teams are guaranteed. The window is checked first.
    Raises Conflict (with the first windows that fit), Invalid, NotAllowed.
    """
    policy.require(actor, "reservation.request", project)
    wish = checked_wish(
        project, pool, name, units, models, profile, start, end, now, hosts=hosts, why=why,
        may_exceed_guarantee=may_exceed_guarantee, **placing,
    )  # fmt: skip
    why = why.strip()
    if wish.needs_approval:
        refuse_unless_it_fits(engine.check_window(now=now, owner=actor, **wish.columns), wish)
        return submit(actor, Submission.Kind.RESERVATION, wish, wish.payload, why, now, via)
    with transaction.atomic():
        reservation = confirm(actor, wish, now)
        audit.record(
            actor=actor, via=via, now=now, verb="request_reservation", target=reservation, why=why,
            after=audit.facts(reservation, *TOLD),
        )  # fmt: skip
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
    **placing: Unpack[Placing],
) -> dict[str, Any]:
    """Whether the window can be had, without asking for it.

    Returns ``fits`` (bool), ``code`` and ``numbers``, ``windows`` (the first that fit, as (start, end) datetimes),
    ``needs_approval`` (bool), ``gpus`` (float), ``price`` (Decimal for the whole window, or None), ``price_per_hour``,
    ``currency``, and ``warnings`` (sentences that don't block). Raises Invalid, NotAllowed.
    """
    policy.require(actor, "reservation.request", project)
    wish = checked_wish(
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
    with asking(actor, now):
        answer = engine.check_window(now=now, owner=actor, **wish.columns)
    price = money.price_of(pool=pool, models=wish.ask.models_wanted or models_of(pool), now=now)
    hours = Decimal(int((wish.end - wish.start).total_seconds())) / 3600
    per_hour = None if price is None else rounded(price * Decimal(str(wish.gpus)))
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "windows": windows_of(answer),
        "needs_approval": wish.needs_approval,
        "gpus": wish.gpus,
        "price_per_hour": per_hour,
        "price": None if price is None else rounded(price * Decimal(str(wish.gpus)) * hours),
        "currency": money.currency(),
        "warnings": warnings_of(wish),
    }


def windows_from_now(
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
    **placing: Unpack[Placing],
) -> list[tuple[datetime, datetime]]:
    """The first windows of a length that fit, for who has named no start that could be. Raises Invalid, NotAllowed."""
    policy.require(actor, "reservation.request", project)
    wish = checked_wish(
        project, pool, "preview", units, models, profile, now, now + length, now, hosts=hosts,
        may_exceed_guarantee=may_exceed_guarantee, **placing,
    )  # fmt: skip
    asked = {name: value for name, value in wish.columns.items() if name not in ("name", "start", "end")}
    with asking(actor, now):
        return engine.first_windows(length=length, owner=actor, now=now, **asked)


def cancel_reservation(
    *, actor: User, reservation: Reservation, now: datetime, why: str = "", via: str = "web"
) -> Reservation:
    """Give it up; what runs inside it is told to go. Raises Conflict when it is over, NotAllowed, Invalid."""
    policy.require(actor, "reservation.change", reservation)
    checks = Checks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        before = audit.facts(reservation, "state")
        if not engine.cancel_reservation(reservation, now=now):
            raise Conflict(f"{reservation.name} is already {reservation.state}; there is nothing to cancel.")
        reservation.refresh_from_db()
        audit.record(
            actor=actor, via=via, now=now, verb="cancel_reservation", target=reservation, why=why,
            before=before, after=audit.facts(reservation, "state"),
        )  # fmt: skip
    return reservation


def shorten_reservation(
    *, actor: User, reservation: Reservation, end: datetime, now: datetime, via: str = "web"
) -> Reservation:
    """Let it end earlier. Raises Invalid, Conflict, NotAllowed."""
    policy.require(actor, "reservation.change", reservation)
    checks = Checks()
    end = checks.moment("end", end)
    checks.done()
    earliest = max(reservation.start, now)
    if not earliest < end < reservation.end:
        words = (
            f"end is {_said(end)}; allowed: after {_said(earliest)} and before its end now, {_said(reservation.end)}."
        )
        checks.note("end", end.isoformat(), words)
    checks.done()
    with transaction.atomic():
        before = audit.facts(reservation, "end")
        if not engine.shorten_reservation(reservation, end=end, now=now):
            raise Conflict(f"{reservation.name} is {reservation.state}; it can't be shortened.")
        reservation.refresh_from_db()
        audit.record(
            actor=actor, via=via, now=now, verb="shorten_reservation", target=reservation,
            before=before, after=audit.facts(reservation, "end"),
        )  # fmt: skip
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
        _refuse_if_moved(engine.locked_reservation(reservation), reservation.start, reservation.end)
        first, last = checked_change(reservation, start, end, why, now)
        why = why.strip()
        if change_needs_approval(reservation, first, last):
            refuse_unless_change_fits(engine.check_change(reservation, start=first, end=last, now=now))
            return _submit_change(actor, reservation, first, last, why, now, via)
        before = audit.facts(reservation, "start", "end")
        change(reservation, first, last, now)
        audit.record(
            actor=actor, via=via, now=now, verb="change_reservation", target=reservation, why=why,
            before=before, after=audit.facts(reservation, "start", "end"),
        )  # fmt: skip
    return reservation


def change(reservation: Reservation, start: datetime, end: datetime, now: datetime) -> None:
    """Give it exactly this window, judged under the pool's lock; inside a transaction. Raises Conflict with the reason and the
    windows that fit."""
    refuse_unless_change_fits(engine.change_reservation(reservation, start=start, end=end, now=now))
    reservation.refresh_from_db()
    if (reservation.start, reservation.end) != (start, end):  # the engine has begun it meanwhile: its start stays
        raise Conflict(
            f"{reservation.name} has begun meanwhile, at {_said(reservation.start)}: only its end can change.",
            field="start",
        )


def carry_out_change(reservation: Reservation, payload: Mapping[str, Any], now: datetime) -> None:
    """Give it the window that a Submission asks for; inside a transaction. Raises Conflict, also when its window is not the one
    that the change was asked for; Invalid."""
    fresh = engine.locked_reservation(reservation)
    change(reservation, *submitted_window(fresh, payload, now), now)


def submitted_window(reservation: Reservation, payload: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    """The window that a Submission asks for, checked again: by now it may have begun, or the window may be past.

    Raises Conflict when somebody has moved it since, or an old start would come back with a new end; Invalid.
    """
    start, end = (datetime.fromisoformat(payload[name]) for name in ("start", "end"))
    _refuse_if_moved(reservation, *(datetime.fromisoformat(payload[name]) for name in ("start_now", "end_now")))
    return checked_change(reservation, None if start == reservation.start else start, end, "", now)


def _refuse_if_moved(reservation: Reservation, start: datetime, end: datetime) -> None:
    """Whoever asks for a change means the window that they saw."""
    if (reservation.start, reservation.end) != (start, end):
        words = f"{reservation.name} was changed meanwhile: {_said(reservation.start)} to {_said(reservation.end)}"
        raise Conflict(f"{words}. Look at it again and ask anew.", field="end")


def change_needs_approval(reservation: Reservation, start: datetime, end: datetime) -> bool:
    """A new one of its size would wait for approval, and the change takes time that it does not have yet."""
    within = reservation.start <= start and end <= reservation.end
    ask = AskFields(**{name: getattr(reservation, name) for name in AskFields.__dataclass_fields__})
    large = gpus_of(reservation.pool, ask) > reservation.pool.approval_above_gpus
    return not within and (large or reservation.may_exceed_guarantee)


def refuse_unless_change_fits(answer: WindowAnswer) -> None:
    """Raise Conflict with the engine's reason and the first windows that fit."""
    if not answer.fits:
        _refuse(answer)


# -- shared with approvals ---------------------------------------------------------------------------------------------


def checked_wish(
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
    **placing: Unpack[Placing],
) -> Wish:
    """Check every field of a reservation, or raise Invalid with all the problems."""
    checks = Checks()
    check_project(checks, project)
    check_pool(checks, pool, project.team)
    ask = check_ask(checks, pool=pool, units=units, hosts=hosts, models=models, profile=profile, **placing)
    name = checks.text("name", name)
    checks.text("why", why, least=0, most=1000, lines=True)
    exceed = checks.flag("may_exceed_guarantee", may_exceed_guarantee)
    first, last = checks.moment("start", start), checks.moment("end", end)
    if not {"start", "end"} & checks.problems.keys():
        _check_window(checks, pool, first, last, now)
    checks.done()
    return Wish(project, pool, name, ask, first.replace(microsecond=0), last.replace(microsecond=0), exceed)


def checked_change(
    reservation: Reservation, start: datetime | None, end: datetime | None, why: str, now: datetime
) -> tuple[datetime, datetime]:
    """The new window, checked like that of a new one. Raises Invalid, and Conflict when it is over."""
    checks = Checks()
    checks.text("why", why, least=0, most=1000, lines=True)
    if reservation.state not in PROMISED:
        raise Conflict(f"{reservation.name} is {reservation.state}; it can't be changed.")
    first = reservation.start if start is None else checks.moment("start", start).replace(microsecond=0)
    if end is not None:
        last = checks.moment("end", end).replace(microsecond=0)
    else:
        last = reservation.end if start is None else first + (reservation.end - reservation.start)
    checks.done()
    if (first, last) == (reservation.start, reservation.end):
        words = f"end is {_said(last)}, as it is; allowed: another start or another end."
        checks.note("end", last.isoformat(), words)
    elif first != reservation.start and reservation.state == ReservationState.ACTIVE:
        words = f"start is {_said(first)}; it has begun at {_said(reservation.start)}: only its end can change."
        checks.note("start", first.isoformat(), words)
    elif last <= now:
        checks.note("end", last.isoformat(), f"end is {_said(last)}, which is past; allowed: after {_said(now)}.")
    else:
        _check_window(checks, reservation.pool, first, last, min(now, first) if first == reservation.start else now)
    checks.done()
    return first, last


def confirm(owner: User, wish: Wish, now: datetime) -> Reservation:
    """Promise it, judged under the pool's lock. Raises Conflict with the reason and the first windows that fit."""
    reservation, answer = engine.confirm_reservation(owner=owner, now=now, **wish.columns)
    refuse_unless_it_fits(answer, wish)
    if reservation is None:
        raise Conflict(f"{wish.name} was not confirmed.")
    return reservation


def refuse_unless_it_fits(answer: WindowAnswer, wish: Wish) -> None:
    """Raise Conflict with the engine's reason and the first windows that fit."""
    if not answer.fits:
        _refuse(answer)


def _refuse(answer: WindowAnswer) -> NoReturn:
    windows = windows_of(answer)
    numbers = dict(answer.numbers)
    first = f" The first window of that length that fits starts {_said(windows[0][0])}." if windows else ""
    raise Conflict(
        f"{reasons.reason(answer.code, numbers)}{first}",
        field=field_at_fault(answer.code, numbers, "start"),
        code=answer.code,
        numbers=numbers,
        windows=windows,
    )


def windows_of(answer: WindowAnswer) -> list[tuple[datetime, datetime]]:
    """The windows that would fit, as datetimes."""
    return [(datetime.fromtimestamp(w.start, UTC), datetime.fromtimestamp(w.end, UTC)) for w in answer.first_windows]


def warnings_of(wish: Wish) -> list[str]:
    """What is worth a second look and blocks nothing."""
    found = []
    if wish.start.weekday() >= 5:
        found.append("It starts on a weekend.")
    if wish.end - wish.start > timedelta(days=3):
        found.append("It is longer than three days: unused time is charged too.")
    return found + network_warnings(wish.pool, wish.ask)


def _check_window(checks: Checks, pool: Pool, start: datetime, end: datetime, now: datetime) -> None:
    horizon = now + timedelta(seconds=pool.reservation_horizon_seconds)
    longest = timedelta(seconds=pool.longest_reservation_seconds)
    if start < now.replace(second=0, microsecond=0):
        checks.note(
            "start", start.isoformat(), f"start is {_said(start)}, which is past; allowed: from {_said(now)} on."
        )
    elif start > horizon:
        checks.note(
            "start", start.isoformat(), f"start is {_said(start)}; allowed in {pool.name}: up to {_said(horizon)}."
        )
    if end <= start:
        checks.note("end", end.isoformat(), f"end is {_said(end)}; allowed: after the start, {_said(start)}.")
    elif end - start < SHORTEST_WINDOW:
        checks.note(
            "end", end.isoformat(), f"end is {_said(end)}; allowed: at least 5 minutes after the start, {_said(start)}."
        )
    elif end - start > longest:
        checks.note(
            "end",
            end.isoformat(),
            f"end is {_said(end)}; allowed in {pool.name}: up to {phrases.duration(longest)} after the start.",
        )


def _submit_change(
    actor: User, reservation: Reservation, start: datetime, end: datetime, why: str, now: datetime, via: str
) -> Submission:
    """Inside a transaction, under the reservation's lock."""
    waiting = Submission.objects.filter(
        kind=Submission.Kind.WINDOW_CHANGE, state=SubmissionState.WAITING, reservation=reservation
    )
    if waiting.exists():
        raise Conflict(f"A change of {reservation.name} already waits for approval; withdraw it first.", field="end")
    ask = AskFields(**{name: getattr(reservation, name) for name in AskFields.__dataclass_fields__})
    payload = {
        "reservation": reservation.pk,
        "project": reservation.project_id,
        "name": reservation.name,
        "units": reservation.units,
        "hosts": reservation.hosts,
        "models": list(reservation.models_wanted),
        "profile": reservation.profile,
        "gpus": gpus_of(reservation.pool, ask),
        "start": start.isoformat(),
        "end": end.isoformat(),
        "start_now": reservation.start.isoformat(),
        "end_now": reservation.end.isoformat(),
    }
    submission = Submission.objects.create(
        kind=Submission.Kind.WINDOW_CHANGE, team=reservation.project.team, pool=reservation.pool, author=actor, why=why,
        payload=payload, state=SubmissionState.WAITING, reservation=reservation, created_at=now,
    )  # fmt: skip
    audit.record(
        actor=actor, via=via, now=now, verb="change_reservation", target=submission,
        team_id=reservation.project.team_id, after=payload, why=why,
    )  # fmt: skip
    return submission


def _said(moment: datetime) -> str:
    """In the person's time zone, which is named; the API's is UTC."""
    return f"{timezone.localtime(moment):%Y-%m-%d %H:%M %Z}"


def submit(
    actor: User, kind: str, wish: Wish, payload: dict[str, Any], why: str, now: datetime, via: str
) -> Submission:
    """Have ``payload``, which ``wish`` is or begins, wait for approval."""
    with transaction.atomic():
        submission = Submission.objects.create(
            kind=kind, team=wish.project.team, pool=wish.pool, author=actor, why=why, payload=payload,
            state=SubmissionState.WAITING, created_at=now,
        )  # fmt: skip
        audit.record(
            actor=actor, via=via, now=now, verb=f"request_{kind}", target=submission, team_id=wish.project.team_id,
            after=payload, why=why,
        )  # fmt: skip
    return submission
