"""Each rule of docs/scheduling.md as a small story in scenarios/*.json, told again by the planner, in the words people read."""

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
EACH = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


@EACH
def test_the_scenario_comes_out_as_told(path: Path) -> None:
    scenario = Scenario(path)
    planned = plan(scenario.snapshot, NOW)
    expected = {
        part: scenario.expected.get(part, {}) for part in ("placed", "evicted", "refused", "bound", "unbound")
    }
    assert scenario.told(planned) == expected, scenario.rule
    assert violations(scenario.snapshot, planned, NOW) == []


@EACH
def test_people_read_why(path: Path) -> None:
    words = in_words(plan(Scenario(path).snapshot, NOW))
    if os.environ.get("GPUPOOL_WRITE_WORDS"):
        write_words(path, words)
    assert Scenario(path).words == words


def in_words(planned: Plan) -> dict[str, str]:
    """What is said to a stranger about everybody who gets an answer, in the time zone UTC."""
    with timezone.override("UTC"):
        said = {
            str(p.workload): reason_texts.reason_sentence(p.code, dict(p.numbers)) for p in planned.placements
        }
        said |= {
            str(e.workload): reason_texts.reason_sentence(e.code, dict(e.numbers)) for e in planned.evictions
        }
        said |= {
            str(r.workload): reason_texts.reason_sentence(r.code, dict(r.numbers)) for r in planned.refusals
        }
        said |= {
            f"reservation {u.reservation}": reason_texts.reason_sentence(u.code, dict(u.numbers))
            for u in planned.unbound
        }
    return dict(sorted(said.items()))


def write_words(path: Path, words: dict[str, str]) -> None:
    """Put the words at the end of the file, in the place of those that were there."""
    text = path.read_text()
    head = (
        text[: text.rindex(',\n  "words": {')]
        if '\n  "words": {' in text
        else text.rstrip().removesuffix("}").rstrip()
    )
    lines = ",\n".join(
        f"    {json.dumps(who)}: {json.dumps(said, ensure_ascii=False)}" for who, said in words.items()
    )
    path.write_text(f'{head},\n  "words": {{\n{lines}\n  }}\n}}\n' if words else f"{head}\n}}\n")
