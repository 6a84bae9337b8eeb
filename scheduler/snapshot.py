"""Rows in, Snapshot out: one moment of the pools, read in ``QUERIES`` queries however many rows there are."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.models import Q

from scheduler.commands import LIVE
from scheduler.core import model
from scheduler.core.reasons import Code
from scheduler.decayed_use import decayed
from scheduler.models import (
    Allocation,
    AskFields,
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
    Unit,
    Workload,
)
from scheduler.states import AdminState, RepairState, ReservationState, WorkloadState, accepts_work

QUERIES = 14
STOPPING = (WorkloadState.NOTICE, WorkloadState.STOPPING)
PROMISED = (ReservationState.CONFIRMED, ReservationState.ACTIVE)
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
)


def seconds(moment: datetime) -> int:
    """Whole seconds since the epoch, as the core counts."""
    return int(moment.timestamp())


def take(pool_ids: Sequence[int] | None, now: datetime) -> model.Snapshot:
    """Everything the planner may know about these pools (None: all of them) as of one moment."""
    with _one_moment():
        return _Reader(pool_ids, now).read()


def with_reservation(taken: model.Snapshot, reservation: model.Reservation) -> model.Snapshot:
    """The same moment with one promise more: for "what if"."""
    return dataclasses.replace(taken, reservations=(*taken.reservations, reservation))


Gates = dict[tuple[str, int], dict[str, BudgetGate]]


@dataclass(frozen=True, slots=True)
class BudgetSays:
    """What closed budget gates mean for a workload: the ``gate`` and ``gate_numbers`` of ``model.Queued``, and may it borrow."""

    gate: str = ""
    gate_numbers: model.Numbers = ()
    may_borrow: bool = True


def closed_gates(now: datetime) -> Gates:
    """The budget gates that are closed, by ("team" or "project", id) and action."""
    found: Gates = defaultdict(dict)
    for gate in BudgetGate.objects.filter(until__gt=now).order_by("pk"):
        whose = ("team", gate.team_id) if gate.team_id is not None else ("project", gate.project_id or 0)
        found[whose][gate.action] = gate
    return found


def budget_of(gates: Gates, team: int, project: int) -> BudgetSays:
    """What the gates of a team and of its project say together."""
    closed = {**gates.get(("team", team), {}), **gates.get(("project", project), {})}
    may_borrow = BudgetGate.Action.STOP_BORROWING not in closed
    refused = closed.get(BudgetGate.Action.REFUSE_NEW)
    if refused is None:
        return BudgetSays(may_borrow=may_borrow)
    return BudgetSays(str(Code.BUDGET_CLOSED), _numbers(refused.numbers), may_borrow)


def ask_of(row: AskFields) -> model.Ask:
    """The ask in a workload's or a reservation's columns."""
    return _ask(*(getattr(row, name) for name in ASK_COLUMNS))


@contextmanager
def _one_moment() -> Iterator[None]:
    """All queries see the same rows. Inside a caller's transaction it is the caller's isolation that holds."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


