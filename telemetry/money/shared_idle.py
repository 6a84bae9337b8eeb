"""Divide the idle time of a month among the teams that pay for it, as statement lines of these teams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from django.db.models import Sum

from scheduler.models import Team
from telemetry.core.amounts import MICRO, round_parts, split_amount
from telemetry.core.charge_model import ADJUSTMENT_BUCKETS
from telemetry.core.currencies import smallest_unit
from telemetry.ledger.cents import assign_cents
from telemetry.ledger.locks import lock_ledger
from telemetry.models import ChargeCell, IdlePayer, Statement, StatementLine
from telemetry.money.idle_shares import IdleWeights, load_idle_weights
from telemetry.money.pricing.billing_modes import mark_showback
from telemetry.money.reconciliation import IDLE_BUCKETS

SLOT_SECOND = Decimal(1)


def assign_due_cents() -> None:
    """Assign cents to every open month with charges that have no cents yet.

    Commits nothing itself. The caller runs it in a transaction.
    """
    lock_ledger()
    due = StatementLine.objects.filter(due=True).values("statement")
    for statement in Statement.objects.filter(pk__in=due).order_by("month"):
        assign_month_cents(statement)


def assign_month_cents(statement: Statement) -> None:
    """Divide the idle time of an open month, mark showback, then assign cents to its lines and cells.

    The caller holds ``lock_ledger``.
    """
    _divide_idle_time(statement)
    mark_showback(statement)
    assign_cents(statement.pk)


def idle_cost_by_team(month: date, payer: str) -> dict[str, Decimal]:
    """Return the idle cost that each team would pay in an open month, by team name.

    The part that nobody pays has the name "": it stays with the operator. For the payer in force, the amounts
    are those of the statement. For other payers they may differ by a cent from the later statement.
    Corrections in another currency than that of the month are left out.
    """
    statement = Statement.objects.filter(month=month).first()
    if statement is None:
        return {}
    if statement.idle_payer == payer:
        return _idle_cents_in_force(statement)
    weights = _WeightsByMonth(
        {each.month: each.idle_payer for each in Statement.objects.all()} | {month: payer}
    )
    exact: dict[int | None, Decimal] = defaultdict(Decimal)
    for line in _idle_lines(statement, currency=statement.currency):
        shares = weights.of(line)
        if not shares:
            exact[None] += line.cost
            continue
        for _, cost_parts in _divided_days(line, shares):
            for team, cost in cost_parts.items():
                exact[team] += cost
    teams = sorted(exact, key=lambda team: team or 0)
    names = dict(Team.with_removed.filter(pk__in=[team for team in teams if team]).values_list("pk", "name"))
    cents = round_parts([exact[team] for team in teams], smallest_unit(statement.currency))
    return {names.get(team or 0, ""): amount for team, amount in zip(teams, cents, strict=True)}


def _idle_cents_in_force(statement: Statement) -> dict[str, Decimal]:
    idle = statement.lines.filter(bucket__in=IDLE_BUCKETS, shared_out=False, currency=statement.currency)
    rows = idle.values_list("team__name").annotate(total=Sum("cost_cents"))
    return {name or "": total for name, total in rows.order_by("team__name")}


class _WeightsByMonth:
    """The weights of the teams for idle time, loaded once per month.

    ``payers`` are the payers of idle time by month.
    """

    def __init__(self, payers: Mapping[date, str]) -> None:
        self._payers = payers
        self._loaded: dict[date, IdleWeights] = {}

    def of(self, line: StatementLine) -> dict[int, int]:
        """Return the weights by team id for an idle line; empty if the operator pays.

        A correction follows the payer and the weights of the month that it corrects.
        """
        month = line.corrected_month or line.statement.month
        if month not in self._loaded:
            self._loaded[month] = load_idle_weights(month, self._payers.get(month, IdlePayer.OPERATOR))
        return self._loaded[month].get((line.pool_id or 0, line.model), {})


def _idle_lines(statement: Statement, **where: Any) -> list[StatementLine]:
    """Return the lines of idle time that are made from charges. ``where`` are further filters."""
    lines = statement.lines.filter(bucket__in=IDLE_BUCKETS, team=None, idle_share=False, **where)
    return list(lines.select_related("statement").order_by("pk"))


def _divide_idle_time(statement: Statement) -> None:
    """Rewrite the lines that charge idle time to teams: divide the operator's idle lines by the present
    weights.
    """
    payers = dict(Statement.objects.values_list("month", "idle_payer"))
    former = {line.pk: line for line in statement.lines.filter(idle_share=True)}
    if not former and all(payer == IdlePayer.OPERATOR for payer in payers.values()):
        return
    weights, centres = _WeightsByMonth(payers), _main_cost_centres(statement)
    kept: set[int] = set()
    for line in _idle_lines(statement):
        shares = weights.of(line)
        if line.shared_out != bool(shares):
            StatementLine.objects.filter(pk=line.pk).update(shared_out=bool(shares), due=True)
        if shares:
            kept |= _write_team_lines(line, shares, centres)
    for pk in sorted(set(former) - kept):
        former[pk].delete()


def _write_team_lines(line: StatementLine, weights: dict[int, int], centres: dict[int, str]) -> set[int]:
    """Write the lines and cells of the teams that pay for one idle line. Return the ids of the lines."""
    parts: dict[int, list[tuple[date, int, Decimal]]] = defaultdict(list)
    for (day, slot_seconds), costs in _divided_days(line, weights):
        slots = split_amount(Decimal(slot_seconds), list(weights.values()), SLOT_SECOND)
        for team, slot_part in zip(weights, slots, strict=True):
            parts[team].append((day, int(slot_part), costs[team]))
    return {_write_team_line(line, team, centres.get(team, ""), parts[team]) for team in sorted(weights)}


def _divided_days(
    line: StatementLine, weights: Mapping[int, int]
) -> Iterator[tuple[tuple[date, int], dict[int, Decimal]]]:
    """Yield ((day, slot-seconds), cost by team) for each day of an idle line.

    Each day is divided separately, so that the parts of a day sum to the day.
    """
    days = line.cells.values_list("day").annotate(seconds=Sum("slot_seconds"), amount=Sum("cost"))
    for day, seconds, cost in days.order_by("day"):
        costs = split_amount(cost, list(weights.values()), MICRO)
        yield (day, seconds), dict(zip(weights, costs, strict=True))


def _write_team_line(
    line: StatementLine, team: int, cost_centre: str, days: list[tuple[date, int, Decimal]]
) -> int:
    """Write a team's line for idle time with one cell per day, at cost. Return the id of the line."""
    key: dict[str, Any] = {
        "statement_id": line.statement_id,
        "pool_id": line.pool_id,
        "cost_centre": cost_centre,
        "team_id": team,
        "project": None,
        "workload_type": "",
        "model": line.model,
        "bucket": line.bucket,
        "corrected_month": line.corrected_month,
        "idle_share": True,
        "gpu_hours": None,
    }
    row, made = StatementLine.objects.get_or_create(**key, defaults={"currency": line.currency})
    written = {} if made else {cell.day: (cell.slot_seconds, cell.cost) for cell in row.cells.all()}
    if not made and written == {day: (seconds, cost) for day, seconds, cost in days}:
        return row.pk
    row.slot_seconds = sum(seconds for _, seconds, _ in days)
    row.cost = row.charged = sum((cost for _, _, cost in days), Decimal(0))
    row.due = True
    row.save(update_fields=["slot_seconds", "cost", "charged", "due"])
    row.cells.all().delete()
    row.days.all().delete()
    ChargeCell.objects.bulk_create(
        [
            ChargeCell(
                line=row,
                statement_id=line.statement_id,
                day=day,
                slot_seconds=seconds,
                cost=cost,
                charged=cost,
            )
            for day, seconds, cost in days
        ]
    )
    return row.pk


def _main_cost_centres(statement: Statement) -> dict[int, str]:
    """Return, by team id, the cost centre that pays the largest part of the team's charges of the month."""
    lines = statement.lines.filter(idle_share=False, team__isnull=False, currency=statement.currency)
    lines = lines.exclude(bucket__in=ADJUSTMENT_BUCKETS)
    sums = lines.values_list("team", "cost_centre").annotate(total=Sum("charged"))
    best: dict[int, str] = {}
    for team, centre, _ in sorted(sums, key=lambda row: (-row[2], row[1])):
        best.setdefault(team, centre)
    return best
