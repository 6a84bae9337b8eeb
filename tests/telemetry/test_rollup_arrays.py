"""Test that the sums of many units at once are the sums of the definition, as integers."""

from __future__ import annotations

from itertools import starmap

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.core.merged_arrays import merge_arrays
from telemetry.core.rollup import UnitHold, UsageReading, UsageSums, merge_finer_usage, roll_up_readings
from telemetry.core.rollup_arrays import HoldArrays, ReadingArrays, UsageArrays, roll_up_arrays
from telemetry.rollups.storage import MICRO_MEASURES, ROLLUP_MEASURES

START, END = 1_772_442_000, 1_772_442_300  # five minutes
PERCENT = st.one_of(st.none(), st.sampled_from([0.0, 4.9, 5.0, 20.0, 100.0]), st.floats(0, 100))
COUNT = st.one_of(st.none(), st.integers(0, 50_000))
MICROS = st.integers((START - 60) * 1_000_000, (END + 40) * 1_000_000)
TIMES = st.one_of(MICROS, st.integers(START - 60, END + 40).map(lambda second: second * 1_000_000))
ENERGY = st.one_of(st.none(), st.integers(0, 9_000_000), st.integers(2**50, 2**50 + 900_000))


@st.composite
def any_unit(draw: st.DrawFn) -> tuple[list[UsageReading], list[UnitHold], float]:
    readings = [
        UsageReading(
            micros / 1e6, draw(PERCENT), draw(PERCENT), draw(PERCENT), draw(COUNT), draw(ENERGY), draw(COUNT)
        )
        for micros in sorted(draw(st.lists(TIMES, max_size=25)))
    ]
    edges = sorted(set(draw(st.lists(TIMES, max_size=8))))
    held = [
        UnitHold(draw(st.integers(1, 3)) * 100 + number, low / 1e6, high / 1e6)
        for number, (low, high) in enumerate(zip(edges[::2], edges[1::2], strict=False))
    ]
    if edges and draw(st.booleans()):
        held.append(UnitHold(999, edges[-1] / 1e6, float("inf")))
    return readings, held, draw(st.sampled_from([350.0, 700.0, 2_000.0]))


def as_arrays(units: list[tuple[list[UsageReading], list[UnitHold], float]]) -> UsageArrays:
    def counts(name: str) -> np.ndarray:
        values = [getattr(reading, name) for readings, *_ in units for reading in readings]
        return np.array([-1 if value is None else value for value in values], np.int64)

    def percents(name: str) -> np.ndarray:
        values = [getattr(reading, name) for readings, *_ in units for reading in readings]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    ts = np.array([round(each.ts * 1e6) for readings, *_ in units for each in readings], np.int64)
    readings = ReadingArrays(
        np.repeat(np.arange(len(units)), [len(readings) for readings, *_ in units]),
        ts,
        *map(percents, ("utilisation", "sm_active", "tensor_active")),
        *map(counts, ("memory_used_mib", "energy_mj", "processes")),
    )
    held = hold_arrays([held for _, held, _ in units])
    limits = np.array([limit for *_, limit in units])
    return roll_up_arrays(readings, held, limits, START * 1_000_000, END * 1_000_000)


def hold_arrays(of_units: list[list[UnitHold]]) -> HoldArrays:
    holds = [(place, hold) for place, held in enumerate(of_units) for hold in held]
    ends = [2**62 if hold.end == float("inf") else round(hold.end * 1e6) for _, hold in holds]
    return HoldArrays(
        np.array([place for place, _ in holds], np.int64),
        np.array([hold.allocation for _, hold in holds], np.int64),
        np.array([round(hold.start * 1e6) for _, hold in holds], np.int64),
        np.array(ends, np.int64),
    )


def stored(use: UsageSums) -> tuple[int | None, ...]:
    values = [(name, getattr(use, name)) for name in ROLLUP_MEASURES]
    return tuple(starmap(lambda name, value: scaled(name, value), values))


