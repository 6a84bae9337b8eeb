"""Preview a request before it is submitted.

The preview shows free GPUs, problems and how to fix them, the price, the quota, and equivalent commands.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from portal.errors import SERVICE_REFUSALS, Invalid, NotAllowed, PlannerBudgetExceeded
from portal.models import User
from portal.planner_budget import metered_planning
from portal.reads.work.team_summaries import quota_usages
from portal.services.calendar import recurring_reservations, reservation_preview
from portal.services.work import workload_preview
from portal.web.components.quantities import money, short_duration
from portal.web.gpu_request.equivalent_calls import equivalent_commands
from portal.web.gpu_request.field_values import FIELD_FOR_ARGUMENT
from portal.web.gpu_request.forms import GpuRequestForm
from portal.web.gpu_request.free_chart import WORKING_HOURS, free_units_chart
from portal.web.gpu_request.price_and_quota import price_lines, quota_bar
from portal.web.work.explanation import request_form_query
from portal.wording import expected_start_texts, formatting, reason_texts
from portal.wording.pages import request_pages
from portal.wording.refusal_texts import refusal_sentence
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.rejection import OperationRejected
from scheduler.core.what_if.alternatives import Alternative
from scheduler.cycle.request_snapshot_cache import share_snapshots
from scheduler.models import Pool
from scheduler.reads import capacity as engine


def preview_context(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    """Return the context of work/ask_preview.html. An incomplete form gets a partial preview."""
    try:
        with share_snapshots(), metered_planning(user, now):
            return _preview(form, user, now)
    except PlannerBudgetExceeded as refusal:  # the form can still be submitted
        return {"now": now, "kind": form.selected_kind, "warnings": [{"text": refusal.message}]}


def _preview(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    context: dict[str, Any] = {
        "now": now,
        "kind": form.selected_kind,
        "blocks": [],
        "warnings": [],
        "windows": [],
    }
    if not form.is_valid():
        return context | _blocked_preview(form, user, now, _form_errors(form), set(form.errors))
    pool, model, profile = form.cleaned_data["target"]
    try:
        if form.recurs:
            context |= _series_preview(form, user, now)
        elif form.selected_kind == "reservation":
            context |= _reservation_preview(form, user, now)
        else:
            context |= _workload_preview(form, user, now)
    except Invalid as refusal:
        errors = {FIELD_FOR_ARGUMENT.get(name, name): message for name, message in refusal.fields.items()}
        return context | _blocked_preview(form, user, now, list(errors.values()), set(errors))
    except (NotAllowed, OperationRejected) as refusal:
        return context | _blocked_preview(form, user, now, [refusal_sentence(refusal)], set())
    if form.selected_kind == "reservation":
        start, end = _chart_range(form, now)
        context["chart"] = free_units_chart(
            pool, model, profile, form.cleaned_data["units"], start, end, now, fits=context["fits"]
        )
    context["same"] = equivalent_commands(form)
    return context


# -- rejected requests ---------------------------------------------------------------------------------------


def _blocked_preview(
    form: GpuRequestForm, user: User, now: datetime, problems: list[str], fields: set[str]
) -> dict[str, Any]:
    """Return the preview of a request with problems: the problems and, for a reservation, the free GPUs.

    ``fields`` are the fields with problems. If the start is one of them, offer the first window that fits.
    """
    windows = _windows_from_now(form, user, now) if "start" in fields else []
    blocks: list[dict[str, Any]] = [{"text": text} for text in problems]
    if blocks and windows:
        blocks[-1]["fix"] = windows[0]
    context: dict[str, Any] = {"blocks": blocks, "windows": windows}
    if form.selected_kind == "reservation" and form.cleaned_data.get("target") is not None:
        pool, model, profile = form.cleaned_data["target"]
        start, end = _chart_range(form, now)
        context["chart"] = free_units_chart(
            pool, model, profile, form.cleaned_data.get("units") or 0, start, end, now, fits=False
        )
        context["room"] = _free_now_note(form, windows[0]["start"] if windows else None, now)
    return context


def _windows_from_now(form: GpuRequestForm, user: User, now: datetime) -> list[dict[str, Any]]:
    """Return the first windows from now on that fit the request.

    Return [] if the search is not possible, because a field other than the start is invalid.
    """
    data = form.cleaned_data
    if form.selected_kind != "reservation" or None in map(
        data.get, ("target", "project", "units", "seconds")
    ):
        return []
    try:
        windows = reservation_preview.first_fitting_windows(
            actor=user, now=now, length=timedelta(seconds=data["seconds"]), **form.window_search_arguments()
        )
    except (*SERVICE_REFUSALS, OverflowError):
        return []
    return [_window(first, last) for first, last in windows]


def _free_now_note(form: GpuRequestForm, start: datetime | None, now: datetime) -> str:
    """Return a note about the free GPUs if fewer are free now than the form requests; "" otherwise."""
    pool, model, profile = form.cleaned_data["target"]
    asked = form.cleaned_data.get("units") or 0
    line = next(
        (line for line in form.lines if (line.pool, line.model, line.profile) == (pool, model, profile)), None
    )
    if line is None or start is None or line.free >= asked:
        return ""
    free = "none is" if line.free == 0 else "1 is" if line.free == 1 else f"{line.free} are"
    return request_pages.FREE_NOW_NOTE.format(free=free)


# -- a reservation -------------------------------------------------------------------------------------------


def _reservation_preview(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    arguments = form.for_reservation()
    arguments.pop("why")
    arguments["name"] = arguments["name"] or "preview"
    answer = reservation_preview.preview_reservation(actor=user, now=now, **arguments)
    uses = engine.quota_use(team=form.selected_project.team.pk, pool=arguments["pool"].pk, now=now)
    start, end = arguments["start"], arguments["end"]
    context: dict[str, Any] = {
        "fits": answer["fits"],
        "needs_approval": answer["needs_approval"] and answer["fits"],
        "warnings": [
            {"text": text}
            for text in [*answer["warnings"], *_working_hours_warnings(start, end, arguments["pool"])]
        ],
        "windows": [_window(first, last) for first, last in answer["windows"]],
        "price": price_lines(
            form,
            answer,
            answer["price"],
            f"{short_duration(end - start)} × {money(answer['price_per_hour'], answer['currency'])}",
            end - start,
            now,
        ),
        "quota": quota_bar(
            form, quota_usages(uses, arguments["pool"]), answer, held=answer["promised_slots"] / SLOTS_PER_GPU
        ),
    }
    fix = context["windows"][0] if context["windows"] else None
    context["room"] = _free_now_note(form, start if answer["fits"] else fix and fix["start"], now)
    if not answer["fits"]:
        context["blocks"] = [
            {"text": reason_texts.reason_sentence(answer["code"], answer["numbers"], user), "fix": fix}
        ]
    return context


def _series_preview(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    """Return the preview of a recurring reservation.

    If an occurrence does not fit, ``blocks`` contains the reason for the first of them.
    """
    arguments = form.for_series()
    arguments.pop("why")
    arguments["name"] = arguments["name"] or "preview"
    answer = recurring_reservations.preview_series(actor=user, now=now, **arguments)
    times = f"{answer['occurrences']} occurrences, {formatting.weekdays(arguments['weekdays'])}."
    length = arguments["end"] - arguments["start"]
    hourly = money(answer["price_per_hour"], answer["currency"])
    return {
        "price": price_lines(
            form,
            answer,
            answer["price"],
            f"{answer['occurrences']} × {short_duration(length)} × {hourly}",
            length * answer["occurrences"],
            now,
        ),
        "fits": answer["fits"],
        "needs_approval": answer["needs_approval"] and answer["fits"],
        "room": times,
        "warnings": [{"text": text} for text in answer["clock_changes"]],
        "blocks": [] if answer["fits"] else [{"text": answer["sentence"]}],
    }


def _working_hours_warnings(start: datetime, end: datetime, pool: Pool) -> list[str]:
    local = timezone.localtime(start)
    idle = request_pages.RELEASED_IF_IDLE.format(limit=short_duration(pool.no_show_seconds))
    if local.hour not in WORKING_HOURS:
        return [request_pages.OUTSIDE_WORKING_HOURS.format(start=local, release=idle)]
    if timezone.localtime(end).date() != local.date():
        return [request_pages.OVERNIGHT.format(release=idle)]
    return []


def _window(start: datetime, end: datetime) -> dict[str, Any]:
    return {"start": start, "end": end, "value": f"{timezone.localtime(start):%Y-%m-%dT%H:%M}"}


# -- a notebook or job ---------------------------------------------------------------------------------------


def _workload_preview(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    kind = form.selected_kind
    arguments = form.arguments()
    arguments["name"] = arguments["name"] or "preview"
    if kind == "job":
        arguments["command"] = arguments["command"] or "true"
    answer = workload_preview.preview_workload(actor=user, now=now, kind=kind, **arguments)
    seconds = form.cleaned_data["seconds"]
    text = f"up to {short_duration(seconds)} × {money(answer['price_per_hour'], answer['currency'])}"
    if answer["price_factor"] != 1:
        text += request_pages.WITH_PRICE_FACTOR.format(factor=f"{answer['price_factor'].normalize():f}")
    context: dict[str, Any] = {
        "fits": answer["starts_now"],
        "starts_now": answer["starts_now"],
        "expected_start": answer["expected_start"],
        "likely": expected_start_texts.expected_start_text(answer["expected_start"], answer["likely"], now),
        "record": expected_start_texts.forecast_accuracy_text(answer["past_starts"])
        if answer["past_starts"]
        else "",
        "sooner": [_alternative_choice(other, arguments["pool"], now) for other in answer["sooner"]],
        "reason": reason_texts.reason_sentence(answer["code"], answer["numbers"], user),
        "price": price_lines(form, answer, answer["longest_cost"], text, timedelta(seconds=seconds), now),
        "quota": quota_bar(form, quota_usages(answer["quota_effect"], arguments["pool"]), answer),
    }
    also = [{"text": text} for text in filter(None, [answer["wish"], *answer["warnings"]])]
    context["warnings"] = also
    if answer["never"]:
        block = {
            "text": reason_texts.never_starts_sentence(answer["never"].code, answer["never"].numbers, user)
        }
        return context | (
            {"warnings": [block, *also]} if answer["never"].may_be_granted else {"blocks": [block]}
        )
    if not answer["starts_now"] and answer["expected_start"] is None:
        text = request_pages.NO_KNOWN_START.format(reason=context["reason"])
        context["warnings"] = [{"text": text}, *also]
    return context


def _alternative_choice(other: Alternative, pool: Pool, now: datetime) -> dict[str, Any]:
    start = None if other.expected_start is None else datetime.fromtimestamp(other.expected_start, UTC)
    starts = expected_start_texts.expected_start_text(start, None, now)
    value = request_form_query(other, pool.slug)
    return {
        "label": expected_start_texts.alternative_request_text(other),
        "now": other.starts_now,
        "starts": starts,
        "value": value,
    }


# -- shared --------------------------------------------------------------------------------------------------


def _form_errors(form: GpuRequestForm) -> list[str]:
    """Return the messages of all field errors."""
    return [str(message) for messages in form.errors.values() for message in messages]


def _chart_range(form: GpuRequestForm, now: datetime) -> tuple[datetime, datetime]:
    """Return (start, end) of the window that the chart marks.

    A form without a duration gets one hour. A form without a start gets a window that starts now.
    """
    length = timedelta(seconds=min(form.cleaned_data.get("seconds") or 3600, 60 * 86_400))
    start = form.cleaned_data.get("start")
    if start is not None:
        start = min(max(start, now - timedelta(days=1)), now + timedelta(days=366))
        return start, start + length
    return now, now + length
