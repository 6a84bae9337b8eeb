"""Test that the tests of one xdist group run one after another in one process.

These tests share resources of the machine.
"""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("house")
def test_the_runner_keeps_tests_of_a_group_together(request: pytest.FixtureRequest) -> None:
    """Check that pytest-xdist adds the group to test names, as ``--dist loadgroup`` requires.

    One version silently omitted the suffix (issue 1386 of pytest-xdist).
    """
    by_groups = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@house") is by_groups
