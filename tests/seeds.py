"""Divide the seeds of parametrized tests between the short and the long part of the suite."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet


def seeds(*, short: int, total: int) -> list[ParameterSet]:
    """Return the seeds 0 to ``total`` - 1. Only the long part of the suite runs seeds from ``short`` on."""
    return [pytest.param(seed, marks=[pytest.mark.long] if seed >= short else []) for seed in range(total)]
