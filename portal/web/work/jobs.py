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
from portal.reads.money import cost_totals
from portal.reads.work import job_arrays, utilisation, workload_details
from portal.reads.work.workload_details import WorkloadDetails
from portal.services.work import workload_changes
from portal.templatetags.gpupool import duration, gpu_model, money, percent
from portal.web.page import live_refresh
from portal.web.page.access import current_user, get_visible_or_404, run_and_redirect, sign_in_required
from portal.web.page.context_processors import current_currency
from portal.web.work import attempts, workload_card
from portal.web.work.workload_actions import get_workload_or_404
from portal.web.work.workload_lists import WorkloadFilterForm, paginate, sort_workloads, workloads_csv
from portal.wording import expected_start_texts, reason_texts, request_texts, state_labels
from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR, WHOLE_GPU_PROFILE
from scheduler.models import Run, Workload, WorkloadKind
from scheduler.runs import logs
from scheduler.state.states import WorkloadState
from telemetry.core.amounts import round_amount

ARRAY_CANCEL_WARNING = (
    "Every task that waits leaves the queue. "
    "What those that run did since their last checkpoint is lost; logs and files stay."
)
LOG_TAIL_BYTES = 64 * 1024
LOG_CHUNK_BYTES = 128 * 1024
LOG_DRAIN_PERIOD = timedelta(seconds=30)  # after the end, in which the rest of a log still comes
PART_TEMPLATES = {"tab": "work/workload_tabs.html", "side": "work/workload_side.html"}
TABS = (
    ("log", "Log"),
    ("attempts", "Attempts"),
    ("use", "Use"),
    ("cost", "Cost"),
    ("decisions", "Decisions"),
)
BUCKET_LABELS = {
    "used": "Held by this workload",
    "reserved_unused": "Reserved, not used",
    "preempted": "Lost to a preemption, not charged",
    "hardware_lost": "Lost to hardware, not charged",
}


@sign_in_required
def jobs(request: HttpRequest) -> HttpResponseBase:
    """Every job the person may see, with filters, order, pages and CSV."""
    user, now = current_user(request), timezone.now()
    filters = WorkloadFilterForm(request.GET)
    chosen = filters.apply(workload_details.visible_of_kind(user, WorkloadKind.JOB), user)
    rows = sort_workloads(chosen, request.GET.get("sort", ""))
    if request.GET.get("format") == "csv":
        return workloads_csv("jobs", rows, now)
    page = paginate(
        request, sort_workloads(job_arrays.first_open_task_only(chosen), request.GET.get("sort", ""))
    )
    drawn = list_rows(
        workload_details.workload_details(page.object_list, now),
        user,
        current_currency(request),
        now,
        in_one_line=True,
    )
    context = {
        "filters": filters,
        "page": page,
        "rows": drawn,
        "borrowing": borrowing_notes(drawn),
        "kind": "job",
        "may_launch": policy.launchable_projects(user).exists(),
    }
    return live_refresh.render_live_page(
        request,
        "work/jobs.html",
        "work/workload_rows.html",
        context,
        topics=[f"user:{user.pk}", "queue"],
        now=now,
    )


