"""Simulate the history of a pool from a seed, step by step.

Plans are applied, work ends and arrives, hosts close.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import (
    DecayedUseInfo,
    MaintenanceInfo,
    QueuedWorkload,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
)
from scheduler.core.planner import plan
from tests.core.crowded import crowded

HOUR = 3600


def apply_plan(snapshot: Snapshot, planned: Plan, now: int) -> Snapshot:
    """Return the snapshot after the plan has been applied."""
    waiting = {q.id: q for q in snapshot.queued}
    started = [_started(waiting.pop(p.workload), p.units, p.until, now) for p in planned.placements]
    evictions = {e.workload: e for e in planned.evictions}
    bindings = {b.reservation: b.units for b in planned.bindings}
    running = [
        replace(
            r,
            stopping=True,
            stop_by=evictions[r.id].stop_at + 30,
            evicted_for_workload=evictions[r.id].for_workload,
            evicted_for_reservation=evictions[r.id].for_reservation,
        )
        if r.id in evictions
        else r
        for r in snapshot.running
    ]
    reservations = tuple(
        replace(r, units=bindings[r.id]) if r.id in bindings else r for r in snapshot.reservations
    )
    return replace(
        snapshot, queued=tuple(waiting.values()), running=(*running, *started), reservations=reservations
    )


def _started(queued: QueuedWorkload, units: tuple[int, ...], until: int, now: int) -> RunningWorkload:
    return RunningWorkload(
        id=queued.id,
        team=queued.team,
        project=queued.project,
        user=queued.user,
        pool=queued.pool,
        units=units,
        started=now,
        until=until,
        predicted_end=now + queued.predicted_seconds,
        priority=queued.priority,
        preemptible=queued.preemptible,
        reservation=queued.reservation,
        evicted_by=queued.evicted_by,
        cpu_milli=queued.ask.cpu_milli,
        memory_mib=queued.ask.memory_mib,
    )


def pool_history(seed: int, now: int, steps: int, planned: bool = True) -> Iterator[tuple[Snapshot, int]]:
    """Yield (snapshot, time) of each step; with ``planned``, most plans are applied before the next step."""
    rng = random.Random(seed)
    snapshot = crowded(seed, now)
    new_ids = iter(range(10_000, 20_000))
    for _ in range(steps):
        yield snapshot, now
        if planned and rng.random() < 0.7:
            snapshot = apply_plan(snapshot, plan(snapshot, now), now)
        now += rng.choice((0, 0, 1, 30, 600, HOUR))
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            snapshot = _random_change(rng, snapshot, now, new_ids)


WORK_CHANGES = ("ends", "arrives", "saves", "cancel", "gate")
# A change that is listed more often is more frequent.
CHANGES = (
    "ends",
    "ends",
    "arrives",
    "arrives",
    "arrives",
    "saves",
    "host",
    "unit",
    "use",
    "quota",
    "cancel",
    "reserve",
    "over",
    "maintenance",
    "policy",
    "weight",
    "gate",
    "grows",
)


def _random_change(rng: random.Random, snapshot: Snapshot, now: int, new_ids: Iterator[int]) -> Snapshot:
    change = rng.choice(CHANGES)
    if change in WORK_CHANGES:
        return _change_work(rng, change, snapshot, now, new_ids)
    if change in ("host", "unit", "grows", "maintenance"):
        return _change_hardware(rng, change, snapshot, now)
    if change in ("reserve", "over"):
        return _change_reservations(rng, change, snapshot, now, new_ids)
    return _change_rules(rng, change, snapshot)


def _change_work(
    rng: random.Random, change: str, snapshot: Snapshot, now: int, new_ids: Iterator[int]
) -> Snapshot:
    running, queued = list(snapshot.running), list(snapshot.queued)
    if change == "ends" and running:
        ended = running.pop(rng.randrange(len(running)))
        queued = [_with_freed_units(q, ended) if q.id == ended.evicted_for_workload else q for q in queued]
    elif change == "arrives":
        model = rng.choice(crowded(rng.randrange(500), now).queued)
        queued.append(replace(model, id=next(new_ids), submitted=now))
    elif change == "saves" and running:
        at = rng.randrange(len(running))
        running[at] = replace(running[at], checkpoint_at=now)
    elif change == "cancel" and queued:
        queued.pop(rng.randrange(len(queued)))
    elif change == "gate" and queued:
        at = rng.randrange(len(queued))
        queued[at] = replace(queued[at], gate="" if queued[at].gate else "budget_closed")
    return replace(snapshot, running=tuple(running), queued=tuple(queued))


def _with_freed_units(queued: QueuedWorkload, ended: RunningWorkload) -> QueuedWorkload:
    return replace(
        queued,
        earmarked_units=tuple(sorted({*queued.earmarked_units, *ended.units})),
        room_made_by_own_team=ended.team == queued.team and queued.room_made_by_own_team is not False,
    )


def _change_hardware(rng: random.Random, change: str, snapshot: Snapshot, now: int) -> Snapshot:
    if change == "host":
        at = rng.randrange(len(snapshot.hosts))
        changed = replace(snapshot.hosts[at], schedulable=not snapshot.hosts[at].schedulable)
        return replace(snapshot, hosts=(*snapshot.hosts[:at], changed, *snapshot.hosts[at + 1 :]))
    if change == "unit":
        at = rng.randrange(len(snapshot.units))
        changed_unit = replace(snapshot.units[at], healthy=not snapshot.units[at].healthy)
        return replace(snapshot, units=(*snapshot.units[:at], changed_unit, *snapshot.units[at + 1 :]))
    if change == "grows":
        host = replace(snapshot.hosts[0], id=max(h.id for h in snapshot.hosts) + 1)
        units = tuple(
            replace(u, id=u.id + 500_000 + host.id * 1000, host=host.id, gpu=u.gpu + 50_000 + host.id * 100)
            for u in snapshot.units
            if u.host == snapshot.hosts[0].id
        )
        return replace(snapshot, hosts=(*snapshot.hosts, host), units=(*snapshot.units, *units))
    window = MaintenanceInfo(rng.choice(snapshot.hosts).id, now + rng.choice((-60, 600)), now + HOUR)
    return replace(snapshot, maintenance=() if snapshot.maintenance else (window,))


def _change_reservations(
    rng: random.Random, change: str, snapshot: Snapshot, now: int, new_ids: Iterator[int]
) -> Snapshot:
    if change == "over":
        return replace(snapshot, reservations=snapshot.reservations[1:])
    ask = replace(rng.choice(crowded(1, now).queued).ask, profile="")
    start = now + rng.choice((0, 60, HOUR))
    new = ReservationInfo(next(new_ids), rng.randint(1, 4), 1, 1, ask, start, start + 2 * HOUR)
    return replace(snapshot, reservations=(*snapshot.reservations, new))


def _change_rules(rng: random.Random, change: str, snapshot: Snapshot) -> Snapshot:
    if change == "use":
        use = tuple(
            DecayedUseInfo(u.team, u.pool, u.slot_seconds * rng.random()) for u in snapshot.decayed_use
        )
        return replace(snapshot, decayed_use=use)
    if change == "quota" and snapshot.quotas:
        at = rng.randrange(len(snapshot.quotas))
        less = replace(snapshot.quotas[at], guaranteed=snapshot.quotas[at].guaranteed // 2)
        return replace(snapshot, quotas=(*snapshot.quotas[:at], less, *snapshot.quotas[at + 1 :]))
    if change == "policy":
        pool = snapshot.pools[0]
        changed_pool = replace(pool, policy=replace(pool.policy, spare_slots=rng.choice((0, 1680))))
        return replace(snapshot, pools=(changed_pool,))
    if change == "weight":
        return replace(snapshot, teams=tuple(replace(t, weight=rng.randint(1, 4)) for t in snapshot.teams))
    return snapshot
