"""Expected starts of the first that wait."""

from __future__ import annotations

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
