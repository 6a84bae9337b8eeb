"""Build the panels of the home page: team quotas and budgets, operations, spending, upcoming events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.urls import reverse

from portal.models import Submission, User
from portal.reads.calendar import approvals
from portal.reads.people import staff_dashboard
from portal.reads.system.checks import HealthState
from portal.reads.system.health import SystemHealth
from portal.reads.work import team_summaries
from portal.reads.work.team_summaries import TeamSummary
from portal.web.components.quantities import gpu_model, grouped, money, short_duration
from portal.web.work import workload_text
from portal.wording import reason_texts
from portal.wording.chargeback import charge_scope_texts
from portal.wording.home import dashboard_texts
from portal.wording.pages import home_pages
from portal.wording.request_texts import requested_units_text
from scheduler.models import MaintenanceWindow, Reservation
from telemetry.core.amounts import round_amount
from telemetry.core.currencies import decimals_of

FormatAmount = Callable[[Decimal], str]  # a function that returns an amount as text
MAX_DECISIONS = 5
MAX_HOSTS = 5
MAX_CHECKS = 4
KINDS_WITH_WINDOW = (Submission.Kind.RESERVATION, Submission.Kind.SERIES, Submission.Kind.WINDOW_CHANGE)


def team_panel(summary: TeamSummary, currency: str, now: datetime) -> dict[str, Any]:
    """Return the values of one team's panel: a bar for each quota, and its budgets."""
    pools = {line.pool for line in summary.lines}
    quotas = []
    for line in summary.lines:
        label = gpu_model(line.model) + (f", {line.pool}" if len(pools) > 1 else "")
        borrowed = f", {workload_text.gpu_count_text(line.borrowed)} borrowed" if line.borrowed else ""
        # Without a borrow limit, the bar ends at twice the guarantee, so that the mark of the guarantee is in
        # its middle.
        most = line.guaranteed + (line.borrow_limit if line.borrow_limit is not None else line.guaranteed)
        quotas.append(
            {
                "label": label,
                "text": f"{workload_text.gpu_count_text(line.held)} of "
                f"{workload_text.gpu_count_text(line.guaranteed)}{borrowed}",
                "scale": max(most, line.held, 1),
                "used": min(line.held, line.guaranteed),
                "borrowed": line.borrowed,
                "mark": line.guaranteed,
            }
        )
    borrows = any(line.borrowed for line in summary.lines)
    sliced = any(round(line.held, 2) % 1 for line in summary.lines)
    return {
        "team": summary.team,
        "quotas": quotas,
        "borrowed": borrows,
        "sliced": sliced,
        "budgets": _budgets(summary, currency, now),
        "budget_scope": charge_scope_texts.TEAM_SUM,
    }


