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
from portal.selectors import arrays, desk, free, work
from portal.selectors import queue as queue_reads
from portal.selectors.work import Piece, TeamPanel
from portal.templatetags.gpupool import duration, gpu_model, grouped, money
from portal.web import home_cards, live, queue
from portal.web.access import signed_in, viewer
from portal.web.context import currency_of, organisation_of
from portal.wording import ask_texts, reasons, work_states
from scheduler.models import MaintenanceWindow, Reservation
from scheduler.states import WorkloadState
from telemetry.core.money import rounded

MOST_CARDS = 12
WITH_A_WINDOW = (Submission.Kind.RESERVATION, Submission.Kind.SERIES, Submission.Kind.WINDOW_CHANGE)
MOST_ENDED = 8

Written = Callable[[Decimal], str]  # an amount with its measure


@login_not_required
def home(request: HttpRequest) -> HttpResponseBase:
    """The page, or its live part. Before there is an organisation it leads everybody to the first-run wizard."""
    return redirect("first-run") if organisation_of(request) is None else _home(request)


@signed_in
def _home(request: HttpRequest) -> HttpResponse:
    user, now = viewer(request), timezone.now()
    context = _context(user, currency_of(request), now)
    return live.page(
        request, "work/home.html", "work/home_part.html", context, topics=[f"user:{user.pk}", "queue"], now=now
    )


def _context(user: User, currency: str, now: datetime) -> dict[str, Any]:
    found = list(arrays.one_line_each(work.own_open(user))[: MOST_CARDS + 1])
    pieces = work.pieces(found[:MOST_CARDS], now)
    pieces.sort(key=_order)
    midnight = timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)
    ended = work.pieces(arrays.ended_in_one_line(work.own_ended(user, midnight))[:MOST_ENDED], now, with_use=False)
    wholes = arrays.wholes_of((piece.workload for piece in (*pieces, *ended)), now)
    panels = work.team_panels(user, now)
    lines = free.free_now(user, now)
    return {
        "counts": _counts(pieces, len(found) > MOST_CARDS) if panels or pieces else "",
        "heading": "My work" if panels or pieces else "Today",
        "cards": [
            {**home_cards.card(piece, user, currency, now), **_sooner(piece, now), **_as_array(piece, wholes, currency)}
            for piece in pieces
        ],
        "more": len(found) > MOST_CARDS,
        "ended": [
            _ended_row(piece, user, currency) | _ended_array(wholes.get(piece.workload.array_id or 0), currency)
            for piece in ended
        ],
        "panels": [_panel(panel, currency, now) for panel in panels],
        "in_a_team": bool(panels),
        "operations": _operations(user, now),
        "money": _money(user, currency, now),
        "free": lines,
        "several_pools": len({line.pool.pk for line in lines}) > 1,
        "coming": _coming(user, now),
        "currency": currency,
    }


def _as_array(piece: Piece, wholes: dict[int, arrays.Whole], currency: str) -> dict[str, Any]:
    """A task's card stands for its whole array."""
    whole = wholes.get(piece.workload.array_id or 0)
    if whole is None:
        return {}
    words = f"Array of {arrays.in_words(whole.row)}."
    held = home_cards.counted_units(whole.held)
    if held:
        words += f" They hold {held}"
        words += f" and cost {money(whole.cost, currency)} so far." if whole.cost is not None else "."
    words += " Below its first task that has not ended."
    return {"title": whole.row.name, "url": reverse("array", args=[whole.row.public_id]), "what": words, "actions": []}


def _ended_array(whole: arrays.Whole | None, currency: str) -> dict[str, Any]:
    """The line of an array of which every task has ended."""
    if whole is None:
        return {}
    row = whole.row
    return {
        "name": row.name,
        "tasks": arrays.in_words(row),
        "url": reverse("array", args=[row.public_id]),
        "state": whole.state,
        "word": work_states.array_state(row),
        "ran": "did not run" if row.began is None else duration(row.over - row.began),
        "cost": money(Decimal("0.00") if row.began is None else whole.cost, currency),
        "relaunch": None,
    }


def _order(piece: Piece) -> tuple[int, int, datetime]:
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


def _counts(pieces: list[Piece], more: bool) -> str:
    states = [piece.workload.state for piece in pieces]
    running = sum(state in home_cards.LIVE for state in states)
    starting = sum(state in home_cards.BEFORE for state in states)
    waiting = sum(state == WorkloadState.QUEUED for state in states)
    words = [f"{n} {word}" for n, word in ((running, "running"), (starting, "starting"), (waiting, "waiting")) if n]
    if not words:
        return "Nothing of yours runs or waits."
    return f"{', '.join(words)}{' and more' if more else ''}."


def _sooner(piece: Piece, now: datetime) -> dict[str, Any]:
    """What would start sooner, where it is known; else the address that works it out while the page is there already."""
    workload = piece.workload
    if workload.state != WorkloadState.QUEUED or not workload.reason_code:
        return {}
    known = queue_reads.sooner_known(workload)
    if known is None:
        return {"sooner_url": reverse("sooner", args=[workload.public_id])}
    return {"sooner": queue.alternatives(workload, known[: queue.MOST_ON_A_CARD], now)}


