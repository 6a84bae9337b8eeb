"""Test the logs of runs: a long log keeps its beginning and end, chunks may be late, old logs are deleted."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from pathlib import Path

import pytest

from scheduler.models import Run, Workload
from scheduler.runs import logs
from scheduler.sweeps import retention
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SEGMENT = 1000


@pytest.fixture(autouse=True)
def small_segments(settings: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.GPUPOOL_STATE = tmp_path  # type: ignore[attr-defined]
    monkeypatch.setattr(logs, "SEGMENT_BYTES", SEGMENT)


def lines(count: int) -> str:
    return "".join(f"line {number:04}\n" for number in range(count))  # 10 bytes each


def everything(run: uuid.UUID, most: int) -> str:
    offset, text = 0, ""
    while True:
        piece, after = logs.read_log(run, offset, most)
        if not piece:
            return text
        assert after > offset
        text, offset = text + piece, after


def test_a_log_over_the_limit_keeps_its_beginning_and_its_end() -> None:
    run, written = uuid.uuid4(), lines(3000)
    for at in range(0, len(written), 640):
        logs.append_log(run, at, written[at : at + 640])
    assert sum(path.stat().st_size for path in logs.log_folder(run).iterdir()) <= logs.MAX_SEGMENTS * SEGMENT
    assert logs.read_log(run, -20, 20) == (written[-20:], 30_000)
    kept = everything(run, 256)
    assert kept.startswith(
        written[:SEGMENT] + "\n[gpupool: 22,000 bytes are not kept here]\n" + written[23_000:23_050]
    )
    assert kept.endswith(written[-500:])
    assert (logs.read_whole_log(run) or b"").decode() == kept
    assert logs.read_log(run, 5000, 20) == (
        "\n[gpupool: 18,000 bytes are not kept here]\n" + written[23_000:23_020],
        23_020,
    )
    logs.append_log(run, 5000, "too late")
    assert everything(run, 1000) == kept, "a chunk of a removed part is not stored"


@pytest.mark.parametrize("most", [7, 100, 999, 1000, 5000])
def test_multibyte_characters_are_never_split(most: int) -> None:
    run, written = uuid.uuid4(), "Grüße, 世界 🙂\n" * 150
    logs.append_log(run, 0, written)
    assert everything(run, most) == written


def test_a_missing_chunk_is_skipped_and_inserted_if_it_arrives_late() -> None:
    run, written = uuid.uuid4(), lines(300)
    logs.append_log(run, 0, written[:500])
    logs.append_log(run, 2500, written[2500:])
    assert (
        everything(run, 400)
        .replace("\n[gpupool: 1,500 bytes are not kept here]\n", "")
        .startswith(written[:500])
    )
    assert logs.read_log(run, -10, 10)[0] == written[-10:]
    logs.append_log(run, 500, written[500:2500])
    assert everything(run, 400) == written


def test_there_is_no_log_before_the_first_line() -> None:
    run = uuid.uuid4()
    assert logs.read_log(run) == ("", 0) and logs.read_whole_log(run) is None
    assert logs.append_log(run, -1, "x") == 0 and logs.read_whole_log(run) is None


def test_logs_are_deleted_after_the_retention_period_and_never_while_the_run_is_live(
    world: World, settings: object
) -> None:
    settings.GPUPOOL_LOG_DAYS = 30  # type: ignore[attr-defined]
    workload: Workload = job(world, world.vision, 1, world.now)
    ended: dict[str, object] = {"state": "ended", "ended_at": world.now}
    runs = [
        Run.objects.create(
            workload=workload,
            attempt=attempt,
            host=world.hosts["alpha"],
            generation=attempt,
            placed_at=world.now,
            **how,
        )
        for attempt, how in enumerate(({}, ended, ended), 1)
    ]
    lasts, old, young = (run.public_id for run in runs)
    for run, days in ((lasts, 40), (old, 31), (young, 29)):
        logs.append_log(run, 0, "hello\n")
        written = (world.now - dt.timedelta(days=days)).timestamp()
        for path in (*logs.log_folder(run).iterdir(), logs.log_folder(run)):
            os.utime(path, (written, written))
    assert retention.delete_expired_logs(world.now) == 1
    assert [logs.read_log(run)[0] for run in (lasts, old, young)] == ["hello\n", "", "hello\n"]
    assert retention.delete_expired_logs(world.now) == 0
