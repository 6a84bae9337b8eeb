"""Rows in, Snapshot out: one moment of the pools, read in ``SNAPSHOT_QUERIES`` queries however many rows there are.

Reading and putting together are two steps. ``SnapshotRows`` is what the database says, and nothing in it depends on the clock;
``build_snapshot`` makes the Snapshot of it as of a moment. So the snapshot that is kept warm (``scheduler.cycle.snapshot_cache``) reads a few
rows again, and is put together by the same code as a fresh one.
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
    ASK_COLUMNS,
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
from scheduler.runs.commands import LIVE_STATES
from scheduler.state.states import OPEN_RESERVATION_STATES, TERMINATING_STATES


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


# -- what the rows say -----------------------------------------------------------------------------------------------------


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
