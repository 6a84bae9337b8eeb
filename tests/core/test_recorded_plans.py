"""Test that the planner gives the recorded plan for each recorded snapshot.

``tests/fixtures/plans_format_1.jsonl.xz`` has one recording of format 1 in each line, with two additional
keys: ``plan`` is the whole plan, ``source`` says how the snapshot was made. ``serialization.read_recording``
reads the snapshot with the present names. ``PRESENT_NAMES`` maps the recorded plan to present names. If a
table or column of a plan is renamed, add the new name to ``PRESENT_NAMES``.
"""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import serialization
from scheduler.core.planner import plan
from tests.seeds import seeds

FILE = Path(__file__).resolve().parent.parent / "fixtures" / "plans_format_1.jsonl.xz"
SHARDS = 8  # groups of recordings, for parallel test workers; the short part of the suite replays one group
MIN_RECORDINGS = 1_000
MAX_DIFFERENCES_SHOWN = 20
TABLES = ("placements", "evictions", "refusals", "bindings", "unbound")
# Recorded table -> (present table, {recorded column: present column}). Names that are absent have not
# changed.
PRESENT_NAMES: dict[str, tuple[str, dict[str, str]]] = {}
# Recordings whose plan changed on purpose: {line number: reason}. The commit that changes a plan lists it
# here.
FINER_LEVELS_OF_CPU = (
    "0 1 2 3 5 6 8 9 10 13 15 18 19 20 21 29 44 71 129"
    " 130 140 142 145 149 184 264 265 1313 1314 1331 1344 1359"
)
BORROWERS_FIRST = "1 127 173 198 246 351"
CHANGED_ON_PURPOSE: dict[int, str] = (
    dict.fromkeys(
        map(int, FINER_LEVELS_OF_CPU.split()),
        "the placement rule rounds free CPU to finer levels, up to the capacity of the largest host, so that"
        " the planner and the openb benchmark run the same code",
    )
    | dict.fromkeys(
        map(int, BORROWERS_FIRST.split()),
        "for a reservation, borrowed work is evicted before guaranteed work that would lose less",
    )
    | {
        381: "a bound reservation releases its units when maintenance begins, and others are kept for it",
        1068: "other units are kept for a bound reservation whose host enters maintenance before it ends",
    }
)

Rows = dict[str, list[dict[str, Any]]]  # by table: its rows, each as {column: value}


@functools.cache
def lines() -> list[str]:
    """Return the recordings in the order of the file."""
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def rows_by_column(tables: dict[str, Any]) -> Rows:
    """Return a plan's tables with one dict per row, so that the order of columns has no meaning."""
    return {
        name: [dict(zip(table["fields"], row, strict=True)) for row in table["rows"]]
        for name, table in tables.items()
        if name != "epoch"
    }


def in_present_names(recorded: Rows) -> Rows:
    """Return a recorded plan with the present names of its tables and columns."""
    present: Rows = {}
    for table, rows in recorded.items():
        name, columns = PRESENT_NAMES.get(table, (table, {}))
        present[name] = [
            {columns.get(column, column): value for column, value in row.items()} for row in rows
        ]
    return present


def differences(expected: Rows, present: Rows) -> list[str]:
    """Return one line for each row that is missing, new or different.

    The first column of a row names its subject.
    """
    lines_found = []
    for table in sorted({*expected, *present}):
        before, after = _by_subject(expected.get(table, [])), _by_subject(present.get(table, []))
        for subject in sorted({*before, *after}):
            old, new = before.get(subject), after.get(subject)
            if old is None or new is None:
                only_in = "recorded" if new is None else "now"
                lines_found.append(f"{table} of {subject}: {only_in} only: {json.dumps(old or new)}")
            elif old != new:
                columns = [name for name in {**old, **new} if old.get(name) != new.get(name)]
                changes = [
                    f"{name} {json.dumps(old.get(name))} -> {json.dumps(new.get(name))}" for name in columns
                ]
                lines_found.append(f"{table} of {subject}: {', '.join(changes)}")
    return lines_found


def _by_subject(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {next(iter(row.values())): row for row in rows}


def replay(number: int) -> str:
    """Plan one recorded snapshot again. Return the differences from the recorded plan, or '' if equal."""
    line = lines()[number]
    recording, whole = serialization.read_recording(line), json.loads(line)
    text = serialization.plan_text(plan(recording.snapshot, recording.now))
    if serialization.sha256_hex(text) == recording.plan_sha256:
        return ""
    present = json.loads(text)
    expected_rows, found_rows = in_present_names(rows_by_column(whole["plan"])), rows_by_column(present)
    if expected_rows == found_rows and whole["plan"]["epoch"] == present["epoch"]:
        return ""
    different = differences(expected_rows, found_rows) or ["the epoch, or the order of rows"]
    shown = "\n    ".join(different[:MAX_DIFFERENCES_SHOWN])
    return f"recording {number} ({whole['source']}): {len(different)} differences\n    {shown}"


@pytest.mark.parametrize("shard", seeds(short=1, total=SHARDS))
def test_each_recorded_snapshot_gives_the_recorded_plan(shard: int) -> None:
    different = [
        replay(number) for number in range(shard, len(lines()), SHARDS) if number not in CHANGED_ON_PURPOSE
    ]
    different = [lines_found for lines_found in different if lines_found]
    assert not different, f"{len(different)} plans differ:\n" + "\n".join(different[:5])


def test_the_recordings_cover_every_table_of_a_plan() -> None:
    assert len(lines()) >= MIN_RECORDINGS
    assert len(set(lines())) == len(lines())
    assert all(number < len(lines()) for number in CHANGED_ON_PURPOSE)
    seen = dict.fromkeys(TABLES, 0)
    for line in lines()[::7]:
        for table, rows in json.loads(line)["plan"].items():
            seen[table] = seen.get(table, 0) + len(rows["rows"] if table != "epoch" else ())
    assert all(seen[table] > 10 for table in TABLES), seen


def test_a_difference_is_named_by_table_subject_and_column() -> None:
    recorded = {"bindings": [{"reservation": 1, "units": [1, 2]}, {"reservation": 2, "units": [3]}]}
    now = {"bindings": [{"reservation": 1, "units": [1, 4]}, {"reservation": 3, "units": [3]}]}
    assert differences(recorded, now) == [
        "bindings of 1: units [1, 2] -> [1, 4]",
        'bindings of 2: recorded only: {"reservation": 2, "units": [3]}',
        'bindings of 3: now only: {"reservation": 3, "units": [3]}',
    ]
