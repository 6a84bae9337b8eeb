"""Rows in, Snapshot out: one moment of the pools, read in ``SNAPSHOT_QUERIES`` queries however many rows there are.

Reading and putting together are two steps. ``SnapshotRows`` is what the database says, and nothing in it depends on the clock;
``build_snapshot`` makes the Snapshot of it as of a moment. So the snapshot that is kept warm (``scheduler.cycle.snapshot_cache``) reads a few
rows again, and is put together by the same code as a fresh one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db import connection, transaction
from django.db.models import F, Min, QuerySet, Sum
from django.db.models.expressions import Combinable, RawSQL

from scheduler.core import reasons
from scheduler.core.model import snapshot
from scheduler.core.model.quota_ledger import decayed_use
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import schedulable_hosts
from scheduler.cycle.gc_pause import gc_paused
from scheduler.models import (
    Allocation,
    BoundUnit,
    BudgetGate,
    DecayedUse,
    HardwareColumns,
    Host,
    Leader,
    MaintenanceWindow,
    Pool,
    Quota,
    Reservation,
    Team,
    Workload,
)
from scheduler.queue import dependencies
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import OPEN_RESERVATION_STATES, TERMINATING_STATES, WorkloadState

SNAPSHOT_QUERIES = 14
ASK_COLUMNS = (
    "units",
    "hosts",
    "models_wanted",
    "profile",
    "min_memory_mib",
    "min_compute_capability",
    "nvlink",
    "labels_required",
    "cpu_milli",
    "memory_mib",
    "labels_preferred",
    "spread",
)


def epoch_seconds(moment: datetime) -> int:
    """Whole seconds since the epoch, as the core counts."""
    return int(moment.timestamp())


def take_snapshot(pool_ids: Sequence[int] | None, now: datetime) -> snapshot.Snapshot:
    """Everything the planner may know about these pools (None: all of them) as of one moment."""
    with repeatable_read(), gc_paused():
        return build_snapshot(SnapshotReader(pool_ids, now).read(), now)


def take_empty_snapshot(pool_ids: Sequence[int], now: datetime) -> snapshot.Snapshot:
    """These pools as if nothing ran or waited in them and no GPU-hours of a guarantee were used: for what could ever be."""
    with repeatable_read(), gc_paused():
        return build_snapshot(SnapshotReader(pool_ids, now).read_empty(), now)


def with_reservation(taken: snapshot.Snapshot, reservation: snapshot.ReservationInfo) -> snapshot.Snapshot:
    """The same moment with one promise more: for "what if"."""
    return dataclasses.replace(taken, reservations=(*taken.reservations, reservation))


ClosedGates = dict[tuple[str, int], dict[str, BudgetGate]]


@dataclass(frozen=True, slots=True)
class BudgetEffect:
    """What closed budget gates mean for a workload: the ``gate`` and ``gate_numbers`` of ``snapshot.Queued``, and from when on (s) it
    may borrow again; None where it may now."""

    gate: str = ""
    gate_numbers: reasons.ReasonNumbers = ()
    borrows_again_from: int | None = None

    @property
    def may_borrow(self) -> bool:
        return self.borrows_again_from is None


def closed_budget_gates(now: datetime) -> ClosedGates:
    """The budget gates that are closed, by ("team" or "project", id) and action."""
    return gates_by_owner(BudgetGate.objects.filter(until__gt=now).order_by("pk"))


def gates_by_owner(gates: Iterable[BudgetGate]) -> ClosedGates:
    found: ClosedGates = defaultdict(dict)
    for gate in gates:
        whose = ("team", gate.team_id) if gate.team_id is not None else ("project", gate.project_id or 0)
        found[whose][gate.action] = gate
    return found


def budget_effect(gates: ClosedGates, team: int, project: int) -> BudgetEffect:
    """What the gates of a team and of its project say together."""
    both = gates.get(("team", team), {}), gates.get(("project", project), {})
    stopped = [
        of[BudgetGate.Action.STOP_BORROWING].until for of in both if BudgetGate.Action.STOP_BORROWING in of
    ]
    again = epoch_seconds(max(stopped)) if stopped else None
    refused = {**both[0], **both[1]}.get(BudgetGate.Action.REFUSE_NEW)
    if refused is None:
        return BudgetEffect(borrows_again_from=again)
    return BudgetEffect(str(ReasonCode.BUDGET_CLOSED), reason_numbers(refused.numbers), again)


def ask_from_row(row: HardwareColumns) -> snapshot.Ask:
    """The ask in a workload's or a reservation's columns."""
    return _ask_from_columns(*(getattr(row, name) for name in ASK_COLUMNS))


def queued_from_row(row: Workload, now: datetime) -> snapshot.QueuedWorkload:
    """What a workload that is not written yet, with its id, would be to the planner if it waited at ``now``. One query."""
    return TimeEffects(closed_budget_gates(now), {}).queued(
        {name: _column_value(row, name) for name in QUEUED_COLUMNS}
    )


def _column_value(row: Any, name: str) -> Any:
    """As ``values_list`` would give it: None beyond what the row does not refer to."""
    for part in name.split("__"):
        row = None if row is None else getattr(row, part)
    return row


@contextmanager
def repeatable_read() -> Iterator[None]:
    """All queries see the same rows. Inside a caller's transaction it is the caller's isolation that holds."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


