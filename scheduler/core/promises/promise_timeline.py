"""What is promised when: reservations, maintenance, and work that may not be evicted, on one timeline per unit.

A reservation holds no particular unit until its start. To know that it can be kept, each one that is not bound yet is
given *witness* units, first promised first served, on which nothing that must stay overlaps its window. New work is
kept off witness units unless it can be gone in time, so a promise once made stays possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scheduler.core.arrays import Ints, Mask, intersection
from scheduler.core.fit.cheapest_units import cheapest_units
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.running_work import NO_HOLDER, PREEMPTIBLE, STARTED, STOP_BY, STOPPING, UNTIL
from scheduler.core.model.snapshot import PoolKind, ReservationInfo
from scheduler.core.reasons import Reason, ReasonCode, reason_numbers


def full_disks_cleared_at(board: PoolState) -> int:
    """From when on a promise may count on hosts whose disks are full now. Notice and grace come on top, so that who is on other
    units can still be told in time where a disk stays full."""
    return board.now + eviction_lead_seconds(board) + DISK_CLEANUP_SECONDS


def units_in_service(board: PoolState, start: int) -> Mask:
    """The units that a promise from ``start`` on may count on: well, on hosts that take new work, or will when their disks have
    room."""
    if start < full_disks_cleared_at(board) or not has_full_disks(board):
        return board.in_service
    ground = board.ground
    if "open but for full disks" not in ground.derived:
        open_ = np.array(
            [h.accepts or h.closed_code == ReasonCode.HOST_FULL for h in ground.hosts], dtype=np.bool_
        )
        ground.derived["open but for full disks"] = intersection(ground.well, open_[ground.host_of])
    mask: Mask = ground.derived["open but for full disks"]
    return mask


def has_full_disks(board: PoolState) -> bool:
    """Is a host closed to new work by its disk?"""
    memo = board.ground.derived
    if "has full disks" not in memo:
        memo["has full disks"] = any(host.closed_code == ReasonCode.HOST_FULL for host in board.hosts)
    return bool(memo["has full disks"])


def earliest_release_times(board: PoolState) -> Ints:
    """Until when each running workload holds its units: its limit, or for preemptible work the soonest it could be
    gone."""
    table, now = board.table, board.now
    limit = np.maximum(table[UNTIL], now + 1)
    soonest = np.maximum(now, table[STARTED] + board.policy.minimum_runtime_seconds) + eviction_lead_seconds(
        board
    )
    stays = np.where(table[PREEMPTIBLE] == 1, np.minimum(limit, soonest), limit)
    told = np.where(table[STOP_BY] < FAR_FUTURE, table[STOP_BY], now + board.policy.grace_seconds)
    until: Ints = np.where(table[STOPPING] == 1, told, stays)
    return until


@dataclass(frozen=True, slots=True)
class PromisedInterval:
    """A unit is taken for ``[start, end)``; ``team`` is whose promise it is, None for maintenance."""

    unit: int
    start: int
    end: int
    team: int | None
    reservation: int | None


@dataclass(frozen=True, slots=True)
class ReservationRequester:
    """Who asks for a reservation: ``user`` None where nobody's cap counts. Who ``may_exceed`` was allowed by an operator to take
    what others are guaranteed, and more than the limits on borrowing and on one person; a closed budget may end borrowing until it
    opens again: ``borrows_again_from`` then, None where it may borrow now."""

    team: int
    user: int | None = None
    may_exceed: bool = False
    borrows_again_from: int | None = None

    def may_borrow_at(self, moment: int) -> bool:
        return self.borrows_again_from is None or moment >= self.borrows_again_from


class PromiseTimeline:
    """Every stretch in which a unit can't be promised to a newcomer, and the witness units of each reservation."""

    def __init__(self, board: PoolState, exclude: int | None = None) -> None:
        self.board, self.exclude = board, exclude
        self.promised_intervals: list[
            PromisedInterval
        ] = []  # maintenance and reservations; running work is in ``held_until``
        self.held_until = self._held_until(exclude)
        self.tentative_units: dict[
            int, list[int]
        ] = {}  # reservation -> units; absent when it can't be kept at present
        self._tentative_slots: dict[tuple[int, str], int] = {}  # slots of a model among these
        self._promised_slots_cache: dict[tuple[str, int], dict[int, int]] = {}
        self._add_maintenance()
        self._add_reservations(exclude)

    def _add_maintenance(self) -> None:
        board = self.board
        for host, start, end in board.maintenance:
            for unit in range(int(board.first_unit[host]), int(board.first_unit[host + 1])):
                self.promised_intervals.append(PromisedInterval(unit, start, end, None, None))

    def _held_until(self, exclude: int | None) -> Ints:
        """Per unit: until when running work must stay on it, 0 where there is none. Work inside a reservation does not
        count: its reservation is the promise."""
        board = self.board
        until: Ints = np.zeros(len(board.units), dtype=np.int64)
        held = np.flatnonzero(board.holder >= 0)
        holder = board.holder[held]
        counts = (board.run_reservation == 0) | (board.run_reservation == (exclude or 0))
        held, holder = held[counts[holder]], holder[counts[holder]]
        until[held] = earliest_release_times(board)[holder]
        return until

    def all_promised_intervals(self) -> list[PromisedInterval]:
        """Everything promised, running work and all."""
        board = self.board
        held = np.flatnonzero(self.held_until)
        teams = board.run_team[board.holder[held]]
        return self.promised_intervals + [
            PromisedInterval(unit, 0, end, team, None)
            for unit, end, team in zip(
                held.tolist(), self.held_until[held].tolist(), teams.tolist(), strict=True
            )
        ]

    def _add_reservations(self, exclude: int | None) -> None:
        """Bound ones where they are; the others in the order they were promised, or failing that a denser one."""
        mine = [r for r in self.board.reservations if r.id != exclude]
        for reservation in mine:
            if reservation.units:
                for unit in (
                    self.board.unit_index[u] for u in reservation.units if u in self.board.unit_index
                ):
                    start = min(reservation.start, self.board.now)
                    self.promised_intervals.append(
                        PromisedInterval(unit, start, reservation.end, reservation.team, reservation.id)
                    )
        self._unit = np.array([s.unit for s in self.promised_intervals], dtype=np.int64)
        self._start = np.array([s.start for s in self.promised_intervals], dtype=np.int64)
        self._end = np.array([s.end for s in self.promised_intervals], dtype=np.int64)
        self._team = np.array(
            [NO_HOLDER if s.team is None else s.team for s in self.promised_intervals], dtype=np.int64
        )
        unbound = [r for r in mine if not r.units]
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
        self.tentative_units, self._tentative_slots = best or {}, {}
        for reservation in unbound:
            for unit in self.tentative_units.get(reservation.id, ()):
                self.promised_intervals.append(
                    PromisedInterval(
                        unit, reservation.start, reservation.end, reservation.team, reservation.id
                    )
                )

    def _assign(self, order: list[ReservationInfo]) -> None:
        """Give each reservation its witness units in turn, as far as there are any."""
        self.tentative_units, self._tentative_slots = {}, {}
        soonest = self.board.now + eviction_lead_seconds(self.board)
        for reservation in order:
            # When its start is nearer than notice and grace, what could be free by then is the best there is.
            start = min(max(reservation.start, soonest), reservation.end - 1)
            units = self.find(reservation, start)
            if units is not None:
                self.tentative_units[reservation.id] = units

    def open_units(self, start: int, end: int) -> Mask:
        """Units that nothing promised touches in ``[start, end)``, on hosts that are open, by then at the latest."""
        mask = intersection(units_in_service(self.board, start), self.held_until <= start)
        mask[self._unit[(self._start < end) & (self._end > start)]] = False
        for promised, units in self.tentative_units.items():
            reservation = self.board.reservation_by_id[promised]
            if reservation.start < end and reservation.end > start:
                mask[units] = False
        return mask

    def find(self, reservation: ReservationInfo, start: int) -> list[int] | None:
        """Units that could serve a reservation for all of ``[start, its end)``, those whose present holders lose least first."""
        mask = self.open_units(start, reservation.end)
        cost = self.cost(start, reservation.id)
        for kind in self._kinds_to_bind(reservation, start):
            units = cheapest_units(self.board, reservation.ask, kind, mask, cost)
            if units is not None:
                return units
        return None

    def _kinds_to_bind(self, reservation: ReservationInfo, start: int) -> Iterator[int]:
        """The kinds that a reservation may be given, each looked at only when those before would not do. Where it accepts several
        models: those that leave others what they are guaranteed, as when it was asked for. If by now none does, those of which its
        team is guaranteed as much, or else any: what was promised is kept."""
        board = self.board
        kinds = board.kinds_for(reservation.ask)
        one_model = len({board.kinds[kind].model for kind in kinds}) < 2
        if one_model or reservation.may_exceed_guarantee or board.pool.kind is PoolKind.STATIC:
            yield from kinds
            return
        passing, own = False, []
        for kind in kinds:
            model, need = board.kinds[kind].model, board.slots_needed(reservation.ask, kind)
            if not quota_violation(
                self, ReservationRequester(reservation.team), model, need, start, reservation.end
            )[0]:
                passing = True
                yield kind
            if need <= board.ledger.guarantee_at(reservation.team, model, start):
                own.append(kind)
        if not passing:
            yield from own or kinds

    def promised(self, model: str, moment: int) -> dict[int, int]:
        """By team: slots of a model that are promised to it at a moment, by running work that must stay until then and all."""
        taken = dict(self._held_or_bound(model, moment))
        which = _of_model(self.board, model)
        for promise, units in self.tentative_units.items():
            row = self.board.reservation_by_id[promise]
            if row.start <= moment < row.end:
                if (promise, model) not in self._tentative_slots:
                    self._tentative_slots[promise, model] = int(
                        self.board.slots[[u for u in units if which[u]]].sum()
                    )
                taken[row.team] = taken.get(row.team, 0) + self._tentative_slots[promise, model]
        return taken

    def _held_or_bound(self, model: str, moment: int) -> dict[int, int]:
        """The same without those that have only a witness: asked for again by each of them, of the same few moments."""
        if (model, moment) not in self._promised_slots_cache:
            board, which = self.board, _of_model(self.board, model)
            held = np.flatnonzero((self.held_until > moment) & which)
            bound = np.flatnonzero((self._team != NO_HOLDER) & (self._start <= moment) & (moment < self._end))
            bound = bound[which[self._unit[bound]]]
            teams = np.concatenate((board.run_team[board.holder[held]], self._team[bound]))
            slots = board.slots[np.concatenate((held, self._unit[bound]))]
            holders, places = np.unique(teams, return_inverse=True)
            sums = np.bincount(places, weights=slots, minlength=len(holders))
            self._promised_slots_cache[model, moment] = {
                int(team): int(sum_) for team, sum_ in zip(holders, sums, strict=True)
            }
        return self._promised_slots_cache[model, moment]

    def promise_starts_within(self, start: int, end: int) -> set[int]:
        """The moments inside a window at which somebody's promise begins: only then there may be more of them than before."""
        fixed = self._start[(self._start > start) & (self._start < end)].tolist()
        witnessed = (self.board.reservation_by_id[promise].start for promise in self.tentative_units)
        return {*fixed, *(at for at in witnessed if start < at < end)}

    def cost(self, start: int, reservation: int | None) -> Ints:
        """What taking each unit would cost: long before the start a free unit is better left for work that must stay;
        when the start is near, what it costs that somebody has to go, as in ``preempt``."""
        board = self.board
        near = start - eviction_lead_seconds(board) <= board.now
        cost = np.zeros(len(board.units), dtype=np.int64)
        if not near:
            cost[board.free] = 1
            return cost
        table = board.table
        price = np.where((table[STOPPING] == 1) | (table[UNTIL] <= start), 1, 2 + board.cost_per_slot)
        mine = board.reservation_by_id.get(reservation or 0)
        for i in np.flatnonzero(table[STOPPING]).tolist():
            if mine is not None and board.running[i].evicted_for_reservation == mine.id:
                price[i] = int(
                    mine.start <= board.now
                )  # once it has begun, what is free need not be waited for
        held = np.flatnonzero(board.holder >= 0)
        cost[held] = price[board.holder[held]]
        cost[board.kept != 0] += 1
        return cost


