"""What viewers ask: what if, what would be sooner, who gets how much, what a drain would touch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core import explain
from scheduler.core.explain import (
    Allowed,
    Basis,
    Changed,
    compare,
    drain_effect,
    fairness_table,
    preview,
    reservable,
    sooner,
    turns_of,
)
from scheduler.core.model import (
    SLOTS_PER_GPU,
    Ask,
    DecayedUse,
    Placement,
    Policy,
    Pool,
    PoolKind,
    Priority,
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
from scheduler.core.ordering import Part
from scheduler.core.planner import plan
from scheduler.core.reasons import Code
from scheduler.core.timeline import Claimant
from scheduler.core.windows import TO_ASK, window_answer

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


def test_less_time_before_a_reservation_and_a_higher_priority_are_tried_too() -> None:
    """All of it is reserved in three hours: what is over by then starts now."""
    reserved = Reservation(
        8, 2, 1, 1, Ask(8, models=("H100",)), NOW + 3 * HOUR, NOW + 9 * HOUR, may_exceed_guarantee=True
    )
    long = replace(waits(1, Ask(2, models=("H100",))), max_runtime_seconds=4 * HOUR, predicted_seconds=HOUR)
    snapshot = two_models(queued=(long,), reservations=(reserved,), running=())
    found = {way.changed: way for way in sooner(snapshot, 1, NOW)}
    assert found[Changed.RUNTIME,].max_runtime_seconds == 2 * HOUR and found[Changed.RUNTIME,].starts_now
    low = Running(51, 1, 1, 1, 1, (16, 17), NOW - HOUR, NOW + 9 * HOUR, NOW + 9 * HOUR, preemptible=True)
    snapshot = two_models(queued=(replace(waits(1, Ask(2, models=("H100",)))),), quotas=(Quota(1, 1, "H100", 8 * GPU),))
    snapshot = replace(snapshot, running=(*snapshot.running, low))
    assert [
        way.priority for way in sooner(snapshot, 1, NOW, Allowed(Priority.HIGH)) if Changed.PRIORITY in way.changed
    ] == [2]
    assert not [
        way for way in sooner(snapshot, 1, NOW) if Changed.PRIORITY in way.changed
    ]  # not one that is not allowed


def test_in_a_very_full_pool_fewer_ways_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = two_models(queued=(waits(1, Ask(4, models=("H100",))),))
    few = len(sooner(snapshot, 1, NOW))
    monkeypatch.setattr(explain, "WORK", 1)
    monkeypatch.setattr(explain, "LEAST_TRIED", 1)
    assert [way.ask for way in sooner(snapshot, 1, NOW)] == [Ask(4, models=("A100",))] and few > 1


def test_a_plan_up_to_a_turn_says_the_same_as_a_whole_one() -> None:
    others = tuple(waits(n, Ask(1 + n % 5, models=("H100",) if n % 3 else ()), team=1 + n % 2) for n in range(1, 30))
    snapshot = two_models(queued=others, quotas=(*two_models().quotas, Quota(2, 1, "A100", 2 * GPU)))
    planned = plan(snapshot, NOW)
    whole = {answer.workload: answer for answer in (*planned.placements, *planned.refusals)}
    for queued in others:
        what_if = explain.WhatIf(snapshot, snapshot.pools[0], NOW, queued.team)
        assert what_if.answer(queued) == whole[queued.id]
        best = what_if.start(what_if.at_best(queued))
        start = what_if.start(whole[queued.id])
        assert start is None or (best is not None and best <= start)


def test_another_time_is_a_window_that_a_reservation_gets() -> None:
    """Of eight H100 six are in use for five hours, and two are reserved until the end of the seventh."""
    taken = Reservation(8, 1, 1, 1, Ask(2, models=("H100",)), NOW, NOW + 7 * HOUR, (16, 17))
    snapshot = two_models(queued=(waits(1, Ask(8, models=("H100",))),), reservations=(taken,))
    found = reservable(snapshot, snapshot.queued[0], Claimant(1), NOW, 2 * HOUR, 24 * HOUR)
    assert found and found[0].start >= NOW + 7 * HOUR and found[0].start - NOW - 7 * HOUR < 60
    for window in found:
        assert window_answer(snapshot, snapshot.queued[0].ask, 1, 1, window.start, window.end, NOW).fits
    idle = two_models(queued=(waits(1, Ask(2, models=("H100",))),))
    free = reservable(idle, waits(1, Ask(2)), Claimant(1), NOW, HOUR, HOUR)
    assert 0 <= free[0].start - NOW - TO_ASK < 60, "not sooner than it can be asked for"
    assert reservable(snapshot, waits(2, Ask(9, models=("H100",))), Claimant(1), NOW, HOUR, 24 * HOUR) == ()
    without_quota = waits(2, Ask(1, models=("A100",)), team=2)
    assert reservable(snapshot, without_quota, Claimant(2), NOW, HOUR, 24 * HOUR) == ()


def test_another_time_is_one_that_this_person_would_be_given() -> None:
    """By the same rule as the window that is then asked for: what one person may hold, and from when on the team borrows again."""
    capped = (Pool(1, "pool", PoolKind.DYNAMIC, None, Policy(most_slots_per_user=4 * GPU)),)
    mine = Reservation(8, 1, 1, 1, Ask(2, models=("H100",)), NOW, NOW + 7 * HOUR, (10, 11), user=5)
    snapshot = two_models(pools=capped, queued=(waits(1, Ask(3, models=("H100",))),), reservations=(mine,), running=())
    quotas = (Quota(1, 1, "H100", 2 * GPU), Quota(2, 1, "H100", 0))
    for quota, whose in ((snapshot.quotas, Claimant(1, user=5)), (quotas, Claimant(1, borrows_again_from=NOW + 8 * HOUR))):
        taken = replace(snapshot, quotas=quota)
        found = reservable(taken, taken.queued[0], whose, NOW, 2 * HOUR, 24 * HOUR)
        assert found and found[0].start >= NOW + 7 * HOUR
        assert reservable(taken, taken.queued[0], Claimant(1), NOW, 2 * HOUR, 24 * HOUR)[0].start < NOW + TO_ASK + 60
        for at in found:
            assert window_answer(
                taken, taken.queued[0].ask, 1, 1, at.start, at.end, NOW, user=whose.user,
                borrows_again_from=whose.borrows_again_from,
            ).fits  # fmt: skip


def deciding(mine: Queued, theirs: Queued, **rows: Any) -> Part:
    """What puts ``theirs`` before ``mine``."""
    before = turns_of(two_models(queued=(mine, theirs), **rows), 1, NOW).before(mine.id)
    return {turn.queued.id: part for turn, part in before}[theirs.id]


def test_the_part_of_the_order_that_decides_is_named() -> None:
    ask, many = Ask(1, models=("H100",)), Ask(8, models=("H100",))
    quotas = (Quota(1, 1, "H100", 7 * GPU), Quota(2, 1, "H100", 0))
    assert deciding(waits(1, ask, team=2), waits(2, ask), quotas=quotas) is Part.WITHIN_GUARANTEE
    assert deciding(waits(1, ask, team=2), waits(2, many), quotas=quotas) is Part.BELOW_GUARANTEE
    none = (Quota(1, 1, "H100", 0), Quota(2, 1, "H100", 0))
    used = (DecayedUse(1, 1, 300.0), DecayedUse(2, 1, 900.0))
    assert deciding(waits(1, ask, team=2), waits(2, ask), quotas=none, decayed_use=used) is Part.FAIR_SHARE
    assert deciding(waits(1, ask), waits(2, ask, priority=Priority.HIGH)) is Part.PRIORITY
    old = replace(waits(2, ask), submitted=NOW - 30 * HOUR)
    assert deciding(waits(1, ask), old) is Part.AGED
    short = replace(waits(2, ask), predicted_seconds=60)
    assert deciding(waits(1, ask), short) is Part.PLACE
    assert deciding(waits(2, ask), waits(1, ask)) is Part.NUMBER
    inside = Reservation(8, 2, 1, 1, ask, NOW - HOUR, NOW + 9 * HOUR, units=(16,))
    booked = waits(2, ask, team=2, reservation=8)
    assert deciding(waits(1, ask), booked, reservations=(inside,)) is Part.RESERVATION


def test_who_stood_behind_its_own_team_is_told_so() -> None:
    """Its place is the better one, but its team's turn went to a team mate of higher priority with a worse one."""
    ask = Ask(1, models=("H100",))
    none = (Quota(1, 1, "H100", 0), Quota(2, 1, "H100", 0))
    mate = replace(waits(3, ask, team=2, priority=Priority.HIGH), submitted=NOW + 5)
    mine = replace(waits(1, ask, team=2), submitted=NOW - 3 * HOUR)
    before = turns_of(two_models(queued=(mine, waits(2, ask), mate), quotas=none, running=()), 1, NOW).before(1)
    assert [(turn.queued.id, part) for turn, part in before] == [(2, Part.OWN_TEAM), (3, Part.PRIORITY)]


