"""Test that the table "Where a rule lives" names existing files and functions."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.sources import ROOT, parsed

TABLE = (ROOT / "docs" / "architecture.md").read_text().partition("## Where a rule lives")[2]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and "`" in line]
PLACE = re.compile(r"`(?P<file>[\w/]+\.py)`(?:: (?P<names>`\w+`(?:, `\w+`)*))?")


def test_each_row_of_the_table_names_a_place() -> None:
    assert len(ROWS) > 60
    assert not [row for row in ROWS if PLACE.search(row) is None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_place_that_the_table_names_exists(row: str) -> None:
    for place in PLACE.finditer(row):
        tree = parsed(ROOT / place["file"])
        defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        assert set(re.findall(r"\w+", place["names"] or "")) <= defined, place["file"]
