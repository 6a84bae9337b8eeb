"""Compute how the approval of a submission would affect other teams and workloads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from portal import policy
from portal.errors import Invalid
from portal.models import Submission, User
from portal.services.approvals.budget_requests import budget_before, budget_owner_name
from portal.services.approvals.payloads import (
    pool_of_submission,
    reservation_request_of,
    reservation_to_change,
    series_request_of,
)
from portal.services.approvals.quota_changes import agreed_payload, present_values, values_after
from portal.services.calendar import (
    approved_changes,
    recurring_reservations,
    reservation_checks,
)
from portal.wording import formatting, quota_texts, reason_texts, request_texts
from portal.wording.chargeback import budget_texts
from portal.wording.pages import calendar_pages
from portal.wording.refusal_texts import refusal_sentence
from scheduler import services as scheduling
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.rejection import OperationRejected
from scheduler.cycle.request_snapshot_cache import share_snapshots
from scheduler.models import Gpu, Pool, Reservation
from scheduler.state.states import OPEN_RESERVATION_STATES
from telemetry.reads.budget_status import budget_statuses


def approval_effect(
    submission: Submission, now: datetime, changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return how the approval of a submission would affect other work. Changes nothing.

    ``changes`` replaces values of the submission's payload. The result of every kind of submission has:

    - ``fits``: True if the approval would succeed.
    - ``code`` and ``numbers``: the engine's reason; the code is empty if there is no reason.
    - ``sentence``: the result as text.

    The result of a quota change also has these numbers of GPUs:

    - ``capacity_gpus``: the GPUs of the model in the pool.
    - ``guaranteed_before_gpus`` and ``guaranteed_after_gpus``: guaranteed to all teams together.
    - ``free_before_gpus`` and ``free_after_gpus``: guaranteed to no team.
    - ``team_before_gpus`` and ``team_after_gpus``: guaranteed to the submission's team.
    - ``changes``: each value of the quota that changes, with its label, before and after.
    - ``others_gpus``: guaranteed to all other teams. ``most_gpus``: the largest possible guarantee of the
      team.

    The result of a reservation also has:

    - ``windows``: the first windows that fit, as pairs of start and end.
    - ``gpus``: the requested GPUs. ``capacity_gpus``: the GPUs of the requested models in the pool.
    - ``evicted``: the workloads that would be evicted if the reservation started now.
    - ``overlapping``: the other reservations of the pool in the requested window.

    A series and a change of a window have the same keys as a reservation, but ``evicted`` is always empty.
    If the request is no longer valid, ``gpus`` and ``capacity_gpus`` are missing.
    """
    with share_snapshots():
        return _approval_effect(submission, agreed_payload(submission, changes or {}), now)


def visible_effect(viewer: User, submission: Submission, now: datetime) -> dict[str, Any]:
    """Return the effect of an approval as the viewer may see it.

    Only finance and auditors see the budget and the spending of a cost centre.
    """
    effect, cost_centre = approval_effect(submission, now), submission.payload.get("cost_centre")
    is_hidden = submission.kind == Submission.Kind.BUDGET and not policy.sees_all_charges(viewer)
    if cost_centre and is_hidden:
        effect["sentence"] = budget_texts.FINANCE_COMPARES.format(cost_centre=cost_centre)
    return effect