def test_what_runs_is_compared_as_if_it_waited_again() -> None:
    mine = replace(waits(1, Ask(4, models=("H100",)), team=2), submitted=NOW - 2 * HOUR)
    quotas = (Quota(1, 1, "H100", 8 * GPU), Quota(2, 1, "H100", 0))
    said = compare(two_models(queued=(mine,), quotas=quotas), 1, 50, NOW, NOW - 2 * HOUR)
    assert said is not None and (said.basis, said.part) == (Basis.ORDER, Part.WITHIN_GUARANTEE)
    early = compare(two_models(queued=(replace(mine, submitted=NOW),), quotas=quotas), 1, 50, NOW, NOW - 2 * HOUR)
    assert early is not None and early.basis is Basis.THERE_FIRST
    assert compare(two_models(), 1, 50, NOW, NOW) is None  # it does not wait
    assert compare(two_models(queued=(mine,)), 1, 77, NOW, NOW) is None


def test_without_the_other_it_would_start_or_still_not() -> None:
    quotas = (Quota(1, 1, "H100", 8 * GPU),)
    fits = waits(1, Ask(8, models=("H100",)))
    said = compare(two_models(queued=(fits,), quotas=quotas), 1, 50, NOW, NOW)
    assert said is not None and isinstance(said.without, Placement)
    never = waits(1, Ask(9, models=("H100",)))
    said = compare(two_models(queued=(never,), quotas=quotas), 1, 50, NOW, NOW)
    assert said is not None and isinstance(said.without, Refusal) and said.without.code == Code.TOO_BIG_FOR_ANY_HOST


