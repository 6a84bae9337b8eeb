"""Test that backfilled work does not delay the expected start of a workload with held units."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    QuotaInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.what_if.simulation import (
    Simulation,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
)
from tests.seeds import seeds

NOW = 1_000_000
MINUTE = 60
HOSTS, GPUS = 3, 4


def pool(**rows: tuple[object, ...]) -> Snapshot:
    """Return three hosts of four GPUs that two teams borrow; past use does not count."""
    return Snapshot(
        1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(half_life_seconds=0)),),
        hosts=tuple(HostInfo(h, f"h{h}", 1) for h in range(1, HOSTS + 1)),
        units=tuple(
            UnitInfo(h * 10 + g, h, h * 10 + g, "H100") for h in range(1, HOSTS + 1) for g in range(GPUS)
        ),
        teams=(TeamInfo(1, "red"), TeamInfo(2, "blue")),
        quotas=(QuotaInfo(1, 1, "H100", 0), QuotaInfo(2, 1, "H100", 0)),
        **rows,  # type: ignore[arg-type]
    )


def random_workload(rng: random.Random, workload: int, submitted: int) -> QueuedWorkload:
    """Return a request of 1-4 GPUs on 1-3 hosts for 10-60 minutes; the limit is up to three times as long."""
    ask = Ask(rng.choice((1, 1, 2, 3, 4)), rng.choice((1, 1, 1, 2, 3)))
    seconds = rng.randint(10, 60) * MINUTE
    limit = round(seconds * rng.uniform(1, 3))
    return QueuedWorkload(
        workload, rng.randint(1, 2), 1, workload, 1, ask, submitted, limit, seconds, preemptible=True
    )


def as_running(queued: QueuedWorkload, units: tuple[int, ...], now: int) -> RunningWorkload:
    until, predicted = now + queued.max_runtime_seconds, now + queued.predicted_seconds
    return RunningWorkload(
        queued.id, queued.team, 1, queued.user, 1, units, now, until, predicted, preemptible=True
    )


@pytest.mark.parametrize("seed", seeds(short=15, total=40))
def test_started_work_does_not_delay_a_workload_with_held_units(seed: int) -> None:
    """Check that in the next plan no workload with held units has a later expected start."""
    rng = random.Random(seed)
    busy = plan(pool(queued=tuple(random_workload(rng, n, NOW - 5000) for n in range(1, 9))), NOW - 3000)
    asked = {q.id: q for q in (random_workload(rng, n, NOW - rng.randint(0, 4000)) for n in range(101, 121))}
    running = tuple(
        as_running(random_workload(rng, p.workload, NOW - 5000), p.units, NOW - rng.randint(0, 1200))
        for p in busy.placements
    )
    before = pool(queued=tuple(asked.values()), running=running)
    first = plan(before, NOW)
    started = tuple(as_running(asked[p.workload], p.units, NOW) for p in first.placements)
    waiting = tuple(q for q in asked.values() if q.id not in {p.workload for p in first.placements})
    second = plan(replace(before, queued=waiting, running=running + started), NOW)
    again = {p.workload: NOW for p in second.placements} | {
        r.workload: r.expected_start for r in second.refusals
    }
    for refusal in first.refusals:
        if refusal.held_units:
            assert refusal.expected_start is not None
            assert (again[refusal.workload] or 0) <= refusal.expected_start


@pytest.mark.parametrize("seed", seeds(short=10, total=20))
def test_with_correct_predictions_the_first_workload_starts_as_expected(seed: int) -> None:
    """Submit all work at once.

    All runtimes are as predicted, so backfilled work must not delay the first workload.
    """
    rng = random.Random(seed)
    asked = [random_workload(rng, n, 0) for n in range(1, 31)]
    expected: dict[int, int] = {}
    started: dict[int, int] = {}

    def note(event: SimulationEvent) -> None:
        if event.kind is SimulationEventKind.PLACED and event.workload is not None:
            started[event.workload] = event.at

    simulation = Simulation(pool(), 0, note)
    plan_of = simulation.planner.plan

    def plan_and_note(now: int, *, explain: bool = True):  # type: ignore[no-untyped-def]
        planned = plan_of(now, explain=explain)
        for refusal in planned.refusals:
            if refusal.held_units and refusal.position == 1 and refusal.expected_start is not None:
                expected.setdefault(refusal.workload, refusal.expected_start)
        return planned

    simulation.planner.plan = plan_and_note  # type: ignore[method-assign]
    for queued in asked:
        simulation.submit(WorkloadArrival(0, queued, queued.predicted_seconds))
    simulation.run(6 * 3600)  # after that, aged workloads move to the front
    late_by = {w: started[w] - expected[w] for w in expected if w in started and started[w] > expected[w]}
    assert len(expected) > 3
    assert late_by == {}


def in_use_until(ends: dict[int, int]) -> tuple[RunningWorkload, ...]:
    """Return work on all GPUs of the hosts. ``ends`` has the end of the work on each host."""
    return tuple(
        RunningWorkload(
            900 + h,
            1,
            1,
            1,
            1,
            tuple(h * 10 + g for g in range(GPUS)),
            NOW - MINUTE,
            end,
            end,
            preemptible=True,
        )
        for h, end in ends.items()
    )


@pytest.mark.parametrize(("hours", "held_for"), [(1, 2), (120, 1)])
def test_units_are_held_for_two_workloads_in_a_short_queue_and_for_one_in_a_long_queue(
    hours: int, held_for: int
) -> None:
    running = in_use_until({h: NOW + h * 60 * MINUTE for h in range(1, HOSTS + 1)})
    seconds = hours * 60 * MINUTE
    queued = tuple(
        QueuedWorkload(n, 1, 1, n, 1, Ask(GPUS), NOW - 100 + n, seconds, seconds, preemptible=True)
        for n in range(1, 5)
    )
    refusals = plan(pool(queued=queued, running=running), NOW).refusals
    assert [bool(r.held_units) for r in refusals] == [n <= held_for for n in range(1, 5)]
    unexplained = plan(pool(queued=queued, running=running), NOW, explain=False).refusals
    assert {r.workload: r.held_units for r in unexplained} == {
        r.workload: r.held_units for r in refusals if r.held_units
    }


def test_an_impossible_workload_does_not_count_for_the_length_of_the_queue() -> None:
    running = in_use_until({h: NOW + h * 60 * MINUTE for h in range(1, HOSTS + 1)})
    queued = tuple(
        QueuedWorkload(n, 1, 1, n, 1, Ask(GPUS), NOW - 100 + n, 3600, 3600, preemptible=True)
        for n in (1, 2, 3)
    )
    impossible = QueuedWorkload(
        9, 1, 1, 9, 1, Ask(GPUS, hosts=1000), NOW - 200, 86_400, 86_400, preemptible=True
    )
    for rows in (queued, (*queued, impossible)):
        refusals = plan(pool(queued=rows, running=running), NOW).refusals
        assert [r.workload for r in refusals if r.held_units] == [1, 2]


@pytest.mark.parametrize("ahead", [3, 90])
def test_units_of_each_model_are_held_for_the_first_workload_that_needs_it(ahead: int) -> None:
    """Check that a long queue for one model does not starve the first workload for the other model."""
    models = {1: "H100", 2: "H100", 3: "A100"}
    snapshot = pool(running=in_use_until({h: NOW + h * 60 * MINUTE for h in models}))
    snapshot = replace(
        snapshot,
        units=tuple(replace(u, model=models[u.host]) for u in snapshot.units),
        quotas=(*snapshot.quotas, QuotaInfo(1, 1, "A100", 0), QuotaInfo(2, 1, "A100", 0)),
        queued=tuple(
            QueuedWorkload(
                n,
                1,
                1,
                n,
                1,
                Ask(GPUS, models=(model,)),
                NOW - 100 + n,
                7200 * MINUTE,
                7200 * MINUTE,
                preemptible=True,
            )
            for n, model in enumerate((*["H100"] * ahead, "A100"), 1)
        ),
    )
    held = {r.workload: r.held_units for r in plan(snapshot, NOW).refusals if r.held_units}
    assert sorted(held) == [1, ahead + 1]
    assert {unit // 10 for unit in held[ahead + 1]} == {3}
    unexplained = plan(snapshot, NOW, explain=False).refusals
    assert {r.workload: r.held_units for r in unexplained} == held
