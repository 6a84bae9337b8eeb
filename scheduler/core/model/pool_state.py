"""One pool while its plan is being made: the snapshot's facts as arrays, and on top what was decided so far.

The snapshot is never changed, nor the facts: what a decision changes is copied first. Units and running work are named
by their index (see ``ground`` and ``occupancy``).
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
from scheduler.core.model.snapshot import Ask, PoolInfo, QueuedWorkload, ReservationInfo, Snapshot

QUEUE_HOLDS, MAINTENANCE, RESERVATIONS = (
    "holds",
    "maintenance",
    "reservations",
)  # what units can be promised to
# Having been told to go once weighs like this much work lost, so that others take their turn.
COST_PER_PAST_EVICTION_SECONDS = 30 * 60


class PoolState:
    """The working state of one pool. Only the verbs under "decisions" change it."""

    def __init__(self, given: Snapshot | PoolSnapshot, pool: PoolInfo, now: int) -> None:
        """``given``: a snapshot, or the pool's facts of it, when somebody keeps them."""
        self.pool, self.policy, self.now = pool, pool.policy, now
        self.facts = given if isinstance(given, PoolSnapshot) else PoolSnapshot(given, pool)
        self._read_ground(self.facts.ground)
        self.reservations = [r for r in self.facts.reservations if r.end > now]
        self.reservation_by_id = {r.id: r for r in self.reservations}
        self.ledger = QuotaLedger(pool, self.facts.quotas, self.facts.occupancy.held)
        self._read_maintenance()
        self._read_running()
        self._read_promises()
        self.free: Mask = self.usable & (self.holder == NO_HOLDER) & (self.bound == 0) & (self.kept == 0)
        self.free_slots = int(self.slots[self.free].sum())
        size = len(self.hosts)
        counts = np.bincount((self.kind * size + self.host_of)[self.free], minlength=len(self.kinds) * size)
        self.counts: dict[int, Ints] = dict(enumerate(counts.astype(np.int64).reshape(len(self.kinds), size)))
        self.placements: list[Placement] = []
        self.evictions: list[Eviction] = []
        self.refusals: list[Refusal] = []
        self.bindings: list[ReservationBinding] = []
        self.unbound: list[UnboundReservation] = []
        self.predicted: dict[int, int] = {}  # seconds the work placed by this plan is expected to run
        self.evicted: set[int] = set()  # indices of running work told to go by this plan
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
        self.time_classes: dict[int, tuple[int, ...]] = {}  # of workloads, made by fit when first needed
        self.rankings: dict[str, Any] = {}  # by profile: ``ranking.Ranking``, made by fit when first needed

    # -- reading the facts ------------------------------------------------------------------------------------------

    def _read_ground(self, ground: PoolHardware) -> None:
        self.ground = ground
        self.hosts, self.host_index = ground.hosts, ground.host_index
        self.units, self.unit_index = ground.units, ground.unit_index
        self.kinds, self.kind, self.slots = ground.kinds, ground.kind, ground.slots
        self.host_of, self.gpu_of, self.first_unit = ground.host_of, ground.gpu_of, ground.first_unit
        self.cpu_whole, self.memory_whole = ground.cpu_whole, ground.memory_whole
        self.rack_of, self.has_racks = ground.rack_of, ground.has_racks
        self.in_service = ground.in_service
        self.label_mask, self.wanted, self.ask_number = ground.label_mask, ground.wanted, ground.ask_number
        self.kinds_for, self.fitting, self.of_kinds = ground.kinds_for, ground.fitting, ground.of_kinds

    def _read_maintenance(self) -> None:
        """``accepts`` and ``usable``: hosts, and units, that take work right now; and when they next will not."""
        self.maintenance = self.facts.maintenance
        self.accepts = self.ground.accepts
        self.maintenance_from: Ints = np.full(len(self.units), FAR_FUTURE, dtype=np.int64)
        closed = [host for host, start, end in self.maintenance if start <= self.now < end]
        if closed:
            self.accepts = self.accepts.copy()
            self.accepts[closed] = False
        self.usable = intersection(self.in_service, self.accepts[self.host_of]) if closed else self.in_service
        for host, start, _end in reversed(self.maintenance):
            if start > self.now:
                self.maintenance_from[self.first_unit[host] : self.first_unit[host + 1]] = start

    def _read_running(self) -> None:
        occupancy = self.facts.occupancy
        self.running, self.units_of = occupancy.running, occupancy.units_of
        self.holder = occupancy.holder.copy()
        self.cpu_free, self.memory_free = occupancy.cpu_free.copy(), occupancy.memory_free.copy()
        self.gpu_used = occupancy.gpu_used.copy()
        self.table = occupancy.table
        self.run_id, self.run_team, self.run_priority = self.table[ID], self.table[TEAM], self.table[PRIORITY]
        self.run_reservation, self.run_slots = self.table[RESERVATION], self.table[SLOTS]
        unsaved = np.maximum(0, self.now - self.table[LAST_SAVED])
        self.lost: Ints = unsaved * self.run_slots  # slot-seconds thrown away
        self.cost_per_slot: Ints = unsaved + self.table[EVICTIONS] * COST_PER_PAST_EVICTION_SECONDS
        self.cost: Ints = self.cost_per_slot * self.run_slots  # what victims are chosen by
        old_enough = self.now >= self.table[STARTED] + self.policy.minimum_runtime_seconds
        self.evictable: Mask = (self.table[PREEMPTIBLE] == 1) & (self.table[STOPPING] == 0) & old_enough
        self.gpu_teams: dict[int, int] = {}  # of a time-sliced GPU: the team that has it
        shares = self.ground.time_sliced_units[self.holder[self.ground.time_sliced_units] >= 0]
        for unit in shares[np.argsort(self.holder[shares], kind="stable")].tolist():
            self.gpu_teams[int(self.gpu_of[unit])] = int(self.run_team[self.holder[unit]])

    def _read_promises(self) -> None:
        self.bound: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.kept: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.reserved_from: Ints = np.full(len(self.units), FAR_FUTURE, dtype=np.int64)
        self.reserved_for: Ints = np.zeros(len(self.units), dtype=np.int64)
        self.queue_hold_from: Ints = np.full(len(self.units), FAR_FUTURE, dtype=np.int64)
        for reservation in self.reservations:
            if reservation.units:
                self._mark_bound(
                    reservation, [self.unit_index[u] for u in reservation.units if u in self.unit_index]
                )
        waiting, earmarked = self.facts.queue.by_id, self.facts.queue.earmarked
        self.workloads_with_earmarks: set[int] = set(earmarked)  # for whom there is anything in ``kept``
        for workload in sorted(earmarked):
            self.kept[
                [self.unit_index[u] for u in earmarked[workload].earmarked_units if u in self.unit_index]
            ] = workload
        self.evicting_for: dict[int, list[int]] = {}
        self.stopping_unclaimed: list[int] = []  # told to go, for nobody who still waits
        for i in np.flatnonzero(self.table[STOPPING]).tolist():
            beneficiary = self.running[i].evicted_for_workload
            if beneficiary in waiting and beneficiary is not None:
                self.kept[self.units_of[i]] = beneficiary
                self.workloads_with_earmarks.add(beneficiary)
                self.evicting_for.setdefault(beneficiary, []).append(i)
            elif self.running[i].evicted_for_reservation is None:
                self.stopping_unclaimed.append(i)

    def _mark_bound(self, reservation: ReservationInfo, units: list[int]) -> None:
        self.bound[units] = reservation.id
        for unit in units:
            self.ledger.bind(reservation.team, self.model_of(unit), int(self.slots[unit]))

    def _take(self, units: list[int], team: int, cpu_milli: int, memory_mib: int) -> None:
        """Account for a holder's GPUs, CPU and memory."""
        ground = self.ground
        for host in {ground.host_list[u] for u in units}:
            self.cpu_free[host] -= cpu_milli
            self.memory_free[host] -= memory_mib
        for unit in units:
            gpu = ground.gpu_list[unit]
            self.gpu_used[gpu] += ground.slots_list[unit]
            if self.units[unit].profile.startswith("share"):
                self.gpu_teams[gpu] = team

    # -- what follows from the facts, when somebody asks ------------------------------------------------------------

    @property
    def queued(self) -> list[QueuedWorkload]:
        """All that wait, by id."""
        return self.facts.queue.rows()

    @cached_property
    def expected_end_times(self) -> Ints:
        """When each running workload is expected to be gone: its prediction, doubled whenever it is overrun, at most its
        limit; by the deadline when it was told to go."""
        table, now = self.table, self.now
        overrun = np.maximum(now + 1, np.minimum(table[UNTIL], now + (now - table[STARTED])))
        by_itself = np.where(table[PREDICTED] > now, table[PREDICTED], overrun)
        told = np.where(table[STOP_BY] < FAR_FUTURE, np.maximum(now + 1, table[STOP_BY]), now + 1)
        ends: Ints = np.where(table[STOPPING] == 1, told, by_itself)
        return ends

    @cached_property
    def expected_end_list(self) -> list[int]:
        """``expected_end`` as a list."""
        ends: list[int] = self.expected_end_times.tolist()
        return ends

    @cached_property
    def assignable(self) -> Mask:
        """Units that take work right now and are not bound to a reservation. Asked for once reservations are bound."""
        return intersection(self.usable, self.bound == 0)

    @cached_property
    def _team_arrays(self) -> dict[int, Ints]:
        return {team: np.array(members, dtype=np.int64) for team, members in self.of_team.items()}

    def team_array(self, team: int) -> Ints:
        """The running work of a team."""
        return self._team_arrays.get(team, np.zeros(0, dtype=np.int64))

    @cached_property
    def cost_list(self) -> list[int]:
        """``cost`` as a list: single elements of arrays are slow to read."""
        costs: list[int] = self.cost.tolist()
        return costs

    def team_work_by_eviction_cost(self, team: int) -> Ints:
        """The running work of a team, the cheapest to tell to go first. Costs stay the same all cycle, so each team is
        sorted once, not for each of its searches."""
        known = self._by_cost.get(team)
        if known is None:
            mine = self.team_array(team)
            known = self._by_cost[team] = mine[np.lexsort((self.run_id[mine], self.cost[mine]))]
        return known

    def evictable_borrowed_work(self, model: str, team: int) -> Ints:
        """Evictable work outside reservations, of teams other than this that hold more of a model than their guarantee."""
        teams = [other for other in self.of_team if other != team and self.ledger.excess(other, model) > 0]
        found: Ints = (
            np.concatenate([self.team_array(other) for other in teams])
            if teams
            else self.team_array(NO_HOLDER)
        )
        mine: Ints = found[self.evictable[found] & (self.run_reservation[found] == 0)]
        return mine

    @cached_property
    def _units_by_holder(self) -> tuple[Ints, Ints]:
        """The units that running work holds, one workload after another, and where each one's begin."""
        holder = self.facts.occupancy.holder
        order = np.argsort(holder, kind="stable")
        return order, np.searchsorted(holder[order], np.arange(len(self.running) + 1))

    def units_by_workload(self, which: Ints) -> tuple[Ints, Ints]:
        """All units of some running workloads, and for each the place of its holder among these workloads."""
        units, first = self._units_by_holder
        sizes = first[which + 1] - first[which]
        owner = np.repeat(np.arange(len(which)), sizes)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return units[first[which][owner] + within], owner

    @cached_property
    def of_team(self) -> dict[int, list[int]]:
        """Each team's running work."""
        found: dict[int, list[int]] = {}
        for i, team in enumerate(self.run_team.tolist()):
            found.setdefault(team, []).append(i)
        return found

    @cached_property
    def _can_go(self) -> dict[tuple[int, int], Counter[int]]:
        """How many workloads of each priority could be told to go, by (team, kind). ``evict`` counts down."""
        held = np.flatnonzero(self.facts.occupancy.holder >= 0)
        holder = self.facts.occupancy.holder[held]
        pairs = np.unique(
            holder[self.evictable[holder]] * len(self.kinds) + self.kind[held][self.evictable[holder]]
        )
        found: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for running, kind in zip(
            (pairs // len(self.kinds)).tolist(), (pairs % len(self.kinds)).tolist(), strict=True
        ):
            found[int(self.run_team[running]), kind][int(self.run_priority[running])] += 1
        return found

    @cached_property
    def _lowest_to_go(self) -> dict[tuple[int, int], int]:
        """The lowest priority of those, by (team, kind)."""
        return {
            claim: min(priority for priority, count in known.items()) for claim, known in self._can_go.items()
        }

    def has_evictable_work(self, team: int, kind: int, below: int) -> bool:
        """Is there work of a team on units of a kind, of a priority below this, that could be told to go?"""
        return self._lowest_to_go.get((team, kind), below) < below

    @cached_property
    def kinds_with_borrowed_work(self) -> set[int]:
        """The kinds of which a team holds more than its guarantee, with work on them that could be told to go."""
        return {kind for team, kind in self._can_go if self.ledger.excess(team, self.kinds[kind].model) > 0}

    # -- questions ------------------------------------------------------------------------------------------------

    def model_of(self, unit: int) -> str:
        return self.units[unit].model

    def promise_times(self, what: str) -> list[int]:
        """The moments from which units are promised to a sort of others, in order."""
        return self._promise_times[what]

    def _note_promise(self, what: str, start: int) -> None:
        times = self._promise_times[what]
        if start not in times:
            insort(times, start)
        self._clear_of.clear()
        self._open_counts.clear()
        self.time_classes.clear()

    def next_promise_after(self, what: str, time: int) -> int:
        """The first promise of a sort at or after ``time``, NEVER if all are before; 0 when none is before it."""
        times = self._promise_times[what]
        if not times or times[0] >= time:
            return 0
        place = bisect_left(times, time)
        return times[place] if place < len(times) else FAR_FUTURE

    def skip_bounds(self, queued: QueuedWorkload, expected: int) -> tuple[int, int]:
        """(expected, longest): who is expected to run so long at least, and may, gets no unit that this workload, expected
        to run for ``expected`` seconds, did not get."""
        times = self.promise_times(QUEUE_HOLDS)
        place = bisect_left(times, self.now + expected)
        others = self.promise_times(MAINTENANCE) or self.promise_times(RESERVATIONS)
        return times[place - 1] - self.now + 1 if place else 0, queued.max_runtime_seconds if others else 0

    def units_clear_of(self, bounds: tuple[int, ...]) -> Mask | None:
        """Units promised no sooner than the bounds for holds, maintenance and reservations; 0 is no bound, None all."""
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
        """Do ``open_counts`` hold for a workload? Not for what has units of its own, or shares GPUs with its team only."""
        return (
            queued.reservation is None
            and queued.id not in self.workloads_with_earmarks
            and not self.is_shared(queued.ask)
        )

    def free_counts_within(self, kind: int, bounds: tuple[int, ...]) -> Ints:
        """Free units of a kind on each host that are clear of the bounds; see ``clear_of``. Kept and counted down: counting
        all units for each of the many asks that don't fit took a third of a cycle."""
        known = self._open_counts.get((kind, bounds))
        if known is None:
            clear = self.units_clear_of(bounds)
            if clear is None:
                return self.counts[kind]
            units = self.ground.units_of_kind[kind]
            chosen = self.host_of[units[(self.free & clear)[units]]]
            known = np.bincount(chosen, minlength=len(self.hosts)).astype(np.int64)
            self._open_counts[kind, bounds] = known
        return known

    def count_units_in(self, kind: int, mask: Mask) -> Ints:
        """Units of a kind on each host that are in a mask that stays the same all cycle; counted once for it."""
        known = self._counts_in.get((kind, id(mask)))
        if known is None:
            counts = np.bincount(self.host_of[mask & (self.kind == kind)], minlength=len(self.hosts)).astype(
                np.int64
            )
            known = self._counts_in[kind, id(mask)] = counts, mask  # kept, so that no other mask gets its id
        return known[0]

    def slots_needed(self, ask: Ask, kind: int) -> int:
        return self.wanted(ask).slots[kind]

    def is_shared(self, ask: Ask) -> bool:
        return self.wanted(ask).is_share

    # -- decisions ------------------------------------------------------------------------------------------------

    def _remove_from_free(self, units: list[int]) -> None:
        ground = self.ground
        for unit in units:
            if self.free[unit]:
                self.free[unit] = False
                own_kind, host = ground.kind_list[unit], ground.host_list[unit]
                self.free_slots -= ground.slots_list[unit]
                self.counts[own_kind][host] -= 1
                for (kind, bounds), counts in self._open_counts.items():
                    if kind == own_kind and self._clear_of[bounds][unit]:
                        counts[host] -= 1

    def place(self, queued: QueuedWorkload, units: list[int], placement: Placement) -> None:
        """Start a workload on free units."""
        self._remove_from_free(units)
        if queued.id in self.workloads_with_earmarks:
            self.kept[self.kept == queued.id] = 0
        self.holder[units] = len(self.running) + len(self.placements)
        self._take(units, queued.team, queued.ask.cpu_milli, queued.ask.memory_mib)
        for unit in units:
            slots = self.ground.slots_list[unit]
            if queued.reservation is None:
                self.ledger.add_held_slots(queued.team, self.model_of(unit), slots, queued.preemptible)
            self.ledger.held_by_user[queued.user] += slots
        self.predicted[queued.id] = queued.predicted_seconds
        self.placements.append(placement)

    def evict(self, victim: int, eviction: Eviction) -> None:
        """Tell running work to go; its units stay its own until it is gone."""
        team, priority = int(self.run_team[victim]), int(self.run_priority[victim])
        for kind in {int(self.kind[unit]) for unit in self.units_of[victim]}:
            self._note_gone(team, kind, priority)
        self.evicted.add(victim)
        self.evictable[victim] = False
        for unit in self.units_of[victim]:
            if self.running[victim].reservation is None:
                key = (self.running[victim].team, self.model_of(unit))
                self.ledger.leaving[key] += int(self.slots[unit])
        self.evictions.append(eviction)

    def _note_gone(self, team: int, kind: int, priority: int) -> None:
        left, lowest = self._can_go[team, kind], self._lowest_to_go
        left[priority] -= 1
        if left[priority] <= 0 and lowest.get((team, kind)) == priority:
            others = [other for other, count in left.items() if count > 0]
            if others:
                lowest[team, kind] = min(others)
            else:
                del lowest[team, kind]

    def copy_promises_from(self, other: PoolState) -> None:
        """Promises of reservations to come, as they are noted on another board of the same pool."""
        self.reserved_from, self.reserved_for = other.reserved_from.copy(), other.reserved_for.copy()
        self.first_promise_by_kind[RESERVATIONS] = self.reserved_from
        for start in other._promise_times[RESERVATIONS]:
            self._note_promise(RESERVATIONS, start)

    def mark_taken(self, units: list[int], other: PoolState) -> None:
        """Units that are free here and not on another board of the same pool: who has them there has them here."""
        self._remove_from_free(units)
        self.holder[units], self.kept[units], self.bound[units] = (
            other.holder[units],
            other.kept[units],
            other.bound[units],
        )
        self.workloads_with_earmarks |= other.workloads_with_earmarks

    def bind(self, reservation: ReservationInfo, units: list[int]) -> None:
        """Give a reservation that starts its units."""
        self._remove_from_free(units)
        self._mark_bound(reservation, units)
        self.bindings.append(
            ReservationBinding(reservation.id, tuple(sorted(self.units[u].id for u in units)))
        )

    def keep(self, queued: QueuedWorkload, units: list[int], leaving: list[int]) -> None:
        """Earmark units, and CPU and memory beside them, for a workload that others leave for."""
        self._remove_from_free(units)
        for host in {int(self.host_of[u]) for u in units}:
            here = [
                self.running[v] for v in leaving if any(self.host_of[u] == host for u in self.units_of[v])
            ]
            self.cpu_free[host] -= max(0, queued.ask.cpu_milli - sum(v.cpu_milli for v in here))
            self.memory_free[host] -= max(0, queued.ask.memory_mib - sum(v.memory_mib for v in here))
        self.kept[units] = queued.id
        self.workloads_with_earmarks.add(queued.id)
        for unit in units:
            if self.units[unit].profile.startswith("share"):
                self.gpu_teams[int(self.gpu_of[unit])] = queued.team

    def release(self, queued: QueuedWorkload) -> None:
        """Nobody is leaving for it any more and it can't start all the same: what was kept for it is anybody's."""
        units = np.flatnonzero(
            (self.kept == queued.id) & (self.holder == NO_HOLDER) & (self.bound == 0) & self.usable
        )
        self.kept[units] = 0
        self.free[units] = True
        self.free_slots += int(self.slots[units].sum())
        for unit in units:
            self.counts[int(self.kind[unit])][self.host_of[unit]] += 1
        self._open_counts.clear()

    def promise(self, reservation: ReservationInfo, units: list[int]) -> None:
        """Note which units a reservation still to come counts on."""
        for unit in units:
            if reservation.start < self.reserved_from[unit]:
                self.reserved_from[unit], self.reserved_for[unit] = reservation.start, reservation.id
        self._note_promise(RESERVATIONS, reservation.start)

    def hold(self, units: list[int], start: int) -> None:
        """Set units aside for a waiting workload that is expected to start on them at ``start``."""
        self.queue_hold_from[units] = np.minimum(self.queue_hold_from[units], start)
        self._note_promise(QUEUE_HOLDS, start)


def eviction_lead_seconds(board: PoolState) -> int:
    """How long before a reservation's start those on its units are told: notice and grace."""
    return board.policy.notice_seconds + board.policy.grace_seconds
