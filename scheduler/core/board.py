"""One pool while its plan is being made: the snapshot's facts as arrays, and on top what was decided so far.

The snapshot is never changed. Units are ordered by host, GPU and id, so that an index is a stable name and the units of
a host lie together; every choice that is otherwise equal falls to the lower index.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.core.fairshare import Ledger
from scheduler.core.model import (
    WHOLE,
    Ask,
    Binding,
    Eviction,
    Host,
    Placement,
    Pool,
    Queued,
    Refusal,
    Reservation,
    Running,
    Snapshot,
    Unbound,
    Unit,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def both(one: Mask, other: Mask) -> Mask:
    """The units (or hosts) that are in both masks."""
    mask: Mask = one & other
    return mask


HOLDS, MAINTENANCE, RESERVATIONS = "holds", "maintenance", "reservations"  # what units can be promised to
NEVER = 1 << 60  # later than every time the planner meets
NOBODY = -1
EVICTION_COST_SECONDS = (
    30 * 60
)  # having been told to go once weighs like this much work lost, so that others take their turn


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """Units that are the same to an ask."""

    memory_mib: int
    compute_capability: int
    model: str
    profile: str
    slots: int


class Board:
    """The working state of one pool. Only ``place``, ``evict``, ``bind``, ``keep`` and ``hold`` change it."""

    def __init__(self, snapshot: Snapshot, pool: Pool, now: int) -> None:
        self.pool, self.policy, self.now = pool, pool.policy, now
        self.hosts: list[Host] = sorted((h for h in snapshot.hosts if h.pool == pool.id), key=lambda h: h.id)
        self.host_index = {host.id: i for i, host in enumerate(self.hosts)}
        self.units: list[Unit] = sorted(
            (u for u in snapshot.units if u.host in self.host_index), key=lambda u: (u.host, u.gpu, u.id)
        )
        self.unit_index = {unit.id: i for i, unit in enumerate(self.units)}
        self.running: list[Running] = sorted((r for r in snapshot.running if r.pool == pool.id), key=lambda r: r.id)
        self.queued: list[Queued] = sorted((q for q in snapshot.queued if q.pool == pool.id), key=lambda q: q.id)
        self.reservations: list[Reservation] = sorted(
            (r for r in snapshot.reservations if r.pool == pool.id and r.end > now), key=lambda r: r.id
        )
        self.reservation_by_id = {r.id: r for r in self.reservations}
        self.maintenance = sorted(
            (self.host_index[m.host], m.start, m.end) for m in snapshot.maintenance if m.host in self.host_index
        )
        self.ledger = Ledger(pool, snapshot.quotas)
        self._read_units()
        self._read_holders()
        self._read_promises()
        self.free: Mask = self.usable & (self.holder == NOBODY) & (self.bound == 0) & (self.kept == 0)
        self.free_slots = int(self.slots[self.free].sum())
        self.counts: dict[int, Ints] = {
            k: np.bincount(self.host_of[self.free & (self.kind == k)], minlength=len(self.hosts)).astype(np.int64)
            for k in range(len(self.kinds))
        }
        self.placements: list[Placement] = []
        self.evictions: list[Eviction] = []
        self.refusals: list[Refusal] = []
        self.bindings: list[Binding] = []
        self.unbound: list[Unbound] = []
        self.predicted: dict[int, int] = {}  # seconds the work placed by this plan is expected to run
        self.evicted: set[int] = set()  # indices of running work told to go by this plan
        self._read_evictable()
        self.promised_from = {
            HOLDS: self.hold_from,
            MAINTENANCE: self.maintenance_from,
            RESERVATIONS: self.reserved_from,
        }
        self._promise_times: dict[str, list[int]] = {}
        self._clear_of: dict[tuple[int, ...], Mask] = {}
        self.waste: list[int] | None = None  # made by fit when first needed
        self.rank_tables: dict[int, Ints] = {}
        self.rack_of = [dict(host.labels).get("rack", "") for host in self.hosts]
        self.has_racks = any(self.rack_of)
        self._label_masks: dict[frozenset[tuple[str, str]], Mask] = {}
        self._fitting: dict[int, Mask] = {}
        self._kinds_of: dict[int, list[int]] = {}
        self._asks_seen: list[Ask] = []
        self._ask_numbers: dict[Ask, int] = {}
        self._ask_numbers_by_row: dict[int, int] = {}

    # -- reading the snapshot -------------------------------------------------------------------------------------

    def _read_units(self) -> None:
        kind_of = [Kind(u.memory_mib, u.compute_capability, u.model, u.profile, u.slots) for u in self.units]
        self.kinds: list[Kind] = sorted(set(kind_of))
        kind_index = {kind: i for i, kind in enumerate(self.kinds)}
        gpus = sorted({u.gpu for u in self.units})
        gpu_index = {gpu: i for i, gpu in enumerate(gpus)}
        self.kind: Ints = np.array([kind_index[k] for k in kind_of], dtype=np.int64)
        self.host_of: Ints = np.array([self.host_index[u.host] for u in self.units], dtype=np.int64)
        self.gpu_of: Ints = np.array([gpu_index[u.gpu] for u in self.units], dtype=np.int64)
        self.slots: Ints = np.array([u.slots for u in self.units], dtype=np.int64)
        self.gpu_used: Ints = np.zeros(len(gpus), dtype=np.int64)
        self.gpu_teams: dict[int, int] = {}  # of a time-sliced GPU: the team that has it
        self.first_unit: Ints = np.searchsorted(self.host_of, np.arange(len(self.hosts) + 1))
        accepts = np.array([h.accepts for h in self.hosts], dtype=np.bool_)
        for host, start, end in self.maintenance:
            if start <= self.now < end:
                accepts[host] = False
        well = np.array([u.well for u in self.units], dtype=np.bool_)
        self.accepts: Mask = accepts
        # In service: a host that takes work, maintenance apart, which has an end; usable: right now.
        open_ = np.array([h.accepts for h in self.hosts], dtype=np.bool_)
        self.in_service: Mask = well & open_[self.host_of] if len(self.units) else well
        self.usable: Mask = well & accepts[self.host_of] if len(self.units) else well
        self.cpu_free: Ints = np.array([h.cpu_milli or NEVER for h in self.hosts], dtype=np.int64)
        self.memory_free: Ints = np.array([h.memory_mib or NEVER for h in self.hosts], dtype=np.int64)
        self.cpu_whole, self.memory_whole = self.cpu_free.copy(), self.memory_free.copy()

    def _read_holders(self) -> None:
        self.holder: Ints = np.full(len(self.units), NOBODY, dtype=np.int64)
        self.units_of: list[list[int]] = []
        for i, running in enumerate(self.running):
            held = [self.unit_index[u] for u in running.units if u in self.unit_index]
            self.units_of.append(held)
            self.holder[held] = i
            self._take(held, running.team, running.cpu_milli, running.memory_mib)
            for unit in held:
                slots, key = int(self.slots[unit]), (running.team, self.model_of(unit))
                if running.reservation is None:
                    self.ledger.held[key] += slots
                    self.ledger.standing[key] += slots
                    self.ledger.firm[key] += 0 if running.preemptible else slots
                    if running.stopping:
                        self.ledger.leaving[key] += slots
                self.ledger.held_by_user[running.user] += slots

    def _read_promises(self) -> None:
        self.bound: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.kept: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.reserved_from: Ints = np.full(len(self.units), NEVER, dtype=np.int64)
        self.reserved_for: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.maintenance_from: Ints = np.full(len(self.units), NEVER, dtype=np.int64)
        self.hold_from: Ints = np.full(len(self.units), NEVER, dtype=np.int64)
        for reservation in self.reservations:
            if reservation.units:
                self._mark_bound(reservation, [self.unit_index[u] for u in reservation.units if u in self.unit_index])
        for host, start, _end in reversed(self.maintenance):
            if start > self.now:
                self.maintenance_from[self.first_unit[host] : self.first_unit[host + 1]] = start
        for queued in self.queued:
            for unit in queued.earmarked_units:
                if unit in self.unit_index:
                    self.kept[self.unit_index[unit]] = queued.id
        self.keepers: set[int] = {queued.id for queued in self.queued if queued.earmarked_units}
        waiting = {queued.id for queued in self.queued}
        for i, running in enumerate(self.running):
            if running.stopping and running.evicted_for_workload in waiting:
                self.kept[self.units_of[i]] = running.evicted_for_workload
                self.keepers.add(running.evicted_for_workload)

    def _mark_bound(self, reservation: Reservation, units: list[int]) -> None:
        self.bound[units] = reservation.id
        for unit in units:
            key, slots = (reservation.team, self.model_of(unit)), int(self.slots[unit])
            self.ledger.held[key] += slots
            self.ledger.firm[key] += slots
            self.ledger.standing[key] += slots

    def _take(self, units: list[int], team: int, cpu_milli: int, memory_mib: int) -> None:
        """Account for a holder's GPUs, CPU and memory."""
        for host in {int(self.host_of[u]) for u in units}:
            self.cpu_free[host] -= cpu_milli
            self.memory_free[host] -= memory_mib
        for unit in units:
            gpu = int(self.gpu_of[unit])
            self.gpu_used[gpu] += self.slots[unit]
            if self.units[unit].profile.startswith("share"):
                self.gpu_teams[gpu] = team

    def _read_evictable(self) -> None:
        """Running work as arrays, for searches over all of it; and cheap facts that rule out most searches."""
        running = self.running
        self.run_team: Ints = np.array([r.team for r in running], dtype=np.int64)
        self.run_priority: Ints = np.array([r.priority for r in running], dtype=np.int64)
        self.run_id: Ints = np.array([r.id for r in running], dtype=np.int64)
        self.run_reservation: Ints = np.array([r.reservation or 0 for r in running], dtype=np.int64)
        self.run_slots: Ints = np.array([int(self.slots[units].sum()) for units in self.units_of], dtype=np.int64)
        since = np.array([max(r.started, r.checkpoint_at or r.started) for r in running], dtype=np.int64)
        self.lost: Ints = np.maximum(0, self.now - since) * self.run_slots  # slot-seconds an eviction throws away
        before = np.array([r.evictions for r in running], dtype=np.int64)
        self.cost: Ints = self.lost + before * EVICTION_COST_SECONDS * self.run_slots  # what victims are chosen by
        minimum = self.policy.minimum_runtime_seconds
        self.evictable: Mask = np.array(
            [r.preemptible and not r.stopping and self.now >= r.started + minimum for r in running], dtype=np.bool_
        )
        self.of_team: dict[int, list[int]] = {}
        self.leaving_for: dict[int, list[int]] = {}
        self.leaving_freely: list[int] = []  # told to go, for nobody who still waits
        waiting = {queued.id for queued in self.queued}
        for i, one in enumerate(running):
            self.of_team.setdefault(one.team, []).append(i)
            if one.stopping and one.evicted_for_workload in waiting:
                self.leaving_for.setdefault(one.evicted_for_workload or 0, []).append(i)
            elif one.stopping and one.evicted_for_reservation is None:
                self.leaving_freely.append(i)
        can_go = [i for i in range(len(running)) if self.evictable[i]]
        self.lowest_priority: dict[int, int] = {}  # team -> lowest priority of its evictable work
        for i in can_go:
            team = running[i].team
            self.lowest_priority[team] = min(self.lowest_priority.get(team, running[i].priority), running[i].priority)
        borrowing = {(running[i].team, self.model_of(u)) for i in can_go for u in self.units_of[i]}
        self.someone_borrows = any(self.ledger.excess(team, model) > 0 for team, model in borrowing)

    # -- questions ------------------------------------------------------------------------------------------------

    def model_of(self, unit: int) -> str:
        return self.units[unit].model

    def ask_number(self, ask: Ask) -> int:
        """The same for equal asks. Found by the object first: hashing an ask took a tenth of a cycle."""
        number = self._ask_numbers_by_row.get(id(ask))
        if number is None:
            number = self._ask_numbers.setdefault(ask, len(self._ask_numbers))
            self._ask_numbers_by_row[id(ask)] = number
            self._asks_seen.append(ask)  # kept, so that no other object gets its id
        return number

    def kinds_for(self, ask: Ask) -> list[int]:
        """The kinds that serve an ask, in its order of preference; without a wish the least capable first."""
        number = self.ask_number(ask)
        known = self._kinds_of.get(number)
        if known is None:
            fitting = [
                i
                for i, kind in enumerate(self.kinds)
                if kind.profile == ask.profile
                and kind.memory_mib >= ask.min_memory_mib
                and kind.compute_capability >= ask.min_compute_capability
                and (not ask.models or kind.model in ask.models)
            ]
            if ask.models:
                fitting.sort(key=lambda i: (ask.models.index(self.kinds[i].model), i))
            known = self._kinds_of[number] = fitting
        return known

    def label_mask(self, labels: frozenset[tuple[str, str]]) -> Mask:
        """Which hosts carry every one of these labels."""
        known = self._label_masks.get(labels)
        if known is None:
            known = self._label_masks[labels] = np.array([labels <= h.labels for h in self.hosts], dtype=np.bool_)
        return known

    def fitting(self, ask: Ask) -> Mask:
        """The units of every kind that serves an ask."""
        number = self.ask_number(ask)
        known = self._fitting.get(number)
        if known is None:
            known = self._fitting[number] = np.isin(self.kind, np.array(self.kinds_for(ask), dtype=np.int64))
        return known

    def next_promise(self, what: str, time: int) -> int:
        """The first promise of a sort at or after ``time``, NEVER if all are before; 0 when none is before it."""
        times = self._promise_times.get(what)
        if times is None:
            times = [int(t) for t in np.unique(self.promised_from[what]) if t < NEVER]
            self._promise_times[what] = times
        if not times or times[0] >= time:
            return 0
        place = bisect_left(times, time)
        return times[place] if place < len(times) else NEVER

    def clear_of(self, bounds: tuple[int, ...]) -> Mask | None:
        """Units promised no sooner than the bounds for holds, maintenance and reservations; 0 is no bound, None all."""
        if not any(bounds):
            return None
        mask = self._clear_of.get(bounds)
        if mask is None:
            mask = np.ones(len(self.units), dtype=np.bool_)
            for promised_from, bound in zip(self.promised_from.values(), bounds, strict=True):
                if bound:
                    mask &= promised_from >= bound
            self._clear_of[bounds] = mask
        return mask

    def need_slots(self, ask: Ask, kind: int) -> int:
        return ask.total_units * self.kinds[kind].slots

    def is_shared(self, ask: Ask) -> bool:
        return ask.profile != WHOLE and ask.profile.startswith("share")

    # -- decisions ------------------------------------------------------------------------------------------------

    def _leave_free(self, units: list[int]) -> None:
        for unit in units:
            if self.free[unit]:
                self.free[unit] = False
                self.free_slots -= int(self.slots[unit])
                self.counts[int(self.kind[unit])][self.host_of[unit]] -= 1

    def place(self, queued: Queued, units: list[int], placement: Placement) -> None:
        """Start a workload on free units."""
        self._leave_free(units)
        self.kept[self.kept == queued.id] = 0
        self.holder[units] = len(self.running) + len(self.placements)
        self._take(units, queued.team, queued.ask.cpu_milli, queued.ask.memory_mib)
        for unit in units:
            slots = int(self.slots[unit])
            if queued.reservation is None:
                self.ledger.held[queued.team, self.model_of(unit)] += slots
                self.ledger.firm[queued.team, self.model_of(unit)] += 0 if queued.preemptible else slots
            self.ledger.held_by_user[queued.user] += slots
        self.predicted[queued.id] = queued.predicted_seconds
        self.placements.append(placement)

    def evict(self, victim: int, eviction: Eviction) -> None:
        """Tell running work to go; its units stay its own until it is gone."""
        self.evicted.add(victim)
        self.evictable[victim] = False
        for unit in self.units_of[victim]:
            if self.running[victim].reservation is None:
                key = (self.running[victim].team, self.model_of(unit))
                self.ledger.leaving[key] += int(self.slots[unit])
        self.evictions.append(eviction)

    def bind(self, reservation: Reservation, units: list[int]) -> None:
        """Give a reservation that starts its units."""
        self._leave_free(units)
        self._mark_bound(reservation, units)
        self.bindings.append(Binding(reservation.id, tuple(sorted(self.units[u].id for u in units))))

    def keep(self, queued: Queued, units: list[int]) -> None:
        """Earmark units for a workload that others are being evicted for."""
        self._leave_free(units)
        self.kept[units] = queued.id
        self.keepers.add(queued.id)
        for unit in units:
            if self.units[unit].profile.startswith("share"):
                self.gpu_teams[int(self.gpu_of[unit])] = queued.team

    def release(self, queued: Queued) -> None:
        """Nobody is leaving for it any more and it can't start all the same: what was kept for it is anybody's."""
        units = np.flatnonzero((self.kept == queued.id) & (self.holder == NOBODY) & (self.bound == 0) & self.usable)
        self.kept[units] = 0
        self.free[units] = True
        self.free_slots += int(self.slots[units].sum())
        for unit in units:
            self.counts[int(self.kind[unit])][self.host_of[unit]] += 1

    def promise(self, reservation: Reservation, units: list[int]) -> None:
        """Note which units a reservation still to come counts on."""
        for unit in units:
            if reservation.start < self.reserved_from[unit]:
                self.reserved_from[unit], self.reserved_for[unit] = reservation.start, reservation.id
        self._promise_times.pop(RESERVATIONS, None)
        self._clear_of.clear()

    def hold(self, units: list[int], start: int) -> None:
        """Set units aside for a waiting workload that is expected to start on them at ``start``."""
        self.hold_from[units] = np.minimum(self.hold_from[units], start)
        self._promise_times.pop(HOLDS, None)
        self._clear_of.clear()
