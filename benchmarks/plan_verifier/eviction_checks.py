"""Who is told to go: only whom the rules allow, only in good time, and only for something."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import KindTuple, PlanLookups, TeamModel, kind_tuple, serves
from scheduler.core.model.plan import Eviction, Refusal
from scheduler.core.model.snapshot import Priority, QueuedWorkload, RunningWorkload, UnitInfo
from scheduler.core.reasons import ReasonCode

GOINGS = {
    ReasonCode.EVICTED_FOR_GUARANTEE,
    ReasonCode.EVICTED_FOR_PRIORITY,
    ReasonCode.EVICTED_FOR_RESERVATION,
}


def _each(facts: PlanLookups) -> Iterator[tuple[Eviction, RunningWorkload, str]]:
    for eviction in facts.evictions:
        yield eviction, facts.running[eviction.workload], f"eviction of workload {eviction.workload}"


def _for_workloads(facts: PlanLookups) -> Iterator[tuple[RunningWorkload, QueuedWorkload, str]]:
    """Evictions for one waiting workload of the same pool."""
    for eviction, victim, who in _each(facts):
        queued = facts.queued.get(eviction.for_workload or 0)
        if queued is not None and queued.pool == victim.pool and eviction.for_reservation is None:
            yield victim, queued, who


def workloads_are_evicted_whole_and_once(facts: PlanLookups) -> Iterator[str]:
    """What is told to go runs, is not on its way out already, and goes as a whole for exactly one beneficiary."""
    twice = Counter(e.workload for e in facts.plan.evictions)
    for eviction in facts.plan.evictions:
        who = f"eviction of workload {eviction.workload}"
        if eviction.workload not in facts.running:
            yield f"{who}: it does not run"
        elif facts.running[eviction.workload].stopping:
            yield f"{who}: it was told already"
        if twice[eviction.workload] > 1:
            yield f"{who} is planned twice"
        if (eviction.for_workload is None) == (eviction.for_reservation is None):
            yield f"{who} is not for exactly one beneficiary"


def only_preemptible_work_is_evicted(facts: PlanLookups) -> Iterator[str]:
    """What is not preemptible stays until its limit."""
    for _, victim, who in _each(facts):
        if not victim.preemptible:
            yield f"{who}: it is not preemptible"


def the_minimum_runtime_protects(facts: PlanLookups) -> Iterator[str]:
    """Nobody is told to go before the pool's minimum runtime."""
    for _, victim, who in _each(facts):
        if facts.is_young(victim):
            yield f"{who} before its minimum runtime"


def evictions_give_full_notice(facts: PlanLookups) -> Iterator[str]:
    """The stop signal is sent when the whole notice is over, not before; the grace follows it."""
    for eviction, victim, who in _each(facts):
        if eviction.stop_at < facts.now + facts.pools[victim.pool].policy.notice_seconds:
            yield f"{who} without its whole notice"


def evictions_have_a_true_reason(facts: PlanLookups) -> Iterator[str]:
    """The code of an eviction is one of those for evictions, and it is true; it has its numbers."""
    for eviction, victim, who in _each(facts):
        queued = facts.queued.get(eviction.for_workload or 0)
        true = ReasonCode.EVICTED_FOR_RESERVATION
        if queued is not None:
            true = (
                ReasonCode.EVICTED_FOR_PRIORITY
                if queued.team == victim.team
                else ReasonCode.EVICTED_FOR_GUARANTEE
            )
        if eviction.code not in GOINGS or eviction.code != true:
            yield f"{who} with code {eviction.code!r}, true is {true}"
        if not eviction.numbers:
            yield f"{who} without numbers"


def beneficiary_waits_for_its_eviction(facts: PlanLookups) -> Iterator[str]:
    """Whoever others make room for waits in the same pool, and is told that it waits for them."""
    for eviction, victim, who in _each(facts):
        if eviction.for_workload is None:
            continue
        queued = facts.queued.get(eviction.for_workload)
        if queued is None or queued.pool != victim.pool:
            yield f"{who} for workload {eviction.for_workload}, which does not wait in its pool"
            continue
        refusal = facts.refusals.get(queued.id)
        if refusal is None or refusal.code != ReasonCode.WAITS_FOR_EVICTION:
            yield f"{who} for workload {queued.id}, which does not wait for it"
        elif victim.id not in refusal.blockers:
            yield f"{who} for workload {queued.id}, which is told to wait for others"


