"""Test the victims chosen for a reservation: borrowed work is evicted before guaranteed work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.plan_verifier import violations
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.planner import plan
from scheduler.core.promises.guaranteed_work import GuaranteedWork

NOW, HOUR = 1_000_000, 3600
RED, BLUE, GREEN, YELLOW = 1, 2, 3, 4
GUARANTEED_GPUS = {RED: 8, BLUE: 4, GREEN: 4, YELLOW: 0}


def work(number: int, team: int, units: range, unsaved: int) -> RunningWorkload:
    """Return preemptible work that would lose ``unsaved`` seconds."""
    row = RunningWorkload(
        number, team, 1, 90 + team, 1, tuple(units), NOW - 10 * HOUR, NOW + 20 * HOUR, NOW + HOUR
    )
    return replace(row, preemptible=True, checkpoint_at=NOW - unsaved)


def two_hosts(*running: RunningWorkload, reserved_gpus: int = 8, pool: PoolInfo | None = None) -> Snapshot:
    """Return two hosts of 8 GPUs (10 to 17 and 20 to 27) and a reservation of RED that begins in a minute."""
    return Snapshot(
        1,
        pools=(pool or PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=(HostInfo(1, "one", 1), HostInfo(2, "two", 1)),
        units=tuple(
            UnitInfo(host * 10 + gpu, host, host * 10 + gpu, "H100", memory_mib=80_000)
            for host in (1, 2)
            for gpu in range(8)
        ),
        teams=tuple(TeamInfo(team, f"team {team}") for team in GUARANTEED_GPUS),
        quotas=tuple(
            QuotaInfo(team, 1, "H100", gpus * SLOTS_PER_GPU) for team, gpus in GUARANTEED_GPUS.items()
        ),
        running=running,
        reservations=(ReservationInfo(9, RED, 1, 1, Ask(reserved_gpus), NOW + 60, NOW + HOUR),),
    )


def victims(snapshot: Snapshot) -> list[int]:
    planned = plan(snapshot, NOW)
    assert violations(snapshot, planned, NOW) == []
    assert {eviction.for_reservation for eviction in planned.evictions} <= {9}
    return [eviction.workload for eviction in planned.evictions]


def test_victims_of_one_team_count_together_against_its_guarantee() -> None:
    cheap_but_half_guaranteed = work(50, GREEN, range(10, 14), 60), work(51, GREEN, range(14, 18), 60)
    assert victims(two_hosts(*cheap_but_half_guaranteed, work(52, YELLOW, range(20, 28), HOUR))) == [52]


def test_either_of_two_workloads_may_be_the_borrowed_one() -> None:
    on_one = work(50, GREEN, range(10, 14), 60), work(51, BLUE, range(14, 18), 60)
    on_two = work(52, GREEN, range(20, 24), HOUR), work(53, YELLOW, range(24, 28), HOUR)
    assert victims(two_hosts(*on_one, *on_two)) == [52, 53]


def test_work_of_the_reservations_own_team_becomes_borrowed() -> None:
    own, guaranteed = work(50, RED, range(10, 18), HOUR), work(51, BLUE, range(20, 24), 60)
    filler = work(52, GREEN, range(24, 28), 60)
    assert victims(two_hosts(own, guaranteed, filler)) == [50]


def test_guaranteed_work_is_evicted_if_borrowed_work_does_not_suffice() -> None:
    on_one = work(50, BLUE, range(10, 14), 60), work(51, GREEN, range(14, 18), 60)
    firm = replace(work(52, YELLOW, range(20, 28), 60), preemptible=False)
    assert victims(two_hosts(*on_one, firm)) == [50, 51]


def test_among_borrowed_work_the_work_that_loses_least_is_evicted() -> None:
    assert victims(two_hosts(work(50, YELLOW, range(10, 18), HOUR), work(51, YELLOW, range(20, 28), 60))) == [
        51
    ]


def test_in_a_static_pool_the_owners_work_is_guaranteed_and_the_cheapest_work_is_evicted() -> None:
    pool = PoolInfo(1, "own", PoolKind.STATIC, RED, PoolPolicy())
    own = work(50, RED, range(10, 18), HOUR), work(51, RED, range(20, 28), 60)
    assert victims(two_hosts(*own, pool=pool)) == [51]


@pytest.mark.parametrize(
    ("test", "estimate"),
    [
        (test_victims_of_one_team_count_together_against_its_guarantee, 1),
        (test_either_of_two_workloads_may_be_the_borrowed_one, 0),
    ],
)
def test_each_estimate_finds_units_that_the_other_estimate_misses(
    monkeypatch: pytest.MonkeyPatch, test: object, estimate: int
) -> None:
    both = GuaranteedWork.unit_costs
    monkeypatch.setattr(
        GuaranteedWork, "unit_costs", lambda self, units: (both(self, units)[1 - estimate],) * 2
    )
    with pytest.raises(AssertionError):
        test()  # type: ignore[operator]
