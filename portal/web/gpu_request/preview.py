"""What a request would get, before it is sent: free GPUs over the range, blocks with their fix, price, quota, CLI and API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.utils import timezone

from portal.errors import Conflict, Invalid, NotAllowed, PlannerBudgetExceeded, ServiceError
from portal.models import User
from portal.planner_budget import metered_planning
from portal.reads.work.team_summaries import QuotaUsage, quota_usages
from portal.services.calendar import recurring_reservations, reservation_preview
from portal.services.work import workload_preview
from portal.templatetags.gpupool import duration, gpu_model, grouped, money
from portal.web.gpu_request.forms import FIELD_FOR_ARGUMENT, SIZE_FIELDS, GpuRequestForm, size_text
from portal.web.work.queue import request_form_query
from portal.web.work.workload_card import gpu_count_text
from portal.wording import equivalent_commands as same_request
from portal.wording import expected_start_texts, formatting, reason_texts
from scheduler.core.model.slots import WHOLE_GPU_PROFILE
from scheduler.core.what_if.alternatives import Alternative
from scheduler.cycle.request_snapshot_cache import share_snapshots
from scheduler.models import JobArray, Pool
from scheduler.reads import capacity as engine
from telemetry import reads as telemetry
from telemetry.models import BudgetMeasure
from telemetry.money.billing_months import month_of

WORKING_HOURS = range(8, 20)
CHART_SPANS = (timedelta(hours=48), timedelta(days=7), timedelta(days=28))
CHART_STEPS = 48
PLACEMENT_ARGUMENTS = (
    "nvlink",
    "labels_required",
    "labels_preferred",
    *(argument for argument, _, _ in SIZE_FIELDS.values()),
)
JOB_PLACEMENT_ARGUMENTS = ("hosts", *PLACEMENT_ARGUMENTS, "spread")
CHART_HEIGHT, CHART_TOP, CHART_BASE = 148, 24, 128


def preview_context(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    """Context of work/ask_preview.html. A form that is not filled in yet, or is refused, previews what it can."""
    try:
        with share_snapshots(), metered_planning(user, now):
            return _preview(form, user, now)
    except PlannerBudgetExceeded as refusal:  # the form can be sent all the same
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
        named = {FIELD_FOR_ARGUMENT.get(name, name): message for name, message in refusal.fields.items()}
        return context | _blocked_preview(form, user, now, list(named.values()), set(named))
    except (Conflict, NotAllowed) as refusal:
        return context | _blocked_preview(form, user, now, [refusal.message], set())
    start, end = _chart_range(form, now)
    context["chart"] = _chart(pool, model, profile, form.cleaned_data["units"], start, end, now)
    context["same"] = equivalent_commands(form)
    return context


# -- what is refused as it stands --------------------------------------------------------------------------------------


def _blocked_preview(
    form: GpuRequestForm, user: User, now: datetime, problems: list[str], fields: set[str]
) -> dict[str, Any]:
    """Why, and all the same what is free of the model it names; where the start is wrong, the first that would do."""
    windows = _windows_from_now(form, user, now) if "start" in fields else []
    blocks: list[dict[str, Any]] = [{"text": text} for text in problems]
    if blocks and windows:
        blocks[-1]["fix"] = windows[0]
    context: dict[str, Any] = {"blocks": blocks, "windows": windows}
    if form.cleaned_data.get("target") is not None:
        pool, model, profile = form.cleaned_data["target"]
        start, end = _chart_range(form, now)
        context["chart"] = _chart(pool, model, profile, form.cleaned_data.get("units") or 0, start, end, now)
        context["room"] = _free_now_note(form, windows[0]["start"] if windows else None, now)
    return context


def _windows_from_now(form: GpuRequestForm, user: User, now: datetime) -> list[dict[str, Any]]:
    """The first windows that fit what it asks for, whatever is wrong with its start; none where more than that is wrong."""
    data = form.cleaned_data
    if form.selected_kind != "reservation" or None in map(
        data.get, ("target", "project", "units", "seconds")
    ):
        return []
    try:
        found = reservation_preview.first_fitting_windows(
            actor=user, now=now, length=timedelta(seconds=data["seconds"]), **form.window_search_arguments()
        )
    except (ServiceError, OverflowError):
        return []
    return [_window(first, last) for first, last in found]


def _free_now_note(form: GpuRequestForm, start: datetime | None, now: datetime) -> str:
    """Why a window can be had although fewer GPUs are free right now; empty where that is no question."""
    pool, model, profile = form.cleaned_data["target"]
    asked = form.cleaned_data.get("units") or 0
    line = next(
        (line for line in form.lines if (line.pool, line.model, line.profile) == (pool, model, profile)), None
    )
    if line is None or start is None or line.free >= asked:
        return ""
    free = "none is" if line.free == 0 else "1 is" if line.free == 1 else f"{line.free} are"
    return (
        f"Right now {free} free. A reservation counts what is free by its start: work that ends until then and work on"
        " borrowed GPUs, which is told and makes room."
    )


# -- a reservation -----------------------------------------------------------------------------------------------------


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
        "price": _price_lines(
            form,
            answer,
            answer["price"],
            f"{duration(end - start)} × {money(answer['price_per_hour'], answer['currency'])}",
            end - start,
            now,
        ),
        "quota": _quota_bar(form, quota_usages(uses, arguments["pool"]), answer["gpus"]),
    }
    fix = context["windows"][0] if context["windows"] else None
    context["room"] = _free_now_note(form, start if answer["fits"] else fix and fix["start"], now)
    if not answer["fits"]:
        context["blocks"] = [
            {"text": reason_texts.reason_sentence(answer["code"], answer["numbers"], user), "fix": fix}
        ]
    return context


def _series_preview(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    """All occurrences together; which one is in the way."""
    arguments = form.for_series()
    arguments.pop("why")
    arguments["name"] = arguments["name"] or "preview"
    answer = recurring_reservations.preview_series(actor=user, now=now, **arguments)
    times = f"{answer['occurrences']} occurrences, {formatting.weekdays(arguments['weekdays'])}."
    length = arguments["end"] - arguments["start"]
    hourly = money(answer["price_per_hour"], answer["currency"])
    return {
        "price": _price_lines(
            form,
            answer,
            answer["price"],
            f"{answer['occurrences']} × {duration(length)} × {hourly}",
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
    idle = f"If nothing runs in it for {duration(pool.no_show_seconds)} it is released."
    if local.hour not in WORKING_HOURS:
        return [f"It starts outside working hours, at {local:%H:%M}. {idle}"]
    if timezone.localtime(end).date() != local.date():
        return [f"It runs overnight. {idle}"]
    return []


def _window(start: datetime, end: datetime) -> dict[str, Any]:
    return {"start": start, "end": end, "value": f"{timezone.localtime(start):%Y-%m-%dT%H:%M}"}


# -- a notebook or job -------------------------------------------------------------------------------------------------


def _workload_preview(form: GpuRequestForm, user: User, now: datetime) -> dict[str, Any]:
    kind = form.selected_kind
    arguments = form.for_notebook() if kind == "notebook" else form.for_job()
    arguments["name"] = arguments["name"] or "preview"
    if kind == "job":
        arguments["command"] = arguments["command"] or "true"
    answer = workload_preview.preview_workload(actor=user, now=now, kind=kind, **arguments)
    seconds = form.cleaned_data["seconds"]
    text = f"up to {duration(seconds)} × {money(answer['price_per_hour'], answer['currency'])}"
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
        "price": _price_lines(form, answer, answer["longest_cost"], text, timedelta(seconds=seconds), now),
        "quota": _quota_bar(form, quota_usages(answer["quota_effect"], arguments["pool"]), answer["gpus"]),
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
        text = f"It would wait, and nothing known now would start it. {context['reason']}"
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


# -- shared ------------------------------------------------------------------------------------------------------------


def _form_errors(form: GpuRequestForm) -> list[str]:
    return [str(message) for messages in form.errors.values() for message in messages]


def _chart_range(form: GpuRequestForm, now: datetime) -> tuple[datetime, datetime]:
    """The range that the chart marks; of a form that is not filled in yet, as much of it as there is."""
    length = timedelta(seconds=min(form.cleaned_data.get("seconds") or 3600, 60 * 86_400))
    start = form.cleaned_data.get("start")
    if form.selected_kind == "reservation" and start is not None:
        start = min(max(start, now - timedelta(days=1)), now + timedelta(days=366))
        return start, start + length
    return now, now + length


def _price_lines(
    form: GpuRequestForm,
    answer: dict[str, Any],
    total: Decimal | None,
    how: str,
    length: timedelta,
    now: datetime,
) -> dict[str, Any]:
    """What it costs, and what that leaves of the team's budgets of this month; no line for a budget that nobody set."""
    known = answer["price_per_hour"] is not None
    gpus = gpu_count_text(answer["gpus"])
    month, team = month_of(now), form.selected_project.team_id
    budget = telemetry.find_budget_status(month, now, team=team)
    left = None if budget is None or total is None else budget.left - total
    hours = telemetry.find_budget_status(month, now, team=team, measure=BudgetMeasure.GPU_HOURS)
    hours_left = None if hours is None else float(hours.left) - answer["gpus"] * length.total_seconds() / 3600
    return {
        "total": money(total, answer["currency"]),
        "how": f"{gpus} GPU{'s' if gpus != '1' else ''}, {how}"
        if known
        else "No price is set for this model.",
        "known": known,
        "left": None if left is None else money(left, answer["currency"]),
        "over": left is not None and left < 0,
        "hours_left": None if hours_left is None else grouped(hours_left, 1),
        "hours_over": hours_left is not None and hours_left < 0,
    }


