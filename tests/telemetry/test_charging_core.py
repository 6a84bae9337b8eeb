"""Test how GPU time is split into charged pieces.

A GPU has 840 slots. Each slot-second (one slot for one second) belongs to exactly one piece.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.reasons import ReasonCode
from telemetry.core.charge_model import (
    HARDWARE_FAULT_END_CODES,
    PREEMPTION_END_CODES,
    ChargeBucket,
    ChargeKey,
    ChargePiece,
    GpuCondition,
    GpuConditionChange,
    GpuHold,
    GpuTimeline,
    Rate,
    ReservedSlots,
    WorkFactor,
)
from telemetry.core.charge_pieces import asset_cost, charge_pieces, lost_time, price_pieces
from telemetry.core.corrections import LedgerLine, find_corrections
from telemetry.models import ChargeBucketChoices as BucketOfRows

START = dt.datetime(2026, 3, 2, 20, tzinfo=dt.UTC)
END = START + dt.timedelta(hours=12)
RATE = Rate(START - dt.timedelta(days=100), Decimal("1.234567"), Decimal("2.5"), 1)


def minute(number: float) -> dt.datetime:
    return START + dt.timedelta(minutes=number)


def total_of(parts: list[ChargePiece]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for piece in parts:
        sums[piece.owner.bucket] += piece.slot_seconds
    return dict(sums)


FACTORS = st.lists(
    st.builds(
        WorkFactor,
        st.integers(-100, 800).map(minute),
        st.decimals("0.0001", 100, places=4),
        st.integers(1, 9),
    ),
    max_size=2,
    unique_by=lambda factor: factor.since,
).map(lambda found: tuple(sorted(found, key=lambda factor: factor.since)))


@st.composite
def gpu_times(draw: st.DrawFn) -> GpuTimeline:
    """Generate a GPU, whole or in slices, with holds, reservations, faults and prices at any times."""
    parts = draw(st.sampled_from([1, 2, 7]))
    size = SLOTS_PER_GPU // parts
    holds, bounds = [], []
    for part in range(parts):
        edges = sorted(set(draw(st.lists(st.integers(-100, 900), max_size=8))))
        for number, (low, high) in enumerate(zip(edges[::2], edges[1::2], strict=False)):
            lost = draw(st.sampled_from([None, ChargeBucket.PREEMPTED, ChargeBucket.HARDWARE_LOST]))
            at = draw(st.integers(low, high))
            lost_from = minute(at) if lost else None
            holds.append(
                GpuHold(
                    100 * part + number + 1,
                    part * size,
                    (part + 1) * size,
                    minute(low),
                    minute(high),
                    None,
                    lost_from,
                    lost,
                    draw(FACTORS),
                )
            )
        edges = sorted(set(draw(st.lists(st.integers(-100, 900), max_size=4))))
        for number, (low, high) in enumerate(zip(edges[::2], edges[1::2], strict=False)):
            bounds.append(
                ReservedSlots(
                    10 * part + number + 1, part * size, (part + 1) * size, minute(low), minute(high)
                )
            )
    moments = sorted(draw(st.lists(st.integers(-50, 800), max_size=5)))
    changes = tuple(
        GpuConditionChange(minute(at), draw(st.sampled_from(list(GpuCondition)))) for at in moments
    )
    later = sorted(set(draw(st.lists(st.integers(1, 700), max_size=2))))
    rates = (RATE, *(Rate(minute(at), Decimal(at) / 1000, Decimal("2.5"), at) for at in later))
    return GpuTimeline(tuple(holds), tuple(bounds), changes, rates, draw(st.booleans()))


@given(gpu_times())
def test_every_second_of_every_slot_is_in_exactly_one_piece(gpu: GpuTimeline) -> None:
    parts = charge_pieces(gpu, START, END)
    steps: dict[dt.datetime, int] = defaultdict(int)
    for piece in parts:
        steps[piece.start] += piece.slots
        steps[piece.end] -= piece.slots
    level = 0
    for moment in sorted(steps):
        assert level == (0 if moment == START else SLOTS_PER_GPU)
        level += steps[moment]
    assert level == 0
    assert max(steps) == END


@given(gpu_times(), st.integers(1, 719))
def test_pieces_sum_to_the_cost_of_the_gpu_even_if_charged_in_two_steps(gpu: GpuTimeline, cut: int) -> None:
    whole = price_pieces(charge_pieces(gpu, START, END))
    first, second = (
        price_pieces(charge_pieces(gpu, START, minute(cut))),
        price_pieces(charge_pieces(gpu, minute(cut), END)),
    )
    cost = asset_cost(gpu.rates, START, END)
    assert sum(piece.cost for piece in whole) == cost
    assert sum(piece.cost for piece in (*first, *second)) == cost


@given(gpu_times())
def test_no_piece_spans_two_days_or_two_prices(gpu: GpuTimeline) -> None:
    for piece in charge_pieces(gpu, START, END):
        assert piece.start.date() == (piece.end - dt.timedelta(seconds=1)).date()
        assert not any(piece.start < rate.since < piece.end for rate in gpu.rates)


@given(gpu_times())
def test_only_held_and_reserved_time_is_charged(gpu: GpuTimeline) -> None:
    for piece in price_pieces(charge_pieces(gpu, START, END)):
        assert (piece.charged > 0) <= (
            piece.owner.bucket in (ChargeBucket.USED, ChargeBucket.RESERVED_UNUSED)
        )


@given(gpu_times(), gpu_times())
def test_corrections_bring_the_ledger_up_to_date_and_keep_the_cost(
    before: GpuTimeline, after: GpuTimeline
) -> None:
    after = GpuTimeline(after.holds, after.bounds, after.changes, before.rates, before.owned)
    ledger = {
        number: LedgerLine(number, p.start, p.end, p.slots, p.owner, p.cost)
        for number, p in enumerate(price_pieces(charge_pieces(before, START, END)))
    }
    cost = sum(line.cost for line in ledger.values())
    for correction in find_corrections(after, list(ledger.values()), START, END):
        for number in correction.reversed_line_ids:
            del ledger[number]
        for piece in correction.instead:
            ledger[len(ledger) + 1000 + max(ledger, default=0)] = LedgerLine(
                0, piece.start, piece.end, piece.slots, piece.owner, piece.cost
            )
    assert sum(line.cost for line in ledger.values()) == cost

    def by_owner(lines: list[LedgerLine] | list[ChargePiece]) -> dict[ChargeKey, int]:
        sums: dict[ChargeKey, int] = defaultdict(int)
        for line in lines:
            sums[line.owner] += line.slots * int((line.end - line.start).total_seconds())
        return dict(sums)

    assert by_owner(list(ledger.values())) == by_owner(charge_pieces(after, START, END))


@given(gpu_times())
def test_a_correct_ledger_gets_no_corrections(gpu: GpuTimeline) -> None:
    ledger = [
        LedgerLine(number, p.start, p.end, p.slots, p.owner, p.cost)
        for number, p in enumerate(price_pieces(charge_pieces(gpu, START, END)))
    ]
    assert find_corrections(gpu, ledger, START, END) == []


def test_a_reservations_empty_time_is_charged_and_its_used_time_only_once() -> None:
    gpu = GpuTimeline(
        holds=(GpuHold(1, 0, 840, minute(60), minute(120), reservation=7),),
        bounds=(ReservedSlots(7, 0, 840, minute(0), minute(180)),),
        rates=(RATE,),
    )
    parts = price_pieces(charge_pieces(gpu, START, minute(180)))
    assert [(p.owner.bucket, p.owner.reservation, p.seconds // 60) for p in parts] == [
        (ChargeBucket.RESERVED_UNUSED, 7, 60),
        (ChargeBucket.USED, 7, 60),
        (ChargeBucket.RESERVED_UNUSED, 7, 60),
    ]
    assert sum(p.charged for p in parts) == Decimal("7.5")


def test_a_slice_is_charged_its_part_of_the_gpu_and_the_rest_is_unallocated() -> None:
    gpu = GpuTimeline(holds=(GpuHold(1, 120, 240, minute(0), None),), rates=(RATE,))
    parts = price_pieces(charge_pieces(gpu, minute(0), minute(60)))
    assert {p.owner.bucket: p.slots for p in parts} == {ChargeBucket.USED: 120, ChargeBucket.UNALLOCATED: 720}
    used = next(p for p in parts if p.owner.bucket == ChargeBucket.USED)
    assert used.charged == Decimal("0.357143")  # 2.50 x 120 / 840


def test_time_on_a_silent_host_is_hardware_lost_and_time_on_a_quarantined_host_is_not() -> None:
    changes = (
        GpuConditionChange(minute(10), GpuCondition.UNHEALTHY),
        GpuConditionChange(minute(20), GpuCondition.SILENT),
        GpuConditionChange(minute(30), GpuCondition.WELL),
    )
    gpu = GpuTimeline(holds=(GpuHold(1, 0, 840, minute(0), minute(40)),), changes=changes, rates=(RATE,))
    assert total_of(charge_pieces(gpu, minute(0), minute(40))) == {
        ChargeBucket.USED: 30 * 60 * 840,
        ChargeBucket.HARDWARE_LOST: 10 * 60 * 840,
    }


def test_the_state_of_a_free_gpu_decides_between_unhealthy_maintenance_and_unallocated() -> None:
    changes = (
        GpuConditionChange(minute(10), GpuCondition.MAINTENANCE),
        GpuConditionChange(minute(30), GpuCondition.UNHEALTHY),
    )
    sums = total_of(charge_pieces(GpuTimeline(changes=changes), minute(0), minute(60)))
    assert sums == {
        ChargeBucket.UNALLOCATED: 10 * 60 * 840,
        ChargeBucket.MAINTENANCE: 20 * 60 * 840,
        ChargeBucket.UNHEALTHY: 30 * 60 * 840,
    }


def test_the_team_of_a_static_pool_is_charged_for_idle_time() -> None:
    parts = price_pieces(charge_pieces(GpuTimeline(rates=(RATE,), owned=True), minute(0), minute(60)))
    assert [(p.owner.bucket, p.charged) for p in parts] == [(ChargeBucket.RESERVED_UNUSED, Decimal("2.5"))]


def test_preempted_work_is_not_charged_for_the_time_after_its_last_checkpoint() -> None:
    lost = lost_time(
        end_code="killed_at_grace",
        started=minute(0),
        ended=minute(60),
        checkpoint=minute(45),
        keeps_state=False,
        forgiven=None,
    )
    assert lost == (minute(45), ChargeBucket.PREEMPTED)
    gpu = GpuTimeline(holds=(GpuHold(1, 0, 840, minute(0), minute(60), None, *lost),), rates=(RATE,))
    assert total_of(charge_pieces(gpu, minute(0), minute(60))) == {
        ChargeBucket.USED: 45 * 60 * 840,
        ChargeBucket.PREEMPTED: 15 * 60 * 840,
    }


def lost_from(checkpoint: dt.datetime | None, forgiven: dt.timedelta | None, **other: Any) -> Any:
    """Return the result of ``lost_time`` for a hold of two hours that ended because its host was lost."""
    given = {"end_code": "host_lost", "started": minute(0), "ended": minute(120), "keeps_state": False}
    return lost_time(checkpoint=checkpoint, forgiven=forgiven, **(given | other))


def test_without_a_limit_a_lost_attempt_without_a_checkpoint_is_not_charged() -> None:
    assert lost_from(None, None) == (minute(0), ChargeBucket.HARDWARE_LOST)


@pytest.mark.parametrize(
    ("checkpoint", "forgiven", "since"),
    [(None, 60, 60), (30, 60, 60), (90, 60, 90), (None, 180, 0), (None, 120, 0), (119, 1, 119)],
)
def test_lost_work_is_refunded_since_its_checkpoint_but_at_most_the_forgiven_minutes(
    checkpoint: int | None, forgiven: int, since: int
) -> None:
    saved = None if checkpoint is None else minute(checkpoint)
    lost = lost_from(saved, dt.timedelta(minutes=forgiven))
    assert lost == (minute(since), ChargeBucket.HARDWARE_LOST)


def test_a_limit_of_zero_minutes_refunds_nothing() -> None:
    assert lost_from(None, dt.timedelta(0)) is None


@given(st.none() | st.integers(-10, 130), st.none() | st.integers(0, 300), st.none() | st.integers(0, 300))
def test_a_longer_limit_never_refunds_less(
    checkpoint: int | None, short: int | None, longer: int | None
) -> None:
    def refunded(minutes: int | None) -> dt.timedelta:
        limit = None if minutes is None else dt.timedelta(minutes=minutes)
        lost = lost_from(None if checkpoint is None else minute(checkpoint), limit)
        return minute(120) - lost[0] if lost else dt.timedelta(0)

    low, high = sorted((short, longer), key=lambda limit: 1_000 if limit is None else limit)
    assert refunded(low) <= refunded(high)
    assert low is None or refunded(low) <= dt.timedelta(minutes=low)


def test_the_time_of_a_notebook_is_charged_whatever_its_end_because_its_files_remain() -> None:
    assert lost_from(None, None, keeps_state=True) is None


def test_the_codes_of_lost_time_are_reason_codes_of_the_engine() -> None:
    assert {
        ReasonCode(code).value for code in PREEMPTION_END_CODES | HARDWARE_FAULT_END_CODES
    } == PREEMPTION_END_CODES | HARDWARE_FAULT_END_CODES


def test_the_core_and_the_rows_have_the_same_buckets() -> None:
    assert {bucket.value for bucket in ChargeBucket} == set(BucketOfRows.values)


def test_times_are_rounded_down_to_the_second_and_adjacent_holds_leave_no_gap() -> None:
    half = dt.timedelta(milliseconds=500)
    gpu = GpuTimeline(
        holds=(GpuHold(1, 0, 840, minute(0), minute(1) + half), GpuHold(2, 0, 840, minute(1) + half, None)),
        rates=(RATE,),
    )
    parts = charge_pieces(gpu, minute(0), minute(2))
    assert [(p.owner.allocation, p.seconds) for p in parts] == [(1, 60), (2, 60)]


def test_a_correction_replaces_every_line_of_the_time_that_it_charges_again() -> None:
    """Two slices share a GPU. It becomes known late that the hold of the second slice ended at minute 90.

    The line of the second slice begins at minute 0, so the time from minute 0 is charged again. The
    correction must also replace the line of the first slice, which ended at minute 60.
    """
    half = SLOTS_PER_GPU // 2
    first = GpuHold(1, 0, half, minute(0), minute(60))
    second = GpuHold(2, half, SLOTS_PER_GPU, minute(0))
    before = GpuTimeline((first, second), rates=(RATE,))
    ended = GpuHold(2, half, SLOTS_PER_GPU, minute(0), minute(90))
    after = GpuTimeline((first, ended), rates=(RATE,))
    ledger = {
        number: LedgerLine(number, p.start, p.end, p.slots, p.owner, p.cost)
        for number, p in enumerate(price_pieces(charge_pieces(before, START, minute(120))))
    }
    [correction] = find_corrections(after, list(ledger.values()), minute(80), minute(120))
    kept = [line for number, line in ledger.items() if number not in correction.reversed_line_ids]
    slot_seconds = sum(line.slots * int((line.end - line.start).total_seconds()) for line in kept)
    assert slot_seconds + sum(p.slot_seconds for p in correction.instead) == SLOTS_PER_GPU * 120 * 60