def no_eviction_cycles(facts: PlanLookups) -> Iterator[str]:
    """What had to make room for a workload does not evict it in turn."""
    for victim, queued, who in _for_workloads(facts):
        if queued.evicted_by == victim.id:
            yield f"{who}: workload {queued.id} had to make room for it, and now evicts it back"


def within_a_team_by_priority(facts: PlanLookups) -> Iterator[str]:
    """Work of the same team goes only when its priority is lower, and not from inside another reservation."""
    for victim, queued, who in _for_workloads(facts):
        if victim.team == queued.team:
            if victim.priority >= queued.priority:
                yield f"{who}: its priority is not lower"
            if victim.reservation != queued.reservation:
                yield f"{who}: it runs inside another reservation"


def across_teams_only_for_a_guarantee(facts: PlanLookups) -> Iterator[str]:
    """Work of another team, never from inside its reservation, goes only for work within its team's guarantee."""
    for victim, queued, who in _for_workloads(facts):
        if victim.team == queued.team:
            continue
        if victim.reservation is not None:
            yield f"{who}: it runs inside a reservation of another team"
        if not any(facts.within_guarantee(queued, m) for m in facts.slots_by_model(victim.units)):
            yield f"{who}: workload {queued.id} is not within its team's guarantee"


def across_teams_only_borrowed_work_is_evicted(facts: PlanLookups) -> Iterator[str]:
    """Each team that loses work to others still had something borrowed when the last of it was taken, whatever its priority."""
    lost: dict[TeamModel, list[int]] = defaultdict(list)
    own: Counter[TeamModel] = Counter()
    for eviction, victim, _ in _each(facts):
        beneficiary = facts.queued.get(eviction.for_workload or 0)
        for model, count in facts.slots_by_model(victim.units).items():
            if beneficiary is not None and beneficiary.team != victim.team:
                lost[victim.pool, victim.team, model].append(count)
            elif eviction.for_reservation is not None and victim.reservation is None:
                own[victim.pool, victim.team, model] += count
    for key, counts in sorted(lost.items()):
        pool, team, model = key
        if facts.is_static(pool) and facts.pools[pool].team == team:
            yield f"team {team} loses work in its own static pool {pool}"
            continue
        leaving = sum(
            facts.slots_by_model(r.units)[model]
            for r in facts.snapshot.running
            if r.team == team and r.stopping and r.reservation is None and r.pool == pool
        )
        guaranteed = 0 if facts.is_static(pool) else facts.guarantee(key)
        excess = facts.held(key) - leaving - guaranteed - own[key]
        if sum(counts) - max(counts) >= excess:
            yield f"team {team} in pool {pool} loses {sum(counts)} slots of {model} and borrowed only {excess}"


def for_a_reservation_at_its_start(facts: PlanLookups) -> Iterator[str]:
    """Work goes for a reservation of its pool no sooner than notice and grace before the start, if it would be there still."""
    for eviction, victim, who in _each(facts):
        if eviction.for_reservation is None:
            continue
        reservation = facts.reservations.get(eviction.for_reservation)
        if reservation is None or reservation.pool != victim.pool:
            yield f"{who} for a reservation that is not known in its pool"
        elif facts.now < reservation.start - facts.lead(victim.pool):
            yield f"{who} for a reservation that does not start yet"
        elif victim.until <= reservation.start:
            yield f"{who}, which would have ended before the reservation starts"
        elif not any(serves(facts.units[u], reservation.ask) for u in victim.units if u in facts.units):
            yield f"{who} frees nothing the reservation asked for"


# -- only for something --------------------------------------------------------------------------------------------------