# -- what the rows say -----------------------------------------------------------------------------------------------------

Columns = Mapping[str, Any]  # one row, by the names of its columns


@dataclass(frozen=True, slots=True)
class HeldUnits:
    """A workload's open allocations: their units, since when the first of them, and how many slots they are."""

    units: tuple[int, ...]
    since: int
    slots: int


@dataclass(slots=True)
class SnapshotRows:
    """What was read, by id. What is over by the clock alone may still be in it."""

    epoch: int
    pools: dict[int, snapshot.PoolInfo]
    teams: dict[int, snapshot.TeamInfo]
    quotas: tuple[snapshot.QuotaInfo, ...]
    gates: list[BudgetGate]
    promised: list[Reservation]
    bound: list[tuple[int, int, datetime, datetime]]  # reservation, unit, from, until
    maintenance: list[tuple[int, datetime, datetime]]  # host, from, until
    used: list[tuple[int, int, float, datetime]]  # team, pool, slot-seconds, as of
    hosts: dict[int, snapshot.HostInfo] = field(default_factory=dict)
    units: dict[int, snapshot.UnitInfo] = field(default_factory=dict)
    retired: set[int] = field(
        default_factory=set
    )  # of these units, those that are only here while they are held
    held: dict[int, HeldUnits] = field(default_factory=dict)
    running: dict[int, Columns] = field(default_factory=dict)
    queued: dict[int, Columns] = field(default_factory=dict)


