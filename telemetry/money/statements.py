"""A month's statement: what it comes to, its lines, its close. Once closed nothing changes it; late facts go into the open month.

The conservation line of each pool, exact to the ledger's last decimal:
``charged - margin + uncharged + idle + overhead == cost of the GPUs``, where the right side is worked out from the rate card and
the GPUs' times alone. ``uncharged`` is work lost to preemption or hardware, ``idle`` what nobody held, ``overhead`` what was
unwell or in maintenance; ``margin`` is what charged lines bring above their cost, negative for a discount.
"""

from __future__ import annotations

import csv as csv_module
import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Count, F, Q, Sum

from scheduler.core.model.slots import SLOT_SECONDS_PER_GPU_HOUR as SLOT_SECONDS_OF_A_GPU_HOUR
from scheduler.models import Gpu, Pool, Quota
from telemetry.core.amounts import (
    CENT,
    MICRO,
    ZERO,
    round_amount,
    round_parts,
    round_parts_to_total,
    split_amount,
)
from telemetry.core.charging import CHARGED_BUCKETS, SLOTS_PER_GPU, asset_cost
from telemetry.models import (
    STATEMENT_TRANSITIONS,
    Charge,
    ChargeBucketChoices,
    ChargedUntil,
    IdlePayer,
    RollupDue,
    Statement,
    StatementLine,
    StatementState,
)
from telemetry.money.billing_months import month_bounds, month_of
from telemetry.money.charging_inputs import load_rates

UNCHARGED_BUCKETS = (ChargeBucketChoices.PREEMPTED, ChargeBucketChoices.HARDWARE_LOST)
IDLE_BUCKETS = (ChargeBucketChoices.UNALLOCATED,)
OVERHEAD_BUCKETS = (ChargeBucketChoices.UNHEALTHY, ChargeBucketChoices.MAINTENANCE)
SLOT_SECONDS_PER_GPU_HOUR = Decimal(SLOT_SECONDS_OF_A_GPU_HOUR)
CSV_COLUMNS = (
    "month",
    "pool",
    "cost_centre",
    "team",
    "project",
    "workload_type",
    "model",
    "bucket",
    "gpu_hours",
    "covered_share",
    "used_share",
    "amount",
    "cost",
    "currency",
)


