"""Test the expected starts of workloads that are too deep in the queue for the forecast.

These starts come from the number of free units over time, not from a placement on hosts.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from scheduler.core.explain.deep_queue_eta import FreeUnitsOverTime
from scheduler.core.explain.refusals import FORECAST_DEPTH
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan

NOW, HOUR = 1_000_000, 3600
HOSTS = 4


def free_units(*profile: tuple[int, ...]) -> FreeUnitsOverTime:
    """Return the free units of the hosts over time. Each tuple is for one hour; the first is for now."""
    return FreeUnitsOverTime(
        np.array([NOW + at * HOUR for at in range(len(profile))]), np.array(profile), NOW
    )


def pool(queued: list[QueuedWorkload], running: tuple[RunningWorkload, ...] = ()) -> Snapshot:
    """Return four hosts of eight GPUs, and one team that borrows them."""
    units = tuple(UnitInfo(h * 10 + g, h, h * 10 + g, "H100") for h in range(1, HOSTS + 1) for g in range(8))
    return Snapshot(
        1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(half_life_seconds=0)),),
        hosts=tuple(HostInfo(h, f"h{h}", 1) for h in range(1, HOSTS + 1)),
        units=units,
        teams=(TeamInfo(1, "red"),),
        quotas=(QuotaInfo(1, 1, "H100", 0),),
        queued=tuple(queued),
        running=running,
    )


def busy(hours: int) -> tuple[RunningWorkload, ...]:
    """Return work on every GPU: a quarter of it ends after each quarter of ``hours``."""
    rows = []
    for number, unit in enumerate(h * 10 + g for h in range(1, HOSTS + 1) for g in range(8)):
        end = NOW + hours * HOUR * (number % 4 + 1) // 4
        rows.append(
            RunningWorkload(900 + number, 1, 1, 1, 1, (unit,), NOW - HOUR, end, end, preemptible=True)
        )
    return tuple(rows)


def waiting(number: int, ask: Ask, seconds: int) -> QueuedWorkload:
    return QueuedWorkload(number, 1, 1, 1, 1, ask, NOW - HOUR + number, seconds, seconds, preemptible=True)


def expected_starts(queued: list[QueuedWorkload], running: tuple[RunningWorkload, ...]) -> dict[int, int]:
    """Return the expected start of each waiting workload."""
    starts = {}
    for refusal in plan(pool(queued, running), NOW).refusals:
        assert refusal.expected_start is not None
        starts[refusal.workload] = refusal.expected_start
    return starts


def test_a_small_request_deep_in_the_queue_is_expected_to_start_before_the_gangs_ahead() -> None:
    gangs = [waiting(n, Ask(8, HOSTS), 24 * HOUR) for n in range(1, FORECAST_DEPTH + 1)]
    starts = expected_starts([*gangs, waiting(500, Ask(1), HOUR), waiting(501, Ask(1), 40 * HOUR)], busy(8))
    assert starts[FORECAST_DEPTH] >= NOW + 60 * 24 * HOUR, "the last gang waits for all other gangs"
    assert starts[500] == NOW + 2 * HOUR, (
        "it starts on the first free GPU and ends before the first gang can start"
    )
    assert starts[501] > starts[FORECAST_DEPTH], "it would delay every gang ahead"


def test_workloads_behind_the_forecast_start_in_queue_order() -> None:
    ahead = FORECAST_DEPTH + 40
    starts = expected_starts([waiting(n, Ask(1), 4 * HOUR) for n in range(1, ahead + 100)], busy(4))
    in_order = [starts[n] for n in sorted(starts)]
    assert in_order == sorted(in_order), "equal workloads start in queue order"
    free_again = NOW + 5 * HOUR  # the first 8 units become free after 1 h; then new work uses them for 4 h
    last_of_first_round = 32  # one workload for each unit
    assert starts[last_of_first_round] < free_again <= starts[ahead] <= free_again + 12 * HOUR


@pytest.mark.parametrize("seed", range(10))
def test_expected_starts_never_need_more_units_than_the_pool_has(seed: int) -> None:
    rng = random.Random(seed)
    queued = [
        waiting(n, Ask(rng.choice((1, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2))), rng.randint(1, 12) * HOUR)
        for n in range(1, 300)
    ]
    starts = expected_starts(queued, busy(6))
    ends = {r.id: r.until for r in busy(6)}
    for time in sorted(set(starts.values())):
        in_use = sum(end > time for end in ends.values())
        for q in queued:
            start = starts.get(q.id, NOW)
            in_use += q.ask.total_units * (start <= time < start + q.predicted_seconds)
        assert in_use <= HOSTS * 8, (seed, time - NOW)


def test_a_request_needs_its_units_on_one_host() -> None:
    scattered = free_units((4, 4, 4), (4, 4, 8))
    assert scattered.earliest(8, 1, 60) == NOW + HOUR
    assert scattered.earliest(2, 1, 60) == NOW + HOUR, "the search returns only starts later than now"
    assert scattered.earliest(16, 1, 60) is None


def test_small_requests_use_partly_used_hosts_first() -> None:
    hosts = free_units((0, 0), (3, 8))
    hosts.take(1, 3, NOW, NOW + 100 * HOUR)
    assert hosts.earliest(8, 1, 60) == NOW + HOUR
    hosts.take(1, 1, NOW, NOW + 100 * HOUR)
    later = hosts.earliest(8, 1, 60)
    assert later is None or later >= NOW + 100 * HOUR


def test_units_must_stay_free_for_the_whole_runtime() -> None:
    hosts = free_units((1,), (1,), (0,), (0,), (1,))
    assert hosts.earliest(1, 1, HOUR // 2) == NOW + HOUR
    assert hosts.earliest(1, 1, 2 * HOUR) == NOW + 4 * HOUR


def test_work_after_the_last_known_time_starts_one_after_another() -> None:
    hosts = free_units((1,), (1,))
    for number in range(30):
        start = hosts.earliest(1, 1, HOUR)
        assert start is not None and start >= NOW + number * HOUR, "they start one after another"
        hosts.take(1, 1, start, start + HOUR)


def test_a_later_reservation_does_not_move_the_expected_starts_of_preemptible_work() -> None:
    """Queue a gang that needs all four hosts. It evicts no work and starts when the last host is free."""
    ends = {host: NOW + host * HOUR for host in range(1, HOSTS + 1)}
    running = tuple(
        RunningWorkload(
            900 + h, 1, 1, 1, 1, tuple(h * 10 + g for g in range(8)), NOW - HOUR, end, end, preemptible=True
        )
        for h, end in ends.items()
    )
    queued = [waiting(1, Ask(8, HOSTS), 24 * HOUR), waiting(2, Ask(8), 20 * HOUR), waiting(3, Ask(8), HOUR)]
    reserved = ReservationInfo(1, 1, 1, 1, Ask(8, HOSTS), NOW + 100 * HOUR, NOW + 110 * HOUR)
    soon = ReservationInfo(1, 1, 1, 1, Ask(8, HOSTS), NOW + 10 * HOUR, NOW + 11 * HOUR)
    for reservations in ((), (reserved,)):
        snapshot = replace(pool(queued, running), reservations=reservations)
        starts = {r.workload: r.expected_start for r in plan(snapshot, NOW).refusals}
        assert starts[1] == NOW + HOSTS * HOUR
        assert starts[2] == NOW + (HOSTS + 24) * HOUR, "it would delay the gang"
        assert starts[3] == NOW + HOUR, "it ends before the gang can start"
    starts = {
        r.workload: r.expected_start for r in plan(replace(snapshot, reservations=(soon,)), NOW).refusals
    }
    assert starts[1] == NOW + HOSTS * HOUR, "units reserved for later are used until then"


def test_preemptible_work_deep_in_the_queue_uses_reserved_units_until_the_reservation_starts() -> None:
    reserved = ReservationInfo(1, 1, 1, 1, Ask(8, HOSTS), NOW + 10 * HOUR, NOW + 1000 * HOUR)
    ahead = [waiting(n, Ask(1), HOUR) for n in range(1, FORECAST_DEPTH + 1)]
    long = waiting(500, Ask(1), 12 * HOUR)
    must_stay = replace(long, id=501, preemptible=False, may_borrow=False)
    snapshot = replace(pool([*ahead, long, must_stay], busy(4)), reservations=(reserved,))
    snapshot = replace(snapshot, quotas=(QuotaInfo(1, 1, "H100", 8 * HOSTS * SLOTS_PER_GPU),))
    starts = {r.workload: r.expected_start or 0 for r in plan(snapshot, NOW).refusals}
    assert NOW < starts[500] < NOW + 6 * HOUR
    assert starts[501] >= NOW + 1000 * HOUR, "it would still run when the reservation starts"


def test_the_units_of_a_workload_are_subtracted_once() -> None:
    """The first workload that waits for A100 gets an exact forecast although it is deep in the queue."""
    ahead = [waiting(n, Ask(1, models=("H100",)), 4 * HOUR) for n in range(1, FORECAST_DEPTH + 2)]
    first, second = (waiting(n, Ask(1, models=("A100",)), 4 * HOUR) for n in (500, 501))
    end = NOW + 2 * HOUR
    snapshot = pool([*ahead, first, second], busy(8))
    snapshot = replace(
        snapshot,
        hosts=(*snapshot.hosts, HostInfo(9, "h9", 1)),
        units=(*snapshot.units, *(UnitInfo(unit, 9, unit, "A100") for unit in (90, 91))),
        quotas=(*snapshot.quotas, QuotaInfo(1, 1, "A100", 0)),
        running=(
            *snapshot.running,
            RunningWorkload(990, 1, 1, 1, 1, (90, 91), NOW - HOUR, end, end, preemptible=True),
        ),
    )
    starts = {refusal.workload: refusal.expected_start for refusal in plan(snapshot, NOW).refusals}
    assert (starts[500], starts[501]) == (end, end)