class _Reader:
    def __init__(self, pool_ids: Sequence[int] | None, now: datetime) -> None:
        self.now = now
        self.at = seconds(now)
        self.pools = list(
            Pool.objects.order_by("pk") if pool_ids is None else Pool.objects.filter(pk__in=pool_ids).order_by("pk")
        )
        self.ids = [pool.pk for pool in self.pools]
        self.asks = functools.lru_cache(maxsize=None)(_hashable_ask)

    def read(self) -> model.Snapshot:
        leader = Leader.objects.filter(pk=1).values_list("epoch", flat=True).first()
        held = self._held()
        reservations = self._reservations()
        running = self._running(held, {r.id: r for r in reservations})
        return model.Snapshot(
            epoch=leader or 0,
            pools=tuple(_pool(pool) for pool in self.pools),
            hosts=self._hosts(),
            units=self._units({unit for units, _, _ in held.values() for unit in units}),
            teams=tuple(model.Team(*row) for row in Team.objects.order_by("pk").values_list("pk", "name", "weight")),
            quotas=self._quotas(),
            decayed_use=self._decayed_use(running, held),
            queued=self._queued(),
            running=running,
            reservations=reservations,
            maintenance=self._maintenance(),
        )

    def _hosts(self) -> tuple[model.Host, ...]:
        return tuple(_host(host) for host in Host.objects.filter(pool__in=self.ids).order_by("pk").only(*HOST_COLUMNS))

    def _units(self, held: set[int]) -> tuple[model.Unit, ...]:
        """Those in use by the inventory, and retired ones that somebody still holds."""
        wanted = Q(retired_at__isnull=True, gpu__retired_at__isnull=True) | Q(pk__in=held)
        rows = Unit.objects.filter(wanted, gpu__host__pool__in=self.ids).order_by("pk")
        return tuple(_unit(row) for row in rows.values_list(*UNIT_COLUMNS))

    def _quotas(self) -> tuple[model.Quota, ...]:
        rows = Quota.objects.filter(pool__in=self.ids).order_by("pk")
        return tuple(
            model.Quota(*row)
            for row in rows.values_list("team_id", "pool_id", "model", "guaranteed_slots", "borrow_limit_slots")
        )

    def _held(self) -> dict[int, tuple[list[int], int, int]]:
        """By workload: the units of its open allocations, when it was placed, and how many slots they are."""
        found: dict[int, tuple[list[int], int, int]] = {}
        rows = Allocation.objects.filter(period__upper_inf=True, unit__gpu__host__pool__in=self.ids).order_by("unit_id")
        for workload, unit, period, slots in rows.values_list("workload_id", "unit_id", "period", "slots"):
            units, started, size = found.get(workload, ([], seconds(period.lower), 0))
            units.append(unit)
            found[workload] = (units, min(started, seconds(period.lower)), size + slots.upper - slots.lower)
        return found

    def _running(
        self, held: dict[int, tuple[list[int], int, int]], reservations: dict[int, model.Reservation]
    ) -> tuple[model.Running, ...]:
        rows = Workload.objects.filter(pk__in=held).order_by("pk").values(*RUNNING_COLUMNS)
        return tuple(
            self._one_running(row, *held[row["pk"]][:2], reservations.get(row["reservation_id"])) for row in rows
        )

    def _one_running(
        self, row: dict[str, Any], units: list[int], started: int, reservation: model.Reservation | None
    ) -> model.Running:
        until = started + row["max_runtime_seconds"]
        if reservation is not None:
            until = min(until, reservation.end)
        return model.Running(
            id=row["pk"],
            team=row["project__team_id"],
            project=row["project_id"],
            user=row["owner_id"],
            pool=row["pool_id"],
            units=tuple(units),
            started=started,
            until=until,
            predicted_until=min(started + row["predicted_seconds"], until),
            priority=model.Priority(row["priority"]),
            preemptible=row["preemptible"],
            borrowed_slots=row["borrowed_slots"],
            checkpoint_at=_seconds_or_none(row["checkpoint_at"]),
            reservation=row["reservation_id"],
            # One whose end is known but whose host has not confirmed it yet is on its way out, too.
            stopping=row["state"] in STOPPING or row["state"] not in LIVE,
            stop_by=_seconds_or_none(row["gone_by"]),
            evicted_for_workload=row["evicted_for_workload_id"],
            evicted_for_reservation=row["evicted_for_reservation_id"],
            evicted_by=row["evicted_by_id"],
            # What ended otherwise than by making room is counted by itself.
            evictions=max(0, row["attempt"] - 1 - row["failures"] - row["lost_attempts"]),
            cpu_milli=row["cpu_milli"],
            memory_mib=row["memory_mib"],
        )

    def _queued(self) -> tuple[model.Queued, ...]:
        gates = closed_gates(self.now)
        rows = (
            Workload.objects.filter(pool__in=self.ids, state=WorkloadState.QUEUED)
            .order_by("pk")
            .values(*QUEUED_COLUMNS)
        )
        return tuple(self._one_queued(row, gates) for row in rows)

    def _one_queued(self, row: dict[str, Any], gates: Gates) -> model.Queued:
        budget = budget_of(gates, row["project__team_id"], row["project_id"])
        code, numbers = budget.gate, budget.gate_numbers
        if row["reservation__state"] is not None and row["reservation__state"] not in PROMISED:
            code, numbers = str(Code.RESERVATION_OVER), ()
        return model.Queued(
            id=row["pk"],
            team=row["project__team_id"],
            project=row["project_id"],
            user=row["owner_id"],
            pool=row["pool_id"],
            ask=self.asks(*(_hashable(row[name]) for name in ASK_COLUMNS)),
            submitted=seconds(row["submitted_at"]),
            max_runtime_seconds=row["max_runtime_seconds"],
            predicted_seconds=row["predicted_seconds"],
            priority=model.Priority(row["priority"]),
            preemptible=row["preemptible"],
            may_borrow=row["preemptible"] and budget.may_borrow,
            reservation=row["reservation_id"],
            not_before=_seconds_or_none(row["not_before"]) or 0,
            evicted_by=row["evicted_by_id"],
            gate=code,
            gate_numbers=numbers,
            earmarked_units=tuple(sorted(row["earmarked_units"])),
        )

    def _reservations(self) -> tuple[model.Reservation, ...]:
        bound: dict[int, list[int]] = defaultdict(list)
        rows = BoundUnit.objects.filter(period__contains=self.now, reservation__pool__in=self.ids)
        for reservation, unit in rows.values_list("reservation_id", "unit_id"):
            bound[reservation].append(unit)
        promised = Reservation.objects.filter(pool__in=self.ids, state__in=PROMISED, end__gt=self.now)
        return tuple(_reservation(r, bound[r.pk]) for r in promised.select_related("project").order_by("pk"))

    def _maintenance(self) -> tuple[model.Maintenance, ...]:
        rows = MaintenanceWindow.objects.filter(host__pool__in=self.ids, end__gt=self.now).order_by("pk")
        return tuple(
            model.Maintenance(h, seconds(s), seconds(e)) for h, s, e in rows.values_list("host_id", "start", "end")
        )

    def _decayed_use(
        self, running: tuple[model.Running, ...], held: dict[int, tuple[list[int], int, int]]
    ) -> tuple[model.DecayedUse, ...]:
        slots: dict[tuple[int, int], int] = defaultdict(int)
        for one in running:
            slots[one.team, one.pool] += held[one.id][2]
        half_life = {pool.pk: pool.half_life_seconds for pool in self.pools}
        rows = DecayedUse.objects.filter(pool__in=self.ids).order_by("team_id", "pool_id")
        return tuple(
            model.DecayedUse(
                team,
                pool,
                decayed(used, slots[team, pool], max(0.0, (self.now - as_of).total_seconds()), half_life[pool]),
            )
            for team, pool, used, as_of in rows.values_list("team_id", "pool_id", "slot_seconds", "as_of")
        )


