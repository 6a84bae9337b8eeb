"""Find the reason why a workload waits.

Several obstacles may prevent a start. To find the reason, the placement is tried several times, and each time
one more kind of obstacle is ignored. When the placement succeeds, the obstacle that was ignored last is the
reason. Some obstacles are promises: a free unit is held for work ahead in the queue, or needed soon by
maintenance or a reservation.
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

MAX_HOSTS_NAMED = 5  # a reason names at most this many hosts


class WaitReasons:
    """The obstacles of the waiting workloads of one pool in one cycle (one run of the planner).

    Results are cached, so that workloads with equal requests are checked only once.
    """

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self._missing_units_cache: dict[Hashable, Reason] = {}
        self._promised: dict[tuple[Hashable, tuple[int, ...]], Reason] = {}
        self._possible: dict[int, list[int]] = {}

    def first_reason(self, queued: QueuedWorkload, allowed: list[int], ahead: int) -> Reason:
        """Return the first obstacle of a workload.

        ``allowed`` are the kinds of units that its limits allow (see ``allowed_kinds``). ``ahead`` is the
        number of workloads ahead of it in the queue.
        """
        limits = None if allowed else self._quota_or_cap_reason(queued) or self._behind_own_team(queued)
        if limits is not None:
            return limits
        code, numbers = self._hardware_reason(queued, allowed)
        if code in (ReasonCode.WAITS_FOR_UNITS, ReasonCode.BEHIND_OTHERS):
            # Numbers are sorted by name. "ahead" comes before the names of the other numbers.
            return code, (("ahead", ahead), *numbers)
        if code == ReasonCode.HELD_FOR_RESERVATION:
            return code, reason_numbers(
                **dict(numbers), runs=availability.seconds_until_releasable(self.state, queued)
            )
        if code == ReasonCode.HELD_FOR_MAINTENANCE:
            return code, reason_numbers(**dict(numbers), runs=queued.max_runtime_seconds)
        return code, numbers

    def _hardware_reason(self, queued: QueuedWorkload, allowed: list[int]) -> Reason:
        """Return the reason: too few units are free, or the free units are promised to others.

        The first reason is cached for all workloads with the same key. The second also depends on how long a
        workload runs, so it is cached by key and time class. For each new time class, the free units are
        counted again, because other workloads may have taken some since.
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

        Workloads with equal keys have equal obstacles, except for obstacles that depend on their runtime.
        """
        team = queued.team if self.state.is_shared(queued.ask) else 0
        earmark_owner = queued.id if queued.id in self.state.workloads_with_earmarks else 0
        number = self.state.ask_number(queued.ask)
        spare = self.state.policy.spare_slots > 0 and queued.priority is Priority.CRITICAL
        return number, spare, queued.reservation, team, earmark_owner, tuple(allowed)

    def allowed_kinds(self, queued: QueuedWorkload) -> list[int]:
        """Return the kinds of units that the workload may use according to quota, caps and reserved headroom.

        Kinds on which it would not even fit in an empty pool are left out.
        """
        within_limits = kinds_within_limits(self.state, queued)
        if not within_limits:
            return []
        possible = self._possible_kinds(queued)
        return [
            kind for kind in possible if kind in within_limits and leaves_headroom(self.state, queued, kind)
        ]

    def _possible_kinds(self, queued: QueuedWorkload) -> list[int]:
        """Return the kinds of units on which the workload would fit in an empty pool."""
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
        """Return the reason if the workload must leave slots to other work of its team or user.

        The slots are headroom that is reserved for work ahead in the queue, or a part of the guarantee that
        an upcoming reservation of the team needs. Return None if the workload may use at least one kind of
        units in spite of this.
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
        """Return the reason if quota or the user cap excludes every kind of units, otherwise None.

        The numbers of the reason are those of the workload's preferred kind.
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
        """Return the reason if too few units are free, otherwise None.

        Free units that are promised to others count as free here. For work inside a reservation, the result
        is never None.
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
        """Return the reason if too few of the suitable hosts take new work.

        The reason is maintenance, full disks, or another state of the hosts.
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
        """Return the reason for maintenance.

        Its numbers are the earliest start and the earliest end of the maintenance windows that are in
        progress.
        """
        state = self.state
        current = [(start, end) for _, start, end in state.maintenance if start <= state.now < end]
        return ReasonCode.HELD_FOR_MAINTENANCE, reason_numbers(
            end=min(end for _, end in current), start=min(start for start, _ in current)
        )

    def _other_closed_hosts(self, queued: QueuedWorkload) -> Reason:
        """Return the reason for hosts that are closed for other causes than maintenance or full disks.

        Its numbers are the number of closed hosts in the pool, the codes of their states, and the number of
        unhealthy units.
        """
        state = self.state
        codes = sorted({h.closed_code for h in state.hosts if not h.schedulable and h.closed_code})
        closed = sum(not h.schedulable for h in state.hosts)
        unhealthy = sum(not u.healthy for u in state.units)
        weak = sum(h.closed_code == ReasonCode.ISOLATION_TOO_WEAK for h in state.hosts)
        without_users = sum(h.closed_code == ReasonCode.PERSON_USERS_MISSING for h in state.hosts)
        causes = {"too_weak": weak, "no_person_users": without_users}
        return ReasonCode.HOST_CLOSED, reason_numbers(
            codes=codes,
            hosts=closed,
            need=queued.ask.total_units,
            unwell=unhealthy,
            **{name: count for name, count in causes.items() if count},
        )

    @cached_property
    def _healthy_or_disk_full(self) -> Mask:
        """Return the mask of units that take new work, or that are closed only because of a full disk."""
        state = self.state
        schedulable = np.array(
            [h.schedulable or h.closed_code == ReasonCode.HOST_FULL for h in state.hosts], dtype=np.bool_
        )
        return intersection(state.hardware.healthy, schedulable[state.host_of])

    def _promised_to_others(self, queued: QueuedWorkload, kinds: list[int]) -> Reason:
        """Return the reason why the workload may not use enough of the free units.

        It is the first of: spare capacity for critical work, units held for work ahead in the queue,
        maintenance, a reservation.
        """
        state, need = self.state, queued.ask.total_units
        # The available units include units that evictions freed for this workload.
        available = availability.available_units(state, queued, availability.ALL_PROMISES)
        candidates = intersection(state.free if available is None else available, state.units_of_kinds(kinds))
        free = int(candidates.sum())
        # If the workload fits with all promises kept, only the spare capacity prevents its start.
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
