"""Arrange one pool of a snapshot for planning, and update it when rows change.

A cycle is one run of the planner. It reads the pool's snapshot and never changes it. Hardware, running work
and the queue are expensive to build, so between cycles only their changed rows are updated. Values that
depend on the time are computed in each cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from scheduler.core.model.hardware import PoolHardware
from scheduler.core.model.quota_ledger import PoolQuotas
from scheduler.core.model.running_work import RunningWork
from scheduler.core.model.snapshot import (
    DecayedUseInfo,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    QueuedWorkload,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.model.snapshot import QuotaInfo as QuotaRow
from scheduler.core.model.waiting_queue import PoolQueue


class PoolSnapshot:
    """One pool of a snapshot: its hardware, running work, queue, quotas, reservations and maintenance."""

    def __init__(self, snapshot: Snapshot, pool: PoolInfo) -> None:
        self.pool = pool
        self.hardware = PoolHardware((h for h in snapshot.hosts if h.pool == pool.id), snapshot.units)
        self.running_work = RunningWork(self.hardware, (r for r in snapshot.running if r.pool == pool.id))
        self._set_queue(q for q in snapshot.queued if q.pool == pool.id)
        self.set_quotas(snapshot.quotas)
        self.set_reservations(snapshot.reservations)
        self.set_maintenance(snapshot.maintenance)
        self.set_decayed_use(snapshot.teams, snapshot.decayed_use)

    def set_pool(self, pool: PoolInfo) -> None:
        """Replace the row of the pool itself. Rebuild the queue, because it depends on the pool's policy."""
        self.pool = pool
        self._set_queue(self.queue.rows())

    def set_hardware(self, hosts: Iterable[HostInfo], units: Iterable[UnitInfo]) -> None:
        """Replace hosts and units, and rebuild the running work and the queue, which refer to them."""
        self.hardware = PoolHardware((h for h in hosts if h.pool == self.pool.id), units)
        self.running_work = RunningWork(self.hardware, self.running_work.running)
        self._set_queue(self.queue.rows())

    def _set_queue(self, rows: Iterable[QueuedWorkload]) -> None:
        self.queue = PoolQueue(self.hardware, self.pool.policy)
        self.queue.fill(rows)

    def set_quotas(self, quotas: Iterable[QuotaRow]) -> None:
        """Replace the quotas."""
        self.quotas = PoolQuotas(self.pool, quotas)

    def set_reservations(self, reservations: Iterable[ReservationInfo]) -> None:
        """Replace the reservations, sorted by id."""
        self.reservations = sorted((r for r in reservations if r.pool == self.pool.id), key=attrgetter("id"))

    def set_maintenance(self, windows: Iterable[MaintenanceInfo]) -> None:
        """Replace the maintenance windows of this pool's hosts. Each becomes (host index, start, end)."""
        index = self.hardware.host_index
        self.maintenance = sorted((index[m.host], m.start, m.end) for m in windows if m.host in index)

    def set_decayed_use(self, teams: Iterable[TeamInfo], use: Iterable[DecayedUseInfo]) -> None:
        """Replace each team's weight in fair share, and its decayed use divided by the weight.

        Decayed use is the team's past use in slot-seconds. With every half-life, past use counts half as
        much. The team with the lowest quotient borrows first. Example: 600 slot-seconds at weight 3 (200)
        come before 300 at weight 1 (300).
        """
        used = {u.team: u.slot_seconds for u in use if u.pool == self.pool.id}
        self.weights = {team.id: max(1, team.weight) for team in teams}
        self.decayed_use_by_weight = {
            team: used.get(team, 0.0) / weight for team, weight in self.weights.items()
        }

    def change_running(self, removed: Iterable[int], rows: Iterable[RunningWorkload]) -> None:
        """Remove running workloads by id, and add or replace rows."""
        self.running_work.change(removed, rows)
        if self.running_work.has_conflicts:
            self.running_work = RunningWork(self.hardware, self.running_work.running)

    def change_queued(self, removed: Iterable[int], rows: Iterable[QueuedWorkload]) -> None:
        """Remove waiting workloads by id, and add or replace rows."""
        self.queue.change(removed, rows)
        if self.hardware.ask_cache_is_full:
            self.hardware.clear_ask_cache()
            # After the cache is cleared, each ask gets a new number. The queue groups its workloads by this
            # number, so it is built again.
            self._set_queue(self.queue.rows())