class SnapshotReader:
    """Reads ``SnapshotRows`` of some pools (None: all), all of them or those with given ids."""

    def __init__(self, pool_ids: Sequence[int] | None, now: datetime) -> None:
        self.now = now
        self.pool_ids = None if pool_ids is None else sorted(set(pool_ids))

    def read(self) -> SnapshotRows:
        """Everything, in ``SNAPSHOT_QUERIES`` queries."""
        rows = SnapshotRows(
            epoch=Leader.objects.filter(pk=1).values_list("epoch", flat=True).first() or 0,
            pools={pool.pk: pool_from_row(pool) for pool in self._within(Pool.objects.order_by("pk"), "pk")},
            teams={
                row[0]: snapshot.TeamInfo(*row)
                for row in Team.objects.order_by("pk").values_list("pk", "name", "weight")
            },
            quotas=self.quotas(),
            gates=self.gates(),
            promised=self.promised(),
            bound=self.bound(),
            maintenance=self.maintenance(),
            used=self.used(),
            hosts=self.hosts(),
            held=self.held(),
            queued=self.queued(),
        )
        rows.running = self.running(rows.held)
        rows.units, rows.retired = self.units()
        return rows

    def read_empty(self) -> SnapshotRows:
        """What there would be if everything had ended: no work, no maintenance, no closed budgets."""
        units, retired = self.units()
        return SnapshotRows(
            epoch=0,
            pools={pool.pk: pool_from_row(pool) for pool in self._within(Pool.objects.order_by("pk"), "pk")},
            teams={
                row[0]: snapshot.TeamInfo(*row)
                for row in Team.objects.order_by("pk").values_list("pk", "name", "weight")
            },
            quotas=self.quotas(unused=True),
            gates=[],
            promised=self.promised(),
            bound=self.bound(),
            maintenance=[],
            used=[],
            hosts=self.hosts(),
            units={pk: unit for pk, unit in units.items() if pk not in retired},
        )

    def _within(self, rows: QuerySet[Any], path: str) -> QuerySet[Any]:
        return rows if self.pool_ids is None else rows.filter(**{f"{path}__in": self.pool_ids})

    def hosts(self, ids: Collection[int] | None = None) -> dict[int, snapshot.HostInfo]:
        rows = self._within(_with_ids(Host.objects.order_by("pk"), ids), "pool")
        return {row[0]: _host_info(*row) for row in rows.values_list(*HOST_COLUMNS)}

    def units(
        self, ids: Collection[int] | None = None, gpus: Collection[int] = ()
    ) -> tuple[dict[int, snapshot.UnitInfo], set[int]]:
        """Those in use by the inventory, and retired ones that somebody still holds; and which of them are retired."""
        given = {
            "pools": self.pool_ids,
            "ids": None if ids is None else list(ids),
            "gpus": list(gpus),
        }
        with connection.cursor() as cursor:
            cursor.execute(READ_UNITS_SQL, given)
            rows = cursor.fetchall()
        return {row[0]: snapshot.UnitInfo(*row[:-1]) for row in rows}, {row[0] for row in rows if row[-1]}

    def quotas(self, *, unused: bool = False) -> tuple[snapshot.QuotaInfo, ...]:
        """``unused``: as if none of their GPU-hours were used."""
        rows = self._within(Quota.objects.order_by("pk"), "pool").values_list(*QUOTA_COLUMNS)
        if unused:
            return tuple(snapshot.QuotaInfo(*row[:5]) for row in rows)
        return tuple(_quota_info(*row) for row in rows)

    def gates(self) -> list[BudgetGate]:
        return list(BudgetGate.objects.filter(until__gt=self.now).order_by("pk"))

    def held(self, workloads: Collection[int] | None = None) -> dict[int, HeldUnits]:
        """Open allocations by workload."""
        rows = Allocation.objects.filter(period__upper_inf=True)
        if workloads is not None:
            rows = rows.filter(workload__in=ids_array(workloads))
        sums = (
            self._within(rows, "unit__gpu__host__pool")
            .order_by()
            .values("workload_id")
            .annotate(
                all_units=ArrayAgg("unit_id"), since=Min("period__startswith"), size=Sum(_size("slots"))
            )
            .values_list("workload_id", "all_units", "since", "size")
        )
        return {
            w: HeldUnits(tuple(sorted(units)), epoch_seconds(since), int(slots))
            for w, units, since, slots in sums
        }

    def running(self, held: Collection[int]) -> dict[int, Columns]:
        """The rows of those who hold something."""
        rows = Workload.objects.filter(pk__in=ids_array(held)).order_by("pk").values_list(*RUNNING_COLUMNS)
        return {row[0]: dict(zip(RUNNING_COLUMNS, row, strict=True)) for row in rows}

    def queued(self, ids: Collection[int] | None = None) -> dict[int, Columns]:
        rows = _with_ids(Workload.objects.filter(state=WorkloadState.QUEUED).order_by("pk"), ids)
        found = self._within(rows, "pool").values_list(*QUEUED_COLUMNS)
        return {row[0]: dict(zip(QUEUED_COLUMNS, row, strict=True)) for row in found}

    def promised(self) -> list[Reservation]:
        rows = (
            Reservation.objects.filter(state__in=OPEN_RESERVATION_STATES, end__gt=self.now)
            .select_related("project")
            .order_by("pk")
        )
        return list(self._within(rows, "pool"))

    def bound(self) -> list[tuple[int, int, datetime, datetime]]:
        rows = BoundUnit.objects.filter(period__endswith__gt=self.now).order_by("pk")
        columns = ("reservation_id", "unit_id", F("period__startswith"), F("period__endswith"))
        return list(self._within(rows, "reservation__pool").values_list(*columns))

    def maintenance(self) -> list[tuple[int, datetime, datetime]]:
        rows = MaintenanceWindow.objects.filter(end__gt=self.now).order_by("pk")
        return list(self._within(rows, "host__pool").values_list("host_id", "start", "end"))

    def used(self) -> list[tuple[int, int, float, datetime]]:
        rows = self._within(DecayedUse.objects.order_by("team_id", "pool_id"), "pool")
        return list(rows.values_list("team_id", "pool_id", "slot_seconds", "as_of"))


