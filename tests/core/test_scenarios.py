"""Test scenarios/*.json: each shows one rule of docs/scheduling.md with a small pool and its plan."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from django.utils import timezone

from benchmarks.plan_verifier import violations
from portal.wording import reason_texts
from scheduler.core.model.plan import Plan
from scheduler.core.planner import plan
from tests.core.scenario import FOLDER, NOW, Scenario

FILES = sorted(FOLDER.glob("*.json"))
EACH_SCENARIO = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


@EACH_SCENARIO
def test_the_plan_is_as_the_scenario_expects(path: Path) -> None:
    scenario = Scenario(path)
    planned = plan(scenario.snapshot, NOW)
    expected = {
        part: scenario.expected.get(part, {}) for part in ("placed", "evicted", "refused", "bound", "unbound")
    }
    assert scenario.relevant_part(planned) == expected, scenario.rule
    assert violations(scenario.snapshot, planned, NOW) == []


@EACH_SCENARIO
def test_the_displayed_texts_are_those_of_the_scenario(path: Path) -> None:
    texts = displayed_texts(plan(Scenario(path).snapshot, NOW))
    if os.environ.get("GPUPOOL_WRITE_WORDS"):
        write_texts(path, texts)
    assert Scenario(path).texts == texts


def displayed_texts(planned: Plan) -> dict[str, str]:
    """Return the displayed text of each answer of the plan, with times in UTC."""
    with timezone.override("UTC"):
        texts = {
            str(p.workload): reason_texts.reason_sentence(p.code, dict(p.numbers)) for p in planned.placements
        }
        texts |= {
            str(e.workload): reason_texts.reason_sentence(e.code, dict(e.numbers)) for e in planned.evictions
        }
        texts |= {
            str(r.workload): reason_texts.reason_sentence(r.code, dict(r.numbers)) for r in planned.refusals
        }
        texts |= {
            f"reservation {u.reservation}": reason_texts.reason_sentence(u.code, dict(u.numbers))
            for u in planned.unbound
        }
    return dict(sorted(texts.items()))


def write_texts(path: Path, texts: dict[str, str]) -> None:
    """Replace the texts at the end of the file."""
    text = path.read_text()
    head = (
        text[: text.rindex(',\n  "texts": {')]
        if '\n  "texts": {' in text
        else text.rstrip().removesuffix("}").rstrip()
    )
    lines = ",\n".join(
        f"    {json.dumps(subject)}: {json.dumps(text, ensure_ascii=False)}"
        for subject, text in texts.items()
    )
    path.write_text(f'{head},\n  "texts": {{\n{lines}\n  }}\n}}\n' if texts else f"{head}\n}}\n")
