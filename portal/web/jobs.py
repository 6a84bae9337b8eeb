"""Jobs: the list, and a job's page with its log, attempts, use, cost and what was decided about it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

from django.db.models import Q
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from portal import policy
from portal.models import User
from portal.selectors import arrays, use, work
from portal.selectors.work import Piece
from portal.services import workloads as verbs
from portal.templatetags.gpupool import duration, gpu_model, money, percent
from portal.web import attempts, home_cards, live
from portal.web.access import carry_out, found, signed_in, viewer
from portal.web.context import currency_of
from portal.web.work_actions import workload_of
from portal.web.work_lists import WorkloadFilters, ordered, page_of, workloads_csv
from portal.wording import ask_texts, expected_starts, reasons, work_states
from scheduler import logs
from scheduler.core.model import SLOT_SECONDS_OF_A_GPU_HOUR, WHOLE
from scheduler.models import Run, Workload, WorkloadKind
from scheduler.states import WorkloadState
from telemetry.core.money import rounded

ARRAY_LOSS = (
    "Every task that waits leaves the queue. "
    "What those that run did since their last checkpoint is lost; logs and files stay."
)
TAIL_BYTES = 64 * 1024
PART_BYTES = 128 * 1024
LAST_LINES = timedelta(seconds=30)  # after the end, in which the rest of a log still comes
BESIDE = {"tab": "work/workload_tabs.html", "side": "work/workload_side.html"}
TABS = (("log", "Log"), ("attempts", "Attempts"), ("use", "Use"), ("cost", "Cost"), ("decisions", "Decisions"))
BUCKET_WORDS = {
    "used": "Held by this workload",
    "reserved_unused": "Reserved, not used",
    "preempted": "Lost to a preemption, not charged",
    "hardware_lost": "Lost to hardware, not charged",
}


@signed_in
def jobs(request: HttpRequest) -> HttpResponseBase:
    """Every job the person may see, with filters, order, pages and CSV."""
    user, now = viewer(request), timezone.now()
    filters = WorkloadFilters(request.GET)
    chosen = filters.apply(work.listed(user, WorkloadKind.JOB), user)
    rows = ordered(chosen, request.GET.get("sort", ""))
    if request.GET.get("format") == "csv":
        return workloads_csv("jobs", rows, now)
    page = page_of(request, ordered(arrays.one_line_each(chosen), request.GET.get("sort", "")))
    drawn = rows_of(work.pieces(page.object_list, now), user, currency_of(request), now, in_one_line=True)
    context = {
        "filters": filters,
        "page": page,
        "rows": drawn,
        "borrowing": borrowing(drawn),
        "kind": "job",
        "may_launch": policy.launchable_projects(user).exists(),
    }
    return live.page(
        request, "work/jobs.html", "work/workload_rows.html", context, topics=[f"user:{user.pk}", "queue"], now=now
    )


@signed_in
def array(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """An array of jobs: its counts and its tasks."""
    user, now = viewer(request), timezone.now()
    shown = arrays.with_counts(policy.visible_arrays(user)).select_related("project__team", "pool", "owner")
    row = found(shown, "array of jobs", public_id=public_id)
    filters = WorkloadFilters(request.GET)
    tasks = filters.apply(work.listed(user, WorkloadKind.JOB).filter(array=row), user)
    page = page_of(request, tasks.order_by("array_index", "pk"))
    drawn = rows_of(work.pieces(page.object_list, now), user, currency_of(request), now)
    context = {
        "array": row,
        "counts": arrays.in_words(row),
        "filters": filters,
        "page": page,
        "rows": drawn,
        "borrowing": borrowing(drawn),
        "kind": "task",
        "cancel_url": reverse("array-cancel", args=[row.public_id]),
        "may_cancel": row.waiting + row.running > 0 and policy.may(user, "workload.change", row),
        "loss": ARRAY_LOSS,
    }
    return live.page(request, "work/array.html", "work/array_part.html", context, topics=["queue"], now=now)


@signed_in
@require_POST
def cancel_array(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Cancel every task that has not ended; without JavaScript the question is a page of its own."""
    user = viewer(request)
    row = found(policy.visible_arrays(user).select_related("project__team"), "array of jobs", public_id=public_id)
    address = reverse("array", args=[public_id])
    if not request.POST.get("confirmed"):
        context = {"title": f"Cancel all of {row.name}?", "text": ARRAY_LOSS, "label": "Cancel all", "back": address}
        return render(request, "work/question.html", context)
    return carry_out(
        request,
        lambda: verbs.cancel_array(actor=user, array=row, now=timezone.now()),
        done=f"The tasks of {row.name} that had not ended are cancelled.",
        to=address,
    )


