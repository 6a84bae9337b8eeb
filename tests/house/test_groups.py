"""Tests of one group run after each other in one process: they share what a machine has once."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("house")
def test_tests_of_a_group_are_kept_together_by_the_runner(request: pytest.FixtureRequest) -> None:
    """pytest-xdist does so by the end of their names (--dist loadgroup); it has stopped to without a word (its issue 1386)."""
    by_groups = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@house") is by_groups
