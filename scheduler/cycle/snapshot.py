"""Build the planner's Snapshot for a given time from database rows.

Reading and building are separate steps. ``SnapshotRows`` holds the rows of the database. It is valid for the
time of the reading and for later times. ``build_snapshot`` makes the Snapshot for such a time from these
rows. Because of this split, ``scheduler.cycle.snapshot_cache`` can keep the rows and read only the changed
rows again. The same code builds the cached snapshot and a fresh snapshot.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.core.model import snapshot
from scheduler.core.model.quota_ledger import decayed_use
from scheduler.core.reasons import ReasonCode
from scheduler.cycle.core_values import (
    ask_from_row,
    epoch_seconds,
    epoch_seconds_or_none,
    hashable,
    interned_ask,
)
from scheduler.cycle.gate_effects import ClosedGates, budget_effect, closed_budget_gates, gates_by_owner
from scheduler.cycle.gc_pause import gc_paused
from scheduler.cycle.snapshot_rows import (
    QUEUED_COLUMNS,
    Columns,
    HeldUnits,
    SnapshotReader,
    SnapshotRows,
    repeatable_read,
)
from scheduler.models import (
    Reservation,
    Workload,
)
from scheduler.queue import dependencies
from scheduler.requests import HARDWARE_COLUMNS
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import OPEN_RESERVATION_STATES, TERMINATING_STATES


def take_snapshot(pool_ids: Sequence[int] | None, now: datetime) -> snapshot.Snapshot:
    """Return everything that the planner may know about these pools at ``now``.

    If ``pool_ids`` is None, all pools are included.
    """
    with repeatable_read(), gc_paused():
        return build_snapshot(SnapshotReader(pool_ids, now).read(), now)


def take_empty_snapshot(pool_ids: Sequence[int], now: datetime) -> snapshot.Snapshot:
    """Return these pools as if no work ran or was queued and no GPU-hours were used.

    Maintenance windows and closed budget gates are left out too. This snapshot shows whether a workload could
    ever start.
    """
    with repeatable_read(), gc_paused():
        return build_snapshot(SnapshotReader(pool_ids, now).read_empty(), now)


def with_reservation(taken: snapshot.Snapshot, reservation: snapshot.ReservationInfo) -> snapshot.Snapshot:
    """Return the snapshot with one more reservation, for what-if questions."""
    return dataclasses.replace(taken, reservations=(*taken.reservations, reservation))


def queued_from_row(row: Workload, now: datetime) -> snapshot.QueuedWorkload:
    """Return the planner's row of a workload as if the workload was queued.

    ``row`` must have an id, but it need not be saved. One query reads the budget gates that are closed at
    ``now``.
    """
    return TimeEffects(closed_budget_gates(now), {}).queued(
        {name: _column_value(row, name) for name in QUEUED_COLUMNS}
    )


def _column_value(row: Any, name: str) -> Any:
    """Return the value that ``values_list`` would return for the lookup path ``name``.

    Return None if a foreign key in the path is empty.
    """
    for part in name.split("__"):
        row = None if row is None else getattr(row, part)
    return row


@dataclass(frozen=True, slots=True)
class TimeEffects:
    """The facts that depend on the clock: closed budget gates and open reservations.

    A reservation is open until its end. It includes the units that are bound to it.
    """

    gates: ClosedGates
    reservations: dict[int, snapshot.ReservationInfo]

    def affects_workloads_like(self, other: TimeEffects) -> bool:
        """Return True if ``self`` and ``other`` give equal rows for every workload."""
        return self._to_workloads() == other._to_workloads()

    def _to_workloads(self) -> tuple[object, object]:
        gates = {
            owner: {action: gate.numbers for action, gate in gates.items()}
            for owner, gates in self.gates.items()
        }
        return gates, {promise.id: promise.end for promise in self.reservations.values()}

    def queued(self, row: Columns) -> snapshot.QueuedWorkload:
        """Return the planner's row of a queued workload."""
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
            ask=interned_ask(*(hashable(row[name]) for name in HARDWARE_COLUMNS)),
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
            room_made_by_own_team=row["room_made_by_own_team"],
            avoids=tuple(sorted(row["avoids"])),
            avoids_until=epoch_seconds_or_none(row["avoids_until"]) or 0,
            checkpoint_storage=row["homes_id"],
        )

    def running(self, row: Columns, held: HeldUnits) -> snapshot.RunningWorkload:
        """Return the planner's row of a workload that holds units."""
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
            predicted_end=min(held.since + row["predicted_seconds"], until),
            priority=snapshot.Priority(row["priority"]),
            preemptible=row["preemptible"],
            borrowed_slots=row["borrowed_slots"],
            checkpoint_at=epoch_seconds_or_none(row["checkpoint_at"]),
            reservation=row["reservation_id"],
            # A workload that has ended but still holds units is stopping until its host confirms the end.
            stopping=row["state"] in TERMINATING_STATES or row["state"] not in LIVE_STATES,
            stop_by=epoch_seconds_or_none(row["gone_by"]),
            evicted_for_workload=row["evicted_for_workload_id"],
            evicted_for_reservation=row["evicted_for_reservation_id"],
            evicted_by=row["evicted_by_id"],
            # Earlier attempts that were not evicted are counted in failures and lost_attempts.
            evictions=max(0, row["attempt"] - 1 - row["failures"] - row["lost_attempts"]),
            cpu_milli=row["cpu_milli"],
            memory_mib=row["memory_mib"],
            ask=interned_ask(*(hashable(row[name]) for name in HARDWARE_COLUMNS)),
        )


