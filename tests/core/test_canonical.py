"""A recorded snapshot reads back as it was, and gives the same plan, byte for byte, whatever order its rows had."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import serialization
from scheduler.core.model.plan import Plan
from scheduler.core.model.snapshot import Snapshot
from scheduler.core.model.snapshot_delta import SNAPSHOT_TABLES, sort_rows
from scheduler.core.planner import plan
from tests.core.strategies import NOW, snapshots


def text_of(snapshot: Snapshot, planned: Plan) -> str:
    digest = serialization.sha256_hex(serialization.plan_text(planned))
    ordered = sort_rows(snapshot)
    tables = {name: serialization.table_text(getattr(ordered, name)) for name in SNAPSHOT_TABLES}
    return serialization.recording_text(snapshot.epoch, NOW, digest, tables)


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    dice = random.Random(seed)
    return replace(
        snapshot,
        **{
            name: tuple(dice.sample(rows, len(rows)))
            for name in SNAPSHOT_TABLES
            for rows in [getattr(snapshot, name)]
        },
    )


@given(snapshot=snapshots(), seed=st.integers(0, 1000))
def test_a_snapshot_comes_back_and_its_plan_is_the_same_byte_for_byte(snapshot: Snapshot, seed: int) -> None:
    planned = plan(snapshot, NOW)
    text = text_of(snapshot, planned)
    recorded = serialization.read_recording(text)
    assert recorded.snapshot == sort_rows(snapshot) and recorded.now == NOW
    again = plan(recorded.snapshot, recorded.now)
    assert serialization.plan_text(again) == serialization.plan_text(planned)
    assert serialization.sha256_hex(serialization.plan_text(again)) == recorded.plan_sha256
    assert text_of(shuffled(snapshot, seed), plan(shuffled(snapshot, seed), NOW)) == text
    assert text_of(recorded.snapshot, again) == text


def test_a_file_says_its_own_columns_so_that_an_older_one_is_still_read() -> None:
    text = '{"format":1,"now":5,"plan_sha256":"x","snapshot":{"epoch":2,"teams":{"fields":["id","name"],"rows":[[1,"a"]]}}}'
    snapshot = serialization.read_recording(text).snapshot
    assert (snapshot.epoch, snapshot.teams[0].weight, snapshot.units) == (2, 1, ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "format: 'list'; allowed: 1, 2"),
        ('{"format":7}', "format: 7; allowed: 1, 2"),
        ('{"format":1,"now":5,"plan_sha256":""}', "snapshot"),
        (
            '{"format":1,"now":5,"plan_sha256":"","snapshot":{"epoch":1,"moons":{"fields":[],"rows":[]}}}',
            "moons",
        ),
        (
            '{"format":1,"now":5,"plan_sha256":"","snapshot":{"epoch":1,"teams":{"fields":["id","moon"],"rows":[[1,2]]}}}',
            "TeamInfo: unknown columns: moon",
        ),
    ],
)
def test_what_is_no_recording_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(serialization.RecordingFormatError, match=why):
        serialization.read_recording(text)


def test_a_plan_as_text_is_json_with_all_of_it() -> None:
    found = json.loads(serialization.plan_text(Plan(epoch=3)))
    assert found["epoch"] == 3
    assert set(found) == {"epoch", "placements", "evictions", "refusals", "bindings", "unbound"}


@pytest.mark.parametrize("stated", [1, 2])
def test_columns_under_their_names_of_format_1_are_read_whatever_format_the_file_states(stated: int) -> None:
    policy = {"most_slots_per_user": 840, "most_slots_per_workload": None}
    tables = {
        "pools": (["id", "name", "kind", "team", "policy"], [1, "a", "dynamic", None, policy]),
        "hosts": (["id", "name", "pool", "accepts", "homes"], [1, "h", 1, False, 3]),
        "units": (["id", "host", "gpu", "model", "well"], [1, 1, 1, "H100", False]),
        "quotas": (
            ["team", "pool", "model", "guaranteed", "guaranteed_again", "borrow_limit_again"],
            [1, 1, "H100", 0, 840, 7],
        ),
    }
    snapshot: dict[str, object] = {"epoch": 1}
    snapshot |= {name: {"fields": fields, "rows": [row]} for name, (fields, row) in tables.items()}
    text = json.dumps({"format": stated, "now": 5, "plan_sha256": "x", "snapshot": snapshot})
    found = serialization.read_recording(text).snapshot
    assert (found.hosts[0].schedulable, found.hosts[0].home_storage) == (False, 3)
    assert not found.units[0].healthy
    assert (found.quotas[0].guaranteed_after_reset, found.quotas[0].borrow_limit_after_reset) == (840, 7)
    assert found.pools[0].policy.max_slots_per_user == 840
