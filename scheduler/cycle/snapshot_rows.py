"""Read the rows of a snapshot in ``SNAPSHOT_QUERIES`` queries, however many rows there are.

The rows are valid for the time of the reading and for later times. ``scheduler.cycle.snapshot`` uses them to
build the snapshot for such a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db import connection, transaction
from django.db.models import F, Min, QuerySet, Sum
from django.db.models.expressions import Combinable, RawSQL

from scheduler.core.model import snapshot
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.cycle import schedulable_hosts
from scheduler.cycle.core_values import (
    epoch_seconds,
    label_pairs,
)
from scheduler.models import (
    Allocation,
    BoundUnit,
    BudgetGate,
    DecayedUse,
    Host,
    Leader,
    MaintenanceWindow,
    Pool,
    Quota,
    Reservation,
    Team,
    Workload,
)
from scheduler.requests import HARDWARE_COLUMNS
from scheduler.state.states import OPEN_RESERVATION_STATES, WorkloadState

SNAPSHOT_QUERIES = 14


@contextmanager
def repeatable_read() -> Iterator[None]:
    """Give all queries of this context the same view of the database.

    If the caller has already opened a transaction, its isolation level stays READ COMMITTED: a decision
    under the lock of a pool must see what was committed before it got the lock. Each query then sees the rows
    at its own time. This breaks no promise, because reservations, placements and time limits of a pool change
    only under its lock, and units of a host that joins meanwhile are left out with their host. A request with
    an Idempotency-Key also opens a transaction first, so its checks without a lock, such as whether work can
    ever start, read in the same way. The checks of its promises do not differ from those without a key.
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


Columns = Mapping[str, Any]  # the values of one row by column name


@dataclass(frozen=True, slots=True)
class HeldUnits:
    """The sum of a workload's open allocations.

    ``units``: ids of the held units. ``since``: start of the first allocation, in seconds since the epoch.
    ``slots``: number of held slots (840 are one GPU).
    """

    units: tuple[int, ...]
    since: int
    slots: int


@dataclass(slots=True)
class SnapshotRows:
    """The rows of a snapshot, by id. Gates and reservations may have expired since the rows were read."""

    epoch: int
    pools: dict[int, snapshot.PoolInfo]
    teams: dict[int, snapshot.TeamInfo]
    quotas: tuple[snapshot.QuotaInfo, ...]
    gates: list[BudgetGate]
    promised: list[Reservation]
    bound: list[tuple[int, int, datetime, datetime]]  # reservation, unit, start, end
    maintenance: list[tuple[int, datetime, datetime]]  # host, start, end
    used: list[tuple[int, int, float, datetime]]  # team, pool, slot-seconds, as of
    hosts: dict[int, snapshot.HostInfo] = field(default_factory=dict)
    units: dict[int, snapshot.UnitInfo] = field(default_factory=dict)
    retired: set[int] = field(default_factory=set)  # units that are included only because they are held
    held: dict[int, HeldUnits] = field(default_factory=dict)
    running: dict[int, Columns] = field(default_factory=dict)
    queued: dict[int, Columns] = field(default_factory=dict)


class SnapshotReader:
    """A reader of the rows of some pools. If ``pool_ids`` is None, it reads the rows of all pools.

    Each method reads one kind of row. If a method gets ids, it reads only the rows with these ids.
    """

    def __init__(self, pool_ids: Sequence[int] | None, now: datetime) -> None:
        self.now = now
        self.pool_ids = None if pool_ids is None else sorted(set(pool_ids))

    def read(self) -> SnapshotRows:
        """Read everything in ``SNAPSHOT_QUERIES`` queries."""
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
        """Read the pools as if all work had ended.

        The result has no work, no maintenance and no closed budgets, and all GPU-hours are unused.
        """
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
        """Return the units by id, and the set of the ids of retired units.

        Retired units are included only while they are held. ``gpus`` adds all units of these GPUs to ``ids``.
        """
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
        """Return the quotas. With ``unused``, return them as if no GPU-hours of a quota were used."""
        rows = self._within(Quota.objects.order_by("pk"), "pool").values_list(*QUOTA_COLUMNS)
        if unused:
            return tuple(snapshot.QuotaInfo(*row[:5]) for row in rows)
        return tuple(_quota_info(*row) for row in rows)

    def gates(self) -> list[BudgetGate]:
        return list(BudgetGate.objects.filter(until__gt=self.now).order_by("pk"))

    def held(self, workloads: Collection[int] | None = None) -> dict[int, HeldUnits]:
        """Return the units that workloads hold now, by workload id."""
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
        """Return the rows of the workloads that hold units. ``held`` has their ids."""
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
        present = DecayedUse.objects.filter(pool__removed_at=None, team__removed_at=None)
        rows = self._within(present.order_by("team_id", "pool_id"), "pool")
        return list(rows.values_list("team_id", "pool_id", "slot_seconds", "as_of"))