def _with_ids(rows: QuerySet[Any], ids: Collection[int] | None) -> QuerySet[Any]:
    return rows if ids is None else rows.filter(pk__in=ids_array(ids))


def ids_array(ids: Iterable[int]) -> RawSQL:
    """For ``pk__in``: thousands of ids as one parameter. As a parameter each they cost more than the rows."""
    return RawSQL("SELECT unnest(%s::bigint[])", (list(ids),))


def _size(slots: str) -> Combinable:
    """How many slots a range is: counted there, because 10,000 ranges take 0.2 s to become Python's."""
    return F(f"{slots}__endswith") - F(f"{slots}__startswith")


# -- the snapshot as of a moment -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimeEffects:
    """What the clock makes of the rows: gates that are closed, and promises that are not over, with their bound units."""

    gates: ClosedGates
    reservations: dict[int, snapshot.ReservationInfo]

    def affects_workloads_like(self, other: TimeEffects) -> bool:
        """Would every workload's row become the same as with the other one?"""
        return self._to_workloads() == other._to_workloads()

    def _to_workloads(self) -> tuple[object, object]:
        gates = {
            whose: {action: gate.numbers for action, gate in of.items()} for whose, of in self.gates.items()
        }
        return gates, {promise.id: promise.end for promise in self.reservations.values()}

    def queued(self, row: Columns) -> snapshot.QueuedWorkload:
        budget = budget_effect(self.gates, row["project__team_id"], row["project_id"])
        code, numbers = budget.gate, budget.gate_numbers
        if row["reservation__state"] is not None and row["reservation__state"] not in OPEN_RESERVATION_STATES:
            code, numbers = str(ReasonCode.RESERVATION_OVER), ()
        elif row["waits_for"] or row["waits_for_arrays"]:
            code, numbers = (
                str(ReasonCode.DEPENDENCY),
                dependencies.dependency_numbers(row["waits_for"], row["waits_for_arrays"]),
            )
        elif row["held_back"]:
            code, numbers = str(ReasonCode.ARRAY_LIMIT), (("most_at_once", row["array__most_at_once"]),)
        return snapshot.QueuedWorkload(
            id=row["pk"],
            team=row["project__team_id"],
            project=row["project_id"],
            user=row["owner_id"],
            pool=row["pool_id"],
            ask=interned_ask(*(hashable(row[name]) for name in ASK_COLUMNS)),
            submitted=epoch_seconds(row["submitted_at"]),
            max_runtime_seconds=row["max_runtime_seconds"],
            predicted_seconds=row["predicted_seconds"],
            priority=snapshot.Priority(row["priority"]),
            preemptible=row["preemptible"],
            may_borrow=row["preemptible"] and budget.may_borrow,
            reservation=row["reservation_id"],
            not_before=epoch_seconds_or_none(row["not_before"]) or 0,
            evicted_by=row["evicted_by_id"],
            gate=code,
            gate_numbers=numbers,
            earmarked_units=tuple(sorted(row["earmarked_units"])),
            avoids=tuple(sorted(row["avoids"])),
            avoids_until=epoch_seconds_or_none(row["avoids_until"]) or 0,
            homes=row["homes_id"],
        )

    def running(self, row: Columns, held: HeldUnits) -> snapshot.RunningWorkload:
        reservation = self.reservations.get(row["reservation_id"])
        until = held.since + row["max_runtime_seconds"]
        if reservation is not None:
            until = min(until, reservation.end)
        return snapshot.RunningWorkload(
            id=row["pk"],
            team=row["project__team_id"],
            project=row["project_id"],
            user=row["owner_id"],
            pool=row["pool_id"],
            units=held.units,
            started=held.since,
            until=until,
            predicted_until=min(held.since + row["predicted_seconds"], until),
            priority=snapshot.Priority(row["priority"]),
            preemptible=row["preemptible"],
            borrowed_slots=row["borrowed_slots"],
            checkpoint_at=epoch_seconds_or_none(row["checkpoint_at"]),
            reservation=row["reservation_id"],
            # One whose end is known but whose host has not confirmed it yet is on its way out, too.
            stopping=row["state"] in TERMINATING_STATES or row["state"] not in LIVE_STATES,
            stop_by=epoch_seconds_or_none(row["gone_by"]),
            evicted_for_workload=row["evicted_for_workload_id"],
            evicted_for_reservation=row["evicted_for_reservation_id"],
            evicted_by=row["evicted_by_id"],
            # What ended otherwise than by making room is counted by itself.
            evictions=max(0, row["attempt"] - 1 - row["failures"] - row["lost_attempts"]),
            cpu_milli=row["cpu_milli"],
            memory_mib=row["memory_mib"],
            ask=interned_ask(*(hashable(row[name]) for name in ASK_COLUMNS)),
        )


