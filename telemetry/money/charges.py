"""Charge lines: every second of every GPU in exactly one bucket, priced, and never edited afterwards.

``charge_all_gpus`` goes forward from where each GPU was charged to, then looks back at what ended or became known late. What it wrote
before is corrected by reversals and new lines. It may run twice at once: a GPU's stretch is claimed by compare-and-swap on
``ChargedUntil``, and a line can be taken back only once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.db import IntegrityError, connection, transaction
from django.db.models import F, Sum

from scheduler.models import Allocation, Gpu, HostStateChange, Project, Reservation
from telemetry.core.charging import (
    ChargeCorrection,
    ChargeKey,
    ChargePiece,
    LedgerLine,
    charge_pieces,
    find_corrections,
    floor_to_second,
    lost_time,
    next_midnight,
    price_pieces,
)
from telemetry.models import (
    Charge,
    ChargeBucketChoices,
    ChargedUntil,
    CostCentre,
    Rollup,
    SettledAllocation,
    SettledStateChange,
    Statement,
    StatementState,
)
from telemetry.money.charging_inputs import GpuChargingInputs, last_change_in, load_charging_inputs
from telemetry.money.statements import create_missing_statements

REPORTING_LAG = timedelta(seconds=60)  # what happened this long ago has been reported
GPUS_PER_TRANSACTION = 200
CATCH_UP_SPAN = timedelta(days=7)  # how much is read at once after a standstill
CATCH_UP_ROUNDS = 6
SETTLEMENTS_PER_RUN = 500


@dataclass
class ChargeRunResult:
    """What one run wrote."""

    lines: int = 0
    corrections: int = 0


def charge_all_gpus(now: datetime) -> ChargeRunResult:
    """Charge every GPU up to the last full hour, and up to whatever began or ended on it since, at most ``now - LAG``."""
    done = ChargeRunResult()
    limit = floor_to_second(now - REPORTING_LAG)
    _start_charging_new_gpus(limit)
    done.corrections += settle_state_changes(now)
    hour = limit.replace(minute=0, second=0)
    for ids in _chunks(Gpu.objects.order_by("pk").values_list("pk", flat=True), GPUS_PER_TRANSACTION):
        for _ in range(CATCH_UP_ROUNDS):
            written = _charge_forward(ids, hour, limit, now)
            done.lines += written
            if not written:
                break
    done.corrections += settle_allocations(now)
    return done


def charge_past(
    gpu_ids: Collection[int], since: datetime, now: datetime, on_day: Callable[[datetime], None] | None = None
) -> int:
    """Charge the time from ``since`` to where these GPUs' charges begin: history that was loaded later. The lines' number.

    A GPU that was never charged begins at ``since`` and is charged forward by the next ``charge_all_gpus``. ``on_day`` hears of each day
    that is done, newest first.
    """
    written = 0
    begins = dict(ChargedUntil.objects.filter(gpu__in=gpu_ids).values_list("gpu_id", "since"))
    for gpu in sorted(set(gpu_ids) - set(begins)):
        ChargedUntil.objects.get_or_create(gpu_id=gpu, defaults={"since": since, "until": since})
    for until in sorted(set(begins.values())):
        ids = sorted(gpu for gpu, begin in begins.items() if begin == until)
        if since < until:
            written += _charge_backward(ids, floor_to_second(since), until, now, on_day)
    return written


def statement_month_of(moment: datetime) -> date:
    """The first day of the month ``moment`` lies in (UTC)."""
    return floor_to_second(moment).date().replace(day=1)


def _start_charging_new_gpus(limit: datetime) -> None:
    """GPUs that were never charged are charged from when they came. Thousands may have come at once."""
    new = (
        Gpu.objects.filter(charged=None, created_at__lt=limit).values_list("pk", "created_at").order_by("pk")
    )
    begins = ((pk, floor_to_second(created)) for pk, created in new)
    rows = [ChargedUntil(gpu_id=pk, since=begin, until=begin) for pk, begin in begins]
    ChargedUntil.objects.bulk_create(rows, ignore_conflicts=True, batch_size=2000)


def _charge_forward(ids: Sequence[int], hour: datetime, limit: datetime, now: datetime) -> int:
    untils = dict(ChargedUntil.objects.filter(gpu__in=ids, until__lt=limit).values_list("gpu_id", "until"))
    if not untils:
        return 0
    first = min(untils.values())
    limit = min(limit, first + CATCH_UP_SPAN)
    hour = min(hour, limit)
    untils = {gpu: until for gpu, until in untils.items() if until < limit}
    facts = load_charging_inputs(untils.keys(), first, limit)
    ends = {gpu: _charge_end(facts[gpu], until, hour, limit) for gpu, until in untils.items()}
    ends = {gpu: end for gpu, end in ends.items() if end > untils[gpu]}
    if not ends:
        return 0
    with transaction.atomic():
        won = _claim_spans([(gpu, untils[gpu], end) for gpu, end in sorted(ends.items())])
        lines = [line for gpu in won for line in _draft_charges(facts[gpu], untils[gpu], ends[gpu])]
        return len(_write_charges(lines, now))


def _charge_end(gpu: GpuChargingInputs, until: datetime, hour: datetime, limit: datetime) -> datetime:
    """The last full hour, or what began or ended on the GPU after it: so lines are few, and what is over is charged at once."""
    if gpu.retired_at is not None and gpu.retired_at <= limit:
        return floor_to_second(gpu.retired_at)
    boundary = last_change_in(gpu, until, limit)
    return max(hour, floor_to_second(boundary)) if boundary else hour


def _claim_spans(stretches: Sequence[tuple[int, datetime, datetime]]) -> list[int]:
    """The GPUs whose ``until`` was moved by this call; of two runs at once, one gets each."""
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE telemetry_chargeduntil c SET "until" = v.new_until'
            " FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[]) AS v (gpu_id, old_until, new_until)"
            ' WHERE c.gpu_id = v.gpu_id AND c."until" = v.old_until RETURNING c.gpu_id',
            [list(column) for column in zip(*stretches, strict=True)],
        )
        return sorted(row[0] for row in cursor.fetchall())


def _charge_backward(
    ids: Sequence[int],
    since: datetime,
    until: datetime,
    now: datetime,
    on_day: Callable[[datetime], None] | None,
) -> int:
    """One transaction per day, from the newest back, so that what is charged is always one stretch up to ``until``."""
    written = 0
    end = until
    while end > since:
        start = max(since, next_midnight(end - timedelta(seconds=1)) - timedelta(days=1))
        facts = load_charging_inputs(ids, start, end)
        with transaction.atomic():
            won = [
                gpu for gpu in ids if ChargedUntil.objects.filter(gpu=gpu, since=end).update(since=start) == 1
            ]
            written += len(
                _write_charges([line for gpu in won for line in _draft_charges(facts[gpu], start, end)], now)
            )
        if on_day is not None:
            on_day(start)
        end = start
    return written


@dataclass(frozen=True, slots=True)
class _ChargeDraft:
    """A piece of one GPU on its way to becoming a row."""

    gpu: GpuChargingInputs
    piece: ChargePiece
    corrects: int | None = None


def _draft_charges(gpu: GpuChargingInputs, start: datetime, end: datetime) -> Iterator[_ChargeDraft]:
    for piece in price_pieces(charge_pieces(gpu.time, start, end)):
        yield _ChargeDraft(gpu, piece)


def _write_charges(lines: Sequence[_ChargeDraft], now: datetime) -> list[Charge]:
    """The rows of ``lines``, with every name copied in."""
    if not lines:
        return []
    names = _ChargeNames(lines)
    uses = _measured_use_by_line(lines)
    months = {statement_month_of(line.piece.start) for line in lines} | {statement_month_of(now)}
    # A month's row is what a close and the charges on their way wait for each other on.
    create_missing_statements(months)
    closed = _months_not_open(months)
    rows = []
    for index, line in enumerate(lines):
        month = statement_month_of(line.piece.start)
        row = Charge(
            pool_id=line.gpu.pool,
            month=statement_month_of(now) if month in closed else month,
            bucket=line.piece.owner.bucket,
            start=line.piece.start,
            end=line.piece.end,
            slots=line.piece.slots,
            slot_seconds=line.piece.slot_seconds,
            gpu_id=line.gpu.id,
            model=line.gpu.model,
            price_id=line.piece.rate.id if line.piece.rate else None,
            cost=line.piece.cost,
            charged=line.piece.charged,
            corrects_id=line.corrects,
            created_at=now,
        )
        names.fill_in(row, line)
        if index in uses:
            row.used_slot_seconds, row.covered_slot_seconds = uses[index]
        rows.append(row)
    return Charge.objects.bulk_create(rows, batch_size=2000)


def _months_not_open(months: Iterable[date]) -> set[date]:
    found = Statement.objects.filter(month__in=months).exclude(state=StatementState.OPEN)
    return set(found.values_list("month", flat=True))


class _ChargeNames:
    """Who pays for which piece, with the names and the cost centre in force, for many lines at once."""

    def __init__(self, lines: Sequence[_ChargeDraft]) -> None:
        allocations = {line.piece.owner.allocation for line in lines} - {0}
        self.allocations = {
            row.pk: row
            for row in Allocation.objects.filter(pk__in=allocations).select_related(
                "workload__owner", "project__team"
            )
        }
        reservations = {line.piece.owner.reservation for line in lines} - {0}
        self.reservations = {
            row.pk: row
            for row in Reservation.objects.filter(pk__in=reservations).select_related(
                "owner", "project__team"
            )
        }
        teams = {line.gpu.team for line in lines if line.gpu.team is not None}
        self.first_projects: dict[int, Project] = {}
        for project in (
            Project.objects.filter(team__in=teams).select_related("team").order_by("-created_at", "-pk")
        ):
            self.first_projects[project.team_id] = project
        projects = {allocation.project_id for allocation in self.allocations.values()}
        projects |= {reservation.project_id for reservation in self.reservations.values()}
        projects |= {project.pk for project in self.first_projects.values()}
        self.centres: dict[int, list[CostCentre]] = defaultdict(list)
        for centre in CostCentre.objects.filter(project__in=projects).order_by("valid_from", "pk"):
            self.centres[centre.project_id].append(centre)

    def fill_in(self, row: Charge, line: _ChargeDraft) -> None:
        """Fill in who holds or reserved it; nothing for time that belongs to nobody."""
        owner = line.piece.owner
        project: Project | None = None
        if owner.allocation:
            allocation = self.allocations[owner.allocation]
            workload, project = allocation.workload, allocation.project
            row.allocation, row.workload, row.user = allocation, workload, workload.owner
            row.workload_name, row.workload_type = workload.name, workload.type
            row.simulated = workload.simulated
        if owner.reservation:
            reservation = self.reservations[owner.reservation]
            row.reservation = reservation
            if project is None:
                project, row.user = reservation.project, reservation.owner
        if (
            project is None
            and owner.bucket == ChargeBucketChoices.RESERVED_UNUSED
            and line.gpu.team is not None
        ):
            # A static pool's team pays for what nobody holds, through its oldest project's cost centre.
            project = self.first_projects.get(line.gpu.team)
            row.team_id = line.gpu.team
            row.team_name = project.team.name if project else ""
        elif project is not None:
            row.project, row.project_name = project, project.name
            row.team, row.team_name = project.team, project.team.name
        if row.user is not None:
            row.user_name = row.user.get_username()
        if project is not None:
            row.cost_centre = self._centre(project.pk, line.piece.start)

    def _centre(self, project: int, moment: datetime) -> str:
        code = ""
        for centre in self.centres[project]:
            if centre.valid_from <= moment:
                code = centre.code
        return code


def _measured_use_by_line(lines: Sequence[_ChargeDraft]) -> dict[int, tuple[float | None, float]]:
    """Used and covered slot-seconds of each line that an allocation holds, from the finest rollups there are, by index."""
    held = {index: line for index, line in enumerate(lines) if line.piece.owner.allocation}
    if not held:
        return {}
    start = min(line.piece.start for line in held.values()) - timedelta(hours=1)
    end = max(line.piece.end for line in held.values())
    rollups = Rollup.objects.filter(
        allocation__in={line.piece.owner.allocation for line in held.values()},
        resolution__in=(Rollup.Resolution.MINUTE, Rollup.Resolution.HOUR),
        bucket__gte=start,
        bucket__lt=end,
        held_seconds__gt=0,
    )
    rows: dict[tuple[int, int, int], list[tuple[datetime, float, float, float | None, int]]] = defaultdict(
        list
    )
    for allocation, gpu, resolution, bucket, seconds, covered, used, slots in rollups.values_list(
        "allocation_id",
        "unit__gpu_id",
        "resolution",
        "bucket",
        "held_seconds",
        "covered_seconds",
        "utilisation_seconds",
        "unit__slots",
    ):
        rows[allocation, gpu, resolution].append((bucket, seconds, covered, used, slots.upper - slots.lower))
    result: dict[int, tuple[float | None, float]] = {}
    for index, line in held.items():
        key = (line.piece.owner.allocation, line.gpu.id)
        minutes = rows.get((*key, int(Rollup.Resolution.MINUTE)))
        chosen, length = (
            (minutes, 60) if minutes else (rows.get((*key, int(Rollup.Resolution.HOUR)), []), 3600)
        )
        result[index] = _measured_use(line.piece, chosen, length)
    return result


def _measured_use(
    piece: ChargePiece, rows: Iterable[tuple[datetime, float, float, float | None, int]], length: int
) -> tuple[float | None, float]:
    used: float | None = None
    covered = 0.0
    for bucket, seconds, row_covered, row_used, slots in rows:
        low, high = max(bucket, piece.start), min(bucket + timedelta(seconds=length), piece.end)
        if low >= high:
            continue
        # Of a bucket that lies across the edge of the piece, the part that the piece held.
        share = min(1.0, (high - low).total_seconds() / seconds)
        covered += row_covered * share * slots
        if row_used is not None:
            used = (used or 0.0) + row_used * share * slots
    return used, covered


def settle_state_changes(now: datetime) -> int:
    """Look at host state changes for the first time; one that was written after its moment had been charged is corrected."""
    waiting = list(
        HostStateChange.objects.filter(settledstatechange=None).order_by("pk")[:SETTLEMENTS_PER_RUN]
    )
    charged: dict[int, list[tuple[int, datetime]]] = defaultdict(
        list
    )  # by host: its GPUs and how far they are charged
    untils = ChargedUntil.objects.filter(gpu__host__in={change.host_id for change in waiting})
    for host, gpu, until in untils.order_by("gpu").values_list("gpu__host_id", "gpu_id", "until"):
        charged[host].append((gpu, until))
    late = {
        change.pk: [entry for entry in charged[change.host_id] if entry[1] > change.at] for change in waiting
    }
    # When many hosts come or go at once there are hundreds, and hardly one of them is late.
    _mark_settled([change for change in waiting if not late[change.pk]], now)
    corrected = 0
    for change in waiting:
        for gpu, until in late[change.pk]:
            corrected += correct_gpu_charges(gpu, change.at, until, now)
        if late[change.pk]:
            _mark_settled([change], now)
    return corrected


def _mark_settled(changes: Sequence[HostStateChange], now: datetime) -> None:
    rows = [SettledStateChange(change=change, settled_at=now) for change in changes]
    SettledStateChange.objects.bulk_create(rows, ignore_conflicts=True)


def settle_allocations(now: datetime) -> int:
    """Compare what was charged with how allocations ended, once for each that has ended: lost time, ends that came late."""
    ended = (
        Allocation.objects.filter(settledallocation=None, period__endswith__isnull=False)
        # Ends have fractions of a second, charges have not.
        .filter(unit__gpu__charged__until__gt=F("period__endswith") - timedelta(seconds=1))
        .select_related("run", "workload", "unit")
        .order_by("pk")[:SETTLEMENTS_PER_RUN]
    )
    waiting = list(ended)
    written = _charged_totals([allocation.pk for allocation in waiting])
    corrected = 0
    for allocation in waiting:
        slot_seconds, last = written.get(allocation.pk, (0, None))
        if not _matches_final_state(allocation, slot_seconds):
            until = max(allocation.period.upper, last or allocation.period.upper)
            begin = ChargedUntil.objects.get(gpu=allocation.unit.gpu_id).since
            corrected += correct_gpu_charges(
                allocation.unit.gpu_id, max(begin, allocation.period.lower), until, now
            )
    SettledAllocation.objects.bulk_create(
        [SettledAllocation(allocation=allocation, settled_at=now) for allocation in waiting],
        ignore_conflicts=True,
    )
    return corrected


def _charged_totals(allocations: Sequence[int]) -> dict[int, tuple[int, datetime | None]]:
    """Net charged slot-seconds and the last end of the lines of each allocation."""
    rows = Charge.objects.filter(allocation__in=allocations, bucket=ChargeBucketChoices.USED).values(
        "allocation"
    )
    lasts: dict[int, datetime] = {}
    for allocation, end in Charge.objects.filter(allocation__in=allocations, reversal=False).values_list(
        "allocation", "end"
    ):
        lasts[allocation] = max(end, lasts.get(allocation, end))
    sums = {row["allocation"]: row["total"] for row in rows.annotate(total=Sum("slot_seconds"))}
    return {allocation: (sums.get(allocation, 0), lasts.get(allocation)) for allocation in allocations}


def _matches_final_state(allocation: Allocation, slot_seconds: int) -> bool:
    """True when its whole time is charged and nothing of it was lost: the usual end, for which no line has to be read."""
    start, end = floor_to_second(allocation.period.lower), floor_to_second(allocation.period.upper)
    lost = lost_time(
        end_code=allocation.end_code,
        started=start,
        ended=end,
        checkpoint=allocation.run.checkpoint_at,
        keeps_state=allocation.workload.kind == "notebook",
    )
    slots = allocation.slots.upper - allocation.slots.lower
    return lost is None and slot_seconds == slots * int((end - start).total_seconds())


def correct_gpu_charges(gpu_id: int, start: datetime, end: datetime, now: datetime) -> int:
    """Make the ledger of one GPU say what is so in ``[start, end)``; the number of lines taken back."""
    start, end = floor_to_second(start), floor_to_second(end)
    if start >= end:
        return 0
    day_start, day_end = start.replace(hour=0, minute=0, second=0), next_midnight(end)
    gpu = load_charging_inputs([gpu_id], day_start, day_end)[gpu_id]
    lines = {line.pk: line for line in _standing_lines(gpu_id, day_start, day_end)}
    standing = [
        LedgerLine(line.pk, line.start, line.end, line.slots, _charge_key_of(line), line.cost)
        for line in lines.values()
    ]
    found = find_corrections(gpu.time, standing, start, end)
    taken_back = 0
    for correction in found:
        try:
            with transaction.atomic():
                _write_correction(gpu, correction, lines, now)
        except IntegrityError:
            # Another run took one of these lines back first; it wrote the same correction.
            continue
        taken_back += len(correction.reversed_line_ids)
    return taken_back


def _standing_lines(gpu_id: int, start: datetime, end: datetime) -> list[Charge]:
    lines = Charge.objects.filter(gpu=gpu_id, start__lt=end, end__gt=start, reversal=False)
    return list(lines.exclude(corrections__reversal=True).order_by("start", "pk"))


def _charge_key_of(line: Charge) -> ChargeKey:
    return ChargeKey(line.bucket, line.allocation_id or 0, line.reservation_id or 0)


def _write_correction(
    gpu: GpuChargingInputs, correction: ChargeCorrection, lines: dict[int, Charge], now: datetime
) -> None:
    originals = [lines[pk] for pk in correction.reversed_line_ids]
    closed = _months_not_open({line.month for line in originals})
    Charge.objects.bulk_create([_reversal_of(line, closed, now) for line in originals])
    instead = [
        _ChargeDraft(gpu, piece, _first_overlapping_line(piece, originals).pk) for piece in correction.instead
    ]
    _write_charges(instead, now)


def _first_overlapping_line(piece: ChargePiece, originals: Sequence[Charge]) -> Charge:
    """The line that a new piece names: of those it stands for, the first."""
    return next(line for line in originals if line.start < piece.end and line.end > piece.start)


def _reversal_of(line: Charge, closed: set[date], now: datetime) -> Charge:
    copied = {
        entry.attname: getattr(line, entry.attname)
        for entry in Charge._meta.concrete_fields
        if entry.attname not in ("id", "corrects_id", "reversal", "created_at")
    }
    row = Charge(**copied, corrects_id=line.pk, reversal=True, created_at=now)
    row.month = statement_month_of(now) if line.month in closed else line.month
    row.slots, row.slot_seconds = -line.slots, -line.slot_seconds
    row.cost, row.charged = -line.cost, -line.charged
    row.used_slot_seconds = None if line.used_slot_seconds is None else -line.used_slot_seconds
    row.covered_slot_seconds = None if line.covered_slot_seconds is None else -line.covered_slot_seconds
    return row


def _chunks(ids: Iterable[int], size: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    for pk in ids:
        chunk.append(pk)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
