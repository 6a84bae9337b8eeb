"""Hold the working state of one pool in a cycle (one run of the planner): arrays, and the decisions so far.

The pool's snapshot is never changed. If decisions change an array of the snapshot, the state has a copy of
it. Units and running workloads are identified by an index (see ``PoolHardware`` and ``RunningWork``).

Terms:
- An ask is the hardware that a workload requests. A kind is a set of units that no ask can tell apart.
- A promise says that a unit is needed at a future time. It is a queue hold (the unit is held for a waiting
  workload), a maintenance window, or a reservation.
- A unit is bound to a reservation that has begun, and earmarked for a workload if evictions freed it.
- Borrowed slots are slots above a team's guarantee.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from functools import cached_property
from typing import Any

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.model.hardware import FAR_FUTURE, PoolHardware
from scheduler.core.model.plan import Eviction, Placement, Refusal, ReservationBinding, UnboundReservation
from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.quota_ledger import QuotaLedger
from scheduler.core.model.running_work import (
    EVICTIONS,
    ID,
    LAST_SAVED,
    NO_HOLDER,
    PREDICTED,
    PREEMPTIBLE,
    PRIORITY,
    RESERVATION,
    SLOTS,
    STARTED,
    STOP_BY,
    STOPPING,
    TEAM,
    UNTIL,
)
from scheduler.core.model.snapshot import Ask, QueuedWorkload, ReservationInfo

# The kinds of promises on units.
QUEUE_HOLDS, MAINTENANCE, RESERVATIONS = (
    "holds",
    "maintenance",
    "reservations",
)
# Each past eviction of a workload raises the cost of its next eviction, as if this much more work were lost.
# Without this cost, the same workloads would be evicted again and again.
COST_PER_PAST_EVICTION_SECONDS = 30 * 60


class PoolState:
    """The working state of one pool in one cycle. Only the methods under "decisions" change it."""

    def __init__(self, pool_snapshot: PoolSnapshot, now: int) -> None:
        """Start a cycle at ``now`` (seconds since the epoch). ``pool_snapshot`` is never changed."""
        pool = pool_snapshot.pool
        self.pool_snapshot, self.pool, self.policy, self.now = pool_snapshot, pool, pool.policy, now
        self._read_hardware(self.pool_snapshot.hardware)
        self.reservations = [r for r in self.pool_snapshot.reservations if r.end > now]
        self.reservation_by_id = {r.id: r for r in self.reservations}
        self.ledger = QuotaLedger(pool, self.pool_snapshot.quotas, self.pool_snapshot.running_work.held)
        self._read_maintenance()
        self._read_running()
        self._read_promises()
        self.free: Mask = (
            self.usable & (self.holder == NO_HOLDER) & (self.bound_to == 0) & (self.earmarked_for == 0)
        )
        self.free_slots = int(self.slots[self.free].sum())
        size = len(self.hosts)
        counts = np.bincount((self.kind * size + self.host_of)[self.free], minlength=len(self.kinds) * size)
        self.free_counts: dict[int, Ints] = dict(
            enumerate(counts.astype(np.int64).reshape(len(self.kinds), size))
        )
        self.placements: list[Placement] = []
        self.evictions: list[Eviction] = []
        self.refusals: list[Refusal] = []
        self.bindings: list[ReservationBinding] = []
        self.unbound: list[UnboundReservation] = []
        self.predicted: dict[int, int] = {}  # predicted runtime (s) of the work placed by this plan
        self.evicted: set[int] = set()  # indices of the running workloads that this plan evicts
        self.first_promise_by_kind = {
            QUEUE_HOLDS: self.queue_hold_from,
            MAINTENANCE: self.maintenance_from,
            RESERVATIONS: self.reserved_from,
        }
        soon = sorted({start for _, start, _ in self.maintenance if start > now})
        self._promise_times: dict[str, list[int]] = {QUEUE_HOLDS: [], MAINTENANCE: soon, RESERVATIONS: []}
        self._clear_of: dict[tuple[int, ...], Mask] = {}
        self._open_counts: dict[tuple[int, tuple[int, ...]], Ints] = {}
        self._by_cost: dict[int, Ints] = {}
        self._counts_in: dict[tuple[int, int], tuple[Ints, Mask]] = {}
        # By workload: the result of ``fit.availability.time_class``, which fills this cache.
        self.time_classes: dict[int, tuple[int, ...]] = {}
        # By profile: a ``HostRanking``. ``fit.unit_selection`` fills this cache.
        self.rankings: dict[str, Any] = {}

    # -- reading the snapshot --------------------------------------------------------------------------------

    def _read_hardware(self, hardware: PoolHardware) -> None:
        self.hardware = hardware
        self.hosts, self.host_index = hardware.hosts, hardware.host_index
        self.units, self.unit_index = hardware.units, hardware.unit_index
        self.kinds, self.kind, self.slots = hardware.kinds, hardware.kind, hardware.slots
        self.host_of, self.gpu_of, self.first_unit = hardware.host_of, hardware.gpu_of, hardware.first_unit
        self.cpu_capacity, self.memory_capacity = hardware.cpu_capacity, hardware.memory_capacity
        self.rack_of, self.has_racks = hardware.rack_of, hardware.has_racks
        self.in_service = hardware.in_service
        self.label_mask, self.resolve_ask, self.ask_number = (
            hardware.label_mask,
            hardware.resolve_ask,
            hardware.ask_number,
        )
        self.kinds_for, self.units_serving, self.units_of_kinds = (
            hardware.kinds_for,
            hardware.units_serving,
            hardware.units_of_kinds,
        )

    def _read_maintenance(self) -> None:
        """Set the hosts and units that take work now, and the start of each unit's next maintenance."""
        self.maintenance = self.pool_snapshot.maintenance
        self.schedulable_hosts = self.hardware.schedulable
        self.maintenance_from: Ints = np.full(len(self.units), FAR_FUTURE, dtype=np.int64)
        closed = [host for host, start, end in self.maintenance if start <= self.now < end]
        if closed:
            self.schedulable_hosts = self.schedulable_hosts.copy()
            self.schedulable_hosts[closed] = False
        self.usable = (
            intersection(self.in_service, self.schedulable_hosts[self.host_of]) if closed else self.in_service
        )
        for host, start, _end in reversed(self.maintenance):
            if start > self.now:
                self.maintenance_from[self.first_unit[host] : self.first_unit[host + 1]] = start

    def _read_running(self) -> None:
        running_work = self.pool_snapshot.running_work
        self.running, self.units_of = running_work.running, running_work.units_of
        self.holder = running_work.holder.copy()
        self.cpu_free, self.memory_free = running_work.cpu_free.copy(), running_work.memory_free.copy()
        self.gpu_used = running_work.gpu_used.copy()
        self.table = running_work.table
        self.run_id, self.run_team, self.run_priority = self.table[ID], self.table[TEAM], self.table[PRIORITY]
        self.run_reservation, self.run_slots = self.table[RESERVATION], self.table[SLOTS]
        unsaved = np.maximum(0, self.now - self.table[LAST_SAVED])
        # Work since the last checkpoint, in slot-seconds. An eviction without a new checkpoint loses it.
        self.unsaved_slot_seconds: Ints = unsaved * self.run_slots
        self.cost_per_slot: Ints = unsaved + self.table[EVICTIONS] * COST_PER_PAST_EVICTION_SECONDS
        self.cost: Ints = self.cost_per_slot * self.run_slots  # the cost of evicting each workload
        old_enough = self.now >= self.table[STARTED] + self.policy.minimum_runtime_seconds
        self.evictable: Mask = (self.table[PREEMPTIBLE] == 1) & (self.table[STOPPING] == 0) & old_enough
        self.gpu_teams: dict[int, int] = {}  # by GPU: the team whose work time-slices this GPU
        shares = self.hardware.time_sliced_units[self.holder[self.hardware.time_sliced_units] >= 0]
        for unit in shares[np.argsort(self.holder[shares], kind="stable")].tolist():
            self.gpu_teams[int(self.gpu_of[unit])] = int(self.run_team[self.holder[unit]])

    def _read_promises(self) -> None:
        self.bound_to: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.earmarked_for: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.reserved_from: Ints = np.full(len(self.units), FAR_FUTURE, dtype=np.int64)
        self.reserved_for: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.queue_hold_from: Ints = np.full(len(self.units), FAR_FUTURE, dtype=np.int64)
        for reservation in self.reservations:
            if reservation.units:
                self._mark_bound(
                    reservation, [self.unit_index[u] for u in reservation.units if u in self.unit_index]
                )
        queued_by_id, earmarked = self.pool_snapshot.queue.by_id, self.pool_snapshot.queue.earmarked
        self.workloads_with_earmarks: set[int] = set(earmarked)  # workloads with units in ``earmarked_for``
        for workload in sorted(earmarked):
            self.earmarked_for[
                [self.unit_index[u] for u in earmarked[workload].earmarked_units if u in self.unit_index]
            ] = workload
        self.evicting_for: dict[int, list[int]] = {}
        self.stopping_unclaimed: list[int] = []  # stopping work that was evicted for no particular workload
        for i in np.flatnonzero(self.table[STOPPING]).tolist():
            beneficiary = self.running[i].evicted_for_workload
            if beneficiary in queued_by_id and beneficiary is not None:
                self.earmarked_for[self.units_of[i]] = beneficiary
                self.workloads_with_earmarks.add(beneficiary)
                self.evicting_for.setdefault(beneficiary, []).append(i)
            elif self.running[i].evicted_for_reservation is None:
                self.stopping_unclaimed.append(i)

    def _mark_bound(self, reservation: ReservationInfo, units: list[int]) -> None:
        self.bound_to[units] = reservation.id
        for unit in units:
            self.ledger.bind(reservation.team, self.model_of(unit), int(self.slots[unit]))

    def _count_in(self, units: list[int], team: int, cpu_milli: int, memory_mib: int) -> None:
        """Subtract the CPU and memory that a workload takes, and add its slots to the use of its GPUs.

        If the units are time-sliced shares, record the workload's team as the team of these GPUs.
        """
        hardware = self.hardware
        for host in {hardware.host_list[u] for u in units}:
            self.cpu_free[host] -= cpu_milli
            self.memory_free[host] -= memory_mib
        for unit in units:
            gpu = hardware.gpu_list[unit]
            self.gpu_used[gpu] += hardware.slots_list[unit]
            if self.units[unit].profile.startswith("share"):
                self.gpu_teams[gpu] = team

    # -- derived on demand -----------------------------------------------------------------------------------

    @property
    def queued(self) -> list[QueuedWorkload]:
        """Return all waiting workloads, sorted by id."""
        return self.pool_snapshot.queue.rows()

    @cached_property
    def expected_end_times(self) -> Ints:
        """Return the time at which each running workload is expected to end.

        If a workload has already run longer than predicted, its remaining runtime is expected to equal the
        time that it has run, up to its runtime limit. Example: it was predicted to run 1 hour and has run for
        3 hours, so 3 more hours are expected. A stopping workload is expected to end at its deadline.
        """
        table, now = self.table, self.now
        overrun = np.maximum(now + 1, np.minimum(table[UNTIL], now + (now - table[STARTED])))
        predicted_ends = np.where(table[PREDICTED] > now, table[PREDICTED], overrun)
        stopping_ends = np.where(table[STOP_BY] < FAR_FUTURE, np.maximum(now + 1, table[STOP_BY]), now + 1)
        ends: Ints = np.where(table[STOPPING] == 1, stopping_ends, predicted_ends)
        return ends

    @cached_property
    def expected_end_list(self) -> list[int]:
        """Return ``expected_end_times`` as a list."""
        ends: list[int] = self.expected_end_times.tolist()
        return ends

    @cached_property
    def assignable(self) -> Mask:
        """Return the mask of units that take work now and are not bound to a reservation.

        The result is cached, so use it only after this cycle has bound the reservations.
        """
        return intersection(self.usable, self.bound_to == 0)

    @cached_property
    def _team_arrays(self) -> dict[int, Ints]:
        return {team: np.array(members, dtype=np.int64) for team, members in self.work_by_team.items()}

    def team_array(self, team: int) -> Ints:
        """Return the indices of a team's running work."""
        return self._team_arrays.get(team, np.zeros(0, dtype=np.int64))

    @cached_property
    def cost_list(self) -> list[int]:
        """Return ``cost`` as a list, because reading single elements of an array is slow."""
        costs: list[int] = self.cost.tolist()
        return costs

    def team_work_by_eviction_cost(self, team: int) -> Ints:
        """Return the indices of a team's running workloads, ordered by eviction cost, the lowest first.

        The result is cached, because costs do not change within a cycle.
        """
        cached = self._by_cost.get(team)
        if cached is None:
            team_work = self.team_array(team)
            cached = self._by_cost[team] = team_work[
                np.lexsort((self.run_id[team_work], self.cost[team_work]))
            ]
        return cached

    def evictable_borrowed_work(self, model: str, team: int) -> Ints:
        """Return the evictable work of teams that hold more slots of a model than their guarantee.

        Work of ``team`` itself and work inside reservations is left out. The result has indices.
        """
        teams = [
            other
            for other in self.work_by_team
            if other != team and self.ledger.reclaimable_slots(other, model) > 0
        ]
        borrowers: Ints = (
            np.concatenate([self.team_array(other) for other in teams])
            if teams
            else self.team_array(NO_HOLDER)
        )
        evictable: Ints = borrowers[self.evictable[borrowers] & (self.run_reservation[borrowers] == 0)]
        return evictable

    @cached_property
    def _units_by_holder(self) -> tuple[Ints, Ints]:
        """Return (units, first): the units ordered by the workload that holds them.

        The units of workload ``i`` are ``units[first[i]:first[i + 1]]``.
        """
        holder = self.pool_snapshot.running_work.holder
        order = np.argsort(holder, kind="stable")
        return order, np.searchsorted(holder[order], np.arange(len(self.running) + 1))

    def units_by_workload(self, workloads: Ints) -> tuple[Ints, Ints]:
        """Return (units, positions): all units of the given running workloads.

        For each unit, ``positions`` has the position of its workload in ``workloads``.
        """
        units, first = self._units_by_holder
        sizes = first[workloads + 1] - first[workloads]
        position = np.repeat(np.arange(len(workloads)), sizes)
        within = np.arange(len(position)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return units[first[workloads][position] + within], position

    @cached_property
    def work_by_team(self) -> dict[int, list[int]]:
        """Return the indices of the running workloads of each team."""
        work_by_team: dict[int, list[int]] = {}
        for i, team in enumerate(self.run_team.tolist()):
            work_by_team.setdefault(team, []).append(i)
        return work_by_team

    @cached_property
    def _evictable_counts(self) -> dict[tuple[int, int], Counter[int]]:
        """Return, for each (team, kind), the number of evictable workloads of each priority.

        ``evict_workload`` updates these numbers.
        """
        held = np.flatnonzero(self.pool_snapshot.running_work.holder >= 0)
        holder = self.pool_snapshot.running_work.holder[held]
        pairs = np.unique(
            holder[self.evictable[holder]] * len(self.kinds) + self.kind[held][self.evictable[holder]]
        )
        priorities: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for running, kind in zip(
            (pairs // len(self.kinds)).tolist(), (pairs % len(self.kinds)).tolist(), strict=True
        ):
            priorities[int(self.run_team[running]), kind][int(self.run_priority[running])] += 1
        return priorities

    @cached_property
    def _lowest_evictable_priority(self) -> dict[tuple[int, int], int]:
        """Return, for each (team, kind), the lowest priority of the team's evictable work on the kind."""
        return {
            claim: min(priority for priority, count in cached.items())
            for claim, cached in self._evictable_counts.items()
        }

    def has_evictable_work(self, team: int, kind: int, below: int) -> bool:
        """Return True if the team has evictable work of lower priority than ``below`` on units of a kind."""
        return self._lowest_evictable_priority.get((team, kind), below) < below

    @cached_property
    def kinds_with_borrowed_work(self) -> set[int]:
        """Return the kinds on which some team that borrows has evictable work."""
        return {
            kind
            for team, kind in self._evictable_counts
            if self.ledger.reclaimable_slots(team, self.kinds[kind].model) > 0
        }

    # -- queries ---------------------------------------------------------------------------------------------

    def model_of(self, unit: int) -> str:
        """Return the GPU model of a unit."""
        return self.units[unit].model

    def promise_times(self, promise_kind: str) -> list[int]:
        """Return the times at which promises of one kind begin, the earliest first."""
        return self._promise_times[promise_kind]

    def _note_promise(self, promise_kind: str, start: int) -> None:
        """Add the start of a promise, and clear the caches that depend on promises."""
        times = self._promise_times[promise_kind]
        if start not in times:
            insort(times, start)
        self._clear_of.clear()
        self._open_counts.clear()
        self.time_classes.clear()

    def next_promise_after(self, promise_kind: str, time: int) -> int:
        """Return the start of the pool's first promise of a kind at or after ``time``.

        A workload that uses a unit until ``time`` may take the unit only if no promise of this kind on the
        unit begins before the result. If all promises of the kind begin before ``time``, the result is
        FAR_FUTURE. If none begins before ``time``, the result is 0, because then none is an obstacle.
        """
        times = self._promise_times[promise_kind]
        if not times or times[0] >= time:
            return 0
        place = bisect_left(times, time)
        return times[place] if place < len(times) else FAR_FUTURE

    def skip_bounds(self, queued: QueuedWorkload, expected: int) -> tuple[int, int]:
        """Return (expected runtime, runtime limit) in seconds: lower bounds for work that can be skipped.

        ``queued`` got no units, and ``expected`` is its expected runtime in seconds. Another workload with
        the same request gets no units either if both of its values are at least these bounds. So the planner
        may skip it.
        """
        times = self.promise_times(QUEUE_HOLDS)
        place = bisect_left(times, self.now + expected)
        others = self.promise_times(MAINTENANCE) or self.promise_times(RESERVATIONS)
        return times[place - 1] - self.now + 1 if place else 0, queued.max_runtime_seconds if others else 0

    def units_clear_of(self, bounds: tuple[int, ...]) -> Mask | None:
        """Return the mask of units whose promises begin late enough. None means all units.

        ``bounds`` are the earliest allowed starts of queue holds, maintenance and reservations, in this
        order. A bound of 0 allows every start.
        """
        if not any(bounds):
            return None
        mask = self._clear_of.get(bounds)
        if mask is None:
            mask = np.ones(len(self.units), dtype=np.bool_)
            for promised_from, bound in zip(self.first_promise_by_kind.values(), bounds, strict=True):
                if bound:
                    mask &= promised_from >= bound
            self._clear_of[bounds] = mask
        return mask

    def can_use_shared_counts(self, queued: QueuedWorkload) -> bool:
        """Return True if ``free_counts_within`` counts exactly the units that the workload may take.

        The counts are wrong for a workload that has earmarked units or runs inside a reservation. They are
        also wrong for time-sliced shares, because work shares a GPU only with work of its own team.
        """
        return (
            queued.reservation is None
            and queued.id not in self.workloads_with_earmarks
            and not self.is_shared(queued.ask)
        )

    def free_counts_within(self, kind: int, bounds: tuple[int, ...]) -> Ints:
        """Return, for each host, the number of free units of a kind whose promises begin late enough.

        For ``bounds`` see ``units_clear_of``. The numbers are cached, and reduced when units are taken.
        Without the cache, counting the units for every ask that does not fit took a third of a cycle's time.
        """
        cached = self._open_counts.get((kind, bounds))
        if cached is None:
            clear = self.units_clear_of(bounds)
            if clear is None:
                return self.free_counts[kind]
            units = self.hardware.units_of_kind[kind]
            chosen = self.host_of[units[(self.free & clear)[units]]]
            cached = np.bincount(chosen, minlength=len(self.hosts)).astype(np.int64)
            self._open_counts[kind, bounds] = cached
        return cached

    def count_units_in(self, kind: int, mask: Mask) -> Ints:
        """Return, for each host, the number of units of a kind that are in the mask.

        The result is cached by the mask object, so the caller must not change the mask within the cycle.
        """
        cached = self._counts_in.get((kind, id(mask)))
        if cached is None:
            counts = np.bincount(self.host_of[mask & (self.kind == kind)], minlength=len(self.hosts)).astype(
                np.int64
            )
            # The cache stores the mask too. This keeps the mask alive, so no other object can get its id.
            cached = self._counts_in[kind, id(mask)] = counts, mask
        return cached[0]

    def slots_needed(self, ask: Ask, kind: int) -> int:
        """Return the slots that an ask would hold on units of a kind."""
        return self.resolve_ask(ask).slots[kind]

    def is_shared(self, ask: Ask) -> bool:
        """Return True if the ask is for time-sliced shares."""
        return self.resolve_ask(ask).is_share

    # -- decisions -------------------------------------------------------------------------------------------

    def _remove_from_free(self, units: list[int]) -> None:
        hardware = self.hardware
        for unit in units:
            if self.free[unit]:
                self.free[unit] = False
                unit_kind, host = hardware.kind_list[unit], hardware.host_list[unit]
                self.free_slots -= hardware.slots_list[unit]
                self.free_counts[unit_kind][host] -= 1
                for (kind, bounds), counts in self._open_counts.items():
                    if kind == unit_kind and self._clear_of[bounds][unit]:
                        counts[host] -= 1

    def place_workload(self, queued: QueuedWorkload, units: list[int], placement: Placement) -> None:
        """Start a workload on free units."""
        self._remove_from_free(units)
        if queued.id in self.workloads_with_earmarks:
            self.earmarked_for[self.earmarked_for == queued.id] = 0
        self.holder[units] = len(self.running) + len(self.placements)
        self._count_in(units, queued.team, queued.ask.cpu_milli, queued.ask.memory_mib)
        for unit in units:
            slots = self.hardware.slots_list[unit]
            if queued.reservation is None:
                self.ledger.add_held_slots(queued.team, self.model_of(unit), slots, queued.preemptible)
            self.ledger.held_by_user[queued.user] += slots
        self.predicted[queued.id] = queued.predicted_seconds
        self.placements.append(placement)

    def evict_workload(self, victim: int, eviction: Eviction) -> None:
        """Record the eviction of a running workload. The workload holds its units until it has stopped."""
        team, priority = int(self.run_team[victim]), int(self.run_priority[victim])
        for kind in {int(self.kind[unit]) for unit in self.units_of[victim]}:
            self._note_gone(team, kind, priority)
        self.evicted.add(victim)
        self.evictable[victim] = False
        for unit in self.units_of[victim]:
            if self.running[victim].reservation is None:
                key = (self.running[victim].team, self.model_of(unit))
                self.ledger.stopping[key] += int(self.slots[unit])
        self.evictions.append(eviction)

    def _note_gone(self, team: int, kind: int, priority: int) -> None:
        """Subtract one workload from the evictable work of a team, kind and priority."""
        counts, lowest = self._evictable_counts[team, kind], self._lowest_evictable_priority
        counts[priority] -= 1
        if counts[priority] <= 0 and lowest.get((team, kind)) == priority:
            others = [other for other, count in counts.items() if count > 0]
            if others:
                lowest[team, kind] = min(others)
            else:
                del lowest[team, kind]

    def copy_promises_from(self, other: PoolState) -> None:
        """Copy the promises to reservations from another state of the same pool."""
        self.reserved_from, self.reserved_for = other.reserved_from.copy(), other.reserved_for.copy()
        self.first_promise_by_kind[RESERVATIONS] = self.reserved_from
        for start in other._promise_times[RESERVATIONS]:
            self._note_promise(RESERVATIONS, start)

    def mark_taken(self, units: list[int], other: PoolState) -> None:
        """Mark units as taken, and copy their holders, earmarks and reservations from ``other``.

        ``other`` is another state of the same pool, in which these units are taken.
        """
        self._remove_from_free(units)
        self.holder[units], self.earmarked_for[units], self.bound_to[units] = (
            other.holder[units],
            other.earmarked_for[units],
            other.bound_to[units],
        )
        self.workloads_with_earmarks |= other.workloads_with_earmarks

    def bind_reservation(self, reservation: ReservationInfo, units: list[int]) -> None:
        """Give units to a reservation that starts."""
        self._remove_from_free(units)
        self._mark_bound(reservation, units)
        self.bindings.append(
            ReservationBinding(reservation.id, tuple(sorted(self.units[u].id for u in units)))
        )

    def earmark(self, queued: QueuedWorkload, units: list[int], victims: list[int]) -> None:
        """Keep units, and CPU and memory on their hosts, for a workload for which ``victims`` are evicted."""
        self._remove_from_free(units)
        for host in {int(self.host_of[u]) for u in units}:
            victims_here = [
                self.running[v] for v in victims if any(self.host_of[u] == host for u in self.units_of[v])
            ]
            self.cpu_free[host] -= max(0, queued.ask.cpu_milli - sum(v.cpu_milli for v in victims_here))
            self.memory_free[host] -= max(0, queued.ask.memory_mib - sum(v.memory_mib for v in victims_here))
        self.earmarked_for[units] = queued.id
        self.workloads_with_earmarks.add(queued.id)
        for unit in units:
            if self.units[unit].profile.startswith("share"):
                self.gpu_teams[int(self.gpu_of[unit])] = queued.team

    def idle_earmarked_units(self, queued: QueuedWorkload) -> Ints:
        """Return the units that are earmarked for a workload and that no work holds."""
        idle = (self.holder == NO_HOLDER) & (self.bound_to == 0) & self.usable
        return np.flatnonzero((self.earmarked_for == queued.id) & idle)

    def release_earmarks(self, queued: QueuedWorkload) -> None:
        """Give up the units that are earmarked for a workload that cannot start.

        Call it only if no eviction for this workload is in progress.
        """
        units = self.idle_earmarked_units(queued)
        self.earmarked_for[units] = 0
        self.free[units] = True
        self.free_slots += int(self.slots[units].sum())
        for unit in units:
            self.free_counts[int(self.kind[unit])][self.host_of[unit]] += 1
        self._open_counts.clear()

    def note_reservation_units(self, reservation: ReservationInfo, units: list[int]) -> None:
        """Record the units that a future reservation is expected to get."""
        for unit in units:
            if reservation.start < self.reserved_from[unit]:
                self.reserved_from[unit], self.reserved_for[unit] = reservation.start, reservation.id
        self._note_promise(RESERVATIONS, reservation.start)

    def hold_for_queue(self, units: list[int], start: int) -> None:
        """Hold units for a waiting workload that is expected to start on them at ``start``."""
        self.queue_hold_from[units] = np.minimum(self.queue_hold_from[units], start)
        self._note_promise(QUEUE_HOLDS, start)


def eviction_lead_seconds(state: PoolState) -> int:
    """Return the seconds before a reservation's start at which the planner evicts work from its units.

    It is the notice (time to write a checkpoint) plus the grace (time between stop signal and kill).
    """
    return state.policy.notice_seconds + state.policy.grace_seconds
