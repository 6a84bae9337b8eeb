"""docs/scheduling.md: the numbers of its examples are what the planner says now, and every rule and promise is in it."""

from __future__ import annotations

import os

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
