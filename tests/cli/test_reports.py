"""Test that the command line shows the report of a run, and says what was not measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from portal.models import User
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.cli.conftest import Gpupool
from tests.telemetry.test_rollups import write_samples
from tests.telemetry.test_run_reports import held_workload
from tests.world import World, units_of


def test_a_report_is_printed_and_returned_as_json(
    gpupool: Gpupool, sign_in: Callable[[User], str], served_world: World
) -> None:
    start = served_world.now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    units = units_of(served_world.hosts["alpha"])[:2]
    job = held_workload(served_world, units, [(start, start + timedelta(hours=1))], name="fit")
    write_samples(units[0], start, 360)
    roll_up_due_buckets(served_world.now)
    sign_in(served_world.vision.member)
    shown = gpupool("report", "fit")
    assert shown.code == 0, shown.err
    lines = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in shown.out.splitlines()}
    assert lines["waited"] == "5 min"
    assert lines["utilisation"] == "50 %"
    assert lines["CPU time"] == lines["energy"] == lines["SM active"] == "not measured"
    assert lines["final"] == "no: samples may still arrive"
    body = json.loads(gpupool("report", "fit", "--json").out)
    assert body["id"] == str(job.public_id) and len(body["gpus"]) == 2


def test_work_that_held_nothing_has_no_report(
    gpupool: Gpupool, sign_in: Callable[[User], str], served_world: World
) -> None:
    sign_in(served_world.vision.member)
    gpupool("job", "run", "--gpus", "1", "--pool", "shared", "--name", "train", "--", "true")
    answer = gpupool("report", "train")
    assert answer.code != 0 and "train has held no GPU, so it has no report" in answer.err
