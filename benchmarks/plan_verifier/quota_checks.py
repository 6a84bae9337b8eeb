"""Check quotas, borrowing, caps and spare capacity.

All capacity is counted in slots. A slot is 1/840 of a GPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.plan_verifier.placement_checks import known_placements
from benchmarks.plan_verifier.plan_lookups import PlanLookups, TeamModel
from scheduler.core.model.plan import Placement
from scheduler.core.model.snapshot import Priority, QuotaInfo

TeamModelRows = tuple[TeamModel, QuotaInfo | None, list[Placement]]


def _rows_by_team(lookups: PlanLookups) -> Iterator[TeamModelRows]:
    """Yield (key, quota, placements) for each (pool, team, model) on which the plan starts work.

    Only work outside reservations and in dynamic pools is included. ``quota`` is None if the team has no
    quota for the model.
    """
    groups: dict[TeamModel, list[Placement]] = defaultdict(list)
    for placement, queued, _ in known_placements(lookups):
        if queued.reservation is None and placement.units and not lookups.is_static(queued.pool):
            groups[queued.pool, queued.team, lookups.units[placement.units[0]].model].append(placement)
    for key, placements in sorted(groups.items()):
        yield key, lookups.quotas.get(key), placements


def _where(key: TeamModel) -> str:
    return f"team {key[1]} in pool {key[0]} on {key[2]}"


def quotas_hold(lookups: PlanLookups) -> Iterator[str]:
    """Report teams that start work without a quota.

    Also report teams that hold more than their guarantee plus their borrow limit.
    """
    for key, quota, placements in _rows_by_team(lookups):
        after = lookups.held(key) + _slots_of(lookups, placements)
        if quota is None:
            yield f"{_where(key)} has no quota and got units"
        elif quota.borrow_limit is not None and after > quota.guaranteed + quota.borrow_limit:
            yield (
                f"{_where(key)} holds {after}, above guarantee {quota.guaranteed} and borrow "
                f"limit {quota.borrow_limit}"
            )


def only_what_may_borrow_borrows(lookups: PlanLookups) -> Iterator[str]:
    """Report teams that exceed their guarantee with work that may not borrow.

    Non-preemptible work may not borrow: all non-preemptible work of a team must fit into the guarantee. A
    budget can forbid other work to borrow. Such work must fit into the guarantee together with all slots
    that the team already holds. Also report work that may not borrow, if the plan marks it as borrowed.
    """
    for key, quota, placements in _rows_by_team(lookups):
        if quota is None:
            continue
        non_preemptible = [p for p in placements if not lookups.queued[p.workload].preemptible]
        without_borrowing = [
            p for p in placements if p not in non_preemptible and not lookups.queued[p.workload].may_borrow
        ]
        held_non_preemptible = lookups.held(key, non_preemptible=True) + _slots_of(lookups, non_preemptible)
        if non_preemptible and held_non_preemptible > quota.guaranteed:
            yield f"{_where(key)} borrows for work that is not preemptible"
        if without_borrowing and lookups.held(key) + _slots_of(lookups, without_borrowing) > quota.guaranteed:
            yield f"{_where(key)} borrows for work that may not borrow"
        if any(p.borrowed_slots for p in [*non_preemptible, *without_borrowing]):
            yield f"{_where(key)}: work that may not borrow is marked as borrowed"


def _slots_of(lookups: PlanLookups, placements: list[Placement]) -> int:
    return sum(lookups.slots(p.units) for p in placements)


def what_is_borrowed_is_marked(lookups: PlanLookups) -> Iterator[str]:
    """Report teams for which the plan marks too few or too many slots as borrowed.

    The marks matter because only marked slots can be reclaimed for a guarantee.
    """
    for placement, _, subject in known_placements(lookups):
        if not 0 <= placement.borrowed_slots <= lookups.slots(placement.units):
            yield f"{subject} borrows {placement.borrowed_slots} slots of {lookups.slots(placement.units)}"
    for key, quota, placements in _rows_by_team(lookups):
        if quota is None:
            continue
        non_preemptible = sum(
            lookups.slots(p.units) for p in placements if not lookups.queued[p.workload].preemptible
        )
        before, after = lookups.held(key), lookups.held(key) + _slots_of(lookups, placements)
        marked_slots = sum(p.borrowed_slots for p in placements)
        min_borrowed = max(0, after - quota.guaranteed) - max(0, before - quota.guaranteed) - non_preemptible
        max_borrowed = max(0, lookups.held_after[key] - quota.guaranteed)
        if not min_borrowed <= marked_slots <= max(max_borrowed, min_borrowed):
            yield (
                f"{_where(key)} borrows {max(min_borrowed, 0)} to {max_borrowed} slots, the "
                f"plan marks {marked_slots}"
            )


def caps_hold(lookups: PlanLookups) -> Iterator[str]:
    """Report workloads above the cap on one workload, and users above the cap on one user."""
    held: Counter[tuple[int, int]] = Counter()
    for running in lookups.snapshot.running:
        held[running.pool, running.user] += lookups.slots(running.units)
    users = set()
    for placement, queued, subject in known_placements(lookups):
        slots = lookups.slots(placement.units)
        held[queued.pool, queued.user] += slots
        users.add((queued.pool, queued.user))
        cap = lookups.pools[queued.pool].policy.max_slots_per_workload
        if cap is not None and slots > cap:
            yield f"{subject} holds {slots} slots, the cap is {cap}"
    for pool, user in sorted(users):
        cap = lookups.pools[pool].policy.max_slots_per_user
        if cap is not None and held[pool, user] > cap:
            yield f"user {user} holds {held[pool, user]} slots in pool {pool}, the cap is {cap}"


def spare_capacity_is_kept(lookups: PlanLookups) -> Iterator[str]:
    """Report pools in which ordinary work uses the spare capacity.

    Only critical work and work inside reservations may use the spare capacity. Units that evictions freed for
    a workload are not counted. No other workload may use them, and the planner checked the spare capacity
    when it decided on these evictions. If the workload starts on other units, its freed units count as free.
    """
    taken: dict[int, int] = defaultdict(int)
    earmarked = set(lookups.earmark)
    for placement, queued, _ in known_placements(lookups):
        earmarked -= set(queued.earmarked_units) - set(placement.units)
        earmarked |= set(queued.earmarked_units) & set(placement.units)
        if queued.priority is not Priority.CRITICAL and queued.reservation is None:
            taken[queued.pool] += lookups.slots(set(placement.units) - set(queued.earmarked_units))
    for pool in lookups.snapshot.pools:
        if pool.policy.spare_slots and taken[pool.id]:
            free = sum(u.slots for u in lookups.free_before_plan.get(pool.id, ()) if u.id not in earmarked)
            still_free = free - taken[pool.id]
            if still_free < pool.policy.spare_slots:
                spare = pool.policy.spare_slots
                yield (
                    f"pool {pool.id} keeps {still_free} slots free after ordinary work, its spare is {spare}"
                )
