"""Hypothesis strategies for whole snapshots: pools, teams, quotas, running and waiting work, reservations, maintenance.

What they build is consistent, as rows from the database are: no unit is held twice, guarantees fit the pool, a
reservation's units are held by its own work only. Everything else is fair game.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from scheduler.core.model import (
    SLOTS_PER_GPU,
    Ask,
    DecayedUse,
    Host,
    Maintenance,
    Policy,
    Pool,
    PoolKind,
    Priority,
    Queued,
    Quota,
    Reservation,
    Running,
    Snapshot,
    Team,
    Unit,
)
from scheduler.core.reasons import Code

NOW = 1_000_000
HOUR = 3600
MODELS = ("A100-40GB", "H100-80GB")
MEMORY = {"A100-40GB": 40_960, "H100-80GB": 81_920}
SLICE, SHARE = "1g.5gb", "share-1/4"
TEAMS = (1, 2, 3)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return Policy(
        notice_seconds=draw(st.sampled_from((0, 30, 120))),
        grace_seconds=draw(st.sampled_from((10, 30))),
        minimum_runtime_seconds=draw(st.sampled_from((0, 300, 3600))),
        spare_slots=draw(st.sampled_from((0, 0, 0, SLOTS_PER_GPU, 3 * SLOTS_PER_GPU))),
        most_slots_per_user=draw(st.sampled_from((None, None, 4 * SLOTS_PER_GPU))),
        most_slots_per_workload=draw(st.sampled_from((None, None, 8 * SLOTS_PER_GPU))),
    )


@st.composite
def hosts_and_units(draw: st.DrawFn, pool: int, first_host: int) -> tuple[list[Host], list[Unit]]:
    hosts, units = [], []
    for number in range(draw(st.sampled_from((2, 3, 4, 1)))):
        host = first_host + number
        labels = draw(st.sets(st.sampled_from((("rack", "r1"), ("rack", "r2"), ("site", "north"))), max_size=2))
        open_ = draw(st.sampled_from((True,) * 9 + (False,)))
        hosts.append(
            Host(
                host,
                f"host-{host}",
                pool,
                frozenset(labels),
                cpu_milli=draw(st.sampled_from((0, 32_000))),
                memory_mib=draw(st.sampled_from((0, 256_000))),
                accepts=open_,
                closed_code="" if open_ else Code.HOST_CLOSED,
            )
        )
        units += draw(units_of(host))
    return hosts, units


@st.composite
def units_of(draw: st.DrawFn, host: int) -> list[Unit]:
    model, units = draw(st.sampled_from(MODELS)), []
    for number in range(draw(st.sampled_from((4, 8, 2, 1)))):
        gpu = host * 100 + number
        cut = draw(st.sampled_from(("",) * 8 + (SLICE, SHARE)))
        parts = {"": 1, SLICE: 7, SHARE: 4}[cut]
        for part in range(parts):
            units.append(
                Unit(
                    gpu * 10 + part,
                    host,
                    gpu,
                    model,
                    cut,
                    slots=SLOTS_PER_GPU // parts,
                    memory_mib=MEMORY[model] // (1 if cut == SHARE else parts),
                    compute_capability=90 if model.startswith("H") else 80,
                    nvlink_group=number // 4 if not cut else None,
                    well=draw(st.sampled_from((True,) * 19 + (False,))),
                )
            )
    return units


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    return Ask(
        units=draw(st.sampled_from((1, 2, 1, 4, 2, 3, 8))),
        hosts=draw(st.sampled_from((1, 1, 1, 2, 1, 1, 3))),
        models=draw(st.sampled_from(((), ("H100-80GB", "A100-40GB"), ("A100-40GB",), ("H100-80GB",)))),
        profile=draw(st.sampled_from(("", "", "", "", "", SLICE, SHARE))),
        min_memory_mib=draw(st.sampled_from((0,) * 8 + (41_000,))),
        min_compute_capability=draw(st.sampled_from((0,) * 8 + (90,))),
        nvlink=draw(st.sampled_from((False,) * 8 + (True,))),
        labels=draw(st.sampled_from((frozenset[tuple[str, str]](),) * 8 + (frozenset({("rack", "r1")}),))),
        cpu_milli=draw(st.sampled_from((0, 8_000))),
        memory_mib=draw(st.sampled_from((0, 64_000))),
    )


@st.composite
def queue(draw: st.DrawFn, pool: int, reservations: list[Reservation]) -> list[Queued]:
    waiting = []
    for number in range(draw(st.integers(2, 12))):
        preemptible = draw(st.booleans())
        limit = draw(st.sampled_from((600, HOUR, 8 * HOUR, 48 * HOUR, HOUR, 8 * HOUR, 30 * 24 * HOUR)))
        inside = draw(st.sampled_from([None, None, None, None, None, None, *reservations]))
        waiting.append(
            Queued(
                id=pool * 10_000 + number,
                team=inside.team if inside else draw(st.sampled_from(TEAMS)),
                project=inside.project if inside else 1,
                user=draw(st.integers(1, 4)),
                pool=pool,
                ask=draw(asks()),
                submitted=NOW - draw(st.integers(0, 40 * HOUR)),
                max_runtime_seconds=limit,
                predicted_seconds=draw(st.integers(60, limit)),
                priority=draw(st.sampled_from(Priority)),
                preemptible=preemptible,
                may_borrow=preemptible and draw(st.integers(0, 4)) > 0,
                reservation=inside.id if inside else None,
                not_before=draw(st.sampled_from((0,) * 15 + (NOW + 60,))),
                evicted_by=draw(st.sampled_from((None, None, pool * 10_000 + 501))),
                gate=draw(st.sampled_from(("",) * 15 + (Code.BUDGET_CLOSED,))),
            )
        )
    return waiting


@st.composite
def running_work(
    draw: st.DrawFn, pool: int, units: list[Unit], bound: dict[int, Reservation], waiting: list[Queued]
) -> list[Running]:
    """Work on a part of the units, sometimes a gang, sometimes on its way out; inside reservations only their own."""
    running: list[Running] = []
    left = list(units)
    while left and len(running) < 12 and draw(st.integers(0, 5)) > 0:
        first = draw(st.sampled_from(left))
        same = [u for u in left if u.profile == first.profile and u.model == first.model]
        same = [u for u in same if bound.get(u.id) == bound.get(first.id)]
        if first.profile == SHARE:
            same = [u for u in same if u.gpu == first.gpu]
        mine = same[: draw(st.integers(1, 6))]
        left = [u for u in left if u not in mine and not (first.profile == SHARE and u.gpu == first.gpu)]
        inside = bound.get(first.id)
        started = NOW - draw(st.integers(0, 20 * HOUR))
        preemptible = draw(st.booleans())
        stopping = draw(st.integers(0, 5)) == 0
        until = NOW + draw(st.sampled_from((-60, 600, 5 * HOUR, 60 * HOUR)))
        running.append(
            Running(
                id=pool * 10_000 + 500 + len(running),
                team=inside.team if inside else draw(st.sampled_from(TEAMS)),
                project=inside.project if inside else 1,
                user=draw(st.integers(1, 4)),
                pool=pool,
                units=tuple(sorted(u.id for u in mine)),
                started=started,
                until=max(until, started + 1) if inside is None else min(max(until, started + 1), inside.end),
                predicted_until=max(started + 1, min(until, NOW + draw(st.integers(-HOUR, 10 * HOUR)))),
                priority=draw(st.sampled_from(Priority)),
                preemptible=preemptible,
                checkpoint_at=draw(st.sampled_from((None, max(started, NOW - 300)))),
                reservation=inside.id if inside else None,
                stopping=stopping,
                stop_by=NOW + 40 if stopping else None,
                evicted_for_workload=draw(st.sampled_from([None, *(q.id for q in waiting)])) if stopping else None,
                cpu_milli=4_000,
                memory_mib=10_000,
            )
        )
    return running


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """One or two pools with everything in them, at ``NOW``."""
    whole = Snapshot(epoch=draw(st.integers(1, 9)), teams=tuple(Team(t, f"team-{t}", t) for t in TEAMS))
    for pool in range(1, draw(st.integers(1, 2)) + 1):
        whole = draw(with_pool(whole, pool))
    return whole


@st.composite
def with_pool(draw: st.DrawFn, whole: Snapshot, pool: int) -> Snapshot:
    static = draw(st.sampled_from((False,) * 6 + (True,)))
    hosts, units = draw(hosts_and_units(pool, pool * 10))
    reservations: list[Reservation] = []
    bound: dict[int, Reservation] = {}
    for number in range(draw(st.integers(0, 3))):
        start = NOW + draw(st.sampled_from((-HOUR, 0, 30, 20 * 60, 6 * HOUR)))
        reservation = Reservation(
            pool * 100 + number,
            team=draw(st.sampled_from(TEAMS)),
            project=1,
            pool=pool,
            ask=replace(draw(asks()), profile="", labels=frozenset(), nvlink=False),
            start=start,
            end=start + draw(st.sampled_from((2 * HOUR, 9 * HOUR))),
        )
        free = [u.id for u in units if u.id not in bound and not u.profile]
        if reservation.start <= NOW and free and draw(st.booleans()):
            reservation = replace(reservation, units=tuple(sorted(free[: draw(st.integers(1, 8))])))
            bound |= dict.fromkeys(reservation.units, reservation)
        reservations.append(reservation)
    waiting = draw(queue(pool, reservations))
    running = draw(running_work(pool, units, bound, waiting))
    maintenance = [
        Maintenance(host.id, start, start + 4 * HOUR)
        for host in hosts
        for start in draw(st.sampled_from(((),) * 8 + ((NOW + 2 * HOUR,), (NOW - HOUR,))))
    ]
    quotas = []
    for model in sorted({u.model for u in units}):
        left = sum(u.slots for u in units if u.model == model)
        for team in TEAMS:
            guaranteed = draw(st.sampled_from((2, 4, 0, 1, 8))) * SLOTS_PER_GPU
            if guaranteed <= left and draw(st.integers(0, 5)) > 0:
                left -= guaranteed
                limit = draw(st.sampled_from((None, None, 0, 2 * SLOTS_PER_GPU)))
                quotas.append(Quota(team, pool, model, guaranteed, limit))
    kind, owner = (PoolKind.STATIC, draw(st.sampled_from(TEAMS))) if static else (PoolKind.DYNAMIC, None)
    use = [DecayedUse(team, pool, float(draw(st.integers(0, 10**9)))) for team in TEAMS]
    return replace(
        whole,
        pools=(*whole.pools, Pool(pool, f"pool-{pool}", kind, owner, draw(policies()))),
        hosts=(*whole.hosts, *hosts),
        units=(*whole.units, *units),
        quotas=(*whole.quotas, *quotas),
        decayed_use=(*whole.decayed_use, *use),
        queued=(*whole.queued, *waiting),
        running=(*whole.running, *running),
        reservations=(*whole.reservations, *reservations),
        maintenance=(*whole.maintenance, *maintenance),
    )