def _quota_bar(form: GpuRequestForm, lines: list[QuotaUsage], gpus: float) -> dict[str, Any] | None:
    """The team's guarantee of the model it asks for, and this on top of what it holds now (a reservation: at its time, by itself).

    None where the pool is the team's own.
    """
    _, model, _ = form.cleaned_data["target"]
    team = form.selected_project.team
    line = next((line for line in lines if line.model == model), lines[0] if len(lines) == 1 else None)
    if line is None:
        return None
    later = form.selected_kind == "reservation"
    held = 0.0 if later else line.held
    limit = None if line.borrow_limit is None else line.guaranteed + line.borrow_limit
    return {
        "team": team,
        "later": later,
        "model": gpu_model(line.model),
        "held": f"{gpu_count_text(held)} of {gpu_count_text(line.guaranteed)}",
        "after": f"{gpu_count_text(held + gpus)} of {gpu_count_text(line.guaranteed)}",
        "scale": max(held + gpus, line.guaranteed, limit or 0, 1),
        "used": min(held, line.guaranteed),
        "borrowed": max(0.0, held - line.guaranteed),
        "forecast": gpus,
        "mark": line.guaranteed,
        "words": _quota_sentence(held + gpus, line.guaranteed, limit, team.name, later)
        if later or _may_borrow(form) or held + gpus <= line.guaranteed
        else f"{gpu_count_text(held + gpus - line.guaranteed)} above the guarantee; what is not preemptible may not borrow.",
    }


