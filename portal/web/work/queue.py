"""Render the page of the queue: waiting and running workloads, with filters and reasons."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from portal import policy
from portal.errors import PlannerBudgetExceeded
from portal.models import User
from portal.reads.work import expected_starts, wait_explanation
from portal.reads.work import queue as reads
from portal.reads.work.workload_details import filter_by_text
from portal.web.components.quantities import gpu_model, short_duration
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.csv_export import csv_response, timed_file_name
from portal.web.page.pagination import paginate
from portal.web.page.query import parse_uuid
from portal.web.work import workload_text
from portal.web.work.explanation import explanation_columns
from portal.wording import expected_start_texts, reason_texts
from portal.wording.pages import work_pages
from portal.wording.request_texts import requested_units_text
from scheduler.models import Workload, WorkloadKind
from scheduler.state.states import WorkloadState


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
        """Return the rows that match the filters."""
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
    """Render the waiting workloads, or with ``?show=running`` the running workloads.

    ``?open=`` unfolds the explanation below a row.
    """
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
    starts = expected_starts.start_records_for(page.object_list, now)
    known_hosts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    drawn = [
        _queue_row(request, workload, user, now, starts, workload.public_id == opened, known_hosts)
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
            {"pool": pool, "record": expected_start_texts.forecast_accuracy_text(starts.past(pool.pk))}
            for pool in {workload.pool_id: workload.pool for workload in page.object_list}.values()
        ],
        "filtered": any(request.GET.get(name) for name in ("model", "kind", "reason", "find", "whose")),
    }
    return live_refresh.render_live_page(
        request, "work/queue.html", "work/queue_part.html", context, topics=["queue"], now=now
    )


def _queue_row(
    request: HttpRequest,
    workload: Workload,
    user: User,
    now: datetime,
    starts: expected_starts.StartRecords,
    is_open: bool,
    known_hosts: dict[tuple[Any, ...], list[dict[str, Any]]],
) -> dict[str, Any]:
    return {
        "workload": workload,
        "url": workload_text.workload_url(workload),
        "toggle": _url_with(
            request, open=None if is_open else str(workload.public_id), page=request.GET.get("page")
        )
        + f"#row-{workload.public_id}",
        "is_open": is_open,
        "mine": workload.owner_id == user.pk,
        "asked": requested_units_text(workload),
        "expected": expected_start_texts.expected_start_text(
            workload.expected_start, starts.likely(workload), now, short=True
        ),
        "unknown": workload.expected_start is None,
        "waits": short_duration(now - workload.queued_at),
        "reason": workload_text.waiting_reason(workload, user, known_hosts) or work_pages.NOT_PLANNED_YET,
        "state": workload_text.displayed_state(workload),
        "detail": _unfolded_row(workload, user, now)
        if is_open and workload.state == WorkloadState.QUEUED
        else None,
    }


def _unfolded_row(workload: Workload, user: User, now: datetime) -> dict[str, Any]:
    """Return the explanation below a row.

    If the user's budget of planning time is used up, return the message about this instead.
    """
    try:
        return explanation_columns(workload, wait_explanation.explain_wait(workload, user, now), user, now)
    except PlannerBudgetExceeded as refusal:
        return {"too_much": refusal.message}


def _totals_text(totals: reads.QueueTotals, seen: int | None) -> str:
    """Return a sentence with the totals of all teams.

    ``seen`` is the number of waiting workloads that the user may see; None if the user sees all teams.
    """
    if not totals.waiting:
        return work_pages.NOTHING_WAITS.format(running=totals.running)
    whose = "" if seen is None else f", {seen or 'none'} of them from your teams"
    verb = "waits" if totals.waiting == 1 else "wait"
    return work_pages.QUEUE_TOTALS.format(
        waiting=totals.waiting, verb=verb, units=totals.gpus_wanted, whose=whose, running=totals.running
    )


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
    return work_pages.REASON_LABELS.get(code, code.replace("_", " ").capitalize())


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
            requested_units_text(w),
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
    return csv_response(timed_file_name("queue", now), head, cells)
