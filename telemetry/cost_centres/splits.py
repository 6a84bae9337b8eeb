"""Read the splits of projects and dedicated pools: the cost centres that pay, and their shares."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models import Q

from telemetry.core.cost_shares import UNMAPPED, CostShare, CostSplit, cost_split
from telemetry.models import CostCentreShare


class Payer(NamedTuple):
    """A project, or a dedicated pool for its unused time. Exactly one of the two ids is given."""

    project: int | None = None
    pool: int | None = None


@dataclass(frozen=True, slots=True)
class SplitPeriod:
    """A split that is in force from ``start`` until ``end``. ``end`` is None for the last split."""

    start: datetime
    end: datetime | None
    split: CostSplit


class CostSplits:
    """The splits of payers over time."""

    def __init__(self, rows: Iterable[CostCentreShare]) -> None:
        """Group the rows by payer and date. If several splits have the same date, the newest applies."""
        newest: dict[Payer, dict[datetime, datetime]] = defaultdict(dict)
        shares: dict[tuple[Payer, datetime, datetime], list[CostShare]] = defaultdict(list)
        for row in rows:
            payer = Payer(row.project_id, row.pool_id)
            shares[payer, row.valid_from, row.created_at].append(CostShare(row.code, row.percent))
            before = newest[payer].get(row.valid_from)
            if before is None or before < row.created_at:
                newest[payer][row.valid_from] = row.created_at
        self._starts = {payer: sorted(dates) for payer, dates in newest.items()}
        self._splits = {
            payer: [cost_split(shares[payer, start, newest[payer][start]]) for start in starts]
            for payer, starts in self._starts.items()
        }

    def at(self, payer: Payer, moment: datetime) -> CostSplit:
        """Return the split in force at ``moment``. Before the first split, return UNMAPPED."""
        place = bisect_right(self._starts.get(payer, ()), moment)
        return self._splits[payer][place - 1] if place else UNMAPPED

    def periods(self, payer: Payer) -> list[SplitPeriod]:
        """Return the splits of a payer in order of time."""
        starts = self._starts.get(payer, [])
        ends: list[datetime | None] = [*starts[1:], None]
        return [
            SplitPeriod(start, end, split)
            for start, end, split in zip(starts, ends, self._splits.get(payer, []), strict=False)
        ]

    def current(self, now: datetime) -> dict[Payer, CostSplit]:
        """Return the split in force at ``now`` of each payer that has one."""
        found = {payer: self.at(payer, now) for payer in self._starts}
        return {payer: split for payer, split in found.items() if split is not UNMAPPED}


def load_splits(projects: Collection[int], pools: Collection[int] = ()) -> CostSplits:
    """Return the splits of these projects and dedicated pools. Runs one query."""
    return CostSplits(CostCentreShare.objects.filter(Q(project__in=projects) | Q(pool__in=pools)))


def load_all_splits() -> CostSplits:
    """Return the splits of every project and dedicated pool. Runs one query."""
    return CostSplits(CostCentreShare.objects.all())
