"""Rewrite charged time after a change of cost centres, and compute the amounts that such a change moves.

The cost centres of a project or a dedicated pool can change at any date in an open month. Lines that are
already charged are reversed. Lines of the new cost centres with the same total replace them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from operator import or_

from django.db import IntegrityError, transaction
from django.db.models import Max, Min, Q, QuerySet, Sum

from telemetry.core.amounts import ZERO, round_amount, round_parts, split_amount
from telemetry.core.cost_shares import CostShare, CostSplit, split_parts
from telemetry.core.currencies import smallest_unit
from telemetry.cost_centres.splits import Payer, SplitPeriod, load_splits
from telemetry.ledger.new_charges import NewCharge
from telemetry.models import (
    Charge,
    ChargeBucketChoices,
    CostCentreShare,
    SettledShare,
    Statement,
    StatementState,
)
from telemetry.money.charge_rows import insert_charges
from telemetry.money.correction_causes import split_cause
from telemetry.money.evidence_locks import lock_for_update
from telemetry.money.settlement import PieceKey, copy_of, piece_key, reversal_of, with_cause

LINES_PER_TRANSACTION = 2000
TRANSACTIONS_PER_RUN = 20


@dataclass(frozen=True)
class MovedAmount:
    """The charges of a cost centre in one currency before and after a change of a split, in cents."""

    code: str
    currency: str
    before: Decimal
    after: Decimal

    @property
    def moved(self) -> Decimal:
        """Return the amount that the cost centre pays more; negative if it pays less."""
        return self.after - self.before


def settle_cost_centres(now: datetime) -> int:
    """Rewrite charged lines of open months whose cost centres were changed later.

    Returns the number of reversed lines.
    """
    _settle_right_payers(now)
    reversed_count = 0
    for _ in range(TRANSACTIONS_PER_RUN):
        if not _due_shares(now).exists():
            break
        try:
            with transaction.atomic():
                reversed_count += _settle_some_lines(now)
        except IntegrityError:
            # A concurrent correction has reversed one of these lines. The next run rewrites the others.
            break
    return reversed_count


def moved_amounts(payer: Payer, split: CostSplit, valid_from: datetime) -> list[MovedAmount]:
    """Return the charges that a new split from ``valid_from`` on would move, by currency and cost centre.

    Only charged time counts. If a later split exists, time after its start does not count. A code is empty
    for time without a cost centre.
    """
    later = [period.start for period in _periods(payer) if period.start > valid_from]
    lines = Charge.objects.filter(_of_payer(payer), start__gte=valid_from)
    if later:
        lines = lines.filter(start__lt=min(later))
    sums = lines.values_list("price__currency", "cost_centre").annotate(total=Sum("charged"))
    exact: dict[str, dict[str, Decimal]] = defaultdict(dict)
    for currency, code, total in sums.order_by("price__currency", "cost_centre"):
        if total:  # a line without a price charges nothing
            exact[currency][code] = total
    return [row for currency, charged in exact.items() for row in _moved_in(currency, charged, split)]


def _moved_in(currency: str, charged: Mapping[str, Decimal], split: CostSplit) -> list[MovedAmount]:
    """Return the amounts that a split moves in one currency. ``charged`` has six decimals, by cost centre."""
    unit = smallest_unit(currency)
    total = round_amount(sum(charged.values(), ZERO), unit)
    before = dict(zip(charged, round_parts(list(charged.values()), unit, total=total), strict=True))
    parts = split_amount(total, [share.percent for share in split], unit)
    after = {share.code: part for share, part in zip(split, parts, strict=True)}
    codes = sorted(before.keys() | after.keys())
    return [MovedAmount(code, currency, before.get(code, ZERO), after.get(code, ZERO)) for code in codes]


def _settle_right_payers(now: datetime) -> None:
    """Mark the due shares of all payers without wrong lines as settled, with one pass over the lines.

    The pass reads only the first and the last start of each group of lines. If these do not prove that all
    lines of the group are right, the shares of the payer stay due.
    """
    due = _due_shares(now)
    if not due.exists():
        return
    with transaction.atomic():
        # Wait for charges that were computed with the former split and are not committed yet.
        lock_for_update()
        shares = list(due)  # a concurrent run may have settled them
        if not shares:
            return
        payers = {Payer(share.project_id, share.pool_id) for share in shares}
        splits = load_splits(
            {payer.project for payer in payers if payer.project is not None},
            {payer.pool for payer in payers if payer.pool is not None},
        )
        unsure = {
            group.payer
            for group in _charged_groups(min(share.valid_from for share in shares))
            if group.payer in payers and not _is_right(group, splits.periods(group.payer))
        }
        SettledShare.objects.bulk_create(
            SettledShare(share=share, settled_at=now)
            for share in shares
            if Payer(share.project_id, share.pool_id) not in unsure
        )


@dataclass(frozen=True)
class _ChargedGroup:
    """Lines of a payer in one pool with one cost centre and share, and the first and last of their starts."""

    payer: Payer
    code: str
    percent: Decimal
    first: datetime
    last: datetime


def _charged_groups(since: datetime) -> list[_ChargedGroup]:
    """Return the groups of lines with a payer that start at ``since`` or later, in open months."""
    has_payer = Q(project__isnull=False) | Q(bucket=ChargeBucketChoices.RESERVED_UNUSED)
    lines = _lines_of_open_months().filter(has_payer, start__gte=since)
    rows = lines.order_by().values_list("project", "pool", "cost_centre", "share_percent")
    return [
        _ChargedGroup(Payer(pool=pool) if project is None else Payer(project=project), *values)
        for project, pool, *values in rows.annotate(first=Min("start"), last=Max("start"))
    ]


def _is_right(group: _ChargedGroup, periods: Sequence[SplitPeriod]) -> bool:
    """Return True if each split between the first and the last line of a group contains its share."""
    share = CostShare(group.code, group.percent)
    return all(
        share in period.split
        for period in periods
        if period.start <= group.last and (period.end is None or group.first < period.end)
    )


def _lines_of_open_months() -> QuerySet[Charge]:
    """Return the standing lines that a change of cost centres may rewrite."""
    open_months = Statement.objects.filter(state=StatementState.OPEN).values("month")
    lines = Charge.objects.filter(month__in=open_months, reversal=False)
    return lines.exclude(corrections__reversal=True)


def _due_shares(now: datetime) -> QuerySet[CostCentreShare]:
    return CostCentreShare.objects.filter(settledshare=None, valid_from__lte=now)


def _settle_some_lines(now: datetime) -> int:
    """Rewrite the wrong lines of the first payer with a due share. Return the number of reversed lines.

    Marks its shares as settled if no wrong line remains.
    """
    # Wait for charges that were computed with the former split and are not committed yet.
    lock_for_update()
    first = _due_shares(now).order_by("pk").first()
    if first is None:
        return 0
    payer = Payer(first.project_id, first.pool_id)
    due = _due_shares(now).filter(project=payer.project, pool=payer.pool).order_by("valid_from")
    since = due[0].valid_from
    settled = list(due)
    pieces: list[tuple[list[Charge], CostSplit]] = []
    count = 0
    for period in _periods(payer):
        if period.end is not None and period.end <= since:
            continue
        for lines in _wrong_pieces(payer, period, since, LINES_PER_TRANSACTION - count):
            pieces.append((lines, period.split))
            count += len(lines)
        if count >= LINES_PER_TRANSACTION:
            break
    insert_charges([row for lines, split in pieces for row in _rewritten(lines, split, now)], now)
    if count < LINES_PER_TRANSACTION:
        SettledShare.objects.bulk_create(SettledShare(share=share, settled_at=now) for share in settled)
    return count


def _periods(payer: Payer) -> list[SplitPeriod]:
    splits = load_splits(
        [] if payer.project is None else [payer.project], [] if payer.pool is None else [payer.pool]
    )
    return splits.periods(payer)


def _of_payer(payer: Payer) -> Q:
    """Return the condition on charge lines of a project, or of the unused time of a dedicated pool."""
    if payer.project is not None:
        return Q(project=payer.project)
    return Q(pool=payer.pool, project=None, bucket=ChargeBucketChoices.RESERVED_UNUSED)


def _wrong_pieces(payer: Payer, period: SplitPeriod, since: datetime, limit: int) -> Iterable[list[Charge]]:
    """Return pieces that together have about ``limit`` wrong lines in a period. Reversed lines are left out.

    A piece is rewritten as a whole, because its lines are the rounded parts of one amount.
    """
    if limit <= 0:
        return []
    lines = _lines_of_open_months().filter(_of_payer(payer), start__gte=max(period.start, since))
    if period.end is not None:
        lines = lines.filter(start__lt=period.end)
    right = reduce(or_, (Q(cost_centre=share.code, share_percent=share.percent) for share in period.split))
    wrong = list(lines.exclude(right).order_by("start", "pk")[:limit])
    pieces: dict[PieceKey, dict[int, Charge]] = defaultdict(dict)
    for line in (*wrong, *_siblings(lines, wrong)):
        pieces[piece_key(line)][line.pk] = line
    wanted = {piece_key(line) for line in wrong}
    return [[rows[pk] for pk in sorted(rows)] for key, rows in pieces.items() if key in wanted]


def _siblings(lines: QuerySet[Charge], wrong: Sequence[Charge]) -> list[Charge]:
    """Return the lines that may share a piece with a line of ``wrong``."""
    shared = [line for line in wrong if line.share_percent < 100]
    if not shared:
        return []
    gpus, starts = {line.gpu_id for line in shared}, {line.start for line in shared}
    return list(lines.filter(gpu__in=gpus, start__in=starts, share_percent__lt=100))


def _rewritten(lines: Sequence[Charge], split: CostSplit, now: datetime) -> list[NewCharge]:
    """Return the reversals of the lines of one piece, and its new lines by ``split``."""
    first = lines[0]
    rows = [reversal_of(line, set(), now) for line in lines]
    parts = split_parts(
        sum(line.slot_seconds for line in lines),
        sum((line.cost for line in lines), ZERO),
        sum((line.charged for line in lines), ZERO),
        split,
    )
    for part in parts:
        rows.append(
            copy_of(
                first,
                now,
                cost_centre=part.share.code,
                share_percent=part.share.percent,
                slot_seconds=part.slot_seconds,
                cost=part.cost,
                charged=part.charged,
            )
        )
    return with_cause(rows, split_cause(split, was_unmapped=not first.cost_centre))