def test_a_smaller_one_may_go_first_because_it_fits() -> None:
    big, small = waits(1, Ask(8, models=("H100",))), waits(2, Ask(1, models=("H100",)), priority=Priority.LOW)
    said = compare(two_models(queued=(big, small), quotas=(Quota(1, 1, "H100", 8 * GPU),)), 1, 2, NOW, NOW)
    assert said is not None and (said.basis, said.part) == (Basis.FIT, None)


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


@pytest.mark.parametrize(
    ("homes", "to", "anew"),
    [
        ((1, 2, 1), 3, False),
        ((1, 2, 2), 2, True),
        ((1, None, None), 2, False),
        ((None, 2, 3), 2, False),
    ],
)
def test_a_drain_moves_work_to_where_its_checkpoint_will_lie_and_says_where_it_begins_anew(
    homes: tuple[int | None, ...], to: int, anew: bool
) -> None:
    snapshot = two_models(
        hosts=tuple(HostRow(number, f"h{number}", 1, homes=there) for number, there in enumerate(homes, start=1)),
        units=tuple(Unit(10 * host + g, host, 10 * host + g, "H100") for host in (1, 2, 3) for g in range(2)),
        running=(Running(51, 1, 1, 1, 1, (10, 11), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR, preemptible=True),),
        quotas=(Quota(1, 1, "H100", 16 * GPU),),
    )
    (moved,) = drain_effect(snapshot, 1, NOW).moved
    assert moved.placement is not None and {unit // 10 for unit in moved.placement.units} == {to}
    assert moved.begins_anew == anew


def test_a_drain_moves_work_to_where_all_that_it_asked_for_is() -> None:
    """Not only as many GPUs of the model that it has: its labels, and the other models that would do."""
    asked = Ask(2, models=("H100", "A100"), labels=frozenset({("rack", "r1")}))
    snapshot = two_models(
        hosts=(
            HostRow(1, "h1", 1, labels=frozenset({("rack", "r1")})),
            HostRow(2, "h2", 1),
            HostRow(3, "h3", 1, labels=frozenset({("rack", "r1")})),
        ),
        units=tuple(Unit(10 * h + g, h, 10 * h + g, "A100" if h == 3 else "H100") for h in (1, 2, 3) for g in range(2)),
        running=(Running(51, 1, 1, 1, 1, (10, 11), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR, preemptible=True, ask=asked),),
        quotas=(Quota(1, 1, "H100", 16 * GPU), Quota(1, 1, "A100", 16 * GPU)),
    )
    (moved,) = drain_effect(snapshot, 1, NOW).moved
    assert moved.placement is not None and moved.placement.units == (30, 31)


@pytest.mark.parametrize(("homes", "anew"), [((1, 2, 2), True), ((1, 2, 1), False), ((1, 2, None), False)])
def test_work_that_waits_after_a_drain_begins_anew_where_nobody_else_has_its_homes(
    homes: tuple[int | None, ...], anew: bool
) -> None:
    snapshot = two_models(
        hosts=tuple(HostRow(number, f"h{number}", 1, homes=there) for number, there in enumerate(homes, start=1)),
        units=tuple(Unit(10 * host + g, host, 10 * host + g, "H100") for host in (1, 2, 3) for g in range(1)),
        running=tuple(
            Running(50 + host, 1, 1, 1, 1, (10 * host,), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR) for host in (1, 2, 3)
        ),
        quotas=(Quota(1, 1, "H100", 16 * GPU),),
    )
    (moved,) = drain_effect(snapshot, 1, NOW).moved
    assert moved.placement is None and moved.begins_anew == anew


def test_a_drain_names_the_reservations_that_it_would_break() -> None:
    snapshot = two_models(running=(), reservations=(Reservation(8, 1, 1, 1, Ask(8), NOW + 2 * HOUR, NOW + 3 * HOUR),))
    assert drain_effect(snapshot, 1, NOW).unkept == (8,)
    assert drain_effect(snapshot, 2, NOW).unkept == ()