def _with_ids(rows: QuerySet[Any], ids: Collection[int] | None) -> QuerySet[Any]:
    return rows if ids is None else rows.filter(pk__in=ids_array(ids))


def ids_array(ids: Iterable[int]) -> RawSQL:
    """Return ids for ``pk__in`` as one parameter.

    One parameter per id would take longer than the query itself.
    """
    return RawSQL("SELECT unnest(%s::bigint[])", (list(ids),))


def _size(slots: str) -> Combinable:
    """Return a query expression for the number of slots in the range column ``slots``.

    PostgreSQL computes the number, because converting 10,000 ranges to Python takes 0.2 s.
    """
    return F(f"{slots}__endswith") - F(f"{slots}__startswith")


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


# This query returns the fields of snapshot.UnitInfo in their order, and whether the unit is retired. The ORM
# takes four times as long for 16,000 rows.
READ_UNITS_SQL = """
SELECT unit.id, gpu.host_id, unit.gpu_id, gpu.model, unit.profile,
       (upper(unit.slots) - lower(unit.slots))::int, unit.memory_mib,
       gpu.compute_capability, gpu.nvlink_group,
       gpu.repair_state = 'well' AND unit.retired_at IS NULL AND gpu.retired_at IS NULL,
       unit.retired_at IS NOT NULL OR gpu.retired_at IS NOT NULL
FROM scheduler_unit AS unit
JOIN scheduler_gpu AS gpu ON gpu.id = unit.gpu_id
JOIN scheduler_host AS host ON host.id = gpu.host_id
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
    *HARDWARE_COLUMNS,
)


QUEUED_COLUMNS = (
    *WORK_COLUMNS,
    *HARDWARE_COLUMNS,
    "reservation__state",
    "submitted_at",
    "not_before",
    "earmarked_units",
    "room_made_by_own_team",
    "waits_for",
    "waits_for_arrays",
    "held_back",
    "array__most_at_once",
    "avoids",
    "avoids_until",
    "homes_id",
)


def pool_from_row(pool: Pool) -> snapshot.PoolInfo:
    """Return the core's value for a pool and its policy."""
    per_user, per_workload = pool.most_gpus_per_user, pool.most_gpus_per_workload
    policy = snapshot.PoolPolicy(
        notice_seconds=pool.notice_seconds,
        grace_seconds=pool.grace_seconds,
        minimum_runtime_seconds=pool.minimum_runtime_seconds,
        half_life_seconds=pool.half_life_seconds,
        spare_slots=pool.spare_slots,
        longest_runtime_seconds=pool.longest_runtime_seconds,
        max_slots_per_user=None if per_user is None else per_user * SLOTS_PER_GPU,
        max_slots_per_workload=None if per_workload is None else per_workload * SLOTS_PER_GPU,
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
    """Return the quota as it applies now.

    If the quota's GPU-hours are used up, it guarantees nothing until its period ends. If ``refuse`` is
    ``Quota.WhenUsedUp.REFUSE``, it then allows no borrowing either.
    """
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
        guaranteed_after_reset=guaranteed,
        borrow_limit_after_reset=borrow,
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
