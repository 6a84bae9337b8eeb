"""Check evictions: only allowed work is evicted, with enough notice, and only to enable a start.

A victim is a workload that the plan evicts. The beneficiary of an eviction is the workload or reservation for
which the victim is evicted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.plan_verifier.plan_lookups import PlanLookups, TeamModel
from benchmarks.plan_verifier.unit_lookups import KindTuple, kind_tuple, serves
from scheduler.core.model.plan import Eviction, Refusal
from scheduler.core.model.snapshot import Priority, QueuedWorkload, RunningWorkload, UnitInfo
from scheduler.core.reasons import ReasonCode

EVICTION_CODES = {
    ReasonCode.EVICTED_FOR_GUARANTEE,
    ReasonCode.EVICTED_FOR_PRIORITY,
    ReasonCode.EVICTED_FOR_RESERVATION,
}


def _each(lookups: PlanLookups) -> Iterator[tuple[Eviction, RunningWorkload, str]]:
    for eviction in lookups.evictions:
        yield eviction, lookups.running[eviction.workload], f"eviction of workload {eviction.workload}"


def _for_workloads(lookups: PlanLookups) -> Iterator[tuple[RunningWorkload, QueuedWorkload, str]]:
    """Yield (victim, beneficiary, name of the eviction) for each eviction in favour of a workload.

    The workload waits in the victim's pool. The name is used in the sentences that report violations.
    """
    for eviction, victim, subject in _each(lookups):
        queued = lookups.queued.get(eviction.for_workload or 0)
        if queued is not None and queued.pool == victim.pool and eviction.for_reservation is None:
            yield victim, queued, subject


def workloads_are_evicted_whole_and_once(lookups: PlanLookups) -> Iterator[str]:
    """Report victims that do not run, are already stopping, or are evicted twice.

    Also report evictions without exactly one beneficiary.
    """
    planned_count = Counter(e.workload for e in lookups.plan.evictions)
    for eviction in lookups.plan.evictions:
        subject = f"eviction of workload {eviction.workload}"
        if eviction.workload not in lookups.running:
            yield f"{subject}: it does not run"
        elif lookups.running[eviction.workload].stopping:
            yield f"{subject}: it is stopping already"
        if planned_count[eviction.workload] > 1:
            yield f"{subject} is planned twice"
        if (eviction.for_workload is None) == (eviction.for_reservation is None):
            yield f"{subject} is not for exactly one beneficiary"


def only_preemptible_work_is_evicted(lookups: PlanLookups) -> Iterator[str]:
    """Report victims that are not preemptible."""
    for _, victim, subject in _each(lookups):
        if not victim.preemptible:
            yield f"{subject}: it is not preemptible"


def the_minimum_runtime_protects(lookups: PlanLookups) -> Iterator[str]:
    """Report victims that have not run for the pool's minimum runtime."""
    for _, victim, subject in _each(lookups):
        if lookups.is_young(victim):
            yield f"{subject} before its minimum runtime"


def evictions_give_full_notice(lookups: PlanLookups) -> Iterator[str]:
    """Report evictions whose stop signal is sent before the whole notice is over."""
    for eviction, victim, subject in _each(lookups):
        if eviction.stop_at < lookups.now + lookups.pools[victim.pool].policy.notice_seconds:
            yield f"{subject} without its whole notice"


def evictions_have_a_true_reason(lookups: PlanLookups) -> Iterator[str]:
    """Report evictions whose code does not match their beneficiary, and evictions without numbers."""
    for eviction, victim, subject in _each(lookups):
        queued = lookups.queued.get(eviction.for_workload or 0)
        true_code = ReasonCode.EVICTED_FOR_RESERVATION
        if queued is not None:
            true_code = (
                ReasonCode.EVICTED_FOR_PRIORITY
                if queued.team == victim.team
                else ReasonCode.EVICTED_FOR_GUARANTEE
            )
        if eviction.code not in EVICTION_CODES or eviction.code != true_code:
            yield f"{subject} with code {eviction.code!r} instead of {true_code}"
        if not eviction.numbers:
            yield f"{subject} without numbers"


def beneficiary_waits_for_its_eviction(lookups: PlanLookups) -> Iterator[str]:
    """Report evictions in favour of a workload that does not wait for this eviction.

    The beneficiary must wait in the victim's pool. Its refusal must have the code WAITS_FOR_EVICTION and list
    the victim as a blocker.
    """
    for eviction, victim, subject in _each(lookups):
        if eviction.for_workload is None:
            continue
        queued = lookups.queued.get(eviction.for_workload)
        if queued is None or queued.pool != victim.pool:
            yield f"{subject} for workload {eviction.for_workload}, which does not wait in its pool"
            continue
        refusal = lookups.refusals.get(queued.id)
        if refusal is None or refusal.code != ReasonCode.WAITS_FOR_EVICTION:
            yield f"{subject} for workload {queued.id}, which does not wait for it"
        elif victim.id not in refusal.blockers:
            yield f"{subject} for workload {queued.id}, which has other blockers"


