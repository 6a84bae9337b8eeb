"""Expected starts of the first that wait."""

from __future__ import annotations

import pytest

from scheduler.core.explain.refusals import FORECAST_DEPTH
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
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode

NOW, HOUR = 1_000_000, 3600
PAIR = Ask(2)


def waits(number: int, team: int, seconds: int, priority: Priority) -> QueuedWorkload:
    return QueuedWorkload(
        number,
        team,
        1,
        1,
        1,
        PAIR,
        NOW - 60 + number,
        seconds,
        seconds,
        priority,
        may_borrow=True,
        preemptible=True,
    )


@pytest.mark.parametrize("ahead", [1, FORECAST_DEPTH + 1], ids=["by the forecast", "by the pace"])
def test_who_may_use_spare_units_is_expected_when_who_took_them_ends_though_others_wait_longer_for_as_many(
    ahead: int,
) -> None:
    """The first of the queue may not have the two free GPUs, which the pool keeps: they wait for those that run. The next may,
    and takes them for ten minutes; the last may as well, and needs as many for as long as the first."""
    red = [waits(number, 1, HOUR, Priority.NORMAL) for number in range(1, ahead + 1)]
    taker, last = ahead + 1, ahead + 2
    plans = plan(
        Snapshot(
            1,
            pools=(
                PoolInfo(
                    1,
                    "pool",
                    PoolKind.DYNAMIC,
                    None,
                    PoolPolicy(half_life_seconds=0, spare_slots=2 * SLOTS_PER_GPU),
                ),
            ),
            hosts=(HostInfo(1, "h1", 1),),
            units=tuple(UnitInfo(gpu, 1, gpu, "H100") for gpu in (1, 2, 3, 4)),
            teams=(TeamInfo(1, "red"), TeamInfo(2, "blue"), TeamInfo(3, "green")),
            quotas=(
                QuotaInfo(1, 1, "H100", 2 * ahead * SLOTS_PER_GPU),
                QuotaInfo(2, 1, "H100", 0),
                QuotaInfo(3, 1, "H100", 2 * SLOTS_PER_GPU),
            ),
            queued=(*red, waits(taker, 2, 600, Priority.CRITICAL), waits(last, 2, HOUR, Priority.CRITICAL)),
            running=(RunningWorkload(9, 3, 1, 1, 1, (1, 2), NOW - HOUR, NOW + 8 * HOUR, NOW + 8 * HOUR),),
        ),
        NOW,
    )
    assert [placed.workload for placed in plans.placements] == [taker]
    starts = {refused.workload: (refused.code, refused.expected_start) for refused in plans.refusals}
    assert starts[1] == (ReasonCode.SPARE_CAPACITY_KEPT, NOW + 8 * HOUR)
    assert starts[last][1] == NOW + 600
