"""Test the files of rollups and cubes: their rows, their end, who gets them, and bad requests."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from rest_framework.test import APIClient

from portal.models import User
from telemetry.exports.rollup_files import CUBE_COLUMNS, ROLLUP_COLUMNS
from telemetry.rollups.roll_up import roll_up_written_hours
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_selectors import create_hour_of_use
from tests.world import World, units_of, world_fixture

pytestmark = pytest.mark.django_db
Ask = Callable[..., Any]
PERIOD = {"start": at(0).isoformat(), "end": at(0, day=3).isoformat()}


@world_fixture
def used(world: World) -> World:
    """Return a world in which vision held a GPU for two hours and language another one for one hour."""
    for number, (team, until) in enumerate(((world.vision, 11), (world.language, 10))):
        unit = units_of(world.hosts["alpha"])[number]
        allocation = hold(workload(world, team), unit, at(9), at(until), end_code="finished")
        for hour in range(9, until):
            create_hour_of_use(allocation, hour)
    roll_up_written_hours(at(9), at(0, day=3), at(1, day=3))
    return world


@pytest.fixture
def ask(used: World, client_of: Callable[[User], APIClient]) -> Ask:
    """Return a function that requests a file of 2 March as a user."""

    def call(user: User, what: str, **parameters: Any) -> Any:
        return client_of(user).get(f"/api/v1/{what}/", PERIOD | parameters)

    return call


def parts_of(answer: Any) -> tuple[list[dict[str, str]], str]:
    """Return the rows of a CSV file and its last line, after a check of the count and the digest."""
    assert answer.status_code == 200, answer.content
    body, _, end = answer.getvalue().rpartition(b"# rows: ")
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    expected = f"{len(rows)} sha256: {hashlib.sha256(body).hexdigest()}\r\n"
    assert end.decode() == expected
    return rows, end.decode()


def test_the_file_of_rollups_has_each_bucket_with_its_hardware_work_and_sums(used: World, ask: Ask) -> None:
    answer = ask(used.auditor, "rollups")
    assert answer["Content-Disposition"].startswith('attachment; filename="gpupool-rollups-hour-')
    rows, _ = parts_of(answer)
    assert [(row["bucket"], row["host"], row["gpu"]) for row in rows] == [
        ("2026-03-02T09:00:00Z", "alpha", "0"),
        ("2026-03-02T10:00:00Z", "alpha", "0"),
        ("2026-03-02T09:00:00Z", "alpha", "1"),
    ]
    assert list(rows[0]) == list(ROLLUP_COLUMNS)
    assert float(rows[0]["busy_seconds"]) == 1800.0
    assert rows[0]["tensor_active_seconds"] == ""  # unknown, not 0


def test_the_file_of_cubes_has_the_sums_of_each_day_team_and_person(used: World, ask: Ask) -> None:
    rows, _ = parts_of(ask(used.auditor, "cubes"))
    assert list(rows[0]) == list(CUBE_COLUMNS)
    assert {(row["team"], float(row["held_slot_seconds"])) for row in rows} == {
        ("vision", 2 * 3600 * 840.0),
        ("language", 3600 * 840.0),
    }
    hours, _ = parts_of(ask(used.auditor, "cubes", level="hour"))
    assert len(hours) == 3


@pytest.mark.parametrize("what", ["rollups", "cubes"])
def test_the_parquet_file_has_the_rows_of_the_csv_file_and_their_digest(
    used: World, ask: Ask, what: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.parquet"
    path.write_bytes(ask(used.auditor, what, kind="parquet").getvalue())
    rows, _ = parts_of(ask(used.auditor, what))
    table = duckdb.read_parquet(str(path))
    assert table.columns == list(rows[0])
    assert len(table.fetchall()) == len(rows)
    kept = duckdb.sql(f"SELECT key, value FROM parquet_kv_metadata('{path}')").fetchall()
    metadata = {bytes(key).decode(): bytes(value).decode() for key, value in kept}
    lines = ask(used.auditor, what).getvalue().split(b"\n", 1)[1].rpartition(b"# rows: ")[0]
    assert metadata["rows"] == str(len(rows))
    assert metadata["sha256"] == hashlib.sha256(lines).hexdigest()


@pytest.mark.parametrize(
    ("role", "rollups", "teams"),
    [
        ("operator", 3, {"vision", "language"}),
        ("auditor", 3, {"vision", "language"}),
        ("finance", 0, {"vision", "language"}),
        ("member", 2, {"vision"}),
        ("stranger", 0, set()),
    ],
)
def test_people_get_the_rows_of_their_teams(
    used: World, ask: Ask, role: str, rollups: int, teams: set[str]
) -> None:
    user = used.people[role]
    assert len(parts_of(ask(user, "rollups"))[0]) == rollups
    assert {row["team"] for row in parts_of(ask(user, "cubes"))[0]} == teams


@pytest.mark.parametrize(
    ("what", "parameters", "field", "message"),
    [
        ("rollups", {"end": ""}, "end", "end"),
        ("rollups", {"level": "week"}, "level", "level is 'week'; allowed: minute, hour, day."),
        ("cubes", {"level": "minute"}, "level", "level is 'minute'; allowed: hour, day."),
        ("rollups", {"kind": "xlsx"}, "kind", "kind is 'xlsx'; allowed: csv, parquet."),
        ("rollups", {"host": "nobody"}, "host", "host is 'nobody'; allowed: the name of a host"),
        ("cubes", {"pool": "nowhere"}, "pool", "pool is 'nowhere'; allowed: the slug of a pool"),
        ("cubes", {"host": "alpha"}, "host", "this request has no such field"),
        ("cubes", {"end": (at(0) + dt.timedelta(days=401)).isoformat()}, "end", "by at most 400 days"),
        (
            "rollups",
            {"level": "minute", "end": (at(0) + dt.timedelta(days=32)).isoformat()},
            "end",
            "by at most 31 days",
        ),
    ],
)
def test_a_bad_request_is_refused_with_field_value_and_what_is_allowed(
    used: World, ask: Ask, what: str, parameters: dict[str, str], field: str, message: str
) -> None:
    answer = ask(used.auditor, what, **parameters)
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["field"] == field and message in error["message"]
