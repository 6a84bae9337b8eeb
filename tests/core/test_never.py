"""What could never start, whatever ended: found by the plan of a pool in which nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.model import (
    SLOTS_PER_GPU,
    Ask,
    Host,
    Maintenance,
    Policy,
    Pool,
    PoolKind,
    Queued,
    Quota,
    Reservation,
    Running,
    Snapshot,
    Team,
    Unit,
)
from scheduler.core.never import MAY_BE_GRANTED, never_starts
from scheduler.core.reasons import Code

NOW, HOUR, GPU = 1_000_000, 3600, SLOTS_PER_GPU
NO_CAPS = Policy()


def full_pool(policy: Policy = NO_CAPS, **rows: Any) -> Snapshot:
    """Two hosts of 8 H100; one is closed, on the other everything is in use, and both go into maintenance."""
    base = Snapshot(
        epoch=1,
        pools=(Pool(1, "pool", PoolKind.DYNAMIC, None, policy),),
        hosts=(
            Host(1, "h1", 1, frozenset({("rack", "a")})),
            Host(2, "h2", 1, accepts=False, closed_code=Code.HOST_CLOSED),
        ),
        units=tuple(
            Unit(10 * h + g, h, 10 * h + g, "H100", well=h == 1, nvlink_group=g // 4) for h in (1, 2) for g in range(8)
        ),
        teams=(Team(1, "red"), Team(2, "blue")),
        quotas=(Quota(1, 1, "H100", 8 * GPU, 4 * GPU), Quota(2, 1, "H100", 8 * GPU)),
        running=(Running(50, 1, 1, 1, 1, tuple(range(10, 18)), NOW, NOW + 5 * HOUR, NOW + 5 * HOUR),),
        maintenance=(Maintenance(1, NOW, NOW + HOUR), Maintenance(2, NOW, NOW + HOUR)),
    )
    return replace(base, **rows)


def wants(ask: Ask, *, team: int = 1, preemptible: bool = True, **more: Any) -> Queued:
    return Queued(1, team, 1, 1, 1, ask, NOW, HOUR, HOUR, preemptible=preemptible, **more)


def test_what_others_use_or_keep_away_is_no_reason_to_give_up() -> None:
    """Nor a closed budget, or a dependency that is not met."""
    gated = wants(Ask(8, models=("H100",)), gate=Code.BUDGET_CLOSED, not_before=NOW + HOUR)
    assert never_starts(full_pool(), gated, NOW) is None


@pytest.mark.parametrize(
    ("ask", "code", "numbers"),
    [
        (Ask(9, models=("H100",)), Code.TOO_BIG_FOR_ANY_HOST, {"units": 9, "largest": 8}),
        (Ask(1, hosts=3), Code.TOO_BIG_FOR_ANY_HOST, {"hosts": 3}),
        (Ask(1, labels=frozenset({("rack", "z")})), Code.TOO_BIG_FOR_ANY_HOST, {"hosts_with_labels": 0}),
        (Ask(5, nvlink=True), Code.TOO_BIG_FOR_ANY_HOST, {"units": 5}),
        (Ask(1, models=("B200",)), Code.NO_SUCH_HARDWARE, {"models": ["B200"]}),
        (Ask(1, min_compute_capability=99), Code.NO_SUCH_HARDWARE, {"min_compute_capability": 99}),
        (Ask(8, hosts=2), Code.OVER_QUOTA, {"need": 16 * GPU, "limit": 12 * GPU, "held": 0}),
    ],
)  # fmt: skip
def test_what_no_end_of_anything_mends_is_found_with_its_numbers(ask: Ask, code: Code, numbers: dict[str, Any]) -> None:
    refusal = never_starts(full_pool(), wants(ask), NOW)
    assert refusal is not None and refusal.code == code
    assert {name: dict(refusal.numbers)[name] for name in numbers} == numbers
    assert (code in MAY_BE_GRANTED) is (code == Code.OVER_QUOTA)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (Policy(most_slots_per_user=4 * GPU), Code.OVER_USER_CAP),
        (Policy(most_slots_per_workload=4 * GPU), Code.OVER_WORKLOAD_CAP),
        (Policy(spare_slots=12 * GPU), Code.SPARE_CAPACITY_KEPT),
        (Policy(longest_runtime_seconds=60), Code.OVER_RUNTIME_CAP),
    ],
)
def test_what_the_pool_caps_below_the_ask_is_found(policy: Policy, code: Code) -> None:
    refusal = never_starts(full_pool(policy), wants(Ask(5, models=("H100",))), NOW)
    assert refusal is not None and refusal.code == code


def test_what_may_not_borrow_never_starts_above_its_guarantee() -> None:
    quotas = (Quota(1, 1, "H100", 4 * GPU, 12 * GPU),)
    assert never_starts(full_pool(quotas=quotas), wants(Ask(5)), NOW) is None
    refusal = never_starts(full_pool(quotas=quotas), wants(Ask(5), preemptible=False), NOW)
    assert refusal is not None and refusal.code == Code.OVER_QUOTA


def test_inside_a_reservation_its_own_units_count() -> None:
    own = Reservation(7, 1, 1, 1, Ask(4), NOW - HOUR, NOW + 9 * HOUR, units=(10, 11, 12, 13))
    pool = full_pool(reservations=(own,))
    assert never_starts(pool, wants(Ask(4), reservation=7), NOW) is None
    refusal = never_starts(pool, wants(Ask(5), reservation=7), NOW)
    assert refusal is not None and refusal.code == Code.WAITS_FOR_UNITS
    assert never_starts(full_pool(reservations=(replace(own, units=()),)), wants(Ask(5), reservation=7), NOW) is None