def _ended_row(piece: Piece, user: User, currency: str) -> dict[str, Any]:
    workload = piece.workload
    return {
        "name": workload.name,
        "url": home_cards.page_of(workload),
        "state": home_cards.ended_state(workload.outcome, ran=workload.attempt > 0),
        "word": home_cards.state_word(piece, user),
        "asked": home_cards.holds(piece.had) or home_cards.asked(workload),
        "ran": home_cards.ran_for(piece),
        "cost": home_cards.cost_in_the_end(piece, currency),
        "relaunch": reverse("workload-relaunch", args=[workload.public_id]),
    }


def _panel(panel: TeamPanel, currency: str, now: datetime) -> dict[str, Any]:
    pools = {line.pool for line in panel.lines}
    quotas = []
    for line in panel.lines:
        label = gpu_model(line.model) + (f", {line.pool}" if len(pools) > 1 else "")
        borrowed = f", {home_cards.count_of(line.borrowed)} borrowed" if line.borrowed else ""
        most = line.guaranteed + (line.borrow_limit if line.borrow_limit is not None else line.guaranteed)
        quotas.append(
            {
                "label": label,
                "text": f"{home_cards.count_of(line.held)} of {home_cards.count_of(line.guaranteed)}{borrowed}",
                "scale": max(most, line.held, 1),
                "used": min(line.held, line.guaranteed),
                "borrowed": line.borrowed,
                "mark": line.guaranteed,
            }
        )
    borrows = any(line.borrowed for line in panel.lines)
    sliced = any(round(line.held, 2) % 1 for line in panel.lines)
    return {"team": panel.team, "quotas": quotas, "borrowed": borrows, "sliced": sliced, "budgets": _budgets(panel, currency, now)}


def _budgets(panel: TeamPanel, currency: str, now: datetime) -> list[dict[str, Any]]:
    """A team's budgets of this month: of money, of GPU-hours, of both, or none."""

    def bar(label: str, spent: Decimal, budget: Decimal, forecast: Decimal | None, written: Written) -> dict[str, Any]:
        words = f"{written(spent)} spent."
        if forecast is not None:
            words += f" At this pace {written(forecast)} by the end of the month."
        return {**_budget_bar(label, spent, budget, forecast, written), "words": words}

    found = []
    if panel.budget is not None and panel.spent is not None:
        found.append(bar(f"Budget, {now:%b}", panel.spent, panel.budget, panel.forecast, _whole(currency)))
    if panel.hours is not None:
        hours = panel.hours
        found.append(bar(f"GPU-hours, {now:%b}", hours.spent, hours.amount, hours.forecast, _hours))
    return found


def _budget_bar(
    label: str, spent: Decimal, budget: Decimal | None, forecast: Decimal | None, written: Written
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
    found = desk.operations(user, now)
    if found is None:
        return None
    return {
        "found": found,
        "submissions": [
            {
                "row": row,
                "what": ask_texts.submission_what(row.kind, row.payload),
                "url": reverse("submission", args=[row.public_id]),
            }
            for row in found.submissions
        ],
        "unserved": [
            {
                "row": row,
                "url": reverse("reservation", args=[row.public_id]),
                "reason": reasons.reason(row.reason_code, row.reason_numbers, user),
            }
            for row in found.unserved
        ],
        "waiting": [
            {
                "row": row,
                "url": reverse("why", args=[row.public_id]),
                "waits": duration(now - row.queued_at),
                "reason": reasons.why_waits(row, user),
            }
            for row in found.waiting
        ],
    }


def _money(user: User, currency: str, now: datetime) -> dict[str, Any] | None:
    """A finance viewer's desk: this month by team."""
    found = desk.money(user, now)
    if found is None:
        return None
    return {
        "month": found.month,
        "spent": money(found.spent, currency),
        "teams": [_budget_bar(line.team.name, line.spent, line.budget, line.forecast, _whole(currency)) for line in found.teams],
    }


def _whole(currency: str) -> Written:
    """Money in whole units: a bar's label has no room for cents."""
    return lambda amount: money(rounded(amount, Decimal(1)), currency).removesuffix(".00")


def _hours(amount: Decimal) -> str:
    """GPU-hours beside a label that says so."""
    return grouped(amount)


def _coming(user: User, now: datetime) -> list[dict[str, Any]]:
    """Reservations, what waits for approval, and maintenance, by their start."""
    rows: list[dict[str, Any]] = [_reservation_ahead(r) for r in work.reservations_ahead(user, now)]
    rows += [row for row in map(_submission_ahead, work.own_submissions(user)) if row]
    rows += [_maintenance_ahead(window) for window in work.maintenance_ahead(user, now)]
    return sorted(rows, key=lambda row: row["start"])


def _reservation_ahead(reservation: Reservation) -> dict[str, Any]:
    return {
        "start": reservation.start,
        "end": reservation.end,
        "url": reverse("reservation", args=[reservation.public_id]),
        "title": reservation.name,
        "text": f"Reservation, {home_cards.asked(reservation)}",
    }


def _submission_ahead(submission: Submission) -> dict[str, Any] | None:
    if submission.kind not in WITH_A_WINDOW:
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


def _maintenance_ahead(window: MaintenanceWindow) -> dict[str, Any]:
    return {
        "start": window.start,
        "end": window.end,
        "url": reverse("host", args=[window.host.name]),
        "title": window.host.name,
        "text": f"In maintenance: {window.reason}",
    }
