"""Decide about one workload: place it on free units, evict running work for it, or refuse it.

An ask is the hardware that a workload requests. A cycle is one run of the planner. Within a cycle, free units
only become fewer. The only exception is in ``preempt_for``. So an ask that did not fit once does not fit
later in the cycle, and equal asks are tried only once.
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
    """The decisions about the workloads of one pool in one cycle.

    The planner calls it for one workload after another. It remembers the asks that did not fit.

    Some free units are promised to other work from a future time on. Work may take such a unit only if it
    releases the unit before the promise begins. The time class of a workload follows from its runtime and
    says how early the promises may begin. Workloads of one time class may take the same free units (see
    ``availability.time_class``). A unit is earmarked for a workload if it was freed, or is being freed, by
    evictions for this workload.
    """

    def __init__(self, state: PoolState, order: TurnOrder, refusals: RefusalRecorder) -> None:
        self.state, self.order, self.refusals = state, order, refusals
        # Asks that do not fit now. The entry (ask number, kind, time class) is for one time class. The entry
        # (ask number, kind) says that the ask does not fit for any time class.
        self._does_not_fit: set[tuple[int, int] | tuple[int, int, tuple[int, ...]]] = set()
        self._fits_nowhere: set[int] = set()  # the numbers of asks that fit on no kind, for any time class
        self._no_victims: set[Hashable] = set()
        # Asks that would not fit even after the work in ``state.stopping_unclaimed`` has released its units.
        # The entries are (ask number, kind, time class).
        self._not_soon_free: set[tuple[int, int, tuple[int, ...]]] = set()
        # True if the present workload might evict running work on some kind.
        self._may_evict = False

    # -- placement on free units --------------------

    def place(self, queued: QueuedWorkload) -> bool:
        """Start the workload on free units if possible. Return True if it was started.

        The kinds of units are tried in the ask's order of preference. Hosts on which the workload failed
        before, and hosts without its checkpoint, are tried last.
        """
        if self.state.ask_number(queued.ask) in self._fits_nowhere and self.state.can_use_shared_counts(
            queued
        ):
            # Fast path: in a full pool nearly every waiting workload is rejected here, after one look-up.
            return False
        allowed_kinds = kinds_within_limits(self.state, queued)
        if not allowed_kinds:
            return False
        if not queued.avoids and queued.checkpoint_storage is None:
            return self._start_on(queued, allowed_kinds, None)
        for allowed_units in preferred_unit_masks(self.state.hardware, queued, self.state.now):
            if self._start_on(queued, allowed_kinds, allowed_units):
                return True
            if self.order.requeued:
                break
        return False

    def _start_on(self, queued: QueuedWorkload, allowed_kinds: list[int], allowed_units: Mask | None) -> bool:
        for kind in unit_selection.kinds_in_order(self.state, queued.ask):
            if kind not in allowed_kinds or not leaves_headroom(self.state, queued, kind):
                continue
            units = (
                self._choose_free_units(queued, kind)
                if allowed_units is None
                else self._choose_free_units_within(queued, kind, allowed_units)
            )
            if (
                units is not None
                and not self._leaves_spare_capacity(queued, units)
                and queued.id in self.state.workloads_with_earmarks
            ):
                # Units that are earmarked for the workload are not spare capacity, so it may take them.
                units = self._choose_earmarked_units(queued, kind, allowed_units)
            if units is not None and self._leaves_spare_capacity(queued, units):
                if not self.order.may_take_kind_now(queued, kind):
                    return False
                self._start(queued, kind, units, headroom_for(self.state, queued, kind))
                self.order.note_started(queued)
                return True
        return False

    def was_requeued(self, queued: QueuedWorkload) -> bool:
        """Return True if the planner will decide about the workload a second time in this cycle.

        This happens if the workload would borrow units now. Work of other teams comes first if their
        guarantees cover these units.
        """
        return self.order.requeued

    def _leaves_spare_capacity(self, queued: QueuedWorkload, units: list[int]) -> bool:
        """Return True if the pool's spare capacity allows the workload to take these units.

        Spare capacity is slots that the pool keeps free for critical work. The result is True in three cases:
        the workload may use spare capacity, enough slots stay free after the start, or all of the units are
        earmarked for the workload and therefore do not count as free. When the workload starts, it gives up
        those of its earmarked units that it does not use.
        """
        state = self.state
        if may_use_spare(queued):
            return True
        taken = sum(int(state.slots[u]) for u in units if state.free[u])
        given_up = 0
        if queued.id in state.workloads_with_earmarks:
            given_up = int(state.slots[np.setdiff1d(state.idle_earmarked_units(queued), units)].sum())
        return taken == 0 or state.free_slots + given_up - taken >= state.policy.spare_slots

    def _choose_free_units(self, queued: QueuedWorkload, kind: int) -> list[int] | None:
        """Return available units of one kind for the workload, or None if it does not fit.

        Available units are free units whose promises to other work begin late enough. Work inside a
        reservation may take only the reservation's units. Work with earmarked units may take these too.

        An ask that does not fit is remembered for its time class, so that equal asks are not tried again. It
        is remembered for every time class if it would not even fit on all free units. Nothing is remembered
        for work inside a reservation, work with earmarked units, or time-sliced shares.
        """
        state, ask = self.state, queued.ask
        if not state.can_use_shared_counts(queued):
            return unit_selection.choose_units(state, ask, kind, availability.available_units(state, queued))
        number, bounds = state.ask_number(ask), availability.time_class(state, queued)
        if (number, kind, bounds) in self._does_not_fit or (number, kind) in self._does_not_fit:
            return None
        counts = state.free_counts_within(kind, bounds)
        hosts = unit_selection.suitable_hosts(state, ask, counts).nonzero()[0]
        if len(hosts) >= ask.hosts:
            units = unit_selection.choose_units_on_hosts(
                state, ask, kind, hosts, counts, availability.available_units(state, queued)
            )
            if units is not None:
                return units
        self._does_not_fit.add((number, kind, bounds))
        if not enough_free_hosts(state, ask, kind):
            self._does_not_fit.add((number, kind))
            if all((number, other_kind) in self._does_not_fit for other_kind in state.kinds_for(ask)):
                self._fits_nowhere.add(number)
        return None

    def _choose_free_units_within(
        self, queued: QueuedWorkload, kind: int, allowed_units: Mask
    ) -> list[int] | None:
        """Return available units of one kind that are in ``allowed_units``, or None if there are too few.

        A failure is not remembered, because the ask may fit on other units.
        """
        state, number = self.state, self.state.ask_number(queued.ask)
        if state.can_use_shared_counts(queued) and (
            (number, kind) in self._does_not_fit
            or (number, kind, availability.time_class(state, queued)) in self._does_not_fit
        ):
            return None
        available = availability.available_units(state, queued)
        return unit_selection.choose_units(
            state,
            queued.ask,
            kind,
            intersection(state.free if available is None else available, allowed_units),
        )

    def _choose_earmarked_units(
        self, queued: QueuedWorkload, kind: int, allowed_units: Mask | None
    ) -> list[int] | None:
        """Return units that are earmarked for the workload, or None if these are not enough."""
        state, available = self.state, availability.available_units(self.state, queued)
        if available is None:
            return None
        earmarked = intersection(available, ~state.free)
        return unit_selection.choose_units(
            state,
            queued.ask,
            kind,
            earmarked if allowed_units is None else intersection(earmarked, allowed_units),
        )

    def _start(self, queued: QueuedWorkload, kind: int, units: list[int], room: Headroom) -> None:
        """Record the placement.

        Unless the workload runs inside a reservation, also subtract its slots from the headroom of its team
        and of its user. Headroom is slots below a limit that are reserved for work ahead in the queue.
        """
        state = self.state
        until = state.now + queued.max_runtime_seconds
        if queued.reservation is not None:
            until = min(until, state.reservation_by_id[queued.reservation].end)
        terms = unit_selection.placement_terms(state, queued.ask, kind, units)
        numbers = reason_numbers(
            borrowed=room.borrowed,
            guaranteed=None if room.guaranteed >= UNLIMITED_SLOTS else room.guaranteed,
            held=room.held,
            model=state.kinds[kind].model,
            model_price=terms.model_price,
            slot_price=terms.slot_price,
            units=len(units),
            waited=max(0, state.now - queued.submitted),
            waste_after=terms.waste_after,
            waste_before=terms.waste_before,
        )
        ids = tuple(sorted(state.units[u].id for u in units))
        code = self._start_code(queued, kind, room)
        state.place_workload(queued, units, Placement(queued.id, ids, room.borrowed, code, numbers, until))
        if queued.reservation is None:
            slots, end = state.slots_needed(queued.ask, kind), state.now + expected_seconds(queued)
            state.ledger.use_headroom(queued.team, state.kinds[kind].model, slots, end, queued.preemptible)
            state.ledger.use_user_headroom(queued.user, slots, end)
        self.refusals.note_placed(queued, units)

    def _start_code(self, queued: QueuedWorkload, kind: int, room: Headroom) -> str:
        """Return the ReasonCode that says why the workload could start."""
        if queued.reservation is not None:
            return ReasonCode.INSIDE_RESERVATION
        if self.state.pool.kind is PoolKind.STATIC:
            return ReasonCode.OWN_STATIC_POOL
        if queued.id in self.state.workloads_with_earmarks:
            if queued.room_made_by_own_team is not None:
                own = queued.room_made_by_own_team
                return ReasonCode.OUTRANKED_WITHIN_TEAM if own else ReasonCode.RECLAIMED_GUARANTEE
            is_above_guarantee = room.held + self.state.slots_needed(queued.ask, kind) > room.guaranteed
            return ReasonCode.OUTRANKED_WITHIN_TEAM if is_above_guarantee else ReasonCode.RECLAIMED_GUARANTEE
        return ReasonCode.FREE_BORROWED if room.borrowed else ReasonCode.FREE_WITHIN_GUARANTEE

    # -- preemption --------------------

    def preempt_for(self, queued: QueuedWorkload) -> bool:
        """Evict running work for the workload, or wait for evictions that are in progress.

        Return True if evictions will free enough units. Otherwise the workload gives up its earmarked units,
        unless work is still stopping for it.
        """
        if self._eviction_is_in_progress(queued) or self._try_eviction(queued):
            return True
        if queued.id in self.state.workloads_with_earmarks and queued.id not in self.state.evicting_for:
            self.state.release_earmarks(queued)
            # Only here do units become free again within a cycle. So asks that did not fit before may fit
            # now.
            self._does_not_fit.clear()
            self._fits_nowhere.clear()
            self._not_soon_free.clear()
        return False

    def _try_eviction(self, queued: QueuedWorkload) -> bool:
        """Try one kind of units after the other. Evict running work on the first kind on which an eviction
        makes enough room. Return True if work was evicted.
        """
        state = self.state
        kinds = victim_search.kinds_to_try_eviction_on(state, queued)
        self._may_evict = bool(kinds)
        if not kinds or self._suits_units_being_freed(queued):
            return False
        for kind in kinds:
            key = self._victim_search_key(queued, kind)
            if (
                key in self._no_victims
                or not within_workload_cap(state, queued, kind)
                or not leaves_headroom(state, queued, kind)
            ):
                continue
            choice = victim_search.find_victims(state, queued, kind)
            if choice is not None and choice.victims:
                self._evict(queued, kind, choice)
                return True
            self._no_victims.add(key)
        return False

    def _victim_search_key(self, queued: QueuedWorkload, kind: int) -> Hashable:
        """Return the key under which a failed search for victims is remembered.

        If a search fails, a search with an equal key fails too.
        """
        user = queued.user if self.state.policy.max_slots_per_user is not None else 0
        owner = queued.team, user, queued.priority, queued.preemptible, queued.may_borrow, queued.reservation
        return (
            self.state.ask_number(queued.ask),
            kind,
            owner,
            queued.evicted_by,
            availability.time_class(self.state, queued),
        )

    def _eviction_is_in_progress(self, queued: QueuedWorkload) -> bool:
        """Return True if work that is already stopping for the workload will free enough units.

        If so, refuse the workload until then, and earmark these units for it.
        """
        state = self.state
        if queued.id not in state.workloads_with_earmarks:
            return False
        stopping = state.evicting_for.get(queued.id, [])
        if not stopping:
            return False
        for kind in state.kinds_for(queued.ask):
            units = candidates.ObtainableUnits(state, queued, kind).units_after(stopping)
            if units is not None:
                self.refusals.refuse_until_evicted(queued, kind, units, stopping)
                return True
        return False

    def _suits_units_being_freed(self, queued: QueuedWorkload) -> bool:
        """Return True if the workload will fit on free units and on units that are being freed already.

        Units are being freed by stopping work that was evicted for no particular workload. If the workload
        fits on them, nothing has to be evicted for it.
        """
        state = self.state
        stopping = state.stopping_unclaimed
        if not stopping:
            return False
        number, is_shareable = state.ask_number(queued.ask), state.can_use_shared_counts(queued)
        bounds = availability.time_class(state, queued)
        for kind in state.kinds_for(queued.ask):
            if not headroom_for(state, queued, kind).allowed or (
                is_shareable and (number, kind, bounds) in self._not_soon_free
            ):
                continue
            if candidates.ObtainableUnits(state, queued, kind).units_after(stopping) is not None:
                return True
            if is_shareable:
                self._not_soon_free.add((number, kind, bounds))
        return False

    def _evict(self, queued: QueuedWorkload, kind: int, choice: candidates.EvictionChoice) -> None:
        """Evict the chosen victims, and refuse the workload until they have stopped."""
        state = self.state
        for victim in choice.victims:
            running = state.running[victim]
            is_same_team = running.team == queued.team
            numbers = reason_numbers(
                evictions=running.evictions,
                lost=int(state.unsaved_slot_seconds[victim]),
                team=queued.team,
                units=len(running.units),
                workload=queued.id,
            )
            code = ReasonCode.EVICTED_FOR_PRIORITY if is_same_team else ReasonCode.EVICTED_FOR_GUARANTEE
            stop_at = state.now + state.policy.notice_seconds
            self.refusals.note_evicted(running.team)
            state.evict_workload(victim, Eviction(running.id, queued.id, None, code, stop_at, numbers))
        self.refusals.refuse_until_evicted(queued, kind, choice.units, choice.victims)

    # -- refusal --------------------

    def refuse(self, queued: QueuedWorkload) -> None:
        """Refuse the workload, and skip equal workloads that cannot start either.

        Units are held for the workload if it is one of the first refused workloads.
        """
        self.refusals.refuse(queued)
        self.order.note_unplaced(queued, self._skip_scope(queued))

    def _skip_scope(self, queued: QueuedWorkload) -> SkipScope:
        """Return which other members of the workload's equivalence class certainly cannot start.

        They can be skipped in this cycle. The members of a class differ only in their times and in the
        workload for which they were last evicted. None is skipped if one of these conditions holds:

        - Refusals are explained, so each member needs its own.
        - The forecast for this workload may change which units are held.
        - This workload was evicted for another workload and may not evict that workload in return.
          Other members of the class may evict it.
        - This workload would use headroom that is reserved for other work. Another member may end
          before the headroom is needed.
        """
        if self.refusals.explain:
            return SkipScope.NONE
        state, may_evict = self.state, self._may_evict
        if may_evict and queued.evicted_by is not None:
            return SkipScope.NONE  # Each member may be forbidden to evict a different workload.
        allowed = kinds_within_limits(state, queued)
        if not allowed:
            return SkipScope.EQUAL_OR_LONGER if may_evict else SkipScope.ALL
        if not all(leaves_headroom(state, queued, kind) for kind in allowed):
            return SkipScope.NONE  # Other members may end before the reserved headroom is needed.
        if self.refusals.affects_holds(allowed):
            return SkipScope.NONE
        if may_evict:
            return SkipScope.EQUAL_OR_LONGER
        number = state.ask_number(queued.ask)
        fits = any(
            (number, kind) not in self._does_not_fit and enough_free_hosts(state, queued.ask, kind)
            for kind in allowed
        )
        return SkipScope.EQUAL_OR_LONGER if fits else SkipScope.ALL


def enough_free_hosts(state: PoolState, ask: Ask, kind: int) -> bool:
    """Return True if the ask would fit on all free units, including those promised to others."""
    return (
        int(np.count_nonzero(unit_selection.suitable_hosts(state, ask, state.free_counts[kind]))) >= ask.hosts
    )