def no_eviction_cycles(lookups: PlanLookups) -> Iterator[str]:
    """Report each eviction of a workload A for a workload B, if B was evicted for A before."""
    for victim, queued, subject in _for_workloads(lookups):
        if queued.evicted_by == victim.id:
            yield f"{subject}: workload {queued.id} was evicted for it, and now evicts it"


def within_a_team_by_priority(lookups: PlanLookups) -> Iterator[str]:
    """Report victims of the beneficiary's own team whose priority is not lower than the beneficiary's.

    Also report a victim of this team if only the victim or only the beneficiary is inside a reservation, or
    if they are inside different reservations.
    """
    for victim, queued, subject in _for_workloads(lookups):
        if victim.team == queued.team:
            if victim.priority >= queued.priority:
                yield f"{subject}: its priority is not lower"
            if victim.reservation != queued.reservation:
                yield f"{subject}: it runs inside another reservation"


def across_teams_only_for_a_guarantee(lookups: PlanLookups) -> Iterator[str]:
    """Report victims of other teams if the beneficiary is not within its own team's guarantee.

    Also report victims of other teams that run inside a reservation.
    """
    for victim, queued, subject in _for_workloads(lookups):
        if victim.team == queued.team:
            continue
        if victim.reservation is not None:
            yield f"{subject}: it runs inside a reservation of another team"
        if not any(lookups.within_guarantee(queued, m) for m in lookups.slots_by_model(victim.units)):
            yield f"{subject}: workload {queued.id} is not within its team's guarantee"


def across_teams_only_borrowed_work_is_evicted(lookups: PlanLookups) -> Iterator[str]:
    """Report teams that lose more slots to workloads of other teams than they have borrowed.

    The priority does not matter. Work is evicted as a whole, so the last victim of a team may be partly
    within the team's guarantee. Example: a team that has borrowed 4 GPUs may lose two workloads of 3 GPUs,
    because it still borrows 1 GPU after the first eviction. The plan does not show which victim was the last.
    So the check assumes that the largest victim was the last, and does not count its slots.
    """
    lost_to_teams, lost_to_reservations = _lost_slots(lookups)
    for key, counts in sorted(lost_to_teams.items()):
        pool, team, model = key
        if lookups.is_static(pool) and lookups.pools[pool].team == team:
            yield f"team {team} loses work in its own static pool {pool}"
            continue
        guaranteed = 0 if lookups.is_static(pool) else lookups.guarantee(key)
        excess = lookups.held(key) - _stopping_slots(lookups, key) - guaranteed - lost_to_reservations[key]
        if sum(counts) - max(counts) >= excess:
            yield (
                f"team {team} in pool {pool} loses {sum(counts)} slots of {model} and borrowed only {excess}"
            )


def _lost_slots(lookups: PlanLookups) -> tuple[dict[TeamModel, list[int]], Counter[TeamModel]]:
    """Return two tables by (pool, team, model).

    The first table lists the slots of each victim that is evicted for a workload of another team. The second
    table has the sum of the slots that the team loses to reservations.
    """
    lost_to_teams: dict[TeamModel, list[int]] = defaultdict(list)
    lost_to_reservations: Counter[TeamModel] = Counter()
    for eviction, victim, _ in _each(lookups):
        beneficiary = lookups.queued.get(eviction.for_workload or 0)
        for model, count in lookups.slots_by_model(victim.units).items():
            if beneficiary is not None and beneficiary.team != victim.team:
                lost_to_teams[victim.pool, victim.team, model].append(count)
            elif eviction.for_reservation is not None and victim.reservation is None:
                lost_to_reservations[victim.pool, victim.team, model] += count
    return lost_to_teams, lost_to_reservations


def _stopping_slots(lookups: PlanLookups, key: TeamModel) -> int:
    """Return the slots of a team's work outside reservations that was already stopping before the plan."""
    pool, team, model = key
    return sum(
        lookups.slots_by_model(r.units)[model]
        for r in lookups.snapshot.running
        if r.team == team and r.stopping and r.reservation is None and r.pool == pool
    )