@signed_in
def job(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """A job's card and its tabs; ``?tab=`` says which."""
    user, now = viewer(request), timezone.now()
    workload = workload_of(request, public_id)
    if workload.kind != WorkloadKind.JOB:
        return redirect("notebook", public_id=public_id)
    currency = currency_of(request)
    piece = work.pieces([workload], now)[0]
    context = {
        "workload": workload,
        "card": home_cards.whole_card(piece, user, currency, now),
        "steps": home_cards.step_line(piece) if workload.state in home_cards.BEFORE else None,
        "facts": facts_of(piece, user, now),
        "ended": home_cards.how_it_ended(piece, user),
        "relaunch_url": reverse("workload-relaunch", args=[workload.public_id]),
        "tabs": tabs_of(request, workload, piece, now),
        **tab_context(request, workload, piece, user, currency, now),
    }
    return live_page(request, "work/job.html", "work/job_part.html", context, workload, now)


def live_page(
    request: HttpRequest, template: str, part: str, context: Mapping[str, Any], workload: Workload, now: datetime
) -> HttpResponse:
    """A workload's page, or the ``?part=`` of it that is asked for: its tabs and its side are when it is placed, runs or ends."""
    beside = BESIDE.get(request.GET.get("part", ""))
    if beside is not None:
        return render(request, beside, {**context, "now": now})
    topics = [f"workload:{workload.public_id}", *(["queue"] if workload.kind == WorkloadKind.NOTEBOOK else [])]
    stage = f"{workload.state} {workload.attempt}"
    return live.page(request, template, part, context, topics=topics, now=now, stage=stage)


# -- the log -----------------------------------------------------------------------------------------------------------


@signed_in
def log(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """``?run=`` names the run. What came after byte ``?offset=``, to be added to the page; ``?download=1``: all of it."""
    workload = workload_of(request, public_id)
    policy.require(viewer(request), "workload.logs", workload)
    run = _run_of(request, workload)
    if run is None:
        raise Http404("This workload has no such run.")
    if request.GET.get("download"):
        return _whole_log(workload, run)
    offset = _number(request.GET.get("offset"))
    text, end = logs.read(run.public_id, offset, PART_BYTES)
    # A file shorter than what was shown has begun anew; the page is then made again whole.
    if end < offset:
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return render(request, "work/log_more.html", {"text": text, "log": _log_state(workload, run, end)})


def _whole_log(workload: Workload, run: Run) -> HttpResponseBase:
    written = logs.whole(run.public_id)
    if written is None:
        raise Http404("This run has written nothing.")
    name = f"{workload.public_id}-attempt-{run.attempt}-rank-{run.rank}.log"
    return FileResponse(BytesIO(written), as_attachment=True, filename=name, content_type="text/plain; charset=utf-8")


def _run_of(request: HttpRequest, workload: Workload) -> Run | None:
    """The run that ``?run=`` names, else the first of the last attempt."""
    runs = workload.runs.select_related("host").order_by("-attempt", "rank")
    given = request.GET.get("run")
    if not given:
        return runs.first()
    try:
        return runs.filter(public_id=uuid.UUID(given)).first()
    except ValueError:
        return None


def _log_state(workload: Workload, run: Run, end: int) -> dict[str, Any]:
    base = reverse("job-log", args=[workload.public_id])
    return {
        "more_url": f"{base}?run={run.public_id}&offset={end}",
        "download_url": f"{base}?run={run.public_id}&download=1",
        "goes_on": run.ended_at is None or timezone.now() - run.ended_at < LAST_LINES,
        "connect": live.events_url([f"log:{run.public_id}"]),
        "end": end,
    }


def _number(given: str | None) -> int:
    return int(given) if given and given.isascii() and given.isdigit() and len(given) < 16 else 0


# -- the tabs ----------------------------------------------------------------------------------------------------------


def tabs_of(request: HttpRequest, workload: Workload, piece: Piece, now: datetime) -> list[dict[str, Any]]:
    """The tabs of a workload's page; each is an address."""
    current = _tab(request)
    return [
        {
            "label": label,
            "url": f"{request.path}?tab={name}",
            "current": name == current,
            "count": workload.attempt if name == "attempts" else None,
        }
        for name, label in TABS
    ]


def tab_context(
    request: HttpRequest, workload: Workload, piece: Piece, user: User, currency: str, now: datetime
) -> dict[str, Any]:
    """What the chosen tab shows. A refresh of the live part above it asks for none of this."""
    tab = _tab(request)
    context: dict[str, Any] = {"tab": tab}
    if request.GET.get("part") in ("live", "side"):
        return context
    if tab == "log":
        context |= _log_tab(request, workload, user)
    elif tab == "attempts":
        context["attempts"] = attempts.rows(piece, user)
    elif tab == "use":
        context |= _use_tab(workload, now)
    elif tab == "cost":
        context |= _cost_tab(workload, piece, currency)
    else:
        context["decisions"] = attempts.decisions(workload, user)
    return context | _refreshes(workload, context)


def _refreshes(workload: Workload, context: dict[str, Any]) -> dict[str, Any]:
    """When the tab is asked for again: with the next stage, and after so many seconds (0: never). A log that grows does so by
    itself, a chart stays to be read."""
    is_chart, is_log = bool(context.get("is_chart")), bool(context.get("log") or context.get("log_refused"))
    never = workload.state == WorkloadState.ENDED or is_chart or is_log
    return {"follows_stage": not is_chart, "refresh_every": 0 if never else 10}


def _tab(request: HttpRequest) -> str:
    given = request.GET.get("tab", "log")
    return given if given in dict(TABS) else "log"


def _log_tab(request: HttpRequest, workload: Workload, user: User) -> dict[str, Any]:
    if not policy.may(user, "workload.logs", workload):
        return {"log_refused": "Only its team, operators and auditors may read these logs."}
    run = _run_of(request, workload)
    if run is None:
        return {"log": None}
    text, end = logs.read(run.public_id, -TAIL_BYTES, TAIL_BYTES)
    state = _log_state(workload, run, end)
    runs = workload.runs.order_by("-attempt", "rank").select_related("host")[:20]
    choices = [
        {
            "label": f"Attempt {other.attempt}, {other.host.name}",
            "url": f"{request.path}?tab=log&run={other.public_id}",
            "current": other.pk == run.pk,
        }
        for other in runs
    ]
    note = (
        f"The last {TAIL_BYTES // 1024} kB; download it for the rest."
        if end > TAIL_BYTES
        else f"Attempt {run.attempt} on {run.host.name}"
    )
    return {"log": {**state, "text": text, "note": note}, "log_choices": choices if len(choices) > 1 else []}


def _use_tab(workload: Workload, now: datetime) -> dict[str, Any]:
    readings = use.hours_of(workload.pk, now)
    moments = [timezone.localtime(at) for at, _, _ in readings]
    figure = {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [f"{at:%Y-%m-%dT%H:%M}" for at in moments],
                "y": [None if share is None else round(share * 100, 1) for _, share, _ in readings],
                "name": "Utilisation",
                "meta": {"colour": "accent"},
            }
        ],
        "layout": {"yaxis": {"title": {"text": "% of the GPUs' time"}, "range": [0, 100]}},
    }
    table = {
        "caption": f"Utilisation of {workload.name}",
        "columns": [
            {"label": "Time"},
            {"label": "Utilisation", "numeric": True},
            {"label": "Memory at most, MiB", "numeric": True},
        ],
        "rows": [
            [f"{at:%d %b %H:%M}", percent(share), f"{memory:,}" if memory is not None else None]
            for at, (_, share, memory) in zip(moments, readings, strict=True)
        ],
    }
    measured = sum(share is not None for _, share, _ in readings)
    no_chart = (
        "The driver measures no utilisation of a slice of a GPU; its memory is known."
        if workload.profile != WHOLE
        else "A chart is drawn from the second reading on."
    )
    return {
        "is_chart": measured > 1, "figure": figure, "use_table": table if readings else None, "no_chart": no_chart,
    }  # fmt: skip


