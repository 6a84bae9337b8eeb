"""The first page: what is mine, how my team stands, what is free, what comes up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from portal.models import Submission, User
from portal.reads.fleet import free_capacity
from portal.reads.people import staff_dashboard
from portal.reads.work import job_arrays, team_summaries, wait_explanation, workload_details
from portal.reads.work.team_summaries import TeamSummary
from portal.reads.work.workload_details import WorkloadDetails
from portal.templatetags.gpupool import duration, gpu_model, grouped, money
from portal.web.page import live_refresh
from portal.web.page.access import current_user, sign_in_required
from portal.web.page.context_processors import current_currency, current_organisation
from portal.web.work import queue, workload_card
from portal.wording import reason_texts, request_texts, state_labels
from scheduler.models import MaintenanceWindow, Reservation
from scheduler.state.states import WorkloadState
from telemetry.core.amounts import round_amount

MAX_CARDS = 12
KINDS_WITH_WINDOW = (Submission.Kind.RESERVATION, Submission.Kind.SERIES, Submission.Kind.WINDOW_CHANGE)
MAX_ENDED_ROWS = 8

FormatAmount = Callable[[Decimal], str]  # an amount with its measure


@login_not_required
def home(request: HttpRequest) -> HttpResponseBase:
    """The page, or its live part. Before there is an organisation it leads everybody to the first-run wizard."""
    return redirect("first-run") if current_organisation(request) is None else _home(request)


@sign_in_required
def _home(request: HttpRequest) -> HttpResponse:
    user, now = current_user(request), timezone.now()
    context = _home_context(user, current_currency(request), now)
    return live_refresh.render_live_page(
        request,
        "work/home.html",
        "work/home_part.html",
        context,
        topics=[f"user:{user.pk}", "queue"],
        now=now,
    )


def _home_context(user: User, currency: str, now: datetime) -> dict[str, Any]:
    found = list(job_arrays.first_open_task_only(workload_details.own_open_workloads(user))[: MAX_CARDS + 1])
    pieces = workload_details.workload_details(found[:MAX_CARDS], now)
    pieces.sort(key=_card_order)
    midnight = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    ended = workload_details.workload_details(
        job_arrays.first_ended_task_only(workload_details.own_ended_workloads(user, midnight))[
            :MAX_ENDED_ROWS
        ],
        now,
        with_use=False,
    )
    wholes = job_arrays.array_totals((piece.workload for piece in (*pieces, *ended)), now)
    panels = team_summaries.team_summaries(user, now)
    lines = free_capacity.free_capacity(user, now)
    return {
        "counts": _counts_sentence(pieces, len(found) > MAX_CARDS) if panels or pieces else "",
        "heading": "My work" if panels or pieces else "Today",
        "cards": [
            {
                **workload_card.build_card(piece, user, currency, now),
                **_alternatives_of_card(piece, now),
                **_array_card(piece, wholes, currency),
            }
            for piece in pieces
        ],
        "more": len(found) > MAX_CARDS,
        "ended": [
            _ended_row(piece, user, currency)
            | _ended_array_row(wholes.get(piece.workload.array_id or 0), currency)
            for piece in ended
        ],
        "panels": [_team_panel(panel, currency, now) for panel in panels],
        "in_a_team": bool(panels),
        "operations": _operations(user, now),
        "money": _spending(user, currency, now),
        "free": lines,
        "several_pools": len({line.pool.pk for line in lines}) > 1,
        "coming": _upcoming(user, now),
        "currency": currency,
    }


def _array_card(
    piece: WorkloadDetails, wholes: dict[int, job_arrays.JobArrayTotals], currency: str
) -> dict[str, Any]:
    """A task's card stands for its whole array."""
    whole = wholes.get(piece.workload.array_id or 0)
    if whole is None:
        return {}
    words = f"Array of {job_arrays.array_summary(whole.row)}."
    held = workload_card.units_text(whole.held)
    if held:
        words += f" They hold {held}"
        words += f" and cost {money(whole.cost, currency)} so far." if whole.cost is not None else "."
    words += " Below its first task that has not ended."
    return {
        "title": whole.row.name,
        "url": reverse("array", args=[whole.row.public_id]),
        "what": words,
        "actions": [],
    }


def _ended_array_row(whole: job_arrays.JobArrayTotals | None, currency: str) -> dict[str, Any]:
    """The line of an array of which every task has ended."""
    if whole is None:
        return {}
    row = whole.row
    return {
        "name": row.name,
        "tasks": job_arrays.array_summary(row),
        "url": reverse("array", args=[row.public_id]),
        "state": whole.state,
        "word": state_labels.array_state_label(row),
        "ran": "did not run" if row.began is None else duration(row.over - row.began),
        "cost": money(Decimal("0.00") if row.began is None else whole.cost, currency),
        "relaunch": None,
    }


