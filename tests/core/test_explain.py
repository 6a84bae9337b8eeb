"""What viewers ask: what if, what would be sooner, who gets how much, what a drain would touch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler.core.explain import drain_effect, fairness_table, preview, sooner
from scheduler.core.model import (
    SLOTS_PER_GPU,
    Ask,
    DecayedUse,
    Placement,
    Policy,
    Pool,
    PoolKind,
    Queued,
    Quota,
    Refusal,
    Reservation,
    Running,
    Snapshot,
    Team,
    Unit,
)
from scheduler.core.model import Host as HostRow
from scheduler.core.planner import plan
from scheduler.core.reasons import Code

NOW, HOUR, GPU = 1_000_000, 3600, SLOTS_PER_GPU


def two_models(**rows: Any) -> Snapshot:
    """Host 1 has 8 H100, host 2 has 4 A100; six H100 are in use for five hours."""
    base = Snapshot(
        epoch=1,
        pools=(Pool(1, "pool", PoolKind.DYNAMIC, None, Policy()),),
        hosts=(HostRow(1, "h1", 1), HostRow(2, "h2", 1)),
        units=(*(Unit(10 + g, 1, 10 + g, "H100") for g in range(8)), *(Unit(20 + g, 2, 20 + g, "A100") for g in range(4))),
        teams=(Team(1, "red", 3), Team(2, "blue")),
        quotas=(Quota(1, 1, "H100", 8 * GPU), Quota(1, 1, "A100", 4 * GPU), Quota(2, 1, "H100", 0)),
        running=(Running(50, 1, 1, 1, 1, tuple(range(10, 16)), NOW - HOUR, NOW + 5 * HOUR, NOW + 5 * HOUR),),
    )  # fmt: skip
    return replace(base, **rows)


def waits(workload: int, ask: Ask, team: int = 1, **more: Any) -> Queued:
    return Queued(workload, team, 1, 1, 1, ask, NOW, 2 * HOUR, 2 * HOUR, **more)


def test_a_preview_says_what_the_plan_would_say_and_leaves_the_queue_alone() -> None:
    snapshot = two_models(queued=(waits(1, Ask(2, models=("H100",))),))
    placed = preview(snapshot, waits(2, Ask(2, models=("A100",))), NOW)
    assert isinstance(placed, Placement) and placed.units == (20, 21)
    refused = preview(snapshot, waits(2, Ask(2, models=("H100",))), NOW)
    assert isinstance(refused, Refusal) and refused.code == Code.OVER_QUOTA
    assert [q.id for q in snapshot.queued] == [1]


def test_what_would_start_sooner_is_found_by_the_planner() -> None:
    snapshot = two_models(queued=(waits(1, Ask(4, models=("H100",))),))
    found = sooner(snapshot, 1, NOW)
    assert found and all(alternative.starts_now for alternative in found)
    assert found[0].ask == Ask(4, models=("A100",))
    assert Ask(2, models=("H100",)) in [alternative.ask for alternative in found]
    for alternative in found:
        assert isinstance(preview(snapshot, replace(snapshot.queued[0], ask=alternative.ask), NOW), Placement)


def test_nothing_is_sooner_than_now_and_nothing_is_known_of_strangers() -> None:
    assert sooner(two_models(queued=(waits(1, Ask(1, models=("H100",))),)), 1, NOW) == []
    assert sooner(two_models(), 99, NOW) == []


def test_alternatives_that_start_later_come_with_their_start() -> None:
    """All H100 are in use: for five hours six of them, for three hours two."""
    short = Running(51, 1, 1, 1, 1, (16, 17), NOW - HOUR, NOW + 3 * HOUR, NOW + 3 * HOUR)
    snapshot = two_models(queued=(waits(1, Ask(4, models=("H100",))),), quotas=(Quota(1, 1, "H100", 8 * GPU),))
    found = sooner(replace(snapshot, running=(*snapshot.running, short)), 1, NOW)
    assert [(a.ask.units, a.expected_start) for a in found] == [(2, NOW + 3 * HOUR), (1, NOW + 3 * HOUR)]


def test_the_fairness_table_adds_up() -> None:
    snapshot = two_models(
        decayed_use=(DecayedUse(1, 1, 300.0), DecayedUse(2, 1, 100.0)),
        queued=(waits(1, Ask(2), team=2), waits(2, Ask(1, profile="none"), team=2)),
        running=(Running(50, 2, 1, 1, 1, (10, 11), NOW - HOUR, NOW + HOUR, NOW + HOUR, preemptible=True),),
    )
    red, blue = fairness_table(snapshot, 1, NOW)
    assert (red.name, red.guaranteed, red.held, red.borrowed, red.weight) == ("red", 12 * GPU, 0, 0, 3)
    assert (blue.held, blue.borrowed, blue.waiting) == (2 * GPU, 2 * GPU, 2 * GPU)
    assert (red.share, blue.share) == (0.75, 0.25)
    assert (red.fair_share, blue.fair_share) == (0.75, 0.25)


def test_a_drain_shows_who_has_to_move_and_where_they_would_fit() -> None:
    snapshot = two_models(
        hosts=(HostRow(1, "h1", 1), HostRow(2, "h2", 1), HostRow(3, "h3", 1)),
        units=(*two_models().units, *(Unit(30 + g, 3, 30 + g, "H100") for g in range(8))),
        running=(
            *two_models().running,
            Running(51, 1, 1, 1, 1, (16, 17), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR, preemptible=True),
            Running(52, 1, 1, 1, 1, (20,), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR),
            Running(53, 1, 1, 1, 1, (30, 31), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR),
        ),
        quotas=(Quota(1, 1, "H100", 16 * GPU), Quota(1, 1, "A100", 4 * GPU)),
        reservations=(
            Reservation(7, 1, 1, 1, Ask(1, models=("H100",)), NOW - HOUR, NOW + HOUR, units=(17,)),
            Reservation(8, 1, 1, 1, Ask(8, models=("H100",)), NOW + 2 * HOUR, NOW + 3 * HOUR),
        ),
    )  # fmt: skip
    before = plan(snapshot, NOW)
    effect = drain_effect(snapshot, 1, NOW)
    assert [moved.workload for moved in effect.moved] == [50, 51]
    assert [moved.placement is not None for moved in effect.moved] == [False, True]  # the shorter first
    assert effect.reservations == (7,)
    assert effect.unkept == ()
    assert plan(snapshot, NOW) == before
    nothing = drain_effect(snapshot, 2, NOW)
    assert [moved.workload for moved in nothing.moved] == [52]


def test_a_drain_names_the_reservations_that_it_would_break() -> None:
    snapshot = two_models(running=(), reservations=(Reservation(8, 1, 1, 1, Ask(8), NOW + 2 * HOUR, NOW + 3 * HOUR),))
    assert drain_effect(snapshot, 1, NOW).unkept == (8,)
    assert drain_effect(snapshot, 2, NOW).unkept == ()
