"""docs/scheduling.md: the numbers of its examples are what the planner says now, and every rule and promise is in it."""

from __future__ import annotations

import os

import pytest

from scheduler.core import estimates, explain, ordering, prediction, waiting
from scheduler.core.model import FULL_DISK_SECONDS, Policy
from tests.core.worked_examples import BLOCK, PAGE, written_anew


def test_the_examples_of_the_page_are_what_the_planner_says() -> None:
    text = PAGE.read_text()
    if os.environ.get("GPUPOOL_WRITE_DOCS"):
        text = written_anew(text)
        PAGE.write_text(text)
    assert text == written_anew(text), (
        "made of other scenarios: write the page anew (see tests/core/worked_examples.py)"
    )


def test_the_page_has_an_example_for_each_of_its_rules_and_lists_them_all() -> None:
    blocks = [found["what"] for found in BLOCK.finditer(PAGE.read_text())]
    assert blocks.count("rules") == 1 and blocks.count("promises") == 1
    for section in PAGE.read_text().split("\n## ")[1:]:
        title = section.splitlines()[0]
        assert "<!-- " in section or title in ("A cycle", "Policy of a pool"), f"{title}: without an example"


HOUR = 3600
SAID = [
    f"never more than {ordering.LONGEST_STRETCH // HOUR} hours extra",
    f"after {ordering.OLDEST_AFTER // HOUR} hours, its oldest over {ordering.LARGE_UNITS} GPUs after "
    f"{ordering.LARGE_OLDEST_AFTER // HOUR} hours",
    f"the median of the latest {prediction.LOOKED_AT} jobs",
    f"a limit within a factor of {prediction.LIMIT_FACTOR}",
    f"Below {prediction.LEAST_SIMILAR} of these the same of the team",
    f"(7 days by default){'' if Policy().half_life_seconds == 7 * 24 * HOUR else '?'}",
    f"The first {waiting.FORECAST_DEPTH} that wait in a pool",
    f"the latest {estimates.LOOKED_AT} of a pool",
    f"the {estimates.UPPER}th percentile of waited / told, the lower end times the {estimates.LOWER}th",
    f"Below {estimates.LEAST_RECORDS} records no range is told",
    f"about {explain.WORK:,} turns",
    f"later than {'an hour' if FULL_DISK_SECONDS == HOUR else '?'}, notice and grace from now",
    f"| notice | {Policy().notice_seconds} s |",
    f"| grace | {Policy().grace_seconds} s |",
    f"| minimum runtime | {Policy().minimum_runtime_seconds} s |",
]


@pytest.mark.parametrize("words", SAID)
def test_the_numbers_between_the_examples_are_those_of_the_rules(words: str) -> None:
    assert words in " ".join(PAGE.read_text().split())
