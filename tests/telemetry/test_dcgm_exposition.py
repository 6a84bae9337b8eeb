"""Test the parser of the Prometheus text format, and the sentinels of DCGM."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from telemetry.dcgm.exposition import MAX_LINE_LENGTH, parse_metrics
from telemetry.dcgm.fields import known_value
from tests.telemetry.dcgm_server import every_field

GOOD = [
    "DCGM_FI_DEV_GPU_TEMP 41",
    'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 41',
    'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",} 4.1e+01 1700000000000',
    'a:b{ x = "1" , y="2" }  -0.5',
    'a{x="comma, brace } and \\"quote\\" and \\\\ and \\n line"} +Inf',
    "a{} NaN",
    "a .5",
]


@pytest.mark.parametrize("line", GOOD)
def test_a_valid_line_gives_the_values_of_the_reference_parser(line: str) -> None:
    found, unreadable = parse_metrics(line + "\n")
    (expected,) = [
        sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples
    ]
    assert unreadable == 0
    assert (found[0].name, dict(found[0].labels)) == (expected.name, expected.labels)
    assert found[0].value == expected.value or math.isnan(found[0].value) and math.isnan(expected.value)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a{",
        'a{x="1" 5',
        'a{x="1"} five',
        'a{x="1"} 5 6 7',
        'a{x="1"y="2"} 5',
        'a{x="1",x="2"} 5',
        "a{x=1} 5",
        'a{x="\\t"} 5',
        "a 0x10",
        "a 1_000",
        "1a 5",
        'a{x="1",,} 5',
        "a " + "9" * MAX_LINE_LENGTH,
    ],
)
def test_an_invalid_line_is_counted_and_the_other_lines_are_read(line: str) -> None:
    found, unreadable = parse_metrics(f"# HELP b text\nb 1\r\n\n{line}\n  c 2\n")
    assert [(each.name, each.value) for each in found] == [("b", 1.0), ("c", 2.0)]
    assert unreadable == 1


def test_a_long_hostile_line_takes_linear_time() -> None:
    hostile = "a{" + 'x="1" ' * 2_000 + "} 5\na" + " " * 16_000 + "{\n" + 'a{x="' + "\\\\" * 8_000
    assert parse_metrics(hostile) == ([], 3)


def test_the_answer_of_the_test_server_is_valid_for_the_reference_parser() -> None:
    text = every_field("GPU-a")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found, unreadable = parse_metrics(text)
    assert (len(found), unreadable) == (len(samples), 0)


@pytest.mark.parametrize(
    "value",
    [
        2147483632,  # DCGM_INT32_BLANK
        2147483634,  # DCGM_INT32_NOT_SUPPORTED
        9223372036854775792,  # DCGM_INT64_BLANK
        9223372036854775794,  # DCGM_INT64_NOT_SUPPORTED
        140737488355328.0,  # DCGM_FP64_BLANK
        140737488355331.0,  # DCGM_FP64_NOT_PERMISSIONED
        math.nan,
        math.inf,
        -math.inf,
    ],
)
def test_a_sentinel_of_dcgm_is_unknown(value: float) -> None:
    assert known_value(float(value)) is None


@pytest.mark.parametrize("value", [0.0, 2147483631.0, 2147483648.0, 140737488355327.0, 140737488355344.0])
def test_a_value_beside_a_sentinel_is_known(value: float) -> None:
    assert known_value(value) == value