def time_effects(rows: SnapshotRows, now: datetime) -> TimeEffects:
    """What holds at ``now`` of what was read before or at it."""
    return TimeEffects(
        gates_by_owner(gate for gate in rows.gates if gate.until > now),
        {promise.id: promise for promise in open_reservations(rows.promised, rows.bound, now)},
    )


def open_reservations(
    promised: Iterable[Reservation], bound: Iterable[tuple[int, int, datetime, datetime]], now: datetime
) -> list[snapshot.ReservationInfo]:
    """Reservations that are not over at ``now``, with the units bound to them at that moment."""
    units: dict[int, list[int]] = defaultdict(list)
    for reservation, unit, since, until in bound:
        if since <= now < until:
            units[reservation].append(unit)
    return [_reservation(row, units[row.pk]) for row in promised if row.end > now]


def open_maintenance(
    windows: Iterable[tuple[int, datetime, datetime]], now: datetime
) -> tuple[snapshot.MaintenanceInfo, ...]:
    """The windows that are not over."""
    return tuple(
        snapshot.MaintenanceInfo(h, epoch_seconds(s), epoch_seconds(e)) for h, s, e in windows if e > now
    )


def decayed_use_at(
    rows: SnapshotRows, slots: Mapping[tuple[int, int], int], now: datetime
) -> tuple[snapshot.DecayedUseInfo, ...]:
    """Decayed use as of ``now``; ``slots`` is what each (team, pool) holds."""
    return tuple(
        snapshot.DecayedUseInfo(
            team,
            pool,
            decayed_use(
                used,
                slots.get((team, pool), 0),
                max(0.0, (now - as_of).total_seconds()),
                rows.pools[pool].policy.half_life_seconds,
            ),
        )
        for team, pool, used, as_of in rows.used
    )


