"""Verbs on what waits for somebody's word: quota changes, large and recurring reservations, their changes, new members."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime

from portal import policy
from portal.errors import Conflict, Invalid
from portal.hardware_request import check_pool, gpu_models_of_pool, placement_constraints_in
from portal.input_checks import InputChecks
from portal.models import SUBMISSION_TRANSITIONS, Approval, Membership, Submission, SubmissionState, User
from portal.services import audit
from portal.services.calendar import recurring_reservations, reservations
from portal.wording import formatting, reason_texts, request_texts
from scheduler import services as engine
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.cycle.request_snapshot_cache import share_snapshots
from scheduler.models import Gpu, Pool, Project, Quota, Reservation, Team
from scheduler.state.states import OPEN_RESERVATION_STATES

MAX_QUOTA_GPUS = 1_000_000
MAX_QUOTA_GPU_HOURS = 1_000_000_000
NO_GPU_HOUR_QUOTA: dict[str, Any] = {"gpu_hours": None, "period": "month", "when_used_up": "borrow"}
APPROVER_EDITABLE_FIELDS = {
    Submission.Kind.QUOTA_CHANGE: frozenset(
        {"guaranteed_gpus", "borrow_limit_gpus", "gpu_hours", "period", "when_used_up"}
    ),
    Submission.Kind.RESERVATION: frozenset(
        {"units", "hosts", "models", "profile", "start", "end", "may_exceed_guarantee"}
    ),
    Submission.Kind.SERIES: frozenset({"units", "may_exceed_guarantee"}),
    Submission.Kind.WINDOW_CHANGE: frozenset(),
    Submission.Kind.MEMBERSHIP: frozenset({"role"}),
}


def request_quota_change(
    *,
    actor: User,
    team: Team,
    pool: Pool,
    model: str,
    guaranteed_gpus: int,
    now: datetime,
    borrow_limit_gpus: int | None = None,
    gpu_hours: int | None = None,
    period: str = "month",
    when_used_up: str = "borrow",
    why: str = "",
    via: str = "web",
) -> Submission:
    """Ask that a team be guaranteed ``guaranteed_gpus`` of a model, and may borrow up to the limit (None: no limit) above it.

    ``gpu_hours`` is what the guarantee is worth in a ``period`` (day, week, month), None without end; once they are used the
    team only borrows (``when_used_up`` borrow), or starts nothing new (refuse), until the period is over.
    Raises Invalid, NotAllowed, and Conflict when the same is already waiting.
    """
    policy.require(actor, "quota.request", team)
    checks = InputChecks()
    check_pool(checks, pool, team)
    model = checks.choice("model", model, gpu_models_of_pool(pool))
    check_quota(checks, guaranteed_gpus, borrow_limit_gpus)
    check_gpu_hours(checks, gpu_hours, period, when_used_up)
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    payload = {
        "model": model,
        "guaranteed_gpus": guaranteed_gpus,
        "borrow_limit_gpus": borrow_limit_gpus,
        "gpu_hours": gpu_hours,
        "period": period,
        "when_used_up": when_used_up,
    }
    words = f"A quota change for {team.name}, {model} in {pool.name} already waits; withdraw it first."
    with transaction.atomic():
        submission = create_unique_submission(
            Conflict(words, field="model"),
            kind=Submission.Kind.QUOTA_CHANGE,
            team=team,
            pool=pool,
            author=actor,
            why=why,
            payload=payload,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_quota_change",
            target=submission,
            after=payload,
            why=why,
            before=quota_fields(Quota.objects.filter(team=team, pool=pool, model=model).first()),
        )
    return submission


def request_membership(
    *, actor: User, team: Team, now: datetime, why: str = "", via: str = "web"
) -> Submission:
    """Ask to join a team as a member. Raises Conflict when one already is, or already asked; Invalid, NotAllowed."""
    policy.require(actor, "team.join", team)
    checks = InputChecks()
    why = checks.text("why", why, least=0, most=1000, lines=True)
    checks.done()
    if Membership.objects.filter(user=actor, team=team).exists():
        raise Conflict(f"You are already in {team.name}.")
    with transaction.atomic():
        payload = {"user": actor.pk, "role": Membership.Role.MEMBER.value}
        submission = create_unique_submission(
            Conflict(f"You already asked to join {team.name}."),
            kind=Submission.Kind.MEMBERSHIP,
            team=team,
            author=actor,
            why=why,
            payload=payload,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="request_membership",
            target=submission,
            after=payload,
            why=why,
        )
    return submission


def create_unique_submission(otherwise: Conflict, **columns: Any) -> Submission:
    """A submission of which only one may wait: ``otherwise`` is raised when the database knows of another, however close."""
    try:
        with transaction.atomic():
            return Submission.objects.create(**columns)
    except IntegrityError:
        raise otherwise from None


def approval_effect(
    submission: Submission, now: datetime, changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What approving it (with ``changes``) would do to others. Reads only.

    Always: ``fits`` (bool), ``code`` and ``numbers`` (the engine's reason where it gave one), ``sentence`` (for people).
    Quota change: ``capacity_gpus``, ``guaranteed_before_gpus`` and ``guaranteed_after_gpus`` (of all teams together),
    ``free_before_gpus``, ``free_after_gpus`` (guarantee not given to anybody), ``team_before_gpus``, ``team_after_gpus``.
    Reservation: ``windows`` (first that fit, (start, end) datetimes), ``gpus``, ``capacity_gpus``, ``evicted`` (workloads that
    would be told to go if it started now), ``overlapping`` (Reservations of the pool in that window). The same for a recurring
    one and for another window, without ``evicted``.
    """
    with share_snapshots():
        return _approval_effect(submission, {**submission.payload, **(changes or {})}, now)


