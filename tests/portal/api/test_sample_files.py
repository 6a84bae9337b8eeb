"""Test the files of raw samples: their rows, who gets them, and the refusal of bad requests."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from rest_framework.test import APIClient

from cli.commands.money.exports import checked_file
from cli.errors import CliError
from portal.models import User
from portal.streamed_file import StreamedFile
from scheduler.models import Workload
from telemetry.exports import table_files
from telemetry.exports.sample_files import COLUMNS, SampleScope, sample_file
from telemetry.ingest.stream_format import DCGM_BITS, READING_KINDS, SPARSE_READING_KINDS
from telemetry.models import Sample
from tests.portal.api.monitored_world import MEASURED_GPUS, READINGS, SAMPLE_SECONDS, fill_monitored_world
from tests.seeds import first_cases
from tests.world import World

pytestmark = pytest.mark.django_db
Ask = Callable[..., StreamedFile]
URL = "/api/v1/samples/"
PERIOD = dt.timedelta(hours=1)


@pytest.fixture
def measured(today_world: World) -> World:
    """Return a world whose first four GPUs of host alpha have samples; vision holds two of them."""
    fill_monitored_world(today_world, today_world.now)
    return today_world


@pytest.fixture
def ask(measured: World, client_of: Callable[[User], APIClient]) -> Ask:
    """Return a function that requests the samples of the last hour as a user."""
    period = {"start": (measured.now - PERIOD).isoformat(), "end": measured.now.isoformat()}

    def call(user: User, **parameters: Any) -> Any:
        return client_of(user).get(URL, period | parameters)

    return call


def rows_of(answer: Any) -> list[dict[str, str]]:
    assert answer.status_code == 200, answer.content
    lines = answer.getvalue().decode().splitlines(keepends=True)
    assert lines[-1].startswith("# rows: ")
    return list(csv.DictReader(io.StringIO("".join(lines[:-1]))))


def test_the_csv_file_has_each_sample_with_its_hardware_work_and_readings(measured: World, ask: Ask) -> None:
    answer = ask(measured.auditor)
    assert answer["Content-Type"].startswith("text/csv")
    assert answer["Content-Disposition"].startswith('attachment; filename="gpupool-samples-')
    found = rows_of(answer)
    assert len(found) == Sample.objects.count() == MEASURED_GPUS * 180 // SAMPLE_SECONDS
    assert list(found[0]) == list(COLUMNS)
    assert {**READING_KINDS, **SPARSE_READING_KINDS}.keys() <= found[0].keys()
    job = Workload.objects.get(project=measured.vision.project, kind="job", state="running")
    first = found[0]
    assert (first["pool"], first["host"], first["gpu"], first["uuid"]) == (
        "shared",
        "alpha",
        "0",
        "GPU-alpha-0",
    )
    assert first["workload"] == str(job.public_id)
    assert {name: float(first[name]) for name in READINGS} == pytest.approx(READINGS)
    assert first["nvlink_kib"] == ""  # unknown, not 0
    start = measured.now - dt.timedelta(minutes=3)
    assert dt.datetime.fromisoformat(first["ts"]) == start.replace(
        microsecond=start.microsecond // 1000 * 1000
    )
    order = [(row["uuid"], row["ts"]) for row in found]
    assert order == sorted(order)
    assert all(row["workload"] == "" for row in found if row["gpu"] == "3")


def test_a_csv_file_that_was_cut_off_is_recognised_by_its_last_line(
    measured: World, ask: Ask, tmp_path: Path
) -> None:
    path = tmp_path / "samples.csv"
    path.write_bytes(ask(measured.auditor).getvalue())
    assert checked_file(path, "text/csv")["rows"] == Sample.objects.count()
    *lines, end = path.read_bytes().splitlines(keepends=True)
    for cut in (lines, [*lines[:-1], end]):
        path.write_bytes(b"".join(cut))
        with pytest.raises(CliError):
            checked_file(path, "text/csv")


def test_the_file_names_the_readings_that_are_from_dcgm_exporter(measured: World, ask: Ask) -> None:
    sample = Sample.objects.order_by("unit", "ts")[0]
    mask = DCGM_BITS["sm_active"] | DCGM_BITS["dram_active"]
    Sample.objects.filter(unit=sample.unit_id, ts=sample.ts).update(dcgm_readings=mask)
    first, *others = rows_of(ask(measured.auditor))
    assert first["from_dcgm"] == "sm_active dram_active"
    assert {row["from_dcgm"] for row in others} == {""}


def test_the_parquet_file_has_the_rows_of_the_csv_file(measured: World, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "samples.parquet"
    answer = ask(measured.auditor, kind="parquet")
    assert answer["Content-Type"] == "application/vnd.apache.parquet"
    path.write_bytes(answer.getvalue())
    table = duckdb.read_parquet(str(path))
    assert table.columns == list(COLUMNS)
    stored = [dict(zip(table.columns, row, strict=True)) for row in table.fetchall()]
    expected = rows_of(ask(measured.auditor))
    assert len(stored) == len(expected)
    for one, other in zip(stored, expected, strict=True):
        assert one["ts"].replace(tzinfo=dt.UTC) == dt.datetime.fromisoformat(other["ts"])
        assert (one["uuid"], one["power_w"]) == (other["uuid"], float(other["power_w"]))
        assert one["workload"] == (other["workload"] or None)
        assert one["nvlink_kib"] is None


@pytest.mark.parametrize(
    ("role", "gpus"),
    first_cases(
        3,
        [
            ("operator", {"0", "1", "2", "3"}),
            ("lead", {"0", "1"}),
            ("finance", set()),
            ("auditor", {"0", "1", "2", "3"}),
            ("member", {"0", "1"}),
            ("other team", set()),
            ("stranger", set()),
        ],
    ),
)
def test_people_get_the_samples_of_the_work_of_their_teams(
    measured: World, ask: Ask, role: str, gpus: set[str]
) -> None:
    assert {row["gpu"] for row in rows_of(ask(measured.people[role]))} == gpus


def test_a_filter_selects_a_pool_a_host_or_a_workload(measured: World, ask: Ask) -> None:
    job = Workload.objects.get(project=measured.vision.project, kind="job", state="running")
    assert {row["gpu"] for row in rows_of(ask(measured.auditor, workload=job.public_id))} == {"0"}
    assert len(rows_of(ask(measured.auditor, host="alpha"))) == Sample.objects.count()
    assert rows_of(ask(measured.auditor, host="beta")) == []
    assert rows_of(ask(measured.auditor, pool="vision-only")) == []
    half = (measured.now - dt.timedelta(seconds=90)).isoformat()
    assert len(rows_of(ask(measured.auditor, start=half))) == Sample.objects.count() // 2


@pytest.mark.parametrize(
    ("parameters", "field", "message"),
    first_cases(
        2,
        [
            ({"start": ""}, "start", "start"),
            ({"kind": "xlsx"}, "kind", "kind is 'xlsx'; allowed: csv, parquet."),
            ({"pool": "nowhere"}, "pool", "pool is 'nowhere'; allowed: the slug of a pool"),
            ({"host": "nobody"}, "host", "host is 'nobody'; allowed: the name of a host"),
            ({"workload": "x"}, "workload", "workload is 'x': Must be a valid UUID"),
            ({"team": "vision"}, "team", "this request has no such field"),
            ({"start": "2020-01-01T00:00:00Z"}, "end", "by at most 31 days"),
            ({"start": "2199-01-01T00:00:00Z"}, "end", "allowed: after the start"),
        ],
    ),
)
def test_a_bad_request_is_refused_with_field_value_and_what_is_allowed(
    measured: World, ask: Ask, parameters: dict[str, str], field: str, message: str
) -> None:
    answer = ask(measured.auditor, **parameters)
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["field"] == field and message in error["message"]


def test_a_workload_of_another_team_is_refused(measured: World, ask: Ask) -> None:
    job = Workload.objects.get(project=measured.vision.project, kind="job", state="running")
    answer = ask(measured.people["other team"], workload=job.public_id)
    assert answer.status_code == 400
    assert "allowed: the id of a workload" in answer.json()["errors"][0]["message"]


def test_the_file_is_sent_in_parts(measured: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "PART_BYTES", 1_000)
    hosts = [measured.hosts[name].pk for name in ("alpha", "beta")]
    scope = SampleScope(hosts, measured.now - PERIOD, measured.now, measured.now)
    parts = list(sample_file("csv", scope))
    assert len(parts) > 5
    assert max(map(len, parts)) < 2_000
