"""The queue: what waits and runs that one may see, why it waits, and why others go first."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from portal import policy
from portal.errors import PlannerBudgetExceeded
from portal.models import User
from portal.planner_budget import metered_planning
from portal.reads.work import expected_starts, wait_explanation
from portal.reads.work import queue as reads
from portal.reads.work.workload_details import filter_by_text
from portal.templatetags.gpupool import duration, gpu_model, grouped, percent
from portal.web.gpu_request.forms import parse_uuid
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.access import get_visible_or_404 as found_row
from portal.web.work import workload_card
from portal.web.work.workload_actions import get_workload_or_404
from portal.web.work.workload_lists import csv_response, paginate
from portal.wording import expected_start_texts, formatting, queue_order_texts, reason_texts
from scheduler.core.what_if.alternatives import Alternative, ChangedField
from scheduler.models import Workload, WorkloadKind
from scheduler.state.states import WorkloadState

MAX_ALTERNATIVES_ON_CARD = 3  # alternatives; all of them stand on the page that says why

# Short words for the filter; the sentences with their numbers stand in the rows.
REASON_LABELS = {
    "waits_for_units": "Waits for GPUs",
    "waits_for_eviction": "Room is being made",
    "behind_others": "Behind others",
    "over_quota": "Over quota",
    "behind_own_team": "Behind its team",
    "over_user_cap": "Over the person's limit",
    "budget_closed": "Budget used up",
    "held_for_reservation": "Held for a reservation",
    "held_for_maintenance": "Held for maintenance",
    "reservation_not_started": "Reservation has not begun",
}


class QueueFilterForm(forms.Form):
    model = forms.ChoiceField(required=False, label="Model")
    kind = forms.ChoiceField(required=False, label="Kind", choices=[("", "Any kind"), *WorkloadKind.choices])
    reason = forms.ChoiceField(required=False, label="Reason")
    find = forms.CharField(required=False, max_length=100, label="Workload, person or team")
    show = forms.CharField(required=False, widget=forms.HiddenInput)
    whose = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: dict[str, Any] = self.fields
        fields["model"].choices = [("", "Any model"), *((m, gpu_model(m)) for m in reads.models_in_use(user))]
        fields["reason"].choices = [
            ("", "Any reason"),
            *((code, _reason_label(code)) for code in reads.reason_codes(user)),
        ]

    def apply(self, rows: Any, user: User) -> Any:
        """``rows`` that the filters let through."""
        self.is_valid()
        chosen = self.cleaned_data
        if chosen.get("model"):
            rows = rows.filter(models_wanted__contains=[chosen["model"]])
        if chosen.get("kind"):
            rows = rows.filter(kind=chosen["kind"])
        if chosen.get("reason"):
            rows = rows.filter(reason_code=chosen["reason"])
        if chosen.get("find"):
            rows = filter_by_text(rows, chosen["find"])
        if chosen.get("whose") == "team":
            rows = rows.filter(project__team__memberships__user=user)
        elif chosen.get("whose") == "mine":
            rows = rows.filter(owner=user)
        return rows


@sign_in_required
def queue(request: HttpRequest) -> HttpResponseBase:
    """``?show=running`` for what runs; ``?open=`` unfolds one row; filters, pages and CSV as in every list."""
    user, now = current_user(request), timezone.now()
    shows_running = request.GET.get("show") == "running"
    filters = QueueFilterForm(request.GET, user=user)
    rows = filters.apply(
        reads.running_workloads(user) if shows_running else reads.waiting_workloads(user), user
    )
    if request.GET.get("format") == "csv":
        return _queue_csv(rows, user, now)
    page = paginate(request, rows)
    totals = reads.queue_totals(user)
    seen = reads.visible_counts(user)
    sees_all = policy.sees_all_teams(user)
    opened = parse_uuid(request.GET.get("open", ""))
    told = expected_starts.start_records_for(page.object_list, now)
    drawn = [
        _queue_row(request, workload, user, now, told, workload.public_id == opened)
        for workload in page.object_list
    ]
    context = {
        "filters": filters,
        "page": page,
        "rows": drawn,
        "totals": totals,
        "counts": _totals_text(totals, None if sees_all else seen["waiting"]["all"]),
        "hidden": totals.waiting - seen["waiting"]["all"],
        "shows_running": shows_running,
        "sees_all": sees_all,
        "shows": [
            {
                "label": f"Waiting {seen['waiting']['all']}",
                "url": _url_with(request, show=None),
                "current": not shows_running,
            },
            {
                "label": f"Running {seen['running']['all']}",
                "url": _url_with(request, show="running"),
                "current": shows_running,
            },
        ],
        "whose": _owner_choices(request, seen["running" if shows_running else "waiting"]),
        "several_pools": len({workload.pool_id for workload in page.object_list}) > 1,
        "pools": [
            {"pool": pool, "record": expected_start_texts.forecast_accuracy_text(told.past(pool.pk))}
            for pool in {workload.pool_id: workload.pool for workload in page.object_list}.values()
        ],
        "filtered": any(request.GET.get(name) for name in ("model", "kind", "reason", "find", "whose")),
    }
    return live_refresh.render_live_page(
        request, "work/queue.html", "work/queue_part.html", context, topics=["queue"], now=now
    )


@sign_in_required
def faster_alternatives(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """The line of a card that says what would start sooner; asked for by itself, since it has to be planned."""
    now = timezone.now()
    workload = get_workload_or_404(request, public_id)
    with metered_planning(current_user(request), now):
        found = wait_explanation.faster_requests(workload, now)[:MAX_ALTERNATIVES_ON_CARD]
    return render(request, "work/sooner.html", {"sooner": alternative_rows(workload, found, now)})


@sign_in_required
def compare_turns(request: HttpRequest, public_id: uuid.UUID, other: uuid.UUID) -> HttpResponse:
    """Why another workload goes first, or went: the rule that decides between the two, with its numbers."""
    user, now = current_user(request), timezone.now()
    mine, theirs = get_workload_or_404(request, public_id), get_workload_or_404(request, other)
    with metered_planning(user, now):
        found = wait_explanation.compare_in_queue(mine, theirs, now)
    context = {
        "mine": mine,
        "theirs": theirs,
        "sides": [
            _compared_workload("The other", theirs, now),
            _compared_workload("Yours" if mine.owner_id == user.pk else "This one", mine, now),
        ],
        "rule": queue_order_texts.queue_order_sentence(found.rule, found.numbers) if found else "",
        "not_compared": "" if found else queue_order_texts.not_comparable(mine, theirs),
        "without": queue_order_texts.start_without_other(
            mine.name,
            theirs.name,
            ""
            if found.without_starts
            else reason_texts.reason_sentence(found.without_code, found.without_numbers, user),
        )
        if found
        else "",
    }
    return render(request, "work/why_them.html", context)


@sign_in_required
def fair_share_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Why does that team get more? Guarantee, use, share and what is borrowed, of every team of a pool."""
    user, now = current_user(request), timezone.now()
    pool = found_row(policy.visible_pools(user), "pool", slug=slug)
    mine = set(policy.my_team_ids(user).values_list("team_id", flat=True))
    with metered_planning(user, now):
        rows = wait_explanation.fair_share_rows(pool, mine, now)
    context = {"pool": pool, "rows": fair_share_rows(rows), "half_life": duration(pool.half_life_seconds)}
    return live_refresh.render_live_page(
        request, "work/fairness.html", "work/fairness_part.html", context, topics=["queue"], now=now
    )