def _approval_effect(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    if submission.kind == Submission.Kind.QUOTA_CHANGE:
        return effect_on_guarantees(submission, payload)
    if submission.kind == Submission.Kind.RESERVATION:
        return _effect_on_calendar(submission, payload, now)
    if submission.kind == Submission.Kind.SERIES:
        return _effect_of_series(submission, payload, now)
    if submission.kind == Submission.Kind.WINDOW_CHANGE:
        return _effect_of_change(submission, payload, now)
    return {
        "fits": True,
        "code": "",
        "numbers": {},
        "sentence": f"{submission.author} becomes {payload['role']} of {submission.team}.",
    }


def approve_submission(
    *,
    actor: User,
    submission: Submission,
    now: datetime,
    changes: dict[str, Any] | None = None,
    comment: str = "",
    via: str = "web",
) -> Submission:
    """Approve it, with ``changes`` to its payload or as it is; it is checked again and done in the same transaction.

    Raises Conflict when somebody decided before, or when it no longer fits (then nothing is decided); Invalid, NotAllowed.
    """
    policy.require(actor, "submission.decide", submission)
    checks = InputChecks()
    comment = checks.text("comment", comment, least=0, most=1000, lines=True)
    for field in (changes or {}).keys() - APPROVER_EDITABLE_FIELDS[Submission.Kind(submission.kind)]:
        checks.note(
            field,
            field,
            f"{field} can't be changed; allowed: {', '.join(sorted(APPROVER_EDITABLE_FIELDS[Submission.Kind(submission.kind)]))}.",
        )
    checks.done()
    payload = {**submission.payload, **(changes or {})}
    with transaction.atomic():
        _decide(submission, SubmissionState.APPROVED)
        changed = payload if payload != submission.payload else None
        _execute_submission(submission, payload, now)
        Approval.objects.create(
            submission=submission,
            decided_by=actor,
            approved=True,
            changed_payload=json_values(changed),
            comment=comment,
            decided_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="approve_submission",
            target=submission,
            before=submission.payload,
            after=json_values(payload),
            why=comment,
        )
    return submission


def decline_submission(
    *, actor: User, submission: Submission, comment: str, now: datetime, via: str = "web"
) -> Submission:
    """Decline it with a reason, which is not optional. Raises Conflict when somebody decided before; Invalid, NotAllowed."""
    policy.require(actor, "submission.decide", submission)
    checks = InputChecks()
    comment = checks.text("comment", comment, most=1000, lines=True)
    checks.done()
    with transaction.atomic():
        _decide(submission, SubmissionState.DECLINED)
        Approval.objects.create(
            submission=submission, decided_by=actor, approved=False, comment=comment, decided_at=now
        )
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="decline_submission",
            target=submission,
            before=submission.payload,
            why=comment,
        )
    return submission


