"""Test recordings: a recorded snapshot is read back unchanged and gives the same plan."""

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


def recording_of(snapshot: Snapshot, planned: Plan) -> str:
    digest = serialization.sha256_hex(serialization.plan_text(planned))
    ordered = sort_rows(snapshot)
    tables = {name: serialization.table_text(getattr(ordered, name)) for name in SNAPSHOT_TABLES}
    return serialization.recording_text(snapshot.epoch, NOW, digest, tables)


def shuffle_rows(snapshot: Snapshot, seed: int) -> Snapshot:
    rng = random.Random(seed)
    return replace(
        snapshot,
        **{
            name: tuple(rng.sample(rows, len(rows)))
            for name in SNAPSHOT_TABLES
            for rows in [getattr(snapshot, name)]
        },
    )


@given(snapshot=snapshots(), seed=st.integers(0, 1000))
def test_a_recorded_snapshot_is_read_back_and_gives_the_same_plan(snapshot: Snapshot, seed: int) -> None:
    planned = plan(snapshot, NOW)
    text = recording_of(snapshot, planned)
    recorded = serialization.read_recording(text)
    assert recorded.snapshot == sort_rows(snapshot) and recorded.now == NOW
    again = plan(recorded.snapshot, recorded.now)
    assert serialization.plan_text(again) == serialization.plan_text(planned)
    assert serialization.sha256_hex(serialization.plan_text(again)) == recorded.plan_sha256
    assert recording_of(shuffle_rows(snapshot, seed), plan(shuffle_rows(snapshot, seed), NOW)) == text
    assert recording_of(recorded.snapshot, again) == text


def test_a_recording_with_fewer_columns_is_read() -> None:
    text = (
        '{"format":1,"now":5,"plan_sha256":"x",'
        '"snapshot":{"epoch":2,"teams":{"fields":["id","name"],"rows":[[1,"a"]]}}}'
    )
    snapshot = serialization.read_recording(text).snapshot
    assert (snapshot.epoch, snapshot.teams[0].weight, snapshot.units) == (2, 1, ())


@pytest.mark.parametrize(
    ("text", "message"),
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
            '{"format":1,"now":5,"plan_sha256":"",'
            '"snapshot":{"epoch":1,"teams":{"fields":["id","moon"],"rows":[[1,2]]}}}',
            "TeamInfo: unknown columns: moon",
        ),
    ],
)
def test_a_text_that_is_not_a_recording_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(serialization.RecordingFormatError, match=message):
        serialization.read_recording(text)


def test_the_text_of_a_plan_is_json_with_every_table() -> None:
    tables = json.loads(serialization.plan_text(Plan(epoch=3)))
    assert tables["epoch"] == 3
    assert set(tables) == {"epoch", "placements", "evictions", "refusals", "bindings", "unbound"}


@pytest.mark.parametrize("format_number", [1, 2])
def test_column_names_of_format_1_are_read_in_every_format(format_number: int) -> None:
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
    text = json.dumps({"format": format_number, "now": 5, "plan_sha256": "x", "snapshot": snapshot})
    recorded = serialization.read_recording(text).snapshot
    assert (recorded.hosts[0].schedulable, recorded.hosts[0].home_storage) == (False, 3)
    assert not recorded.units[0].healthy
    assert (recorded.quotas[0].guaranteed_after_reset, recorded.quotas[0].borrow_limit_after_reset) == (
        840,
        7,
    )
    assert recorded.pools[0].policy.max_slots_per_user == 840
