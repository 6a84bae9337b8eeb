"""Compute for which times each unit is promised: to a reservation, to maintenance, or to running work.

Units of running work are promised until the work has certainly released them. This is its deadline or, for
preemptible work, the earliest end of an eviction if that is sooner. A reservation is bound when it gets
units, which happens at its start. Before its start it has no fixed units. To check that every reservation can
be kept, each unbound reservation gets *tentative* units here. These units have no other promise in the
reservation's window. An eviction that begins now takes some time. Promises that end within this time are
ignored. New work is placed on tentative units only if it ends or can be evicted before the reservation
starts.

A bound reservation also gets tentative units if maintenance of its hosts begins before the reservation ends.
It needs them from the beginning of the maintenance on. If there are no such units, the reservation keeps its
present units.

A team's guarantee is the number of slots that it can always have. The slots that it holds above its guarantee
are borrowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.fit.availability import units_of_kind_in
from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.running_work import NO_HOLDER, PREEMPTIBLE, STARTED, STOP_BY, STOPPING, UNTIL
from scheduler.core.model.snapshot import PoolKind, ReservationInfo
from scheduler.core.promises.guaranteed_work import GuaranteedWork
from scheduler.core.reasons import Reason, ReasonCode, reason_numbers

# A full disk is usually cleared within minutes. Therefore the planner does promise units of a host with a
# full disk, but not for the near future. A promise must begin at least this many seconds plus notice and
# grace (the duration of an eviction) after now.
DISK_CLEANUP_SECONDS = 3600


def full_disks_cleared_at(state: PoolState) -> int:
    """Return the time from which units of hosts with full disks may be promised again.

    The time includes notice and grace. If a disk stays full, work on other units can then still be evicted
    before the promise begins.
    """
    return state.now + eviction_lead_seconds(state) + DISK_CLEANUP_SECONDS


def units_in_service(state: PoolState, start: int) -> Mask:
    """Return the mask of units that may be promised from ``start`` on.

    They are the healthy units on hosts that take new work. If ``start`` is late enough, units of hosts that
    are closed only because of a full disk are included.
    """
    if start < full_disks_cleared_at(state) or not has_full_disks(state):
        return state.in_service
    hardware = state.hardware
    if "in service if disks had space" not in hardware.derived:
        schedulable = np.array(
            [h.schedulable or h.closed_code == ReasonCode.HOST_FULL for h in hardware.hosts], dtype=np.bool_
        )
        hardware.derived["in service if disks had space"] = intersection(
            hardware.healthy, schedulable[hardware.host_of]
        )
    mask: Mask = hardware.derived["in service if disks had space"]
    return mask


def has_full_disks(state: PoolState) -> bool:
    """Return True if some host takes no new work because its disk is full."""
    derived = state.hardware.derived
    if "has full disks" not in derived:
        derived["has full disks"] = any(host.closed_code == ReasonCode.HOST_FULL for host in state.hosts)
    return bool(derived["has full disks"])


def earliest_release_times(state: PoolState) -> Ints:
    """Return, for each running workload, the time at which it has certainly released its units.

    For non-preemptible work this is its deadline. For preemptible work it is the earliest time at which an
    eviction could be complete, or the deadline if that is sooner. For stopping work it is the time by which
    the work must have stopped.
    """
    table, now = state.table, state.now
    limit = np.maximum(table[UNTIL], now + 1)
    soonest = np.maximum(now, table[STARTED] + state.policy.minimum_runtime_seconds) + eviction_lead_seconds(
        state
    )
    stays = np.where(table[PREEMPTIBLE] == 1, np.minimum(limit, soonest), limit)
    stopping_until = np.where(table[STOP_BY] < FAR_FUTURE, table[STOP_BY], now + state.policy.grace_seconds)
    until: Ints = np.where(table[STOPPING] == 1, stopping_until, stays)
    return until


def relocation_of(state: PoolState, reservation: ReservationInfo) -> ReservationInfo | None:
    """Return the part of a bound reservation that needs other units because of maintenance.

    The part begins with the first maintenance of the reservation's hosts, or now if this maintenance has
    begun. The part is returned as a reservation without units. The result is None if the reservation has no
    units, or if its hosts have no maintenance before its end.
    """
    if not (reservation.units and state.maintenance):
        return None
    hosts = {int(state.host_of[state.unit_index[u]]) for u in reservation.units if u in state.unit_index}
    starts = [
        max(start, state.now)
        for host, start, end in state.maintenance
        if host in hosts and start < reservation.end and end > state.now
    ]
    return replace(reservation, start=min(starts), units=()) if starts else None


def maintained_units(state: PoolState, start: int, end: int) -> Mask:
    """Return the mask of units whose hosts are in maintenance at some time in ``[start, end)``."""
    mask: Mask = np.zeros(len(state.units), dtype=np.bool_)
    for host, from_, until in state.maintenance:
        if from_ < end and until > start:
            mask[state.first_unit[host] : state.first_unit[host + 1]] = True
    return mask


@dataclass(frozen=True, slots=True)
class PromisedInterval:
    """One unit that is promised from ``start`` until just before ``end``.

    ``team`` is None for maintenance. ``reservation`` is None for maintenance and for running work.
    """

    unit: int
    start: int
    end: int
    team: int | None
    reservation: int | None


@dataclass(frozen=True, slots=True)
class ReservationRequester:
    """The team and user that request a reservation.

    ``user`` is None if the cap on one user does not apply. ``may_exceed`` is True if an operator allowed the
    reservation to use the guarantees of other teams and to exceed the borrow limit and the user cap. If the
    team may not borrow now because its budget is used up, ``borrows_again_from`` is the time from which it
    may borrow. It is None if the team may borrow now.
    """

    team: int
    user: int | None = None
    may_exceed: bool = False
    borrows_again_from: int | None = None

    def may_borrow_at(self, time: int) -> bool:
        """Return True if the team may borrow at ``time``."""
        return self.borrows_again_from is None or time >= self.borrows_again_from


class PromiseTimeline:
    """All intervals in which units are promised, and the tentative units of each reservation.

    The reservation ``exclude`` is treated as if it did not exist, for example because it is to be moved.
    """

    def __init__(self, state: PoolState, exclude: int | None = None) -> None:
        self.state, self.exclude = state, exclude
        # The intervals of maintenance and reservations. Running work is in ``held_until``.
        self.promised_intervals: list[PromisedInterval] = []
        self.held_until = self._held_until(exclude)
        # By id: the reservations without units, and the parts of bound reservations that have to be moved
        # (see ``relocation_of``).
        self.to_be_bound: dict[int, ReservationInfo] = {}
        # By reservation id: its tentative units. A reservation that cannot be kept at present has no entry.
        self.tentative_units: dict[int, list[int]] = {}
        # By (reservation id, model): the slots of the tentative units of this model.
        self._tentative_slots: dict[tuple[int, str], int] = {}
        self._promised_slots_cache: dict[tuple[str, int], dict[int, int]] = {}
        self._add_maintenance()
        self._add_reservations(exclude)

    def _add_maintenance(self) -> None:
        state = self.state
        for host, start, end in state.maintenance:
            for unit in range(int(state.first_unit[host]), int(state.first_unit[host + 1])):
                self.promised_intervals.append(PromisedInterval(unit, start, end, None, None))

    def _held_until(self, exclude: int | None) -> Ints:
        """Return, for each unit, the time until which running work holds it; 0 if no work holds it.

        See ``earliest_release_times`` for this time. Work inside a reservation does not count, because the
        reservation itself is the promise. Work inside the reservation ``exclude`` counts.
        """
        state = self.state
        until: Ints = np.zeros(len(state.units), dtype=np.int64)
        held = np.flatnonzero(state.holder >= 0)
        holder = state.holder[held]
        counts = (state.run_reservation == 0) | (state.run_reservation == (exclude or 0))
        held, holder = held[counts[holder]], holder[counts[holder]]
        until[held] = earliest_release_times(state)[holder]
        return until

    def all_promised_intervals(self) -> list[PromisedInterval]:
        """Return all promised intervals, including those of running work."""
        state = self.state
        held = np.flatnonzero(self.held_until)
        teams = state.run_team[state.holder[held]]
        return self.promised_intervals + [
            PromisedInterval(unit, 0, end, team, None)
            for unit, end, team in zip(
                held.tolist(), self.held_until[held].tolist(), teams.tolist(), strict=True
            )
        ]

    def _add_reservations(self, exclude: int | None) -> None:
        """Add the intervals of bound reservations, then choose tentative units for all other reservations.

        A bound reservation that finds no other units for the time of a maintenance keeps its present units.
        Its units are then promised to its end, and the tentative units of the others are chosen again.
        """
        reservations = [r for r in self.state.reservations if r.id != exclude]
        maintenance = self.promised_intervals
        staying: set[int] = set()
        while True:
            self.promised_intervals, self._promised_slots_cache = list(maintenance), {}
            self._add_bound(reservations, staying)
            self._copy_intervals_to_arrays()
            unbound = [r for r in self.to_be_bound.values() if r.id not in staying]
            self.tentative_units, self._tentative_slots = self._most_that_can_be_kept(unbound), {}
            without_other_units = {
                r.id
                for r in reservations
                if r.units and r.id in self.to_be_bound and r.id not in self.tentative_units
            }
            if without_other_units <= staying:
                break
            staying |= without_other_units
        for reservation in unbound:
            for unit in self.tentative_units.get(reservation.id, ()):
                self.promised_intervals.append(
                    PromisedInterval(
                        unit, reservation.start, reservation.end, reservation.team, reservation.id
                    )
                )

    def _add_bound(self, reservations: list[ReservationInfo], staying: set[int]) -> None:
        """Add the intervals in which bound reservations have their units.

        If maintenance begins before a reservation's end, the interval ends when the maintenance begins. The
        rest of the reservation goes into ``to_be_bound``, like the reservations without units. The intervals
        of ``staying`` reservations last to their ends.
        """
        for reservation in reservations:
            relocation = relocation_of(self.state, reservation)
            if relocation is not None or not reservation.units:
                self.to_be_bound[reservation.id] = relocation or reservation
            start = min(reservation.start, self.state.now)
            if reservation.id in staying:
                relocation = None
            end = reservation.end if relocation is None else relocation.start
            for unit in (self.state.unit_index[u] for u in reservation.units if u in self.state.unit_index):
                self.promised_intervals.append(
                    PromisedInterval(unit, start, end, reservation.team, reservation.id)
                )

    def _copy_intervals_to_arrays(self) -> None:
        """Copy the columns of ``promised_intervals`` to arrays, which are faster to search."""
        self._unit = np.array([s.unit for s in self.promised_intervals], dtype=np.int64)
        self._start = np.array([s.start for s in self.promised_intervals], dtype=np.int64)
        self._end = np.array([s.end for s in self.promised_intervals], dtype=np.int64)
        self._team = np.array(
            [NO_HOLDER if s.team is None else s.team for s in self.promised_intervals], dtype=np.int64
        )

    def _most_that_can_be_kept(self, unbound: list[ReservationInfo]) -> dict[int, list[int]]:
        """Try three orders. Return the tentative units of the order that keeps the most reservations.

        Units are assigned to one reservation after another, so the order matters. The orders are: by
        confirmation, by start, and by size (the largest first). If all reservations can be kept with an
        order, the later orders are not tried.
        """
        best: dict[int, list[int]] | None = None
        for order in (
            unbound,
            sorted(unbound, key=lambda r: (r.start, r.id)),
            sorted(unbound, key=lambda r: (-r.ask.total_units, r.start, r.id)),
        ):
            self._assign(order)
            if best is None or len(self.tentative_units) > len(best):
                best = self.tentative_units
            if len(best) == len(unbound):
                break
        return best or {}

    def _assign(self, order: list[ReservationInfo]) -> None:
        """Choose tentative units for one reservation after another.

        A reservation for which no units are left gets none.
        """
        self.tentative_units, self._tentative_slots = {}, {}
        soonest = self.state.now + eviction_lead_seconds(self.state)
        for reservation in order:
            # An eviction that begins now frees units at ``soonest``. If the reservation starts earlier, units
            # that are free at ``soonest`` are the best possible choice.
            start = min(max(reservation.start, soonest), reservation.end - 1)
            units = self.find(reservation, start)
            if units is not None:
                self.tentative_units[reservation.id] = units

    def open_units(self, start: int, end: int) -> Mask:
        """Return the mask of units in service that have no promise in ``[start, end)``.

        For "in service" see ``units_in_service``.
        """
        mask = intersection(units_in_service(self.state, start), self.held_until <= start)
        mask[self._unit[(self._start < end) & (self._end > start)]] = False
        for promised, units in self.tentative_units.items():
            reservation = self.to_be_bound[promised]
            if reservation.start < end and reservation.end > start:
                mask[units] = False
        return mask

    def find(self, reservation: ReservationInfo, start: int) -> list[int] | None:
        """Return units for a reservation from ``start`` to its end, or None if there are not enough.

        The units with the lowest ``cost`` are preferred. If no eviction is due yet, these are units that work
        holds now. If evictions are due now, these are the units on which evictions cost least, and units of
        borrowed work come before units of guaranteed work.
        """
        mask = self.open_units(start, reservation.end)
        cost = self.cost(start, reservation.id)
        for kind in self._kinds_to_bind(reservation, start):
            units = cheapest_units(self.state, reservation.ask, kind, mask, cost)
            if units is not None:
                is_near = start - eviction_lead_seconds(self.state) <= self.state.now
                return self._borrowers_first(reservation, kind, units, mask, cost) if is_near else units
        return None

    def _borrowers_first(
        self, reservation: ReservationInfo, kind: int, cheapest: list[int], mask: Mask, cost: Ints
    ) -> list[int]:
        """Return the units on which evictions take the fewest guaranteed slots from teams.

        Among equal choices, return the cheapest. Evictions of guaranteed work are avoided because such work
        may in turn evict borrowed work of other teams. More work would then be evicted than necessary.
        """
        guaranteed_work = GuaranteedWork(self.state, reservation, kind)
        choices = [cheapest]
        if guaranteed_work.slots_lost(cheapest):
            for guaranteed in guaranteed_work.unit_costs(units_of_kind_in(self.state, kind, mask)):
                units = cheapest_units(self.state, reservation.ask, kind, mask, cost + guaranteed)
                choices += [units] if units is not None else []
        return min(choices, key=lambda units: (guaranteed_work.slots_lost(units), int(cost[units].sum())))

    def _kinds_to_bind(self, reservation: ReservationInfo, start: int) -> Iterator[int]:
        """Yield the kinds of units that a reservation may get, in the order in which they are tried.

        Yield every kind that serves the reservation if it accepts only one model, may exceed guarantees, or
        is in a static pool. Otherwise yield the first of these lists that is not empty:

        1. kinds that the reservation can take without breaking the guarantees of other teams,
        2. kinds of which its own team is guaranteed enough slots,
        3. all kinds, because a confirmed reservation must be kept.
        """
        state = self.state
        kinds = state.kinds_for(reservation.ask)
        has_one_model = len({state.kinds[kind].model for kind in kinds}) < 2
        if has_one_model or reservation.may_exceed_guarantee or state.pool.kind is PoolKind.STATIC:
            yield from kinds
            return
        any_passes, own = False, []
        for kind in kinds:
            model, need = state.kinds[kind].model, state.slots_needed(reservation.ask, kind)
            if not quota_violation(
                self, ReservationRequester(reservation.team), model, need, start, reservation.end
            )[0]:
                any_passes = True
                yield kind
            if need <= state.ledger.guaranteed_slots_at(reservation.team, model, start):
                own.append(kind)
        if not any_passes:
            yield from own or kinds

    def promised(self, model: str, time: int) -> dict[int, int]:
        """Return, for each team, the slots of a model that are promised to it at ``time``.

        Slots of running work that still holds its units at ``time`` are included.
        """
        promised_slots = dict(self._held_or_bound(model, time))
        of_model = _of_model(self.state, model)
        for promise, units in self.tentative_units.items():
            row = self.to_be_bound[promise]
            if row.start <= time < row.end:
                if (promise, model) not in self._tentative_slots:
                    self._tentative_slots[promise, model] = int(
                        self.state.slots[[u for u in units if of_model[u]]].sum()
                    )
                promised_slots[row.team] = (
                    promised_slots.get(row.team, 0) + self._tentative_slots[promise, model]
                )
        return promised_slots

    def _held_or_bound(self, model: str, time: int) -> dict[int, int]:
        """Return, for each team, the slots of its bound reservations and running work at ``time``.

        The result is cached, because ``promised`` is called again and again for the same few times.
        """
        if (model, time) not in self._promised_slots_cache:
            state, of_model = self.state, _of_model(self.state, model)
            held = np.flatnonzero((self.held_until > time) & of_model)
            bound = np.flatnonzero((self._team != NO_HOLDER) & (self._start <= time) & (time < self._end))
            bound = bound[of_model[self._unit[bound]]]
            teams = np.concatenate((state.run_team[state.holder[held]], self._team[bound]))
            slots = state.slots[np.concatenate((held, self._unit[bound]))]
            holders, places = np.unique(teams, return_inverse=True)
            sums = np.bincount(places, weights=slots, minlength=len(holders))
            self._promised_slots_cache[model, time] = {
                int(team): int(sum_) for team, sum_ in zip(holders, sums, strict=True)
            }
        return self._promised_slots_cache[model, time]

    def promise_starts_within(self, start: int, end: int) -> set[int]:
        """Return the times between ``start`` and ``end`` at which a promise begins.

        Only at these times can the number of promised slots increase.
        """
        promised_starts = self._start[(self._start > start) & (self._start < end)].tolist()
        tentative_starts = (self.to_be_bound[promise].start for promise in self.tentative_units)
        return {*promised_starts, *(at for at in tentative_starts if start < at < end)}

    def cost(self, start: int, reservation: int | None) -> Ints:
        """Return, for each unit, the cost of giving it to a reservation that starts at ``start``.

        If no eviction is due yet, a free unit costs 1, and a unit that work holds costs 0. So free units are
        left for work that cannot be evicted. If evictions are due now, the cost is the cost of evicting the
        workload that holds the unit, and a free unit costs nothing.
        """
        state = self.state
        near = start - eviction_lead_seconds(state) <= state.now
        cost = np.zeros(len(state.units), dtype=np.int64)
        if not near:
            cost[state.free] = 1
            return cost
        table = state.table
        price = np.where((table[STOPPING] == 1) | (table[UNTIL] <= start), 1, 2 + state.cost_per_slot)
        own = state.reservation_by_id.get(reservation or 0)
        for i in np.flatnonzero(table[STOPPING]).tolist():
            if own is not None and state.running[i].evicted_for_reservation == own.id:
                # Units that are being freed for this reservation cost nothing before its start. After its
                # start, free units are better, because the reservation can get them at once.
                price[i] = int(own.start <= state.now)
        held = np.flatnonzero(state.holder >= 0)
        cost[held] = price[state.holder[held]]
        cost[state.earmarked_for != 0] += 1
        return cost


def quota_violation(
    promises: PromiseTimeline, requester: ReservationRequester, model: str, need: int, start: int, end: int
) -> Reason:
    """Return the reason why a team may not be promised ``need`` slots of a model for ``[start, end)``.

    The code is "" if the team may be promised the slots. A team without a quota for the model may be promised
    nothing. A team with a quota may always be promised slots within its own guarantee. Slots above it are
    checked at each time of the window:

    - The capacity must be enough for this team and all others. Each other team counts with the larger of its
      guarantee and its promised slots. Example: of 16 GPUs, another team is guaranteed 8 and a third team is
      promised 4. This team may be promised at most 4.
    - The team must stay within its borrow limit. If the budget of the team is used up, the limit is the
      team's guarantee until the budget opens again.

    A guarantee whose GPU-hours are used up counts again from the next period on.
    """
    state, ledger, team = promises.state, promises.state.ledger, requester.team
    if (team, model) not in ledger.guaranteed:
        return ReasonCode.NO_QUOTA, reason_numbers(models=[model], pool=state.pool.id, team=team)
    capacity = int(state.slots[units_in_service(state, start) & _of_model(state, model)].sum())
    resets = (quota.used_up_until or 0 for (_, m), quota in ledger.used_up.items() if m == model)
    teams = {t for (t, m) in ledger.guaranteed if m == model}
    for time in sorted(
        {start, *promises.promise_starts_within(start, end), *(at for at in resets if start < at < end)}
    ):
        promised = promises.promised(model, time)
        guaranteed, own = ledger.guaranteed_slots_at(team, model, time), promised.get(team, 0)
        others = (teams | promised.keys()) - {team}
        needed_by_others = sum(
            max(ledger.guaranteed_slots_at(t, model, time), promised.get(t, 0)) for t in others
        )
        if own + need > guaranteed and own + need + needed_by_others > capacity:
            left = max(0, guaranteed - own, capacity - needed_by_others - own)
            return ReasonCode.WINDOW_EATS_GUARANTEES, reason_numbers(
                at=time,
                capacity=capacity,
                guaranteed=guaranteed,
                left=left,
                model=model,
                need=need,
                others=needed_by_others,
            )
        may_borrow = requester.may_borrow_at(time)
        limit = ledger.max_slots_at(team, model, time) if may_borrow else guaranteed
        if own + need > limit:
            return ReasonCode.OVER_QUOTA, reason_numbers(
                at=time,
                guaranteed=guaranteed,
                held=own,
                limit=limit,
                may_borrow=may_borrow,
                model=model,
                need=need,
                preemptible=False,
            )
    return "", ()


def _of_model(state: PoolState, model: str) -> Mask:
    derived = state.hardware.derived
    if ("of model", model) not in derived:
        derived["of model", model] = np.array([unit.model == model for unit in state.units], dtype=np.bool_)
    mask: Mask = derived["of model", model]
    return mask
