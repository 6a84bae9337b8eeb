"""What one waiting workload gets in one cycle: free units, or room made for it by eviction.

Equal asks are judged once: within a cycle units are only taken, never given back, so what did not fit will not fit.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from scheduler.core.arrays import Mask, intersection
from scheduler.core.evict import candidates, victim_search
from scheduler.core.explain.refusals import RefusalRecorder
from scheduler.core.fit import availability, unit_selection
from scheduler.core.fit.preferences import preferred_unit_masks
from scheduler.core.fit.quota_limits import (
    headroom_for,
    kinds_within_limits,
    leaves_headroom,
    may_use_spare,
    within_workload_cap,
)
from scheduler.core.model.plan import Eviction, Placement
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.quota_ledger import UNLIMITED_SLOTS, Headroom
from scheduler.core.model.snapshot import Ask, PoolKind, QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds
from scheduler.core.queue.team_queue import SkipScope
from scheduler.core.queue.turn_order import TurnOrder
from scheduler.core.reasons import ReasonCode, reason_numbers


class WorkloadTurn:
    """The decisions of one pool's cycle, one workload after another."""

    def __init__(self, board: PoolState, line: TurnOrder, waiting: RefusalRecorder) -> None:
        self.board, self.line, self.waiting = board, line, waiting
        # What does not fit: (ask number, kind, time class), and whatever its times (ask number, kind).
        self._does_not_fit: set[tuple[int, int] | tuple[int, int, tuple[int, ...]]] = set()
        self._fits_nowhere: set[int] = set()  # the numbers of asks that fit on no kind, whatever their times
        self._no_victims: set[Hashable] = set()
        self._not_soon_free: set[tuple[int, int, tuple[int, ...]]] = (
            set()
        )  # what will not do when others have left, either
        self._may_evict = False  # might the one whose turn it is have evicted somebody?

    # -- a start on free units --------------------------------------------------------------------------------------

    def start_on_free_units(self, queued: QueuedWorkload) -> bool:
        """Place a workload if it fits on units that are free now, where it had better go first. There the first kind in its order
        of preference wins."""
        if self.board.ask_number(queued.ask) in self._fits_nowhere and self.board.can_use_shared_counts(
            queued
        ):
            return False  # nearly all of a full pool's queue: one look-up each
        granted = kinds_within_limits(self.board, queued)
        if not granted:
            return False
        if not queued.avoids and queued.homes is None:
            return self._start_on(queued, granted, None)
        for among in preferred_unit_masks(self.board.ground, queued, self.board.now):
            if self._start_on(queued, granted, among):
                return True
            if self.line.requeued:
                break
        return False

    def _start_on(self, queued: QueuedWorkload, granted: list[int], among: Mask | None) -> bool:
        for kind in unit_selection.kinds_in_order(self.board, queued.ask):
            if kind not in granted or not leaves_headroom(self.board, queued, kind):
                continue
            units = (
                self._free_units(queued, kind) if among is None else self._free_units_in(queued, kind, among)
            )
            if (
                units is not None
                and not self._leaves_spare(queued, units)
                and queued.id in self.board.workloads_with_earmarks
            ):
                units = self._units_kept_for(queued, kind, among)  # no spare capacity is touched on these
            if units is not None and self._leaves_spare(queued, units):
                if not self.line.may_take_kind_now(queued, kind):
                    return False
                self._start(queued, kind, units, headroom_for(self.board, queued, kind))
                return True
        return False

    def _leaves_spare(self, queued: QueuedWorkload, units: list[int]) -> bool:
        """Would what the pool keeps free stay so?"""
        board = self.board
        if may_use_spare(queued):
            return True
        taken = sum(int(board.slots[u]) for u in units if board.free[u])
        return taken == 0 or board.free_slots - taken >= board.policy.spare_slots

    def _free_units(self, queued: QueuedWorkload, kind: int) -> list[int] | None:
        board, ask = self.board, queued.ask
        if not board.can_use_shared_counts(queued):
            return unit_selection.choose_units(board, ask, kind, availability.available_units(board, queued))
        number, bounds = board.ask_number(ask), availability.time_class(board, queued)
        if (number, kind, bounds) in self._does_not_fit or (number, kind) in self._does_not_fit:
            return None
        counts = board.free_counts_within(kind, bounds)
        hosts = unit_selection.suitable_hosts(board, ask, counts).nonzero()[0]
        if len(hosts) >= ask.hosts:
            units = unit_selection.choose_units_on_hosts(
                board, ask, kind, hosts, counts, availability.available_units(board, queued)
            )
            if units is not None:
                return units
        self._does_not_fit.add((number, kind, bounds))
        if not enough_free_hosts(board, ask, kind):
            self._does_not_fit.add((number, kind))
            if all((number, other) in self._does_not_fit for other in board.kinds_for(ask)):
                self._fits_nowhere.add(number)
        return None

    def _free_units_in(self, queued: QueuedWorkload, kind: int, among: Mask) -> list[int] | None:
        """As ``_free_units``, of these units alone. What does not fit here may fit elsewhere."""
        board, number = self.board, self.board.ask_number(queued.ask)
        if board.can_use_shared_counts(queued) and (
            (number, kind) in self._does_not_fit
            or (number, kind, availability.time_class(board, queued)) in self._does_not_fit
        ):
            return None
        takeable = availability.available_units(board, queued)
        return unit_selection.choose_units(
            board, queued.ask, kind, intersection(board.free if takeable is None else takeable, among)
        )

    def _units_kept_for(self, queued: QueuedWorkload, kind: int, among: Mask | None) -> list[int] | None:
        board, takeable = self.board, availability.available_units(self.board, queued)
        if takeable is None:
            return None
        kept = intersection(takeable, ~board.free)
        return unit_selection.choose_units(
            board, queued.ask, kind, kept if among is None else intersection(kept, among)
        )

    def _start(self, queued: QueuedWorkload, kind: int, units: list[int], room: Headroom) -> None:
        board = self.board
        until = board.now + queued.max_runtime_seconds
        if queued.reservation is not None:
            until = min(until, board.reservation_by_id[queued.reservation].end)
        terms = unit_selection.placement_terms(board, queued.ask, kind, units)
        why = reason_numbers(
            borrowed=room.borrowed,
            guaranteed=None if room.guaranteed >= UNLIMITED_SLOTS else room.guaranteed,
            held=room.held,
            model=board.kinds[kind].model,
            model_price=terms.model_price,
            slot_price=terms.slot_price,
            units=len(units),
            waited=max(0, board.now - queued.submitted),
            waste_after=terms.waste_after,
            waste_before=terms.waste_before,
        )
        ids = tuple(sorted(board.units[u].id for u in units))
        code = self._start_code(queued, kind, room)
        board.place(queued, units, Placement(queued.id, ids, room.borrowed, code, why, until))
        if queued.reservation is None:
            slots, end = board.slots_needed(queued.ask, kind), board.now + expected_seconds(queued)
            board.ledger.use_headroom(queued.team, board.kinds[kind].model, slots, end, queued.preemptible)
            board.ledger.use_user_headroom(queued.user, slots, end)
        self.waiting.note_placed(queued, units)

    def _start_code(self, queued: QueuedWorkload, kind: int, room: Headroom) -> str:
        if queued.reservation is not None:
            return ReasonCode.INSIDE_RESERVATION
        if self.board.pool.kind is PoolKind.STATIC:
            return ReasonCode.OWN_STATIC_POOL
        if queued.id in self.board.workloads_with_earmarks:
            above = room.held + self.board.slots_needed(queued.ask, kind) > room.guaranteed
            return ReasonCode.OUTRANKED_WITHIN_TEAM if above else ReasonCode.RECLAIMED_GUARANTEE
        return ReasonCode.FREE_BORROWED if room.borrowed else ReasonCode.FREE_WITHIN_GUARANTEE

    def skip_scope(self, queued: QueuedWorkload) -> SkipScope:
        """Of a refused workload's equals, those that need not be looked at. Only when nobody wants to be told why, and
        none of them could have units set aside, or others evicted where this one could not."""
        if self.waiting.explain:
            return SkipScope.NOBODY
        board, may_evict = self.board, self._may_evict
        if may_evict and queued.evicted_by is not None:
            return SkipScope.NOBODY  # each of them has somebody else whom it may not evict
        allowed = kinds_within_limits(board, queued)
        if not allowed:
            return SkipScope.AS_LONG if may_evict else SkipScope.ALL
        if not all(leaves_headroom(board, queued, kind) for kind in allowed):
            return SkipScope.NOBODY  # others may be over in time, or small enough
        if self.waiting.affects_holds(allowed):
            return SkipScope.NOBODY
        if may_evict:
            return SkipScope.AS_LONG
        number = board.ask_number(queued.ask)
        fits = any(
            (number, kind) not in self._does_not_fit and enough_free_hosts(board, queued.ask, kind)
            for kind in allowed
        )
        return SkipScope.AS_LONG if fits else SkipScope.ALL

    # -- room made by eviction --------------------------------------------------------------------------------------

    def evict_for_room(self, queued: QueuedWorkload) -> bool:
        """Tell others to go, or wait for those who were told already. True when its units are on their way."""
        if self._eviction_is_in_progress(queued) or self._try_eviction(queued):
            return True
        if queued.id in self.board.workloads_with_earmarks and queued.id not in self.board.evicting_for:
            self.board.release(queued)
            self._does_not_fit.clear()
            self._fits_nowhere.clear()
            self._not_soon_free.clear()  # the one time that units come back within a cycle
        return False

    def _try_eviction(self, queued: QueuedWorkload) -> bool:
        board = self.board
        kinds = victim_search.kinds_to_try_eviction_on(board, queued)
        self._may_evict = bool(kinds)
        if not kinds or self._soon_free(queued):
            return False
        for kind in kinds:
            key = self._room_key(queued, kind)
            if (
                key in self._no_victims
                or not within_workload_cap(board, queued, kind)
                or not leaves_headroom(board, queued, kind)
            ):
                continue
            made = victim_search.find_victims(board, queued, kind)
            if made is not None and made.victims:
                self._evict_for(queued, kind, made)
                return True
            self._no_victims.add(key)
        return False

    def _room_key(self, queued: QueuedWorkload, kind: int) -> Hashable:
        """Two asks with the same key find the same room, or none."""
        user = queued.user if self.board.policy.most_slots_per_user is not None else 0
        who = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, queued.reservation
        return (
            self.board.ask_number(queued.ask),
            kind,
            who,
            queued.evicted_by,
            availability.time_class(self.board, queued),
        )

    def _eviction_is_in_progress(self, queued: QueuedWorkload) -> bool:
        """Those told to go for it hold enough: keep the units and wait."""
        board = self.board
        if queued.id not in board.workloads_with_earmarks:
            return False
        leaving = board.evicting_for.get(queued.id, [])
        if not leaving:
            return False
        for kind in board.kinds_for(queued.ask):
            units = candidates.ObtainableUnits(board, queued, kind).units_after(leaving)
            if units is not None:
                self.waiting.wait_for(queued, kind, units, leaving)
                return True
        return False

    def _soon_free(self, queued: QueuedWorkload) -> bool:
        """Units that others are leaving anyway, for nobody in particular, would do: no need to evict anybody."""
        board = self.board
        leaving = board.stopping_unclaimed
        if not leaving:
            return False
        number, alike = board.ask_number(queued.ask), board.can_use_shared_counts(queued)
        bounds = availability.time_class(board, queued)
        for kind in board.kinds_for(queued.ask):
            if not headroom_for(board, queued, kind).allowed or (
                alike and (number, kind, bounds) in self._not_soon_free
            ):
                continue
            if candidates.ObtainableUnits(board, queued, kind).units_after(leaving) is not None:
                return True
            if alike:
                self._not_soon_free.add((number, kind, bounds))
        return False

    def _evict_for(self, queued: QueuedWorkload, kind: int, made: candidates.EvictionChoice) -> None:
        board = self.board
        for victim in made.victims:
            running = board.running[victim]
            same_team = running.team == queued.team
            why = reason_numbers(
                evictions=running.evictions,
                lost=int(board.lost[victim]),
                team=queued.team,
                units=len(running.units),
                workload=queued.id,
            )
            code = ReasonCode.EVICTED_FOR_PRIORITY if same_team else ReasonCode.EVICTED_FOR_GUARANTEE
            stop_at = board.now + board.policy.notice_seconds
            self.waiting.note_evicted(running.team)
            board.evict(victim, Eviction(running.id, queued.id, None, code, stop_at, why))
        self.waiting.wait_for(queued, kind, made.units, made.victims)


def enough_free_hosts(board: PoolState, ask: Ask, kind: int) -> bool:
    """Would an ask fit on what is free, if none of it was promised to others?"""
    return int(np.count_nonzero(unit_selection.suitable_hosts(board, ask, board.counts[kind]))) >= ask.hosts