def _approval_effect(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    if submission.kind == Submission.Kind.QUOTA_CHANGE:
        return effect_on_guarantees(submission, payload)
    if submission.kind == Submission.Kind.RESERVATION:
        return _effect_on_calendar(submission, payload, now)
    if submission.kind == Submission.Kind.SERIES:
        return _effect_of_series(submission, payload, now)
    if submission.kind == Submission.Kind.WINDOW_CHANGE:
        return _effect_of_change(submission, payload, now)
    if submission.kind == Submission.Kind.BUDGET:
        return _effect_on_budget(submission, payload, now)
    return {
        "fits": True,
        "code": "",
        "numbers": {},
        "sentence": calendar_pages.BECOMES_MEMBER.format(
            person=submission.author, role=payload["role"], team=submission.team
        ),
    }


def _effect_on_budget(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Return the effect of a requested budget. The sentence is about the present budget and its spending."""
    before = budget_before(submission.team, payload)
    status = None if before is None else budget_statuses([before], now)[before.pk]
    sentence = budget_texts.request_effect(budget_owner_name(submission.team, payload), payload, status)
    return {"fits": True, "code": "", "numbers": {}, "sentence": sentence}


def effect_on_guarantees(submission: Submission, payload: dict[str, Any]) -> dict[str, Any]:
    pool, model = pool_of_submission(submission), payload["model"]
    limits = scheduling.guarantee_capacity(pool=pool, model=model, team=submission.team)
    capacity, others = limits.capacity // SLOTS_PER_GPU, limits.others / SLOTS_PER_GPU
    present = present_values(submission.team, pool, model)
    own = present["guaranteed_gpus"]
    values = values_after(payload, present)
    asked = values["guaranteed_gpus"]
    before, after = others + own, others + asked
    fits = asked * SLOTS_PER_GPU <= limits.most
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
        "team_after_gpus": asked,
        "most_gpus": limits.most / SLOTS_PER_GPU,
        "others_gpus": others,
        "changes": quota_texts.changed_values(present, values),
    }
    words = request_texts.guarantee_effect(
        team=submission.team.name,
        pool=pool.name,
        model=model,
        asked=asked,
        most=limits.most / SLOTS_PER_GPU,
        capacity=capacity,
        others=others,
        own=own,
    )
    return {**effect, "sentence": words}


def _effect_on_calendar(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    pool = pool_of_submission(submission)
    try:
        request = reservation_request_of(submission, payload, now)
    except Invalid as problem:
        return _no_effect(problem.message)
    answer = scheduling.check_window(now=now, owner=submission.author, **request.columns)
    fits = calendar_pages.REQUEST_FITS.format(
        gpus=request.gpus, window=formatting.window(request.start, request.end)
    )
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "sentence": fits if answer.fits else reason_texts.reason_sentence(answer.code, dict(answer.numbers)),
        "windows": reservation_checks.alternative_windows_of(answer),
        "gpus": request.gpus,
        "capacity_gpus": _capacity(pool, payload.get("models") or []),
        "evicted": list(scheduling.evicted_by_reservation(now=now, **request.columns)),
        "overlapping": list(_overlapping(pool, request.start, request.end)),
    }


def _effect_of_series(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    try:
        request = series_request_of(submission, payload, now)
    except Invalid as problem:
        return _no_effect(problem.message)
    answers = scheduling.check_windows(now=now, owner=submission.author, **request.columns)
    place = recurring_reservations.first_unavailable_occurrence(answers)
    worst = answers[place or 0]
    fits = calendar_pages.SERIES_FITS.format(
        occurrences=len(answers), gpus=request.first.gpus, window=formatting.window(*request.windows[0])
    )
    return {
        "fits": place is None,
        "code": worst.code,
        "numbers": dict(worst.numbers),
        "sentence": fits
        if place is None
        else recurring_reservations.unavailable_occurrences_sentence(request, answers),
        "windows": reservation_checks.alternative_windows_of(worst),
        "gpus": request.first.gpus,
        "capacity_gpus": _capacity(request.first.pool, payload.get("models") or []),
        "evicted": [],
        "overlapping": list(
            _overlapping(request.first.pool, request.windows[0][0], request.windows[-1][1])[:50]
        ),
    }


def _effect_of_change(submission: Submission, payload: dict[str, Any], now: datetime) -> dict[str, Any]:
    row = reservation_to_change(submission)
    try:
        start, end = approved_changes.submitted_window(row, payload, now)
    except (Invalid, OperationRejected) as problem:
        return _no_effect(refusal_sentence(problem))
    answer = scheduling.check_change(row, start=start, end=end, now=now)
    fits = calendar_pages.CHANGE_FITS.format(
        old=formatting.window(row.start, row.end), new=formatting.window(start, end)
    )
    return {
        "fits": answer.fits,
        "code": answer.code,
        "numbers": dict(answer.numbers),
        "sentence": fits if answer.fits else reason_texts.reason_sentence(answer.code, dict(answer.numbers)),
        "windows": reservation_checks.alternative_windows_of(answer),
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
