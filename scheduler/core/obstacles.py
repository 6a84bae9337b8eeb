"""Why a workload waits: the first thing whose absence would help, found by leaving it out and trying again."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np

from scheduler.core import fit
from scheduler.core.board import HOLDS, MAINTENANCE, NEVER, NOBODY, Board, Mask, both
from scheduler.core.fairshare import NO_LIMIT
from scheduler.core.limits import (
    granted_kinds,
    leaves_own_room,
    leaves_room,
    own_reservation_in_the_way,
    room_for,
    within_caps,
)
from scheduler.core.model import Priority, Queued, Why
from scheduler.core.reasons import Code
from scheduler.core.timeline import fits_empty, numbers

MOST_NAMED = 5  # hosts in the numbers of a reason


class Obstacles:
    """What is in the way of those that wait in one pool's cycle; equal asks are judged once."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._lacking: dict[Hashable, Why] = {}
        self._promised: dict[tuple[Hashable, tuple[int, ...]], Why] = {}
        self._possible: dict[int, list[int]] = {}

    def first(self, queued: Queued, allowed: list[int], ahead: int) -> Why:
        """The first thing that is in the way of a workload with so many ``ahead`` of it; ``allowed`` are the kinds that its
        limits let it have."""
        limits = None if allowed else self._limits(queued) or self._behind_own_team(queued)
        if limits is not None:
            return limits
        code, why = self._physical_obstacle(queued, allowed)
        if code in (Code.WAITS_FOR_UNITS, Code.BEHIND_OTHERS):
            return code, (("ahead", ahead), *why)  # sorted by name as it is: nothing comes before "ahead"
        if code == Code.HELD_FOR_RESERVATION:
            return code, numbers(**dict(why), runs=fit.gone_after(self.board, queued))
        if code == Code.HELD_FOR_MAINTENANCE:
            return code, numbers(**dict(why), runs=queued.max_runtime_seconds)
        return code, why

    def _physical_obstacle(self, queued: Queued, allowed: list[int]) -> Why:
        """Units that are not there, or are promised to others. Judged once for all with the same key; what is promised
        also depends on times, and then what is there is looked at again: units are only taken meanwhile."""
        key = self._obstacle_key(queued, allowed)
        known = self._lacking.get(key)
        if known is not None:
            return known
        timed = key, fit.time_class(self.board, queued)
        if timed not in self._promised:
            lacking = self._lacks(queued, allowed)
            if lacking is not None:
                self._lacking[key] = lacking
                return lacking
            self._promised[timed] = self._promised_to_others(queued, allowed)
        return self._promised[timed]

    def _obstacle_key(self, queued: Queued, allowed: list[int]) -> Hashable:
        """Two asks with the same key have the same things in their way, but for their times."""
        team = queued.team if self.board.is_shared(queued.ask) else 0
        keeper = queued.id if queued.id in self.board.keepers else 0
        number = self.board.ask_number(queued.ask)
        spare = self.board.policy.spare_slots > 0 and queued.priority is Priority.CRITICAL
        return number, spare, queued.reservation, team, keeper, tuple(allowed)

    def allowed_kinds(self, queued: Queued) -> list[int]:
        """The kinds that its limits let it have: that others lie free is no help to it."""
        granted = granted_kinds(self.board, queued)
        if not granted:
            return []
        possible = self._possible_kinds(queued)
        return [kind for kind in possible if kind in granted and leaves_room(self.board, queued, kind)]

    def _possible_kinds(self, queued: Queued) -> list[int]:
        """The kinds that would do in an empty pool; of the others it is no matter whether limits would let it have them."""
        number = self.board.ask_number(queued.ask)
        known = self._possible.get(number)
        if known is None:
            kinds, everything = self.board.kinds_for(queued.ask), self.board.ground.everything
            known = [kind for kind in kinds if fits_empty(self.board, queued.ask, kind, everything)]
            self._possible[number] = known
        return known

    def _may_have(self, queued: Queued, kind: int) -> bool:
        return room_for(self.board, queued, kind).allowed and within_caps(self.board, queued, kind)

    def _behind_own_team(self, queued: Queued) -> Why | None:
        """The room within its team's limit is kept for work in front of it, on every kind that it may have."""
        board = self.board
        for kind in self._possible_kinds(queued):
            if self._may_have(queued, kind):
                if leaves_room(board, queued, kind):
                    return None
                if not leaves_own_room(board, queued, kind):
                    kept, need = board.ledger.kept_for_user[queued.user], board.need_slots(queued.ask, kind)
                    return Code.BEHIND_OWN_TEAM, numbers(
                        left=max(0, kept.left), need=need, of="person", start=kept.start, workload=kept.workload
                    )
                model, need = board.kinds[kind].model, board.need_slots(queued.ask, kind)
                coming = own_reservation_in_the_way(board, queued, kind)
                if coming is not None:
                    return Code.HELD_FOR_RESERVATION, numbers(
                        end=coming.end, guaranteed=board.ledger.guarantee(queued.team, model), model=model, need=need, own=True,
                        reservation=coming.reservation, runs=queued.max_runtime_seconds, slots=coming.slots, start=coming.start,
                    )  # fmt: skip
                kept = board.ledger.kept_room[queued.team, model]
                return Code.BEHIND_OWN_TEAM, numbers(
                    left=max(0, kept.left), model=model, need=need, start=kept.start, workload=kept.workload
                )
        return None

    def _limits(self, queued: Queued) -> Why | None:
        """Quota or user cap, when no kind it accepts is within both; with the numbers of its first choice."""
        board, found = self.board, None
        for kind in self._possible_kinds(queued):
            room, need = room_for(self.board, queued, kind), board.need_slots(queued.ask, kind)
            if room.allowed and within_caps(self.board, queued, kind):
                return None
            if not room.allowed:
                why: Why = (
                    Code.OVER_QUOTA,
                    numbers(
                        guaranteed=room.guaranteed,
                        held=room.held,
                        limit=None if room.limit >= NO_LIMIT else room.limit,
                        may_borrow=queued.may_borrow and queued.preemptible,
                        model=board.kinds[kind].model,
                        need=need,
                        preemptible=queued.preemptible,
                    ),
                )
            else:
                held = board.ledger.held_by_user[queued.user]
                why = Code.OVER_USER_CAP, numbers(cap=board.policy.most_slots_per_user, held=held, need=need)
            found = found or why
        return found

    def _lacks(self, queued: Queued, kinds: list[int]) -> Why | None:
        """What is not there, promised to others or not; None when it is only promised."""
        board, ask = self.board, queued.ask
        if queued.reservation is not None:
            inside = (board.bound == queued.reservation) & board.of_kinds(kinds)
            return Code.WAITS_FOR_UNITS, numbers(
                free=int((inside & (board.holder == NOBODY)).sum()),
                need=ask.total_units,
                of=int(inside.sum()),
                reservation=queued.reservation,
            )
        if not any(fits_empty(board, ask, kind, board.usable) for kind in kinds):
            return self._closed(queued, kinds)
        if self._fits_ignoring(queued, kinds, fit.EVERYTHING):
            return None
        return Code.WAITS_FOR_UNITS, numbers(
            free=sum(int(board.counts[kind].sum()) for kind in kinds),
            hosts=ask.hosts,
            model=board.kinds[kinds[0]].model,
            need=ask.total_units,
            units=ask.units,
        )

    def _closed(self, queued: Queued, kinds: list[int]) -> Why:
        """The hosts that could serve it don't take work: by maintenance that has an end, or for another reason."""
        board = self.board
        for kind in kinds:
            if fits_empty(board, queued.ask, kind, board.in_service):
                now_on = [(start, end) for _, start, end in board.maintenance if start <= board.now < end]
                ends = min(end for _, end in now_on)
                return Code.HELD_FOR_MAINTENANCE, numbers(end=ends, start=min(start for start, _ in now_on))
        full = [host for host in board.hosts if host.closed_code == Code.HOST_FULL]
        if full and any(fits_empty(board, queued.ask, kind, self._well_or_full) for kind in kinds):
            named = [host.name for host in full[:MOST_NAMED]]
            return Code.HOST_FULL, numbers(full=len(full), hosts=named, need=queued.ask.total_units)
        codes = sorted({h.closed_code for h in board.hosts if not h.accepts and h.closed_code})
        closed = sum(not h.accepts for h in board.hosts)
        unwell = sum(not u.well for u in board.units)
        weak = sum(h.closed_code == Code.ISOLATION_TOO_WEAK for h in board.hosts)
        too_weak = {"too_weak": weak} if weak else {}
        return Code.HOST_CLOSED, numbers(
            codes=codes, hosts=closed, need=queued.ask.total_units, unwell=unwell, **too_weak
        )

    @cached_property
    def _well_or_full(self) -> Mask:
        """The units that would take work if the disks of their hosts had room."""
        board = self.board
        open_ = np.array([h.accepts or h.closed_code == Code.HOST_FULL for h in board.hosts], dtype=np.bool_)
        return both(board.ground.well, open_[board.host_of])

    def _promised_to_others(self, queued: Queued, kinds: list[int]) -> Why:
        """Enough is free, but spare, set aside, or promised: which of these, the first whose absence would help."""
        board, need = self.board, queued.ask.total_units
        takeable = fit.takeable(board, queued, fit.EVERYTHING)  # with what is kept for it, when others left for it
        concerned = both(board.free if takeable is None else takeable, board.of_kinds(kinds))
        free = int(concerned.sum())
        if self._fits_ignoring(queued, kinds, fit.NOTHING):  # then it was the spare capacity
            spare = board.policy.spare_slots
            slots = board.need_slots(queued.ask, kinds[0])
            return Code.SPARE_CAPACITY_KEPT, numbers(free=board.free_slots, need=slots, spare=spare)
        if self._fits_ignoring(queued, kinds, frozenset({HOLDS})):
            return Code.BEHIND_OTHERS, numbers(free=free, need=need)
        if self._fits_ignoring(queued, kinds, frozenset({HOLDS, MAINTENANCE})):
            start = int(board.maintenance_from[concerned].min())
            return Code.HELD_FOR_MAINTENANCE, numbers(free=free, need=need, start=start)
        first = int(np.argmin(np.where(concerned, board.reserved_from, NEVER)))
        return Code.HELD_FOR_RESERVATION, numbers(
            free=free,
            need=need,
            reservation=int(board.reserved_for[first]),
            start=int(board.reserved_from[first]),
        )

    def _fits_ignoring(self, queued: Queued, kinds: list[int], ignoring: frozenset[str]) -> bool:
        board, ask = self.board, queued.ask
        if board.counts_tell(queued) and not ask.nvlink:
            bounds = fit.time_class(board, queued, ignoring)
            counts = (board.open_counts(kind, bounds) for kind in kinds)
            return any(int(fit.suitable_hosts(board, ask, free).sum()) >= ask.hosts for free in counts)
        available = fit.takeable(board, queued, ignoring)
        return any(fit.choose(board, ask, kind, available) is not None for kind in kinds)
