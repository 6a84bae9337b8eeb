"""Test requests on the command line: recurring and changed reservations, dependencies, arrays, preferences
and GPU-hours.
"""

from __future__ import annotations

import json
import shlex

from scheduler.models import JobArray, Reservation, Series, Workload
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.world import H100, World


def run_ok(gpupool: Gpupool, line: str) -> str:
    answer = gpupool(*shlex.split(line))
    assert answer.code == 0, f"{line}: {answer.err}"
    return answer.out


def test_a_reservation_is_moved_extended_and_shortened(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    made = "reservation create --pool shared --gpus 2 --model H100-80GB --name review --start"
    run_ok(gpupool, f"{made} 'tomorrow 09:00' --for 8h")
    row = Reservation.objects.get()
    assert "review is now" in run_ok(gpupool, "reservation move review --start 'tomorrow 10:00'")
    run_ok(gpupool, "reservation extend review --by 2h")
    run_ok(gpupool, "reservation shorten review --by 30m")
    row.refresh_from_db()
    assert (row.end - row.start).total_seconds() == 9.5 * 3600
    assert "Give either --by or --end." in gpupool("reservation", "extend", "review").err
    refused = gpupool("reservation", "extend", "review", "--by", "30d")
    assert refused.code == 1 and "allowed in Shared" in refused.err


def test_a_recurring_reservation_is_created_and_cancelled_as_one(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    line = (
        "reservation create --pool shared --gpus 2 --model H100-80GB --start 'tomorrow 09:00' --for 9h --name"
        " course"
    )
    assert "It fits" in run_ok(gpupool, f"{line} --every weekday --weeks 2 --dry-run")
    assert "times, the first " in run_ok(
        gpupool, f"{line} --every weekday --weeks 2 --time-zone Europe/Berlin"
    )
    assert Series.objects.get().time_zone == "Europe/Berlin"
    count = Reservation.objects.count()
    assert count in (9, 10)
    assert f"{count} occurrences are cancelled" in run_ok(gpupool, "reservation cancel-series course")
    assert gpupool(*shlex.split(f"{line} --every weekday")).code == 2


def test_dependencies_and_arrays_of_jobs_are_submitted(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    run = "job run --pool shared --gpus 1"
    run_ok(gpupool, f"{run} --model {H100} --model A100-40GB --prefer rack=r1 --spread --name train -- true")
    train = Workload.objects.get()
    assert (
        train.models_wanted == [H100, "A100-40GB"]
        and train.labels_preferred == {"rack": "r1"}
        and train.spread
    )
    run_ok(gpupool, f"{run} --after ok:train --wanted-by 'tomorrow 18:00' --name evaluate -- true")
    assert Workload.objects.get(name="evaluate").waits_for == [train.pk]
    assert "allowed: ok:ID" in gpupool(*shlex.split(f"{run} --after train -- true")).err
    run_ok(gpupool, f"{run} --array 0-9%4 --name sweep -- true")
    assert JobArray.objects.get().tasks.filter(held_back=True).count() == 6
    assert "sweep" in run_ok(gpupool, "job arrays")
    listed = json.loads(run_ok(gpupool, "job list --array sweep --json"))
    assert [row["array_index"] for row in listed] == list(range(10))
    run_ok(gpupool, f"{run} --after not_ok:sweep --after any:train --name collect -- true")
    collect = Workload.objects.get(name="collect")
    assert (collect.waits_for, collect.waits_for_arrays) == ([train.pk], [JobArray.objects.get().pk])
    assert (
        "There is no notebook or job 'swoop'" in gpupool(*shlex.split(f"{run} --after ok:swoop -- true")).err
    )
    by_prefix = str(JobArray.objects.get().public_id)[:8]
    refused = gpupool("show", by_prefix)
    assert (
        refused.code == 4
        and f"{by_prefix} is an array; its tasks: gpupool job list --array {by_prefix}" in refused.err
    )
    assert "10 tasks are cancelled" in run_ok(gpupool, "job cancel-array sweep")
    ended = run_ok(gpupool, "job list --array sweep")
    assert ended.count("cancelled") == 10 and "train" not in ended
    assert "There is no array 'swoop'" in gpupool("job", "list", "--array", "swoop").err


def test_a_quota_request_can_contain_gpu_hours(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.lead)
    asked = f"quota request --team vision --pool shared --model {H100} --guaranteed-gpus 8"
    assert "GPU-hours no limit → 500" in run_ok(gpupool, f"{asked} --gpu-hours 500 --period month")
    rows = json.loads(run_ok(gpupool, "quota list --json"))
    assert {row["gpu_hours"] for row in rows} == {None}


def test_a_dry_run_reports_the_expected_start_and_submits_nothing(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    run = f"job run --pool shared --model {H100}"
    assert "It would start now." in run_ok(gpupool, f"{run} --gpus 2 --dry-run -- true")
    assert "It would be rejected. No host is big enough" in run_ok(
        gpupool, f"{run} --gpus 9 --dry-run -- true"
    )
    firm = run_ok(gpupool, f"{run} --gpus 8 --hosts 2 --no-preemptible --dry-run -- true")
    assert "It would be queued and not start. Its team may hold at most 8 GPUs of H100 80GB" in firm
    assert not Workload.objects.exists()
    taken = run_ok(gpupool, f"{run} --gpus 8 --hosts 2 --no-preemptible --name big -- true")
    assert "Its team may hold at most 8 GPUs of H100 80GB" in taken
    assert "No host is big enough" in gpupool(*f"{run} --gpus 9 -- true".split()).err
