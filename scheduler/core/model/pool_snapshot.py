"""Everything a snapshot says about one pool, arranged for planning, and kept so by deltas.

A cycle starts from here and changes nothing of it. What is costly to arrange (hardware, who runs where, the queue) is
only touched where rows changed; the little that depends on time is left to the cycle.
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
    """One pool of a snapshot."""

    def __init__(self, snapshot: Snapshot, pool: PoolInfo) -> None:
        self.pool = pool
        self.ground = PoolHardware((h for h in snapshot.hosts if h.pool == pool.id), snapshot.units)
        self.occupancy = RunningWork(self.ground, (r for r in snapshot.running if r.pool == pool.id))
        self._set_queue(q for q in snapshot.queued if q.pool == pool.id)
        self.set_quotas(snapshot.quotas)
        self.set_reservations(snapshot.reservations)
        self.set_maintenance(snapshot.maintenance)
        self.set_shares(snapshot.teams, snapshot.decayed_use)

    def set_pool(self, pool: PoolInfo) -> None:
        """The pool's own row: its name, kind and policy."""
        self.pool = pool
        self._set_queue(self.queue.rows())

    def set_hardware(self, hosts: Iterable[HostInfo], units: Iterable[UnitInfo]) -> None:
        """Hosts and units are new: everything that stands on them is arranged anew."""
        self.ground = PoolHardware((h for h in hosts if h.pool == self.pool.id), units)
        self.occupancy = RunningWork(self.ground, self.occupancy.running)
        self._set_queue(self.queue.rows())

    def _set_queue(self, rows: Iterable[QueuedWorkload]) -> None:
        self.queue = PoolQueue(self.ground, self.pool.policy)
        self.queue.fill(rows)

    def set_quotas(self, quotas: Iterable[QuotaRow]) -> None:
        self.quotas = PoolQuotas(self.pool, quotas)

    def set_reservations(self, reservations: Iterable[ReservationInfo]) -> None:
        self.reservations = sorted((r for r in reservations if r.pool == self.pool.id), key=attrgetter("id"))

    def set_maintenance(self, windows: Iterable[MaintenanceInfo]) -> None:
        """Windows on this pool's hosts, as (host index, start, end)."""
        index = self.ground.host_index
        self.maintenance = sorted((index[m.host], m.start, m.end) for m in windows if m.host in index)

    def set_shares(self, teams: Iterable[TeamInfo], use: Iterable[DecayedUseInfo]) -> None:
        """Weights, and decayed use by weight of every team: the lower, the sooner it borrows next."""
        used = {u.team: u.slot_seconds for u in use if u.pool == self.pool.id}
        self.weights = {team.id: max(1, team.weight) for team in teams}
        self.shares = {team: used.get(team, 0.0) / weight for team, weight in self.weights.items()}

    def change_running(self, gone: Iterable[int], rows: Iterable[RunningWorkload]) -> None:
        self.occupancy.change(gone, rows)
        if self.occupancy.contested:
            self.occupancy = RunningWork(self.ground, self.occupancy.running)

    def change_queued(self, gone: Iterable[int], rows: Iterable[QueuedWorkload]) -> None:
        self.queue.change(gone, rows)
        if self.ground.ask_cache_is_full:
            self.ground.clear_ask_cache()
            self._set_queue(self.queue.rows())  # it stands in groups by the numbers of asks
