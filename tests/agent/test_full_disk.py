"""Test the agent on a full disk.

Running workloads continue. They can still end, be stopped, and be adopted by a restarted agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.gpu.reader import GpuInventory
from agent.host import processes
from agent.host.durable_files import read_json
from agent.host.state import StateFolder
from agent.protocol import DiagnosticWanted, GeometryPart, GeometryWanted
from agent.runs import disk_pressure
from agent.runs.disk_pressure import (
    pressure_threshold,
    run_to_stop,
    runs_over_limit,
)
from agent.runs.local_run import LocalRun
from agent.runs.manager import MIN_FREE_BYTES
from agent.runs.reconcile import StopRun
from agent.storage import disk_usage
from agent.storage.disk_usage import UNKNOWN_USAGE, count_bytes
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    """Mount a tmpfs of 80 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    await _run("mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(place))
    yield place
    await _run("umount", "-l", str(place))


QUICK_CHECKS = {
    "agent.runs.disk_pressure.DISK_CHECK_SECONDS": 0.1,
    "agent.runs.disk_pressure.SETTLE_SECONDS": 0.5,
}
CHECKS_PER_SETTLING = 8  # more than SETTLE_SECONDS / DISK_CHECK_SECONDS


@pytest.fixture
async def agent(disk: Path, make_agent: MakeAgent) -> AgentProcess:
    return await make_agent(state="disk/state", constants=QUICK_CHECKS)


async def _run(*command: str) -> None:
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0


def fill_disk(disk: Path) -> Path:
    """Write to the disk until no free byte remains. A second call fills the bytes freed in the meantime."""
    filler = disk / "fill"
    for piece in (1 << 16, 1 << 10):
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(piece))
    return filler


def is_full(edge: FakeEdge) -> bool:
    seen = edge.observed[-1].inventory
    assert seen.disk_full == any("disk is full" in note for note in seen.notes), (
        "the engine reads disk_full, people read the notes"
    )
    return seen.disk_full


async def start_running(edge: FakeEdge, command: str, generation: int = 1, **fields: object) -> str:
    wanted = job(command, generation=generation, **fields)  # type: ignore[arg-type]
    await edge.want(wanted)
    await edge.until(lambda: "begun" in edge.log(wanted.run))
    return wanted.run


@pytest.mark.long
async def test_a_full_disk_rejects_new_work_and_ends_no_running_workload(
    edge: FakeEdge, make_agent: MakeAgent, disk: Path
) -> None:
    edge.lease_seconds = 4.0
    agent = await make_agent(state="disk/state")
    run = await start_running(edge, "echo begun; while :; do echo more; sleep 0.05; done")
    filler = fill_disk(disk)
    await edge.until(lambda: is_full(edge))
    edge.commits = False  # the agent deletes committed batches, which would free space
    fill_disk(disk)
    await edge.want(job("exit 0", generation=2))
    refused = await edge.until_state("run-2", "ended")
    assert refused.outcome == "start_failed" and "the disk of the host is full" in refused.step
    assert refused.host_full, "a full host does not use up a try of the workload"
    await agent.outlive_lease(run)
    assert (await edge.until_state(run, "running")).outcome == ""
    filler.unlink()
    await edge.until(lambda: not is_full(edge))
    assert (await edge.until_state(run, "running")).outcome == ""
    assert await agent.end() == 0


async def test_a_log_marks_where_output_was_lost_to_a_full_disk(
    edge: FakeEdge, agent: AgentProcess, disk: Path, tmp_path: Path
) -> None:
    progress, log = tmp_path / "rounds", agent.state / "runs" / "run-1" / "log"
    loud = (
        f"echo begun; while :; do head -c 9000 /dev/zero | tr '\\0' x; echo; echo >> {progress}; sleep 0.05;"
        " done"
    )
    run = await start_running(edge, loud)
    await edge.until(progress.exists)
    edge.commits = False  # the agent deletes committed batches, which would free space

    def written() -> int:
        return sum(path.stat().st_size for path in log.iterdir())

    # The output of 12 rounds does not fit in the pipe (64 KiB). If nothing of it is written, at least four
    # rounds are lost. An earlier try may leave a smaller gap.
    tries = 0
    while True:
        tries += 1
        fill_disk(disk)
        before, until = written(), progress.stat().st_size + 12
        await edge.until(lambda until=until: progress.stat().st_size >= until)  # type: ignore[misc]
        if written() == before:
            break
    (disk / "fill").unlink()

    def large_gaps() -> list[int]:
        found = re.findall(r"\[(\d+) bytes are missing here: they could not be written\]\n", edge.log(run))
        return [int(lost) for lost in found if int(lost) >= 4 * 9001]

    await edge.until(lambda: bool(large_gaps()))
    assert len(large_gaps()) <= tries, "a gap is reported once"