def scaled(name: str, value: float | None) -> int | None:
    return None if value is None else round(value * 1e6) if name in MICRO_MEASURES else int(value)


@settings(max_examples=150)
@given(st.lists(any_unit(), min_size=1, max_size=3))
def test_arrays_give_the_integers_of_the_definition(
    units: list[tuple[list[UsageReading], list[UnitHold], float]],
) -> None:
    expected = {}
    for place, (readings, held, limit) in enumerate(units):
        for bucket in range(5):
            low = START + 60 * bucket
            uses = roll_up_readings(readings, held, low, low + 60, power_limit_w=limit)
            if any(use.covered_seconds or use.samples for use in uses.values()):
                expected |= {(place, bucket, owner or 0): stored(use) for owner, use in uses.items()}
    assert values_by_key(as_arrays(units)) == expected


def values_by_key(usage: UsageArrays) -> dict[tuple[int, int, int], tuple[int | None, ...]]:
    return {
        (int(usage.unit[row]), int(usage.bucket[row]), int(usage.allocation[row])): tuple(
            int(usage.sums[name][row]) if name not in usage.known or usage.known[name][row] else None
            for name in ROLLUP_MEASURES
        )
        for row in range(len(usage))
    }


SECONDS = st.one_of(st.none(), st.integers(0, 250_000_000).map(lambda micros: micros / 1e6))


@st.composite
def any_part(draw: st.DrawFn) -> UsageSums:
    measures = {
        name: draw(SECONDS if name in MICRO_MEASURES else COUNT)
        for name in ROLLUP_MEASURES
        if name not in ("held_seconds", "covered_seconds", "samples")
    }
    held, covered = (draw(st.integers(0, 300_000_000)) / 1e6 for _ in range(2))
    return UsageSums(held_seconds=held, covered_seconds=covered, samples=draw(st.integers(0, 60)), **measures)


@st.composite
def any_parts(draw: st.DrawFn) -> tuple[dict[int | None, UsageSums], list[UnitHold]]:
    """Return the sums of shorter buckets by allocation, and holds: some have no sums, some sums no hold."""
    _, held, _ = draw(any_unit())
    owners = draw(st.sets(st.sampled_from([None, 1, *(hold.allocation for hold in held)])))
    return {owner: draw(any_part()) for owner in owners}, held


def merged_as_arrays(units: list[tuple[dict[int | None, UsageSums], list[UnitHold]]]) -> UsageArrays:
    rows = sorted(
        (place, owner or 0, stored(use))
        for place, (parts, _) in enumerate(units)
        for owner, use in parts.items()
    )
    unit, owner = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2).T
    table = np.array([values for *_, values in rows], object).reshape(-1, len(ROLLUP_MEASURES)).T
    is_known = np.not_equal(table, None)
    sums = dict(zip(ROLLUP_MEASURES, np.where(is_known, table, 0).astype(np.int64), strict=True))
    known = dict(zip(ROLLUP_MEASURES, is_known.astype(bool), strict=True))
    for name in ("held_seconds", "covered_seconds", "samples"):
        del known[name]
    held = hold_arrays([held for _, held in units])
    parts = UsageArrays(unit, np.zeros(len(rows), np.int64), owner, sums, known)
    return merge_arrays(parts, held, START * 1_000_000, END * 1_000_000)


@settings(max_examples=150)
@given(st.lists(any_parts(), min_size=1, max_size=3))
def test_merged_arrays_give_the_integers_of_the_definition(
    units: list[tuple[dict[int | None, UsageSums], list[UnitHold]]],
) -> None:
    expected = {
        (place, 0, owner or 0): stored(use)
        for place, (parts, held) in enumerate(units)
        for owner, use in merge_finer_usage(
            {owner: [use] for owner, use in parts.items()}, held, START, END
        ).items()
    }
    assert values_by_key(merged_as_arrays(units)) == expected
