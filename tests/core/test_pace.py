"""Expected starts behind the last that the forecast places: units counted as they become free, not hosts."""

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


def room(*profile: tuple[int, ...]) -> FreeUnitsOverTime:
    """Free units of some hosts now and after each further hour."""
    return FreeUnitsOverTime(
        np.array([NOW + at * HOUR for at in range(len(profile))]), np.array(profile), NOW
    )


def pool(queued: list[QueuedWorkload], running: tuple[RunningWorkload, ...] = ()) -> Snapshot:
    """Four hosts of eight GPUs, and one team that borrows them."""
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
    """Every GPU in use, one of them free after each quarter of ``hours`` and all by then."""
    found = []
    for number, unit in enumerate(h * 10 + g for h in range(1, HOSTS + 1) for g in range(8)):
        end = NOW + hours * HOUR * (number % 4 + 1) // 4
        found.append(
            RunningWorkload(900 + number, 1, 1, 1, 1, (unit,), NOW - HOUR, end, end, preemptible=True)
        )
    return tuple(found)


def waits(number: int, ask: Ask, seconds: int) -> QueuedWorkload:
    return QueuedWorkload(number, 1, 1, 1, 1, ask, NOW - HOUR + number, seconds, seconds, preemptible=True)


def told(queued: list[QueuedWorkload], running: tuple[RunningWorkload, ...]) -> dict[int, int]:
    """When each is expected to start."""
    starts = {}
    for refusal in plan(pool(queued, running), NOW).refusals:
        assert refusal.expected_start is not None
        starts[refusal.workload] = refusal.expected_start
    return starts


def test_a_small_ask_deep_in_the_queue_is_not_told_to_wait_for_the_gangs_before_it() -> None:
    gangs = [waits(n, Ask(8, HOSTS), 24 * HOUR) for n in range(1, FORECAST_DEPTH + 1)]
    starts = told([*gangs, waits(500, Ask(1), HOUR), waits(501, Ask(1), 40 * HOUR)], busy(8))
    assert starts[FORECAST_DEPTH] >= NOW + 60 * 24 * HOUR, "the last gang waits for all the others"
    assert starts[500] == NOW + 2 * HOUR, "as soon as a GPU is free: it is gone when the first gang can start"
    assert starts[501] > starts[FORECAST_DEPTH], "it would be in the way of every gang before it"


def test_who_is_behind_the_forecast_starts_when_those_ahead_have_had_their_choice() -> None:
    ahead = FORECAST_DEPTH + 40
    starts = told([waits(n, Ask(1), 4 * HOUR) for n in range(1, ahead + 100)], busy(4))
    in_order = [starts[n] for n in sorted(starts)]
    assert in_order == sorted(in_order), "equals start in their order"
    free_again = NOW + 5 * HOUR  # the first 8 units come free after 1 h, and are needed for 4 h each
    before = 32  # as many units as there are come free before
    assert starts[before] < free_again <= starts[ahead] <= free_again + 12 * HOUR


@pytest.mark.parametrize("seed", range(10))
def test_nobody_deep_in_the_queue_is_told_a_time_when_more_would_be_in_use_than_there_is(seed: int) -> None:
    dice = random.Random(seed)
    queued = [
        waits(n, Ask(dice.choice((1, 1, 2, 4, 8)), dice.choice((1, 1, 1, 2))), dice.randint(1, 12) * HOUR)
        for n in range(1, 300)
    ]
    starts = told(queued, busy(6))
    ends = {r.id: r.until for r in busy(6)}
    for moment in sorted(set(starts.values())):
        at_work = sum(end > moment for end in ends.values())
        for q in queued:
            begun = starts.get(q.id, NOW)
            at_work += q.ask.total_units * (begun <= moment < begun + q.predicted_seconds)
        assert at_work <= HOSTS * 8, (seed, moment - NOW)


def test_pieces_smaller_than_an_ask_are_no_room_for_it() -> None:
    scattered = room((4, 4, 4), (4, 4, 8))
    assert scattered.earliest(8, 1, 60) == NOW + HOUR
    assert scattered.earliest(2, 1, 60) == NOW + HOUR, "later than now, and then at once"
    assert scattered.earliest(16, 1, 60) is None


