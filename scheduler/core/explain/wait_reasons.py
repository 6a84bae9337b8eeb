"""Find the reason why a workload waits: the first obstacle without which it would start.

To find it, the placement is tried several times. Each time one more kind of obstacle is ignored.
"""

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

MAX_HOSTS_NAMED = 5  # most host names in the numbers of a reason


class WaitReasons:
    """The obstacles of the waiting workloads in one pool's cycle. Equal asks are checked once."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self._missing_units_cache: dict[Hashable, Reason] = {}
        self._promised: dict[tuple[Hashable, tuple[int, ...]], Reason] = {}
        self._possible: dict[int, list[int]] = {}

    def first_reason(self, queued: QueuedWorkload, allowed: list[int], ahead: int) -> Reason:
        """Return the first obstacle of a workload that has ``ahead`` others ahead of it in the queue.

        ``allowed``: the kinds that its limits allow.
        """
        limits = None if allowed else self._quota_or_cap_reason(queued) or self._behind_own_team(queued)
        if limits is not None:
            return limits
        code, numbers = self._hardware_reason(queued, allowed)
        if code in (ReasonCode.WAITS_FOR_UNITS, ReasonCode.BEHIND_OTHERS):
            return code, (("ahead", ahead), *numbers)  # sorted by name: no other name comes before "ahead"
        if code == ReasonCode.HELD_FOR_RESERVATION:
            return code, reason_numbers(
                **dict(numbers), runs=availability.seconds_until_releasable(self.state, queued)
            )
        if code == ReasonCode.HELD_FOR_MAINTENANCE:
            return code, reason_numbers(**dict(numbers), runs=queued.max_runtime_seconds)
        return code, numbers

    def _hardware_reason(self, queued: QueuedWorkload, allowed: list[int]) -> Reason:
        """Return the reason that names the missing units, or the promise to others.

        The result is cached for all workloads with the same key. Promises also depend on the workload's
        times. For each new time class, missing units are checked again, because other workloads took units in
        the meantime.
        """
        key = self._hardware_reason_key(queued, allowed)
        cached = self._missing_units_cache.get(key)
        if cached is not None:
            return cached
        timed_key = key, availability.time_class(self.state, queued)
        if timed_key not in self._promised:
            missing = self._missing_units(queued, allowed)
            if missing is not None:
                self._missing_units_cache[key] = missing
                return missing
            self._promised[timed_key] = self._promised_to_others(queued, allowed)
        return self._promised[timed_key]

    def _hardware_reason_key(self, queued: QueuedWorkload, allowed: list[int]) -> Hashable:
        """Return the key under which a workload's obstacles are cached.

        Workloads with the same key have the same obstacles, except for obstacles that depend on their times.
        """
        team = queued.team if self.state.is_shared(queued.ask) else 0
        earmark_owner = queued.id if queued.id in self.state.workloads_with_earmarks else 0
        number = self.state.ask_number(queued.ask)
        spare = self.state.policy.spare_slots > 0 and queued.priority is Priority.CRITICAL
        return number, spare, queued.reservation, team, earmark_owner, tuple(allowed)

    def allowed_kinds(self, queued: QueuedWorkload) -> list[int]:
        """Return the kinds that the workload's limits allow. Free units of other kinds do not help the
        workload.
        """
        within_limits = kinds_within_limits(self.state, queued)
        if not within_limits:
            return []
        possible = self._possible_kinds(queued)
        return [
            kind for kind in possible if kind in within_limits and leaves_headroom(self.state, queued, kind)
        ]

    def _possible_kinds(self, queued: QueuedWorkload) -> list[int]:
        """Return the kinds on which the workload would fit in an empty pool. Limits on other kinds do not
        matter.
        """
        number = self.state.ask_number(queued.ask)
        cached = self._possible.get(number)
        if cached is None:
            kinds, all_units = self.state.kinds_for(queued.ask), self.state.hardware.all_units
            cached = [kind for kind in kinds if fits_on_empty_hosts(self.state, queued.ask, kind, all_units)]
            self._possible[number] = cached
        return cached

    def _may_have(self, queued: QueuedWorkload, kind: int) -> bool:
        return headroom_for(self.state, queued, kind).allowed and within_caps(self.state, queued, kind)

    def _behind_own_team(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if the headroom for every allowed kind is reserved for work ahead of the
        workload, or None.
        """
        state = self.state
        for kind in self._possible_kinds(queued):
            if self._may_have(queued, kind):
                if leaves_headroom(state, queued, kind):
                    return None
                if not leaves_user_headroom(state, queued, kind):
                    reserved, need = (
                        state.ledger.reserved_user_headroom[queued.user],
                        state.slots_needed(queued.ask, kind),
                    )
                    return ReasonCode.BEHIND_OWN_TEAM, reason_numbers(
                        left=max(0, reserved.left),
                        need=need,
                        of="person",
                        start=reserved.start,
                        workload=reserved.workload,
                    )
                model, need = state.kinds[kind].model, state.slots_needed(queued.ask, kind)
                upcoming = conflicting_own_reservation(state, queued, kind)
                if upcoming is not None:
                    return ReasonCode.HELD_FOR_RESERVATION, reason_numbers(
                        end=upcoming.end,
                        guaranteed=state.ledger.guarantee(queued.team, model),
                        model=model,
                        need=need,
                        own=True,
                        reservation=upcoming.reservation,
                        runs=queued.max_runtime_seconds,
                        slots=upcoming.slots,
                        start=upcoming.start,
                    )
                reserved = state.ledger.reserved_headroom[queued.team, model]
                return ReasonCode.BEHIND_OWN_TEAM, reason_numbers(
                    left=max(0, reserved.left),
                    model=model,
                    need=need,
                    start=reserved.start,
                    workload=reserved.workload,
                )
        return None

    def _quota_or_cap_reason(self, queued: QueuedWorkload) -> Reason | None:
        """Return the reason if no kind is within quota and user cap, with the numbers of the workload's
        preferred kind; otherwise None.
        """
        state, reason = self.state, None
        for kind in self._possible_kinds(queued):
            room, need = headroom_for(self.state, queued, kind), state.slots_needed(queued.ask, kind)
            if room.allowed and within_caps(self.state, queued, kind):
                return None
            if not room.allowed:
                numbers: Reason = (
                    ReasonCode.OVER_QUOTA,
                    reason_numbers(
                        guaranteed=room.guaranteed,
                        held=room.held,
                        limit=None if room.limit >= UNLIMITED_SLOTS else room.limit,
                        may_borrow=queued.may_borrow and queued.preemptible,
                        model=state.kinds[kind].model,
                        need=need,
                        preemptible=queued.preemptible,
                    ),
                )
            else:
                held = state.ledger.held_by_user[queued.user]
                numbers = (
                    ReasonCode.OVER_USER_CAP,
                    reason_numbers(cap=state.policy.max_slots_per_user, held=held, need=need),
                )
            reason = reason or numbers
        return reason

    def _missing_units(self, queued: QueuedWorkload, kinds: list[int]) -> Reason | None:
        """Return the reason that names the missing units if the workload does not fit even without promises;
        otherwise None.
        """
        state, ask = self.state, queued.ask
        if queued.reservation is not None:
            inside = (state.bound_to == queued.reservation) & state.units_of_kinds(kinds)
            return ReasonCode.WAITS_FOR_UNITS, reason_numbers(
                free=int((inside & (state.holder == NO_HOLDER)).sum()),
                need=ask.total_units,
                of=int(inside.sum()),
                reservation=queued.reservation,
            )
        if not any(fits_on_empty_hosts(state, ask, kind, state.usable) for kind in kinds):
            return self._hosts_closed(queued, kinds)
        if self._fits_ignoring(queued, kinds, availability.ALL_PROMISES):
            return None
        return ReasonCode.WAITS_FOR_UNITS, reason_numbers(
            free=sum(int(state.free_counts[kind].sum()) for kind in kinds),
            hosts=ask.hosts,
            model=state.kinds[kinds[0]].model,
            need=ask.total_units,
            units=ask.units,
        )

    def _hosts_closed(self, queued: QueuedWorkload, kinds: list[int]) -> Reason:
        """Return the reason why the hosts that could serve the workload take no new work: maintenance, full
        disks, or another state.
        """
        state = self.state
        if any(fits_on_empty_hosts(state, queued.ask, kind, state.in_service) for kind in kinds):
            return self._in_maintenance()
        full = [host for host in state.hosts if host.closed_code == ReasonCode.HOST_FULL]
        if full and any(
            fits_on_empty_hosts(state, queued.ask, kind, self._healthy_or_disk_full) for kind in kinds
        ):
            named = [host.name for host in full[:MAX_HOSTS_NAMED]]
            return ReasonCode.HOST_FULL, reason_numbers(
                full=len(full), hosts=named, need=queued.ask.total_units
            )
        return self._other_closed_hosts(queued)

    def _in_maintenance(self) -> Reason:
        """Return the reason with the first start and the first end of the current maintenance windows."""
        state = self.state
        current = [(start, end) for _, start, end in state.maintenance if start <= state.now < end]
        return ReasonCode.HELD_FOR_MAINTENANCE, reason_numbers(
            end=min(end for _, end in current), start=min(start for start, _ in current)
        )

    def _other_closed_hosts(self, queued: QueuedWorkload) -> Reason:
        """Return the reason with the number of closed hosts in the pool, their codes, and the number of
        unhealthy units.
        """
        state = self.state
        codes = sorted({h.closed_code for h in state.hosts if not h.schedulable and h.closed_code})
        closed = sum(not h.schedulable for h in state.hosts)
        unhealthy = sum(not u.healthy for u in state.units)
        weak = sum(h.closed_code == ReasonCode.ISOLATION_TOO_WEAK for h in state.hosts)
        too_weak = {"too_weak": weak} if weak else {}
        return ReasonCode.HOST_CLOSED, reason_numbers(
            codes=codes, hosts=closed, need=queued.ask.total_units, unwell=unhealthy, **too_weak
        )

    @cached_property
    def _healthy_or_disk_full(self) -> Mask:
        """Return the units that would take work if the disks of their hosts had space."""
        state = self.state
        schedulable = np.array(
            [h.schedulable or h.closed_code == ReasonCode.HOST_FULL for h in state.hosts], dtype=np.bool_
        )
        return intersection(state.hardware.healthy, schedulable[state.host_of])

    def _promised_to_others(self, queued: QueuedWorkload, kinds: list[int]) -> Reason:
        """Return the reason with the first obstacle to using the free units: spare capacity, queue holds,
        maintenance or a reservation.
        """
        state, need = self.state, queued.ask.total_units
        # these include units earmarked for the workload
        available = availability.available_units(state, queued, availability.ALL_PROMISES)
        candidates = intersection(state.free if available is None else available, state.units_of_kinds(kinds))
        free = int(candidates.sum())
        # The workload fits with all promises kept, so only the spare capacity prevents its start.
        if self._fits_ignoring(queued, kinds, availability.NO_PROMISES):
            spare = state.policy.spare_slots
            slots = state.slots_needed(queued.ask, kinds[0])
            return ReasonCode.SPARE_CAPACITY_KEPT, reason_numbers(
                free=state.free_slots, need=slots, spare=spare
            )
        if self._fits_ignoring(queued, kinds, frozenset({QUEUE_HOLDS})):
            return ReasonCode.BEHIND_OTHERS, reason_numbers(free=free, need=need)
        if self._fits_ignoring(queued, kinds, frozenset({QUEUE_HOLDS, MAINTENANCE})):
            start = int(state.maintenance_from[candidates].min())
            return ReasonCode.HELD_FOR_MAINTENANCE, reason_numbers(free=free, need=need, start=start)
        first = int(np.argmin(np.where(candidates, state.reserved_from, FAR_FUTURE)))
        return ReasonCode.HELD_FOR_RESERVATION, reason_numbers(
            free=free,
            need=need,
            reservation=int(state.reserved_for[first]),
            start=int(state.reserved_from[first]),
        )

    def _fits_ignoring(self, queued: QueuedWorkload, kinds: list[int], ignoring: frozenset[str]) -> bool:
        state, ask = self.state, queued.ask
        if state.can_use_shared_counts(queued) and not ask.nvlink:
            bounds = availability.time_class(state, queued, ignoring)
            counts = (state.free_counts_within(kind, bounds) for kind in kinds)
            return any(
                int(unit_selection.suitable_hosts(state, ask, free).sum()) >= ask.hosts for free in counts
            )
        available = availability.available_units(state, queued, ignoring)
        return any(unit_selection.choose_units(state, ask, kind, available) is not None for kind in kinds)