def _budgets(panel: TeamSummary, currency: str, now: datetime) -> list[dict[str, Any]]:
    """Return one bar for each of the team's budgets of this month: money and GPU-hours."""

    def bar(
        label: str, spent: Decimal, budget: Decimal, forecast: Decimal | None, written: FormatAmount
    ) -> dict[str, Any]:
        words = f"{written(spent)} spent."
        if forecast is not None:
            words += home_pages.PACE.format(forecast=written(forecast))
        return {**_budget_bar(label, spent, budget, forecast, written), "words": words}

    bars = []
    if panel.budget is not None and panel.spent is not None:
        bars.append(
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
        bars.append(bar(f"GPU-hours, {now:%b}", hours.spent, hours.amount, hours.forecast, _gpu_hours_text))
    return bars


def _budget_bar(
    label: str, spent: Decimal, budget: Decimal | None, forecast: Decimal | None, written: FormatAmount
) -> dict[str, Any]:
    """Return a bar with the amount spent, the forecast for the month's end, and the budget as a mark."""
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


def operations_panel(user: User, now: datetime) -> dict[str, Any] | None:
    """Return the panels of health, requests, hosts with problems, queue pressure and longest waits.

    Return None for users other than operators and auditors.
    """
    dashboard = staff_dashboard.operations_dashboard(user, now)
    if dashboard is None:
        return None
    return {
        "found": dashboard,
        "decisions": waiting_decisions(user, now),
        "hosts": _hosts_panel(dashboard.fleet),
        "pressure": _pressure_rows(dashboard),
        "health": _health_panel(dashboard.health),
        "unserved": [
            {
                "row": row,
                "url": reverse("reservation", args=[row.public_id]),
                "reason": reason_texts.reservation_problem(row, user),
            }
            for row in dashboard.unserved
        ],
        "waiting": [
            {
                "row": row,
                "url": reverse("why", args=[row.public_id]),
                "waits": short_duration(now - row.queued_at),
                "reason": reason_texts.waiting_sentence(row, user),
            }
            for row in dashboard.waiting
        ],
    }


def waiting_decisions(user: User, now: datetime) -> dict[str, Any]:
    """Return the oldest requests that wait for a decision, each with its age, and the number of all."""
    waiting = approvals.waiting_submissions(user)
    rows, count = list(waiting[:MAX_DECISIONS]), waiting.count()
    return {
        "count": count,
        "finding": dashboard_texts.decisions_finding(count, now - rows[0].created_at if rows else None),
        "rows": [
            {
                "row": row,
                "age": short_duration(now - row.created_at),
                "what": approvals.submission_title(row),
                "url": reverse("submission", args=[row.public_id]),
            }
            for row in rows
        ],
    }


def _hosts_panel(fleet: staff_dashboard.FleetState) -> dict[str, Any]:
    """Return the hosts that need attention, the worst first, each with all of its problems."""
    by_host: dict[str, list[dict[str, Any]]] = {}
    for problem in fleet.problems:
        by_host.setdefault(problem["host"], []).append(problem)
    hosts = [
        {
            "name": name,
            "kind": problems[0]["kind"],
            "words": [problem["words"] for problem in problems],
            "at": problems[0].get("at"),
        }
        for name, problems in by_host.items()
    ]
    return {
        "rows": hosts[:MAX_HOSTS],
        "more": max(0, len(hosts) - MAX_HOSTS),
        "finding": dashboard_texts.hosts_finding(len(hosts), fleet.hosts, fleet.totals),
        "summary": dashboard_texts.fleet_summary(fleet.totals),
    }


def _pressure_rows(dashboard: staff_dashboard.OperationsDashboard) -> list[dict[str, Any]]:
    """Return a bar for each GPU model: held and requested GPUs beside the number of GPUs in service."""
    return [
        {
            "label": gpu_model(line.model),
            "text": dashboard_texts.pressure_text(
                free=line.free,
                on_one_host=line.free_on_one_host,
                requested=line.requested,
                waiting=line.waiting,
            ),
            "scale": max(line.in_service, line.held + line.requested, 1),
            "used": line.held,
            "forecast": line.requested,
            "mark": line.in_service,
        }
        for line in dashboard.pressure
    ]


def _health_panel(health: SystemHealth | None) -> dict[str, Any] | None:
    """Return the finding about the installation, and the checks that are not good."""
    if health is None:
        return None
    wrong = [check for check in health.checks if check.state in (HealthState.BAD, HealthState.ATTENTION)]
    return {
        "state": health.state,
        "finding": dashboard_texts.health_finding(len(wrong), len(health.checks)),
        "checks": wrong[:MAX_CHECKS],
    }


def spending_panel(user: User, currency: str, now: datetime) -> dict[str, Any] | None:
    """Return the panel of this month's charges by team; None for users who may not see all charges."""
    dashboard = staff_dashboard.money_dashboard(user, now)
    if dashboard is None:
        return None
    return {
        "month": dashboard.month,
        "spent": money(dashboard.spent, currency),
        "waiting": dashboard.waiting,
        "teams": [
            _budget_bar(
                line.team.name, line.spent, line.budget, line.forecast, _whole_currency_units(currency)
            )
            for line in dashboard.teams
        ],
    }


def _whole_currency_units(currency: str) -> FormatAmount:
    """Return a function that formats money without cents, because a bar's label has no space for them."""
    zeros = "0" * decimals_of(currency)
    return lambda amount: money(round_amount(amount, Decimal(1)), currency).removesuffix(f".{zeros}")


def _gpu_hours_text(amount: Decimal) -> str:
    """Format GPU-hours without the unit, which is in the bar's label."""
    return grouped(amount)


def upcoming_rows(user: User, now: datetime) -> list[dict[str, Any]]:
    """Return reservations, waiting submissions and maintenance windows, sorted by start."""
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
        "text": f"Reservation, {requested_units_text(reservation)}",
    }


def _upcoming_submission(submission: Submission) -> dict[str, Any] | None:
    if submission.kind not in KINDS_WITH_WINDOW:
        return None
    payload = submission.payload
    models = gpu_model(" or ".join(payload.get("models") or ["any GPU"]))
    return {
        "start": datetime.fromisoformat(payload["start"]),
        "end": datetime.fromisoformat(payload["end"]),
        "url": reverse("submission", args=[submission.public_id]),
        "title": payload.get("name", "Reservation"),
        "text": f"Waits for approval, {payload.get('units')} × {models}",
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