class MonthCloseError(Exception):
    """A month that may not be closed: which check fails, and its figures (``close_checks``)."""

    def __init__(self, message: str, checks: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.checks = list(checks)


@dataclass(frozen=True)
class CostReconciliation:
    """A pool's month in ledger decimals. ``holds`` is True when both sides are the same."""

    pool: int
    pool_name: str
    charged: Decimal
    margin: Decimal
    uncharged: Decimal
    idle: Decimal
    overhead: Decimal
    cost: Decimal

    @property
    def total(self) -> Decimal:
        """The left side."""
        return self.charged - self.margin + self.uncharged + self.idle + self.overhead

    @property
    def holds(self) -> bool:
        return self.total == self.cost


def reconciliation_in_cents(pools: Sequence[CostReconciliation]) -> list[dict[str, str]]:
    """The lines as they are shown: each adds up to the cent, and what is charged and what the GPUs cost sum over the pools to the
    month's own figures, to the cent as well (``statement_totals``, the sum of the statement's lines). The rest takes what rounding leaves."""
    charged = round_parts([pool.charged for pool in pools])
    costs = round_parts([pool.cost for pool in pools])
    return [_reconciliation_line_in_cents(*each) for each in zip(pools, charged, costs, strict=True)]


def _imbalance_in_cents(pool: CostReconciliation) -> Decimal:
    """By how much its sides differ, as it is shown: never by less than a cent where they do, or rounding could hide it."""
    by = pool.total - pool.cost
    return ZERO if pool.holds else max(CENT, round_amount(by)) if by > 0 else min(-CENT, round_amount(by))


def _reconciliation_line_in_cents(
    pool: CostReconciliation, charged: Decimal, cost: Decimal
) -> dict[str, str]:
    parts = [-pool.margin, pool.uncharged, pool.idle, pool.overhead]
    rest = round_parts_to_total(parts, cost - charged + _imbalance_in_cents(pool))
    return {
        "pool": pool.pool_name,
        "charged": str(charged),
        "margin": str(-rest[0]),
        "uncharged": str(rest[1]),
        "idle": str(rest[2]),
        "overhead": str(rest[3]),
        "cost": str(cost),
    }


@dataclass(frozen=True)
class StatementEntry:
    """One line of a statement. Shares are of slot-seconds, None when unknown; amounts are in cents."""

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


def reconcile_costs(month: date) -> list[CostReconciliation]:
    """The line of each pool that has GPUs or charges in the month, by pool name."""
    sums: dict[int, dict[str, tuple[Decimal, Decimal]]] = defaultdict(dict)
    rows = (
        Charge.objects.filter(month=month).values("pool", "bucket").annotate(c=Sum("cost"), p=Sum("charged"))
    )
    for row in rows:
        sums[row["pool"]][row["bucket"]] = (row["c"], row["p"])
    costs = asset_cost_by_pool(month)
    pools = Pool.objects.filter(pk__in={*sums, *costs}).order_by("name", "pk")
    return [_reconcile_pool(pool, sums[pool.pk], costs.get(pool.pk, ZERO)) for pool in pools]


def _reconcile_pool(
    pool: Pool, by_bucket: dict[str, tuple[Decimal, Decimal]], cost: Decimal
) -> CostReconciliation:
    def cost_of(buckets: Iterable[str]) -> Decimal:
        return sum((by_bucket.get(bucket, (ZERO, ZERO))[0] for bucket in buckets), ZERO)

    charged = sum((by_bucket.get(bucket, (ZERO, ZERO))[1] for bucket in CHARGED_BUCKETS), ZERO)
    return CostReconciliation(
        pool=pool.pk,
        pool_name=pool.name,
        charged=charged,
        margin=charged - cost_of(CHARGED_BUCKETS),
        uncharged=cost_of(UNCHARGED_BUCKETS),
        idle=cost_of(IDLE_BUCKETS),
        overhead=cost_of(OVERHEAD_BUCKETS),
        cost=cost,
    )


def asset_cost_by_pool(month: date) -> dict[int, Decimal]:
    """What each pool's GPUs cost over the charged part of the month, from the rate card alone, by pool id."""
    start, end = month_bounds(month)
    gpus = list(
        ChargedUntil.objects.filter(since__lt=end, until__gt=start).values_list(
            "gpu__host__pool", "gpu__model", "since", "until"
        )
    )
    rates = load_rates({(pool, model) for pool, model, _, _ in gpus})
    costs: dict[int, Decimal] = defaultdict(Decimal)
    for pool, model, since, until in gpus:
        costs[pool] += asset_cost(rates[pool, model], max(since, start), min(until, end))
    return dict(costs)


def statement_lines(month: date) -> list[StatementEntry]:
    """The month's lines: of a closed month the frozen ones, of an open one as they would be now. They sum to the totals exactly."""
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        return [_frozen_entry(row) for row in statement.lines.select_related(None).order_by("pk")]
    return _open_month_lines(month, statement.idle_payer if statement else IdlePayer.OPERATOR)


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


GROUP_COLUMNS = ("pool__name", "cost_centre", "team_name", "project_name", "workload_type", "model", "bucket")


def _open_month_lines(month: date, idle_payer: str) -> list[StatementEntry]:
    groups = list(
        Charge.objects.filter(month=month)
        .values(*GROUP_COLUMNS)
        .annotate(
            slot_sum=Sum("slot_seconds"),
            held=Sum("slot_seconds", filter=Q(allocation__isnull=False)),
            covered=Sum("covered_slot_seconds"),
            used=Sum("used_slot_seconds"),
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
    return [shared for line in made for shared in _allocate_idle_cost(line, made, idle_payer)]


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
    line: StatementEntry, all_lines: Sequence[StatementEntry], idle_payer: str
) -> list[StatementEntry]:
    """An idle line in the teams' parts where they pay for it; else as it is."""
    if line.bucket not in IDLE_BUCKETS or idle_payer == IdlePayer.OPERATOR:
        return [line]
    weights = (
        _guarantee_weights(line) if idle_payer == IdlePayer.GUARANTEE else _usage_weights(line, all_lines)
    )
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


def _guarantee_weights(line: StatementEntry) -> dict[str, Decimal]:
    rows = Quota.objects.filter(pool__name=line.pool, model=line.model).values_list(
        "team__name", "guaranteed_slots"
    )
    return {team: Decimal(slots) for team, slots in rows}


def _usage_weights(line: StatementEntry, all_lines: Sequence[StatementEntry]) -> dict[str, Decimal]:
    weights: dict[str, Decimal] = defaultdict(Decimal)
    for other in all_lines:
        if (
            other.pool == line.pool
            and other.model == line.model
            and other.bucket in CHARGED_BUCKETS
            and other.gpu_hours > 0
        ):
            weights[other.team] += other.gpu_hours
    return dict(weights)


def _main_cost_centre_by_team(all_lines: Sequence[StatementEntry]) -> dict[str, str]:
    """The cost centre that bears most of each team's charges."""
    amounts: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for line in all_lines:
        amounts[line.team, line.cost_centre] += line.amount
    best: dict[str, str] = {}
    for (team, centre), _ in sorted(amounts.items(), key=lambda item: (-item[1], item[0])):
        best.setdefault(team, centre)
    return best


def create_missing_statements(months: Iterable[date]) -> None:
    """An open statement for each of these months that has none yet: the only birth of one, safe in two transactions at once."""
    made = [Statement(month=month) for month in sorted(set(months))]
    Statement.objects.bulk_create(made, ignore_conflicts=True)


def get_or_create_statement(month: date) -> Statement:
    """The statement of a month, made open when it has none yet."""
    create_missing_statements([month])
    return Statement.objects.get(month=month)


def statement_totals(month: date) -> dict[str, Any]:
    """The month in a few figures: charged and cost to the cent, GPU-hours by bucket, and the conservation line of each pool."""
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        return dict(statement.totals)
    return _open_month_totals(month)


def _open_month_totals(month: date) -> dict[str, Any]:
    pools = reconcile_costs(month)
    hours = Charge.objects.filter(month=month).values("bucket").annotate(slot_sum=Sum("slot_seconds"))
    return {
        "charged": str(round_amount(sum((pool.charged for pool in pools), ZERO))),
        "cost": str(round_amount(sum((pool.cost for pool in pools), ZERO))),
        "gpu_hours": {
            row["bucket"]: str(round_amount(Decimal(row["slot_sum"]) / SLOT_SECONDS_PER_GPU_HOUR, MICRO))
            for row in hours.order_by("bucket")
        },
        "pools": reconciliation_in_cents(pools),
        "exact": [
            {"pool": pool.pool_name, "left": str(pool.total), "cost": str(pool.cost), "holds": pool.holds}
            for pool in pools
        ],
    }


def close_checks(month: date) -> list[dict[str, Any]]:
    """Everything that has to be so before a month is closed: ``{"check", "ok", "figures"}`` each."""
    start, end = month_bounds(month)
    behind = ChargedUntil.objects.filter(until__lt=end, since__lt=end)
    behind = behind.filter(Q(gpu__retired_at=None) | Q(gpu__retired_at__gte=end))
    never = Gpu.objects.filter(charged=None, created_at__lt=end)
    # While history is loaded, charges grow backwards: a month is not closed before they reach its GPUs' beginning.
    late = ChargedUntil.objects.filter(since__gt=start, gpu__created_at__lt=end).filter(
        since__gt=F("gpu__created_at")
    )
    month_lines = Charge.objects.filter(month=month)
    unpriced = month_lines.filter(price=None).values("model").annotate(count=Count("pk")).order_by("model")
    left = reconcile_costs(month)
    seconds = _gpus_with_wrong_seconds(month, start, end)
    due = RollupDue.objects.filter(bucket__gte=start, bucket__lt=end).count()
    no_centre = month_lines.filter(bucket__in=CHARGED_BUCKETS, cost_centre="", reversal=False)
    return [
        _check_result("something was charged in the month", month_lines.exists(), {}),
        _check_result(
            "every GPU is charged to the end of the month",
            not behind.exists() and not never.exists(),
            {
                "behind": behind.count(),
                "never": never.count(),
            },
        ),
        _check_result("every GPU is charged from when it came", not late.exists(), {"later": late.count()}),
        _check_result(
            "every line has a price", not unpriced.exists(), {"models": [row["model"] for row in unpriced]}
        ),
        _check_result(
            "every charged line has a cost centre",
            not no_centre.exists(),
            {
                "projects": sorted(set(no_centre.values_list("project_name", flat=True)))[:20],
            },
        ),
        _check_result(
            "every second of every GPU is in exactly one bucket", not seconds, {"gpus": seconds[:20]}
        ),
        _check_result(
            "charged - margin + uncharged and idle + overhead = cost of the GPUs, in each pool",
            all(pool.holds for pool in left),
            {
                "pools": [
                    {"pool": pool.pool_name, "left": str(pool.total), "cost": str(pool.cost)} for pool in left
                ]
            },
        ),
        _check_result("every sample of the month is rolled up", due == 0, {"due": due}),
    ]


def _check_result(words: str, ok: bool, figures: dict[str, Any]) -> dict[str, Any]:
    return {"check": words, "ok": ok, "figures": figures}


def _gpus_with_wrong_seconds(month: date, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """GPUs whose lines do not cover their time once. Corrections of older months sum to nothing, so they do not disturb."""
    written = dict(
        Charge.objects.filter(month=month)
        .values_list("gpu")
        .annotate(slot_sum=Sum("slot_seconds"))
        .order_by("gpu")
    )
    wrong = []
    for gpu, since, until in ChargedUntil.objects.filter(since__lt=end, until__gt=start).values_list(
        "gpu", "since", "until"
    ):
        wanted = int((min(until, end) - max(since, start)).total_seconds()) * SLOTS_PER_GPU
        if written.get(gpu, 0) != wanted:
            wrong.append({"gpu": gpu, "slot_seconds": written.get(gpu, 0), "expected": wanted})
    return wrong


@transaction.atomic
def close_month(*, month: date, closed_by: Any, now: datetime, currency: str = "") -> Statement:
    """Close a month that is over: nothing is charged to it from here on, the checks run, its lines are frozen and digested.

    Raises MonthCloseError when it is not over, closed already, or a check fails; then everything is as it was.
    """
    if month.day != 1:
        raise MonthCloseError(f"month is {month}; allowed: the first day of a month.")
    if month >= month_of(now):
        raise MonthCloseError(f"month is {month:%Y-%m}; allowed: a month that is over.")
    get_or_create_statement(month)
    # From here on the trigger on charges refuses this month; a charge on its way is waited for by this UPDATE.
    if not _transition(month, StatementState.OPEN, StatementState.CLOSING):
        raise MonthCloseError(f"month is {month:%Y-%m}; it is closed already.")
    found = close_checks(month)
    failed = [check for check in found if not check["ok"]]
    if failed:
        raise MonthCloseError(
            f"{month:%Y-%m} cannot be closed: it is not so that {failed[0]['check']} ({failed[0]['figures']}).",
            found,
        )
    statement = Statement.objects.get(month=month)
    frozen = _open_month_lines(month, statement.idle_payer)
    StatementLine.objects.bulk_create(
        [_statement_line_row(statement, line) for line in frozen], batch_size=2_000
    )
    text = _entries_to_csv(month, frozen, currency)
    closed = _transition(
        month,
        StatementState.CLOSING,
        StatementState.CLOSED,
        checks=found,
        totals=_open_month_totals(month),
        currency=currency,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        closed_at=now,
        closed_by=closed_by,
    )
    assert closed, "the row is locked by this transaction"
    statement.refresh_from_db()
    return statement


def _transition(month: date, old: StatementState, new: StatementState, **also: Any) -> bool:
    """Compare-and-swap along the table of ways; False when the month was not in ``old`` any more."""
    if new not in STATEMENT_TRANSITIONS[old]:
        raise ValueError(f"statement: {old} -> {new}")
    return Statement.objects.filter(month=month, state=old).update(state=new, **also) == 1


def _statement_line_row(statement: Statement, line: StatementEntry) -> StatementLine:
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


def statement_csv(month: date, currency: str = "") -> str:
    """The month's lines as CSV with a header; of a closed month the very bytes that its digest is of."""
    statement = Statement.objects.filter(month=month).first()
    if statement is not None and statement.state == StatementState.CLOSED:
        currency = statement.currency
    return _entries_to_csv(month, statement_lines(month), currency)


def _entries_to_csv(month: date, rows: Iterable[StatementEntry], currency: str) -> str:
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\r\n")
    writer.writerow(CSV_COLUMNS)
    for line in rows:
        writer.writerow(
            [
                f"{month:%Y-%m}",
                *(csv_safe_text(text) for text in (line.pool, line.cost_centre, line.team, line.project)),
                line.workload_type,
                line.model,
                line.bucket,
                f"{line.gpu_hours:f}",
                _format_share(line.covered_share),
                _format_share(line.used_share),
                f"{line.amount:f}",
                f"{line.cost:f}",
                currency,
            ]
        )
    return out.getvalue()


def _format_share(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"


def csv_safe_text(text: str) -> str:
    """A cell of any CSV file. Names are people's: what a spreadsheet would run as a formula gets an apostrophe (OWASP)."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
