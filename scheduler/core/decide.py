"""What one waiting workload gets in one cycle: free units, or room made for it by eviction.

Equal asks are judged once: within a cycle units are only taken, never given back, so what did not fit will not fit.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from scheduler.core import fit, preempt
from scheduler.core.board import Board, Mask, both
from scheduler.core.fairshare import NO_LIMIT, Room
from scheduler.core.limits import granted_kinds, leaves_room, may_use_spare, room_for, within_workload_cap
from scheduler.core.model import Ask, Eviction, Placement, PoolKind, Queued
from scheduler.core.ordering import Alike, Line, expected_seconds
from scheduler.core.reasons import Code
from scheduler.core.timeline import numbers
from scheduler.core.waiting import Waiting
from scheduler.core.wishes import places_in_order


class Cycle:
    """The decisions of one pool's cycle, one workload after another."""

    def __init__(self, board: Board, line: Line, waiting: Waiting) -> None:
        self.board, self.line, self.waiting = board, line, waiting
        # What does not fit: (ask number, kind, time class), and whatever its times (ask number, kind).
        self._no_fit: set[tuple[int, int] | tuple[int, int, tuple[int, ...]]] = set()
        self._nowhere: set[int] = set()  # the numbers of asks that fit on no kind, whatever their times
        self._no_room: set[Hashable] = set()
        self._not_soon: set[tuple[int, int, tuple[int, ...]]] = set()  # what will not do when others have left, either
        self._may_evict = False  # might the one whose turn it is have evicted somebody?

    # -- a start on free units --------------------------------------------------------------------------------------

    def start_on_free_units(self, queued: Queued) -> bool:
        """Place a workload if it fits on units that are free now, where it had better go first. There the first kind in its order
        of preference wins."""
        if self.board.ask_number(queued.ask) in self._nowhere and self.board.counts_tell(queued):
            return False  # nearly all of a full pool's queue: one look-up each
        granted = granted_kinds(self.board, queued)
        if not granted:
            return False
        if not queued.avoids and queued.homes is None:
            return self._start_among(queued, granted, None)
        for among in places_in_order(self.board.ground, queued, self.board.now):
            if self._start_among(queued, granted, among):
                return True
            if self.line.comes_again:
                break
        return False

    def _start_among(self, queued: Queued, granted: list[int], among: Mask | None) -> bool:
        for kind in fit.kinds_in_order(self.board, queued.ask):
            if kind not in granted or not leaves_room(self.board, queued, kind):
                continue
            units = self._free_units(queued, kind) if among is None else self._units_among(queued, kind, among)
            if units is not None and not self._leaves_spare(queued, units) and queued.id in self.board.keepers:
                units = self._units_kept_for(queued, kind, among)  # no spare capacity is touched on these
            if units is not None and self._leaves_spare(queued, units):
                if not self.line.may_take(queued, kind):
                    return False
                self._start(queued, kind, units, room_for(self.board, queued, kind))
                return True
        return False

    def _leaves_spare(self, queued: Queued, units: list[int]) -> bool:
        """Would what the pool keeps free stay so?"""
        board = self.board
        if may_use_spare(queued):
            return True
        taken = sum(int(board.slots[u]) for u in units if board.free[u])
        return taken == 0 or board.free_slots - taken >= board.policy.spare_slots

    def _free_units(self, queued: Queued, kind: int) -> list[int] | None:
        board, ask = self.board, queued.ask
        if not board.counts_tell(queued):
            return fit.choose(board, ask, kind, fit.takeable(board, queued))
        number, bounds = board.ask_number(ask), fit.time_class(board, queued)
        if (number, kind, bounds) in self._no_fit or (number, kind) in self._no_fit:
            return None
        counts = board.open_counts(kind, bounds)
        hosts = fit.suitable_hosts(board, ask, counts).nonzero()[0]
        if len(hosts) >= ask.hosts:
            units = fit.choose_among(board, ask, kind, hosts, counts, fit.takeable(board, queued))
            if units is not None:
                return units
        self._no_fit.add((number, kind, bounds))
        if not enough_hosts(board, ask, kind):
            self._no_fit.add((number, kind))
            if all((number, other) in self._no_fit for other in board.kinds_for(ask)):
                self._nowhere.add(number)
        return None

    def _units_among(self, queued: Queued, kind: int, among: Mask) -> list[int] | None:
        """As ``_free_units``, of these units alone. What does not fit here may fit elsewhere."""
        board, number = self.board, self.board.ask_number(queued.ask)
        if board.counts_tell(queued) and (
            (number, kind) in self._no_fit or (number, kind, fit.time_class(board, queued)) in self._no_fit
        ):
            return None
        takeable = fit.takeable(board, queued)
        return fit.choose(board, queued.ask, kind, both(board.free if takeable is None else takeable, among))

    def _units_kept_for(self, queued: Queued, kind: int, among: Mask | None) -> list[int] | None:
        board, takeable = self.board, fit.takeable(self.board, queued)
        if takeable is None:
            return None
        kept = both(takeable, ~board.free)
        return fit.choose(board, queued.ask, kind, kept if among is None else both(kept, among))

    def _start(self, queued: Queued, kind: int, units: list[int], room: Room) -> None:
        board = self.board
        until = board.now + queued.max_runtime_seconds
        if queued.reservation is not None:
            until = min(until, board.reservation_by_id[queued.reservation].end)
        terms = fit.terms(board, queued.ask, kind, units)
        why = numbers(
            borrowed=room.borrowed,
            guaranteed=None if room.guaranteed >= NO_LIMIT else room.guaranteed,
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
            slots, end = board.need_slots(queued.ask, kind), board.now + expected_seconds(queued)
            board.ledger.use_room(queued.team, board.kinds[kind].model, slots, end, queued.preemptible)
            board.ledger.use_own_room(queued.user, slots, end)
        self.waiting.note_placed(queued, units)

    def _start_code(self, queued: Queued, kind: int, room: Room) -> str:
        if queued.reservation is not None:
            return Code.INSIDE_RESERVATION
        if self.board.pool.kind is PoolKind.STATIC:
            return Code.OWN_STATIC_POOL
        if queued.id in self.board.keepers:
            above = room.held + self.board.need_slots(queued.ask, kind) > room.guaranteed
            return Code.OUTRANKED_WITHIN_TEAM if above else Code.RECLAIMED_GUARANTEE
        return Code.FREE_BORROWED if room.borrowed else Code.FREE_WITHIN_GUARANTEE

    def who_else_gets_nothing(self, queued: Queued) -> Alike:
        """Of a refused workload's equals, those that need not be looked at. Only when nobody wants to be told why, and
        none of them could have units set aside, or others evicted where this one could not."""
        if self.waiting.explain:
            return Alike.NOBODY
        board, may_evict = self.board, self._may_evict
        if may_evict and queued.evicted_by is not None:
            return Alike.NOBODY  # each of them has somebody else whom it may not evict
        allowed = granted_kinds(board, queued)
        if not allowed:
            return Alike.AS_LONG if may_evict else Alike.ALL
        if not all(leaves_room(board, queued, kind) for kind in allowed):
            return Alike.NOBODY  # others may be over in time, or small enough
        if self.waiting.changes_holds(allowed):
            return Alike.NOBODY
        if may_evict:
            return Alike.AS_LONG
        number = board.ask_number(queued.ask)
        fits = any((number, kind) not in self._no_fit and enough_hosts(board, queued.ask, kind) for kind in allowed)
        return Alike.AS_LONG if fits else Alike.ALL

    # -- room made by eviction --------------------------------------------------------------------------------------

    def make_room(self, queued: Queued) -> bool:
        """Tell others to go, or wait for those who were told already. True when its units are on their way."""
        if self._room_is_on_its_way(queued) or self._evict_somebody(queued):
            return True
        if queued.id in self.board.keepers and queued.id not in self.board.leaving_for:
            self.board.release(queued)
            self._no_fit.clear()
            self._nowhere.clear()
            self._not_soon.clear()  # the one time that units come back within a cycle
        return False

    def _evict_somebody(self, queued: Queued) -> bool:
        board = self.board
        kinds = preempt.kinds_to_evict_on(board, queued)
        self._may_evict = bool(kinds)
        if not kinds or self._soon_free(queued):
            return False
        for kind in kinds:
            key = self._room_key(queued, kind)
            if (
                key in self._no_room
                or not within_workload_cap(board, queued, kind)
                or not leaves_room(board, queued, kind)
            ):
                continue
            made = preempt.make_room(board, queued, kind)
            if made is not None and made.victims:
                self._evict_for(queued, kind, made)
                return True
            self._no_room.add(key)
        return False

    def _room_key(self, queued: Queued, kind: int) -> Hashable:
        """Two asks with the same key find the same room, or none."""
        user = queued.user if self.board.policy.most_slots_per_user is not None else 0
        who = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, queued.reservation
        return self.board.ask_number(queued.ask), kind, who, queued.evicted_by, fit.time_class(self.board, queued)

    def _room_is_on_its_way(self, queued: Queued) -> bool:
        """Those told to go for it hold enough: keep the units and wait."""
        board = self.board
        if queued.id not in board.keepers:
            return False
        leaving = board.leaving_for.get(queued.id, [])
        if not leaving:
            return False
        for kind in board.kinds_for(queued.ask):
            units = preempt.Obtainable(board, queued, kind).units_after(leaving)
            if units is not None:
                self.waiting.wait_for(queued, kind, units, leaving)
                return True
        return False

    def _soon_free(self, queued: Queued) -> bool:
        """Units that others are leaving anyway, for nobody in particular, would do: no need to evict anybody."""
        board = self.board
        leaving = board.leaving_freely
        if not leaving:
            return False
        number, alike = board.ask_number(queued.ask), board.counts_tell(queued)
        bounds = fit.time_class(board, queued)
        for kind in board.kinds_for(queued.ask):
            if not room_for(board, queued, kind).allowed or (alike and (number, kind, bounds) in self._not_soon):
                continue
            if preempt.Obtainable(board, queued, kind).units_after(leaving) is not None:
                return True
            if alike:
                self._not_soon.add((number, kind, bounds))
        return False

    def _evict_for(self, queued: Queued, kind: int, made: preempt.RoomMade) -> None:
        board = self.board
        for victim in made.victims:
            running = board.running[victim]
            same_team = running.team == queued.team
            why = numbers(
                evictions=running.evictions,
                lost=int(board.lost[victim]),
                team=queued.team,
                units=len(running.units),
                workload=queued.id,
            )
            code = Code.EVICTED_FOR_PRIORITY if same_team else Code.EVICTED_FOR_GUARANTEE
            stop_at = board.now + board.policy.notice_seconds
            self.waiting.note_leaving(running.team)
            board.evict(victim, Eviction(running.id, queued.id, None, code, stop_at, why))
        self.waiting.wait_for(queued, kind, made.units, made.victims)


def enough_hosts(board: Board, ask: Ask, kind: int) -> bool:
    """Would an ask fit on what is free, if none of it was promised to others?"""
    return int(np.count_nonzero(fit.suitable_hosts(board, ask, board.counts[kind]))) >= ask.hosts
