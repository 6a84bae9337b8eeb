"""What is said to a workload that waits: the reason, its place, when it may expect to start, and behind whom.

The reason is the first thing whose absence would help, found by leaving it out and trying again. The start comes from the
forecast, into which everything further ahead was counted; the first that wait get particular units set aside.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

import numpy as np

from scheduler.core import fit, preempt
from scheduler.core.board import HOLDS, MAINTENANCE, NEVER, NOBODY, Board, both
from scheduler.core.fairshare import NO_LIMIT, KeptRoom, Room
from scheduler.core.model import Numbers, Priority, Queued, Refusal
from scheduler.core.ordering import expected_seconds
from scheduler.core.pace import Pace
from scheduler.core.reasons import Code
from scheduler.core.timeline import Forecast, Promises, fits_empty, lead_seconds, numbers

# So many of the first that don't fit get particular units set aside, of each kind: two while little waits, else one.
PLACES_HELD = 2
LITTLE = 24 * 3600  # seconds: the pool could be through with all that waits within that time
FORECAST_DEPTH = 64  # so many per pool get a start from the forecast; those behind, one from the pool's pace
BLOCKERS_NAMED = 20

Why = tuple[str, Numbers]


def room_for(board: Board, queued: Queued, kind: int) -> Room:
    """What quota leaves for a workload on units of one kind; inside a reservation it is the reservation that counts."""
    if queued.reservation is not None:
        return Room(True, 0, 0, 0, NO_LIMIT, 0, False)
    need, model = board.need_slots(queued.ask, kind), board.kinds[kind].model
    return board.ledger.room(queued.team, model, need, queued.preemptible, queued.may_borrow)


def seconds_needed(queued: Queued) -> int:
    """How long units have to stay free for a workload that may start on them. What is preemptible may be told to go for a
    reservation (``fit.gone_after``), but nobody leaves for who only waits: it needs them for as long as it is expected."""
    return expected_seconds(queued) if queued.preemptible else queued.max_runtime_seconds


def has_little_waiting(board: Board) -> bool:
    """Units that are set aside lie idle, in part. That costs nobody much in a pool that is through with its queue soon;
    where more is asked for than there is, it is paid by all who wait (docs/benchmarks.md)."""
    return board.facts.queue.unit_seconds <= LITTLE * int(board.usable.sum())


def within_caps(board: Board, queued: Queued, kind: int) -> bool:
    """The caps on one user and on one workload."""
    cap = board.policy.most_slots_per_workload
    if cap is None and board.policy.most_slots_per_user is None:
        return True
    need = board.need_slots(queued.ask, kind)
    return need <= board.ledger.user_cap_left(queued.user) and (cap is None or need <= cap)


def granted_kinds(board: Board, queued: Queued) -> list[int]:
    """The kinds that quota and caps let a workload have, in its order; equals are answered once while their team holds the
    same."""
    ask = board.wanted(queued.ask)
    if queued.reservation is not None or board.policy.most_slots_per_user is not None:
        return [k for k in ask.kinds if room_for(board, queued, k).allowed and within_caps(board, queued, k)]
    known, key = board.ledger.granted[queued.team], (ask.number, queued.preemptible, queued.may_borrow)
    kinds = known.get(key)
    if kinds is None:
        kinds = [k for k in ask.kinds if room_for(board, queued, k).allowed and within_caps(board, queued, k)]
        known[key] = kinds
    return kinds


def leaves_room(board: Board, queued: Queued, kind: int) -> bool:
    """Would it leave the room within its team's limit, and its owner's cap, that work of theirs in front of it waits for?"""
    model = board.kinds[kind].model
    if not leaves_own_room(board, queued, kind):
        return False
    if (queued.team, model) not in board.ledger.kept_room:
        return True
    if queued.reservation is not None or queued.id in board.keepers:
        return True
    end = board.now + expected_seconds(queued)
    return board.ledger.leaves_room(queued.team, model, board.need_slots(queued.ask, kind), end, queued.preemptible)


def leaves_own_room(board: Board, queued: Queued, kind: int) -> bool:
    """The part of it that is about its owner's cap."""
    if not board.ledger.kept_for_user or queued.reservation is not None or queued.id in board.keepers:
        return True
    end = board.now + expected_seconds(queued)
    return board.ledger.leaves_own_room(queued.user, board.need_slots(queued.ask, kind), end)