def withdraw_submission(
    *, actor: User, submission: Submission, now: datetime, via: str = "web"
) -> Submission:
    """Take back what waits. Raises Conflict when it is decided, NotAllowed."""
    policy.require(actor, "submission.withdraw", submission)
    with transaction.atomic():
        _decide(submission, SubmissionState.WITHDRAWN)
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="withdraw_submission",
            target=submission,
            before=submission.payload,
        )
    return submission


# -- deciding ----------------------------------------------------------------------------------------------------------


def _decide(submission: Submission, new: SubmissionState) -> None:
    """Compare-and-swap out of waiting: of two people who decide at once, one is told that the other was first."""
    if new not in SUBMISSION_TRANSITIONS[SubmissionState.WAITING]:
        raise ValueError(new)
    if not Submission.objects.filter(pk=submission.pk, state=SubmissionState.WAITING).update(state=new):
        submission.refresh_from_db()
        by = Approval.objects.filter(submission=submission).select_related("decided_by").first()
        raise Conflict(f"This is already {submission.state}{f', by {by.decided_by}' if by else ''}.")
    submission.state = new


def _execute_submission(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    if submission.kind == Submission.Kind.QUOTA_CHANGE:
        _change_quota(submission, payload, now)
    elif submission.kind == Submission.Kind.RESERVATION:
        _confirm_reservation(submission, payload, now)
    elif submission.kind == Submission.Kind.SERIES:
        _confirm_series(submission, payload, now)
    elif submission.kind == Submission.Kind.WINDOW_CHANGE:
        reservations.apply_submitted_change(reservation_to_change(submission), payload, now)
    else:
        _add_member(submission, payload, now)


def _change_quota(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    checks = InputChecks()
    check_quota(checks, payload["guaranteed_gpus"], payload["borrow_limit_gpus"])
    hours = {name: payload.get(name, usual) for name, usual in NO_GPU_HOUR_QUOTA.items()}
    check_gpu_hours(checks, **hours)
    checks.done()
    pool = pool_of_submission(submission)
    effect = effect_on_guarantees(submission, payload)
    limit = payload["borrow_limit_gpus"]
    changed = engine.change_quota(
        team=submission.team,
        pool=pool,
        model=payload["model"],
        guaranteed_slots=payload["guaranteed_gpus"] * SLOTS_PER_GPU,
        borrow_limit_slots=None if limit is None else limit * SLOTS_PER_GPU,
        now=now,
        **hours,
    )
    if not changed:
        raise Conflict(
            effect["sentence"],
            field="guaranteed_gpus",
            numbers={k: v for k, v in effect.items() if k.endswith("_gpus")},
        )


def _confirm_reservation(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    wish = reservation_request_of(submission, payload, now)
    reservation = reservations.confirm_reservation(submission.author, wish, now)
    Submission.objects.filter(pk=submission.pk).update(reservation=reservation)
    submission.reservation = reservation


def _confirm_series(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    made = recurring_reservations.confirm_series(
        submission.author, series_request_of(submission, payload, now), now
    )
    first = made.occurrences.order_by("start", "pk").first()
    Submission.objects.filter(pk=submission.pk).update(reservation=first)
    submission.reservation = first


def reservation_to_change(submission: Submission) -> Reservation:
    return Reservation.objects.select_related("project__team", "pool").get(
        pk=submission.payload["reservation"]
    )


def _add_member(submission: Submission, payload: dict[str, Any], now: datetime) -> None:
    checks = InputChecks()
    role = checks.choice("role", payload["role"], Membership.Role.values)
    checks.done()
    Membership.objects.update_or_create(
        user=submission.author,
        team=submission.team,
        defaults={"role": role},
        create_defaults={"role": role, "created_at": now},
    )


# -- effects -----------------------------------------------------------------------------------------------------------


def effect_on_guarantees(submission: Submission, payload: dict[str, Any]) -> dict[str, Any]:
    pool, model = pool_of_submission(submission), payload["model"]
    room = engine.guarantee_capacity(pool=pool, model=model, team=submission.team)
    capacity, others = room.capacity // SLOTS_PER_GPU, room.others / SLOTS_PER_GPU
    own = (
        sum(
            Quota.objects.filter(pool=pool, model=model, team=submission.team).values_list(
                "guaranteed_slots", flat=True
            )
        )
        / SLOTS_PER_GPU
    )
    before, after = others + own, others + payload["guaranteed_gpus"]
    fits = payload["guaranteed_gpus"] * SLOTS_PER_GPU <= room.most
    effect: dict[str, Any] = {
        "fits": fits,
        "code": "",
        "numbers": {},
        "capacity_gpus": capacity,
        "guaranteed_before_gpus": before,
        "guaranteed_after_gpus": after,
        "free_before_gpus": capacity - before,
        "free_after_gpus": capacity - after,
        "team_before_gpus": own,
        "team_after_gpus": payload["guaranteed_gpus"],
    }
    words = request_texts.guarantee_effect(
        team=submission.team.name,
        pool=pool.name,
        model=model,
        asked=payload["guaranteed_gpus"],
        most=room.most / SLOTS_PER_GPU,
        capacity=capacity,
        others=others,
        own=own,
    )
    return {**effect, "sentence": words}


def _effect_on_calendar(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    pool = pool_of_submission(submission)
    try:
        wish = reservation_request_of(submission, payload, now)
    except Invalid as problem:
        return _no_effect(problem.message)
    answer = engine.check_window(now=now, owner=submission.author, **wish.columns)
    fits = f"It fits: {wish.gpus:g} GPUs, {formatting.window(wish.start, wish.end)}."
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "sentence": fits if answer.fits else reason_texts.reason_sentence(answer.code, dict(answer.numbers)),
        "windows": reservations.alternative_windows_of(answer),
        "gpus": wish.gpus,
        "capacity_gpus": _capacity(pool, payload.get("models") or []),
        "evicted": list(engine.evicted_by_reservation(now=now, **wish.columns)),
        "overlapping": list(_overlapping(pool, wish.start, wish.end)),
    }


def _effect_of_series(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    try:
        wish = series_request_of(submission, payload, now)
    except Invalid as problem:
        return _no_effect(problem.message)
    answers = engine.check_windows(now=now, owner=submission.author, **wish.columns)
    place = recurring_reservations.first_unavailable_occurrence(answers)
    worst = answers[place or 0]
    fits = f"All {len(answers)} occurrences fit: {wish.first.gpus:g} GPUs, the first {formatting.window(*wish.windows[0])}."
    return {
        "fits": place is None,
        "code": worst.code,
        "numbers": dict(worst.numbers),
        "sentence": fits
        if place is None
        else recurring_reservations.unavailable_occurrences_sentence(wish, answers),
        "windows": reservations.alternative_windows_of(worst),
        "gpus": wish.first.gpus,
        "capacity_gpus": _capacity(wish.first.pool, payload.get("models") or []),
        "evicted": [],
        "overlapping": list(_overlapping(wish.first.pool, wish.windows[0][0], wish.windows[-1][1])[:50]),
    }


def _effect_of_change(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    row = reservation_to_change(submission)
    try:
        start, end = reservations.submitted_window(row, payload, now)
    except (Invalid, Conflict) as problem:
        return _no_effect(problem.message)
    answer = engine.check_change(row, start=start, end=end, now=now)
    fits = f"It fits: {formatting.window(row.start, row.end)} becomes {formatting.window(start, end)}."
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "sentence": fits if answer.fits else reason_texts.reason_sentence(answer.code, dict(answer.numbers)),
        "windows": reservations.alternative_windows_of(answer),
        "gpus": payload.get("gpus"),
        "capacity_gpus": _capacity(row.pool, row.models_wanted),
        "evicted": [],
        "overlapping": list(_overlapping(row.pool, start, end).exclude(pk=row.pk)),
    }


def _no_effect(sentence: str) -> dict[str, Any]:
    return {
        "fits": False,
        "code": "",
        "numbers": {},
        "sentence": sentence,
        "windows": [],
        "evicted": [],
        "overlapping": [],
    }


def _capacity(pool: Pool, models: list[str]) -> int:
    there = Gpu.objects.filter(host__pool=pool, retired_at=None)
    return (there.filter(model__in=models) if models else there).count()


def _overlapping(pool: Pool, start: datetime, end: datetime) -> QuerySet[Reservation]:
    rows = Reservation.objects.filter(
        pool=pool, start__lt=end, end__gt=start, state__in=OPEN_RESERVATION_STATES
    )
    return rows.select_related("project__team").order_by("start", "pk")


def series_request_of(
    submission: Submission, payload: dict[str, Any], now: datetime
) -> recurring_reservations.SeriesRequest:
    project = Project.objects.select_related("team").get(pk=payload["project"])
    return recurring_reservations.checked_series_request(
        project,
        pool_of_submission(submission),
        payload["name"],
        payload["units"],
        payload["models"],
        payload["profile"],
        _datetime_of(payload["start"]),
        _datetime_of(payload["end"]),
        payload["weekdays"],
        date.fromisoformat(payload["until"]),
        payload["time_zone"],
        now,
        hosts=payload.get("hosts", 1),
        may_exceed_guarantee=payload.get("may_exceed_guarantee", False),
        **placement_constraints_in(payload),
    )


def reservation_request_of(
    submission: Submission, payload: dict[str, Any], now: datetime
) -> reservations.ReservationRequest:
    project = Project.objects.select_related("team").get(pk=payload["project"])
    return reservations.checked_reservation_request(
        project,
        pool_of_submission(submission),
        payload["name"],
        payload["units"],
        payload["models"],
        payload["profile"],
        _datetime_of(payload["start"]),
        _datetime_of(payload["end"]),
        now,
        hosts=payload.get("hosts", 1),
        may_exceed_guarantee=payload.get("may_exceed_guarantee", False),
        **placement_constraints_in(payload),
    )


def pool_of_submission(submission: Submission) -> Pool:
    if submission.pool is None:
        raise ValueError(f"submission {submission.pk} names no pool")
    return submission.pool


def check_quota(checks: InputChecks, guaranteed_gpus: Any, borrow_limit_gpus: Any) -> None:
    checks.count("guaranteed_gpus", guaranteed_gpus, 0, MAX_QUOTA_GPUS, "GPUs")
    if borrow_limit_gpus is not None:
        checks.count("borrow_limit_gpus", borrow_limit_gpus, 0, MAX_QUOTA_GPUS, "GPUs")


def check_gpu_hours(checks: InputChecks, gpu_hours: Any, period: Any, when_used_up: Any) -> None:
    if gpu_hours is not None:
        checks.count("gpu_hours", gpu_hours, 1, MAX_QUOTA_GPU_HOURS, "GPU-hours")
    checks.choice("period", period, Quota.Period.values)
    checks.choice("when_used_up", when_used_up, Quota.WhenUsedUp.values)


def quota_fields(quota: Quota | None) -> dict[str, Any] | None:
    if quota is None:
        return None
    limit = quota.borrow_limit_slots
    return {
        "model": quota.model,
        "guaranteed_gpus": quota.guaranteed_slots / SLOTS_PER_GPU,
        "borrow_limit_gpus": None if limit is None else limit / SLOTS_PER_GPU,
        "gpu_hours": quota.gpu_hours,
        "period": quota.hours_period,
        "when_used_up": quota.when_used_up,
    }


def _datetime_of(value: Any) -> Any:
    """Payloads keep times as ISO text; changes may bring datetimes."""
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