def test_small_asks_take_the_scraps_before_they_break_up_whole_pieces() -> None:
    hosts = room((0, 0), (3, 8))
    hosts.take(1, 3, NOW, NOW + 100 * HOUR)
    assert hosts.earliest(8, 1, 60) == NOW + HOUR
    hosts.take(1, 1, NOW, NOW + 100 * HOUR)
    later = hosts.earliest(8, 1, 60)
    assert later is None or later >= NOW + 100 * HOUR


def test_room_has_to_last_as_long_as_it_is_needed() -> None:
    hosts = room((1,), (1,), (0,), (0,), (1,))
    assert hosts.earliest(1, 1, HOUR // 2) == NOW + HOUR
    assert hosts.earliest(1, 1, 2 * HOUR) == NOW + 4 * HOUR


def test_what_runs_beyond_all_that_is_known_is_in_nobodys_way_for_ever() -> None:
    hosts = room((1,), (1,))
    for number in range(30):
        start = hosts.earliest(1, 1, HOUR)
        assert start is not None and start >= NOW + number * HOUR, "they start one after another"
        hosts.take(1, 1, start, start + HOUR)


def test_what_may_be_told_to_go_for_a_reservation_is_not_told_a_start_that_those_ahead_would_not_let_it_have() -> (
    None
):
    """A gang needs all four hosts when the last is free; nobody leaves for it, whatever was reserved for next week."""
    ends = {host: NOW + host * HOUR for host in range(1, HOSTS + 1)}
    running = tuple(
        RunningWorkload(
            900 + h, 1, 1, 1, 1, tuple(h * 10 + g for g in range(8)), NOW - HOUR, end, end, preemptible=True
        )
        for h, end in ends.items()
    )
    queued = [waits(1, Ask(8, HOSTS), 24 * HOUR), waits(2, Ask(8), 20 * HOUR), waits(3, Ask(8), HOUR)]
    reserved = ReservationInfo(1, 1, 1, 1, Ask(8, HOSTS), NOW + 100 * HOUR, NOW + 110 * HOUR)
    soon = ReservationInfo(1, 1, 1, 1, Ask(8, HOSTS), NOW + 10 * HOUR, NOW + 11 * HOUR)
    for reservations in ((), (reserved,)):
        snapshot = replace(pool(queued, running), reservations=reservations)
        starts = {r.workload: r.expected_start for r in plan(snapshot, NOW).refusals}
        assert starts[1] == NOW + HOSTS * HOUR
        assert starts[2] == NOW + (HOSTS + 24) * HOUR, "it would be in the way of the gang"
        assert starts[3] == NOW + HOUR, "it is over before the gang can start"
    starts = {
        r.workload: r.expected_start for r in plan(replace(snapshot, reservations=(soon,)), NOW).refusals
    }
    assert starts[1] == NOW + HOSTS * HOUR, "what is reserved for later may be used until then"


def test_deep_in_the_queue_preemptible_work_uses_what_is_reserved_until_it_is_told_to_go() -> None:
    reserved = ReservationInfo(1, 1, 1, 1, Ask(8, HOSTS), NOW + 10 * HOUR, NOW + 1000 * HOUR)
    ahead = [waits(n, Ask(1), HOUR) for n in range(1, FORECAST_DEPTH + 1)]
    long = waits(500, Ask(1), 12 * HOUR)
    must_stay = replace(long, id=501, preemptible=False, may_borrow=False)
    snapshot = replace(pool([*ahead, long, must_stay], busy(4)), reservations=(reserved,))
    snapshot = replace(snapshot, quotas=(QuotaInfo(1, 1, "H100", 8 * HOSTS * SLOTS_PER_GPU),))
    starts = {r.workload: r.expected_start or 0 for r in plan(snapshot, NOW).refusals}
    assert NOW < starts[500] < NOW + 6 * HOUR
    assert starts[501] >= NOW + 1000 * HOUR, "it would still be there when the reservation starts"