def _card_order(piece: WorkloadDetails) -> tuple[int, int, datetime]:
    """What wants a hand first, then what runs, starts and waits; each in the order it came."""
    workload = piece.workload
    rank = {
        WorkloadState.NOTICE: 0,
        WorkloadState.RUNNING: 1,
        WorkloadState.STOPPING: 2,
        WorkloadState.STARTING: 3,
        WorkloadState.PLACED: 3,
        WorkloadState.QUEUED: 4,
    }[WorkloadState(workload.state)]
    return (rank, workload.position or 0, workload.submitted_at)


def _counts_sentence(pieces: list[WorkloadDetails], more: bool) -> str:
    states = [piece.workload.state for piece in pieces]
    running = sum(state in workload_card.RUNNING_STATES for state in states)
    starting = sum(state in workload_card.STARTING_STATES for state in states)
    waiting = sum(state == WorkloadState.QUEUED for state in states)
    words = [
        f"{n} {word}" for n, word in ((running, "running"), (starting, "starting"), (waiting, "waiting")) if n
    ]
    if not words:
        return "Nothing of yours runs or waits."
    return f"{', '.join(words)}{' and more' if more else ''}."


def _alternatives_of_card(piece: WorkloadDetails, now: datetime) -> dict[str, Any]:
    """What would start sooner, where it is known; else the address that works it out while the page is there already."""
    workload = piece.workload
    if workload.state != WorkloadState.QUEUED or not workload.reason_code:
        return {}
    known = wait_explanation.cached_faster_requests(workload)
    if known is None:
        return {"sooner_url": reverse("sooner", args=[workload.public_id])}
    return {"sooner": queue.alternative_rows(workload, known[: queue.MAX_ALTERNATIVES_ON_CARD], now)}


def _ended_row(piece: WorkloadDetails, user: User, currency: str) -> dict[str, Any]:
    workload = piece.workload
    return {
        "name": workload.name,
        "url": workload_card.workload_url(workload),
        "state": workload_card.ended_state(workload.outcome, ran=workload.attempt > 0),
        "word": workload_card.state_label(piece, user),
        "asked": workload_card.held_units_text(piece.had) or workload_card.requested_units_text(workload),
        "ran": workload_card.run_time_text(piece),
        "cost": workload_card.final_cost_text(piece, currency),
        "relaunch": reverse("workload-relaunch", args=[workload.public_id]),
    }


def _team_panel(panel: TeamSummary, currency: str, now: datetime) -> dict[str, Any]:
    pools = {line.pool for line in panel.lines}
    quotas = []
    for line in panel.lines:
        label = gpu_model(line.model) + (f", {line.pool}" if len(pools) > 1 else "")
        borrowed = f", {workload_card.gpu_count_text(line.borrowed)} borrowed" if line.borrowed else ""
        most = line.guaranteed + (line.borrow_limit if line.borrow_limit is not None else line.guaranteed)
        quotas.append(
            {
                "label": label,
                "text": f"{workload_card.gpu_count_text(line.held)} of {workload_card.gpu_count_text(line.guaranteed)}{borrowed}",
                "scale": max(most, line.held, 1),
                "used": min(line.held, line.guaranteed),
                "borrowed": line.borrowed,
                "mark": line.guaranteed,
            }
        )
    borrows = any(line.borrowed for line in panel.lines)
    sliced = any(round(line.held, 2) % 1 for line in panel.lines)
    return {
        "team": panel.team,
        "quotas": quotas,
        "borrowed": borrows,
        "sliced": sliced,
        "budgets": _budgets(panel, currency, now),
    }


def _budgets(panel: TeamSummary, currency: str, now: datetime) -> list[dict[str, Any]]:
    """A team's budgets of this month: of money, of GPU-hours, of both, or none."""

    def bar(
        label: str, spent: Decimal, budget: Decimal, forecast: Decimal | None, written: FormatAmount
    ) -> dict[str, Any]:
        words = f"{written(spent)} spent."
        if forecast is not None:
            words += f" At this pace {written(forecast)} by the end of the month."
        return {**_budget_bar(label, spent, budget, forecast, written), "words": words}

    found = []
    if panel.budget is not None and panel.spent is not None:
        found.append(
            bar(
                f"Budget, {now:%b}",
                panel.spent,
                panel.budget,
                panel.forecast,
                _whole_currency_units(currency),
            )
        )
    if panel.hours is not None:
        hours = panel.hours
        found.append(bar(f"GPU-hours, {now:%b}", hours.spent, hours.amount, hours.forecast, _gpu_hours_text))
    return found