def for_a_reservation_at_its_start(lookups: PlanLookups) -> Iterator[str]:
    """Report evictions for a reservation that are too early, not needed, or in another pool.

    An eviction is too early if it happens more than notice plus grace before the reservation starts. It is
    not needed if the work would end before this start anyway, or if none of the work's units serve the
    reservation.
    """
    for eviction, victim, subject in _each(lookups):
        if eviction.for_reservation is None:
            continue
        reservation = lookups.reservations.get(eviction.for_reservation)
        if reservation is None or reservation.pool != victim.pool:
            yield f"{subject} for a reservation that is not known in its pool"
        elif lookups.now < reservation.start - lookups.eviction_lead(victim.pool):
            yield f"{subject} for a reservation that does not start yet"
        elif victim.until <= reservation.start:
            yield f"{subject}, which would have ended before the reservation starts"
        elif not any(serves(lookups.units[u], reservation.ask) for u in victim.units if u in lookups.units):
            yield f"{subject} frees no units that the reservation asked for"


# -- whether the evictions are needed -----------------------------------------------------------------


class EvictionBeneficiary:
    """A waiting workload for which the plan evicts other work.

    ``victims`` are the workloads that this plan evicts for it. ``stopping`` are the workloads that an earlier
    plan evicted for it. ``own`` are the free units that are earmarked for it.
    """

    def __init__(self, lookups: PlanLookups, queued: QueuedWorkload) -> None:
        self.lookups, self.queued = lookups, queued
        self.victims = [v.id for v, q, _ in _for_workloads(lookups) if q.id == queued.id]
        self.stopping = [
            r.id
            for r in lookups.snapshot.running
            if r.stopping and r.evicted_for_workload == queued.id and r.units
        ]
        own = [
            lookups.units[u] for u in queued.earmarked_units if u in lookups.units and u not in lookups.holder
        ]
        self.own = [
            u
            for u in own
            if lookups.is_usable(u) and u.id not in lookups.placed_on and u.id not in lookups.bound
        ]

    def freed(self, workloads: list[int]) -> list[UnitInfo]:
        """Return the units that the beneficiary may use after ``workloads`` have stopped."""
        lookups, units = self.lookups, []
        for workload in workloads:
            for unit in lookups.running[workload].units:
                if unit in lookups.units and lookups.is_usable(lookups.units[unit]):
                    # For a unit and a beneficiary outside reservations, both values are None.
                    is_reachable = lookups.bound.get(unit) == self.queued.reservation
                    if is_reachable and lookups.earmark.get(unit, self.queued.id) == self.queued.id:
                        units.append(lookups.units[unit])
        return units

    def free(self) -> list[UnitInfo]:
        """Return the free units that the beneficiary may use.

        Inside a reservation, these are the free units that are bound to the reservation. Otherwise, these are
        the free units of the pool, without time-sliced shares of GPUs that another team uses. If the plan
        evicts for several workloads, some of these units may be earmarked for another workload: the plan does
        not show this.
        """
        if self.queued.reservation is not None:
            return [
                u
                for u in self.lookups.units_by_pool[self.queued.pool]
                if self.lookups.bound.get(u.id) == self.queued.reservation
                and u.id not in self.lookups.holder
                and u.id not in self.lookups.placed_on
                and self.lookups.is_usable(u)
            ]
        free = self.lookups.free_after_plan.get(self.queued.pool, [])
        if not self.queued.ask.profile.startswith("share"):
            return free
        others = self._gpus_of_other_teams()
        return [u for u in free if u.gpu not in others]

    def _gpus_of_other_teams(self) -> set[int]:
        """Return the GPUs that other teams use. Work that stops for the beneficiary does not count."""
        lookups, stops = self.lookups, {*self.victims, *self.stopping}
        teams = {u: lookups.running[work].team for u, work in lookups.holder.items() if work not in stops} | {
            u: lookups.queued[work].team for u, work in lookups.placed_on.items()
        }
        return {
            lookups.units[u].gpu
            for u, team in teams.items()
            if team != self.queued.team and u in lookups.units
        }

    def is_allowed(self, stopped: list[int], kind: KindTuple) -> bool:
        """Return True if quota, caps and spare capacity allow a start after these workloads have stopped.

        If the result is True, the start is certainly allowed, because the other work that the plan starts is
        counted. If the result is False, the start may still be allowed. For example, the result is always
        False in a pool with spare capacity that the workload may not use.
        """
        spare = self.lookups.pools[self.queued.pool].policy.spare_slots
        may_use_spare = self.queued.priority is Priority.CRITICAL or self.queued.reservation is not None
        return (not spare or may_use_spare) and self.lookups.limits_allow(self.queued, kind, stopped)


def _beneficiaries(lookups: PlanLookups) -> Iterator[EvictionBeneficiary]:
    for workload in sorted({q.id for _, q, _ in _for_workloads(lookups)}):
        yield EvictionBeneficiary(lookups, lookups.queued[workload])