def held_slots(rows: SnapshotRows) -> dict[tuple[int, int], int]:
    """Slots by (team, pool) of all that runs."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for pk, row in rows.running.items():
        found[row["project__team_id"], row["pool_id"]] += rows.held[pk].slots
    return found


def build_snapshot(rows: SnapshotRows, now: datetime) -> snapshot.Snapshot:
    """The Snapshot that these rows are at ``now``, which is not before they were read."""
    moment = time_effects(rows, now)
    return snapshot.Snapshot(
        epoch=rows.epoch,
        pools=tuple(rows.pools.values()),
        hosts=tuple(rows.hosts.values()),
        units=tuple(rows.units.values()),
        teams=tuple(rows.teams.values()),
        quotas=rows.quotas,
        decayed_use=decayed_use_at(rows, held_slots(rows), now),
        queued=tuple(moment.queued(row) for row in rows.queued.values()),
        running=tuple(moment.running(row, rows.held[pk]) for pk, row in rows.running.items()),
        reservations=tuple(moment.reservations.values()),
        maintenance=open_maintenance(rows.maintenance, now),
    )


QUOTA_COLUMNS = (
    "team_id",
    "pool_id",
    "model",
    "guaranteed_slots",
    "borrow_limit_slots",
    "hours_slot_seconds",
    "hours_used_up",
    "when_used_up",
    "hours_until",
)
HOST_COLUMNS = (
    "pk",
    "name",
    "pool_id",
    "labels",
    "cpu_milli",
    "memory_mib",
    "storage_id",
    *schedulable_hosts.SCHEDULABLE_COLUMNS,
)
# The fields of model.Unit in their order, and whether it is retired. By hand: 16,000 rows through the ORM take four times as long.
READ_UNITS_SQL = """
SELECT unit.id, gpu.host_id, unit.gpu_id, gpu.model, unit.profile, (upper(unit.slots) - lower(unit.slots))::int,
       unit.memory_mib, gpu.compute_capability, gpu.nvlink_group,
       gpu.repair_state = 'well' AND unit.retired_at IS NULL AND gpu.retired_at IS NULL,
       unit.retired_at IS NOT NULL OR gpu.retired_at IS NOT NULL
FROM scheduler_unit AS unit JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id JOIN scheduler_host AS host ON host.id = gpu.host_id
WHERE (unit.retired_at IS NULL AND gpu.retired_at IS NULL OR EXISTS (
        SELECT FROM scheduler_allocation AS held WHERE held.unit_id = unit.id AND upper_inf(held.period)
      ))
  AND (%(pools)s::bigint[] IS NULL OR host.pool_id = ANY(%(pools)s))
  AND (%(ids)s::bigint[] IS NULL OR unit.id = ANY(%(ids)s) OR unit.gpu_id = ANY(%(gpus)s))