def _budget_bar(
    label: str, spent: Decimal, budget: Decimal | None, forecast: Decimal | None, written: FormatAmount
) -> dict[str, Any]:
    """What is spent against a budget, with where the month is going."""
    expected = forecast or Decimal(0)
    if budget is None:
        return {
            "label": label,
            "text": f"{written(spent)}, no budget",
            "scale": max(spent, expected, Decimal(1)),
            "used": spent,
            "mark": None,
        }
    left = budget - spent
    text = f"{written(left)} left of {written(budget)}"
    if left < 0:
        text = f"over by {written(-left)} of {written(budget)}"
    return {
        "label": label,
        "text": text,
        "scale": max(budget, spent, expected, Decimal(1)),
        "used": min(spent, budget),
        "forecast": max(Decimal(0), min(expected, budget) - spent),
        "over": max(Decimal(0), -left, expected - max(budget, spent)),
        "mark": budget,
        "bad": left < 0,
    }


def _operations(user: User, now: datetime) -> dict[str, Any] | None:
    """An operator's desk: decisions, hosts, and who waits longest and why."""
    found = staff_dashboard.operations_dashboard(user, now)
    if found is None:
        return None
    return {
        "found": found,
        "submissions": [
            {
                "row": row,
                "what": request_texts.submission_summary(row.kind, row.payload),
                "url": reverse("submission", args=[row.public_id]),
            }
            for row in found.submissions
        ],
        "unserved": [
            {
                "row": row,
                "url": reverse("reservation", args=[row.public_id]),
                "reason": reason_texts.reason_sentence(row.reason_code, row.reason_numbers, user),
            }
            for row in found.unserved
        ],
        "waiting": [
            {
                "row": row,
                "url": reverse("why", args=[row.public_id]),
                "waits": duration(now - row.queued_at),
                "reason": reason_texts.waiting_sentence(row, user),
            }
            for row in found.waiting
        ],
    }


def _spending(user: User, currency: str, now: datetime) -> dict[str, Any] | None:
    """A finance viewer's desk: this month by team."""
    found = staff_dashboard.money_dashboard(user, now)
    if found is None:
        return None
    return {
        "month": found.month,
        "spent": money(found.spent, currency),
        "teams": [
            _budget_bar(
                line.team.name, line.spent, line.budget, line.forecast, _whole_currency_units(currency)
            )
            for line in found.teams
        ],
    }


def _whole_currency_units(currency: str) -> FormatAmount:
    """Money in whole units: a bar's label has no room for cents."""
    return lambda amount: money(round_amount(amount, Decimal(1)), currency).removesuffix(".00")


def _gpu_hours_text(amount: Decimal) -> str:
    """GPU-hours beside a label that says so."""
    return grouped(amount)


def _upcoming(user: User, now: datetime) -> list[dict[str, Any]]:
    """Reservations, what waits for approval, and maintenance, by their start."""
    rows: list[dict[str, Any]] = [
        _upcoming_reservation(r) for r in team_summaries.upcoming_reservations(user, now)
    ]
    rows += [row for row in map(_upcoming_submission, team_summaries.own_submissions(user)) if row]
    rows += [_upcoming_maintenance(window) for window in team_summaries.upcoming_maintenance(user, now)]
    return sorted(rows, key=lambda row: row["start"])


def _upcoming_reservation(reservation: Reservation) -> dict[str, Any]:
    return {
        "start": reservation.start,
        "end": reservation.end,
        "url": reverse("reservation", args=[reservation.public_id]),
        "title": reservation.name,
        "text": f"Reservation, {workload_card.requested_units_text(reservation)}",
    }


def _upcoming_submission(submission: Submission) -> dict[str, Any] | None:
    if submission.kind not in KINDS_WITH_WINDOW:
        return None
    payload = submission.payload
    return {
        "start": datetime.fromisoformat(payload["start"]),
        "end": datetime.fromisoformat(payload["end"]),
        "url": reverse("submission", args=[submission.public_id]),
        "title": payload.get("name", "Reservation"),
        "text": f"Waits for approval, {payload.get('units')} × {gpu_model(' or '.join(payload.get('models') or ['any GPU']))}",
        "pending": True,
    }


def _upcoming_maintenance(window: MaintenanceWindow) -> dict[str, Any]:
    return {
        "start": window.start,
        "end": window.end,
        "url": reverse("host", args=[window.host.name]),
        "title": window.host.name,
        "text": f"In maintenance: {window.reason}",
    }