class RoomAfterEvictions:
    """What is there for one workload that others make room for."""

    def __init__(self, facts: PlanLookups, queued: QueuedWorkload) -> None:
        self.facts, self.queued = facts, queued
        self.victims = [v.id for v, q, _ in _for_workloads(facts) if q.id == queued.id]
        self.leaving = [
            r.id
            for r in facts.snapshot.running
            if r.stopping and r.evicted_for_workload == queued.id and r.units
        ]
        own = [facts.units[u] for u in queued.earmarked_units if u in facts.units and u not in facts.holder]
        self.own = [
            u for u in own if facts.is_usable(u) and u.id not in facts.placed_on and u.id not in facts.bound
        ]

    def freed(self, workloads: list[int]) -> list[UnitInfo]:
        """Units of these that the workload may have once they are gone."""
        facts, found = self.facts, []
        for workload in workloads:
            for unit in facts.running[workload].units:
                if unit in facts.units and facts.is_usable(facts.units[unit]):
                    theirs = (
                        facts.bound.get(unit) == self.queued.reservation
                    )  # both None outside reservations
                    if theirs and facts.earmark.get(unit, self.queued.id) == self.queued.id:
                        found.append(facts.units[unit])
        return found

    def free(self) -> list[UnitInfo]:
        """Units that lie free; of a plan that makes room for several it is not known for whom each is kept."""
        if self.queued.reservation is not None:
            return [
                u
                for u in self.facts.units_by_pool[self.queued.pool]
                if self.facts.bound.get(u.id) == self.queued.reservation
                and u.id not in self.facts.holder
                and u.id not in self.facts.placed_on
                and self.facts.is_usable(u)
            ]
        return self.facts.left.get(self.queued.pool, [])

    def is_allowed(self, gone: list[int], kind: KindTuple) -> bool:
        """Quota, caps and spare capacity would allow a start once these are gone, whatever else the plan starts."""
        spare = self.facts.pools[self.queued.pool].policy.spare_slots
        may_use_spare = self.queued.priority is Priority.CRITICAL or self.queued.reservation is not None
        return (not spare or may_use_spare) and self.facts.limits_allow(self.queued, kind, gone)


def _rooms_after_evictions(facts: PlanLookups) -> Iterator[RoomAfterEvictions]:
    for workload in sorted({q.id for _, q, _ in _for_workloads(facts)}):
        yield RoomAfterEvictions(facts, facts.queued[workload])


def evictions_enable_the_start(facts: PlanLookups) -> Iterator[str]:
    """Once those told to go are gone, what they go for fits: their units and those that are free for it are enough."""
    for room in _rooms_after_evictions(facts):
        gone = [*room.victims, *room.leaving]
        over = [facts.units[u] for u in facts.given_up_units - facts.holder.keys() - facts.placed_on.keys()]
        units = {u.id: u for u in (*room.free(), *over, *room.own, *room.freed(gone))}
        if not facts.fits(room.queued.ask, units.values(), gone):
            yield f"workloads {room.victims} go in vain: workload {room.queued.id} does not fit when they are gone"
        for victim in room.victims:
            if not any(serves(u, room.queued.ask) for u in room.freed([victim])):
                yield f"eviction of workload {victim} frees nothing that workload {room.queued.id} asked for"


def every_eviction_is_needed(facts: PlanLookups) -> Iterator[str]:
    """With any one victim let off, what they go for would not fit; so nobody goes while free units would do."""
    for room in _rooms_after_evictions(facts):
        pool = room.queued.pool
        if pool in facts.pools_with_earmarks_given_up or not _has_no_promises(facts, pool):
            continue
        several = sum(facts.queued[r.workload].pool == pool for r in _waits_for_evictions(facts)) > 1
        free = room.own if several else [*room.free(), *room.own]
        freely = [] if several else _leaving_freely(facts, room.queued)
        for victim in room.victims:
            gone = [v for v in room.victims if v != victim]
            kinds = {kind_tuple(facts.units[u]) for u in facts.running[victim].units if u in facts.units}
            units = {u.id: u for u in (*free, *room.freed(gone))}
            for kind in facts.kinds_that_fit(room.queued.ask, units.values(), gone):
                if kind in kinds and room.is_allowed(gone, kind):
                    yield f"eviction of workload {victim} is not needed: workload {room.queued.id} fits without it"
                    break
        idle = {u.id: u for u in (*free, *room.freed(freely))}
        for kind in facts.kinds_that_fit(room.queued.ask, idle.values(), freely):
            if room.is_allowed([], kind):
                yield f"workloads {room.victims} are told to go for workload {room.queued.id}, which fits without that"
                break


def _waits_for_evictions(facts: PlanLookups) -> list[Refusal]:
    return [
        r
        for r in facts.plan.refusals
        if r.code == ReasonCode.WAITS_FOR_EVICTION and r.workload in facts.queued
    ]


def _has_no_promises(facts: PlanLookups, pool: int) -> bool:
    """No unit of the pool is promised to somebody to come, so a free one is there for whoever fits."""
    hosts = {u.host for u in facts.units_by_pool.get(pool, ())}
    return not facts.unbound(pool) and not facts.set_aside and not any(facts.windows.get(h) for h in hosts)


def _leaving_freely(facts: PlanLookups, queued: QueuedWorkload) -> list[int]:
    """Running work of the pool that is on its way out for nobody in particular."""
    return [
        r.id
        for r in facts.snapshot.running
        if r.pool == queued.pool
        and r.stopping
        and r.evicted_for_reservation is None
        and r.evicted_for_workload not in facts.queued
    ]