def quota_violation(
    promises: PromiseTimeline, whose: ReservationRequester, model: str, need: int, start: int, end: int
) -> Reason:
    """Why a team may not be promised ``need`` slots of a model for a window without touching what others are guaranteed, or
    beyond what it may borrow; an empty code when it may.

    At every moment of the window: what the team would hold, plus for each other team the larger of its guarantee and
    what it is promised already, has to fit. Within its own guarantee a team is always within its rights. A guarantee whose
    GPU-hours are used up is in force again from the next period on, and who may not borrow now does so from when its budget opens.
    """
    board, ledger, team = promises.board, promises.board.ledger, whose.team
    if (team, model) not in ledger.guaranteed:
        return ReasonCode.NO_QUOTA, reason_numbers(models=[model], pool=board.pool.id, team=team)
    capacity = int(board.slots[units_in_service(board, start) & _of_model(board, model)].sum())
    returns = (quota.used_up_until or 0 for (_, m), quota in ledger.used_up.items() if m == model)
    teams = {t for (t, m) in ledger.guaranteed if m == model}
    for moment in sorted(
        {start, *promises.promise_starts_within(start, end), *(at for at in returns if start < at < end)}
    ):
        promised = promises.promised(model, moment)
        guaranteed, mine = ledger.guarantee_at(team, model, moment), promised.get(team, 0)
        others = (teams | promised.keys()) - {team}
        rest = sum(max(ledger.guarantee_at(t, model, moment), promised.get(t, 0)) for t in others)
        if mine + need > guaranteed and mine + need + rest > capacity:
            left = max(0, guaranteed - mine, capacity - rest - mine)
            return ReasonCode.WINDOW_EATS_GUARANTEES, reason_numbers(
                at=moment,
                capacity=capacity,
                guaranteed=guaranteed,
                left=left,
                model=model,
                need=need,
                others=rest,
            )
        may_borrow = whose.may_borrow_at(moment)
        limit = ledger.max_slots_at(team, model, moment) if may_borrow else guaranteed
        if mine + need > limit:
            return ReasonCode.OVER_QUOTA, reason_numbers(
                at=moment,
                guaranteed=guaranteed,
                held=mine,
                limit=limit,
                may_borrow=may_borrow,
                model=model,
                need=need,
                preemptible=False,
            )
    return "", ()


def _of_model(board: PoolState, model: str) -> Mask:
    memo = board.ground.derived
    if ("of model", model) not in memo:
        memo["of model", model] = np.array([unit.model == model for unit in board.units], dtype=np.bool_)
    mask: Mask = memo["of model", model]
    return mask


# A full disk is emptied in minutes: who it is promised to later than this, beyond notice and grace, need not fear it.
DISK_CLEANUP_SECONDS = 3600