def _cost_tab(workload: Workload, piece: Piece, currency: str) -> dict[str, Any]:
    lines = use.charges_of(workload.pk)
    written = sum((Decimal(line["amount"]) for line in lines), Decimal(0))
    rows = [
        [
            f"{line['day']:%d %b %Y}",
            BUCKET_WORDS.get(line["bucket"], line["bucket"]) + (", taken back" if line["reversal"] else ""),
            gpu_model(line["model"]),
            _gpu_hours(line["slot_seconds"]),
            money(rounded(Decimal(line["amount"])), currency),
        ]
        for line in lines
    ]
    so_far = piece.cost if piece.cost is not None else rounded(written)
    table = {
        "caption": "Charges by day",
        "columns": [
            {"label": "Day"},
            {"label": "What"},
            {"label": "GPU"},
            {"label": "GPU-hours", "numeric": True},
            {"label": "Charged", "numeric": True},
        ],
        "rows": rows,
        "total": ["Total", "", "", "", money(rounded(written), currency)],
        "empty": "No charge has been written yet; the hour that runs is charged when it is over.",
    }
    readings = [
        {"label": "In all" if workload.state == WorkloadState.ENDED else "So far", "value": money(so_far, currency)},
        {"label": "Of it charged", "value": money(rounded(written), currency)},
    ]
    return {"cost_table": table, "cost_readings": readings + _prices_to_come(workload, piece, currency)}


