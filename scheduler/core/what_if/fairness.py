"""Compute the fair-share table of a pool, which compares the teams' past use with their weights."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.pool_snapshot import PoolSnapshot
from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import PoolInfo, PoolKind, QueuedWorkload, Snapshot


@dataclass(frozen=True, slots=True)
class FairnessRow:
    """One team in one pool. Amounts are in slots (840 for a whole GPU).

    ``decayed_use`` is past use in slot-seconds, which halves with every half-life. ``share`` is the team's
    part (0 to 1) of the decayed use of all teams in the table. ``fair_share`` is the team's weight divided by
    the sum of the weights of these teams.
    """

    team: int
    name: str
    guaranteed: int
    held: int
    borrowed: int
    waiting: int
    decayed_use: float
    weight: int
    share: float
    fair_share: float


def fairness_table(snapshot: Snapshot, pool: int, now: int) -> list[FairnessRow]:
    """Return one row for each team with a quota in the pool, sorted by team id.

    A static pool belongs to one team, so its table has one row.
    """
    owner = next(p for p in snapshot.pools if p.id == pool)
    state = PoolState(PoolSnapshot(snapshot, owner), now)
    ledger = state.ledger
    teams = ledger.teams_with_quota if owner.kind is PoolKind.DYNAMIC else {owner.team}
    rows = [team for team in sorted(snapshot.teams, key=lambda t: t.id) if team.id in teams]
    used = {use.team: use.slot_seconds for use in snapshot.decayed_use if use.pool == pool}
    models = {unit.model for unit in state.units}
    all_use, all_weight = sum(used.get(t.id, 0.0) for t in rows), sum(max(1, t.weight) for t in rows)
    return [
        FairnessRow(
            team=team.id,
            name=team.name,
            guaranteed=_guaranteed_slots(state, owner, team.id, models),
            held=sum(ledger.held[team.id, model] for model in models),
            borrowed=sum(max(0, ledger.held[team.id, m] - ledger.guarantee(team.id, m)) for m in models),
            waiting=sum(_slots_asked(state, queued) for queued in state.queued if queued.team == team.id),
            decayed_use=used.get(team.id, 0.0),
            weight=team.weight,
            share=used.get(team.id, 0.0) / all_use if all_use else 0.0,
            fair_share=max(1, team.weight) / all_weight,
        )
        for team in rows
    ]


def _guaranteed_slots(state: PoolState, pool: PoolInfo, team: int, models: set[str]) -> int:
    """Return the slots guaranteed to a team. The owner of a static pool is guaranteed the whole pool."""
    if pool.kind is PoolKind.STATIC:
        return int(state.slots.sum())
    return sum(state.ledger.guarantee(team, model) for model in models)


def _slots_asked(state: PoolState, queued: QueuedWorkload) -> int:
    """Return the slots that a waiting workload would hold on its preferred kind of unit.

    Return 0 if the pool has no suitable hardware.
    """
    kinds = state.kinds_for(queued.ask)
    return state.slots_needed(queued.ask, kinds[0]) if kinds else 0