@sign_in_required
def array(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """An array of jobs: its counts and its tasks."""
    user, now = current_user(request), timezone.now()
    shown = job_arrays.with_task_counts(policy.visible_arrays(user)).select_related(
        "project__team", "pool", "owner"
    )
    row = get_visible_or_404(shown, "array of jobs", public_id=public_id)
    filters = WorkloadFilterForm(request.GET)
    tasks = filters.apply(workload_details.visible_of_kind(user, WorkloadKind.JOB).filter(array=row), user)
    page = paginate(request, tasks.order_by("array_index", "pk"))
    drawn = list_rows(
        workload_details.workload_details(page.object_list, now), user, current_currency(request), now
    )
    context = {
        "array": row,
        "counts": job_arrays.array_summary(row),
        "filters": filters,
        "page": page,
        "rows": drawn,
        "borrowing": borrowing_notes(drawn),
        "kind": "task",
        "cancel_url": reverse("array-cancel", args=[row.public_id]),
        "may_cancel": row.waiting + row.running > 0 and policy.may(user, "workload.change", row),
        "loss": ARRAY_CANCEL_WARNING,
    }
    return live_refresh.render_live_page(
        request, "work/array.html", "work/array_part.html", context, topics=["queue"], now=now
    )


@sign_in_required
@require_POST
def cancel_array(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """Cancel every task that has not ended; without JavaScript the question is a page of its own."""
    user = current_user(request)
    row = get_visible_or_404(
        policy.visible_arrays(user).select_related("project__team"), "array of jobs", public_id=public_id
    )
    address = reverse("array", args=[public_id])
    if not request.POST.get("confirmed"):
        context = {
            "title": f"Cancel all of {row.name}?",
            "text": ARRAY_CANCEL_WARNING,
            "label": "Cancel all",
            "back": address,
        }
        return render(request, "work/question.html", context)
    return run_and_redirect(
        request,
        lambda: workload_changes.cancel_array(actor=user, array=row, now=timezone.now()),
        done=f"The tasks of {row.name} that had not ended are cancelled.",
        to=address,
    )


@sign_in_required
def job(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """A job's card and its tabs; ``?tab=`` says which."""
    user, now = current_user(request), timezone.now()
    workload = get_workload_or_404(request, public_id)
    if workload.kind != WorkloadKind.JOB:
        return redirect("notebook", public_id=public_id)
    currency = current_currency(request)
    piece = workload_details.workload_details([workload], now)[0]
    context = {
        "workload": workload,
        "card": workload_card.build_page_card(piece, user, currency, now),
        "steps": workload_card.startup_steps(piece)
        if workload.state in workload_card.STARTING_STATES
        else None,
        "facts": workload_facts(piece, user, now),
        "ended": workload_card.outcome_sentence(piece, user),
        "relaunch_url": reverse("workload-relaunch", args=[workload.public_id]),
        "tabs": tab_links(request, workload, piece, now),
        **workload_tab_context(request, workload, piece, user, currency, now),
    }
    return render_workload_page(request, "work/job.html", "work/job_part.html", context, workload, now)


def render_workload_page(
    request: HttpRequest,
    template: str,
    part: str,
    context: Mapping[str, Any],
    workload: Workload,
    now: datetime,
) -> HttpResponse:
    """A workload's page, or the ``?part=`` of it that is asked for: its tabs and its side are when it is placed, runs or ends."""
    beside = PART_TEMPLATES.get(request.GET.get("part", ""))
    if beside is not None:
        return render(request, beside, {**context, "now": now})
    topics = [
        f"workload:{workload.public_id}",
        *(["queue"] if workload.kind == WorkloadKind.NOTEBOOK else []),
    ]
    stage = f"{workload.state} {workload.attempt}"
    return live_refresh.render_live_page(
        request, template, part, context, topics=topics, now=now, stage=stage
    )


# -- the log -----------------------------------------------------------------------------------------------------------


@sign_in_required
def log(request: HttpRequest, public_id: uuid.UUID) -> HttpResponseBase:
    """``?run=`` names the run. What came after byte ``?offset=``, to be added to the page; ``?download=1``: all of it."""
    workload = get_workload_or_404(request, public_id)
    policy.require(current_user(request), "workload.logs", workload)
    run = _requested_run(request, workload)
    if run is None:
        raise Http404("This workload has no such run.")
    if request.GET.get("download"):
        return _download_log(workload, run)
    offset = _parse_offset(request.GET.get("offset"))
    text, end = logs.read_log(run.public_id, offset, LOG_CHUNK_BYTES)
    # A file shorter than what was shown has begun anew; the page is then made again whole.
    if end < offset:
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return render(request, "work/log_more.html", {"text": text, "log": _log_state(workload, run, end)})


def _download_log(workload: Workload, run: Run) -> HttpResponseBase:
    written = logs.read_whole_log(run.public_id)
    if written is None:
        raise Http404("This run has written nothing.")
    name = f"{workload.public_id}-attempt-{run.attempt}-rank-{run.rank}.log"
    return FileResponse(
        BytesIO(written), as_attachment=True, filename=name, content_type="text/plain; charset=utf-8"
    )


def _requested_run(request: HttpRequest, workload: Workload) -> Run | None:
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
        "goes_on": run.ended_at is None or timezone.now() - run.ended_at < LOG_DRAIN_PERIOD,
        "connect": live_refresh.events_url([f"log:{run.public_id}"]),
        "end": end,
    }


def _parse_offset(given: str | None) -> int:
    return int(given) if given and given.isascii() and given.isdigit() and len(given) < 16 else 0


# -- the tabs ----------------------------------------------------------------------------------------------------------


def tab_links(
    request: HttpRequest, workload: Workload, piece: WorkloadDetails, now: datetime
) -> list[dict[str, Any]]:
    """The tabs of a workload's page; each is an address."""
    current = _current_tab(request)
    return [
        {
            "label": label,
            "url": f"{request.path}?tab={name}",
            "current": name == current,
            "count": workload.attempt if name == "attempts" else None,
        }
        for name, label in TABS
    ]


def workload_tab_context(
    request: HttpRequest, workload: Workload, piece: WorkloadDetails, user: User, currency: str, now: datetime
) -> dict[str, Any]:
    """What the chosen tab shows. A refresh of the live part above it asks for none of this."""
    tab = _current_tab(request)
    context: dict[str, Any] = {"tab": tab}
    if request.GET.get("part") in ("live", "side"):
        return context
    if tab == "log":
        context |= _log_tab(request, workload, user)
    elif tab == "attempts":
        context["attempts"] = attempts.attempt_rows(piece, user)
    elif tab == "use":
        context |= _use_tab(workload, now)
    elif tab == "cost":
        context |= _cost_tab(workload, piece, currency)
    else:
        context["decisions"] = attempts.decision_rows(workload, user)
    return context | _tab_refresh(workload, context)


def _tab_refresh(workload: Workload, context: dict[str, Any]) -> dict[str, Any]:
    """When the tab is asked for again: with the next stage, and after so many seconds (0: never). A log that grows does so by
    itself, a chart stays to be read."""
    is_chart, is_log = bool(context.get("is_chart")), bool(context.get("log") or context.get("log_refused"))
    never = workload.state == WorkloadState.ENDED or is_chart or is_log
    return {"follows_stage": not is_chart, "refresh_every": 0 if never else 10}


def _current_tab(request: HttpRequest) -> str:
    given = request.GET.get("tab", "log")
    return given if given in dict(TABS) else "log"


def _log_tab(request: HttpRequest, workload: Workload, user: User) -> dict[str, Any]:
    if not policy.may(user, "workload.logs", workload):
        return {"log_refused": "Only its team, operators and auditors may read these logs."}
    run = _requested_run(request, workload)
    if run is None:
        return {"log": None}
    text, end = logs.read_log(run.public_id, -LOG_TAIL_BYTES, LOG_TAIL_BYTES)
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
        f"The last {LOG_TAIL_BYTES // 1024} kB; download it for the rest."
        if end > LOG_TAIL_BYTES
        else f"Attempt {run.attempt} on {run.host.name}"
    )
    return {"log": {**state, "text": text, "note": note}, "log_choices": choices if len(choices) > 1 else []}


def _use_tab(workload: Workload, now: datetime) -> dict[str, Any]:
    readings = utilisation.utilisation_history(workload.pk, now)
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
        if workload.profile != WHOLE_GPU_PROFILE
        else "A chart is drawn from the second reading on."
    )
    return {
        "is_chart": measured > 1,
        "figure": figure,
        "use_table": table if readings else None,
        "no_chart": no_chart,
    }


