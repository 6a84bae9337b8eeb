"""Test the simulation: its events are consistent, and the plan verifier finds no violation in its plans."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from benchmarks.plan_verifier import violations
from scheduler.core.incremental_planner import IncrementalPlanner
from scheduler.core.model.plan import Plan
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
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
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if.simulation import (
    ReservationArrival,
    SimulationEvent,
    SimulationEventKind,
    WorkloadArrival,
    run_simulation,
)

HOUR, DAY, GPU = 3600, 86_400, SLOTS_PER_GPU


def organisation(**rows: Any) -> Snapshot:
    """Return two hosts of 4 GPUs; red and blue are guaranteed 4 GPUs each."""
    values: dict[str, Any] = {
        "pools": (PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(half_life_seconds=DAY)),),
        "hosts": (HostInfo(1, "h1", 1), HostInfo(2, "h2", 1)),
        "units": tuple(UnitInfo(h * 10 + g, h, h * 10 + g, "H100") for h in (1, 2) for g in range(4)),
        "teams": (TeamInfo(1, "red"), TeamInfo(2, "blue")),
        "quotas": (QuotaInfo(1, 1, "H100", 4 * GPU), QuotaInfo(2, 1, "H100", 4 * GPU)),
    }
    return Snapshot(1, **(values | rows))


def arrival(
    workload: int, at: int, team: int = 1, units: int = 1, runtime: int = HOUR, **more: Any
) -> WorkloadArrival:
    checkpoint = more.pop("checkpoint_seconds", None)
    limit = more.pop("limit", 2 * runtime)
    queued = QueuedWorkload(
        workload, team, 1, workload, 1, Ask(units), at, limit, min(runtime, limit), **more
    )
    return WorkloadArrival(at, queued, runtime, checkpoint)


def simulate(
    snapshot: Snapshot, arrivals: list[WorkloadArrival], until: int = DAY, **more: Any
) -> list[SimulationEvent]:
    events: list[SimulationEvent] = []
    run_simulation(snapshot, arrivals, until, start=0, on_event=events.append, **more)
    return events


def of(events: list[SimulationEvent], workload: int) -> list[tuple[int, str]]:
    return [(event.at, event.kind.value) for event in events if event.workload == workload]


def test_a_workload_is_queued_placed_and_ended() -> None:
    assert of(simulate(organisation(), [arrival(1, 100)]), 1) == [
        (100, "queued"),
        (100, "placed"),
        (3700, "ended"),
    ]


def test_work_ends_at_its_maximum_runtime() -> None:
    events = simulate(organisation(), [arrival(1, 0, runtime=5 * HOUR, limit=HOUR)])
    assert [(e.at, e.code) for e in events if e.kind is SimulationEventKind.ENDED] == [
        (HOUR, ReasonCode.TIME_LIMIT)
    ]


def test_evicted_work_gets_its_notice_and_continues_from_its_checkpoint() -> None:
    """Let red borrow all units until blue reclaims its guarantee after an hour.

    Red has saved one hour of its work and needs one more hour.
    """
    red = arrival(1, 0, units=4, runtime=2 * HOUR, preemptible=True, checkpoint_seconds=600)
    more_red = arrival(2, 0, units=4, runtime=9 * HOUR, preemptible=True, checkpoint_seconds=600)
    blue = arrival(3, HOUR, team=2, units=4)
    events = simulate(organisation(), [red, more_red, blue])
    evicted = next(e for e in events if e.kind is SimulationEventKind.EVICTED)
    assert (evicted.at, evicted.for_workload, evicted.code) == (HOUR, 3, ReasonCode.EVICTED_FOR_GUARANTEE)
    stopped = next(e for e in events if e.kind is SimulationEventKind.STOPPED)
    assert (stopped.at, stopped.code) == (HOUR + 40, ReasonCode.CHECKPOINTED)
    assert of(events, 3) == [(HOUR, "queued"), (HOUR + 40, "placed"), (2 * HOUR + 40, "ended")]
    again = [e for e in events if e.workload == evicted.workload and e.attempt == 2]
    assert [e.kind for e in again] == [
        SimulationEventKind.QUEUED,
        SimulationEventKind.PLACED,
        SimulationEventKind.ENDED,
    ]
    assert evicted.workload == 1
    assert again[2].at - again[1].at == 2 * HOUR - (HOUR + 30)


def test_a_job_with_frequent_checkpoints_is_not_evicted_every_time() -> None:
    """Let blue reclaim a GPU every hour. Job 1 loses least, because it has frequent checkpoints."""
    red = [
        arrival(n, 0, runtime=3 * DAY, preemptible=True, checkpoint_seconds=60 if n == 1 else 1800)
        for n in range(1, 9)
    ]
    blue = [arrival(100 + n, n * HOUR + 900, team=2, runtime=1800) for n in range(1, 24)]
    events = simulate(organisation(), [*red, *blue])
    evicted = [e.workload for e in events if e.kind is SimulationEventKind.EVICTED]
    assert len(evicted) == 23
    assert max(evicted.count(n) for n in range(1, 9)) <= 5


def test_work_without_a_checkpoint_starts_from_the_beginning() -> None:
    red = [arrival(n, 0, units=4, runtime=4 * HOUR, preemptible=True) for n in (1, 2)]
    events = simulate(organisation(), [*red, arrival(3, HOUR, team=2, units=4)])
    victim = next(
        e.workload
        for e in events
        if e.kind is SimulationEventKind.STOPPED and e.code == ReasonCode.KILLED_AT_GRACE
    )
    second = [e.at for e in events if e.workload == victim and e.attempt == 2]
    assert second[2] - second[1] == 4 * HOUR


def test_a_reservation_is_bound_at_its_start_and_ends_at_its_end() -> None:
    booking = ReservationArrival(0, ReservationInfo(9, 2, 1, 1, Ask(4), 3 * HOUR, 5 * HOUR))
    borrowers = [arrival(n, 0, units=4, runtime=9 * HOUR, preemptible=True) for n in (1, 2)]
    inside = arrival(3, HOUR, team=2, units=4, runtime=9 * HOUR, reservation=9)
    events = simulate(organisation(), [*borrowers, inside], reservations=[booking])
    assert [(e.at, e.kind.value) for e in events if e.reservation == 9] == [
        (3 * HOUR, "reservation_bound"),
        (5 * HOUR, "reservation_over"),
    ]
    assert [e.at for e in events if e.kind is SimulationEventKind.EVICTED] == [3 * HOUR - 60]
    assert of(events, 3) == [(HOUR, "queued"), (3 * HOUR, "placed"), (5 * HOUR, "ended")]


def test_running_work_ends_as_predicted() -> None:
    running = RunningWorkload(50, 1, 1, 1, 1, (10, 11), -HOUR, 9 * HOUR, 2 * HOUR)
    assert of(simulate(organisation(running=(running,)), []), 50) == [(2 * HOUR, "ended")]


def test_the_simulation_returns_its_final_state() -> None:
    after = run_simulation(
        organisation(),
        [arrival(1, 0, units=4, runtime=10 * HOUR), arrival(2, 1, units=4)],
        2 * HOUR,
        start=0,
        on_event=lambda event: None,
    )
    assert [r.id for r in after.running] == [1]
    assert [q.id for q in after.queued] == [2]
    half_life, kept = DAY, 0.5 ** (2 * HOUR / DAY)
    expected = 4 * GPU * half_life / 0.6931471805599453 * (1 - kept)
    assert after.decayed_use[0].slot_seconds == pytest.approx(expected)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_a_busy_week_breaks_no_promise_and_loses_no_work(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(planner: IncrementalPlanner, now: int, **more: Any) -> Plan:
        snapshot = planner.snapshot()
        explained, planned = plan(snapshot, now), plan(snapshot, now, **more)
        assert violations(snapshot, explained, now) == []
        assert (planned.placements, planned.evictions) == (explained.placements, explained.evictions)
        return planned

    monkeypatch.setattr(IncrementalPlanner, "plan", checked)
    arrivals = a_week(seed)
    bookings = [
        ReservationArrival(d * DAY, ReservationInfo(d, 2, 1, 1, Ask(3), d * DAY + HOUR, d * DAY + 5 * HOUR))
        for d in range(1, 6)
    ]
    events = simulate(organisation(), arrivals, 60 * DAY, reservations=bookings)
    assert_units_are_held_once(events)
    assert_evictions_are_bounded(events)
    work: dict[int, int] = defaultdict(int)
    for workload, start, end, code in attempts(events):
        work[workload] += end - start if code != ReasonCode.KILLED_AT_GRACE else 0
    for submitted in arrivals:
        assert work[submitted.queued.id] >= submitted.runtime_seconds, "the workload did not complete"


def a_week(seed: int) -> list[WorkloadArrival]:
    rng = random.Random(seed)
    return [
        arrival(
            number,
            at=rng.randint(0, 6 * DAY),
            team=rng.choice((1, 2)),
            units=rng.choice((1, 1, 1, 2, 4)),
            runtime=int(rng.lognormvariate(8, 1.3)) + 60,
            limit=10 * DAY // 2,
            preemptible=rng.random() < 0.7,
            priority=rng.choice((Priority.LOW, Priority.NORMAL, Priority.HIGH)),
            checkpoint_seconds=rng.choice((None, 600)),
        )
        for number in range(1, 151)
    ]


def attempts(events: list[SimulationEvent]) -> list[tuple[int, int, int, str]]:
    """Return (workload, start, end, code) of every attempt that ended."""
    started: dict[int, int] = {}
    ended = []
    for event in events:
        if event.workload is None:
            continue
        if event.kind is SimulationEventKind.PLACED:
            started[event.workload] = event.at
        elif event.kind in (SimulationEventKind.STOPPED, SimulationEventKind.ENDED):
            ended.append((event.workload, started.pop(event.workload), event.at, event.code))
    return ended


def assert_units_are_held_once(events: list[SimulationEvent]) -> None:
    holder: dict[int, int] = {}
    for event in events:
        for unit in event.units if event.workload is not None else ():
            if event.kind is SimulationEventKind.PLACED:
                assert unit not in holder
                holder[unit] = event.workload or 0
            elif event.kind in (SimulationEventKind.STOPPED, SimulationEventKind.ENDED):
                assert holder.pop(unit) == event.workload


def assert_evictions_are_bounded(events: list[SimulationEvent]) -> None:
    """Assert that each workload causes at most two rounds of evictions before it starts."""
    rounds: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if event.kind is SimulationEventKind.EVICTED and event.for_workload is not None:
            rounds[event.for_workload].add(event.at)
            assert len(rounds[event.for_workload]) <= 2
        elif event.kind is SimulationEventKind.PLACED and event.workload is not None:
            rounds.pop(event.workload, None)