HOST_COLUMNS = ("pool_id", "name", "labels", "cpu_milli", "memory_mib", "lease_state", "admin_state", "repair_state")
UNIT_COLUMNS = (
    "pk",
    "gpu__host_id",
    "gpu_id",
    "gpu__model",
    "profile",
    "slots",
    "memory_mib",
    "gpu__compute_capability",
    "gpu__nvlink_group",
    "gpu__repair_state",
    "retired_at",
    "gpu__retired_at",
)
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
    "cpu_milli",
    "memory_mib",
)
QUEUED_COLUMNS = (*WORK_COLUMNS, *ASK_COLUMNS, "reservation__state", "submitted_at", "not_before", "earmarked_units")


def _pool(pool: Pool) -> model.Pool:
    per_user, per_workload = pool.most_gpus_per_user, pool.most_gpus_per_workload
    policy = model.Policy(
        notice_seconds=pool.notice_seconds,
        grace_seconds=pool.grace_seconds,
        minimum_runtime_seconds=pool.minimum_runtime_seconds,
        half_life_seconds=pool.half_life_seconds,
        spare_slots=pool.spare_slots,
        longest_runtime_seconds=pool.longest_runtime_seconds,
        most_slots_per_user=None if per_user is None else per_user * model.SLOTS_PER_GPU,
        most_slots_per_workload=None if per_workload is None else per_workload * model.SLOTS_PER_GPU,
    )
    return model.Pool(pool.pk, pool.name, model.PoolKind(pool.kind), pool.team_id, policy)


def _host(host: Host) -> model.Host:
    open_ = accepts_work(host.lease_state, host.admin_state, host.repair_state)
    in_maintenance = host.admin_state == AdminState.MAINTENANCE
    code = Code.HELD_FOR_MAINTENANCE if in_maintenance else Code.HOST_CLOSED
    return model.Host(
        id=host.pk,
        name=host.name,
        pool=host.pool_id,
        labels=_pairs(host.labels),
        cpu_milli=host.cpu_milli,
        memory_mib=host.memory_mib,
        accepts=open_,
        closed_code="" if open_ else str(code),
    )


def _unit(row: tuple[Any, ...]) -> model.Unit:
    pk, host, gpu, name, profile, slots, memory, capability, group, repair, retired, gpu_retired = row
    well = repair == RepairState.WELL and retired is None and gpu_retired is None
    return model.Unit(pk, host, gpu, name, profile, slots.upper - slots.lower, memory, capability, group, well)


def _reservation(row: Reservation, units: list[int]) -> model.Reservation:
    return model.Reservation(
        id=row.pk,
        team=row.project.team_id,
        project=row.project_id,
        pool=row.pool_id,
        ask=ask_of(row),
        start=seconds(row.start),
        end=seconds(row.end),
        units=tuple(sorted(units)),
        may_exceed_guarantee=row.may_exceed_guarantee,
    )


def _ask(
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
) -> model.Ask:
    return model.Ask(
        units=units,
        hosts=hosts,
        models=tuple(models),
        profile=profile,
        min_memory_mib=min_memory_mib,
        min_compute_capability=min_compute_capability,
        nvlink=nvlink,
        labels=_pairs(labels),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )


def _hashable_ask(*columns: Any) -> model.Ask:
    return _ask(*columns)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value


def _pairs(labels: Any) -> frozenset[tuple[str, str]]:
    items = labels.items() if isinstance(labels, dict) else labels
    return frozenset((str(name), str(value)) for name, value in items)


def _numbers(values: dict[str, Any]) -> model.Numbers:
    return tuple(sorted(values.items()))


def _seconds_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else seconds(moment)