def _prices_to_come(workload: Workload, piece: Piece, currency: str) -> list[dict[str, str]]:
    """By the hour, and the most that an attempt can cost; nothing is to come of what has ended, and of a slice that waits it is
    known once it has one."""
    if workload.state == WorkloadState.ENDED or piece.price_per_hour is None:
        return []
    most = money(rounded(piece.price_per_hour * workload.max_runtime_seconds / 3600), currency)
    return [
        {"label": "Per hour now" if piece.held else "Per hour, once it runs", "value": money(piece.price_per_hour, currency)},
        {"label": "At most", "value": most, "small": f"for {duration(workload.max_runtime_seconds)}"},
    ]


def _gpu_hours(slot_seconds: int) -> str:
    """A slice's minute is worth a figure too."""
    hours = slot_seconds / SLOT_SECONDS_OF_A_GPU_HOUR
    return f"{hours:,.2f}" if abs(hours) >= 1 else f"{hours:.4f}"


# -- shared with notebooks ---------------------------------------------------------------------------------------------


def facts_of(piece: Piece, user: User, now: datetime) -> list[dict[str, Any]]:
    """Key and value of a workload, for the side of its page."""
    workload = piece.workload
    facts: list[tuple[str, Any, str]] = [
        ("Owner", workload.owner.get_full_name() or workload.owner.get_username(), ""),
        ("Team", workload.project.team.name, reverse("team", args=[workload.project.team.slug])),
        ("Project", workload.project.name, ""),
        ("Pool", workload.pool.name, ""),
        ("Asked for", home_cards.asked(workload), ""),
        *([("Had", home_cards.holds(piece.had), "")] if piece.had else []),
        ("Type", workload.get_type_display().capitalize(), ""),
        ("Priority", workload.get_priority_display().capitalize(), ""),
        ("May be preempted", "yes, after a notice" if workload.preemptible else "no", ""),
        ("Longest runtime", duration(workload.max_runtime_seconds), ""),
    ]
    if workload.reservation:
        facts.append(
            ("Reservation", workload.reservation.name, reverse("reservation", args=[workload.reservation.public_id]))
        )
    facts += [(label, said, "") for label, said in ask_texts.placing_facts(workload)]
    if workload.wanted_by is not None:
        facts.append(("Wanted by", f"{timezone.localtime(workload.wanted_by):%d %b %Y %H:%M}", ""))
    facts += _after_facts(workload, user)
    if workload.array is not None:
        whole = reverse("array", args=[workload.array.public_id])
        facts.append(("Array", f"{workload.array.name}, task {workload.array_index}", whole))
    if workload.hosts > 1:
        facts.append(("If it ends on one host", workload.get_if_member_ends_display(), ""))
    if workload.most_retries:
        facts.append(("Retries", f"{workload.failures} of {workload.most_retries} used", ""))
    facts.append(("Submitted", f"{timezone.localtime(workload.submitted_at):%d %b %Y %H:%M:%S}", ""))
    for unit in piece.held:
        facts.append((f"GPU {unit.gpu} of {unit.host}", unit.uuid, reverse("host", args=[unit.host])))
    return [{"label": label, "value": value, "url": url} for label, value, url in facts]


def _after_facts(workload: Workload, user: User) -> list[tuple[str, Any, str]]:
    """What it waits or waited for, and what waits for it, as far as the viewer may see it."""
    seen = policy.visible_workloads(user)
    before = workload.dependencies.filter(Q(on__in=seen) | Q(on_array__in=policy.visible_arrays(user)))
    before = before.select_related("on", "on_array").order_by("on_id", "on_array_id")
    behind = workload.dependents.filter(settled_at=None, workload__in=seen).select_related("workload")
    behind = behind.order_by("workload_id")[:20]
    facts = []
    for each in before:
        how = reasons.CONDITIONS[each.condition]
        if each.on is not None:
            facts.append(("After", f"{each.on.name} has {how}", home_cards.page_of(each.on)))
        elif each.on_array is not None:
            words = f"every task of {each.on_array.name} has {'ended, not all finished' if each.condition == 'not_ok' else how}"
            facts.append(("After", words, reverse("array", args=[each.on_array.public_id])))
    return facts + [("Waited for by", each.workload.name, home_cards.page_of(each.workload)) for each in behind]