async def test_a_workload_is_stopped_and_frees_its_gpu_on_a_full_disk(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    unit = agent.units[0]
    edge.commits = False  # the agent deletes committed batches, which would free space
    run = await start_running(edge, "echo begun; sleep 300", units=[unit])
    fill_disk(disk)
    await edge.until(lambda: is_full(edge))
    fill_disk(disk)
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended")).outcome == "cancelled"
    # The shim reports the end just before it exits. A shim that stayed would keep the GPU locked.
    shim = agent.shim(run)
    await edge.until(lambda: not processes.is_alive(shim["pid"], shim["start_ticks"]))


async def test_a_notice_is_delivered_and_withdrawn_on_a_full_disk(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await start_running(
        edge, f"trap 'mkdir {disk.parent}/told' USR1; echo begun; while :; do sleep 0.1; done"
    )
    fill_disk(disk)
    await edge.change(run, verb="notice", code="evicted_for_reservation", stop_at=2e9)
    await edge.until(lambda: (disk.parent / "told").exists())
    await edge.change(run, verb="start")
    order = agent.state / "runs" / run / "order.json"
    await edge.until(lambda: not json.loads(order.read_text()).get("notice"))
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended")).outcome == "cancelled"


async def test_a_full_disk_stays_full_until_free_space_is_well_above_the_threshold(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    """Check that "full" begins and ends at two different thresholds.

    With one threshold, the state could change often, and each change causes a write and a report.
    """
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(8 << 20))
    with (disk / "fill").open("ab", buffering=0) as file:
        while shutil.disk_usage(disk).free >= MIN_FREE_BYTES:
            file.write(bytes(1 << 16))
    await edge.until(lambda: is_full(edge))
    os.truncate(reserve, 7 << 20)  # only a little above the threshold
    reports = len(edge.observed)
    await edge.until(lambda: len(edge.observed) > reports + 3)
    assert shutil.disk_usage(disk).free >= MIN_FREE_BYTES
    assert all(seen.inventory.disk_full for seen in edge.observed[reports:])
    await edge.want(job("exit 0"))
    assert (await edge.until_state("run-1", "ended")).host_full
    reserve.unlink()
    (disk / "fill").unlink()
    await edge.until(lambda: not is_full(edge))


HIDDEN_FILE = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def fill():
    global file
    file = os.open("fill", os.O_RDWR | os.O_CREAT)
    os.unlink("fill")
    for _ in range(40):
        os.write(file, bytes(1 << 20))
def fill_in_own_file_table():
    libc.unshare(0x400)  # CLONE_FILES
    fill()
    time.sleep(300)
"""
MAPPED = HIDDEN_FILE + (
    "fill(); libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0)); os.close(file);"
    " time.sleep(300)"
)
THREAD = HIDDEN_FILE + "threading.Thread(target=fill_in_own_file_table).start(); time.sleep(300)"
FIRST_ENDED = HIDDEN_FILE + "threading.Thread(target=fill_in_own_file_table).start(); libc.pthread_exit(None)"

FILLERS = {
    "a file that is only mapped": f"exec {sys.executable} -c {shlex.quote(MAPPED)}",
    "a thread with files of its own": f"exec {sys.executable} -c {shlex.quote(THREAD)}",
    "a file of a process whose first thread has ended": (
        f"{sys.executable} -c {shlex.quote(FIRST_ENDED)}; sleep 300"
    ),
    "a file": "dd if=/dev/zero of=$TMPDIR/fill bs=4k; sleep 300",
    "a file of a process that ignores TERM": (
        "trap '' TERM; dd if=/dev/zero of=$TMPDIR/fill bs=4k; while :; do sleep 1; done"
    ),
    "a deleted file": "exec 9>$TMPDIR/fill; rm $TMPDIR/fill; dd if=/dev/zero bs=4k >&9; sleep 300",
    "a file in the folder of its socket": "dd if=/dev/zero of=$(dirname $GPUPOOL_DOOR)/fill bs=4k; sleep 300",
    "a deleted file whose path is too long for /proc": (
        f"for i in $(seq 25); do mkdir {'d' * 200}; cd {'d' * 200}; done;"
        " exec 9>fill; rm fill; dd if=/dev/zero bs=4k >&9; sleep 300"
    ),
    "a deeply nested file": (
        "for i in $(seq 300); do mkdir d; cd d; done; cd $TMPDIR;"
        " for i in $(seq 300); do mkdir e; cd e; done; dd if=/dev/zero of=fill bs=4k; sleep 300"
    ),
}
SHORT_FILLERS = ("a file", "a deleted file", "a file of a process that ignores TERM")


@pytest.mark.parametrize(
    "filler",
    [
        pytest.param(filler, id=name, marks=[] if name in SHORT_FILLERS else [pytest.mark.long])
        for name, filler in FILLERS.items()
    ],
)
async def test_a_workload_that_fills_the_disk_is_stopped_and_others_continue(
    edge: FakeEdge, agent: AgentProcess, filler: str
) -> None:
    neighbour = await start_running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/small bs=1k count=64; sleep 300", generation=2
    )
    run = await start_running(edge, f"echo begun; cd $TMPDIR; {filler}", generation=3)
    ended = await edge.until_state(run, "ended", 30.0)
    assert ended.outcome == "out_of_disk" and "its temporary files grew most: " in ended.step, ended
    assert ended.host_full, "the reason must be the low disk, not the limit of the run"
    await edge.until(lambda: not is_full(edge))
    await agent.after_steps("disk_check", 2 * CHECKS_PER_SETTLING)
    assert (await edge.until_state(neighbour, "running")).outcome == ""
    await edge.want(job("exit 0", generation=4))
    assert (await edge.until_state("run-4", "ended")).outcome == "finished"


async def test_a_workload_with_few_files_is_not_stopped_for_files_of_others(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await start_running(
        edge, "dd if=/dev/zero of=$TMPDIR/small bs=1M count=2; echo begun; sleep 300", generation=2
    )
    with (disk / "log of something else").open("ab", buffering=0) as file:
        while shutil.disk_usage(disk).free > pressure_threshold(80 << 20) - (
            1 << 20
        ):  # the run uses as many bytes as are missing, but its usage has not grown
            file.write(bytes(1 << 16))
    await edge.until(lambda: is_full(edge))
    await agent.after_steps("disk_check", CHECKS_PER_SETTLING)
    assert (await edge.until_state(run, "running")).outcome == ""


async def test_no_run_is_stopped_while_files_of_an_ended_run_are_removed(
    edge: FakeEdge, make_agent: MakeAgent, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "rm"  # an rm that is as slow as with a million files
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.1; done\nexec /bin/rm "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    agent = await make_agent(state="disk/state", constants=QUICK_CHECKS)
    neighbour = await start_running(
        edge, "dd if=/dev/zero of=$TMPDIR/small bs=1M count=6; echo begun; sleep 300", generation=2
    )
    run = await start_running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=12; sleep 300", generation=3
    )
    assert (await edge.until_state(run, "ended", 30.0)).outcome == "out_of_disk"
    await agent.after_steps("disk_check", 2 * CHECKS_PER_SETTLING)
    assert list((disk / "state" / "trash").rglob("fill")), (
        "the removed files must still exist for this test to prove anything"
    )
    assert (await edge.until_state(neighbour, "running")).outcome == ""
    (tmp_path / "go").touch()


@pytest.mark.long
async def test_a_workload_over_the_limit_of_temporary_files_is_stopped(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = await make_agent("--most-tmp", "16")
    neighbour = await start_running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/small bs=1M count=8; sleep 300", generation=2
    )
    run = await start_running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/large bs=1M count=24; sleep 300", generation=3
    )
    ended = await edge.until_state(run, "ended", 30.0)
    assert ended.outcome == "out_of_disk"
    # The agent may measure the file while it is still written.
    taken = re.fullmatch(r"its temporary files took (\d+) MiB; allowed on this host: 16 MiB", ended.step)
    assert taken is not None and 16 <= int(taken[1]) <= 24, ended.step
    assert not ended.host_full, "the run exceeded its own limit"
    assert (await edge.until_state(neighbour, "running")).outcome == ""
    await agent.kill()
    reports = len(edge.observed)
    await agent.start()
    assert [seen.step for seen in edge.observed[reports].runs if seen.run == run] == [ended.step], (
        "the next agent reports the same reason"
    )


@pytest.mark.parametrize(
    ("used", "missing", "stopped_run"),
    [
        ({"a": 3, "b": 5}, 3, "b"),
        ({"a": 3, "b": 5}, -1, ""),  # the disk has free space
        ({"a": 2, "b": 2}, 5, ""),  # something else filled the disk
        # Each run took less than the shortage, but both together caused the shortage.
        ({"a": 2, "b": 2}, 3, "a"),
        ({"a": 1, "b": 1}, 1, ""),  # no run has grown enough to be the cause
        ({"a": 2, "b": UNKNOWN_USAGE}, 3, "b"),
        ({"a": 3, "b": UNKNOWN_USAGE}, 3, "a"),  # run a alone explains the shortage
        ({"a": UNKNOWN_USAGE, "b": UNKNOWN_USAGE}, 3, "b"),  # both are unknown, so the younger run is stopped
        ({"a": 1, "b": UNKNOWN_USAGE}, -1, ""),
        ({}, 1, ""),
    ],
)
def test_the_run_that_took_most_is_stopped_when_the_disk_runs_low(
    used: dict[str, int], missing: int, stopped_run: str
) -> None:
    assert run_to_stop(used, {}, missing, 2) == stopped_run


@pytest.mark.parametrize(
    ("before", "used", "stopped_run"),
    [
        ({"idle": 50, "filler": 45}, {"idle": 50, "filler": 49}, "filler"),
        ({"idle": 50}, {"idle": 50, "filler": 9}, "filler"),  # filler started after the first snapshot
        ({"idle": 50}, {"idle": 50}, ""),  # no run has grown
        ({"idle": 50, "filler": 45}, {"idle": 51, "filler": 44}, ""),
        (
            {"idle": 50, "tidy": 90},
            {"idle": 53, "tidy": 10},
            "idle",
        ),  # files removed by one run do not offset the growth of another
    ],
)
def test_the_run_that_grew_is_stopped_and_not_the_large_idle_run(
    before: dict[str, int], used: dict[str, int], stopped_run: str
) -> None:
    assert run_to_stop(used, before, 3, 2) == stopped_run


def test_an_uncounted_run_is_stopped_if_counted_runs_do_not_explain_the_loss() -> None:
    used = {"honest": 3, "hidden": UNKNOWN_USAGE}
    assert run_to_stop(used, {}, 3, 2, gone=5) == "honest"
    assert run_to_stop(used, {}, 3, 2, gone=50) == "hidden", "no counted run explains the loss"
    assert run_to_stop({"honest": 3}, {}, 3, 2, gone=50) == "honest"
    before = {"slow": UNKNOWN_USAGE, "filler": 1}
    assert run_to_stop({"slow": 900, "filler": 9}, before, 3, 2, gone=9) == "filler", (
        "the growth of slow is unknown, because its earlier size is unknown"
    )
    assert run_to_stop({"slow": UNKNOWN_USAGE, "filler": UNKNOWN_USAGE}, before, 3, 2, gone=9) == "filler"


def fill_command(megabytes: int) -> str:
    """Return the command of a job that writes `megabytes` MB to $TMPDIR and then sleeps."""
    return f"dd if=/dev/zero of=$TMPDIR/fill bs=1M count={megabytes}; echo begun; sleep 300"


async def test_an_adopted_run_is_not_stopped_if_another_run_grew(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    idle = await start_running(edge, fill_command(8), generation=2)
    await agent.kill()
    await agent.start()
    await edge.until(lambda: last_snapshot(agent).get(idle, 0) >= 8 << 20)
    run = await start_running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=7; sleep 300", generation=3
    )
    (disk / "log of something else").write_bytes(bytes(2 << 20))
    assert (await edge.until_state(run, "ended", 30.0)).outcome == "out_of_disk"
    assert (await edge.until_state(idle, "running")).outcome == ""


async def test_a_run_that_fills_the_disk_without_an_agent_is_found_by_the_next_agent(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    idle = await start_running(edge, fill_command(8), generation=2)
    await agent.kill()
    await agent.start()  # after this start, the snapshot contains the bytes of the idle run
    await edge.until(lambda: last_snapshot(agent).get(idle, 0) >= 8 << 20)
    now = disk / "now"
    late = (
        f"echo begun; until [ -e {now} ]; do sleep 0.1; done; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=7;"
        " sleep 300"
    )
    run = await start_running(edge, late, generation=3)
    await agent.kill()
    now.write_bytes(bytes(2 << 20))
    fill_disk = agent.state / "runs" / run / "tmp" / "fill"
    await edge.until(lambda: fill_disk.exists() and fill_disk.stat().st_size == 7 << 20)
    await agent.start()
    assert (await edge.until_state(run, "ended", 30.0)).outcome == "out_of_disk"
    assert (await edge.until_state(idle, "running")).outcome == ""


def last_snapshot(agent: AgentProcess) -> dict[str, int]:
    """Return the bytes of each run in the last stored snapshot."""
    kept: dict[str, int] = (read_json(agent.state / "scratch.json") or {}).get("bytes", {})
    return kept


@pytest.mark.long
async def test_a_restarted_agent_stops_no_second_run_while_the_first_is_stopping(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    other = await start_running(edge, fill_command(6), generation=2)
    stubborn = (
        "trap '' TERM; echo begun; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=12; while :; do sleep 0.1;"
        " done"
    )
    run = await start_running(edge, stubborn, generation=3)
    await edge.until_state(run, "stopping")
    await agent.kill()
    # An earlier agent version stored no snapshot. Then all bytes of both runs count as recent growth.
    (agent.state / "scratch.json").unlink()
    await agent.start()
    assert (await edge.until_state(run, "ended")).outcome == "out_of_disk"
    await edge.until(lambda: not is_full(edge))
    assert (await edge.until_state(other, "running")).outcome == ""


async def test_a_stuck_stopping_run_does_not_prevent_a_second_stop_forever(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    watch, has = make_disk_pressure(disk, stopped, monkeypatch, {"stuck": 20 << 20, "second": 10 << 20})
    (disk / "fill").write_bytes(bytes(30 << 20))
    await watch.look(1.0)
    await watch.look(40.0)
    assert stopped == ["stuck"], "bytes of a run that is already stopping are not blamed on another run"
    has["second"] = 30 << 20
    (disk / "fill").write_bytes(bytes(50 << 20))
    await watch.look(51.0)
    assert stopped == ["stuck", "second"]


async def test_a_second_run_is_stopped_only_after_the_grace_period_of_the_first(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    watch, has = make_disk_pressure(disk, stopped, monkeypatch, {"first": 20 << 20, "second": 10 << 20})
    (disk / "fill").write_bytes(bytes(30 << 20))
    await watch.look(1.0)
    has["second"] = 30 << 20
    (disk / "fill").write_bytes(bytes(50 << 20))
    await watch.look(20.0)
    assert stopped == ["first"]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        "{}",
        '{"bytes": null, "files": {}, "free_bytes": 1, "free_files": 1}',
        '{"bytes": {"run-1": "much"}, "files": {}}',
    ],
)
def test_a_damaged_disk_snapshot_is_ignored(tmp_path: Path, damaged: str) -> None:
    kept = tmp_path / "scratch.json"
    kept.write_text('{"bytes": {"run-1": 5}, "files": {"run-1": 2}, "free_bytes": 7, "free_files": 3}')
    assert disk_pressure._read_snapshot(kept) == disk_pressure.DiskSnapshot({"run-1": 5}, {"run-1": 2}, 7, 3)
    kept.write_text(damaged)
    assert disk_pressure._read_snapshot(kept) is None


async def test_a_run_that_fills_the_disk_before_its_first_snapshot_is_stopped(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    watch, _ = make_disk_pressure(disk, stopped, monkeypatch, {"neighbour": 6 << 20, "unseen": 12 << 20})
    watch._runs.runs["unseen"].shim = {}
    (disk / "fill").write_bytes(bytes(18 << 20))
    await watch.look(1.0)
    assert stopped == ["unseen"]


def make_disk_pressure(
    disk: Path, stopped: list[str], monkeypatch: pytest.MonkeyPatch, has: dict[str, int]
) -> tuple[disk_pressure.DiskPressure, dict[str, int]]:
    """Return a DiskPressure over fake runs with the sizes in `has`. A stopped run never ends."""
    runs = {
        name: LocalRun(disk / name, {"run": name, "kind": "job"}, shim={"started_at": 1.0}) for name in has
    }

    def stop(order: StopRun) -> None:
        stopped.append(order.run)
        runs[order.run].stop_ordered = True

    trash, hardware = SimpleNamespace(is_emptied=False), GpuInventory(gpus=[])
    here = SimpleNamespace(
        state=SimpleNamespace(folder=disk), runs=runs, trash=trash, stop=stop, hardware=hardware
    )
    monkeypatch.setattr(disk_pressure, "measure_bytes", lambda there: {run.id: has[run.id] for run in there})
    return disk_pressure.DiskPressure(here, 0), has  # type: ignore[arg-type]


def test_only_deleted_open_files_are_read_with_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that all other files are not accessed, because their file system may hang, e.g. NFS homes."""
    asked: list[str] = []
    stat = os.stat

    def watched(path: str, *more: object, **named: object) -> os.stat_result:
        asked.append(os.readlink(path) if str(path).startswith("/proc/") else "")
        return stat(path, *more, **named)  # type: ignore[arg-type]

    (tmp_path / "gone").write_bytes(bytes(5000))
    with (tmp_path / "kept").open("w"), (tmp_path / "gone").open() as gone:
        (tmp_path / "gone").unlink()
        monkeypatch.setattr(os, "stat", watched)
        found = disk_usage.deleted_open_files(tmp_path, [os.getpid()])
        assert os.fstat(gone.fileno()).st_ino in {seen.st_ino for seen in found}
    assert not [path for path in asked if path and not path.endswith(" (deleted)")]


async def test_snapshots_of_disk_usage_are_kept_for_minutes(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = {"idle": 30 << 20, "filler": 1 << 20}
    runs = {
        name: LocalRun(disk / name, {"run": name, "kind": "job"}, shim={"started_at": 1.0}) for name in has
    }
    stopped: list[str] = []
    here = SimpleNamespace(
        state=SimpleNamespace(folder=disk),
        runs=runs,
        trash=SimpleNamespace(is_emptied=False),
        hardware=GpuInventory(gpus=[]),
        stop=lambda stop: stopped.append(stop.run),
    )
    monkeypatch.setattr(disk_pressure, "measure_bytes", lambda there: dict(has))
    watch = disk_pressure.DiskPressure(here, 0)  # type: ignore[arg-type]
    for now in (1.0, 302.0):
        await watch.look(now)
    has["filler"] = 20 << 20
    (disk / "fill").write_bytes(bytes(20 << 20))
    await watch.look(604.0)
    assert stopped == ["filler"]


async def test_files_are_not_recounted_at_every_look_on_a_disk_that_stays_low(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []
    now = 0.0

    def measured(there: list[LocalRun]) -> dict[str, int]:
        counted.append(now)
        return {each.id: 1 << 20 for each in there}

    monkeypatch.setattr(disk_pressure, "measure_bytes", measured)
    run = LocalRun(disk / "run-1", {"run": "run-1", "kind": "job"}, shim={"started_at": 1.0})
    here = SimpleNamespace(
        state=SimpleNamespace(folder=disk),
        runs={run.id: run},
        trash=SimpleNamespace(is_emptied=False),
        hardware=GpuInventory(gpus=[]),
    )
    watch = disk_pressure.DiskPressure(here, 0)  # type: ignore[arg-type]
    with (disk / "log of something else").open("ab", buffering=0) as file:
        file.write(bytes(20 << 20))
        for now in (0.5, 1.0, 9.0, 10.6, 11.0):
            await watch.look(now)
        assert counted == [0.5, 0.5, 10.6], "the first look stores a snapshot"
        file.write(
            bytes(pressure_threshold(80 << 20) // disk_pressure.MIN_EVICTED_DIVISOR)
        )  # enough that a run could have caused the shortage
        now = 11.5
        await watch.look(now)
        assert counted == [0.5, 0.5, 10.6, 11.5]


def test_the_limit_applies_per_run_and_pressure_starts_before_a_full_disk() -> None:
    limits = {"a": 2 << 30, "b": 2 << 30, "c": 2 << 30, "d": 0}
    taken = {"a": 3 << 30, "b": 5 << 30, "c": 1 << 30, "d": 9 << 30}
    assert list(runs_over_limit(taken, limits)) == ["a", "b"]
    assert [pressure_threshold(total << 30) >> 20 for total in (1, 40, 1000)] == [64, 2048, 4096]


UNNAMED_FILES = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
while True:
    try:
        os.open("f", os.O_CREAT | os.O_RDWR)
        os.unlink("f")
    except OSError:
        time.sleep(1)
"""


@pytest.mark.parametrize(
    "command",
    [
        "for i in $(seq 3000); do echo; done | split -l 1 -a 4; sleep 300",
        f"exec {sys.executable} -c {shlex.quote(UNNAMED_FILES)}",
    ],
    ids=["named files", "deleted files"],
)
async def test_a_workload_that_exhausts_the_inodes_is_stopped(
    edge: FakeEdge, agent: AgentProcess, disk: Path, command: str
) -> None:
    await _run("mount", "-o", "remount,nr_inodes=4000", str(disk))
    neighbour = await start_running(edge, "echo begun; touch $TMPDIR/f; sleep 300", generation=2)
    run = await start_running(edge, f"echo begun; cd $TMPDIR; {command}", generation=3)
    ended = await edge.until_state(run, "ended", 30.0)
    assert ended.outcome == "out_of_disk" and "it created most of the new files: " in ended.step, ended
    await edge.until(lambda: not is_full(edge))
    assert (await edge.until_state(neighbour, "running")).outcome == ""


@pytest.mark.long
async def test_a_stop_that_cannot_be_written_takes_effect_when_the_lease_expires(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    edge.lease_seconds = 6.0
    agent = await make_agent()
    run = await start_running(edge, "echo begun; sleep 300")
    other = await start_running(edge, "echo begun; sleep 300", generation=2)
    order = agent.state / "runs" / run / "order.json"
    order.unlink()
    order.mkdir()  # a directory at this path makes every write of the order fail
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended")).outcome == "lease_lost"
    assert (await edge.until_state(other, "running")).outcome == ""


async def test_an_agent_restarts_on_a_full_disk_and_reports_lost_runs(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await start_running(edge, "echo begun; sleep 300")
    lost = await start_running(edge, "echo begun; sleep 300", generation=2)
    (
        agent.state / "runs" / lost / "exit.room"
    ).unlink()  # as with an earlier agent version, which reserved no space for the exit record
    await agent.kill()
    shim = agent.shim(lost)
    for pid in [shim["pid"], *(each.pid for each in processes.descendants(processes.scan(), shim["pid"]))]:
        os.kill(pid, signal.SIGKILL)
    fill_disk(disk)
    await agent.start()
    await edge.until(lambda: is_full(edge))
    assert (await edge.until_state(run, "running")).outcome == ""
    (disk / "fill").unlink()
    assert (await edge.until_state(lost, "ended")).outcome == "host_lost"


async def test_an_upgraded_agent_on_a_full_disk_replaces_all_tools_or_none(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await start_running(edge, "echo begun; sleep 300")
    await agent.kill()
    tools = [path for path in (agent.state / "tools").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    before = {path: path.read_bytes() + b"# of an earlier version\n" for path in tools}
    for path, content in before.items():
        path.write_bytes(content)
    edge.commits = False
    fill_disk(disk)
    await agent.start()
    assert {path: path.read_bytes() for path in before} == before, (
        "tools are replaced all together or not at all"
    )
    await edge.until(
        lambda: any(
            "tools of this version could not be installed" in note
            for note in edge.observed[-1].inventory.notes
        )
    )
    assert (await edge.until_state(run, "running")).outcome == ""
    (disk / "fill").unlink()
    await edge.until(lambda: not is_full(edge))
    await edge.want(job("exit 0", generation=2))
    assert (await edge.until_state("run-2", "ended")).outcome == "finished"
    assert not any(b"earlier" in path.read_bytes() for path in before), (
        "the tools are replaced once the disk has free space"
    )
    await edge.until(
        lambda: not any("could not be installed" in note for note in edge.observed[-1].inventory.notes)
    )


async def test_no_gpu_fails_and_no_diagnostic_is_lost_on_a_full_disk(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    edge.commits = False
    fill_disk(disk)
    await edge.until(lambda: is_full(edge))
    fill_disk(disk)
    gpu, other = edge.observed[-1].inventory.gpus[:2]
    edge.geometries = [
        GeometryWanted("split", gpu.uuid, [GeometryPart("3g.40gb", 0), GeometryPart("3g.40gb", 4)], 30.0)
    ]
    edge.diagnostics = [DiagnosticWanted("look", other.uuid)]
    await edge.push()
    await edge.until(lambda: [one.state for one in edge.observed[-1].geometries] == ["failed"])
    assert edge.observed[-1].geometries[0].detail == "nothing was changed: No space left on device"
    await edge.until(
        lambda: [one.state for one in edge.observed[-1].diagnostics] in (["stopped"], ["passed"])
    )


def test_a_credential_received_on_a_full_disk_is_stored(disk: Path) -> None:
    """Check that the new credential is stored, because the server rejects the previous one from then on."""
    state = StateFolder(disk / "state")
    state.remember(host="h1", credential="gpa.1.first", expires_at=1.0)
    fill_disk(disk)
    state.remember(host="h1", credential="gpa.1.the-second-one", expires_at=2.0)
    kept = json.loads((disk / "state" / "identity.json").read_text())
    assert (kept["credential"], kept["instance"]) == ("gpa.1.the-second-one", state.identity.instance)


async def test_a_run_whose_shim_was_killed_ends_on_a_full_disk(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await start_running(edge, "echo begun; sleep 300")
    edge.commits = False
    fill_disk(disk)
    os.kill(agent.shim(run)["pid"], signal.SIGKILL)
    assert (await edge.until_state(run, "ended")).outcome == "host_lost"


async def test_a_disk_without_free_inodes_is_full(edge: FakeEdge, agent: AgentProcess, disk: Path) -> None:
    await _run("mount", "-o", "remount,nr_inodes=1500", str(disk))
    await edge.until(lambda: is_full(edge))
    await edge.want(job("exit 0"))
    refused = await edge.until_state("run-1", "ended")
    assert refused.host_full and "the disk of the host is full" in refused.step


def test_an_unreadable_folder_makes_usage_unknown_for_an_agent_without_root() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "out").mkdir()
        (folder / "tmp" / "closed").mkdir(parents=True)
        (folder / "tmp" / "closed" / "fill").write_bytes(bytes(1 << 20))
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)
        read, write = os.pipe()
        for mode in (0o700, 0o300):
            os.chmod(folder / "tmp" / "closed", mode)
            child = os.fork()
            if child == 0:
                try:
                    os.setresuid(65534, 65534, 65534)
                    os.write(write, f"{count_bytes([folder / 'tmp', folder / 'out'])} ".encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        os.close(write)
        with open(read) as answers:
            seen, hidden = map(int, answers.read().split())
        assert 1 << 20 <= seen < 2 << 20
        assert hidden == UNKNOWN_USAGE
