"""Test that the tests of one xdist group run one after another in one process.

These tests share resources of the machine, or rows of the database.
"""

from __future__ import annotations

import pytest

from tests.telemetry.rows import rates
from tests.world import world

__all__ = ["rates", "world"]


@pytest.mark.xdist_group("house")
def test_the_runner_keeps_tests_of_a_group_together(request: pytest.FixtureRequest) -> None:
    """Check that pytest-xdist adds the group to test names, as ``--dist loadgroup`` requires.

    One version silently omitted the suffix (issue 1386 of pytest-xdist).
    """
    by_groups = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@house") is by_groups


@pytest.mark.django_db
@pytest.mark.usefixtures("rates")
def test_tests_with_the_same_shared_rows_are_a_group(request: pytest.FixtureRequest) -> None:
    """Check that pytest-xdist reads the groups after ``tests/conftest.py`` has added them.

    Otherwise each process writes the rows of each module.
    """
    by_groups = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@test_groups:rates") is by_groups
