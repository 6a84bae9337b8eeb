"""Summarise the quotas, the usage and the spending of teams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import Q, QuerySet

from portal import policy
from portal.models import Submission, SubmissionState, User
from portal.reads.money import cost_totals
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import MaintenanceWindow, Pool, Quota, Reservation, Team
from scheduler.reads import capacity as engine
from scheduler.state.states import OPEN_RESERVATION_STATES
from telemetry.models import Budget, BudgetMeasure, BudgetPeriod
from telemetry.money.billing_months import month_of
from telemetry.money.pricing.billing_currencies import currency_at
from telemetry.reads.budget_status import BudgetStatus, budget_statuses


@dataclass(frozen=True)
class QuotaUsage:
    """A team's guarantee of one model in one pool and its present use. All numbers are numbers of GPUs."""

    pool: str
    model: str
    guaranteed: float
    held: float
    borrow_limit: float | None

    @property
    def borrowed(self) -> float:
        return max(0.0, self.held - self.guaranteed)


@dataclass(frozen=True)
class TeamSummary:
    team: Team
    lines: list[QuotaUsage]
    budget: Decimal | None
    spent: Decimal | None
    forecast: Decimal | None
    hours: BudgetStatus | None  # budget of GPU-hours


def team_summaries(user: User, now: datetime) -> list[TeamSummary]:
    """Return one summary for each team of the user: guarantees, present use, and budgets of this month."""
    teams = list(Team.objects.filter(pk__in=policy.my_team_ids(user)).order_by("name"))
    if not teams:
        return []
    held = engine.held_by_team([team.pk for team in teams], now)
    quotas = Quota.objects.filter(team__in=teams).select_related("pool").order_by("pool__name", "-model")
    lines: dict[int, list[QuotaUsage]] = {}
    for quota in quotas:
        lines.setdefault(quota.team_id, []).append(quota_usage_of(quota, held))
    month = month_of(now)
    rows = Budget.objects.filter(team__in=teams, period=BudgetPeriod.MONTH, month=month)
    rows = rows.filter(Q(measure=BudgetMeasure.GPU_HOURS) | Q(currency=currency_at(now)))
    budgets = {(row.team_id, row.measure): row for row in rows}
    statuses = budget_statuses(rows, now)
    spent = cost_totals.team_spending(teams, month)
    panels = []
    for team in teams:
        money, hours = (
            budgets.get((team.pk, measure)) for measure in (BudgetMeasure.MONEY, BudgetMeasure.GPU_HOURS)
        )
        so_far = spent.get(team.pk, Decimal(0))
        panels.append(
            TeamSummary(
                team,
                lines.get(team.pk, []),
                None if money is None else money.amount,
                so_far,
                None if money is None else statuses[money.pk].forecast,
                None if hours is None else statuses[hours.pk],
            )
        )
    return panels


def quota_usages(uses: Iterable[engine.QuotaUse], pool: Pool) -> list[QuotaUsage]:
    """Convert a team's guarantees in one pool, and their use, from slots to GPUs."""
    return [
        QuotaUsage(
            pool=pool.name,
            model=use.model,
            guaranteed=use.guaranteed / SLOTS_PER_GPU,
            held=use.held / SLOTS_PER_GPU,
            borrow_limit=None if use.borrow_limit is None else use.borrow_limit / SLOTS_PER_GPU,
        )
        for use in uses
    ]


def quota_usage_of(quota: Quota, held: dict[tuple[int, int, str], int]) -> QuotaUsage:
    return QuotaUsage(
        pool=quota.pool.name,
        model=quota.model,
        guaranteed=quota.guaranteed_slots / SLOTS_PER_GPU,
        held=held.get((quota.team_id, quota.pool_id, quota.model), 0) / SLOTS_PER_GPU,
        borrow_limit=None if quota.borrow_limit_slots is None else quota.borrow_limit_slots / SLOTS_PER_GPU,
    )


def upcoming_reservations(user: User, now: datetime, most: int = 6) -> list[Reservation]:
    """Return the reservations of the user's teams that are not over, the earliest start first."""
    mine = policy.visible_reservations(user).filter(project__team__in=policy.my_team_ids(user))
    return list(
        mine.filter(state__in=OPEN_RESERVATION_STATES, end__gt=now)
        .select_related("project__team", "pool")
        .order_by("start", "pk")[:most]
    )


def own_submissions(user: User, most: int = 6) -> list[Submission]:
    """Return the user's own submissions that wait for a decision, oldest first."""
    mine = policy.visible_submissions(user).filter(author=user, state=SubmissionState.WAITING)
    return list(mine.select_related("team", "pool").order_by("created_at", "pk")[:most])


def upcoming_maintenance(user: User, now: datetime, most: int = 4) -> list[MaintenanceWindow]:
    """Return the maintenance windows of visible hosts that are not over, the earliest start first."""
    windows = MaintenanceWindow.objects.filter(host__in=policy.visible_hosts(user), end__gt=now)
    return list(windows.select_related("host").order_by("start", "pk")[:most])


def open_reservations(user: User, now: datetime) -> QuerySet[Reservation]:
    """Return the open reservations in which the user may launch workloads, the earliest start first."""
    mine = policy.visible_reservations(user).filter(project__in=policy.launchable_projects(user))
    return (
        mine.filter(state__in=OPEN_RESERVATION_STATES, end__gt=now)
        .select_related("project", "pool")
        .order_by("start", "pk")
    )
