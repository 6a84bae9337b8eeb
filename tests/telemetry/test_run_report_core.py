"""Test the reduction of a run's use to points, and the advice with its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portal.wording import run_report_texts
from telemetry.core import request_advice
from telemetry.core.request_advice import RunRequest, SliceOffer, advise
from telemetry.core.rollup import UsageSums
from telemetry.core.run_report import (
    MAX_POINTS,
    SERIES,
    UnitReport,
    busy_at_once,
    mean_of,
    memory_peak_time,
    point_length,
    point_starts,
    total_use,
    use_series,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "telemetry.md"
HOUR = 3600


def minute(start: int, **sums: Any) -> tuple[int, UsageSums]:
    """Return a minute that is held and covered, and busy unless ``sums`` says otherwise."""
    values: dict[str, Any] = {"busy_seconds": 60.0, "idle_seconds": 0.0, "empty_seconds": 0.0}
    return start, UsageSums(held_seconds=60, covered_seconds=60, samples=6, **(values | sums))


def unit(
    number: int,
    *,
    busy: list[float | None],
    hours: float = 1,
    memory_mib: int | None = 20_000,
    sm: float | None = None,
    utilisation: float = 0.9,
) -> UnitReport:
    """Return a unit that was held for ``hours``; ``busy`` has the percentage of each point."""
    held = hours * HOUR
    known = [value for value in busy if value is not None]
    share = sum(known) / len(known) / 100 if known else 0
    sums = UsageSums(
        held_seconds=held,
        covered_seconds=held,
        samples=int(held / 10),
        utilisation_seconds=held * utilisation * share,
        busy_seconds=held * share,
        idle_seconds=0.0,
        empty_seconds=held * (1 - share),
        sm_active_seconds=None if sm is None else held * sm,
        memory_used_max_mib=memory_mib,
    )
    series: dict[str, list[float | None]] = {name: [None] * len(busy) for name in SERIES}
    series["busy"] = busy
    return UnitReport(number, "h1", number, "H100-80GB", "", 81_559, False, sums, None, series)


def codes(request: RunRequest, units: list[UnitReport]) -> list[str]:
    return [advice.code for advice in advise(request, units)]


@pytest.mark.parametrize("seconds", [1, 59, 600, 4 * HOUR, 4 * HOUR + 1, 8 * HOUR, 30 * 86_400, 400 * 86_400])
def test_a_run_of_any_length_has_a_limited_number_of_points_of_whole_minutes(seconds: int) -> None:
    length = point_length(seconds)
    points = point_starts(90, 90 + seconds, length)
    assert length % 60 == 0 and len(points) <= MAX_POINTS + 1
    assert points[0] <= 90 and points[-1] + length >= 90 + seconds > points[-1]


def test_time_without_readings_stays_a_gap_and_never_zero() -> None:
    series = use_series([minute(60, utilisation_seconds=30.0), minute(240)], [60, 120, 180, 240], 60)
    assert series["utilisation"] == [50.0, None, None, None]
    assert series["busy"] == [100.0, None, None, 100.0]
    assert all(len(values) == 4 for values in series.values()) and set(series) == set(SERIES)


def test_a_point_of_several_minutes_has_means_and_the_peak_of_the_memory() -> None:
    buckets = [
        minute(0, utilisation_seconds=60.0, memory_used_max_mib=100, energy_mj=6_000_000),
        minute(
            60,
            utilisation_seconds=0.0,
            memory_used_max_mib=300,
            energy_mj=18_000_000,
            busy_seconds=0.0,
            empty_seconds=60.0,
        ),
    ]
    series = use_series(buckets, [0], 120)
    assert {name: values[0] for name, values in series.items()} == {
        "busy": 50.0,
        "empty": 50.0,
        "utilisation": 50.0,
        "sm_active": None,
        "tensor_active": None,
        "memory_mib": 300,
        "power_w": 200.0,
        "dram_active": None,
        "pcie_mib_s": None,
        "nvlink_mib_s": None,
    }
    assert memory_peak_time(buckets) == 60


def test_the_power_of_a_point_is_unknown_if_a_counter_fault_makes_part_of_it_unknown() -> None:
    series = use_series([minute(0, energy_mj=6_000_000, energy_faults=1)], [0], 60)
    assert series["power_w"] == [None]


def test_minutes_count_in_the_total_only_where_their_hour_is_not_rolled_up() -> None:
    hours = [(0, UsageSums(held_seconds=HOUR, covered_seconds=3000))]
    total = total_use(hours, [minute(0), minute(HOUR), minute(HOUR + 60)])
    assert total.covered_seconds == 3120


def test_the_total_has_both_attempts_of_an_hour() -> None:
    hours = [(0, UsageSums(held_seconds=600)), (0, UsageSums(held_seconds=900))]
    assert total_use(hours, []).held_seconds == 1500


def test_gpus_count_as_busy_at_the_same_time_only_within_one_point() -> None:
    assert busy_at_once([unit(0, busy=[90, 0]), unit(1, busy=[0, 90]), unit(2, busy=[9, 9])]) == 1
    assert busy_at_once([unit(0, busy=[90, None]), unit(1, busy=[90, 90])]) == 2
    assert busy_at_once([unit(0, busy=[None, None])]) is None


def test_eight_gpus_of_which_two_work_need_two_next_time() -> None:
    units = [unit(n, busy=[90, 90] if n < 2 else [0, 0], hours=6) for n in range(8)]
    [advice] = advise(RunRequest(gpus=8), units)
    assert (advice.code, advice.numbers) == (
        "fewer_gpus",
        {"asked": 8, "busy": 2, "unused_gpus": 6, "unused_hours": 36.0, "held_hours": 48.0},
    )


def test_no_advice_follows_from_a_run_that_is_short_or_mostly_not_measured() -> None:
    idle = [unit(n, busy=[90 if n < 2 else 0], hours=0.1) for n in range(8)]
    assert codes(RunRequest(gpus=8), idle) == []
    units = [unit(n, busy=[90 if n < 2 else 0], hours=6) for n in range(8)]
    for each in units:
        each.sums.held_seconds *= 2  # half of the time has no samples
    assert codes(RunRequest(gpus=8), units) == []
    units[3].sums.empty_seconds = None
    assert codes(RunRequest(gpus=8), units) == []


def test_gpus_that_never_worked_cause_a_different_piece_of_advice() -> None:
    assert codes(RunRequest(gpus=2), [unit(0, busy=[0]), unit(1, busy=[0])]) == ["no_gpu"]


SLICES = (SliceOffer("3g.40gb", 40_960, 3 / 7), SliceOffer("1g.10gb", 9_728, 1 / 7))


@pytest.mark.parametrize(
    ("memory_mib", "sm", "profile"),
    [
        (6_000, 0.1, "1g.10gb"),
        (20_000, 0.1, "3g.40gb"),  # the small slice has too little memory
        (6_000, 0.3, "3g.40gb"),  # the small slice has too little of the GPU
        (8_200, 0.1, "3g.40gb"),  # less than a fifth of headroom
        (20_000, 0.5, None),
        (None, 0.1, None),
    ],
)
def test_a_slice_is_advised_if_memory_and_activity_fit_it(
    memory_mib: int | None, sm: float, profile: str | None
) -> None:
    one = unit(0, busy=[90], memory_mib=memory_mib, sm=sm)
    found = {
        advice.code: advice.numbers["profile"] for advice in advise(RunRequest(gpus=1, slices=SLICES), [one])
    }
    assert found == ({} if profile is None else {"smaller_slice": profile})


def test_no_slice_is_advised_for_work_that_used_several_gpus_or_had_a_slice() -> None:
    pair = [unit(n, busy=[90], memory_mib=6_000, sm=0.1) for n in range(2)]
    assert codes(RunRequest(gpus=2, slices=SLICES), pair) == []
    assert codes(RunRequest(gpus=1, profile="3g.40gb", slices=SLICES), pair[:1]) == []


@pytest.mark.parametrize(
    ("cpu_seconds", "utilisation", "code"),
    [
        (7 * HOUR, 0.3, ["more_cpu"]),
        (1 * HOUR, 0.3, ["waits_for_data"]),
        (5 * HOUR, 0.3, []),  # neither high nor low
        (7 * HOUR, 0.7, []),  # the GPUs are well used
        (None, 0.3, []),  # not measured
    ],
)
def test_gpus_that_wait_are_explained_by_the_cpu_if_it_was_measured(
    cpu_seconds: float | None, utilisation: float, code: list[str]
) -> None:
    one = unit(0, busy=[100], utilisation=utilisation)
    request = RunRequest(gpus=1, cpu_milli=8_000, host_seconds=HOUR, cpu_seconds=cpu_seconds)
    assert codes(request, [one]) == code


def test_memory_and_time_are_compared_with_the_request() -> None:
    one = [unit(0, busy=[90])]
    request = RunRequest(gpus=1, memory_mib=512 * 1024, memory_peak_mib=18 * 1024)
    [less] = advise(request, one)
    assert (less.code, less.numbers["memory_mib"]) == ("less_memory", 22 * 1024)
    assert codes(replace(request, memory_peak_mib=300 * 1024), one) == []
    assert codes(replace(request, memory_peak_mib=None), one) == []
    limit = RunRequest(gpus=1, max_runtime_seconds=86_400, outcome="finished", attempt_seconds=5_400)
    [shorter] = advise(limit, one)
    assert (shorter.code, shorter.numbers["suggested_seconds"]) == ("shorter_limit", 7_200)
    assert codes(replace(limit, attempt_seconds=80_000), one) == []
    assert codes(replace(limit, outcome="failed"), one) == []
    assert codes(replace(limit, outcome="time_limit"), one) == ["longer_limit"]


def test_a_mean_leaves_out_units_that_did_not_measure_it() -> None:
    units = [unit(0, busy=[90], sm=0.5), unit(1, busy=[90])]
    assert mean_of(units, "sm_active_seconds") == 0.5
    assert mean_of(units[1:], "sm_active_seconds") is None


def test_every_advice_is_a_sentence_with_its_numbers() -> None:
    found = [
        *advise(RunRequest(gpus=8), [unit(n, busy=[90 if n < 2 else 0]) for n in range(8)]),
        *advise(RunRequest(gpus=2), [unit(0, busy=[90, 0]), unit(1, busy=[0, 90])]),
        *advise(RunRequest(gpus=1), [unit(0, busy=[0])]),
        *advise(RunRequest(gpus=1, slices=SLICES), [unit(0, busy=[90], memory_mib=6_000, sm=0.1)]),
        *advise(
            RunRequest(gpus=1, cpu_milli=8_000, host_seconds=HOUR, cpu_seconds=7 * HOUR),
            [unit(0, busy=[90], utilisation=0.2)],
        ),
        *advise(
            RunRequest(gpus=1, cpu_milli=8_000, host_seconds=HOUR, cpu_seconds=HOUR),
            [unit(0, busy=[90], utilisation=0.2)],
        ),
        *advise(RunRequest(gpus=1, memory_mib=65_536, memory_peak_mib=100), [unit(0, busy=[90])]),
        *advise(
            RunRequest(gpus=1, max_runtime_seconds=86_400, outcome="finished", attempt_seconds=60),
            [unit(0, busy=[90])],
        ),
        *advise(
            RunRequest(gpus=1, max_runtime_seconds=7_200, outcome="time_limit", attempt_seconds=7_200),
            [unit(0, busy=[90])],
        ),
    ]
    assert {advice.code for advice in found} == set(run_report_texts.ADVICE_EVIDENCE)
    assert set(run_report_texts.ADVICE_HEADLINES) == set(run_report_texts.ADVICE_EVIDENCE)
    for advice in found:
        headline, evidence = (
            run_report_texts.advice_headline(advice),
            run_report_texts.advice_evidence(advice),
        )
        assert headline and not headline.endswith(".") and evidence.endswith(".")
        assert "None " not in headline and "  " not in evidence


def example_rows() -> list[list[str]]:
    """Return the pieces of advice of the example in the documentation."""
    units = [
        unit(0, busy=[92, 90, 88], hours=24_000 / HOUR, memory_mib=42_189, sm=0.6, utilisation=0.31),
        unit(1, busy=[91, 89, 87], hours=24_000 / HOUR, memory_mib=40_038, sm=0.6, utilisation=0.31),
        *(unit(n, busy=[0, 0, 0], hours=24_000 / HOUR, memory_mib=4, sm=0.0) for n in range(2, 8)),
    ]
    request = RunRequest(
        gpus=8,
        cpu_milli=8_000,
        memory_mib=512 * 1024,
        max_runtime_seconds=24 * HOUR,
        outcome="finished",
        attempt_seconds=24_000,
        host_seconds=24_000,
        cpu_seconds=7.6 * 24_000,
        memory_peak_mib=120 * 1024,
    )
    return [
        [
            f"`{advice.code}`",
            run_report_texts.advice_headline(advice),
            run_report_texts.advice_evidence(advice),
        ]
        for advice in advise(request, units)
    ]


def test_the_example_of_the_documentation_is_what_the_rules_give() -> None:
    table = DOCUMENT.read_text().partition("<!-- run-advice")[2].partition("<!-- /run-advice")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()[3:] if line]
    assert rows == example_rows()


def test_the_documentation_names_each_rule_and_its_limits() -> None:
    section = DOCUMENT.read_text().partition("### What to ask for next time")[2].partition("\n## ")[0]
    for code in run_report_texts.ADVICE_EVIDENCE:
        assert f"`{code}`" in section, code
    for number in (
        f"{request_advice.MIN_MEASURED_SECONDS // 60} minutes",
        f"{request_advice.MIN_COVERAGE:.0%}",
        f"{request_advice.HEADROOM:g} x",
        f"{request_advice.LOW_UTILISATION:.0%}",
        f"{request_advice.HIGH_CPU:.0%}",
        f"{request_advice.LIMIT_HEADROOM:g} x",
    ):
        assert number.replace("%", " per cent") in section, number