def _may_borrow(form: GpuRequestForm) -> bool:
    return form.selected_kind == "job" and bool(form.cleaned_data["preemptible"])


def _quota_sentence(after: float, guaranteed: float, limit: float | None, team: str, later: bool) -> str:
    if after <= guaranteed:
        return "Within the guarantee: other teams can't take it back."
    if limit is not None and after > limit:
        words = f"Above the {gpu_count_text(limit)} that {team} may hold of this model"
        return f"{words}: an operator has to agree." if later else f"{words}."
    if later:
        return f"{gpu_count_text(after - guaranteed)} above what {team} is guaranteed. What is promised is not called back."
    return f"{gpu_count_text(after - guaranteed)} above the guarantee are borrowed and may be called back."


@dataclass(frozen=True)
class EquivalentCommands:
    """The same request elsewhere."""

    cli: str
    api: str


def equivalent_commands(form: GpuRequestForm) -> EquivalentCommands:
    """As a line of the command line and as a call of the API."""
    kind = form.selected_kind
    pool, model, profile = form.cleaned_data["target"]
    data = form.cleaned_data
    arguments: dict[str, Any] = {
        "project": f"{form.selected_project.team.slug}/{form.selected_project.slug}",
        "pool": pool.slug,
        "name": data["name"],
        "units": data["units"],
        "models": form.common()["models"],
        "profile": profile,
    }
    if kind == "reservation":
        whole = form.for_reservation()
        arguments |= {
            "start": whole["start"].astimezone(UTC),
            "end": whole["end"].astimezone(UTC),
            "why": data["why"],
        }
        arguments |= _non_default_arguments(whole, ("may_exceed_guarantee", *JOB_PLACEMENT_ARGUMENTS))
    elif kind == "notebook":
        arguments |= {"type": data["type"], "max_runtime_seconds": data["seconds"]} | _non_default_arguments(
            form.placing(), PLACEMENT_ARGUMENTS
        )
    else:
        whole = form.for_job()
        names = (
            *JOB_PLACEMENT_ARGUMENTS,
            "type",
            "priority",
            "preemptible",
            "max_runtime_seconds",
            "most_retries",
            "if_member_ends",
            "environment",
            "wanted_by",
            "command",
        )
        arguments |= _non_default_arguments(whole, names)
        arguments["array"] = data["array"].strip()
        arguments["after"] = [
            {"condition": how, "array" if isinstance(on, JobArray) else "workload": str(on.public_id)}
            for how, on in whole["after"]
        ]
    if form.recurs:
        arguments |= {name: form.for_series()[name] for name in ("weekdays", "until", "time_zone")}
        arguments["until"] = f"{arguments['until']:%Y-%m-%d}" if arguments["until"] else ""
    verb = {
        "reservation": "request_series" if form.recurs else "request_reservation",
        "notebook": "launch_notebook",
        "job": "submit_array" if arguments.get("array") else "submit_job",
    }[kind]
    given = {name: value for name, value in arguments.items() if value not in ("", [], {}, None)}
    in_words = given
    if "after" in given:
        in_words = given | {
            "after": [
                f"{each['condition']}:{each.get('array') or each['workload']}" for each in given["after"]
            ]
        }
    if "max_runtime_seconds" in given:
        in_words = in_words | {"max_runtime_seconds": _cli_duration(given["max_runtime_seconds"])}
    sizes = {argument: name for name, (argument, _, _) in SIZE_FIELDS.items() if argument in given}
    in_words = in_words | {argument: size_text(name, given[argument]) for argument, name in sizes.items()}
    return EquivalentCommands(
        same_request.cli_command(verb, in_words),
        same_request.curl_command(verb, given, base=settings.GPUPOOL_PORTAL_URL),
    )


