"""What waits for people who run and pay for the pool: the first thing on their first page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from django.db.models import F, Q

from portal import policy
from portal.models import Submission, SubmissionState, User
from portal.selectors import use
from scheduler.clock import MassSilence, mass_silence
from scheduler.models import Host, Reservation, Team, Workload
from scheduler.states import PROMISED, AdminState, LeaseState, RepairState, WorkloadState
from telemetry.budgets import forecast_of
from telemetry.models import Budget, BudgetMeasure
from telemetry.months import month_of

MOST = 5


@dataclass(frozen=True)
class Operations:
    """For operators and auditors: what waits for a decision, hosts and reservations that need a look, and what waits longest."""

    submissions: list[Submission]
    submissions_waiting: int
    hosts: int
    troubled: list[Host]
    waiting: list[Workload]
    waiting_count: int
    unserved: list[Reservation]  # have begun and have no GPUs
    mass_silence: MassSilence | None


def operations(user: User, now: datetime) -> Operations | None:
    """None for people whose desk this is not. A fixed number of queries."""
    if not policy.may(user, "approval.see"):
        return None
    submissions = policy.visible_submissions(user).filter(state=SubmissionState.WAITING)
    hosts = policy.visible_hosts(user)
    fine = Q(lease_state=LeaseState.ALIVE, admin_state=AdminState.IN_SERVICE, repair_state=RepairState.WELL)
    waiting = policy.visible_workloads(user).filter(state=WorkloadState.QUEUED)
    return Operations(
        submissions=list(submissions.select_related("team", "author").order_by("created_at", "pk")[:MOST]),
        submissions_waiting=submissions.count(),
        hosts=hosts.count(),
        troubled=list(hosts.exclude(fine).select_related("pool").order_by("name")[: 2 * MOST]),
        waiting=list(waiting.select_related("project__team", "pool").order_by(F("queued_at"), "pk")[:MOST]),
        waiting_count=waiting.count(),
        unserved=list(
            policy.visible_reservations(user)
            .filter(state__in=PROMISED)
            .exclude(reason_code="")
            .select_related("project__team")
            .order_by("start", "pk")[:MOST]
        ),
        mass_silence=mass_silence(now),
    )


@dataclass(frozen=True)
class TeamMonth:
    """A team's month so far, to the cent. ``budget`` and ``forecast`` None: none is set, or it is too early to say."""

    team: Team
    spent: Decimal
    budget: Decimal | None
    forecast: Decimal | None


@dataclass(frozen=True)
class Money:
    month: date
    teams: list[TeamMonth]

    @property
    def spent(self) -> Decimal:
        return sum((line.spent for line in self.teams), Decimal(0))


def money(user: User, now: datetime) -> Money | None:
    """For finance and auditors: this month by team, the dearest first. None for others."""
    if not policy.sees_all_charges(user):
        return None
    month = month_of(now)
    teams = list(Team.objects.order_by("name"))
    spent = use.spent_by_teams(teams, month)
    budgets = dict(Budget.objects.filter(team__in=teams, month=month, measure=BudgetMeasure.MONEY).values_list("team_id", "amount"))
    lines = [
        TeamMonth(
            team,
            spent.get(team.pk, Decimal(0)),
            budgets.get(team.pk),
            forecast_of(spent.get(team.pk, Decimal(0)), now),
        )
        for team in teams
    ]
    return Money(month, sorted(lines, key=lambda line: (-line.spent, line.team.name)))
