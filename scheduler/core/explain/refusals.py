"""Record refusals. A refusal says why a workload waits, its position, its expected start, and its blockers.

Blockers are the workloads that must end first. ``WaitReasons`` finds the reason. ``Forecast`` gives the
expected start. The units of all work ahead in the queue are subtracted from the forecast first.

Units are held for the first refused workloads. Other work may use a held unit only if that work is expected
to end before the expected start of the refused workload. Otherwise a large workload could starve, because
small workloads take every unit that becomes free. Headroom (slots below a quota or cap) is reserved for the
same reason.
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

# In a short queue, units of one kind are held for at most this many refused workloads. In a long queue they
# are held for one workload only.
MAX_HELD_PLACES_PER_KIND = 2
SHORT_QUEUE_SECONDS = 72 * 3600  # A queue is short if the pool could finish it within this time.
# For this many workloads of a pool, the forecast computes the expected start. For later workloads,
# ``DeepQueueEta`` gives a coarser estimate.
FORECAST_DEPTH = 64
# If none of the first FORECAST_DEPTH workloads holds units of a kind, the forecast also covers this many
# later workloads that can use the kind.
MAX_DEEP_TRIES_PER_KIND = 8
MAX_BLOCKERS_NAMED = 20


def required_free_seconds(queued: QueuedWorkload) -> int:
    """Return the seconds for which units must be free so that a workload may start on them.

    For non-preemptible work this is the runtime limit. For preemptible work this is the expected runtime,
    because work that takes longer can be evicted.
    """
    return expected_seconds(queued) if queued.preemptible else queued.max_runtime_seconds


def is_short_queue(unit_seconds: int, state: PoolState) -> bool:
    """Return True if the pool could finish its queue within SHORT_QUEUE_SECONDS.

    ``unit_seconds`` is the expected use of the whole queue. In a short queue, units are held for more
    workloads. Held units are idle for a part of the time. This costs little in a pool that finishes its queue
    soon, but it delays all waiting work in an overloaded pool (docs/benchmarks.md).
    """
    return unit_seconds <= SHORT_QUEUE_SECONDS * int(state.usable.sum())


class RefusalRecorder:
    """The refusals of one pool in one cycle (one run of the planner), in queue order."""

    def __init__(self, state: PoolState, promises: PromiseTimeline, unit_seconds: int, explain: bool) -> None:
        """Prepare to record refusals.

        ``unit_seconds`` is the expected use of all work in the queue, in unit-seconds. If ``explain`` is
        False, only refusals with held or earmarked units are recorded.
        """
        self.state, self.promises, self.explain = state, promises, explain
        self.wait_reasons = WaitReasons(state)
        self.position = 0
        self.max_held_places = MAX_HELD_PLACES_PER_KIND if is_short_queue(unit_seconds, state) else 1
        self.held: Counter[int] = Counter()  # by kind: the number of workloads for which units are held
        self.forecast_count = 0
        self.deep_tries: Counter[int] = Counter()  # by kind: see MAX_DEEP_TRIES_PER_KIND
        self.forecast: Forecast | None = None
        self.future_evictions: FutureEvictions | None = None
        self.deep_queue_eta: DeepQueueEta | None = None  # for workloads behind FORECAST_DEPTH
        self._work_by_end: dict[int, list[int]] = {}
        # By team: (expected end, workload, units) of the work that this plan started.
        self._started: dict[int, list[tuple[int, QueuedWorkload, list[int]]]] = defaultdict(list)

    def note_placed(self, queued: QueuedWorkload, units: list[int]) -> None:
        """Subtract the units of a started workload from the forecasts."""
        self._started[queued.team].append((self.state.now + queued.predicted_seconds, queued, units))
        if self.forecast is not None:
            self.forecast.note_placed(units, queued.predicted_seconds)
        if self.deep_queue_eta is not None:
            self.deep_queue_eta.note_placed(units, queued.predicted_seconds)

    def note_evicted(self, team: int) -> None:
        """Clear the cached list of a team's work, which is sorted by expected end.

        Evicted work ends sooner than expected.
        """
        self._work_by_end.pop(team, None)

    def refuse_until_evicted(
        self, queued: QueuedWorkload, kind: int, units: list[int], leaving: list[int]
    ) -> None:
        """Refuse a workload until the work that is evicted for it (``leaving``) has stopped.

        Keep ``units`` for the workload alone (earmark them), and count them as held by its team.
        """
        state = self.state
        state.earmark(queued, units, leaving)
        if queued.reservation is None:
            slots = state.slots_needed(queued.ask, kind)
            state.ledger.add_held_slots(queued.team, state.kinds[kind].model, slots, queued.preemptible)
            end = state.now + eviction_lead_seconds(state) + expected_seconds(queued)
            state.ledger.use_headroom(queued.team, state.kinds[kind].model, slots, end, queued.preemptible)
            state.ledger.use_user_headroom(queued.user, slots, end)
        if self.forecast is not None:
            self.forecast.note_earmarked(units)
        known_stops = [state.running[v].stop_by or 0 for v in leaving if state.running[v].stopping]
        start = (
            max([state.now + 1, *known_stops]) if known_stops else state.now + eviction_lead_seconds(state)
        )
        self.position += 1
        state.refusals.append(
            Refusal(
                queued.id,
                ReasonCode.WAITS_FOR_EVICTION,
                reason_numbers(
                    model=state.kinds[kind].model,
                    need=len(units),
                    own=sum(state.running[v].team == queued.team for v in leaving),
                    workloads=len(leaving),
                ),
                self.position if self.explain else None,
                start,
                tuple(sorted(state.running[v].id for v in leaving)),
            )
        )

    def refuse(self, queued: QueuedWorkload) -> None:
        """Record the reason why the workload waits, its position, and its expected start."""
        self.position += 1
        if not self.explain:
            self._refuse_without_reason(queued)
            return
        allowed = self.wait_reasons.allowed_kinds(queued)
        code, numbers = self.wait_reasons.first_reason(queued, allowed, self.position - 1)
        start: int | None
        held: tuple[int, ...] = ()
        blockers: tuple[int, ...] = ()
        if queued.reservation is not None:
            start, blockers = self._start_inside_reservation(queued)
        elif code in (ReasonCode.OVER_QUOTA, ReasonCode.OVER_USER_CAP):
            start, blockers = self._start_within_limits(queued, code)
            reserved = self._reserve_headroom(queued) or self._reserve_user_headroom(queued)
            if reserved is not None:
                start, held = self._start_in_reserved_headroom(queued, reserved)
        elif code == ReasonCode.BEHIND_OWN_TEAM:
            start, blockers = self._start_behind_own_team(queued)
        elif code in (ReasonCode.HOST_CLOSED, ReasonCode.HOST_FULL):
            start = None
        elif code == ReasonCode.HELD_FOR_RESERVATION and dict(numbers).get("own"):
            # A reservation of the workload's own team uses the guarantee until the reservation ends.
            start = max(int(dict(numbers)["end"]), self.state.now + 1)
        else:
            start, blockers, held = self._start_on_units(queued, allowed)
            future_room = self._future_room(queued, start) if code == ReasonCode.WAITS_FOR_UNITS else None
            if future_room is not None:
                start, blockers, held = future_room.start, future_room.victims, ()
                numbers = reason_numbers(
                    **dict(numbers), told_at=future_room.evict_at, young=len(future_room.victims)
                )
        self.state.refusals.append(Refusal(queued.id, code, numbers, self.position, start, blockers, held))

    def may_hold_units(self, kinds: Sequence[int]) -> bool:
        """Return True if units of these kinds may be held for the next refused workload.

        Usually only workloads within FORECAST_DEPTH get held units. A later workload gets them too if no unit
        of these kinds is held yet. Without this exception, a large workload would starve if many workloads
        ahead of it wait for other kinds.
        """
        if self.forecast_count < FORECAST_DEPTH:
            return any(self.held[kind] < self.max_held_places for kind in kinds)
        return any(self.deep_tries[kind] < MAX_DEEP_TRIES_PER_KIND for kind in kinds) and not any(
            self.held[kind] for kind in kinds
        )

    def affects_holds(self, kinds: Sequence[int]) -> bool:
        """Return True if a forecast for this refused workload may change which units are held.

        The units may be held for this workload or for a later one, because this workload's units are
        subtracted from the forecast of later workloads.
        """
        in_forecast_depth = self.forecast_count < FORECAST_DEPTH
        return self.may_hold_units(range(len(self.state.kinds)) if in_forecast_depth else kinds)

    def _refuse_without_reason(self, queued: QueuedWorkload) -> None:
        """Record the refusal only if units are held for the workload.

        This is for plans in which nobody reads the other refusals.
        """
        reserved = self._reserve_headroom(queued) or self._reserve_user_headroom(queued)
        if queued.reservation is not None or not self.affects_holds(self.state.kinds_for(queued.ask)):
            return
        start: int | None = None
        held: tuple[int, ...] = ()
        allowed = self.wait_reasons.allowed_kinds(queued)
        if reserved is not None:
            start, held = self._start_in_reserved_headroom(queued, reserved)
        elif any(
            fits_on_empty_hosts(self.state, queued.ask, kind, self.state.in_service) for kind in allowed
        ):
            start, _, held = self._start_on_units(queued, allowed)
        if held:
            numbers = reason_numbers(need=queued.ask.total_units)
            self.state.refusals.append(
                Refusal(queued.id, ReasonCode.WAITS_FOR_UNITS, numbers, self.position, start, (), held)
            )

    def _reserve_headroom(self, queued: QueuedWorkload) -> ReservedHeadroom | None:
        """Reserve headroom for ``queued`` if it is its team's first workload that waits for quota of a model.

        The model is the model of the ask's first kind of units. Return None if ``queued`` is not the first,
        or if it would not get enough slots even after all running work of the team has ended.

        Later work of the team that would still run when ``queued`` can start may use only the slots that
        ``queued`` does not need. Otherwise small workloads of the team could keep the team at its limit.
        """
        state, kinds = self.state, self.state.kinds_for(queued.ask)
        key = queued.team, state.kinds[kinds[0]].model
        if (
            queued.reservation is not None
            or key in state.ledger.reserved_headroom
            or kinds_within_limits(state, queued)
        ):
            return None
        headroom = headroom_for(state, queued, kinds[0])
        if headroom.allowed:
            return None
        release = self._end_of_own_work(queued, kinds[0], ReasonCode.OVER_QUOTA)
        if release is None:
            return None
        reserved = state.ledger.reserved_headroom[key] = ReservedHeadroom(
            queued.id, *release, non_preemptible_only=headroom.non_preemptible_only
        )
        return reserved

    def _reserve_user_headroom(self, queued: QueuedWorkload) -> ReservedHeadroom | None:
        """Reserve headroom for ``queued`` if it is its user's first workload that waits for the user cap.

        Return None if ``queued`` is not the first, or if it would not get enough slots even after all running
        work of the user has ended. Without the reserved slots, smaller jobs of the user could starve
        ``queued``.
        """
        state, kinds = self.state, self.state.kinds_for(queued.ask)
        if state.policy.max_slots_per_user is None or queued.reservation is not None:
            return None
        if queued.user in state.ledger.reserved_user_headroom or kinds_within_limits(state, queued):
            return None
        slots_over = state.slots_needed(queued.ask, kinds[0]) > state.ledger.user_cap_left(queued.user)
        if not slots_over or not headroom_for(state, queued, kinds[0]).allowed:
            return None
        release = self._end_of_own_work(queued, kinds[0], ReasonCode.OVER_USER_CAP)
        if release is None:
            return None
        reserved = state.ledger.reserved_user_headroom[queued.user] = ReservedHeadroom(
            queued.id, *release, non_preemptible_only=False
        )
        return reserved

    def _start_in_reserved_headroom(
        self, queued: QueuedWorkload, reserved: ReservedHeadroom
    ) -> tuple[int, tuple[int, ...]]:
        """Return (expected start, held units) of a workload for which headroom is reserved.

        Units are also held if possible. Without held units, all units could be in use when the headroom is
        available.
        """
        held: tuple[int, ...] = ()
        first = self.state.kinds_for(queued.ask)[:1]
        if self.affects_holds(first):
            start, _, held = self._start_on_units(queued, first, reserved.start)
            reserved.start = max(reserved.start, start or 0)
        return max(reserved.start, self.state.now + 1), held

    def _start_behind_own_team(self, queued: QueuedWorkload) -> tuple[int | None, tuple[int, ...]]:
        """Return (expected start, blockers) of a workload that waits behind other work of its team or user.

        Headroom is reserved for the other work. Both values are the values of the other work.
        """
        own_headroom = self.state.ledger.reserved_user_headroom.get(queued.user)
        if own_headroom is not None and not any(
            leaves_user_headroom(self.state, queued, k) for k in self.state.kinds_for(queued.ask)
        ):
            return max(own_headroom.start, self.state.now + 1), own_headroom.blockers
        for kind in self.state.kinds_for(queued.ask):
            reserved = self.state.ledger.reserved_headroom.get((queued.team, self.state.kinds[kind].model))
            if reserved is not None:
                return max(reserved.start, self.state.now + 1), reserved.blockers
        return None, ()

    # -- expected start --------------------

    def _start_on_units(
        self, queued: QueuedWorkload, allowed: list[int], not_before: int = 0
    ) -> tuple[int | None, tuple[int, ...], tuple[int, ...]]:
        """Return (expected start, blockers, held units) of a workload that waits for units.

        The workload's units are subtracted from the forecast. The start is always later than ``now``, even if
        the forecast has enough free units now. In this case CPU or NVLink, which the forecast does not model,
        prevents the start.
        """
        state = self.state
        if self.forecast_count >= FORECAST_DEPTH:
            if not self.may_hold_units(allowed):
                return self._start_deep_in_queue(queued, allowed) if self.explain else None, (), ()
            self.deep_tries.update(allowed)
        self.forecast_count += 1
        if self.forecast is None:
            self.forecast = Forecast(state, self.promises)
        after = max(not_before, state.now + 1)
        place = self._earliest_place(self.forecast, queued, allowed, after)
        if place is None:
            return None, (), ()
        start, kind, hosts = max(place[0], after), place[1], place[2]
        self.forecast.take(kind, hosts, queued.ask.units, start, queued.predicted_seconds)
        if self.deep_queue_eta is not None:
            self.deep_queue_eta.note_expected(kind, queued, start)
        held: tuple[int, ...] = ()
        if self.held[kind] < self.max_held_places:
            self.held[kind] += 1
            held = self._hold_units(queued, kind, hosts, start)
        return start, self._blockers(kind, hosts, start) if self.explain else (), held

    def _earliest_place(
        self, forecast: Forecast, queued: QueuedWorkload, allowed: list[int], after: int
    ) -> tuple[int, int, list[int]] | None:
        """Return (time, kind, hosts) of the earliest start in the forecast, or None if there is none.

        If several kinds have the same start, the first of ``allowed`` is returned.
        """
        best: tuple[int, int, list[int]] | None = None
        evictable_after = (
            availability.seconds_until_releasable(self.state, queued) if queued.preemptible else None
        )
        for kind in allowed:
            earliest = forecast.earliest(
                queued.ask, kind, required_free_seconds(queued), after, evictable_after
            )
            if earliest is not None and (best is None or earliest[0] < best[0]):
                best = earliest[0], kind, earliest[1]
        return best

    def _future_room(self, queued: QueuedWorkload, start: int | None) -> FutureRoom | None:
        """Return future evictions that make room for the workload before ``start``, or None.

        Such evictions become possible when running work has reached the pool's minimum runtime. ``start`` is
        the expected start without evictions; None if there is none.
        """
        if self.deep_queue_eta is not None:
            # Work that may evict borrowed work of other teams is near the front of the queue. So a search
            # deep in the queue would find nothing.
            return None
        if self.future_evictions is None:
            self.future_evictions = FutureEvictions(self.state)
        room = self.future_evictions.room_for(queued)
        return room if room is not None and (start is None or room.start < start) else None

    def _start_deep_in_queue(self, queued: QueuedWorkload, allowed: list[int]) -> int | None:
        """Return the expected start of a workload behind FORECAST_DEPTH, or None if it never starts."""
        if self.deep_queue_eta is None:
            assert self.forecast is not None
            self.deep_queue_eta = DeepQueueEta(self.state, self.forecast)
        return self.deep_queue_eta.expected_start(queued, allowed, required_free_seconds(queued))

    def _hold_units(self, queued: QueuedWorkload, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
        """Hold units on the hosts on which the workload is expected to start. Return the ids of the units.

        On each host, choose the units that become free shortly before the start. Units that become free
        earlier stay usable for other work until then.
        """
        assert self.forecast is not None
        state = self.state
        chosen: list[int] = []
        for host in hosts:
            first, last = int(state.first_unit[host]), int(state.first_unit[host + 1])
            free_at = self.forecast.free_at[first:last]
            is_open = (
                (state.kind[first:last] == kind) & (free_at <= start) & (state.earmarked_for[first:last] == 0)
            )
            candidates_here = first + np.flatnonzero(is_open & (state.reserved_from[first:last] > start))
            # Units that are already held for another workload are chosen last.
            held = state.queue_hold_from[candidates_here] < FAR_FUTURE
            freed_last = np.lexsort((-self.forecast.free_at[candidates_here], held))[: queued.ask.units]
            chosen += candidates_here[freed_last].tolist()
        state.hold_for_queue(chosen, start)
        return tuple(sorted(state.units[u].id for u in chosen))

    def _blockers(self, kind: int, hosts: list[int], start: int) -> tuple[int, ...]:
        """Return the ids of the workloads on these hosts that are expected to end by ``start``.

        If there are more than MAX_BLOCKERS_NAMED, return only the workloads that end last.
        """
        state, ending = self.state, []
        for host in hosts:
            first, last = int(state.first_unit[host]), int(state.first_unit[host + 1])
            for holder in {int(h) for h in state.holder[first:last][state.kind[first:last] == kind]}:
                if 0 <= holder < len(state.running) and state.expected_end_list[holder] <= start:
                    ending.append((-state.expected_end_list[holder], state.running[holder].id))
        return tuple(sorted({workload for _, workload in sorted(set(ending))[:MAX_BLOCKERS_NAMED]}))

    def _start_within_limits(self, queued: QueuedWorkload, code: str) -> tuple[int | None, tuple[int, ...]]:
        """Return (time, blockers) of a workload that waits for its team's quota or its user's cap.

        At this time, enough work of the team or user is expected to have ended, so that quota and cap allow
        the start on one kind of units. The blockers are the ids of this work, without work that this plan
        started. If this is possible on several kinds, the result is for the kind with the earliest time. If
        it is possible on no kind, the time is None.
        """
        ends = [self._end_of_own_work(queued, kind, code) for kind in self.state.kinds_for(queued.ask)]
        options = [
            (end, blockers) for end, blockers, _ in (release for release in ends if release is not None)
        ]
        return min(options, default=(None, ()), key=lambda option: option[0] or 0)

    def _end_of_own_work(
        self, queued: QueuedWorkload, kind: int, code: str
    ) -> tuple[int, tuple[int, ...], int] | None:
        """Return (time, blockers, surplus) for one kind of units.

        At this time, enough work of the team (or user) is expected to have ended. The blockers are the ids of
        this work, without work that this plan started. The surplus is the number of released slots that the
        waiting workload does not need. Return None if the workload would exceed its limit even after all work
        of the team (or user) has ended, or if no work has to end.
        """
        state = self.state
        model, need = state.kinds[kind].model, state.slots_needed(queued.ask, kind)
        if code == ReasonCode.OVER_QUOTA:
            headroom = headroom_for(self.state, queued, kind)
            slots_over = headroom.over
            own_work, started_rows = self._work_of_team(queued.team, headroom.non_preemptible_only)
        else:
            slots_over = need - state.ledger.user_cap_left(queued.user)
            own_work, started_rows = self._work_of_user(queued.user)
        rows: Iterable[tuple[int, int, list[int]]] = (
            (*self._end_and_id(i), state.units_of[i]) for i in own_work
        )
        if started_rows:
            rows = heapq.merge(rows, sorted(started_rows))
        blockers: list[int] = []
        end, slots, all_units = 0, state.hardware.slots_list, state.units
        for row_end, workload, units in rows:
            if slots_over <= 0:
                break
            freed = sum(
                [slots[u] for u in units if code != ReasonCode.OVER_QUOTA or all_units[u].model == model]
            )
            if freed:
                slots_over -= freed
                end = row_end
                blockers.append(workload)
        if slots_over > 0 or not blockers:
            return None
        started_ids = {workload for _, workload, _ in started_rows}
        return end, tuple(sorted(w for w in blockers if w not in started_ids)), -slots_over

    def _work_of_team(
        self, team: int, non_preemptible_only: bool
    ) -> tuple[Iterable[int], list[tuple[int, int, list[int]]]]:
        """Return (running, started): a team's work outside reservations.

        ``running`` are the indices of running workloads, ordered by their expected end. ``started`` has
        (expected end, id, units) of the work that this plan started.
        """
        running = self.state.running
        own_work = (  # a generator, because callers often need only the first elements
            i
            for i in self._team_work_by_end(team)
            if running[i].reservation is None and not (non_preemptible_only and running[i].preemptible)
        )
        started_rows = [
            (end, q.id, units)
            for end, q, units in self._started.get(team, ())
            if q.reservation is None and not (non_preemptible_only and q.preemptible)
        ]
        return own_work, started_rows

    def _work_of_user(self, user: int) -> tuple[Iterable[int], list[tuple[int, int, list[int]]]]:
        """Return (running, started): a user's work, in the format of ``_work_of_team``."""
        own_work = (i for i, r in enumerate(self.state.running) if r.user == user)
        started = (row for team in self._started.values() for row in team)
        started_rows = [(end, q.id, units) for end, q, units in started if q.user == user]
        return sorted(own_work, key=self._end_and_id), started_rows

    def _end_and_id(self, i: int) -> tuple[int, int]:
        end = self.state.expected_end_list[i]
        if i in self.state.evicted:
            end = min(end, self.state.now + eviction_lead_seconds(self.state))
        return end, self.state.running[i].id

    def _team_work_by_end(self, team: int) -> list[int]:
        """Return the indices of a team's running work, ordered by expected end."""
        if team not in self._work_by_end:
            self._work_by_end[team] = sorted(self.state.work_by_team.get(team, []), key=self._end_and_id)
        return self._work_by_end[team]

    def _start_inside_reservation(self, queued: QueuedWorkload) -> tuple[int | None, tuple[int, ...]]:
        """Return (time, blockers) of a workload that waits for other work inside its reservation.

        At this time, enough work inside the reservation is expected to have ended. The blockers are the ids
        of this work. If the reservation has no units yet, the time is now plus notice and grace of an
        eviction, and there are no blockers. The time is None if not enough work ends before the reservation's
        end.
        """
        state = self.state
        reservation = state.reservation_by_id[queued.reservation or 0]
        if not (state.bound_to == reservation.id).any():
            return state.now + eviction_lead_seconds(state), ()
        inside = [i for i, r in enumerate(state.running) if r.reservation == reservation.id]
        inside.sort(key=self._end_and_id)
        for count in range(1, len(inside) + 1):
            end = state.expected_end_list[inside[count - 1]]
            if end >= reservation.end:
                break
            for kind in state.kinds_for(queued.ask):
                if candidates.ObtainableUnits(state, queued, kind).units_after(inside[:count]) is not None:
                    return end, tuple(sorted(state.running[i].id for i in inside[:count]))
        return None, ()
