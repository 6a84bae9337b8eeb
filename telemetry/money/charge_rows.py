"""Write charge pieces as Charge rows.

Each row contains copies of the names and the cost centre, and the month of its statement. A piece that
several cost centres share gets one row for each. The measured use is stored beside it as usage evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from scheduler.models import Team
from telemetry.core.charge_model import ChargePiece
from telemetry.core.charge_pieces import charge_pieces, price_pieces
from telemetry.core.cost_shares import UNMAPPED, SplitPart, split_parts
from telemetry.cost_centres.splits import Payer, load_splits
from telemetry.ledger.charge_owners import ChargeOwner, load_allocation_owners, load_reservation_owners
from telemetry.ledger.locks import lock_ledger
from telemetry.ledger.row_copy import copy_new_rows
from telemetry.ledger.sums import add_to_sums
from telemetry.models import Charge, ChargeBucketChoices, Statement, StatementState
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charging_inputs import GpuChargingInputs
from telemetry.money.evidence_locks import lock_for_new_lines
from telemetry.money.statements import create_missing_statements
from telemetry.money.usage_evidence import write_evidence, write_reversed_evidence


@dataclass(frozen=True, slots=True)
class ChargeDraft:
    """A priced piece of one GPU's time, from which a Charge row is made.

    ``corrects`` is the id of the ledger line that the row replaces; None if the row replaces no line.
    """

    gpu: GpuChargingInputs
    piece: ChargePiece
    corrects: int | None = None


def draft_charges(gpu: GpuChargingInputs, start: datetime, end: datetime) -> Iterator[ChargeDraft]:
    """Yield a draft for each priced piece of a GPU's time in ``[start, end)``."""
    for piece in price_pieces(charge_pieces(gpu.time, start, end)):
        yield ChargeDraft(gpu, piece)


def write_charges(lines: Sequence[ChargeDraft], now: datetime) -> list[Charge]:
    """Insert the drafts as Charge rows with their usage evidence, and return the rows."""
    return insert_charges(charge_rows(lines, now), now)


def insert_charges(rows: Sequence[Charge], now: datetime) -> list[Charge]:
    """Insert Charge rows with their usage evidence, and add them to the sums of statement lines and cells.

    The caller holds ``lock_for_new_lines`` and has created the statements of the rows. Returns the rows.
    """
    if not rows:
        return []
    lock_ledger()
    made = list(rows)
    copy_new_rows(made)
    write_evidence([row for row in made if not row.reversal], now)
    write_reversed_evidence([row.corrects_id for row in made if row.reversal and row.corrects_id], now)
    add_to_sums([row.pk for row in made])
    return made


def charge_rows(lines: Sequence[ChargeDraft], now: datetime) -> list[Charge]:
    """Return the drafts as unsaved Charge rows. Creates the statements of their months.

    A draft gets one row for each cost centre that shares it, in order of code.

    A row gets the month in which its piece starts. If that month is closing or closed, the row gets the month
    of ``now``. The database accepts such a row only if it corrects another row.
    """
    if not lines:
        return []
    lock_for_new_lines()
    names = _ChargeNames(lines)
    present = billing_calendar().month_of(now)
    months = {line.piece.day.replace(day=1) for line in lines} | {present}
    # Every statement must exist, because the insert of a charge locks the statement. The lock prevents a
    # concurrent close of the month.
    create_missing_statements(months)
    closed = months_not_open(months)
    rows = []
    for line in lines:
        month = line.piece.day.replace(day=1)
        for part in names.parts_of(line):
            row = Charge(
                pool_id=line.gpu.pool,
                month=present if month in closed else month,
                day=line.piece.day,
                bucket=line.piece.owner.bucket,
                start=line.piece.start,
                end=line.piece.end,
                slots=line.piece.slots,
                slot_seconds=part.slot_seconds,
                gpu_id=line.gpu.id,
                model=line.gpu.model,
                cost_centre=part.share.code,
                share_percent=part.share.percent,
                price_id=line.piece.rate.id if line.piece.rate else None,
                priority_factor_id=line.piece.factor.priority_factor if line.piece.factor else None,
                type_factor_id=line.piece.factor.type_factor if line.piece.factor else None,
                cost=part.cost,
                charged=part.charged,
                corrects_id=line.corrects,
                created_at=now,
            )
            names.fill_in(row, line)
            rows.append(row)
    return rows


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
        self.teams = Team.with_removed.in_bulk(teams)
        projects = {each.project for each in (*self.allocations.values(), *self.reservations.values())}
        pools = {line.gpu.pool for line in lines if line.gpu.team is not None}
        self.splits = load_splits(projects, pools)

    def parts_of(self, line: ChargeDraft) -> list[SplitPart]:
        """Return the parts of a draft that its cost centres pay, by the split in force at its start."""
        piece = line.piece
        split = UNMAPPED
        owner = self._owner_of(line)
        if owner is not None:
            split = self.splits.at(Payer(project=owner.project), piece.start)
        elif _is_dedicated_unused(line):
            split = self.splits.at(Payer(pool=line.gpu.pool), piece.start)
        return split_parts(piece.slot_seconds, piece.cost, piece.charged, split)

    def _owner_of(self, line: ChargeDraft) -> ChargeOwner | None:
        """Return the owner who holds or has reserved the slots of a draft; None if there is none."""
        key = line.piece.owner
        return self.allocations.get(key.allocation) or self.reservations.get(key.reservation)

    def fill_in(self, row: Charge, line: ChargeDraft) -> None:
        """Set the holder, project, team and user of a row, and their names."""
        key = line.piece.owner
        row.allocation_id, row.reservation_id = key.allocation or None, key.reservation or None
        owner = self._owner_of(line)
        if owner is not None:
            row.workload_id, row.workload_name = owner.workload, owner.workload_name
            row.workload_type, row.simulated = owner.workload_type, owner.simulated
            row.project_id, row.project_name = owner.project, owner.project_name
            row.team_id, row.team_name = owner.team, owner.team_name
            row.user_id, row.user_name = owner.user, owner.user_name
        elif _is_dedicated_unused(line):
            row.team_id, row.team_name = line.gpu.team, self.teams[line.gpu.team or 0].name


def _is_dedicated_unused(line: ChargeDraft) -> bool:
    """Return True for the unused time of a dedicated pool. It belongs to one team, which pays for it."""
    owner = line.piece.owner
    unused = owner.bucket == ChargeBucketChoices.RESERVED_UNUSED and not owner.allocation
    return unused and not owner.reservation and line.gpu.team is not None
