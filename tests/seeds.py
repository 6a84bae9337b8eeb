"""Divide the cases of parametrized tests between the short and the long part of the suite."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def seeds(*, short: int, total: int) -> list[ParameterSet]:
    """Return the seeds 0 to ``total`` - 1. Only the long part of the suite runs seeds from ``short`` on."""
    return first_cases(short, range(total))


def first_cases(short: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """Return the cases of one rule. Only the long part of the suite runs those after the first ``short``."""
    return [_case(case, number >= short) for number, case in enumerate(cases)]


def _case(case: Any, is_long: bool) -> ParameterSet:
    found = ParameterSet.extract_from(case, force_tuple=not isinstance(case, tuple))
    return found._replace(marks=[*found.marks, pytest.mark.long]) if is_long else found
