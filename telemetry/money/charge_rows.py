"""Write charge pieces as charge lines.

Each line contains copies of the names and the cost centre, and the month of its statement. A piece that
several cost centres share gets one line for each. The measured use is stored beside it as usage evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from scheduler.models import Team
from telemetry.core.charge_model import ChargePiece
from telemetry.core.charge_pieces import charge_pieces, price_pieces
from telemetry.core.cost_shares import UNMAPPED, CostSplit, split_parts
from telemetry.cost_centres.splits import Payer, load_splits
from telemetry.ledger.charge_owners import (
    NOBODY,
    ChargeOwner,
    load_allocation_owners,
    load_reservation_owners,
)
from telemetry.ledger.locks import lock_ledger
from telemetry.ledger.new_charges import NewCharge, insert_charge_lines
from telemetry.ledger.sums import add_to_sums
from telemetry.models import ChargeBucketChoices, Statement, StatementState
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charging_inputs import GpuChargingInputs
from telemetry.money.evidence_locks import lock_for_new_lines
from telemetry.money.statements import create_missing_statements
from telemetry.money.usage_evidence import write_evidence, write_reversed_evidence


@dataclass(frozen=True, slots=True)
class ChargeDraft:
    """A priced piece of one GPU's time, from which charge lines are made.

    ``corrects`` is the id of the ledger line that they replace; None if they replace no line.
    """

    gpu: GpuChargingInputs
    piece: ChargePiece
    corrects: int | None = None


def draft_charges(gpu: GpuChargingInputs, start: datetime, end: datetime) -> Iterator[ChargeDraft]:
    """Yield a draft for each priced piece of a GPU's time in ``[start, end)``."""
    for piece in price_pieces(charge_pieces(gpu.time, start, end)):
        yield ChargeDraft(gpu, piece)


def write_charges(lines: Sequence[ChargeDraft], now: datetime) -> int:
    """Insert the drafts as charge lines with their usage evidence, and return the number of lines."""
    return insert_charges(charge_rows(lines, now), now)


def insert_charges(rows: Sequence[NewCharge], now: datetime) -> int:
    """Insert charge lines with their usage evidence, and add them to the sums of statement lines and cells.

    The caller holds ``lock_for_new_lines`` and has created the statements of the lines. Returns the number of
    lines.
    """
    if not rows:
        return 0
    lock_ledger()
    ids = insert_charge_lines(rows)
    write_evidence(ids, rows, now)
    write_reversed_evidence([row.corrects_id for row in rows if row.reversal and row.corrects_id], now)
    add_to_sums(ids)
    return len(ids)


def charge_rows(lines: Sequence[ChargeDraft], now: datetime) -> list[NewCharge]:
    """Return the charge lines of the drafts. Creates the statements of their months.

    A draft gets one line for each cost centre that shares it, in order of code.

    A line gets the month in which its piece starts. If that month is closing or closed, the line gets the
    month of ``now``. The database accepts such a line only if it corrects another line.
    """
    if not lines:
        return []
    lock_for_new_lines()
    present = billing_calendar().month_of(now)
    month_of_day = {day: day.replace(day=1) for day in {line.piece.day for line in lines}}
    months = {present, *month_of_day.values()}
    # Every statement must exist, because the insert of a charge locks the statement. The lock prevents a
    # concurrent close of the month.
    create_missing_statements(months)
    closed = months_not_open(months)
    statement_month = {day: present if month in closed else month for day, month in month_of_day.items()}
    names = _ChargeNames(lines)
    return [row for line in lines for row in names.rows_of(line, statement_month[line.piece.day], now)]


def months_not_open(months: Iterable[date]) -> set[date]:
    """Return the months whose statement is closing or closed."""
    closed = Statement.objects.filter(month__in=months).exclude(state=StatementState.OPEN)
    return set(closed.values_list("month", flat=True))


class _ChargeNames:
    """The projects, owners, names and splits of many drafts, loaded with a fixed number of queries."""

    def __init__(self, lines: Sequence[ChargeDraft]) -> None:
        self.allocations = load_allocation_owners({line.piece.owner.allocation for line in lines} - {0})
        self.reservations = load_reservation_owners({line.piece.owner.reservation for line in lines} - {0})
        teams = {line.gpu.team for line in lines if line.gpu.team is not None}
        self.teams = {
            team: ChargeOwner(team=team, team_name=name)
            for team, name in Team.with_removed.filter(pk__in=teams).values_list("pk", "name")
        }
        owners = (*self.allocations.values(), *self.reservations.values())
        projects = {owner.project for owner in owners if owner.project is not None}
        pools = {line.gpu.pool for line in lines if line.gpu.team is not None}
        self.splits = load_splits(projects, pools)

    def rows_of(self, line: ChargeDraft, month: date, now: datetime) -> Iterator[NewCharge]:
        """Yield the line of each cost centre that pays a draft. ``month`` is that of their statement."""
        gpu, piece = line.gpu, line.piece
        key, factor = piece.owner, piece.factor
        owner = self._owner_of(line)
        split = self._split_of(line, owner)
        for part in split_parts(piece.slot_seconds, piece.cost, piece.charged, split):
            # By position, in the order of the fields of NewCharge: names take three times as long.
            yield NewCharge(
                gpu.pool,
                month,
                key.bucket,
                piece.day,
                piece.start,
                piece.end,
                piece.slots,
                part.slot_seconds,
                gpu.id,
                gpu.model,
                part.share.code,
                part.share.percent,
                part.cost,
                part.charged,
                now,
                key.allocation or None,
                key.reservation or None,
                owner.workload,
                owner.team,
                owner.project,
                owner.user,
                owner.team_name,
                owner.project_name,
                owner.user_name,
                owner.workload_name,
                owner.workload_type,
                owner.simulated,
                piece.rate.id if piece.rate else None,
                factor.priority_factor if factor else None,
                factor.type_factor if factor else None,
                line.corrects,
            )

    def _split_of(self, line: ChargeDraft, owner: ChargeOwner) -> CostSplit:
        """Return the split in force at the start of a draft."""
        if owner.project is not None:
            return self.splits.at(Payer(project=owner.project), line.piece.start)
        if owner.team is not None:
            return self.splits.at(Payer(pool=line.gpu.pool), line.piece.start)
        return UNMAPPED

    def _owner_of(self, line: ChargeDraft) -> ChargeOwner:
        """Return who holds or has reserved the slots of a draft, or the team of a dedicated pool."""
        key = line.piece.owner
        if key.allocation and key.allocation in self.allocations:
            return self.allocations[key.allocation]
        if key.reservation and key.reservation in self.reservations:
            return self.reservations[key.reservation]
        if _is_dedicated_unused(line):
            return self.teams[line.gpu.team or 0]
        return NOBODY


def _is_dedicated_unused(line: ChargeDraft) -> bool:
    """Return True for the unused time of a dedicated pool. It belongs to one team, which pays for it."""
    owner = line.piece.owner
    unused = owner.bucket == ChargeBucketChoices.RESERVED_UNUSED and not owner.allocation
    return unused and not owner.reservation and line.gpu.team is not None
