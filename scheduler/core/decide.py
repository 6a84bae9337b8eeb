"""What one waiting workload gets in one cycle: free units, room made for it, or a reason.

Equal asks are judged once: within a cycle units are only taken, never given back, so what did not fit will not fit.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from scheduler.core import fit, preempt
from scheduler.core.board import NEVER, NOBODY, Board
from scheduler.core.fairshare import NO_LIMIT, Room
from scheduler.core.model import Eviction, Numbers, Placement, PoolKind, Priority, Queued, Refusal
from scheduler.core.reasons import Code
from scheduler.core.timeline import (
    Forecast,
    Promises,
    expected_end,
    fits_empty,
    lead_seconds,
    never_fits,
    numbers,
)

HOLDS = 2  # so many of the first that don't fit get particular units set aside
FORECAST_DEPTH = 64  # so many per pool get a start from the forecast; those behind, one from the pool's pace
BLOCKERS_NAMED = 20

Why = tuple[str, Numbers]


class Cycle:
    """The decisions of one pool's cycle, one workload after another."""

    def __init__(self, board: Board, promises: Promises) -> None:
        self.board, self.promises = board, promises
        self.position = 0
        self.holds = 0
        self.forecasts = 0
        self.latest_start = board.now
        self.behind = 0  # slot-seconds waiting behind the last forecast
        self._forecast: Forecast | None = None
        self._no_fit: set[tuple[Hashable, int]] = set()
        self._no_room: set[Hashable] = set()
        self._impossible: dict[Hashable, Why | None] = {}
        self._obstacles: dict[Hashable, Why] = {}
        self._by_end: dict[int, list[int]] = {}

    # -- turned away before the queue ------------------------------------------------------------------------------

    def turned_away(self, queued: Queued) -> bool:
        """Refuse what could not start whatever was free. True when it was refused."""
        found = self._gate(queued)
        if found is None:
            found_why = self._impossibility(queued)
            found = None if found_why is None else (*found_why, None)
        if found is None:
            return False
        code, why, expected = found
        self.board.refusals.append(Refusal(queued.id, code, why, None, expected))
        return True

    def _gate(self, queued: Queued) -> tuple[str, Numbers, int | None] | None:
        now = self.board.now
        if queued.gate:
            return queued.gate, queued.gate_numbers, None
        if queued.not_before > now:
            return Code.BACKING_OFF, numbers(until=queued.not_before), queued.not_before
        if queued.reservation is None:
            return None
        reservation = self.board.reservation_by_id.get(queued.reservation)
        if reservation is None or reservation.end <= now:
            return Code.RESERVATION_OVER, numbers(reservation=queued.reservation), None
        if reservation.start > now:
            why = numbers(reservation=reservation.id, start=reservation.start)
            return Code.RESERVATION_NOT_STARTED, why, reservation.start
        if reservation.team != queued.team or reservation.project != queued.project:
            why = numbers(project=reservation.project, reservation=reservation.id, team=reservation.team)
            return Code.RESERVATION_NOT_YOURS, why, None
        return None

    def _impossibility(self, queued: Queued) -> Why | None:
        policy, ledger = self.board.policy, self.board.ledger
        if queued.max_runtime_seconds > policy.longest_runtime_seconds:
            return Code.OVER_RUNTIME_CAP, numbers(
                asked=queued.max_runtime_seconds, longest=policy.longest_runtime_seconds
            )
        key = (queued.ask, queued.team if self.board.pool.kind is PoolKind.STATIC else 0)
        if key not in self._impossible:
            self._impossible[key] = never_fits(self.board, queued.ask, queued.team)
        if (why := self._impossible[key]) is not None:
            return why
        needs = [self.board.need_slots(queued.ask, kind) for kind in self.board.kinds_for(queued.ask)]
        cap = policy.most_slots_per_workload
        if cap is not None and min(needs) > cap:
            return Code.OVER_WORKLOAD_CAP, numbers(cap=cap, need=min(needs))
        if self.board.pool.kind is PoolKind.DYNAMIC and queued.reservation is None:
            models = {self.board.kinds[kind].model for kind in self.board.kinds_for(queued.ask)}
            if not any((queued.team, model) in ledger.guaranteed for model in models):
                return Code.NO_QUOTA, numbers(models=sorted(models), pool=self.board.pool.id, team=queued.team)
        return None

    # -- a start on free units --------------------------------------------------------------------------------------

    def start_on_free_units(self, queued: Queued) -> bool:
        """Place a workload if it fits on units that are free now. The first kind in its order of preference wins."""
        for kind in self.board.kinds_for(queued.ask):
            room = self._room(queued, kind)
            if not room.allowed or not self._within_caps(queued, kind):
                continue
            units = self._free_units(queued, kind)
            if units is not None and self._leaves_spare(queued, units):
                self._start(queued, kind, units, room)
                return True
        return False

    def _room(self, queued: Queued, kind: int) -> Room:
        need = self.board.need_slots(queued.ask, kind)
        if queued.reservation is not None:  # the reservation is what counts against the quota
            return Room(True, 0, 0, 0, NO_LIMIT)
        model = self.board.kinds[kind].model
        return self.board.ledger.room(queued.team, model, need, queued.may_borrow and queued.preemptible)

    def _within_caps(self, queued: Queued, kind: int) -> bool:
        need, cap = self.board.need_slots(queued.ask, kind), self.board.policy.most_slots_per_workload
        return need <= self.board.ledger.user_cap_left(queued.user) and (cap is None or need <= cap)

    def _leaves_spare(self, queued: Queued, units: list[int]) -> bool:
        """Only critical work, and work inside a reservation, may use what the pool keeps free."""
        board = self.board
        if queued.priority is Priority.CRITICAL or queued.reservation is not None:
            return True
        taken = sum(int(board.slots[u]) for u in units if board.free[u])
        return taken == 0 or board.free_slots - taken >= board.policy.spare_slots

    def _free_units(self, queued: Queued, kind: int) -> list[int] | None:
        shared_fate = queued.reservation is None and queued.id not in self.board.keepers
        key = (queued.ask, kind)
        if shared_fate and key in self._no_fit:
            return None
        if shared_fate and not self.board.is_shared(queued.ask):
            units = fit.choose(self.board, queued.ask, kind)
            if units is None:
                self._no_fit.add(key)
                return None
            if fit.in_time(self.board, queued) is None:
                return units
        available = fit.takeable(self.board, queued)
        return fit.choose(self.board, queued.ask, kind, available)

    def _start(self, queued: Queued, kind: int, units: list[int], room: Room) -> None:
        board = self.board
        until = board.now + queued.max_runtime_seconds
        if queued.reservation is not None:
            until = min(until, board.reservation_by_id[queued.reservation].end)
        why = numbers(
            borrowed=room.borrowed,
            guaranteed=None if room.guaranteed >= NO_LIMIT else room.guaranteed,
            held=room.held,
            model=board.kinds[kind].model,
            units=len(units),
            waited=max(0, board.now - queued.submitted),
        )
        ids = tuple(sorted(board.units[u].id for u in units))
        code = self._start_code(queued, room)
        board.place(queued, units, Placement(queued.id, ids, room.borrowed, code, why, until))
        if self._forecast is not None:
            self._forecast.note_placed(units, queued.predicted_seconds)

    def _start_code(self, queued: Queued, room: Room) -> str:
        if queued.reservation is not None:
            return Code.INSIDE_RESERVATION
        if self.board.pool.kind is PoolKind.STATIC:
            return Code.OWN_STATIC_POOL
        if queued.id in self.board.keepers:
            return Code.OUTRANKED_WITHIN_TEAM if room.borrowed else Code.RECLAIMED_GUARANTEE
        return Code.FREE_BORROWED if room.borrowed else Code.FREE_WITHIN_GUARANTEE

    # -- room made by eviction --------------------------------------------------------------------------------------

    def make_room(self, queued: Queued) -> bool:
        """Tell others to go, or wait for those who were told already. True when its units are on their way."""
        if self._room_is_on_its_way(queued):
            return True
        if not preempt.may_evict_somebody(self.board, queued) or self._soon_free(queued):
            return False
        for kind in self.board.kinds_for(queued.ask):
            key = self._room_key(queued, kind)
            if key in self._no_room or not self._within_workload_cap(queued, kind):
                continue
            made = preempt.make_room(self.board, queued, kind)
            if made is not None and made.victims:
                self._evict_for(queued, kind, made)
                return True
            self._no_room.add(key)
        return False

    def _within_workload_cap(self, queued: Queued, kind: int) -> bool:
        cap = self.board.policy.most_slots_per_workload
        return cap is None or self.board.need_slots(queued.ask, kind) <= cap

    def _room_key(self, queued: Queued, kind: int) -> Hashable:
        """Two asks with the same key find the same room, or none."""
        times = None
        if fit.in_time(self.board, queued) is not None:
            times = queued.max_runtime_seconds, queued.predicted_seconds
        who = queued.team, queued.user, queued.priority, queued.preemptible, queued.may_borrow
        return queued.ask, kind, who, queued.reservation, queued.evicted_by, times, queued.id in self.board.keepers

    def _room_is_on_its_way(self, queued: Queued) -> bool:
        """Those told to go for it hold enough: keep the units and wait."""
        board = self.board
        if queued.id not in board.keepers:
            return False
        leaving = board.leaving_for.get(queued.id, [])
        if not leaving:
            return False
        for kind in board.kinds_for(queued.ask):
            search = preempt.Search(board, queued, kind)
            units = search.units_after(leaving)
            if units is not None:
                self._wait_for(queued, kind, units, leaving)
                return True
        return False

    def _soon_free(self, queued: Queued) -> bool:
        """Units that others are leaving anyway, for nobody in particular, would do: no need to evict anybody."""
        board = self.board
        leaving = board.leaving_freely
        if not leaving:
            return False
        for kind in board.kinds_for(queued.ask):
            if self._room(queued, kind).allowed and preempt.Search(board, queued, kind).fits(leaving):
                return True
        return False

    def _evict_for(self, queued: Queued, kind: int, made: preempt.RoomMade) -> None:
        board = self.board
        for victim in made.victims:
            running = board.running[victim]
            same_team = running.team == queued.team
            why = numbers(
                lost=int(board.lost[victim]),
                team=queued.team,
                units=len(running.units),
                workload=queued.id,
            )
            code = Code.EVICTED_FOR_PRIORITY if same_team else Code.EVICTED_FOR_GUARANTEE
            stop_at = board.now + board.policy.notice_seconds
            self._by_end.pop(running.team, None)
            board.evict(victim, Eviction(running.id, queued.id, None, code, stop_at, why))
        self._wait_for(queued, kind, made.units, made.victims)

    def _wait_for(self, queued: Queued, kind: int, units: list[int], leaving: list[int]) -> None:
        """Refuse it for now, its units earmarked and counted as its team's."""
        board = self.board
        board.keep(queued, units)
        if queued.reservation is None:
            key = (queued.team, board.kinds[kind].model)
            board.ledger.held[key] += board.need_slots(queued.ask, kind)
        if self._forecast is not None:
            self._forecast.note_kept(units)
        known_stops = [board.running[v].stop_by or 0 for v in leaving if board.running[v].stopping]
        start = max([board.now + 1, *known_stops]) if known_stops else board.now + lead_seconds(board)
        self.position += 1
        board.refusals.append(
            Refusal(
                queued.id,
                Code.WAITS_FOR_EVICTION,
                numbers(model=board.kinds[kind].model, need=len(units), workloads=len(leaving)),
                self.position,
                start,
                tuple(sorted(board.running[v].id for v in leaving)),
            )
        )

    # -- refused, with the reason -----------------------------------------------------------------------------------

    def refuse(self, queued: Queued) -> None:
        """Say why it waits, its place, and when it may expect to start."""
        self.position += 1
        code, why = self._obstacle(queued)
        start: int | None
        held: tuple[int, ...] = ()
        blockers: tuple[int, ...] = ()
        if queued.reservation is not None:
            start, blockers = self._start_inside_reservation(queued)
        elif code in (Code.OVER_QUOTA, Code.OVER_USER_CAP):
            start, blockers = self._start_within_limits(queued, code)
        elif code == Code.HOST_CLOSED:
            start = None
        else:
            start, blockers, held = self._start_on_units(queued)
        self.board.refusals.append(Refusal(queued.id, code, why, self.position, start, blockers, held))

    def _obstacle(self, queued: Queued) -> Why:
        """The first thing that is in the way, found by leaving it out and trying again."""
        limits = self._limits(queued)
        if limits is not None:
            return limits
        key = self._room_key(queued, -1)
        if key not in self._obstacles:
            self._obstacles[key] = self._physical_obstacle(queued)
        return self._obstacles[key]

    def _limits(self, queued: Queued) -> Why | None:
        """Quota or user cap, when no kind it accepts is within both; with the numbers of its first choice."""
        board, found = self.board, None
        for kind in board.kinds_for(queued.ask):
            room, need = self._room(queued, kind), board.need_slots(queued.ask, kind)
            if room.allowed and self._within_caps(queued, kind):
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
                    ),
                )
            else:
                held = board.ledger.held_by_user[queued.user]
                why = Code.OVER_USER_CAP, numbers(cap=board.policy.most_slots_per_user, held=held, need=need)
            found = found or why
        return found

    def _physical_obstacle(self, queued: Queued) -> Why:
        board, ask = self.board, queued.ask
        kinds = board.kinds_for(ask)
        fitting = np.isin(board.kind, np.array(kinds, dtype=np.int64))
        free = int((board.free & fitting).sum())
        if queued.reservation is not None:
            inside = (board.bound == queued.reservation) & fitting
            return Code.WAITS_FOR_UNITS, numbers(
                free=int((inside & (board.holder == NOBODY)).sum()),
                need=ask.total_units,
                of=int(inside.sum()),
                reservation=queued.reservation,
            )
        if not any(fits_empty(board, ask, kind, board.usable) for kind in kinds):
            return self._closed(queued)
        return self._promised_to_others(queued, free) or (
            Code.WAITS_FOR_UNITS,
            numbers(
                ahead=self.position - 1,
                free=free,
                hosts=ask.hosts,
                model=board.kinds[kinds[0]].model,
                need=ask.total_units,
            ),
        )

    def _closed(self, queued: Queued) -> Why:
        """The hosts that could serve it don't take work: by maintenance that has an end, or for another reason."""
        board = self.board
        for kind in board.kinds_for(queued.ask):
            if fits_empty(board, queued.ask, kind, board.in_service):
                now_on = [(start, end) for _, start, end in board.maintenance if start <= board.now < end]
                ends = min(end for _, end in now_on)
                return Code.HELD_FOR_MAINTENANCE, numbers(end=ends, start=min(start for start, _ in now_on))
        codes = sorted({h.closed_code for h in board.hosts if not h.accepts and h.closed_code})
        closed = sum(not h.accepts for h in board.hosts)
        unwell = sum(not u.well for u in board.units)
        return Code.HOST_CLOSED, numbers(codes=codes, hosts=closed, need=queued.ask.total_units, unwell=unwell)

    def _promised_to_others(self, queued: Queued, free: int) -> Why | None:
        """Enough is free, but spare, set aside, or promised: which of these, the first whose absence would help.
        None when the units are simply not there."""
        board, need = self.board, queued.ask.total_units
        if self._fits_ignoring(queued, fit.NOTHING):  # then it was the spare capacity
            spare = board.policy.spare_slots
            slots = board.need_slots(queued.ask, board.kinds_for(queued.ask)[0])
            return Code.SPARE_CAPACITY_KEPT, numbers(free=board.free_slots, need=slots, spare=spare)
        if self._fits_ignoring(queued, frozenset({fit.HOLDS})):
            return Code.BEHIND_OTHERS, numbers(ahead=self.position - 1, free=free, need=need)
        concerned = board.free & np.isin(board.kind, np.array(board.kinds_for(queued.ask), dtype=np.int64))
        if self._fits_ignoring(queued, frozenset({fit.HOLDS, fit.MAINTENANCE})):
            start = int(board.maintenance_from[concerned].min())
            runs = queued.max_runtime_seconds
            return Code.HELD_FOR_MAINTENANCE, numbers(free=free, need=need, runs=runs, start=start)
        if self._fits_ignoring(queued, fit.EVERYTHING):
            first = int(np.argmin(np.where(concerned, board.reserved_from, NEVER)))
            return Code.HELD_FOR_RESERVATION, numbers(
                free=free,
                need=need,
                reservation=int(board.reserved_for[first]),
                runs=fit.gone_after(board, queued),
                start=int(board.reserved_from[first]),
            )
        return None

    def _fits_ignoring(self, queued: Queued, ignoring: frozenset[str]) -> bool:
        available = fit.takeable(self.board, queued, ignoring)
        kinds = self.board.kinds_for(queued.ask)
        return any(fit.choose(self.board, queued.ask, kind, available) is not None for kind in kinds)

    # -- when it may expect to start ---------------------------------------------------------------------------------

    def _start_on_units(self, queued: Queued) -> tuple[int | None, tuple[int, ...], tuple[int, ...]]:
        """(expected start, who it waits for, units set aside for it) from the forecast, which then counts it in.

        Not before something has changed: it does not fit now, be it for CPU or NVLink, which the forecast can't see.
        """
        board = self.board
        if self.forecasts >= FORECAST_DEPTH:
            return self._start_by_pace(queued), (), ()
        self.forecasts += 1
        if self._forecast is None:
            self._forecast = Forecast(board, self.promises)
        best: tuple[int, int, list[int]] | None = None
        for kind in board.kinds_for(queued.ask):
            if not self._room(queued, kind).allowed:
                continue
            seconds = fit.gone_after(board, queued) if queued.preemptible else queued.max_runtime_seconds
            found = self._forecast.earliest(queued.ask, kind, seconds, board.now + 1)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], kind, found[1]
        if best is None:
            return None, (), ()
        start, kind, hosts = max(best[0], board.now + 1), best[1], best[2]
        self._forecast.take(kind, hosts, queued.ask.units, start, queued.predicted_seconds)
        self.latest_start = max(self.latest_start, start)
        held: tuple[int, ...] = ()
        if self.holds < HOLDS:
            self.holds += 1
            held = self._hold(queued, kind, hosts, start)
        return start, self._blockers(kind, hosts, start), held

    def _start_by_pace(self, queued: Queued) -> int | None:
        """Deep in the queue: after the last forecast start, the time the pool needs for the work in between."""
        capacity = int(self.board.slots[self.board.usable].sum())
        if capacity == 0:
            return None
        kind = self.board.kinds_for(queued.ask)[0]
        start = self.latest_start + self.behind // capacity
        self.behind += self.board.need_slots(queued.ask, kind) * queued.predicted_seconds
        return max(start, self.board.now + 1)

    def _hold(self, queued: Queued, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
        """Set units aside on the hosts it is expected to start on: those given back last before its start first,
        so that what is free longer stays free for others."""
        assert self._forecast is not None
        board, chosen = self.board, []
        for host in hosts:
            first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
            mine = [
                u
                for u in range(first, last)
                if board.kind[u] == kind
                and self._forecast.free_at[u] <= start
                and board.kept[u] == 0
                and board.reserved_from[u] > start
            ]
            mine.sort(key=lambda u: (-int(self._forecast.free_at[u]), u) if self._forecast else (0, u))
            chosen += mine[: queued.ask.units]
        board.hold(chosen, start)
        return tuple(sorted(board.units[u].id for u in chosen))

    def _blockers(self, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
        """Work on those hosts that is expected to end by then, the last to end first."""
        board, found = self.board, []
        for host in hosts:
            first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
            for holder in {int(h) for h in board.holder[first:last][board.kind[first:last] == kind]}:
                if 0 <= holder < len(board.running) and expected_end(board.running[holder], board.now) <= start:
                    found.append((-expected_end(board.running[holder], board.now), board.running[holder].id))
        return tuple(sorted({workload for _, workload in sorted(set(found))[:BLOCKERS_NAMED]}))

    def _start_within_limits(self, queued: Queued, code: str) -> tuple[int | None, tuple[int, ...]]:
        """When enough of its own team's (or user's) work will have ended; None when no end of work would be enough."""
        board = self.board
        options: list[tuple[int, tuple[int, ...]]] = []
        for kind in board.kinds_for(queued.ask):
            model, need = board.kinds[kind].model, board.need_slots(queued.ask, kind)
            if code == Code.OVER_QUOTA:
                room = self._room(queued, kind)
                over = room.held + need - room.limit
                own = [i for i in self._of_team_by_end(queued.team) if board.running[i].reservation is None]
            else:
                over = need - board.ledger.user_cap_left(queued.user)
                own = sorted((i for i, r in enumerate(board.running) if r.user == queued.user), key=self._end_and_id)
            waited_for: list[int] = []
            for i in own:
                if over <= 0:
                    break
                counted = [u for u in board.units_of[i] if code != Code.OVER_QUOTA or board.model_of(u) == model]
                if counted:
                    over -= sum(int(board.slots[u]) for u in counted)
                    waited_for.append(i)
            if over <= 0 and waited_for:
                end = self._end_and_id(waited_for[-1])[0]
                options.append((end, tuple(sorted(board.running[i].id for i in waited_for))))
        return min(options, default=(None, ()), key=lambda option: option[0] or 0)

    def _end_and_id(self, i: int) -> tuple[int, int]:
        end = expected_end(self.board.running[i], self.board.now)
        if i in self.board.evicted:
            end = min(end, self.board.now + lead_seconds(self.board))
        return end, self.board.running[i].id

    def _of_team_by_end(self, team: int) -> list[int]:
        """A team's running work, the first to end first."""
        if team not in self._by_end:
            self._by_end[team] = sorted(self.board.of_team.get(team, []), key=self._end_and_id)
        return self._by_end[team]

    def _start_inside_reservation(self, queued: Queued) -> tuple[int | None, tuple[int, ...]]:
        """When enough of the work inside the same reservation will have ended; None if that is after its end."""
        board = self.board
        reservation = board.reservation_by_id[queued.reservation or 0]
        if not (board.bound == reservation.id).any():
            return board.now + lead_seconds(board), ()
        inside = [i for i, r in enumerate(board.running) if r.reservation == reservation.id]
        inside.sort(key=self._end_and_id)
        for count in range(1, len(inside) + 1):
            end = expected_end(board.running[inside[count - 1]], board.now)
            if end >= reservation.end:
                break
            for kind in board.kinds_for(queued.ask):
                if preempt.Search(board, queued, kind).fits(inside[:count]):
                    return end, tuple(sorted(board.running[i].id for i in inside[:count]))
        return None, ()
