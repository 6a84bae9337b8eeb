"""Build crowded pools from a seed: most units held, a long mixed queue, several teams that borrow.

The Hypothesis strategies rarely build such pools.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    DecayedUseInfo,
    HostInfo,
    MaintenanceInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    Priority,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)

HOUR = 3600
SLICE, SHARE = "1g.5gb", "share-1/4"
PARTS = {"": 1, SLICE: 7, SHARE: 4}


def crowded(seed: int, now: int, hosts: int = 5, waiting: int = 15) -> Snapshot:
    """Return a snapshot at ``now``; the same seed gives the same snapshot."""
    rng = random.Random(seed)
    policy = PoolPolicy(
        minimum_runtime_seconds=rng.choice((0, 300)),
        spare_slots=rng.choice((0, 0, 0, 2 * SLOTS_PER_GPU)),
        max_slots_per_user=rng.choice((None, None, 8 * SLOTS_PER_GPU)),
    )
    pool = PoolInfo(1, "crowded", PoolKind.DYNAMIC, None, policy)
    rows = [_host(rng, number) for number in range(1, hosts + 1)]
    units = [unit for host in rows for unit in _units(rng, host.id)]
    shares = random.Random(-seed)  # separate, so that it does not change the other random choices of a seed
    rows = [replace(host, home_storage=shares.choice((None, 1, 2))) for host in rows]
    rng.shuffle(units)
    running = _running(rng, units, now)
    reservations = _reservations(rng, units, {u for r in running for u in r.units}, now)
    quotas = _quotas(rng, units)
    maintenance = (
        [MaintenanceInfo(rng.randint(1, hosts), now + 2 * HOUR, now + 4 * HOUR)] if rng.random() < 0.2 else []
    )
    return Snapshot(
        epoch=seed,
        pools=(pool,),
        hosts=tuple(rows),
        units=tuple(units),
        teams=tuple(TeamInfo(t, f"t{t}", t) for t in (1, 2, 3, 4)),
        quotas=tuple(quotas),
        decayed_use=tuple(DecayedUseInfo(t, 1, float(rng.randint(0, 10**9))) for t in (1, 2, 3, 4)),
        queued=tuple(
            _with_earlier_attempts(shares, _queued(rng, number, now), hosts, now)
            for number in range(1, waiting + 1)
        ),
        running=tuple(running),
        reservations=tuple(reservations),
        maintenance=tuple(maintenance),
    )


def _host(rng: random.Random, number: int) -> HostInfo:
    labels = frozenset({("rack", f"r{number % 2}")})
    return HostInfo(number, f"h{number}", 1, labels, rng.choice((0, 64_000)), 0, rng.random() > 0.05)


def _units(rng: random.Random, host: int) -> Iterator[UnitInfo]:
    """Yield the units of a host with 8 GPUs; some GPUs are cut into slices or shares."""
    model = rng.choice(("H100", "H100", "A100"))
    for gpu in range(8):
        cut = rng.choices(("", SLICE, SHARE), (12, 1, 1))[0]
        for part in range(PARTS[cut]):
            unit = host * 1000 + gpu * 10 + part
            group = gpu // 4 if not cut else None
            yield UnitInfo(
                unit, host, host * 100 + gpu, model, cut, SLOTS_PER_GPU // PARTS[cut], 80_000, 90, group
            )


def _reservations(
    rng: random.Random, units: list[UnitInfo], busy: set[int], now: int
) -> list[ReservationInfo]:
    reservations = []
    for number in range(rng.choice((0, 0, 1, 2, 3))):
        start = now + rng.choice((-60, 0, 30, 600, 3 * HOUR, 8 * HOUR))
        free = sorted(u.id for u in units if u.id not in busy and not u.profile)
        bound = tuple(free[:4]) if start < 0 and free else ()
        busy |= set(bound)
        ask = Ask(rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2)))
        reservations.append(
            ReservationInfo(number + 1, rng.randint(1, 4), 1, 1, ask, start, start + 6 * HOUR, bound)
        )
    return reservations


def _quotas(rng: random.Random, units: list[UnitInfo]) -> list[QuotaInfo]:
    quotas = []
    for model in ("A100", "H100"):
        remaining = sum(u.slots for u in units if u.model == model)
        for team in (1, 2, 3, 4):
            guaranteed = min(remaining, rng.choice((0, 2, 4, 8, 16)) * SLOTS_PER_GPU)
            remaining -= guaranteed
            quotas.append(QuotaInfo(team, 1, model, guaranteed, rng.choice((None, None, 4 * SLOTS_PER_GPU))))
    return quotas


def _running(rng: random.Random, units: list[UnitInfo], now: int) -> list[RunningWorkload]:
    running: list[RunningWorkload] = []
    remaining = {u.id: u for u in units}
    for _ in range(rng.randint(5, 25)):
        if not remaining:
            break
        first = rng.choice(list(remaining.values()))
        peers = [u for u in remaining.values() if u.host == first.host and u.profile == first.profile]
        chosen = peers[: rng.choice((1, 2, 4, 8))] if first.profile != SHARE else [first]
        for unit in chosen:
            del remaining[unit.id]
        if first.profile == SHARE:  # shares of one GPU serve one team, so the other shares are not used
            remaining = {k: u for k, u in remaining.items() if u.gpu != first.gpu}
        running.append(_running_on(rng, 500 + len(running), chosen, now))
    return running


def _running_on(rng: random.Random, number: int, units: list[UnitInfo], now: int) -> RunningWorkload:
    started = now - rng.randint(0, 20 * HOUR)
    stopping = rng.random() < 0.1
    return RunningWorkload(
        id=number,
        team=rng.randint(1, 4),
        project=1,
        user=rng.randint(1, 5),
        pool=1,
        units=tuple(sorted(u.id for u in units)),
        started=started,
        until=max(started + 1, now + rng.randint(60, 30 * HOUR)),
        predicted_end=now + rng.randint(-HOUR, 10 * HOUR),
        priority=rng.choice(list(Priority)),
        preemptible=rng.random() < 0.7,
        checkpoint_at=rng.choice((None, max(started, now - rng.randint(0, HOUR)))),
        stopping=stopping,
        stop_by=now + 30 if stopping else None,
        evicted_for_workload=rng.randint(1, 15) if stopping and rng.random() < 0.7 else None,
    )


def _with_earlier_attempts(
    rng: random.Random, queued: QueuedWorkload, hosts: int, now: int
) -> QueuedWorkload:
    """Return the workload with random results of earlier attempts, or with none.

    The results are the hosts that the workload avoids and the storage that holds its checkpoint.
    """
    avoids = (rng.randint(1, hosts),) if rng.random() < 0.2 else ()
    homes = rng.choice((None, None, None, 1, 2))
    return replace(queued, avoids=avoids, avoids_until=now + rng.choice((0, 600)), checkpoint_storage=homes)


def _queued(rng: random.Random, number: int, now: int) -> QueuedWorkload:
    limit = rng.choice((600, HOUR, 4 * HOUR, 48 * HOUR))
    preemptible = rng.random() < 0.6
    return QueuedWorkload(
        id=number,
        team=rng.randint(1, 4),
        project=1,
        user=rng.randint(1, 5),
        pool=1,
        ask=Ask(
            units=rng.choice((1, 1, 1, 2, 4, 8)),
            hosts=rng.choices((1, 2, 3), (8, 2, 1))[0],
            models=rng.choice(((), ("H100",), ("A100", "H100"))),
            profile=rng.choices(("", SLICE, SHARE), (8, 1, 1))[0],
            nvlink=rng.random() < 0.1,
            labels=rng.choice((frozenset(), frozenset(), frozenset({("rack", "r1")}))),
            cpu_milli=rng.choice((0, 16_000)),
        ),
        submitted=now - rng.randint(0, 60 * HOUR),
        max_runtime_seconds=limit,
        predicted_seconds=rng.randint(60, limit),
        priority=rng.choice(list(Priority)),
        preemptible=preemptible,
        may_borrow=preemptible,
        evicted_by=rng.choice((None, None, rng.randint(500, 510))),
    )