def evictions_enable_the_start(lookups: PlanLookups) -> Iterator[str]:
    """Report beneficiaries that do not fit even after their victims have stopped.

    A beneficiary may then use the units of its victims, its earmarked units and free units. Also report
    victims that hold no unit of a kind that the beneficiary accepts.
    """
    for beneficiary in _beneficiaries(lookups):
        stopped = [*beneficiary.victims, *beneficiary.stopping]
        abandoned = [
            lookups.units[u]
            for u in lookups.abandoned_units - lookups.holder.keys() - lookups.placed_on.keys()
        ]
        units = {
            u.id: u for u in (*beneficiary.free(), *abandoned, *beneficiary.own, *beneficiary.freed(stopped))
        }
        if not lookups.fits(beneficiary.queued.ask, units.values(), stopped):
            yield (
                f"workloads {beneficiary.victims} are evicted in vain: workload {beneficiary.queued.id} "
                "does not fit after they have stopped"
            )
        for victim in beneficiary.victims:
            if not any(serves(u, beneficiary.queued.ask) for u in beneficiary.freed([victim])):
                yield (
                    f"eviction of workload {victim} frees no units that workload "
                    f"{beneficiary.queued.id} asked for"
                )


def every_eviction_is_needed(lookups: PlanLookups) -> Iterator[str]:
    """Report each victim without which the beneficiary would still fit.

    If the beneficiary fits on free units, report all its victims. If several workloads of the pool wait for
    evictions, only free units that are earmarked for the beneficiary count, because another workload may get
    the others. A pool is not checked if some of its units are promised for the future, or if a workload gives
    up its earmarked units.
    """
    for beneficiary in _beneficiaries(lookups):
        pool = beneficiary.queued.pool
        if pool in lookups.pools_with_earmarks_given_up or not _has_no_promises(lookups, pool):
            continue
        has_several = sum(lookups.queued[r.workload].pool == pool for r in _waits_for_evictions(lookups)) > 1
        free = beneficiary.own if has_several else [*beneficiary.free(), *beneficiary.own]
        unclaimed = [] if has_several else _stopping_unclaimed(lookups, beneficiary.queued)
        for victim in beneficiary.victims:
            if _fits_without(lookups, beneficiary, victim, free):
                yield (
                    f"eviction of workload {victim} is not needed: workload "
                    f"{beneficiary.queued.id} fits without it"
                )
        idle = {u.id: u for u in (*free, *beneficiary.freed(unclaimed))}
        kinds = lookups.kinds_that_fit(beneficiary.queued.ask, idle.values(), unclaimed)
        if any(beneficiary.is_allowed([], kind) for kind in kinds):
            yield (
                f"workloads {beneficiary.victims} are evicted for workload "
                f"{beneficiary.queued.id}, which fits without evictions"
            )


def _fits_without(
    lookups: PlanLookups, beneficiary: EvictionBeneficiary, victim: int, free: list[UnitInfo]
) -> bool:
    """Return True if the beneficiary fits without the eviction of ``victim``.

    Only units of the kinds that the victim holds are considered.
    """
    stopped = [v for v in beneficiary.victims if v != victim]
    victim_kinds = {kind_tuple(lookups.units[u]) for u in lookups.running[victim].units if u in lookups.units}
    units = {u.id: u for u in (*free, *beneficiary.freed(stopped))}
    return any(
        kind in victim_kinds and beneficiary.is_allowed(stopped, kind)
        for kind in lookups.kinds_that_fit(beneficiary.queued.ask, units.values(), stopped)
    )


def _waits_for_evictions(lookups: PlanLookups) -> list[Refusal]:
    return [
        r
        for r in lookups.plan.refusals
        if r.code == ReasonCode.WAITS_FOR_EVICTION and r.workload in lookups.queued
    ]


def _has_no_promises(lookups: PlanLookups, pool: int) -> bool:
    """Return True if no unit of the pool is promised for the future. Work may then use every free unit."""
    hosts = {u.host for u in lookups.units_by_pool.get(pool, ())}
    return (
        not lookups.unbound(pool)
        and not lookups.held_units
        and not any(lookups.windows.get(h) for h in hosts)
    )


def _stopping_unclaimed(lookups: PlanLookups, queued: QueuedWorkload) -> list[int]:
    """Return the ids of the pool's stopping workloads whose units no beneficiary claims.

    These are workloads that were not evicted, and workloads whose beneficiary no longer waits.
    """
    return [
        r.id
        for r in lookups.snapshot.running
        if r.pool == queued.pool
        and r.stopping
        and r.evicted_for_reservation is None
        and r.evicted_for_workload not in lookups.queued
    ]
