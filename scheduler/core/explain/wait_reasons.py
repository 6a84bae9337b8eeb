"""Why a workload waits: the first thing whose absence would help, found by leaving it out and trying again."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np

from scheduler.core.arrays import Mask, intersection
from scheduler.core.fit import availability, unit_selection
from scheduler.core.fit.feasibility import fits_on_empty_hosts
from scheduler.core.fit.quota_limits import (
    conflicting_own_reservation,
    headroom_for,
    kinds_within_limits,
    leaves_headroom,
    leaves_user_headroom,
    within_caps,
)
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import MAINTENANCE, QUEUE_HOLDS, PoolState
from scheduler.core.model.quota_ledger import UNLIMITED_SLOTS
from scheduler.core.model.running_work import NO_HOLDER
from scheduler.core.model.snapshot import Priority, QueuedWorkload
from scheduler.core.reasons import Reason, ReasonCode, reason_numbers

MAX_HOSTS_NAMED = 5  # hosts in the numbers of a reason


class WaitReasons:
    """What is in the way of those that wait in one pool's cycle; equal asks are judged once."""

    def __init__(self, board: PoolState) -> None:
        self.board = board
        self._missing_units_cache: dict[Hashable, Reason] = {}
        self._promised: dict[tuple[Hashable, tuple[int, ...]], Reason] = {}
        self._possible: dict[int, list[int]] = {}

    def first(self, queued: QueuedWorkload, allowed: list[int], ahead: int) -> Reason:
        """The first thing that is in the way of a workload with so many ``ahead`` of it; ``allowed`` are the kinds that its
        limits let it have."""
        limits = None if allowed else self._limits(queued) or self._behind_own_team(queued)
        if limits is not None:
            return limits
        code, why = self._hardware_reason(queued, allowed)
        if code in (ReasonCode.WAITS_FOR_UNITS, ReasonCode.BEHIND_OTHERS):
            return code, (("ahead", ahead), *why)  # sorted by name as it is: nothing comes before "ahead"
        if code == ReasonCode.HELD_FOR_RESERVATION:
            return code, reason_numbers(
                **dict(why), runs=availability.seconds_until_releasable(self.board, queued)
            )
        if code == ReasonCode.HELD_FOR_MAINTENANCE:
            return code, reason_numbers(**dict(why), runs=queued.max_runtime_seconds)
        return code, why

    def _hardware_reason(self, queued: QueuedWorkload, allowed: list[int]) -> Reason:
        """Units that are not there, or are promised to others. Judged once for all with the same key; what is promised
        also depends on times, and then what is there is looked at again: units are only taken meanwhile."""
        key = self._hardware_reason_key(queued, allowed)
        known = self._missing_units_cache.get(key)
        if known is not None:
            return known
        timed = key, availability.time_class(self.board, queued)
        if timed not in self._promised:
            lacking = self._missing_units(queued, allowed)
            if lacking is not None:
                self._missing_units_cache[key] = lacking
                return lacking
            self._promised[timed] = self._promised_to_others(queued, allowed)
        return self._promised[timed]

    def _hardware_reason_key(self, queued: QueuedWorkload, allowed: list[int]) -> Hashable:
        """Two asks with the same key have the same things in their way, but for their times."""
        team = queued.team if self.board.is_shared(queued.ask) else 0
        keeper = queued.id if queued.id in self.board.workloads_with_earmarks else 0
        number = self.board.ask_number(queued.ask)
        spare = self.board.policy.spare_slots > 0 and queued.priority is Priority.CRITICAL
        return number, spare, queued.reservation, team, keeper, tuple(allowed)

    def allowed_kinds(self, queued: QueuedWorkload) -> list[int]:
        """The kinds that its limits let it have: that others lie free is no help to it."""
        granted = kinds_within_limits(self.board, queued)
        if not granted:
            return []
        possible = self._possible_kinds(queued)
        return [kind for kind in possible if kind in granted and leaves_headroom(self.board, queued, kind)]

    def _possible_kinds(self, queued: QueuedWorkload) -> list[int]:
        """The kinds that would do in an empty pool; of the others it is no matter whether limits would let it have them."""
        number = self.board.ask_number(queued.ask)
        known = self._possible.get(number)
        if known is None:
            kinds, everything = self.board.kinds_for(queued.ask), self.board.ground.everything
            known = [kind for kind in kinds if fits_on_empty_hosts(self.board, queued.ask, kind, everything)]
            self._possible[number] = known
        return known

    def _may_have(self, queued: QueuedWorkload, kind: int) -> bool:
        return headroom_for(self.board, queued, kind).allowed and within_caps(self.board, queued, kind)

    def _behind_own_team(self, queued: QueuedWorkload) -> Reason | None:
        """The room within its team's limit is kept for work in front of it, on every kind that it may have."""
        board = self.board
        for kind in self._possible_kinds(queued):
            if self._may_have(queued, kind):
                if leaves_headroom(board, queued, kind):
                    return None
                if not leaves_user_headroom(board, queued, kind):
                    kept, need = (
                        board.ledger.reserved_user_headroom[queued.user],
                        board.slots_needed(queued.ask, kind),
                    )
                    return ReasonCode.BEHIND_OWN_TEAM, reason_numbers(
                        left=max(0, kept.left),
                        need=need,
                        of="person",
                        start=kept.start,
                        workload=kept.workload,
                    )
                model, need = board.kinds[kind].model, board.slots_needed(queued.ask, kind)
                coming = conflicting_own_reservation(board, queued, kind)
                if coming is not None:
                    return ReasonCode.HELD_FOR_RESERVATION, reason_numbers(
                        end=coming.end,
                        guaranteed=board.ledger.guarantee(queued.team, model),
                        model=model,
                        need=need,
                        own=True,
                        reservation=coming.reservation,
                        runs=queued.max_runtime_seconds,
                        slots=coming.slots,
                        start=coming.start,
                    )
                kept = board.ledger.reserved_headroom[queued.team, model]
                return ReasonCode.BEHIND_OWN_TEAM, reason_numbers(
                    left=max(0, kept.left), model=model, need=need, start=kept.start, workload=kept.workload
                )
        return None

    def _limits(self, queued: QueuedWorkload) -> Reason | None:
        """Quota or user cap, when no kind it accepts is within both; with the numbers of its first choice."""
        board, found = self.board, None
        for kind in self._possible_kinds(queued):
            room, need = headroom_for(self.board, queued, kind), board.slots_needed(queued.ask, kind)
            if room.allowed and within_caps(self.board, queued, kind):
                return None
            if not room.allowed:
                why: Reason = (
                    ReasonCode.OVER_QUOTA,
                    reason_numbers(
                        guaranteed=room.guaranteed,
                        held=room.held,
                        limit=None if room.limit >= UNLIMITED_SLOTS else room.limit,
                        may_borrow=queued.may_borrow and queued.preemptible,
                        model=board.kinds[kind].model,
                        need=need,
                        preemptible=queued.preemptible,
                    ),
                )
            else:
                held = board.ledger.held_by_user[queued.user]
                why = (
                    ReasonCode.OVER_USER_CAP,
                    reason_numbers(cap=board.policy.most_slots_per_user, held=held, need=need),
                )
            found = found or why
        return found

    def _missing_units(self, queued: QueuedWorkload, kinds: list[int]) -> Reason | None:
        """What is not there, promised to others or not; None when it is only promised."""
        board, ask = self.board, queued.ask
        if queued.reservation is not None:
            inside = (board.bound == queued.reservation) & board.of_kinds(kinds)
            return ReasonCode.WAITS_FOR_UNITS, reason_numbers(
                free=int((inside & (board.holder == NO_HOLDER)).sum()),
                need=ask.total_units,
                of=int(inside.sum()),
                reservation=queued.reservation,
            )
        if not any(fits_on_empty_hosts(board, ask, kind, board.usable) for kind in kinds):
            return self._closed(queued, kinds)
        if self._fits_ignoring(queued, kinds, availability.ALL_PROMISES):
            return None
        return ReasonCode.WAITS_FOR_UNITS, reason_numbers(
            free=sum(int(board.counts[kind].sum()) for kind in kinds),
            hosts=ask.hosts,
            model=board.kinds[kinds[0]].model,
            need=ask.total_units,
            units=ask.units,
        )

    def _closed(self, queued: QueuedWorkload, kinds: list[int]) -> Reason:
        """The hosts that could serve it don't take work: by maintenance that has an end, or for another reason."""
        board = self.board
        for kind in kinds:
            if fits_on_empty_hosts(board, queued.ask, kind, board.in_service):
                now_on = [(start, end) for _, start, end in board.maintenance if start <= board.now < end]
                ends = min(end for _, end in now_on)
                return ReasonCode.HELD_FOR_MAINTENANCE, reason_numbers(
                    end=ends, start=min(start for start, _ in now_on)
                )
        full = [host for host in board.hosts if host.closed_code == ReasonCode.HOST_FULL]
        if full and any(
            fits_on_empty_hosts(board, queued.ask, kind, self._healthy_or_disk_full) for kind in kinds
        ):
            named = [host.name for host in full[:MAX_HOSTS_NAMED]]
            return ReasonCode.HOST_FULL, reason_numbers(
                full=len(full), hosts=named, need=queued.ask.total_units
            )
        codes = sorted({h.closed_code for h in board.hosts if not h.accepts and h.closed_code})
        closed = sum(not h.accepts for h in board.hosts)
        unwell = sum(not u.well for u in board.units)
        weak = sum(h.closed_code == ReasonCode.ISOLATION_TOO_WEAK for h in board.hosts)
        too_weak = {"too_weak": weak} if weak else {}
        return ReasonCode.HOST_CLOSED, reason_numbers(
            codes=codes, hosts=closed, need=queued.ask.total_units, unwell=unwell, **too_weak
        )

    @cached_property
    def _healthy_or_disk_full(self) -> Mask:
        """The units that would take work if the disks of their hosts had room."""
        board = self.board
        open_ = np.array(
            [h.accepts or h.closed_code == ReasonCode.HOST_FULL for h in board.hosts], dtype=np.bool_
        )
        return intersection(board.ground.well, open_[board.host_of])

    def _promised_to_others(self, queued: QueuedWorkload, kinds: list[int]) -> Reason:
        """Enough is free, but spare, set aside, or promised: which of these, the first whose absence would help."""
        board, need = self.board, queued.ask.total_units
        takeable = availability.available_units(
            board, queued, availability.ALL_PROMISES
        )  # with what is kept for it, when others left for it
        concerned = intersection(board.free if takeable is None else takeable, board.of_kinds(kinds))
        free = int(concerned.sum())
        if self._fits_ignoring(queued, kinds, availability.NO_PROMISES):  # then it was the spare capacity
            spare = board.policy.spare_slots
            slots = board.slots_needed(queued.ask, kinds[0])
            return ReasonCode.SPARE_CAPACITY_KEPT, reason_numbers(
                free=board.free_slots, need=slots, spare=spare
            )
        if self._fits_ignoring(queued, kinds, frozenset({QUEUE_HOLDS})):
            return ReasonCode.BEHIND_OTHERS, reason_numbers(free=free, need=need)
        if self._fits_ignoring(queued, kinds, frozenset({QUEUE_HOLDS, MAINTENANCE})):
            start = int(board.maintenance_from[concerned].min())
            return ReasonCode.HELD_FOR_MAINTENANCE, reason_numbers(free=free, need=need, start=start)
        first = int(np.argmin(np.where(concerned, board.reserved_from, FAR_FUTURE)))
        return ReasonCode.HELD_FOR_RESERVATION, reason_numbers(
            free=free,
            need=need,
            reservation=int(board.reserved_for[first]),
            start=int(board.reserved_from[first]),
        )

    def _fits_ignoring(self, queued: QueuedWorkload, kinds: list[int], ignoring: frozenset[str]) -> bool:
        board, ask = self.board, queued.ask
        if board.can_use_shared_counts(queued) and not ask.nvlink:
            bounds = availability.time_class(board, queued, ignoring)
            counts = (board.free_counts_within(kind, bounds) for kind in kinds)
            return any(
                int(unit_selection.suitable_hosts(board, ask, free).sum()) >= ask.hosts for free in counts
            )
        available = availability.available_units(board, queued, ignoring)
        return any(unit_selection.choose_units(board, ask, kind, available) is not None for kind in kinds)
