from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.model.pool_state import PoolState
from scheduler.core.model.snapshot import PoolKind, QueuedWorkload, Snapshot


@dataclass(frozen=True, slots=True)
class FairnessRow:
    """One team in one pool. Amounts in slots; ``decayed_use`` in slot-seconds; ``share`` is the team's part (0 to 1) of
    all decayed use, and ``fair_share`` the part that its weight stands for among the teams with a quota here."""

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
    """Why does that team get more? One row per team with a quota in the pool (or its owner), by team id."""
    owner = next(p for p in snapshot.pools if p.id == pool)
    board = PoolState(snapshot, owner, now)
    ledger = board.ledger
    teams = ledger.teams_with_quota if owner.kind is PoolKind.DYNAMIC else {owner.team}
    rows = [team for team in sorted(snapshot.teams, key=lambda t: t.id) if team.id in teams]
    used = {use.team: use.slot_seconds for use in snapshot.decayed_use if use.pool == pool}
    models = {unit.model for unit in board.units}
    all_use, all_weight = sum(used.get(t.id, 0.0) for t in rows), sum(max(1, t.weight) for t in rows)
    return [
        FairnessRow(
            team=team.id,
            name=team.name,
            guaranteed=(
                int(board.slots.sum())
                if owner.kind is PoolKind.STATIC
                else sum(ledger.guarantee(team.id, model) for model in models)
            ),
            held=sum(ledger.held[team.id, model] for model in models),
            borrowed=sum(max(0, ledger.held[team.id, m] - ledger.guarantee(team.id, m)) for m in models),
            waiting=sum(_slots_asked(board, queued) for queued in board.queued if queued.team == team.id),
            decayed_use=used.get(team.id, 0.0),
            weight=team.weight,
            share=used.get(team.id, 0.0) / all_use if all_use else 0.0,
            fair_share=max(1, team.weight) / all_weight,
        )
        for team in rows
    ]


def _slots_asked(board: PoolState, queued: QueuedWorkload) -> int:
    """Slots of its first choice, or 0 for what the pool does not have."""
    kinds = board.kinds_for(queued.ask)
    return board.slots_needed(queued.ask, kinds[0]) if kinds else 0