def explanation_columns(
    workload: Workload, found: wait_explanation.WaitExplanation, user: User, now: datetime
) -> dict[str, Any]:
    """The three columns below a row: blockers and who goes first, what would start sooner, fairness."""
    return {
        "blockers": [_blocker_row(workload, blocker, user, now) for blocker in found.blockers],
        "ahead": [
            {
                "name": row.workload.name,
                "url": workload_card.workload_url(row.workload),
                "team": row.workload.project.team,
                "because": queue_order_texts.earlier_because(row.part, row.earlier, row.shorter),
                "why_url": reverse("why-them", args=[workload.public_id, row.workload.public_id]),
            }
            for row in found.ahead
        ],
        "ahead_more": found.ahead_more,
        "sooner": alternative_rows(workload, found.sooner, now),
        "windows": [_window_row(other) for other in found.windows],
        "window_needs": _reservation_note(found.windows),
        # Who gets how much is no answer to what nobody's share stands in the way of.
        "fairness": [] if found.never and not found.never.may_be_granted else fair_share_rows(found.fairness),
        "them": bool(found.blockers or found.ahead or found.ahead_more),
        "half_life": duration(workload.pool.half_life_seconds),
    }


def fair_share_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As they are shown: GPUs and GPU-hours as words."""
    return [
        {
            **row,
            "guaranteed": workload_card.gpu_count_text(row["guaranteed"]),
            "held": workload_card.gpu_count_text(row["held"]),
            "borrowed": workload_card.gpu_count_text(row["borrowed"]),
            "waiting": workload_card.gpu_count_text(row["waiting"]),
            "gpu_hours": grouped(row["gpu_hours"]),
            "share": percent(row["share"]),
            "fair_share": percent(row["fair_share"]),
            "ratio": "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
        }
        for row in rows
    ]


def _compared_workload(whose: str, workload: Workload, now: datetime) -> dict[str, Any]:
    """What the rules look at in one of two workloads."""
    waits = workload.state == WorkloadState.QUEUED
    return {
        "whose": whose,
        "workload": workload,
        "url": workload_card.workload_url(workload),
        "state": workload_card.displayed_state(workload),
        "facts": [
            ("Asks for", workload_card.requested_units_text(workload)),
            ("Priority", formatting.PRIORITY_WORDS[workload.priority]),
            ("Asked", formatting.date_and_time(workload.submitted_at)),
            ("Expected to run", duration(workload.predicted_seconds)),
            ("May be preempted", "yes" if workload.preemptible else "no"),
            ("Place", str(workload.position or "–") if waits else "has its GPUs"),
        ],
    }


def alternative_rows(workload: Workload, found: list[Alternative], now: datetime) -> list[dict[str, Any]]:
    """Asks that would start sooner, each with the address of the form that makes it."""
    return [_alternative_row(workload, other, now) for other in found]


def _queue_row(
    request: HttpRequest,
    workload: Workload,
    user: User,
    now: datetime,
    told: expected_starts.StartRecords,
    is_open: bool,
) -> dict[str, Any]:
    return {
        "workload": workload,
        "url": workload_card.workload_url(workload),
        "toggle": _url_with(
            request, open=None if is_open else str(workload.public_id), page=request.GET.get("page")
        )
        + f"#row-{workload.public_id}",
        "is_open": is_open,
        "mine": workload.owner_id == user.pk,
        "asked": workload_card.requested_units_text(workload),
        "expected": expected_start_texts.expected_start_text(
            workload.expected_start, told.likely(workload), now, short=True
        ),
        "unknown": workload.expected_start is None,
        "waits": duration(now - workload.queued_at),
        "reason": reason_texts.waiting_sentence(workload, user) or "Not looked at yet.",
        "state": workload_card.displayed_state(workload),
        "detail": _unfolded_row(workload, user, now)
        if is_open and workload.state == WorkloadState.QUEUED
        else None,
    }


def _unfolded_row(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    """What unfolds below a row; when this person's questions took too long, only that."""
    try:
        return explanation_columns(workload, wait_explanation.explain_wait(workload, user, now), user, now)
    except PlannerBudgetExceeded as refusal:
        return {"too_much": refusal.message}