def _cost_tab(workload: Workload, piece: WorkloadDetails, currency: str) -> dict[str, Any]:
    lines = cost_totals.charge_lines_of(workload.pk)
    written = sum((Decimal(line["amount"]) for line in lines), Decimal(0))
    rows = [
        [
            f"{line['day']:%d %b %Y}",
            BUCKET_LABELS.get(line["bucket"], line["bucket"]) + (", taken back" if line["reversal"] else ""),
            gpu_model(line["model"]),
            _gpu_hours_figure(line["slot_seconds"]),
            money(round_amount(Decimal(line["amount"])), currency),
        ]
        for line in lines
    ]
    so_far = piece.cost if piece.cost is not None else round_amount(written)
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
        "total": ["Total", "", "", "", money(round_amount(written), currency)],
        "empty": "No charge has been written yet; the hour that runs is charged when it is over.",
    }
    readings = [
        {
            "label": "In all" if workload.state == WorkloadState.ENDED else "So far",
            "value": money(so_far, currency),
        },
        {"label": "Of it charged", "value": money(round_amount(written), currency)},
    ]
    return {"cost_table": table, "cost_readings": readings + _price_readings(workload, piece, currency)}


def _price_readings(workload: Workload, piece: WorkloadDetails, currency: str) -> list[dict[str, str]]:
    """By the hour, and the most that an attempt can cost; nothing is to come of what has ended, and of a slice that waits it is
    known once it has one."""
    if workload.state == WorkloadState.ENDED or piece.price_per_hour is None:
        return []
    most = money(round_amount(piece.price_per_hour * workload.max_runtime_seconds / 3600), currency)
    return [
        {
            "label": "Per hour now" if piece.held else "Per hour, once it runs",
            "value": money(piece.price_per_hour, currency),
        },
        {"label": "At most", "value": most, "small": f"for {duration(workload.max_runtime_seconds)}"},
    ]