def _non_default_arguments(arguments: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Those of ``names`` that are not what they would be without being said."""
    defaults = {
        "may_exceed_guarantee": False,
        "hosts": 1,
        "nvlink": False,
        "spread": False,
        **{argument: 0 for argument, _, _ in SIZE_FIELDS.values()},
        "most_retries": 0,
        "if_member_ends": "restart",
    }
    empty: tuple[Any, ...] = (None, {})
    return {n: arguments[n] for n in names if arguments[n] not in empty and arguments[n] != defaults.get(n)}


def _cli_duration(seconds: int) -> str:
    """As the command line takes it: 4h, 90m, 75s."""
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


# -- the chart ---------------------------------------------------------------------------------------------------------


def _chart(
    pool: Pool, model: str, profile: str, asked: int, start: datetime, end: datetime, now: datetime
) -> dict[str, Any] | None:
    """Units that could still be promised, over the range and around it, as rectangles in per cent and pixels."""
    if not model:
        return None
    from_, span = _chart_span(start, end, now)
    step = span / CHART_STEPS
    seconds = int(step.total_seconds())
    free = engine.promisable_units(
        pool, model=model, profile=profile, start=from_, end=from_ + span, step_seconds=seconds, now=now
    )
    most = max([count for _, count in free] + [asked, 1])
    scale = (CHART_BASE - CHART_TOP) / most
    bars = _bars(free, asked, start, end, step, scale)
    in_range = [count for at, count in free if _overlaps(at, step, start, end)]
    return {
        "title": f"{gpu_model(model)}{', ' + profile if profile != WHOLE_GPU_PROFILE else ''} free, {_span_text(span)}",
        "label": _chart_description(model, in_range, asked, start, end),
        "bars": bars,
        "texts": [_bar_label(bar) for bar in bars if bar["steps"] >= 3],
        "ask_y": round(CHART_BASE - asked * scale, 1),
        "asked": asked,
        "height": CHART_HEIGHT,
        "base": CHART_BASE,
        "nights": _nights(from_, span),
        "ticks": _ticks(from_, span),
        "range": _range_mark(from_, span, start, end),
        "least": min(in_range, default=None),
        "most": max(in_range, default=None),
        "now": now,
    }


def _chart_span(start: datetime, end: datetime, now: datetime) -> tuple[datetime, timedelta]:
    hour = now.replace(minute=0, second=0, microsecond=0)
    first = (
        hour
        if start - hour < CHART_SPANS[0] / 2
        else start.replace(minute=0, second=0, microsecond=0) - timedelta(hours=12)
    )
    first = max(first, hour)
    span = next((span for span in CHART_SPANS if first + span >= end), CHART_SPANS[-1])
    return first, span


def _overlaps(at: int, step: timedelta, start: datetime, end: datetime) -> bool:
    begin = datetime.fromtimestamp(at, UTC)
    return begin < end and begin + step > start


def _bars(
    free: list[tuple[int, int]], asked: int, start: datetime, end: datetime, step: timedelta, scale: float
) -> list[dict[str, Any]]:
    """One rectangle for each stretch in which the count stays the same, in or out of the range."""
    bars: list[dict[str, Any]] = []
    for place, (at, count) in enumerate(free):
        inside = _overlaps(at, step, start, end)
        kind = "free-short" if inside and count < asked else "free-range" if inside else "free-enough"
        if bars and (bars[-1]["count"], bars[-1]["kind"]) == (count, kind):
            bars[-1]["steps"] += 1
            bars[-1]["width"] = f"{bars[-1]['steps'] * 100 / CHART_STEPS:.3f}"
            continue
        height = round(count * scale, 1)
        bars.append(
            {
                "x": f"{place * 100 / CHART_STEPS:.3f}",
                "width": f"{100 / CHART_STEPS:.3f}",
                "y": round(CHART_BASE - height, 1),
                "height": height,
                "kind": kind,
                "count": count,
                "place": place,
                "steps": 1,
            }
        )
    return bars


def _bar_label(bar: dict[str, Any]) -> dict[str, Any]:
    """The number over a bar that is wide enough for it."""
    middle = (bar["place"] + bar["steps"] / 2) * 100 / CHART_STEPS
    return {
        "x": f"{middle:.3f}",
        "y": max(20, bar["y"] - 4),
        "text": bar["count"],
        "bad": bar["kind"] == "free-short",
    }


def _nights(first: datetime, span: timedelta) -> list[dict[str, str]]:
    if span > timedelta(days=8):
        return []
    day = timezone.localtime(first).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    found = []
    while day < first + span:
        left = max(0.0, (day + timedelta(hours=20) - first) / span)
        right = min(1.0, (day + timedelta(hours=32) - first) / span)
        if right > left:
            found.append({"x": f"{left * 100:.3f}", "width": f"{(right - left) * 100:.3f}"})
        day += timedelta(days=1)
    return found


def _ticks(first: datetime, span: timedelta) -> list[dict[str, Any]]:
    step = (
        timedelta(hours=12)
        if span <= timedelta(days=2)
        else timedelta(days=1)
        if span <= timedelta(days=7)
        else timedelta(days=7)
    )
    at = timezone.localtime(first).replace(hour=0, minute=0, second=0, microsecond=0)
    ticks = [{"x": "0.000", "text": f"{timezone.localtime(first):%H:%M}", "anchor": ""}]
    while at < first + span:
        share = (at - first) / span
        if 0.1 < share < 0.97:
            text = f"{at:%H:%M}" if at.hour else f"{at:%a} {at.day}"
            ticks.append({"x": f"{share * 100:.3f}", "text": text, "anchor": "anchor-middle"})
        at += step
    return ticks


def _range_mark(first: datetime, span: timedelta, start: datetime, end: datetime) -> dict[str, str]:
    left = min(1.0, max(0.0, (start - first) / span))
    right = min(1.0, max(left, (end - first) / span))
    return {
        "x": f"{left * 100:.3f}",
        "width": f"{(right - left) * 100:.3f}",
        "text": f"Your {duration(end - start)}",
    }


def _span_text(span: timedelta) -> str:
    return "next 48 h" if span == CHART_SPANS[0] else f"{span.days} days"


def _chart_description(model: str, in_range: list[int], asked: int, start: datetime, end: datetime) -> str:
    if not in_range:
        return f"{gpu_model(model)} units free; your range lies outside the chart."
    return (
        f"{gpu_model(model)} units free: in your range of {duration(end - start)} at least {min(in_range)} and at most "
        f"{max(in_range)}; you ask for {asked}."
    )
