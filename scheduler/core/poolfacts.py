"""Everything a snapshot says about one pool, arranged for planning, and kept so by deltas.

A cycle starts from here and changes nothing of it. What is costly to arrange (hardware, who runs where, the queue) is
only touched where rows changed; the little that depends on time is left to the cycle.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from scheduler.core.fairshare import Quotas
from scheduler.core.ground import Ground
from scheduler.core.model import DecayedUse, Host, Maintenance, Pool, Queued, Reservation, Running, Snapshot, Team, Unit
from scheduler.core.model import Quota as QuotaRow
from scheduler.core.occupancy import Occupancy
from scheduler.core.ordering import Queue


class PoolFacts:
    """One pool of a snapshot."""

    def __init__(self, snapshot: Snapshot, pool: Pool) -> None:
        self.pool = pool
        self.ground = Ground((h for h in snapshot.hosts if h.pool == pool.id), snapshot.units)
        self.occupancy = Occupancy(self.ground, (r for r in snapshot.running if r.pool == pool.id))
        self._set_queue(q for q in snapshot.queued if q.pool == pool.id)
        self.set_quotas(snapshot.quotas)
        self.set_reservations(snapshot.reservations)
        self.set_maintenance(snapshot.maintenance)
        self.set_shares(snapshot.teams, snapshot.decayed_use)

    def set_pool(self, pool: Pool) -> None:
        """The pool's own row: its name, kind and policy."""
        self.pool = pool
        self._set_queue(self.queue.rows())

    def set_hardware(self, hosts: Iterable[Host], units: Iterable[Unit]) -> None:
        """Hosts and units are new: everything that stands on them is arranged anew."""
        self.ground = Ground((h for h in hosts if h.pool == self.pool.id), units)
        self.occupancy = Occupancy(self.ground, self.occupancy.running)
        self._set_queue(self.queue.rows())

    def _set_queue(self, rows: Iterable[Queued]) -> None:
        self.queue = Queue(self.ground, self.pool.policy)
        self.queue.fill(rows)

    def set_quotas(self, quotas: Iterable[QuotaRow]) -> None:
        self.quotas = Quotas(self.pool, quotas)

    def set_reservations(self, reservations: Iterable[Reservation]) -> None:
        self.reservations = sorted((r for r in reservations if r.pool == self.pool.id), key=attrgetter("id"))

    def set_maintenance(self, windows: Iterable[Maintenance]) -> None:
        """Windows on this pool's hosts, as (host index, start, end)."""
        index = self.ground.host_index
        self.maintenance = sorted((index[m.host], m.start, m.end) for m in windows if m.host in index)

    def set_shares(self, teams: Iterable[Team], use: Iterable[DecayedUse]) -> None:
        """Weights, and decayed use by weight of every team: the lower, the sooner it borrows next."""
        used = {u.team: u.slot_seconds for u in use if u.pool == self.pool.id}
        self.weights = {team.id: max(1, team.weight) for team in teams}
        self.shares = {team: used.get(team, 0.0) / weight for team, weight in self.weights.items()}

    def change_running(self, gone: Iterable[int], rows: Iterable[Running]) -> None:
        self.occupancy.change(gone, rows)
        if self.occupancy.contested:
            self.occupancy = Occupancy(self.ground, self.occupancy.running)

    def change_queued(self, gone: Iterable[int], rows: Iterable[Queued]) -> None:
        self.queue.change(gone, rows)
        if self.ground.knows_many_asks:
            self.ground.forget_asks()
            self._set_queue(self.queue.rows())  # it stands in groups by the numbers of asks
