"""Check docs/scheduling.md: its examples equal the planner's output, and it lists every rule and promise."""

from __future__ import annotations

import os

import pytest

from scheduler.core.explain import refusals, start_ranges
from scheduler.core.model import waiting_queue
from scheduler.core.model.snapshot import PoolPolicy
from scheduler.core.promises.promise_timeline import DISK_CLEANUP_SECONDS
from scheduler.core.queue import runtime_prediction, team_queue
from scheduler.core.what_if import alternatives
from tests.core.worked_examples import BLOCK, PAGE, with_new_blocks


def test_the_examples_of_the_page_are_the_output_of_the_planner() -> None:
    text = PAGE.read_text()
    if os.environ.get("GPUPOOL_WRITE_DOCS"):
        text = with_new_blocks(text)
        PAGE.write_text(text)
    assert text == with_new_blocks(text), (
        "the blocks are out of date: regenerate them (see tests/core/worked_examples.py)"
    )


def test_the_page_has_an_example_for_each_section_and_lists_all_rules() -> None:
    blocks = [match["block"] for match in BLOCK.finditer(PAGE.read_text())]
    assert blocks.count("rules") == 1 and blocks.count("promises") == 1
    for section in PAGE.read_text().split("\n## ")[1:]:
        title = section.splitlines()[0]
        assert "<!-- " in section or title in ("A cycle", "Policy of a pool"), (
            f"section {title!r} has no example"
        )


HOUR = 3600
STATED_NUMBERS = [
    f"never more than {waiting_queue.MAX_RUNTIME_PENALTY_SECONDS // HOUR} hours extra",
    f"after {team_queue.OLDEST_FIRST_AFTER_SECONDS // HOUR} hours, "
    f"and its oldest workload over {team_queue.LARGE_JOB_UNITS} GPUs after "
    f"{team_queue.LARGE_OLDEST_FIRST_AFTER_SECONDS // HOUR} hours",
    f"the median runtime of the latest {runtime_prediction.MAX_SIMILAR_JOBS} jobs",
    f"a limit within a factor of {runtime_prediction.SIMILAR_LIMIT_FACTOR}",
    f"fewer than {runtime_prediction.MIN_SIMILAR_JOBS} such jobs, the jobs of the team count",
    f"(7 days by default){'' if PoolPolicy().half_life_seconds == 7 * 24 * HOUR else '?'}",
    f"The first {refusals.FORECAST_DEPTH} waiting workloads of a pool",
    f"its latest {start_ranges.MAX_OUTCOMES} estimates",
    f"the {start_ranges.UPPER_PERCENTILE}th percentile of actual / estimated wait, "
    f"the lower end times the {start_ranges.LOWER_PERCENTILE}th",
    f"Below {start_ranges.MIN_OUTCOMES} records no range is shown",
    f"about {alternatives.MAX_TURNS_EVALUATED:,} turns",
    f"later than {'an hour' if DISK_CLEANUP_SECONDS == HOUR else '?'}, notice and grace from now",
    f"| notice | {PoolPolicy().notice_seconds} s |",
    f"| grace | {PoolPolicy().grace_seconds} s |",
    f"| minimum runtime | {PoolPolicy().minimum_runtime_seconds} s |",
]


@pytest.mark.parametrize("sentence", STATED_NUMBERS)
def test_the_numbers_in_the_text_are_those_of_the_code(sentence: str) -> None:
    assert sentence in " ".join(PAGE.read_text().split())
