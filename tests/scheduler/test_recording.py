"""Test recordings of planning cycles: they are stored, replayed without the database, and pruned."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gzip
import io
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from scheduler.core.model import serialization
from scheduler.cycle import engine, recording
from scheduler.cycle.recording import CycleRecorder, PreparedRecording
from scheduler.cycle.snapshot_cache import SnapshotCache
from scheduler.models import Decision, Leader, Recording, RecordingPart, Workload
from scheduler.sweeps import retention
from tests.scheduler.test_job_lifecycle import job
from tests.world import World, build_world

SECOND, HOUR, DAY = dt.timedelta(seconds=1), dt.timedelta(hours=1), dt.timedelta(days=1)


def decide(world: World, recorder: CycleRecorder, at: dt.datetime) -> None:
    engine.run_cycle("test", at, cache=SnapshotCache(), recorder=recorder)


def exported(pk: int) -> str:
    out = io.StringIO()
    call_command("export_snapshot", str(pk), stdout=out)
    return out.getvalue()


def replayed(path: Path) -> str:
    out = io.StringIO()
    call_command("replay_snapshot", str(path), stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_a_recording_replays_to_the_same_plan_from_a_file_without_the_database(
    world: World, tmp_path: Path
) -> None:
    jobs = [job(world, team, units, world.now) for team in world.teams for units in (1, 4, 16)]
    decide(world, CycleRecorder(), world.now)
    row = Recording.objects.get()
    placed = Workload.objects.filter(state="placed").count()
    assert (row.placed, row.placed + row.refused, row.at) == (placed, len(jobs), world.now)
    path = tmp_path / "recorded.json"
    path.write_text(exported(row.pk))
    with CaptureQueriesContext(connection) as asked:
        text = replayed(path)
    assert not asked
    assert serialization.sha256_hex(text.removesuffix("\n")) == row.plan_sha256
    assert {p[0] for p in json.loads(text)["placements"]["rows"]} == set(
        Workload.objects.filter(state="placed").values_list("pk", flat=True)
    )
    path.write_bytes(gzip.compress(exported(row.pk).encode()))
    assert replayed(path) == text


def test_planning_continues_if_a_cycle_cannot_be_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(rows: object) -> str:
        raise TypeError("unsupported type in a snapshot or plan")

    workload = job(world, world.vision, 1, world.now)
    with monkeypatch.context() as patch:
        patch.setattr(serialization, "table_text", broken)
        decide(world, CycleRecorder(), world.now)
    workload.refresh_from_db()
    assert workload.state == "placed" and not Recording.objects.exists()
    assert "could not be recorded" in caplog.text


def test_planning_continues_if_the_database_rejects_a_recording(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workload, recorder = job(world, world.vision, 1, world.now), CycleRecorder()
    real = CycleRecorder.prepare

    def prepare(*given: Any) -> PreparedRecording:
        prepared = real(*given)
        return dataclasses.replace(prepared, columns=prepared.columns | {"epoch": None})

    with monkeypatch.context() as patch:
        patch.setattr(CycleRecorder, "prepare", prepare)
        decide(world, recorder, world.now)
    workload.refresh_from_db()
    assert workload.state == "placed" and not Recording.objects.exists()
    assert "could not be recorded" in caplog.text
    job(world, world.vision, 1, world.now)
    decide(world, recorder, world.now + SECOND)
    assert serialization.read_recording(exported(Recording.objects.get().pk)).snapshot.units, (
        "the recorder must write all parts again"
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("killed", ["before the write", "after the write"])
def test_a_decision_and_its_recording_are_committed_together_or_not_at_all(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    world = build_world(dt.datetime(2026, 3, 2, 9, 0, tzinfo=dt.UTC))
    workload, recorder = job(world, world.vision, 1, world.now), CycleRecorder()
    real = CycleRecorder.write

    def die(self: CycleRecorder, prepared: PreparedRecording, now: dt.datetime) -> None:
        if killed == "after the write":
            real(self, prepared, now)
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(CycleRecorder, "write", die)
        with pytest.raises(SystemExit):
            decide(world, recorder, world.now)
    workload.refresh_from_db()
    assert workload.state == "queued" and not Decision.objects.exists()
    assert not Recording.objects.exists() and not RecordingPart.objects.exists()
    decide(world, recorder, world.now + SECOND)
    workload.refresh_from_db()
    assert workload.state == "placed"
    assert serialization.read_recording(exported(Recording.objects.get().pk)).snapshot.units, (
        "the recorder must not count rolled-back parts as stored"
    )


def test_every_decision_has_a_recording_of_the_same_time(world: World) -> None:
    recorder = CycleRecorder()
    for second in range(3):
        at = world.now + second * SECOND
        job(world, world.vision, 4, at)
        decide(world, recorder, at)
    assert set(Decision.objects.values_list("at", flat=True)) <= set(
        Recording.objects.values_list("at", flat=True)
    )


@pytest.mark.long
def test_recordings_are_pruned_to_the_size_limit_and_the_latest_is_kept(world: World) -> None:
    recorder = CycleRecorder()
    for second in range(8):
        at = world.now + second * SECOND
        job(world, world.vision, 1, at)
        decide(world, recorder, at)
    sizes = list(Recording.objects.order_by("-pk").values_list("size_bytes", flat=True))
    assert len(sizes) == 8 and all(size > 0 for size in sizes)
    parts = RecordingPart.objects.count()
    assert recording.prune_recordings_to_size(sum(sizes)) == 0
    assert recording.prune_recordings_to_size(sum(sizes[:3])) == 5
    assert Recording.objects.count() == 3 and RecordingPart.objects.count() < parts
    for pk in Recording.objects.values_list("pk", flat=True):
        assert serialization.read_recording(exported(pk)).snapshot.units
    assert recording.prune_recordings_to_size(0) == 2
    job(world, world.vision, 1, world.now + 9 * SECOND)
    decide(world, recorder, world.now + 9 * SECOND)
    for pk in Recording.objects.values_list("pk", flat=True):
        assert serialization.read_recording(exported(pk)).snapshot.units, (
            "pruning must keep the parts that the recorder reuses"
        )


def test_parts_pruned_under_another_leader_are_written_again(world: World) -> None:
    first = CycleRecorder()
    job(world, world.vision, 1, world.now)
    decide(world, first, world.now)
    RecordingPart.objects.all().delete()  # as if every reference was pruned while another engine led
    Recording.objects.all().delete()
    Leader.objects.update(epoch=F("epoch") + 1)
    job(world, world.vision, 1, world.now + SECOND)
    decide(world, first, world.now + SECOND)
    assert serialization.read_recording(exported(Recording.objects.get().pk)).snapshot.units


def test_a_cycle_without_changes_is_not_recorded(world: World) -> None:
    recorder = CycleRecorder()
    job(world, world.vision, 1, world.now)
    decide(world, recorder, world.now)
    decide(world, recorder, world.now + SECOND)
    assert Recording.objects.count() == 1


def test_unchanged_tables_are_stored_once_even_for_another_process(world: World) -> None:
    for step, recorder in enumerate((CycleRecorder(), CycleRecorder())):
        for again in range(3):
            at = world.now + (10 * step + again) * SECOND
            job(world, world.vision, 1, at)
            decide(world, recorder, at)
    assert Recording.objects.count() == 6
    names = [parts["units"] for parts in Recording.objects.values_list("parts", flat=True)]
    assert len(set(names)) == 1
    assert RecordingPart.objects.count() < 6 * 5
    for pk in Recording.objects.values_list("pk", flat=True):
        assert serialization.read_recording(exported(pk)).snapshot.units


def test_a_replay_with_a_different_plan_fails_with_a_clear_error(world: World, tmp_path: Path) -> None:
    job(world, world.vision, 1, world.now)
    decide(world, CycleRecorder(), world.now)
    text = exported(Recording.objects.get().pk)
    path = tmp_path / "changed.json"
    path.write_text(text.replace('"now":', '"now":9'))
    with pytest.raises(CommandError, match="the plan differs from the recorded one"):
        replayed(path)
    path.write_text("nothing of the kind")
    with pytest.raises(CommandError, match="file: .*changed.json; not JSON"):
        replayed(path)
    with pytest.raises(CommandError, match="file: .*absent.json; .*No such file"):
        replayed(tmp_path / "absent.json")


def test_recordings_are_listed_by_workload(world: World) -> None:
    recorder = CycleRecorder()
    first = job(world, world.vision, 1, world.now)
    decide(world, recorder, world.now)
    job(world, world.vision, 1, world.now + SECOND)
    decide(world, recorder, world.now + SECOND)
    out = io.StringIO()
    call_command("export_snapshot", stdout=out)
    assert len(out.getvalue().splitlines()) == 2
    # The page of a workload shows its full id; lists show the short id.
    for given_id in (str(first.public_id), str(first.public_id)[:8]):
        out = io.StringIO()
        call_command("export_snapshot", f"--workload={given_id}", stdout=out)
        assert out.getvalue().splitlines() == [
            (
                f"{Recording.objects.order_by('pk')[0].pk}  2026-03-02T09:00:00.000+00:00  started 1,"
                " preempted 0, waiting 0"
            )
        ]
    for message, wrong in (
        ("allowed: the id of a workload", str(first.pk)),
        ("there is no such workload", str(uuid.uuid4())),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("export_snapshot", f"--workload={wrong}", stdout=io.StringIO())
    second = Workload.objects.exclude(pk=first.pk).get()
    Workload.objects.filter(pk=second.pk).update(
        public_id=f"{str(first.public_id)[:-1]}{int(str(first.public_id)[-1], 16) ^ 1:x}"
    )
    with pytest.raises(CommandError, match="several ids begin with this"):
        call_command("export_snapshot", f"--workload={str(first.public_id)[:8]}", stdout=io.StringIO())
    with pytest.raises(CommandError, match="number: 999999; there is no such recording"):
        exported(999_999)


def test_expired_recordings_are_deleted_and_the_remaining_ones_stay_complete(
    world: World, settings: Settings
) -> None:
    settings.GPUPOOL_RECORDING_HOURS = 24
    recorder = CycleRecorder()
    for hours in (0, 20, 30):
        at = world.now + hours * HOUR
        job(world, world.vision, 1, at)
        decide(world, recorder, at)
    later = world.now + 44 * HOUR + SECOND  # the recordings of 0 h and 20 h have expired
    assert retention.delete_expired_rows(later)[1] == 2
    remaining = Recording.objects.get()
    assert serialization.read_recording(exported(remaining.pk)).snapshot.units
    assert set(RecordingPart.objects.values_list("digest", flat=True)) >= set(remaining.parts.values())
    assert retention.delete_expired_rows(later + 40 * HOUR)[1] == 1
    assert not Recording.objects.exists() and not RecordingPart.objects.exists()


@pytest.mark.long
def test_a_part_in_use_is_kept_when_older_recordings_are_pruned(world: World) -> None:
    recorder = CycleRecorder()
    for hours in range(0, 30, 3):
        at = world.now + hours * HOUR
        job(world, world.vision, 1, at)
        decide(world, recorder, at)
    recording.prune_recordings(world.now + 20 * HOUR)
    assert Recording.objects.count() == 3
    for pk in Recording.objects.values_list("pk", flat=True):
        assert serialization.read_recording(exported(pk)).snapshot.units


def test_old_decisions_are_deleted_except_those_of_work_that_has_not_ended(
    world: World, settings: Settings
) -> None:
    settings.GPUPOOL_DECISION_DAYS = 30
    over, runs = job(world, world.vision, 1, world.now), job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    Workload.objects.filter(pk=over.pk).update(state="ended")
    assert retention.delete_expired_rows(world.now + 29 * DAY)[0] == 0
    assert retention.delete_expired_rows(world.now + 31 * DAY)[0] == 1
    assert list(Decision.objects.values_list("workload", flat=True)) == [runs.pk]
