"""Test previews, alternatives, comparisons of workloads, the fairness table and effects of a drain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.model.plan import Placement, Refusal
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import (
    Ask,
    DecayedUseInfo,
    PoolInfo,
    PoolKind,
    PoolPolicy,
    Priority,
    QueuedWorkload,
    QuotaInfo,
    ReservationInfo,
    RunningWorkload,
    Snapshot,
    TeamInfo,
    UnitInfo,
)
from scheduler.core.model.snapshot import HostInfo as HostRow
from scheduler.core.planner import plan
from scheduler.core.promises.promise_timeline import ReservationRequester
from scheduler.core.promises.reservation_windows import WINDOW_VALID_SECONDS, check_reservation_window
from scheduler.core.queue.turn import TurnCriterion
from scheduler.core.reasons import ReasonCode
from scheduler.core.what_if import alternatives
from scheduler.core.what_if.alternatives import (
    AllowedChanges,
    ChangedField,
    earlier_alternatives,
    reservable_windows,
)
from scheduler.core.what_if.comparison import ComparisonBasis, compare_workloads, turns_in_pool
from scheduler.core.what_if.drain import drain_effect
from scheduler.core.what_if.fairness import fairness_table
from scheduler.core.what_if.preview import preview

NOW, HOUR, GPU = 1_000_000, 3600, SLOTS_PER_GPU


def two_models(**rows: Any) -> Snapshot:
    """Return host 1 with 8 H100 and host 2 with 4 A100. Six H100 are in use for five hours."""
    base = Snapshot(
        epoch=1,
        pools=(PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy()),),
        hosts=(HostRow(1, "h1", 1), HostRow(2, "h2", 1)),
        units=(
            *(UnitInfo(10 + g, 1, 10 + g, "H100") for g in range(8)),
            *(UnitInfo(20 + g, 2, 20 + g, "A100") for g in range(4)),
        ),
        teams=(TeamInfo(1, "red", 3), TeamInfo(2, "blue")),
        quotas=(
            QuotaInfo(1, 1, "H100", 8 * GPU),
            QuotaInfo(1, 1, "A100", 4 * GPU),
            QuotaInfo(2, 1, "H100", 0),
        ),
        running=(
            RunningWorkload(50, 1, 1, 1, 1, tuple(range(10, 16)), NOW - HOUR, NOW + 5 * HOUR, NOW + 5 * HOUR),
        ),
    )
    return replace(base, **rows)


def waiting(workload: int, ask: Ask, team: int = 1, **more: Any) -> QueuedWorkload:
    return QueuedWorkload(workload, team, 1, 1, 1, ask, NOW, 2 * HOUR, 2 * HOUR, **more)


def test_a_preview_equals_the_plan_and_does_not_change_the_queue() -> None:
    snapshot = two_models(queued=(waiting(1, Ask(2, models=("H100",))),))
    placed = preview(snapshot, waiting(2, Ask(2, models=("A100",))), NOW)
    assert isinstance(placed, Placement) and placed.units == (20, 21)
    refused = preview(snapshot, waiting(2, Ask(2, models=("H100",))), NOW)
    assert isinstance(refused, Refusal) and refused.code == ReasonCode.OVER_QUOTA
    assert [q.id for q in snapshot.queued] == [1]


def test_every_alternative_would_start_earlier() -> None:
    snapshot = two_models(queued=(waiting(1, Ask(4, models=("H100",))),))
    found = earlier_alternatives(snapshot, 1, NOW)
    assert found and all(alternative.starts_now for alternative in found)
    assert found[0].ask == Ask(4, models=("A100",))
    assert Ask(2, models=("H100",)) in [alternative.ask for alternative in found]
    for alternative in found:
        assert isinstance(preview(snapshot, replace(snapshot.queued[0], ask=alternative.ask), NOW), Placement)


def test_placeable_and_unknown_workloads_have_no_alternatives() -> None:
    assert earlier_alternatives(two_models(queued=(waiting(1, Ask(1, models=("H100",))),)), 1, NOW) == []
    assert earlier_alternatives(two_models(), 99, NOW) == []


def test_alternatives_that_start_later_have_an_expected_start() -> None:
    """Use a pool whose H100 are all in use: six for five hours, two for three hours."""
    short = RunningWorkload(51, 1, 1, 1, 1, (16, 17), NOW - HOUR, NOW + 3 * HOUR, NOW + 3 * HOUR)
    snapshot = two_models(
        queued=(waiting(1, Ask(4, models=("H100",))),), quotas=(QuotaInfo(1, 1, "H100", 8 * GPU),)
    )
    found = earlier_alternatives(replace(snapshot, running=(*snapshot.running, short)), 1, NOW)
    assert [(a.ask.units, a.expected_start) for a in found] == [(2, NOW + 3 * HOUR), (1, NOW + 3 * HOUR)]


def test_alternatives_include_a_shorter_runtime_and_a_higher_priority() -> None:
    """Reserve all H100 in three hours. Work that ends before that time can start now."""
    reserved = ReservationInfo(
        8, 2, 1, 1, Ask(8, models=("H100",)), NOW + 3 * HOUR, NOW + 9 * HOUR, may_exceed_guarantee=True
    )
    long = replace(waiting(1, Ask(2, models=("H100",))), max_runtime_seconds=4 * HOUR, predicted_seconds=HOUR)
    snapshot = two_models(queued=(long,), reservations=(reserved,), running=())
    found = {alternative.changed: alternative for alternative in earlier_alternatives(snapshot, 1, NOW)}
    assert (
        found[ChangedField.RUNTIME,].max_runtime_seconds == 2 * HOUR
        and found[ChangedField.RUNTIME,].starts_now
    )
    low = RunningWorkload(
        51, 1, 1, 1, 1, (16, 17), NOW - HOUR, NOW + 9 * HOUR, NOW + 9 * HOUR, preemptible=True
    )
    snapshot = two_models(
        queued=(replace(waiting(1, Ask(2, models=("H100",)))),), quotas=(QuotaInfo(1, 1, "H100", 8 * GPU),)
    )
    snapshot = replace(snapshot, running=(*snapshot.running, low))
    assert [
        alternative.priority
        for alternative in earlier_alternatives(snapshot, 1, NOW, AllowedChanges(Priority.HIGH))
        if ChangedField.PRIORITY in alternative.changed
    ] == [2]
    assert not [
        alternative
        for alternative in earlier_alternatives(snapshot, 1, NOW)
        if ChangedField.PRIORITY in alternative.changed
    ]  # the priority may change only with AllowedChanges


def test_fewer_alternatives_are_tried_with_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = two_models(queued=(waiting(1, Ask(4, models=("H100",))),))
    all_count = len(earlier_alternatives(snapshot, 1, NOW))
    monkeypatch.setattr(alternatives, "MAX_TURNS_EVALUATED", 1)
    monkeypatch.setattr(alternatives, "MIN_CHANGES_TRIED", 1)
    assert [alternative.ask for alternative in earlier_alternatives(snapshot, 1, NOW)] == [
        Ask(4, models=("A100",))
    ] and all_count > 1


def test_a_plan_that_stops_after_the_turn_of_a_workload_decides_about_it_like_the_full_plan() -> None:
    others = tuple(
        waiting(n, Ask(1 + n % 5, models=("H100",) if n % 3 else ()), team=1 + n % 2) for n in range(1, 30)
    )
    snapshot = two_models(queued=others, quotas=(*two_models().quotas, QuotaInfo(2, 1, "A100", 2 * GPU)))
    planned = plan(snapshot, NOW)
    answers = {answer.workload: answer for answer in (*planned.placements, *planned.refusals)}
    for queued in others:
        what_if = alternatives.PoolWhatIf(snapshot, snapshot.pools[0], NOW, queued.team)
        assert what_if.answer(queued) == answers[queued.id]
        best = what_if.start(what_if.answer_without_other_teams(queued))
        start = what_if.start(answers[queued.id])
        assert start is None or (best is not None and best <= start)


def test_a_proposed_window_can_be_reserved() -> None:
    """Use eight H100, of which six are in use for five hours and two are reserved for seven hours."""
    taken = ReservationInfo(8, 1, 1, 1, Ask(2, models=("H100",)), NOW, NOW + 7 * HOUR, (16, 17))
    snapshot = two_models(queued=(waiting(1, Ask(8, models=("H100",))),), reservations=(taken,))
    found = reservable_windows(
        snapshot, snapshot.queued[0], ReservationRequester(1), NOW, 2 * HOUR, 24 * HOUR
    )
    assert found and found[0].start >= NOW + 7 * HOUR and found[0].start - NOW - 7 * HOUR < 60
    for window in found:
        assert check_reservation_window(
            snapshot, snapshot.queued[0].ask, 1, 1, window.start, window.end, NOW
        ).fits
    idle = two_models(queued=(waiting(1, Ask(2, models=("H100",))),))
    free = reservable_windows(idle, waiting(1, Ask(2)), ReservationRequester(1), NOW, HOUR, HOUR)
    assert 0 <= free[0].start - NOW - WINDOW_VALID_SECONDS < 60, "a proposal leaves time to request it"
    assert (
        reservable_windows(
            snapshot, waiting(2, Ask(9, models=("H100",))), ReservationRequester(1), NOW, HOUR, 24 * HOUR
        )
        == ()
    )
    without_quota = waiting(2, Ask(1, models=("A100",)), team=2)
    assert reservable_windows(snapshot, without_quota, ReservationRequester(2), NOW, HOUR, 24 * HOUR) == ()


def test_a_proposed_window_respects_the_limits_of_the_user_and_team() -> None:
    """Check the limit on GPUs per user, and a team that may not borrow until a given time."""
    capped = (PoolInfo(1, "pool", PoolKind.DYNAMIC, None, PoolPolicy(max_slots_per_user=4 * GPU)),)
    mine = ReservationInfo(8, 1, 1, 1, Ask(2, models=("H100",)), NOW, NOW + 7 * HOUR, (10, 11), user=5)
    snapshot = two_models(
        pools=capped, queued=(waiting(1, Ask(3, models=("H100",))),), reservations=(mine,), running=()
    )
    quotas = (QuotaInfo(1, 1, "H100", 2 * GPU), QuotaInfo(2, 1, "H100", 0))
    for quota, requester in (
        (snapshot.quotas, ReservationRequester(1, user=5)),
        (quotas, ReservationRequester(1, borrows_again_from=NOW + 8 * HOUR)),
    ):
        taken = replace(snapshot, quotas=quota)
        found = reservable_windows(taken, taken.queued[0], requester, NOW, 2 * HOUR, 24 * HOUR)
        assert found and found[0].start >= NOW + 7 * HOUR
        assert (
            reservable_windows(taken, taken.queued[0], ReservationRequester(1), NOW, 2 * HOUR, 24 * HOUR)[
                0
            ].start
            < NOW + WINDOW_VALID_SECONDS + 60
        )
        for at in found:
            assert check_reservation_window(
                taken,
                taken.queued[0].ask,
                1,
                1,
                at.start,
                at.end,
                NOW,
                user=requester.user,
                borrows_again_from=requester.borrows_again_from,
            ).fits


def deciding_criterion(mine: QueuedWorkload, other: QueuedWorkload, **rows: Any) -> TurnCriterion:
    """Return the criterion that puts ``other`` before ``mine``."""
    before = turns_in_pool(two_models(queued=(mine, other), **rows), 1, NOW).before(mine.id)
    return {turn.queued.id: criterion for turn, criterion in before}[other.id]


def test_the_criterion_that_decides_the_order_is_reported() -> None:
    ask, many = Ask(1, models=("H100",)), Ask(8, models=("H100",))
    quotas = (QuotaInfo(1, 1, "H100", 7 * GPU), QuotaInfo(2, 1, "H100", 0))
    assert (
        deciding_criterion(waiting(1, ask, team=2), waiting(2, ask), quotas=quotas)
        is TurnCriterion.WITHIN_GUARANTEE
    )
    assert (
        deciding_criterion(waiting(1, ask, team=2), waiting(2, many), quotas=quotas)
        is TurnCriterion.BELOW_GUARANTEE
    )
    none = (QuotaInfo(1, 1, "H100", 0), QuotaInfo(2, 1, "H100", 0))
    used = (DecayedUseInfo(1, 1, 300.0), DecayedUseInfo(2, 1, 900.0))
    assert (
        deciding_criterion(waiting(1, ask, team=2), waiting(2, ask), quotas=none, decayed_use=used)
        is TurnCriterion.FAIR_SHARE
    )
    assert (
        deciding_criterion(waiting(1, ask), waiting(2, ask, priority=Priority.HIGH)) is TurnCriterion.PRIORITY
    )
    old = replace(waiting(2, ask), submitted=NOW - 30 * HOUR)
    assert deciding_criterion(waiting(1, ask), old) is TurnCriterion.AGED
    short = replace(waiting(2, ask), predicted_seconds=60)
    assert deciding_criterion(waiting(1, ask), short) is TurnCriterion.PLACE
    assert deciding_criterion(waiting(2, ask), waiting(1, ask)) is TurnCriterion.NUMBER
    inside = ReservationInfo(8, 2, 1, 1, ask, NOW - HOUR, NOW + 9 * HOUR, units=(16,))
    reserved_work = waiting(2, ask, team=2, reservation=8)
    assert (
        deciding_criterion(waiting(1, ask), reserved_work, reservations=(inside,))
        is TurnCriterion.RESERVATION
    )


def test_a_workload_behind_its_own_team_has_its_team_as_the_reason() -> None:
    """Make workload 1 wait behind a later workload of another team.

    The reason is in the team of workload 1: workload 3 of this team has a higher priority and uses the team's
    turn.
    """
    ask = Ask(1, models=("H100",))
    none = (QuotaInfo(1, 1, "H100", 0), QuotaInfo(2, 1, "H100", 0))
    mate = replace(waiting(3, ask, team=2, priority=Priority.HIGH), submitted=NOW + 5)
    mine = replace(waiting(1, ask, team=2), submitted=NOW - 3 * HOUR)
    before = turns_in_pool(
        two_models(queued=(mine, waiting(2, ask), mate), quotas=none, running=()), 1, NOW
    ).before(1)
    assert [(turn.queued.id, criterion) for turn, criterion in before] == [
        (2, TurnCriterion.OWN_TEAM),
        (3, TurnCriterion.PRIORITY),
    ]


def test_a_running_workload_is_compared_as_if_it_were_waiting() -> None:
    mine = replace(waiting(1, Ask(4, models=("H100",)), team=2), submitted=NOW - 2 * HOUR)
    quotas = (QuotaInfo(1, 1, "H100", 8 * GPU), QuotaInfo(2, 1, "H100", 0))
    comparison = compare_workloads(two_models(queued=(mine,), quotas=quotas), 1, 50, NOW, NOW - 2 * HOUR)
    assert comparison is not None and (comparison.basis, comparison.criterion) == (
        ComparisonBasis.ORDER,
        TurnCriterion.WITHIN_GUARANTEE,
    )
    early = compare_workloads(
        two_models(queued=(replace(mine, submitted=NOW),), quotas=quotas), 1, 50, NOW, NOW - 2 * HOUR
    )
    assert early is not None and early.basis is ComparisonBasis.THERE_FIRST
    assert compare_workloads(two_models(), 1, 50, NOW, NOW) is None  # the workload does not wait
    assert compare_workloads(two_models(queued=(mine,)), 1, 77, NOW, NOW) is None


def test_a_comparison_has_the_answer_without_the_other_workload() -> None:
    quotas = (QuotaInfo(1, 1, "H100", 8 * GPU),)
    fits = waiting(1, Ask(8, models=("H100",)))
    comparison = compare_workloads(two_models(queued=(fits,), quotas=quotas), 1, 50, NOW, NOW)
    assert comparison is not None and isinstance(comparison.answer_without_other, Placement)
    impossible = waiting(1, Ask(9, models=("H100",)))
    comparison = compare_workloads(two_models(queued=(impossible,), quotas=quotas), 1, 50, NOW, NOW)
    assert (
        comparison is not None
        and isinstance(comparison.answer_without_other, Refusal)
        and comparison.answer_without_other.code == ReasonCode.TOO_BIG_FOR_ANY_HOST
    )


def test_a_smaller_workload_may_start_first_because_it_fits() -> None:
    big, small = (
        waiting(1, Ask(8, models=("H100",))),
        waiting(2, Ask(1, models=("H100",)), priority=Priority.LOW),
    )
    comparison = compare_workloads(
        two_models(queued=(big, small), quotas=(QuotaInfo(1, 1, "H100", 8 * GPU),)), 1, 2, NOW, NOW
    )
    assert comparison is not None and (comparison.basis, comparison.criterion) == (ComparisonBasis.FIT, None)


def test_the_fairness_table_is_consistent() -> None:
    snapshot = two_models(
        decayed_use=(DecayedUseInfo(1, 1, 300.0), DecayedUseInfo(2, 1, 100.0)),
        queued=(waiting(1, Ask(2), team=2), waiting(2, Ask(1, profile="none"), team=2)),
        running=(
            RunningWorkload(50, 2, 1, 1, 1, (10, 11), NOW - HOUR, NOW + HOUR, NOW + HOUR, preemptible=True),
        ),
    )
    red, blue = fairness_table(snapshot, 1, NOW)
    assert (red.name, red.guaranteed, red.held, red.borrowed, red.weight) == ("red", 12 * GPU, 0, 0, 3)
    assert (blue.held, blue.borrowed, blue.waiting) == (2 * GPU, 2 * GPU, 2 * GPU)
    assert (red.share, blue.share) == (0.75, 0.25)
    assert (red.fair_share, blue.fair_share) == (0.75, 0.25)


def test_a_drain_lists_the_workloads_to_move_and_their_new_placements() -> None:
    snapshot = two_models(
        hosts=(HostRow(1, "h1", 1), HostRow(2, "h2", 1), HostRow(3, "h3", 1)),
        units=(*two_models().units, *(UnitInfo(30 + g, 3, 30 + g, "H100") for g in range(8))),
        running=(
            *two_models().running,
            RunningWorkload(
                51, 1, 1, 1, 1, (16, 17), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR, preemptible=True
            ),
            RunningWorkload(52, 1, 1, 1, 1, (20,), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR),
            RunningWorkload(53, 1, 1, 1, 1, (30, 31), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR),
        ),
        quotas=(QuotaInfo(1, 1, "H100", 16 * GPU), QuotaInfo(1, 1, "A100", 4 * GPU)),
        reservations=(
            ReservationInfo(7, 1, 1, 1, Ask(1, models=("H100",)), NOW - HOUR, NOW + HOUR, units=(17,)),
            ReservationInfo(8, 1, 1, 1, Ask(8, models=("H100",)), NOW + 2 * HOUR, NOW + 3 * HOUR),
        ),
    )
    before = plan(snapshot, NOW)
    effect = drain_effect(snapshot, 1, NOW)
    assert [moved.workload for moved in effect.workloads] == [50, 51]
    assert [moved.placement is not None for moved in effect.workloads] == [
        False,
        True,
    ]  # the shorter workload comes first
    assert effect.reservations == (7,)
    assert effect.broken_reservations == ()
    assert plan(snapshot, NOW) == before
    other_host = drain_effect(snapshot, 2, NOW)
    assert [moved.workload for moved in other_host.workloads] == [52]


@pytest.mark.parametrize(
    ("homes", "target", "loses_checkpoint"),
    [
        ((1, 2, 1), 3, False),
        ((1, 2, 2), 2, True),
        ((1, None, None), 2, False),
        ((None, 2, 3), 2, False),
    ],
)
def test_a_drain_prefers_hosts_with_the_checkpoint_and_reports_its_loss(
    homes: tuple[int | None, ...], target: int, loses_checkpoint: bool
) -> None:
    snapshot = two_models(
        hosts=tuple(
            HostRow(number, f"h{number}", 1, home_storage=storage)
            for number, storage in enumerate(homes, start=1)
        ),
        units=tuple(
            UnitInfo(10 * host + g, host, 10 * host + g, "H100") for host in (1, 2, 3) for g in range(2)
        ),
        running=(
            RunningWorkload(
                51, 1, 1, 1, 1, (10, 11), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR, preemptible=True
            ),
        ),
        quotas=(QuotaInfo(1, 1, "H100", 16 * GPU),),
    )
    (moved,) = drain_effect(snapshot, 1, NOW).workloads
    assert moved.placement is not None and {unit // 10 for unit in moved.placement.units} == {target}
    assert moved.loses_checkpoint == loses_checkpoint


def test_a_drain_moves_work_to_a_host_that_satisfies_its_whole_request() -> None:
    """Check the labels and the alternative models of the request too, not only the number of GPUs."""
    asked = Ask(2, models=("H100", "A100"), labels=frozenset({("rack", "r1")}))
    snapshot = two_models(
        hosts=(
            HostRow(1, "h1", 1, labels=frozenset({("rack", "r1")})),
            HostRow(2, "h2", 1),
            HostRow(3, "h3", 1, labels=frozenset({("rack", "r1")})),
        ),
        units=tuple(
            UnitInfo(10 * h + g, h, 10 * h + g, "A100" if h == 3 else "H100")
            for h in (1, 2, 3)
            for g in range(2)
        ),
        running=(
            RunningWorkload(
                51, 1, 1, 1, 1, (10, 11), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR, preemptible=True, ask=asked
            ),
        ),
        quotas=(QuotaInfo(1, 1, "H100", 16 * GPU), QuotaInfo(1, 1, "A100", 16 * GPU)),
    )
    (moved,) = drain_effect(snapshot, 1, NOW).workloads
    assert moved.placement is not None and moved.placement.units == (30, 31)


@pytest.mark.parametrize(
    ("homes", "loses_checkpoint"), [((1, 2, 2), True), ((1, 2, 1), False), ((1, 2, None), False)]
)
def test_work_that_waits_after_a_drain_loses_a_checkpoint_that_no_other_host_has(
    homes: tuple[int | None, ...], loses_checkpoint: bool
) -> None:
    snapshot = two_models(
        hosts=tuple(
            HostRow(number, f"h{number}", 1, home_storage=storage)
            for number, storage in enumerate(homes, start=1)
        ),
        units=tuple(
            UnitInfo(10 * host + g, host, 10 * host + g, "H100") for host in (1, 2, 3) for g in range(1)
        ),
        running=tuple(
            RunningWorkload(50 + host, 1, 1, 1, 1, (10 * host,), NOW - HOUR, NOW + 9 * HOUR, NOW + HOUR)
            for host in (1, 2, 3)
        ),
        quotas=(QuotaInfo(1, 1, "H100", 16 * GPU),),
    )
    (moved,) = drain_effect(snapshot, 1, NOW).workloads
    assert moved.placement is None and moved.loses_checkpoint == loses_checkpoint


def test_a_drain_lists_the_reservations_that_it_would_break() -> None:
    snapshot = two_models(
        running=(), reservations=(ReservationInfo(8, 1, 1, 1, Ask(8), NOW + 2 * HOUR, NOW + 3 * HOUR),)
    )
    assert drain_effect(snapshot, 1, NOW).broken_reservations == (8,)
    assert drain_effect(snapshot, 2, NOW).broken_reservations == ()
