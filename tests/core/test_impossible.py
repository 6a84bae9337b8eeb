"""Test impossible_reason(), which finds workloads that could not start even in an empty pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    HostInfo,
    MaintenanceInfo,
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
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if.impossible import GRANTABLE_CODES, impossible_reason

NOW, HOUR, GPU = 1_000_000, 3600, SLOTS_PER_GPU
NO_CAPS = PoolPolicy()


def full_pool(policy: PoolPolicy = NO_CAPS, **rows: Any) -> Snapshot:
    """Return two hosts of 8 H100, both in maintenance. Host 1 is full of work, and host 2 is closed."""
    base = Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, policy),),
        hosts=(
            HostInfo(1, "h1", 1, frozenset({("rack", "a")})),
            HostInfo(2, "h2", 1, schedulable=False, closed_code=ReasonCode.HOST_CLOSED),
        ),
        units=tuple(
            UnitInfo(10 * h + g, h, 10 * h + g, "H100", healthy=h == 1, nvlink_group=g // 4)
            for h in (1, 2)
            for g in range(8)
        ),
        teams=(TeamInfo(1, "red"), TeamInfo(2, "blue")),
        quotas=(QuotaInfo(1, 1, "H100", 8 * GPU, 4 * GPU), QuotaInfo(2, 1, "H100", 8 * GPU)),
        running=(RunningWorkload(50, 1, 1, 1, 1, tuple(range(10, 18)), NOW, NOW + 5 * HOUR, NOW + 5 * HOUR),),
        maintenance=(MaintenanceInfo(1, NOW, NOW + HOUR), MaintenanceInfo(2, NOW, NOW + HOUR)),
    )
    return replace(base, **rows)


def waiting(ask: Ask, *, team: int = 1, preemptible: bool = True, **more: Any) -> QueuedWorkload:
    return QueuedWorkload(1, team, 1, 1, 1, ask, NOW, HOUR, HOUR, preemptible=preemptible, **more)


def test_work_that_waits_for_other_work_or_maintenance_is_not_impossible() -> None:
    """Check that a closed budget, a later start time and maintenance do not make work impossible."""
    gated = waiting(Ask(8, models=("H100",)), gate=ReasonCode.BUDGET_CLOSED, not_before=NOW + HOUR)
    assert impossible_reason(full_pool(), gated, NOW) is None


@pytest.mark.parametrize(
    ("ask", "code", "numbers"),
    [
        (Ask(9, models=("H100",)), ReasonCode.TOO_BIG_FOR_ANY_HOST, {"units": 9, "largest": 8}),
        (Ask(1, hosts=3), ReasonCode.TOO_BIG_FOR_ANY_HOST, {"hosts": 3}),
        (
            Ask(1, labels=frozenset({("rack", "z")})),
            ReasonCode.TOO_BIG_FOR_ANY_HOST,
            {"hosts_with_labels": 0},
        ),
        (Ask(5, nvlink=True), ReasonCode.TOO_BIG_FOR_ANY_HOST, {"units": 5}),
        (Ask(1, models=("B200",)), ReasonCode.NO_SUCH_HARDWARE, {"models": ["B200"]}),
        (Ask(1, min_compute_capability=99), ReasonCode.NO_SUCH_HARDWARE, {"min_compute_capability": 99}),
        (Ask(8, hosts=2), ReasonCode.OVER_QUOTA, {"need": 16 * GPU, "limit": 12 * GPU, "held": 0}),
    ],
)
def test_a_request_that_no_free_unit_could_serve_is_impossible(
    ask: Ask, code: ReasonCode, numbers: dict[str, Any]
) -> None:
    refusal = impossible_reason(full_pool(), waiting(ask), NOW)
    assert refusal is not None and refusal.code == code
    assert {name: dict(refusal.numbers)[name] for name in numbers} == numbers
    assert (code in GRANTABLE_CODES) is (code == ReasonCode.OVER_QUOTA)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (PoolPolicy(max_slots_per_user=4 * GPU), ReasonCode.OVER_USER_CAP),
        (PoolPolicy(max_slots_per_workload=4 * GPU), ReasonCode.OVER_WORKLOAD_CAP),
        (PoolPolicy(spare_slots=12 * GPU), ReasonCode.SPARE_CAPACITY_KEPT),
        (PoolPolicy(longest_runtime_seconds=60), ReasonCode.OVER_RUNTIME_CAP),
    ],
)
def test_a_request_above_a_cap_of_the_pool_is_impossible(policy: PoolPolicy, code: ReasonCode) -> None:
    refusal = impossible_reason(full_pool(policy), waiting(Ask(5, models=("H100",))), NOW)
    assert refusal is not None and refusal.code == code


def test_work_that_may_not_borrow_is_impossible_above_the_guarantee() -> None:
    quotas = (QuotaInfo(1, 1, "H100", 4 * GPU, 12 * GPU),)
    assert impossible_reason(full_pool(quotas=quotas), waiting(Ask(5)), NOW) is None
    refusal = impossible_reason(full_pool(quotas=quotas), waiting(Ask(5), preemptible=False), NOW)
    assert refusal is not None and refusal.code == ReasonCode.OVER_QUOTA


def test_work_inside_a_reservation_is_compared_with_the_units_of_the_reservation() -> None:
    own = ReservationInfo(7, 1, 1, 1, Ask(4), NOW - HOUR, NOW + 9 * HOUR, units=(10, 11, 12, 13))
    pool = full_pool(reservations=(own,))
    assert impossible_reason(pool, waiting(Ask(4), reservation=7), NOW) is None
    refusal = impossible_reason(pool, waiting(Ask(5), reservation=7), NOW)
    assert refusal is not None and refusal.code == ReasonCode.WAITS_FOR_UNITS
    assert (
        impossible_reason(
            full_pool(reservations=(replace(own, units=()),)), waiting(Ask(5), reservation=7), NOW
        )
        is None
    )