def rows_of(
    pieces: list[Piece], user: User, currency: str, now: datetime, *, in_one_line: bool = False
) -> list[dict[str, Any]]:
    """Rows of a list of notebooks or jobs; ``in_one_line``: a task stands for its whole array."""
    wholes = arrays.wholes_of((piece.workload for piece in pieces), now) if in_one_line else {}
    rows = []
    for piece in pieces:
        whole = wholes.get(piece.workload.array_id or 0)
        rows.append(_row(piece, user, currency, now) if whole is None else _array_row(whole, piece, currency, now))
    return rows


def borrowing(rows: list[dict[str, Any]]) -> list[str]:
    """What the tags of borrowed work mean, each sentence once."""
    return list(dict.fromkeys(row["borrowed"] for row in rows if row["borrowed"]))


def _row(piece: Piece, user: User, currency: str, now: datetime) -> dict[str, Any]:
    workload = piece.workload
    state = home_cards.shown_state(workload)
    return {
        "workload": workload,
        "url": home_cards.page_of(workload),
        "state": state,
        "word": home_cards.state_word(piece, user) if state != "idle" else "Idle",
        "what": home_cards.holds(piece.held or piece.had) or home_cards.asked(workload),
        "where": home_cards.where(piece.held),
        "borrowed": home_cards.borrowed(piece),
        "simulated": piece.simulated,
        "use_text": percent(piece.use.latest) if piece.held else "",
        "time": _time_of(piece, now),
        "cost": _cost_of(piece, currency),
        "actions": home_cards.actions(piece, user, small=True) if _may_act(workload, user) else [],
    }


def _array_row(whole: arrays.Whole, piece: Piece, currency: str, now: datetime) -> dict[str, Any]:
    """The line of an array: what its tasks hold, how long it takes and what it costs, all of them together."""
    row = whole.row
    held = home_cards.counted_units(whole.held)
    return {
        "workload": piece.workload,
        "array": {"name": row.name, "words": arrays.in_words(row)},
        "url": reverse("array", args=[row.public_id]),
        "state": whole.state,
        "word": work_states.array_state(row),
        "what": held or f"{home_cards.asked(piece.workload)}, each task",
        "where": "in all" if held else "",
        "borrowed": home_cards.borrowed(piece),
        "simulated": piece.simulated or whole.simulated,
        "use_text": percent(whole.use) if held else "",
        "time": _time_of_array(row, now),
        "cost": money(whole.cost, currency) if whole.cost is not None else "–",
        "actions": [],
    }


def _time_of_array(row: Any, now: datetime) -> str:
    """From the start of its first task to the end of its last; before that, when it is expected to begin."""
    if row.waiting + row.running == 0:
        return "did not run" if row.began is None else f"took {duration(row.over - row.began)}"
    if row.began is not None:
        return f"began {duration(now - row.began)} ago"
    if row.expected is not None:
        return f"starts {expected_starts.likely_start(row.expected, None, now)}"
    return "starts" if row.waits_since is None else f"waits {duration(now - row.waits_since)}"


def _may_act(workload: Workload, user: User) -> bool:
    """Whether to offer buttons in a list. The service decides; a list asks no query per row."""
    return workload.owner_id == user.pk and not user.auditor


def _cost_of(piece: Piece, currency: str) -> str:
    if piece.workload.state == WorkloadState.ENDED:
        return home_cards.cost_in_the_end(piece, currency)
    return money(piece.cost, currency) if piece.cost is not None else "–"


def _time_of(piece: Piece, now: datetime) -> str:
    workload = piece.workload
    if workload.state == WorkloadState.QUEUED:
        return (
            f"starts {expected_starts.likely_start(workload.expected_start, piece.likely, now)}"
            if workload.expected_start
            else f"waits {duration(now - workload.queued_at)}"
        )
    if workload.state == WorkloadState.ENDED:
        ran = home_cards.ran_for(piece)
        return ran if ran == "did not run" else f"ran {ran}"
    end = piece.ends_at
    return f"{duration(end - now)} left" if end is not None and end > now else "ends now"