ORDER BY unit.id
"""
WORK_COLUMNS = (
    "pk",
    "project_id",
    "project__team_id",
    "owner_id",
    "pool_id",
    "reservation_id",
    "max_runtime_seconds",
    "predicted_seconds",
    "priority",
    "preemptible",
    "evicted_by_id",
)
RUNNING_COLUMNS = (
    *WORK_COLUMNS,
    "state",
    "borrowed_slots",
    "checkpoint_at",
    "gone_by",
    "evicted_for_workload_id",
    "evicted_for_reservation_id",
    "attempt",
    "failures",
    "lost_attempts",
    *ASK_COLUMNS,
)
QUEUED_COLUMNS = (
    *WORK_COLUMNS,
    *ASK_COLUMNS,
    "reservation__state",
    "submitted_at",
    "not_before",
    "earmarked_units",
    "waits_for",
    "waits_for_arrays",
    "held_back",
    "array__most_at_once",
    "avoids",
    "avoids_until",
    "homes_id",
)


def pool_from_row(pool: Pool) -> snapshot.PoolInfo:
    """A pool and its rules, as the planner knows them."""
    per_user, per_workload = pool.most_gpus_per_user, pool.most_gpus_per_workload
    policy = snapshot.PoolPolicy(
        notice_seconds=pool.notice_seconds,
        grace_seconds=pool.grace_seconds,
        minimum_runtime_seconds=pool.minimum_runtime_seconds,
        half_life_seconds=pool.half_life_seconds,
        spare_slots=pool.spare_slots,
        longest_runtime_seconds=pool.longest_runtime_seconds,
        most_slots_per_user=None if per_user is None else per_user * SLOTS_PER_GPU,
        most_slots_per_workload=None if per_workload is None else per_workload * SLOTS_PER_GPU,
    )
    return snapshot.PoolInfo(pool.pk, pool.name, snapshot.PoolKind(pool.kind), pool.team_id, policy)


def _quota_info(
    team: int,
    pool: int,
    name: str,
    guaranteed: int,
    borrow: int | None,
    worth: int | None,
    used_up: bool,
    refuse: str,
    until: datetime | None,
) -> snapshot.QuotaInfo:
    """A quota as it holds: one whose GPU-hours are used up guarantees nothing until its period is over."""
    if not used_up or worth is None or until is None:
        return snapshot.QuotaInfo(team, pool, name, guaranteed, borrow)
    limit = 0 if refuse == Quota.WhenUsedUp.REFUSE else borrow
    hours = worth // (SLOTS_PER_GPU * 3600)
    return snapshot.QuotaInfo(
        team,
        pool,
        name,
        0,
        limit,
        used_up_until=epoch_seconds(until),
        gpu_hours=hours,
        guaranteed_again=guaranteed,
        borrow_limit_again=borrow,
    )


def _host_info(
    pk: int,
    name: str,
    pool: int,
    labels: dict[str, Any],
    cpu: int,
    memory: int,
    storage: int | None,
    *states: Any,
) -> snapshot.HostInfo:
    closed = schedulable_hosts.unschedulable_code(*states)
    return snapshot.HostInfo(pk, name, pool, label_pairs(labels), cpu, memory, not closed, closed, storage)


def _reservation(row: Reservation, units: list[int]) -> snapshot.ReservationInfo:
    return snapshot.ReservationInfo(
        id=row.pk,
        team=row.project.team_id,
        project=row.project_id,
        pool=row.pool_id,
        ask=ask_from_row(row),
        start=epoch_seconds(row.start),
        end=epoch_seconds(row.end),
        units=tuple(sorted(units)),
        may_exceed_guarantee=row.may_exceed_guarantee,
        user=row.owner_id,
    )


def _ask_from_columns(
    units: int,
    hosts: int,
    models: Sequence[str],
    profile: str,
    min_memory_mib: int,
    min_compute_capability: int,
    nvlink: bool,
    labels: Any,
    cpu_milli: int,
    memory_mib: int,
    labels_preferred: Any,
    spread: bool,
) -> snapshot.Ask:
    return snapshot.Ask(
        units=units,
        hosts=hosts,
        models=tuple(models),
        profile=profile,
        min_memory_mib=min_memory_mib,
        min_compute_capability=min_compute_capability,
        nvlink=nvlink,
        labels=label_pairs(labels),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        labels_preferred=label_pairs(labels_preferred),
        spread=spread,
    )


@functools.lru_cache(maxsize=10_000)
def interned_ask(*columns: Any) -> snapshot.Ask:
    """Equal columns give the same object: the planner knows asks it has met by their identity."""
    return _ask_from_columns(*columns)


def hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value


def label_pairs(labels: Any) -> frozenset[tuple[str, str]]:
    items = labels.items() if isinstance(labels, dict) else labels
    return frozenset((str(name), str(value)) for name, value in items)


def reason_numbers(values: dict[str, Any]) -> reasons.ReasonNumbers:
    return tuple(sorted(values.items()))


def epoch_seconds_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else epoch_seconds(moment)
