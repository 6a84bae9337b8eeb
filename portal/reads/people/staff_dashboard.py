"""Read the dashboards of operators, auditors and finance: pending decisions, problems, costs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, QuerySet, Sum

from portal import policy
from portal.models import User
from portal.reads.fleet.gpu_overview import FleetModelGroup, attention_list, fleet_overview, fleet_totals
from portal.reads.money import cost_totals
from portal.reads.money.closing.waiting_months import waiting_months
from portal.reads.system.health import SystemHealth, system_health
from scheduler.models import Reservation, Team, Workload
from scheduler.state.states import OPEN_RESERVATION_STATES, WorkloadState
from scheduler.sweeps.silent_hosts import MassSilence, mass_silence
from telemetry.models import Budget, BudgetMeasure, BudgetPeriod
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import currency_at

MAX_DASHBOARD_ROWS = 5


@dataclass(frozen=True)
class FleetState:
    """The figures and problems of the fleet page, and the number of visible hosts."""

    hosts: int
    totals: dict[str, int]
    problems: list[dict[str, Any]]


@dataclass(frozen=True)
class ModelPressure:
    """Whole GPUs of one model: in service, held, free, and requested by waiting workloads.

    ``waiting`` is the number of these workloads. A workload that accepts several models counts for the model
    that it prefers. Requests for slices do not count.
    """

    model: str
    in_service: int
    held: int
    free: int
    free_on_one_host: int
    requested: int
    waiting: int


@dataclass(frozen=True)
class OperationsDashboard:
    """The state of the fleet and of the queue, reservations with problems, and the longest waits.

    Only operators and auditors see this dashboard.
    """

    fleet: FleetState
    pressure: list[ModelPressure]
    waiting: list[Workload]
    waiting_count: int
    unserved: list[Reservation]  # they lack GPUs now, or are at risk
    mass_silence: MassSilence | None
    health: SystemHealth


def operations_dashboard(user: User, now: datetime) -> OperationsDashboard | None:
    """Return the dashboard of operators and auditors; None for others. The number of queries is fixed."""
    if not policy.may(user, "approval.see"):
        return None
    groups = fleet_overview(user, now)
    waiting = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED)
    return OperationsDashboard(
        fleet=FleetState(
            hosts=len({row.host.pk for group in groups for row in group.hosts}),
            totals=fleet_totals(groups),
            problems=attention_list(user, groups, now),
        ),
        pressure=_queue_pressure(groups, waiting),
        waiting=list(
            waiting.select_related("project__team", "pool").order_by(F("queued_at"), "pk")[
                :MAX_DASHBOARD_ROWS
            ]
        ),
        waiting_count=waiting.count(),
        unserved=list(
            policy.visible_reservations(user)
            .filter(state__in=OPEN_RESERVATION_STATES)
            .exclude(reason_code="", at_risk_since=None)
            .select_related("project__team")
            .order_by("start", "pk")[:MAX_DASHBOARD_ROWS]
        ),
        mass_silence=mass_silence(now),
        health=system_health(user, now),
    )


def _queue_pressure(groups: list[FleetModelGroup], waiting: QuerySet[Workload]) -> list[ModelPressure]:
    """Return one line for each model of the fleet, in the order of ``groups``. Runs one query."""
    requested: dict[str, tuple[int, int]] = {}
    rows = waiting.filter(profile="").order_by().values("models_wanted__0")
    for row in rows.annotate(gpus=Sum(F("units") * F("hosts")), workloads=Count("pk")):
        # A workload without a preference counts for the first model, which has the most GPUs.
        model = row["models_wanted__0"] or (groups[0].model if groups else "")
        gpus, workloads = requested.get(model, (0, 0))
        requested[model] = (gpus + row["gpus"], workloads + row["workloads"])
    lines = []
    for group in groups:
        totals = fleet_totals([group])
        gpus, workloads = requested.get(group.model, (0, 0))
        lines.append(
            ModelPressure(
                model=group.model,
                in_service=totals["gpus"] - totals["out"],
                held=totals["held"],
                free=totals["free"],
                free_on_one_host=group.free_on_one_host,
                requested=gpus,
                waiting=workloads,
            )
        )
    return lines


@dataclass(frozen=True)
class TeamMonthCost:
    """A team's charges in a month so far, rounded to cents.

    ``budget`` is None for a team without a budget. ``forecast`` is None without a
    budget, and before the first days of spending are known.
    """

    team: Team
    spent: Decimal
    budget: Decimal | None
    forecast: Decimal | None


@dataclass(frozen=True)
class MoneyDashboard:
    """This month's charges by team, and the months that wait to be closed, oldest first."""

    month: date
    teams: list[TeamMonthCost]
    waiting: list[date]

    @property
    def spent(self) -> Decimal:
        return sum((line.spent for line in self.teams), Decimal(0))


def money_dashboard(user: User, now: datetime) -> MoneyDashboard | None:
    """Return this month's charges by team, the most expensive team first.

    Return None if the user may not see the charges of all teams.
    """
    if not policy.sees_all_charges(user):
        return None
    lines = team_month_costs(now)
    by_charge = sorted(lines, key=lambda line: (-line.spent, line.team.name))
    return MoneyDashboard(month_of(now), by_charge, waiting_months(now))


def team_month_costs(now: datetime) -> list[TeamMonthCost]:
    """Return this month's charges of every team, with its budget and its forecast, sorted by name.

    A removed team is listed only if it has charges in this month. The amounts are in the currency of the
    present month.
    """
    month = month_of(now)
    teams = list(Team.with_removed.order_by("name"))
    spent = cost_totals.team_spending(teams, month)
    teams = [team for team in teams if team.removed_at is None or spent.get(team.pk)]
    budgets = {
        budget.team_id: budget
        for budget in Budget.objects.filter(
            team__in=teams,
            period=BudgetPeriod.MONTH,
            month=month,
            measure=BudgetMeasure.MONEY,
            currency=currency_at(now),
        ).select_related("spend_forecast")
    }
    return [
        TeamMonthCost(
            team,
            spent.get(team.pk, Decimal(0)),
            budgets[team.pk].amount if team.pk in budgets else None,
            _expected(budgets.get(team.pk), spent.get(team.pk, Decimal(0))),
        )
        for team in teams
    ]


def _expected(budget: Budget | None, spent: Decimal) -> Decimal | None:
    """Return the stored forecast of a budget, at least the spending so far; None without a forecast."""
    forecast = None if budget is None else getattr(budget, "spend_forecast", None)
    return None if forecast is None else max(spent, forecast.expected)
