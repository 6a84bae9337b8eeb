"""What is said to a workload that waits: the reason, its place, when it may expect to start, and behind whom.

The reason is found by ``obstacles``. The start comes from the forecast, into which everything further ahead was counted;
the first that wait get particular units set aside.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from scheduler.core.evict import candidates
from scheduler.core.explain.deep_queue_eta import DeepQueueEta
from scheduler.core.explain.forecast import Forecast
from scheduler.core.explain.future_evictions import FutureEvictions, FutureRoom
from scheduler.core.explain.wait_reasons import WaitReasons
from scheduler.core.fit import availability
from scheduler.core.fit.feasibility import fits_on_empty_hosts
from scheduler.core.fit.quota_limits import headroom_for, kinds_within_limits, leaves_user_headroom
from scheduler.core.model.hardware import FAR_FUTURE
from scheduler.core.model.plan import Refusal
from scheduler.core.model.pool_state import PoolState, eviction_lead_seconds
from scheduler.core.model.quota_ledger import ReservedHeadroom
from scheduler.core.model.snapshot import QueuedWorkload
from scheduler.core.model.waiting_queue import expected_seconds
from scheduler.core.promises.promise_timeline import PromiseTimeline
from scheduler.core.reasons import ReasonCode, reason_numbers

# So many of the first that don't fit get particular units set aside, of each kind: two while little waits, else one.
MAX_HELD_PLACES_PER_KIND = 2
SHORT_QUEUE_SECONDS = 72 * 3600  # seconds: the pool could be through with all that waits within that time
FORECAST_DEPTH = 64  # so many per pool get a start from the forecast; those behind, one from the pool's pace
MAX_DEEP_TRIES_PER_KIND = 8  # so many of those behind are tried for each kind of which nothing is set aside
MAX_BLOCKERS_NAMED = 20


def required_free_seconds(queued: QueuedWorkload) -> int:
    """How long units have to stay free for a workload that may start on them. What is preemptible may be told to go for a
    reservation (``unit_selection.gone_after``), but nobody leaves for who only waits: it needs them for as long as it is expected."""
    return expected_seconds(queued) if queued.preemptible else queued.max_runtime_seconds


def is_short_queue(unit_seconds: int, board: PoolState) -> bool:
    """Units that are set aside lie idle, in part. That costs nobody much in a pool that is through with its queue soon;
    where more is asked for than there is, it is paid by all who wait (docs/benchmarks.md)."""
    return unit_seconds <= SHORT_QUEUE_SECONDS * int(board.usable.sum())


class RefusalRecorder:
    """The refusals of one pool's cycle, in the order of its queue."""

    def __init__(self, board: PoolState, promises: PromiseTimeline, unit_seconds: int, explain: bool) -> None:
        """``unit_seconds`` is what all that stands in line is expected to take."""
        self.board, self.promises, self.explain = board, promises, explain
        self.obstacles = WaitReasons(board)
        self.position = 0
        self.places = MAX_HELD_PLACES_PER_KIND if is_short_queue(unit_seconds, board) else 1
        self.held: Counter[int] = Counter()  # by kind
        self.forecasts = 0
        self.tries: Counter[int] = Counter()  # by kind
        self.forecast: Forecast | None = None
        self.reclaim: FutureEvictions | None = None
        self.pace: DeepQueueEta | None = None  # for those behind the last that the forecast places
        self._by_end: dict[int, list[int]] = {}
        self._started: dict[int, list[tuple[int, QueuedWorkload, list[int]]]] = defaultdict(
            list
        )  # (expected end, ...) by team

    def note_placed(self, queued: QueuedWorkload, units: list[int]) -> None:
        """A workload was started: the forecast has to know, and who waits for room that it takes."""
        self._started[queued.team].append((self.board.now + queued.predicted_seconds, queued, units))
        if self.forecast is not None:
            self.forecast.note_placed(units, queued.predicted_seconds)
        if self.pace is not None:
            self.pace.note_placed(units, queued.predicted_seconds)

    def note_evicted(self, team: int) -> None:
        """Some of a team's work was told to go: it ends sooner than was expected."""
        self._by_end.pop(team, None)

    def wait_for(self, queued: QueuedWorkload, kind: int, units: list[int], leaving: list[int]) -> None:
        """Refuse it for now, its units earmarked and counted as its team's."""
        board = self.board
        board.keep(queued, units, leaving)
        if queued.reservation is None:
            slots = board.slots_needed(queued.ask, kind)
            board.ledger.add_held_slots(queued.team, board.kinds[kind].model, slots, queued.preemptible)
            end = board.now + eviction_lead_seconds(board) + expected_seconds(queued)
            board.ledger.use_headroom(queued.team, board.kinds[kind].model, slots, end, queued.preemptible)
            board.ledger.use_user_headroom(queued.user, slots, end)
        if self.forecast is not None:
            self.forecast.note_kept(units)
        known_stops = [board.running[v].stop_by or 0 for v in leaving if board.running[v].stopping]
        start = (
            max([board.now + 1, *known_stops]) if known_stops else board.now + eviction_lead_seconds(board)
        )
        self.position += 1
        board.refusals.append(
            Refusal(
                queued.id,
                ReasonCode.WAITS_FOR_EVICTION,
                reason_numbers(
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

    def refuse(self, queued: QueuedWorkload) -> None:
        """Say why it waits, its place, and when it may expect to start."""
        self.position += 1
        if not self.explain:
            self._refuse_without_reason(queued)
            return
        allowed = self.obstacles.allowed_kinds(queued)
        code, why = self.obstacles.first(queued, allowed, self.position - 1)
        start: int | None
        held: tuple[int, ...] = ()
        blockers: tuple[int, ...] = ()
        if queued.reservation is not None:
            start, blockers = self._start_inside_reservation(queued)
        elif code in (ReasonCode.OVER_QUOTA, ReasonCode.OVER_USER_CAP):
            start, blockers = self._start_within_limits(queued, code)
            kept = self._reserve_headroom(queued) or self._reserve_user_headroom(queued)
            if kept is not None:
                start, held = self._start_in_reserved_headroom(queued, kept)
        elif code == ReasonCode.BEHIND_OWN_TEAM:
            start, blockers = self._start_behind_own_team(queued)
        elif code in (ReasonCode.HOST_CLOSED, ReasonCode.HOST_FULL):
            start = None
        elif code == ReasonCode.HELD_FOR_RESERVATION and dict(why).get(
            "own"
        ):  # its own team's, which takes up the guarantee until then
            start = max(int(dict(why)["end"]), self.board.now + 1)
        else:
            start, blockers, held = self._start_on_units(queued, allowed)
            later = self._future_room(queued) if code == ReasonCode.WAITS_FOR_UNITS else None
            if later is not None and (start is None or later.start < start):
                start, blockers, held = later.start, later.victims, ()
                why = reason_numbers(**dict(why), told_at=later.told_at, young=len(later.victims))
        self.board.refusals.append(Refusal(queued.id, code, why, self.position, start, blockers, held))

    def may_hold_units(self, kinds: Sequence[int]) -> bool:
        """May units of these kinds still be set aside for the next that is refused? Behind the last that the forecast gives a start
        only where nothing is set aside of any of them yet: else large work would starve behind many that wait for other kinds."""
        if self.forecasts < FORECAST_DEPTH:
            return any(self.held[kind] < self.places for kind in kinds)
        return any(self.tries[kind] < MAX_DEEP_TRIES_PER_KIND for kind in kinds) and not any(
            self.held[kind] for kind in kinds
        )

    def affects_holds(self, kinds: Sequence[int]) -> bool:
        """Does the forecast of one that is refused matter to what is set aside, for it or for those behind it?"""
        in_depth = self.forecasts < FORECAST_DEPTH
        return self.may_hold_units(range(len(self.board.kinds)) if in_depth else kinds)

    def _refuse_without_reason(self, queued: QueuedWorkload) -> None:
        """Nobody reads why it waits: only the units set aside for it are named."""
        kept = self._reserve_headroom(queued) or self._reserve_user_headroom(queued)
        if queued.reservation is not None or not self.affects_holds(self.board.kinds_for(queued.ask)):
            return
        start: int | None = None
        held: tuple[int, ...] = ()
        allowed = self.obstacles.allowed_kinds(queued)
        if kept is not None:
            start, held = self._start_in_reserved_headroom(queued, kept)
        elif any(
            fits_on_empty_hosts(self.board, queued.ask, kind, self.board.in_service) for kind in allowed
        ):
            start, _, held = self._start_on_units(queued, allowed)
        if held:
            waits = reason_numbers(need=queued.ask.total_units)
            self.board.refusals.append(
                Refusal(queued.id, ReasonCode.WAITS_FOR_UNITS, waits, self.position, start, (), held)
            )

    def _reserve_headroom(self, queued: QueuedWorkload) -> ReservedHeadroom | None:
        """The first of a team that its guarantee or its limit keeps waiting gets the room kept, as units are set aside: work
        behind it may use that room only if it is expected to be over by then. Else small work would keep the team at its
        limit. None for all others."""
        board, kinds = self.board, self.board.kinds_for(queued.ask)
        key = queued.team, board.kinds[kinds[0]].model
        if (
            queued.reservation is not None
            or key in board.ledger.reserved_headroom
            or kinds_within_limits(board, queued)
        ):
            return None
        room = headroom_for(board, queued, kinds[0])
        if room.allowed:
            return None
        found = self._end_of_own_work(queued, kinds[0], ReasonCode.OVER_QUOTA)
        if found is None:
            return None
        kept = board.ledger.reserved_headroom[key] = ReservedHeadroom(queued.id, *found, firm=room.firm)
        return kept

    def _reserve_user_headroom(self, queued: QueuedWorkload) -> ReservedHeadroom | None:
        """The same for the first of a person whom the cap on one user keeps waiting: else their own small work would do so
        for ever. None for all others."""
        board, kinds = self.board, self.board.kinds_for(queued.ask)
        if board.policy.most_slots_per_user is None or queued.reservation is not None:
            return None
        if queued.user in board.ledger.reserved_user_headroom or kinds_within_limits(board, queued):
            return None
        over = board.slots_needed(queued.ask, kinds[0]) > board.ledger.user_cap_left(queued.user)
        if not over or not headroom_for(board, queued, kinds[0]).allowed:
            return None
        found = self._end_of_own_work(queued, kinds[0], ReasonCode.OVER_USER_CAP)
        if found is None:
            return None
        kept = board.ledger.reserved_user_headroom[queued.user] = ReservedHeadroom(
            queued.id, *found, firm=False
        )
        return kept

    def _start_in_reserved_headroom(
        self, queued: QueuedWorkload, kept: ReservedHeadroom
    ) -> tuple[int, tuple[int, ...]]:
        """For whom room is kept: when units will be there as well, and those that are set aside. Without them, others would be
        on them when there is room at last."""
        held: tuple[int, ...] = ()
        first = self.board.kinds_for(queued.ask)[:1]
        if self.affects_holds(first):
            start, _, held = self._start_on_units(queued, first, kept.start)
            kept.start = max(kept.start, start or 0)
        return max(kept.start, self.board.now + 1), held

    def _start_behind_own_team(self, queued: QueuedWorkload) -> tuple[int | None, tuple[int, ...]]:
        """Not before the one in front starts; who that waits for is waited for by this one too."""
        own = self.board.ledger.reserved_user_headroom.get(queued.user)
        if own is not None and not any(
            leaves_user_headroom(self.board, queued, k) for k in self.board.kinds_for(queued.ask)
        ):
            return max(own.start, self.board.now + 1), own.blockers
        for kind in self.board.kinds_for(queued.ask):
            kept = self.board.ledger.reserved_headroom.get((queued.team, self.board.kinds[kind].model))
            if kept is not None:
                return max(kept.start, self.board.now + 1), kept.blockers
        return None, ()

    # -- when it may expect to start ---------------------------------------------------------------------------------

    def _start_on_units(
        self, queued: QueuedWorkload, allowed: list[int], not_before: int = 0
    ) -> tuple[int | None, tuple[int, ...], tuple[int, ...]]:
        """(expected start, who it waits for, units set aside for it) from the forecast, which then counts it in.

        Not before something has changed: it does not fit now, be it for CPU or NVLink, which the forecast can't see.
        """
        board = self.board
        if self.forecasts >= FORECAST_DEPTH:
            if not self.may_hold_units(allowed):
                return self._start_deep_in_queue(queued, allowed) if self.explain else None, (), ()
            self.tries.update(allowed)
        self.forecasts += 1
        if self.forecast is None:
            self.forecast = Forecast(board, self.promises)
        best: tuple[int, int, list[int]] | None = None
        for kind in allowed:
            after = max(not_before, board.now + 1)
            gone_after = availability.seconds_until_releasable(board, queued) if queued.preemptible else None
            found = self.forecast.earliest(queued.ask, kind, required_free_seconds(queued), after, gone_after)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], kind, found[1]
        if best is None:
            return None, (), ()
        start, kind, hosts = max(best[0], not_before, board.now + 1), best[1], best[2]
        self.forecast.take(kind, hosts, queued.ask.units, start, queued.predicted_seconds)
        if self.pace is not None:
            self.pace.note_expected(kind, queued, start)
        held: tuple[int, ...] = ()
        if self.held[kind] < self.places:
            self.held[kind] += 1
            held = self._hold_units(queued, kind, hosts, start)
        return start, self._blockers(kind, hosts, start) if self.explain else (), held

    def _future_room(self, queued: QueuedWorkload) -> FutureRoom | None:
        """Room that others can be told to make for it, once they have run for the pool's minimum."""
        if self.pace is not None:
            return None  # deep in the queue: who is guaranteed what others borrowed stands in front
        if self.reclaim is None:
            self.reclaim = FutureEvictions(self.board)
        return self.reclaim.room_for(queued)

    def _start_deep_in_queue(self, queued: QueuedWorkload, allowed: list[int]) -> int | None:
        """Deep in the queue: by the pool's pace."""
        if self.pace is None:
            assert self.forecast is not None
            self.pace = DeepQueueEta(self.board, self.forecast)
        return self.pace.expected_start(queued, allowed, required_free_seconds(queued))

    def _hold_units(self, queued: QueuedWorkload, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
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
            held = board.queue_hold_from[mine] < FAR_FUTURE  # for another: only when there are no others
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
                if 0 <= holder < len(board.running) and board.expected_end_list[holder] <= start:
                    found.append((-board.expected_end_list[holder], board.running[holder].id))
        return tuple(sorted({workload for _, workload in sorted(set(found))[:MAX_BLOCKERS_NAMED]}))

    def _start_within_limits(self, queued: QueuedWorkload, code: str) -> tuple[int | None, tuple[int, ...]]:
        """When enough of its own team's (or user's) work will have ended; None when no end of work would be enough."""
        ends = [self._end_of_own_work(queued, kind, code) for kind in self.board.kinds_for(queued.ask)]
        options = [(end, blockers) for end, blockers, _ in (found for found in ends if found is not None)]
        return min(options, default=(None, ()), key=lambda option: option[0] or 0)

    def _end_of_own_work(
        self, queued: QueuedWorkload, kind: int, code: str
    ) -> tuple[int, tuple[int, ...], int] | None:
        """When enough of its team's (or user's) work will have ended for units of one kind, which work, and the slots by
        which it is then more than enough."""
        board = self.board
        model, need = board.kinds[kind].model, board.slots_needed(queued.ask, kind)
        if code == ReasonCode.OVER_QUOTA:
            room = headroom_for(self.board, queued, kind)
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
            own = sorted(
                (i for i, r in enumerate(board.running) if r.user == queued.user), key=self._end_and_id
            )
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
            freed = sum(
                [slots[u] for u in units if code != ReasonCode.OVER_QUOTA or all_units[u].model == model]
            )
            if freed:
                over -= freed
                end = ends
                waited_for.append(workload)
        if over > 0 or not waited_for:
            return None
        started_now = {workload for _, workload, _ in begun}
        return end, tuple(sorted(w for w in waited_for if w not in started_now)), -over

    def _end_and_id(self, i: int) -> tuple[int, int]:
        end = self.board.expected_end_list[i]
        if i in self.board.evicted:
            end = min(end, self.board.now + eviction_lead_seconds(self.board))
        return end, self.board.running[i].id

    def _of_team_by_end(self, team: int) -> list[int]:
        """A team's running work, the first to end first."""
        if team not in self._by_end:
            self._by_end[team] = sorted(self.board.of_team.get(team, []), key=self._end_and_id)
        return self._by_end[team]

    def _start_inside_reservation(self, queued: QueuedWorkload) -> tuple[int | None, tuple[int, ...]]:
        """When enough of the work inside the same reservation will have ended; None if that is after its end."""
        board = self.board
        reservation = board.reservation_by_id[queued.reservation or 0]
        if not (board.bound == reservation.id).any():
            return board.now + eviction_lead_seconds(board), ()
        inside = [i for i, r in enumerate(board.running) if r.reservation == reservation.id]
        inside.sort(key=self._end_and_id)
        for count in range(1, len(inside) + 1):
            end = board.expected_end_list[inside[count - 1]]
            if end >= reservation.end:
                break
            for kind in board.kinds_for(queued.ask):
                if candidates.ObtainableUnits(board, queued, kind).units_after(inside[:count]) is not None:
                    return end, tuple(sorted(board.running[i].id for i in inside[:count]))
        return None, ()