def _gpu_hours_figure(slot_seconds: int) -> str:
    """A slice's minute is worth a figure too."""
    hours = slot_seconds / SLOT_SECONDS_PER_GPU_HOUR
    return f"{hours:,.2f}" if abs(hours) >= 1 else f"{hours:.4f}"


# -- shared with notebooks ---------------------------------------------------------------------------------------------


def workload_facts(piece: WorkloadDetails, user: User, now: datetime) -> list[dict[str, Any]]:
    """Key and value of a workload, for the side of its page."""
    workload = piece.workload
    facts: list[tuple[str, Any, str]] = [
        ("Owner", workload.owner.get_full_name() or workload.owner.get_username(), ""),
        ("Team", workload.project.team.name, reverse("team", args=[workload.project.team.slug])),
        ("Project", workload.project.name, ""),
        ("Pool", workload.pool.name, ""),
        ("Asked for", workload_card.requested_units_text(workload), ""),
        *([("Had", workload_card.held_units_text(piece.had), "")] if piece.had else []),
        ("Type", workload.get_type_display().capitalize(), ""),
        ("Priority", workload.get_priority_display().capitalize(), ""),
        ("May be preempted", "yes, after a notice" if workload.preemptible else "no", ""),
        ("Longest runtime", duration(workload.max_runtime_seconds), ""),
    ]
    if workload.reservation:
        facts.append(
            (
                "Reservation",
                workload.reservation.name,
                reverse("reservation", args=[workload.reservation.public_id]),
            )
        )
    facts += [(label, said, "") for label, said in request_texts.placement_rows(workload)]
    if workload.wanted_by is not None:
        facts.append(("Wanted by", f"{timezone.localtime(workload.wanted_by):%d %b %Y %H:%M}", ""))
    facts += _dependency_facts(workload, user)
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


def _dependency_facts(workload: Workload, user: User) -> list[tuple[str, Any, str]]:
    """What it waits or waited for, and what waits for it, as far as the viewer may see it."""
    seen = policy.visible_workloads(user)
    before = workload.dependencies.filter(Q(on__in=seen) | Q(on_array__in=policy.visible_arrays(user)))
    before = before.select_related("on", "on_array").order_by("on_id", "on_array_id")
    behind = workload.dependents.filter(settled_at=None, workload__in=seen).select_related("workload")
    behind = behind.order_by("workload_id")[:20]
    facts = []
    for each in before:
        how = reason_texts.CONDITIONS[each.condition]
        if each.on is not None:
            facts.append(("After", f"{each.on.name} has {how}", workload_card.workload_url(each.on)))
        elif each.on_array is not None:
            words = f"every task of {each.on_array.name} has {'ended, not all finished' if each.condition == 'not_ok' else how}"
            facts.append(("After", words, reverse("array", args=[each.on_array.public_id])))
    return facts + [
        ("Waited for by", each.workload.name, workload_card.workload_url(each.workload)) for each in behind
    ]


