"""How much a team, a user or a workload may hold, and what the pool keeps free."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.plan_verifier.placement_checks import known_placements
from benchmarks.plan_verifier.plan_lookups import PlanLookups, TeamModel
from scheduler.core.model.plan import Placement
from scheduler.core.model.snapshot import Priority, QuotaInfo

TeamModelRows = tuple[TeamModel, QuotaInfo | None, list[Placement]]


def _rows_by_team(facts: PlanLookups) -> Iterator[TeamModelRows]:
    """What each team starts outside reservations, by pool and model, with its quota; a static pool needs none."""
    groups: dict[TeamModel, list[Placement]] = defaultdict(list)
    for placement, queued, _ in known_placements(facts):
        if queued.reservation is None and placement.units and not facts.is_static(queued.pool):
            groups[queued.pool, queued.team, facts.units[placement.units[0]].model].append(placement)
    for key, placements in sorted(groups.items()):
        yield key, facts.quotas.get(key), placements


def _where(key: TeamModel) -> str:
    return f"team {key[1]} in pool {key[0]} on {key[2]}"


def quotas_hold(facts: PlanLookups) -> Iterator[str]:
    """A team needs a quota for a model, and holds no more of it than its guarantee and what it may borrow."""
    for key, quota, placements in _rows_by_team(facts):
        after = facts.held(key) + sum(facts.slots(p.units) for p in placements)
        if quota is None:
            yield f"{_where(key)} has no quota and got units"
        elif quota.borrow_limit is not None and after > quota.guaranteed + quota.borrow_limit:
            yield f"{_where(key)} holds {after}, above guarantee {quota.guaranteed} and borrow limit {quota.borrow_limit}"


def only_what_may_borrow_borrows(facts: PlanLookups) -> Iterator[str]:
    """Work that is not preemptible fits the guarantee together with what else of its team is not; so does, together with
    everything, work that a budget keeps from borrowing."""
    for key, quota, placements in _rows_by_team(facts):
        if quota is None:
            continue
        firm = [p for p in placements if not facts.queued[p.workload].preemptible]
        barred = [p for p in placements if p not in firm and not facts.queued[p.workload].may_borrow]
        firm_slots = sum(facts.slots(p.units) for p in firm)
        if firm and facts.held(key, firm=True) + firm_slots > quota.guaranteed:
            yield f"{_where(key)} borrows for work that is not preemptible"
        if barred and facts.held(key) + sum(facts.slots(p.units) for p in barred) > quota.guaranteed:
            yield f"{_where(key)} borrows for work that may not borrow"
        if any(p.borrowed_slots for p in [*firm, *barred]):
            yield f"{_where(key)}: work that may not borrow is marked as borrowed"


def what_is_borrowed_is_marked(facts: PlanLookups) -> Iterator[str]:
    """What a team takes above its guarantee is marked as borrowed, so that it can be reclaimed; and nothing else is."""
    for placement, _, who in known_placements(facts):
        if not 0 <= placement.borrowed_slots <= facts.slots(placement.units):
            yield f"{who} borrows {placement.borrowed_slots} slots of {facts.slots(placement.units)}"
    for key, quota, placements in _rows_by_team(facts):
        if quota is None:
            continue
        firm = sum(facts.slots(p.units) for p in placements if not facts.queued[p.workload].preemptible)
        before, after = facts.held(key), facts.held(key) + sum(facts.slots(p.units) for p in placements)
        marked = sum(p.borrowed_slots for p in placements)
        least = max(0, after - quota.guaranteed) - max(0, before - quota.guaranteed) - firm
        most = max(0, facts.held_after[key] - quota.guaranteed)
        if not least <= marked <= max(most, least):
            yield f"{_where(key)} borrows {max(least, 0)} to {most} slots, the plan says {marked}"


def caps_hold(facts: PlanLookups) -> Iterator[str]:
    """The pool's caps on one workload, and on all that one user holds."""
    held: Counter[tuple[int, int]] = Counter()
    for running in facts.snapshot.running:
        held[running.pool, running.user] += facts.slots(running.units)
    users = set()
    for placement, queued, who in known_placements(facts):
        slots = facts.slots(placement.units)
        held[queued.pool, queued.user] += slots
        users.add((queued.pool, queued.user))
        cap = facts.pools[queued.pool].policy.most_slots_per_workload
        if cap is not None and slots > cap:
            yield f"{who} holds {slots} slots, the cap is {cap}"
    for pool, user in sorted(users):
        cap = facts.pools[pool].policy.most_slots_per_user
        if cap is not None and held[pool, user] > cap:
            yield f"user {user} holds {held[pool, user]} slots in pool {pool}, the cap is {cap}"


def spare_capacity_is_kept(facts: PlanLookups) -> Iterator[str]:
    """What the pool keeps free is taken by critical work only, and by work inside reservations. Units that others left for a
    workload were judged when these were told to go; they are free for nobody else."""
    taken: dict[int, int] = defaultdict(int)
    kept = set(facts.earmark)
    for placement, queued, _ in known_placements(facts):
        kept |= set(queued.earmarked_units)
        if queued.priority is not Priority.CRITICAL and queued.reservation is None:
            taken[queued.pool] += facts.slots(set(placement.units) - set(queued.earmarked_units))
    for pool in facts.snapshot.pools:
        if pool.policy.spare_slots and taken[pool.id]:
            free = sum(u.slots for u in facts.free_before_plan.get(pool.id, ()) if u.id not in kept)
            left = free - taken[pool.id]
            if left < pool.policy.spare_slots:
                spare = pool.policy.spare_slots
                yield f"pool {pool.id} keeps {left} slots free after ordinary work, its spare is {spare}"
