"""Expected starts of the first that wait: where the search for one may begin, after others were searched for."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from scheduler.core.board import Board
from scheduler.core.forecast import Forecast
from scheduler.core.model import (
    SLOTS_PER_GPU,
    Ask,
    Host,
    Policy,
    Pool,
    PoolKind,
    Priority,
    Queued,
    Quota,
    Running,
    Snapshot,
    Team,
    Unit,
)
from scheduler.core.planner import plan
from scheduler.core.reasons import Code
from scheduler.core.timeline import Promises
from tests.core.crowded import crowded

NOW, HOUR = 1_000_000, 3600
PAIR = Ask(2)


def waits(number: int, team: int, seconds: int, priority: Priority) -> Queued:
    return Queued(number, team, 1, 1, 1, PAIR, NOW - 60 + number, seconds, seconds, priority, may_borrow=True, preemptible=True)


def test_who_may_use_spare_units_is_expected_when_who_took_them_ends_though_others_wait_longer_for_as_many() -> None:
    """The first of the queue may not have the two free GPUs, which the pool keeps: it waits for those that run. The second may,
    and takes them for ten minutes; the third may as well, and needs as many for as long as the first."""
    plans = plan(
        Snapshot(
            1,
            pools=(Pool(1, "pool", PoolKind.DYNAMIC, None, Policy(half_life_seconds=0, spare_slots=2 * SLOTS_PER_GPU)),),
            hosts=(Host(1, "h1", 1),),
            units=tuple(Unit(gpu, 1, gpu, "H100") for gpu in (1, 2, 3, 4)),
            teams=(Team(1, "red"), Team(2, "blue"), Team(3, "green")),
            quotas=(Quota(1, 1, "H100", 2 * SLOTS_PER_GPU), Quota(2, 1, "H100", 0), Quota(3, 1, "H100", 2 * SLOTS_PER_GPU)),
            queued=(
                waits(1, 1, HOUR, Priority.NORMAL),
                waits(2, 2, 600, Priority.CRITICAL),
                waits(3, 2, HOUR, Priority.CRITICAL),
            ),
            running=(Running(9, 3, 1, 1, 1, (1, 2), NOW - HOUR, NOW + 8 * HOUR, NOW + 8 * HOUR),),
        ),
        NOW,
    )
    assert [placed.workload for placed in plans.placements] == [2]
    starts = {refused.workload: (refused.code, refused.expected_start) for refused in plans.refusals}
    assert starts[1] == (Code.SPARE_CAPACITY_KEPT, NOW + 8 * HOUR)
    assert starts[3][1] == NOW + 600


@pytest.mark.parametrize("seed", range(30))
def test_a_search_that_begins_late_finds_what_a_search_from_the_start_would(seed: int) -> None:
    """Whatever was counted in before, in and out of turn."""
    dice = random.Random(seed)
    snapshot = crowded(seed, NOW, hosts=dice.choice((2, 5)), waiting=40)
    board = Board(snapshot, snapshot.pools[0], NOW)
    forecast = Forecast(board, Promises(board))
    waiting = [queued for queued in snapshot.queued if board.kinds_for(queued.ask)]
    for _ in range(60):
        ask = dice.choice(waiting).ask
        kind = dice.choice(board.kinds_for(ask))
        done = dice.random()
        if done < 0.1:
            free = [u for u in range(len(board.units)) if board.kind[u] == kind and forecast.free_at[u] <= NOW]
            forecast.note_placed(free[: ask.units], dice.choice((60, 600, HOUR)))
        elif done < 0.15:
            forecast.note_kept([dice.randrange(len(board.units))])
        else:
            seconds, after = dice.choice((60, 600, HOUR, 48 * HOUR)), NOW + dice.choice((1, 1, 30, 600, 8 * HOUR))
            wanted = ask, kind, seconds, after, dice.choice((None, None, 60, 600))
            known, forecast._found = forecast._found, defaultdict(list)
            expected = forecast.earliest(*wanted)
            forecast._found = known
            found = forecast.earliest(*wanted)
            assert found == expected
            if found is not None and dice.random() < 0.7:
                forecast.take(kind, found[1], ask.units, found[0], dice.choice((60, seconds)))
