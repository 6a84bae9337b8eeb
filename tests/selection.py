"""Mark the tests that only `./run test --long` runs. Loaded by pytest as a plugin."""

from __future__ import annotations

import pytest

# Installing the environment of these tests takes minutes: see examples/requirements.txt.
EXAMPLES_MARKERS = ("torch", "lightning", "transformers", "ray")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker `long` before pytest applies `-m`."""
    for item in items:
        if any(item.get_closest_marker(name) for name in EXAMPLES_MARKERS):
            item.add_marker("long")
