"""Build the lines of a statement: charges grouped by payer, rounded to cents, with idle cost divided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import Q, Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR
from scheduler.models import Pool, Team
from telemetry.core.amounts import CENT, MICRO, round_amount, round_parts, split_amount
from telemetry.models import Charge, IdlePayer, Statement, StatementLine, StatementState
from telemetry.money.idle_shares import IdleWeights, load_idle_weights
from telemetry.money.reconciliation import IDLE_BUCKETS


@dataclass(frozen=True)
class StatementEntry:
    """One line of a statement. Amounts are rounded to cents.

    ``covered_share`` is the part of the held time that samples cover. ``used_share`` is the mean utilisation
    of the covered time. Shares are between 0 and 1; None means unknown.
    """

    pool: str
    cost_centre: str
    team: str
    project: str
    workload_type: str
    model: str
    bucket: str
    gpu_hours: Decimal
    covered_share: float | None
    used_share: float | None
    amount: Decimal
    cost: Decimal


def statement_lines(month: date) -> list[StatementEntry]:
    """Return the lines of a month. The amounts of the lines sum to the totals of the month.

    For a closed month, the frozen lines are returned. Otherwise the lines are computed from the charges.
    """
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        return [_frozen_entry(row) for row in statement.lines.select_related(None).order_by("pk")]
    return open_month_lines(month, statement.idle_payer if statement else IdlePayer.OPERATOR)


def _frozen_entry(row: StatementLine) -> StatementEntry:
    return StatementEntry(
        pool=row.pool_name,
        cost_centre=row.cost_centre,
        team=row.team_name,
        project=row.project_name,
        workload_type=row.workload_type,
        model=row.model,
        bucket=row.bucket,
        gpu_hours=row.gpu_hours,
        covered_share=row.covered_share,
        used_share=row.used_share,
        amount=row.amount,
        cost=row.cost,
    )


WeightsByName = dict[tuple[str, str], dict[str, Decimal]]  # (pool, model) -> team -> weight
GROUP_COLUMNS = ("pool__name", "cost_centre", "team_name", "project_name", "workload_type", "model", "bucket")


def open_month_lines(month: date, idle_payer: str) -> list[StatementEntry]:
    """Return the lines of a month that is not closed, computed from its charges."""
    groups = list(
        Charge.objects.filter(month=month)
        .values(*GROUP_COLUMNS)
        .annotate(
            slot_sum=Sum("slot_seconds"),
            held=Sum("slot_seconds", filter=Q(allocation__isnull=False)),
            covered=Sum("evidence__covered_slot_seconds"),
            used=Sum("evidence__used_slot_seconds"),
            cost_sum=Sum("cost"),
            charged_sum=Sum("charged"),
        )
        .order_by(*GROUP_COLUMNS)
    )
    amounts = round_parts([group["charged_sum"] for group in groups])
    costs = round_parts([group["cost_sum"] for group in groups])
    made = [
        _entry_of_group(group, amount, cost)
        for group, amount, cost in zip(groups, amounts, costs, strict=True)
    ]
    weights = _weights_by_name(load_idle_weights(month, idle_payer))
    return [shared for line in made for shared in _allocate_idle_cost(line, made, weights)]


def _weights_by_name(weights: IdleWeights) -> WeightsByName:
    """Return the weights with the names of pools and teams instead of their ids."""
    pools = Pool.with_removed.in_bulk({pool for pool, _ in weights})
    teams = Team.with_removed.in_bulk({team for by_team in weights.values() for team in by_team})
    return {
        (pools[pool].name, model): {teams[team].name: Decimal(weight) for team, weight in by_team.items()}
        for (pool, model), by_team in weights.items()
    }


def idle_cost_by_team(month: date, idle_payer: str) -> dict[str, Decimal]:
    """Return the idle cost that each team would pay in an open month, by team name.

    The part that nobody pays has the name "": it stays with the operator. The amounts equal the lines of the
    statement with this payer.
    """
    shares: dict[str, Decimal] = defaultdict(Decimal)
    for line in open_month_lines(month, idle_payer):
        if line.bucket in IDLE_BUCKETS:
            shares[line.team] += line.cost
    return dict(shares)


def _entry_of_group(group: dict[str, Any], amount: Decimal, cost: Decimal) -> StatementEntry:
    held, covered, used = group["held"], group["covered"], group["used"]
    return StatementEntry(
        pool=group["pool__name"],
        cost_centre=group["cost_centre"],
        team=group["team_name"],
        project=group["project_name"],
        workload_type=group["workload_type"],
        model=group["model"],
        bucket=group["bucket"],
        gpu_hours=round_amount(Decimal(group["slot_sum"]) / SLOT_SECONDS_PER_GPU_HOUR, MICRO),
        covered_share=min(1.0, (covered or 0.0) / held) if held and held > 0 else None,
        used_share=used / covered if covered and covered > 0 and used is not None else None,
        amount=amount,
        cost=cost,
    )


def _allocate_idle_cost(
    line: StatementEntry, all_lines: Sequence[StatementEntry], weights_by_name: WeightsByName
) -> list[StatementEntry]:
    """Divide an idle line among the teams that pay for idle GPUs. Return any other line unchanged.

    If no team has a weight, the idle line is returned unchanged too.
    """
    weights = weights_by_name.get((line.pool, line.model), {}) if line.bucket in IDLE_BUCKETS else {}
    if not any(weights.values()):
        return [line]
    teams = sorted(weights)
    amounts = split_amount(line.cost, [weights[team] for team in teams], CENT)
    hours = split_amount(line.gpu_hours, [weights[team] for team in teams], MICRO)
    centres = _main_cost_centre_by_team(all_lines)
    return [
        StatementEntry(
            line.pool,
            centres.get(team, ""),
            team,
            "",
            "",
            line.model,
            line.bucket,
            part,
            None,
            None,
            amount,
            amount,
        )
        for team, amount, part in zip(teams, amounts, hours, strict=True)
    ]


def _main_cost_centre_by_team(all_lines: Sequence[StatementEntry]) -> dict[str, str]:
    """Return, for each team, the cost centre that pays the largest part of the team's charges."""
    amounts: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for line in all_lines:
        amounts[line.team, line.cost_centre] += line.amount
    best: dict[str, str] = {}
    for (team, centre), _ in sorted(amounts.items(), key=lambda item: (-item[1], item[0])):
        best.setdefault(team, centre)
    return best


def frozen_line_row(statement: Statement, line: StatementEntry) -> StatementLine:
    """Return the unsaved row of a frozen line."""
    return StatementLine(
        statement=statement,
        pool_name=line.pool,
        cost_centre=line.cost_centre,
        team_name=line.team,
        project_name=line.project,
        workload_type=line.workload_type,
        model=line.model,
        bucket=line.bucket,
        gpu_hours=line.gpu_hours,
        covered_share=line.covered_share,
        used_share=line.used_share,
        amount=line.amount,
        cost=line.cost,
    )