def _blocker_row(
    waiting: Workload, blocker: wait_explanation.Blocker, user: User, now: datetime
) -> dict[str, Any]:
    workload = blocker.workload
    until = ""
    if blocker.state == WorkloadState.QUEUED:
        until = (
            f"goes before, at position {workload.position}"
            if workload and workload.position
            else "goes before"
        )
    elif blocker.ends_at is not None:
        local = timezone.localtime(blocker.ends_at)
        today = local.date() == timezone.localtime(now).date()
        until = (
            f"runs until {local:%H:%M}" if today else f"runs until {local:%a} {local.day} {local:%b %H:%M}"
        )
        until += " at the latest"
    return {
        "name": workload.name if workload else "Work of another team",
        "url": workload_card.workload_url(workload) if workload else "",
        "why_url": reverse("why-them", args=[waiting.public_id, workload.public_id])
        if workload and workload.pool_id == waiting.pool_id and waiting.state == WorkloadState.QUEUED
        else "",
        "team": blocker.team,
        "where": ", ".join(
            part
            for part in (
                workload_card.held_units_text(blocker.held),
                workload_card.location_text(blocker.held) if workload else "",
            )
            if part
        ),
        "until": until,
    }


def _alternative_row(workload: Workload, other: Alternative, now: datetime) -> dict[str, Any]:
    label = expected_start_texts.alternative_request_text(other)
    starts = "now"
    if not other.starts_now and other.expected_start is not None:
        local = timezone.localtime(
            datetime.fromtimestamp(other.expected_start, tz=timezone.get_current_timezone())
        )
        starts = (
            f"{local:%H:%M}"
            if local.date() == timezone.localtime(now).date()
            else f"{local:%a} {local.day} {local:%b %H:%M}"
        )
    page = f"{reverse('ask')}?kind={workload.kind}&from={workload.public_id}&{request_form_query(other, workload.pool.slug)}"
    return {"label": label, "starts": starts, "now": other.starts_now, "url": page}