class Waiting:
    """The refusals of one pool's cycle, in the order of its queue."""

    def __init__(self, board: Board, promises: Promises, explain: bool) -> None:
        self.board, self.promises, self.explain = board, promises, explain
        self.position = 0
        self.places = PLACES_HELD if has_little_waiting(board) else 1
        self.held: Counter[int] = Counter()  # by kind
        self.forecasts = 0
        self.forecast: Forecast | None = None
        self.pace: Pace | None = None  # for those behind the last that the forecast places
        self._lacking: dict[Hashable, Why] = {}
        self._promised: dict[tuple[Hashable, tuple[int, ...]], Why] = {}
        self._possible: dict[int, list[int]] = {}
        self._by_end: dict[int, list[int]] = {}
        self._started: dict[int, list[tuple[int, Queued, list[int]]]] = defaultdict(list)  # (expected end, ...) by team

    def note_placed(self, queued: Queued, units: list[int]) -> None:
        """A workload was started: the forecast has to know, and who waits for room that it takes."""
        self._started[queued.team].append((self.board.now + queued.predicted_seconds, queued, units))
        if self.forecast is not None:
            self.forecast.note_placed(units, queued.predicted_seconds)
        if self.pace is not None:
            self.pace.note_placed(units, queued.predicted_seconds)

    def note_leaving(self, team: int) -> None:
        """Some of a team's work was told to go: it ends sooner than was expected."""
        self._by_end.pop(team, None)

    def wait_for(self, queued: Queued, kind: int, units: list[int], leaving: list[int]) -> None:
        """Refuse it for now, its units earmarked and counted as its team's."""
        board = self.board
        board.keep(queued, units, leaving)
        if queued.reservation is None:
            slots = board.need_slots(queued.ask, kind)
            board.ledger.give(queued.team, board.kinds[kind].model, slots, queued.preemptible)
            end = board.now + lead_seconds(board) + expected_seconds(queued)
            board.ledger.use_room(queued.team, board.kinds[kind].model, slots, end, queued.preemptible)
            board.ledger.use_own_room(queued.user, slots, end)
        if self.forecast is not None:
            self.forecast.note_kept(units)
        known_stops = [board.running[v].stop_by or 0 for v in leaving if board.running[v].stopping]
        start = max([board.now + 1, *known_stops]) if known_stops else board.now + lead_seconds(board)
        self.position += 1
        board.refusals.append(
            Refusal(
                queued.id,
                Code.WAITS_FOR_EVICTION,
                numbers(
                    model=board.kinds[kind].model,
                    need=len(units),
                    own=sum(board.running[v].team == queued.team for v in leaving),
                    workloads=len(leaving),
                ),
                self.position if self.explain else None,
                start,
                tuple(sorted(board.running[v].id for v in leaving)),
            )
        )

    def refuse(self, queued: Queued) -> None:
        """Say why it waits, its place, and when it may expect to start."""
        self.position += 1
        if not self.explain:
            self._refuse_quietly(queued)
            return
        allowed = self._allowed_kinds(queued)
        code, why = self._obstacle(queued, allowed)
        start: int | None
        held: tuple[int, ...] = ()
        blockers: tuple[int, ...] = ()
        if queued.reservation is not None:
            start, blockers = self._start_inside_reservation(queued)
        elif code in (Code.OVER_QUOTA, Code.OVER_USER_CAP):
            start, blockers = self._start_within_limits(queued, code)
            kept = self._keep_room(queued) or self._keep_own_room(queued)
            if kept is not None:
                start, held = self._start_in_kept_room(queued, kept)
        elif code == Code.BEHIND_OWN_TEAM:
            start, blockers = self._start_behind_own_team(queued)
        elif code == Code.HOST_CLOSED:
            start = None
        else:
            start, blockers, held = self._start_on_units(queued, allowed)
        self.board.refusals.append(Refusal(queued.id, code, why, self.position, start, blockers, held))

    @property
    def may_hold(self) -> bool:
        """May units still be set aside for the next that is refused?"""
        if self.forecasts >= FORECAST_DEPTH:
            return False
        return any(self.held[kind] < self.places for kind in range(len(self.board.kinds)))

    def _refuse_quietly(self, queued: Queued) -> None:
        """Nobody reads why it waits: only the units set aside for it are named."""
        kept = self._keep_room(queued) or self._keep_own_room(queued)
        if queued.reservation is not None or not self.may_hold:
            return
        start: int | None = None
        held: tuple[int, ...] = ()
        allowed = self._allowed_kinds(queued)
        if kept is not None:
            start, held = self._start_in_kept_room(queued, kept)
        elif any(fits_empty(self.board, queued.ask, kind, self.board.in_service) for kind in allowed):
            start, _, held = self._start_on_units(queued, allowed)
        if held:
            waits = numbers(need=queued.ask.total_units)
            self.board.refusals.append(Refusal(queued.id, Code.WAITS_FOR_UNITS, waits, self.position, start, (), held))

    def _obstacle(self, queued: Queued, allowed: list[int]) -> Why:
        """The first thing that is in the way, found by leaving it out and trying again; ``allowed`` are the kinds that its
        limits let it have."""
        limits = None if allowed else self._limits(queued) or self._behind_own_team(queued)
        if limits is not None:
            return limits
        code, why = self._physical_obstacle(queued, allowed)
        if code in (Code.WAITS_FOR_UNITS, Code.BEHIND_OTHERS):
            return code, (("ahead", self.position - 1), *why)  # sorted by name as it is: nothing comes before "ahead"
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

    def _allowed_kinds(self, queued: Queued) -> list[int]:
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
                model = board.kinds[kind].model
                kept = board.ledger.kept_room[queued.team, model]
                need = board.need_slots(queued.ask, kind)
                return Code.BEHIND_OWN_TEAM, numbers(
                    left=max(0, kept.left), model=model, need=need, start=kept.start, workload=kept.workload
                )
        return None

    def _keep_room(self, queued: Queued) -> KeptRoom | None:
        """The first of a team that its guarantee or its limit keeps waiting gets the room kept, as units are set aside: work
        behind it may use that room only if it is expected to be over by then. Else small work would keep the team at its
        limit. None for all others."""
        board, kinds = self.board, self.board.kinds_for(queued.ask)
        key = queued.team, board.kinds[kinds[0]].model
        if queued.reservation is not None or key in board.ledger.kept_room or granted_kinds(board, queued):
            return None
        room = room_for(board, queued, kinds[0])
        if room.allowed:
            return None
        found = self._end_of_own_work(queued, kinds[0], Code.OVER_QUOTA)
        if found is None:
            return None
        kept = board.ledger.kept_room[key] = KeptRoom(queued.id, *found, firm=room.firm)
        return kept

    def _keep_own_room(self, queued: Queued) -> KeptRoom | None:
        """The same for the first of a person whom the cap on one user keeps waiting: else their own small work would do so
        for ever. None for all others."""
        board, kinds = self.board, self.board.kinds_for(queued.ask)
        if board.policy.most_slots_per_user is None or queued.reservation is not None:
            return None
        if queued.user in board.ledger.kept_for_user or granted_kinds(board, queued):
            return None
        over = board.need_slots(queued.ask, kinds[0]) > board.ledger.user_cap_left(queued.user)
        if not over or not room_for(board, queued, kinds[0]).allowed:
            return None
        found = self._end_of_own_work(queued, kinds[0], Code.OVER_USER_CAP)
        if found is None:
            return None
        kept = board.ledger.kept_for_user[queued.user] = KeptRoom(queued.id, *found, firm=False)
        return kept

    def _start_in_kept_room(self, queued: Queued, kept: KeptRoom) -> tuple[int, tuple[int, ...]]:
        """For whom room is kept: when units will be there as well, and those that are set aside. Without them, others would be
        on them when there is room at last."""
        held: tuple[int, ...] = ()
        if self.may_hold:
            start, _, held = self._start_on_units(queued, self.board.kinds_for(queued.ask)[:1], kept.start)
            kept.start = max(kept.start, start or 0)
        return max(kept.start, self.board.now + 1), held

    def _start_behind_own_team(self, queued: Queued) -> tuple[int | None, tuple[int, ...]]:
        """Not before the one in front starts; who that waits for is waited for by this one too."""
        own = self.board.ledger.kept_for_user.get(queued.user)
        if own is not None and not any(leaves_own_room(self.board, queued, k) for k in self.board.kinds_for(queued.ask)):
            return max(own.start, self.board.now + 1), own.blockers
        for kind in self.board.kinds_for(queued.ask):
            kept = self.board.ledger.kept_room.get((queued.team, self.board.kinds[kind].model))
            if kept is not None:
                return max(kept.start, self.board.now + 1), kept.blockers
        return None, ()

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
        codes = sorted({h.closed_code for h in board.hosts if not h.accepts and h.closed_code})
        closed = sum(not h.accepts for h in board.hosts)
        unwell = sum(not u.well for u in board.units)
        weak = sum(h.closed_code == Code.ISOLATION_TOO_WEAK for h in board.hosts)
        too_weak = {"too_weak": weak} if weak else {}
        return Code.HOST_CLOSED, numbers(codes=codes, hosts=closed, need=queued.ask.total_units, unwell=unwell, **too_weak)

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

    # -- when it may expect to start ---------------------------------------------------------------------------------

    def _start_on_units(
        self, queued: Queued, allowed: list[int], not_before: int = 0
    ) -> tuple[int | None, tuple[int, ...], tuple[int, ...]]:
        """(expected start, who it waits for, units set aside for it) from the forecast, which then counts it in.

        Not before something has changed: it does not fit now, be it for CPU or NVLink, which the forecast can't see.
        """
        board = self.board
        if self.forecasts >= FORECAST_DEPTH:
            return self._start_by_pace(queued, allowed), (), ()
        self.forecasts += 1
        if self.forecast is None:
            self.forecast = Forecast(board, self.promises)
        best: tuple[int, int, list[int]] | None = None
        for kind in allowed:
            after = max(not_before, board.now + 1)
            gone_after = fit.gone_after(board, queued) if queued.preemptible else None
            found = self.forecast.earliest(queued.ask, kind, seconds_needed(queued), after, gone_after)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], kind, found[1]
        if best is None:
            return None, (), ()
        start, kind, hosts = max(best[0], not_before, board.now + 1), best[1], best[2]
        self.forecast.take(kind, hosts, queued.ask.units, start, queued.predicted_seconds)
        held: tuple[int, ...] = ()
        if self.held[kind] < self.places:
            self.held[kind] += 1
            held = self._hold(queued, kind, hosts, start)
        return start, self._blockers(kind, hosts, start) if self.explain else (), held

    def _start_by_pace(self, queued: Queued, allowed: list[int]) -> int | None:
        """Deep in the queue: by the pool's pace."""
        if self.pace is None:
            assert self.forecast is not None
            self.pace = Pace(self.board, self.forecast)
        return self.pace.expected_start(queued, allowed, seconds_needed(queued))

    def _hold(self, queued: Queued, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
        """Set units aside on the hosts it is expected to start on: those given back last before its start first,
        so that what is free longer stays free for others."""
        assert self.forecast is not None
        board = self.board
        chosen: list[int] = []
        for host in hosts:
            first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
            free_at = self.forecast.free_at[first:last]
            open_ = (board.kind[first:last] == kind) & (free_at <= start) & (board.kept[first:last] == 0)
            mine = first + np.flatnonzero(open_ & (board.reserved_from[first:last] > start))
            held = board.hold_from[mine] < NEVER  # for another: only when there are no others
            last_freed = np.lexsort((-self.forecast.free_at[mine], held))[: queued.ask.units]
            chosen += mine[last_freed].tolist()
        board.hold(chosen, start)
        return tuple(sorted(board.units[u].id for u in chosen))

    def _blockers(self, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
        """Work on those hosts that is expected to end by then, the last to end first."""
        board, found = self.board, []
        for host in hosts:
            first, last = int(board.first_unit[host]), int(board.first_unit[host + 1])
            for holder in {int(h) for h in board.holder[first:last][board.kind[first:last] == kind]}:
                if 0 <= holder < len(board.running) and board.end_list[holder] <= start:
                    found.append((-board.end_list[holder], board.running[holder].id))
        return tuple(sorted({workload for _, workload in sorted(set(found))[:BLOCKERS_NAMED]}))

    def _start_within_limits(self, queued: Queued, code: str) -> tuple[int | None, tuple[int, ...]]:
        """When enough of its own team's (or user's) work will have ended; None when no end of work would be enough."""
        ends = [self._end_of_own_work(queued, kind, code) for kind in self.board.kinds_for(queued.ask)]
        options = [(end, blockers) for end, blockers, _ in (found for found in ends if found is not None)]
        return min(options, default=(None, ()), key=lambda option: option[0] or 0)

    def _end_of_own_work(self, queued: Queued, kind: int, code: str) -> tuple[int, tuple[int, ...], int] | None:
        """When enough of its team's (or user's) work will have ended for units of one kind, which work, and the slots by
        which it is then more than enough."""
        board = self.board
        model, need = board.kinds[kind].model, board.need_slots(queued.ask, kind)
        if code == Code.OVER_QUOTA:
            room = room_for(self.board, queued, kind)
            over = room.over
            own: Iterable[int] = (
                i
                for i in self._of_team_by_end(queued.team)
                if board.running[i].reservation is None and not (room.firm and board.running[i].preemptible)
            )  # looked at as far as it is needed
            begun = [
                (end, q.id, units)
                for end, q, units in self._started.get(queued.team, ())
                if q.reservation is None and not (room.firm and q.preemptible)
            ]
        else:
            over = need - board.ledger.user_cap_left(queued.user)
            own = sorted((i for i, r in enumerate(board.running) if r.user == queued.user), key=self._end_and_id)
            started = (one for team in self._started.values() for one in team)
            begun = [(end, q.id, units) for end, q, units in started if q.user == queued.user]
        rows: Iterable[tuple[int, int, list[int]]] = ((*self._end_and_id(i), board.units_of[i]) for i in own)
        if begun:
            rows = heapq.merge(rows, sorted(begun))
        waited_for: list[int] = []
        end, slots, all_units = 0, board.ground.slots_list, board.units
        for ends, workload, units in rows:
            if over <= 0:
                break
            freed = sum([slots[u] for u in units if code != Code.OVER_QUOTA or all_units[u].model == model])
            if freed:
                over -= freed
                end = ends
                waited_for.append(workload)
        if over > 0 or not waited_for:
            return None
        started_now = {workload for _, workload, _ in begun}
        return end, tuple(sorted(w for w in waited_for if w not in started_now)), -over

    def _end_and_id(self, i: int) -> tuple[int, int]:
        end = self.board.end_list[i]
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
            end = board.end_list[inside[count - 1]]
            if end >= reservation.end:
                break
            for kind in board.kinds_for(queued.ask):
                if preempt.Obtainable(board, queued, kind).units_after(inside[:count]) is not None:
                    return end, tuple(sorted(board.running[i].id for i in inside[:count]))
        return None, ()
