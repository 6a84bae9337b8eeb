"""Mark tests that only `./run test --long` runs, and tests that share one process. Loaded by pytest.

After the collection, all objects are frozen, so that the garbage collector has less work.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

# Installing the environment of these tests takes minutes: see examples/requirements.txt.
EXAMPLES_MARKERS = ("torch", "lightning", "transformers", "ray")

# The tests of this folder share the syntax trees of all source files, which the first test parses.
ONE_PROCESS_FOLDER = Path(__file__).parent / "architecture"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker `long` before pytest applies `-m`, and the group of a folder before xdist reads it."""
    for item in items:
        if any(item.get_closest_marker(name) for name in EXAMPLES_MARKERS):
            item.add_marker("long")
        if item.path.parent == ONE_PROCESS_FOLDER:
            item.add_marker(pytest.mark.xdist_group("architecture"))


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore all present objects: modules and tests stay until the end."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter collect all objects at its exit. Otherwise some libraries report leaks."""
    gc.unfreeze()
