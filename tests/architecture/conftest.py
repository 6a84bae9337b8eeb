"""Pause the garbage collector during the architecture tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def syntax_trees_are_not_searched_for_garbage() -> Iterator[None]:
    """Keep the garbage collector from visiting the syntax trees, which the tests of this folder share.

    It would visit a million nodes again and again, which takes as long as parsing them.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