def list_rows(
    pieces: list[WorkloadDetails], user: User, currency: str, now: datetime, *, in_one_line: bool = False
) -> list[dict[str, Any]]:
    """Rows of a list of notebooks or jobs; ``in_one_line``: a task stands for its whole array."""
    wholes = job_arrays.array_totals((piece.workload for piece in pieces), now) if in_one_line else {}
    rows = []
    for piece in pieces:
        whole = wholes.get(piece.workload.array_id or 0)
        rows.append(
            _workload_row(piece, user, currency, now)
            if whole is None
            else _array_row(whole, piece, currency, now)
        )
    return rows


def borrowing_notes(rows: list[dict[str, Any]]) -> list[str]:
    """What the tags of borrowed work mean, each sentence once."""
    return list(dict.fromkeys(row["borrowed"] for row in rows if row["borrowed"]))


def _workload_row(piece: WorkloadDetails, user: User, currency: str, now: datetime) -> dict[str, Any]:
    workload = piece.workload
    state = workload_card.displayed_state(workload)
    return {
        "workload": workload,
        "url": workload_card.workload_url(workload),
        "state": state,
        "word": workload_card.state_label(piece, user) if state != "idle" else "Idle",
        "what": workload_card.held_units_text(piece.held or piece.had)
        or workload_card.requested_units_text(workload),
        "where": workload_card.location_text(piece.held),
        "borrowed": workload_card.borrowing_notice(piece),
        "simulated": piece.simulated,
        "use_text": percent(piece.use.latest) if piece.held else "",
        "time": _time_text(piece, now),
        "cost": _cost_text(piece, currency),
        "actions": workload_card.workload_buttons(piece, user, small=True)
        if _offers_buttons(workload, user)
        else [],
    }


def _array_row(
    whole: job_arrays.JobArrayTotals, piece: WorkloadDetails, currency: str, now: datetime
) -> dict[str, Any]:
    """The line of an array: what its tasks hold, how long it takes and what it costs, all of them together."""
    row = whole.row
    held = workload_card.units_text(whole.held)
    return {
        "workload": piece.workload,
        "array": {"name": row.name, "words": job_arrays.array_summary(row)},
        "url": reverse("array", args=[row.public_id]),
        "state": whole.state,
        "word": state_labels.array_state_label(row),
        "what": held or f"{workload_card.requested_units_text(piece.workload)}, each task",
        "where": "in all" if held else "",
        "borrowed": workload_card.borrowing_notice(piece),
        "simulated": piece.simulated or whole.simulated,
        "use_text": percent(whole.use) if held else "",
        "time": _array_time(row, now),
        "cost": money(whole.cost, currency) if whole.cost is not None else "–",
        "actions": [],
    }


def _array_time(row: Any, now: datetime) -> str:
    """From the start of its first task to the end of its last; before that, when it is expected to begin."""
    if row.waiting + row.running == 0:
        return "did not run" if row.began is None else f"took {duration(row.over - row.began)}"
    if row.began is not None:
        return f"began {duration(now - row.began)} ago"
    if row.expected is not None:
        return f"starts {expected_start_texts.expected_start_text(row.expected, None, now)}"
    return "starts" if row.waits_since is None else f"waits {duration(now - row.waits_since)}"


def _offers_buttons(workload: Workload, user: User) -> bool:
    """Whether to offer buttons in a list. The service decides; a list asks no query per row."""
    return workload.owner_id == user.pk and not user.auditor


def _cost_text(piece: WorkloadDetails, currency: str) -> str:
    if piece.workload.state == WorkloadState.ENDED:
        return workload_card.final_cost_text(piece, currency)
    return money(piece.cost, currency) if piece.cost is not None else "–"


def _time_text(piece: WorkloadDetails, now: datetime) -> str:
    workload = piece.workload
    if workload.state == WorkloadState.QUEUED:
        return (
            f"starts {expected_start_texts.expected_start_text(workload.expected_start, piece.likely, now)}"
            if workload.expected_start
            else f"waits {duration(now - workload.queued_at)}"
        )
    if workload.state == WorkloadState.ENDED:
        ran = workload_card.run_time_text(piece)
        return ran if ran == "did not run" else f"ran {ran}"
    end = piece.ends_at
    return f"{duration(end - now)} left" if end is not None and end > now else "ends now"