def _window_row(other: wait_explanation.AlternativeWindow) -> dict[str, Any]:
    """A window and, where the form can say what is asked for, the form filled in with it."""
    start, end = timezone.localtime(other.start), timezone.localtime(other.end)
    given = {
        "kind": "reservation",
        "from": other.workload.public_id,
        "start": start.isoformat(),
        "end": end.isoformat(),
    }
    url = f"{reverse('ask')}?{urlencode(given)}" if other.in_form else ""
    return {"words": formatting.window(other.start, other.end), "url": url}


def _reservation_note(windows: list[wait_explanation.AlternativeWindow]) -> str:
    """What a reservation in one of these windows means and needs."""
    if not windows:
        return ""
    workload = windows[0].workload
    needs = "An operator has to agree." if windows[0].needs_approval else "It is confirmed at once."
    return (
        f"A reservation of {workload_card.requested_units_text(workload)}, within what {workload.project.team.name} is guaranteed: preemptible"
        f" work is told to go for it, and it is charged whether used or not. {needs} This one keeps its place."
    )


def request_form_query(other: Alternative, pool: str) -> str:
    """Another way to ask, as the request form takes it in its address."""
    ask = other.ask
    given = {"units": str(ask.units), "target": f"{pool}|{ask.models[0] if ask.models else ''}|{ask.profile}"}
    values = {
        ChangedField.HOSTS: ("hosts", str(ask.hosts)),
        ChangedField.RUNTIME: ("seconds", str(other.max_runtime_seconds)),
        ChangedField.PREEMPTIBLE: ("preemptible", "1"),
        ChangedField.PRIORITY: ("priority", formatting.PRIORITY_WORDS[int(other.priority)]),
    }
    return urlencode(given | dict(values[changed] for changed in other.changed if changed in values))


def _totals_text(totals: reads.QueueTotals, seen: int | None) -> str:
    """Everybody's numbers; of those how many the person may see (None: all), since only they stand below."""
    if not totals.waiting:
        return f"Nothing waits; {totals.running} run."
    whose = "" if seen is None else f", {seen or 'none'} of them of your teams"
    verb = "waits" if totals.waiting == 1 else "wait"
    return f"{totals.waiting} {verb} for {totals.gpus_wanted} units{whose}; {totals.running} run."


def _owner_choices(request: HttpRequest, counts: dict[str, int]) -> list[dict[str, Any]]:
    current = request.GET.get("whose", "")
    choices = (
        ("", f"All {counts['all']}"),
        ("team", f"My teams {counts['team']}"),
        ("mine", f"Mine {counts['mine']}"),
    )
    return [
        {"label": label, "url": _url_with(request, whose=key or None), "current": current == key}
        for key, label in choices
    ]


def _url_with(request: HttpRequest, **changes: str | None) -> str:
    query = request.GET.copy()
    for name in ("part", "version", "page"):
        query.pop(name, None)
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    text = query.urlencode()
    return f"{request.path}?{text}" if text else request.path


def _reason_label(code: str) -> str:
    return REASON_LABELS.get(code, code.replace("_", " ").capitalize())


def _queue_csv(rows: Any, user: User, now: datetime) -> HttpResponseBase:
    head = [
        "id",
        "position",
        "name",
        "kind",
        "team",
        "owner",
        "pool",
        "ask",
        "state",
        "queued",
        "expected_start",
        "reason_code",
        "reason",
    ]
    cells = (
        [
            w.public_id,
            w.position,
            w.name,
            w.kind,
            w.project.team.name,
            w.owner.get_username(),
            w.pool.name,
            workload_card.requested_units_text(w),
            w.state,
            w.queued_at,
            w.expected_start,
            w.reason_code,
            reason_texts.reason_sentence(
                w.reason_code, w.reason_numbers | reason_texts.requested_hardware(w.reason_code, w), None
            ),
        ]
        for w in rows[:50_000].iterator(chunk_size=1000)
    )
    return csv_response("queue", head, cells, now)
