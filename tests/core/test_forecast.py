"""Test the expected starts of the first workloads in the queue."""

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


def waiting(number: int, team: int, seconds: int, priority: Priority) -> QueuedWorkload:
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
def test_critical_work_is_expected_to_start_when_the_work_on_the_spare_units_ends(
    ahead: int,
) -> None:
    """Keep two free GPUs as spare capacity, for critical work only.

    The normal work at the front of the queue must wait for the running work. The first critical workload
    takes the two GPUs for ten minutes. The second critical workload also needs two GPUs and starts when the
    first one ends.
    """
    red = [waiting(number, 1, HOUR, Priority.NORMAL) for number in range(1, ahead + 1)]
    first_critical, second_critical = ahead + 1, ahead + 2
    planned = plan(
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
            queued=(
                *red,
                waiting(first_critical, 2, 600, Priority.CRITICAL),
                waiting(second_critical, 2, HOUR, Priority.CRITICAL),
            ),
            running=(RunningWorkload(9, 3, 1, 1, 1, (1, 2), NOW - HOUR, NOW + 8 * HOUR, NOW + 8 * HOUR),),
        ),
        NOW,
    )
    assert [placement.workload for placement in planned.placements] == [first_critical]
    starts = {refusal.workload: (refusal.code, refusal.expected_start) for refusal in planned.refusals}
    assert starts[1] == (ReasonCode.SPARE_CAPACITY_KEPT, NOW + 8 * HOUR)
    assert starts[second_critical][1] == NOW + 600
