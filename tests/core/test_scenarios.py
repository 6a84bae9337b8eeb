"""Each rule of docs/scheduling.md as a small story in scenarios/*.json, told again by the planner."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.core.planner import plan
from scheduler.core.verify import violations
from tests.core.scenario import FOLDER, NOW, Scenario

FILES = sorted(FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_scenario_comes_out_as_told(path: Path) -> None:
    scenario = Scenario(path)
    planned = plan(scenario.snapshot, NOW)
    expected = {part: scenario.expected.get(part, {}) for part in ("placed", "evicted", "refused", "bound", "unbound")}
    assert scenario.told(planned) == expected, scenario.rule
    assert violations(scenario.snapshot, planned, NOW) == []
