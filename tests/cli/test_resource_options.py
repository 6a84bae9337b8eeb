"""Test requests for CPU, memory and GPU properties on the command line, and the log of each gang member."""

from __future__ import annotations

import shlex

import click
import pytest

from cli.param_types import ComputeCapabilityType, CoresType, MemoryType
from scheduler.models import Host, Reservation, Run, Workload
from scheduler.runs import logs
from tests.cli.conftest import Gpupool
from tests.cli.test_cli import SignIn
from tests.cli.test_requests import run_ok
from tests.world import World

GIB = 1024
NEEDS = (
    "--cpus 2.5 --memory 64G --min-memory 40 --min-compute-capability 9.0 --nvlink --label rack=r1 --prefer"
    " site=north"
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (CoresType(), "8", 8000),
        (CoresType(), "2.5", 2500),
        (CoresType(), "0", None),
        (CoresType(), "-1", None),
        (CoresType(), "1e9", None),
        (CoresType(), "many", None),
        (MemoryType(), "64", 64 * GIB),
        (MemoryType(), "64G", 64 * GIB),
        (MemoryType(), "64GiB", 64 * GIB),
        (MemoryType(), "512m", 512),
        (MemoryType(), "1.5T", 1536 * GIB),
        (MemoryType(), "0", None),
        (MemoryType(), "64 bananas", None),
        (MemoryType(), "9" * 40, None),
        (ComputeCapabilityType(), "8.0", 80),
        (ComputeCapabilityType(), "9", 90),
        (ComputeCapabilityType(), "8.9", 89),
        (ComputeCapabilityType(), "sm_80", None),
        (ComputeCapabilityType(), "8.99", None),
    ],
)
def test_sizes_are_parsed(kind: click.ParamType[int], text: str, value: int | None) -> None:
    if value is not None:
        assert kind.convert(text, None, None) == value
        return
    with pytest.raises(click.BadParameter, match="allowed"):
        kind.convert(text, None, None)


def test_notebooks_jobs_and_reservations_store_their_requirements(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    Host.objects.filter(name="alpha").update(labels={"rack": "r1"}, cpu_milli=64_000, memory_mib=512 * GIB)
    Host.objects.exclude(name="alpha").update(cpu_milli=32_000, memory_mib=512 * GIB)
    run_ok(gpupool, f"job run --pool shared --gpus 2 {NEEDS} --name job -- true")
    run_ok(gpupool, f"notebook launch --pool shared --gpus 2 {NEEDS} --name notebook")
    run_ok(
        gpupool,
        f"reservation create --pool shared --gpus 2 {NEEDS} --name window --start 'tomorrow 09:00' --for 2h",
    )
    rows: list[Workload | Reservation] = [*Workload.objects.all(), Reservation.objects.get()]
    assert len(rows) == 3
    for row in rows:
        assert (row.cpu_milli, row.memory_mib, row.min_memory_mib) == (2500, 64 * GIB, 40 * GIB)
        assert (row.min_compute_capability, row.nvlink) == (90, True)
        assert (row.labels_required, row.labels_preferred) == ({"rack": "r1"}, {"site": "north"})
    shown = run_ok(gpupool, "show job")
    assert (
        "2.5 cores and 64 GiB, GPUs of at least 40 GiB, compute capability 9.0 or higher,"
        " one NVLink group, rack=r1"
    ) in shown
    refused = gpupool(*shlex.split("job run --pool shared --gpus 2 --cpus 96 --name big -- true"))
    assert (
        refused.code == 1
        and "No host has 96 CPU cores in addition to 2 GPUs: the most that one has is 64 CPU cores"
        in refused.err
    )
    late = "job run --pool shared --gpus 1 --wanted-by 'tomorrow 00:00' --max-runtime 7d --dry-run -- true"
    assert "Its deadline is" in run_ok(gpupool, late)


def test_each_member_of_a_gang_has_a_log(gpupool: Gpupool, sign_in: SignIn, served_world: World) -> None:
    sign_in(served_world.vision.member)
    run_ok(gpupool, "job run --pool shared --gpus 1 --hosts 2 --name gang -- true")
    gang = Workload.objects.get()
    for rank, name in enumerate(("alpha", "beta")):
        run = Run.objects.create(
            workload=gang,
            attempt=1,
            rank=rank,
            host=served_world.hosts[name],
            generation=1,
            placed_at=served_world.now,
            state="ended",
        )
        logs.append_log(run.public_id, 0, f"I am {rank}\n")
    Workload.objects.filter(pk=gang.pk).update(state="ended", outcome="finished", attempt=1)
    assert run_ok(gpupool, "job logs gang") == "I am 0\n"
    assert run_ok(gpupool, "job logs gang --rank 1") == "I am 1\n"
    assert run_ok(gpupool, "job logs gang --rank 1 --follow") == "I am 1\n"
    for line in ("job logs gang --rank 2", "job logs gang --rank 2 -f"):
        refused = gpupool(*shlex.split(line))
        assert refused.code == 2 and "--rank 2 of gang; allowed: 0 to 1." in refused.err


def test_a_gang_on_hosts_without_a_shared_network_gets_a_warning(
    gpupool: Gpupool, sign_in: SignIn, served_world: World
) -> None:
    sign_in(served_world.vision.member)
    Host.objects.update(hardware={"reported": {"gpus": [], "network": "private"}})
    words = "do not let a job's hosts reach each other over the network"
    for line in (
        "job run --pool shared --gpus 1 --hosts 2 --dry-run --name gang -- true",
        "job run --pool shared --gpus 1 --hosts 2 --name gang -- true",
        "job run --pool shared --gpus 1 --hosts 2 --array 0-1 --name gangs -- true",
        "reservation create --pool shared --gpus 1 --hosts 2 --start 'tomorrow 09:00' --for 1h --dry-run",
    ):
        assert words in run_ok(gpupool, line)
    assert words not in run_ok(gpupool, "job run --pool shared --gpus 1 --dry-run --name one -- true")