def time_effects(rows: SnapshotRows, now: datetime) -> TimeEffects:
    """Return the time effects at ``now``. ``now`` must not be before the time at which the rows were read."""
    return TimeEffects(
        gates_by_owner(gate for gate in rows.gates if gate.until > now),
        {promise.id: promise for promise in open_reservations(rows.promised, rows.bound, now)},
    )


def open_reservations(
    promised: Iterable[Reservation], bound: Iterable[tuple[int, int, datetime, datetime]], now: datetime
) -> list[snapshot.ReservationInfo]:
    """Return reservations that have not ended at ``now``, with the units bound to them at that time."""
    units: dict[int, list[int]] = defaultdict(list)
    for reservation, unit, since, until in bound:
        if since <= now < until:
            units[reservation].append(unit)
    return [_reservation(row, units[row.pk]) for row in promised if row.end > now]


def open_maintenance(
    windows: Iterable[tuple[int, datetime, datetime]], now: datetime
) -> tuple[snapshot.MaintenanceInfo, ...]:
    """Return the maintenance windows that have not ended."""
    return tuple(
        snapshot.MaintenanceInfo(h, epoch_seconds(s), epoch_seconds(e)) for h, s, e in windows if e > now
    )


def decayed_use_at(
    rows: SnapshotRows, slots: Mapping[tuple[int, int], int], now: datetime
) -> tuple[snapshot.DecayedUseInfo, ...]:
    """Return the decayed use at ``now``. ``slots`` has the number of slots that each (team, pool) holds."""
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
    """Return the number of slots that running work holds, by (team, pool)."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for pk, row in rows.running.items():
        found[row["project__team_id"], row["pool_id"]] += rows.held[pk].slots
    return found


def build_snapshot(rows: SnapshotRows, now: datetime) -> snapshot.Snapshot:
    """Build the Snapshot at ``now``. ``now`` must not be before the time at which the rows were read."""
    effects = time_effects(rows, now)
    return snapshot.Snapshot(
        epoch=rows.epoch,
        pools=tuple(rows.pools.values()),
        hosts=tuple(rows.hosts.values()),
        units=tuple(rows.units.values()),
        teams=tuple(rows.teams.values()),
        quotas=rows.quotas,
        decayed_use=decayed_use_at(rows, held_slots(rows), now),
        queued=tuple(effects.queued(row) for row in rows.queued.values()),
        running=tuple(effects.running(row, rows.held[pk]) for pk, row in rows.running.items()),
        reservations=tuple(effects.reservations.values()),
        maintenance=open_maintenance(rows.maintenance, now),
    )


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
