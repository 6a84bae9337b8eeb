"""A disk without room: what runs goes on, and everything can still be stopped, ended and taken over."""

from __future__ import annotations

import asyncio
import json
import os
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
    """A disk of 80 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    await _run("mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(place))
    yield place
    await _run("umount", "-l", str(place))


@pytest.fixture
async def agent(disk: Path, make_agent: MakeAgent) -> AgentProcess:
    return await make_agent(state="disk/state")


async def _run(*command: str) -> None:
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0


def fill(disk: Path) -> Path:
    """Take all the room there is, to the last byte; once more what has come free since."""
    filler = disk / "fill"
    for piece in (1 << 16, 1 << 10):
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(piece))
    return filler


def is_full(edge: FakeEdge) -> bool:
    seen = edge.observed[-1].inventory
    assert seen.disk_full == any("disk is full" in note for note in seen.notes), (
        "the engine reads the one, people the other"
    )
    return seen.disk_full


async def running(edge: FakeEdge, command: str, generation: int = 1, **fields: object) -> str:
    wanted = job(command, generation=generation, **fields)  # type: ignore[arg-type]
    await edge.want(wanted)
    await edge.until(lambda: "begun" in edge.log(wanted.run))
    return wanted.run


async def test_a_full_disk_refuses_new_work_says_so_and_ends_nothing_that_runs(
    edge: FakeEdge, make_agent: MakeAgent, disk: Path
) -> None:
    edge.lease_seconds = 6.0
    agent = await make_agent(state="disk/state")
    run = await running(edge, "echo begun; while :; do echo more; sleep 0.05; done")
    filler = fill(disk)
    await edge.until(lambda: is_full(edge))
    edge.commits = False  # no batch of samples leaves room
    fill(disk)
    await edge.want(job("exit 0", generation=2))
    refused = await edge.until_state("run-2", "ended")
    assert refused.outcome == "start_failed" and "the disk of the host is full" in refused.step
    assert refused.host_full, "which is the host's matter, and uses up nobody's tries"
    await asyncio.sleep(13.0)
    assert (await edge.until_state(run, "running")).outcome == ""
    filler.unlink()
    await edge.until(lambda: not is_full(edge))
    assert (await edge.until_state(run, "running")).outcome == ""
    assert await agent.end() == 0


async def test_a_log_says_where_a_full_disk_has_cost_output(
    edge: FakeEdge, agent: AgentProcess, disk: Path, tmp_path: Path
) -> None:
    rounds, log = tmp_path / "rounds", agent.state / "runs" / "run-1" / "log"
    loud = f"echo begun; while :; do head -c 9000 /dev/zero | tr '\\0' x; echo; echo >> {rounds}; sleep 0.05; done"
    run = await running(edge, loud)
    edge.commits = False  # no batch of samples leaves room

    def written() -> int:
        return sum(path.stat().st_size for path in log.iterdir())

    while True:
        fill(disk)
        before, until = written(), rounds.stat().st_size + 5
        await edge.until(lambda until=until: rounds.stat().st_size >= until)  # type: ignore[misc]
        if written() == before:
            break
    (disk / "fill").unlink()
    await edge.until(lambda: "bytes are missing here: they could not be written]\n" in edge.log(run))
    told = int(edge.log(run).partition(" bytes are missing")[0].rpartition("[")[2])
    assert told >= 4 * 9001
    assert edge.log(run).count("bytes are missing") == 1, "said once, and then it goes on"


async def test_a_workload_is_stopped_and_its_gpu_free_while_the_disk_is_full(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    unit = agent.units[0]
    edge.commits = False  # no batch of samples leaves room
    run = await running(edge, "echo begun; sleep 300", units=[unit])
    fill(disk)
    await edge.until(lambda: is_full(edge))
    fill(disk)
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended")).outcome == "cancelled"
    assert not processes.is_alive(agent.shim(run)["pid"], agent.shim(run)["start_ticks"]), (
        "it would hold the GPU"
    )


async def test_a_notice_reaches_a_workload_while_the_disk_is_full_and_can_be_taken_back(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await running(
        edge, f"trap 'mkdir {disk.parent}/told' USR1; echo begun; while :; do sleep 0.1; done"
    )
    fill(disk)
    await edge.change(run, verb="notice", code="evicted_for_reservation", stop_at=2e9)
    await edge.until(lambda: (disk.parent / "told").exists())
    await edge.change(run, verb="start")
    order = agent.state / "runs" / run / "order.json"
    await edge.until(lambda: not json.loads(order.read_text()).get("notice"))
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended")).outcome == "cancelled"


async def test_a_disk_that_was_full_has_room_again_only_with_more_than_the_mark(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    """What comes and goes at the mark would be written, told and planned with each time."""
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(8 << 20))
    with (disk / "fill").open("ab", buffering=0) as file:
        while shutil.disk_usage(disk).free >= MIN_FREE_BYTES:
            file.write(bytes(1 << 16))
    await edge.until(lambda: is_full(edge))
    os.truncate(reserve, 7 << 20)  # over the mark, but not by much
    heard = len(edge.observed)
    await edge.until(lambda: len(edge.observed) > heard + 3)
    assert shutil.disk_usage(disk).free >= MIN_FREE_BYTES
    assert all(seen.inventory.disk_full for seen in edge.observed[heard:])
    await edge.want(job("exit 0"))
    assert (await edge.until_state("run-1", "ended")).host_full
    reserve.unlink()
    (disk / "fill").unlink()
    await edge.until(lambda: not is_full(edge))


HIDES = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def fill():
    global file
    file = os.open("fill", os.O_RDWR | os.O_CREAT)
    os.unlink("fill")
    for _ in range(40):
        os.write(file, bytes(1 << 20))
def of_its_own():
    libc.unshare(0x400)  # CLONE_FILES
    fill()
    time.sleep(300)
"""
MAPPED = (
    HIDES
    + "fill(); libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0)); os.close(file); time.sleep(300)"
)
THREAD = HIDES + "threading.Thread(target=of_its_own).start(); time.sleep(300)"
FIRST_ENDED = HIDES + "threading.Thread(target=of_its_own).start(); libc.pthread_exit(None)"

FILLERS = {
    "a file that is only mapped": f"exec {sys.executable} -c {shlex.quote(MAPPED)}",
    "a thread with files of its own": f"exec {sys.executable} -c {shlex.quote(THREAD)}",
    "whose first thread has ended": f"{sys.executable} -c {shlex.quote(FIRST_ENDED)}; sleep 300",
    "a file": "dd if=/dev/zero of=$TMPDIR/fill bs=4k; sleep 300",
    "and minds no word": "trap '' TERM; dd if=/dev/zero of=$TMPDIR/fill bs=4k; while :; do sleep 1; done",
    "a file without a name": "exec 9>$TMPDIR/fill; rm $TMPDIR/fill; dd if=/dev/zero bs=4k >&9; sleep 300",
    "beside its socket": "dd if=/dev/zero of=$(dirname $GPUPOOL_DOOR)/fill bs=4k; sleep 300",
    "a file without a name whose path is too long to be told": f"for i in $(seq 25); do mkdir {'d' * 200}; cd {'d' * 200}; done; "
    "exec 9>fill; rm fill; dd if=/dev/zero bs=4k >&9; sleep 300",
    "far down": "for i in $(seq 300); do mkdir d; cd d; done; cd $TMPDIR; for i in $(seq 300); do mkdir e; cd e; done; "
    "dd if=/dev/zero of=fill bs=4k; sleep 300",
}


@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
async def test_a_workload_that_fills_the_disk_is_stopped_and_leaves_room_and_its_neighbour_goes_on(
    edge: FakeEdge, agent: AgentProcess, filler: str
) -> None:
    neighbour = await running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/small bs=1k count=64; sleep 300", generation=2
    )
    run = await running(edge, f"echo begun; cd $TMPDIR; {filler}", generation=3)
    ended = await edge.until_state(run, "ended", 30.0)
    assert (
        ended.outcome == "out_of_disk" and "its temporary files took the most of it of late: " in ended.step
    ), ended
    assert ended.host_full, "who is stopped because the disk ran low is told from who went over a limit"
    await edge.until(lambda: not is_full(edge))
    await asyncio.sleep(2.0)
    assert (await edge.until_state(neighbour, "running")).outcome == ""
    await edge.want(job("exit 0", generation=4))
    assert (await edge.until_state("run-4", "ended")).outcome == "finished"


async def test_a_workload_with_few_files_is_not_stopped_for_what_others_write(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await running(
        edge, "dd if=/dev/zero of=$TMPDIR/small bs=1M count=2; echo begun; sleep 300", generation=2
    )
    with (disk / "log of something else").open("ab", buffering=0) as file:
        while shutil.disk_usage(disk).free > pressure_threshold(80 << 20) - (
            1 << 20
        ):  # it holds what lacks, and is none the more to blame
            file.write(bytes(1 << 16))
    await edge.until(lambda: is_full(edge))
    await asyncio.sleep(4.0)
    assert (await edge.until_state(run, "running")).outcome == ""


async def test_nobody_is_stopped_for_what_ended_work_has_left_while_that_is_removed(
    edge: FakeEdge, make_agent: MakeAgent, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "rm"  # as it is with a million files
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nuntil [ -e {tmp_path}/go ]; do sleep 0.1; done\nexec /bin/rm "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    await make_agent(state="disk/state")
    neighbour = await running(
        edge, "dd if=/dev/zero of=$TMPDIR/small bs=1M count=6; echo begun; sleep 300", generation=2
    )
    run = await running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=12; sleep 300", generation=3
    )
    assert (await edge.until_state(run, "ended", 30.0)).outcome == "out_of_disk"
    await asyncio.sleep(9.0)
    assert list((disk / "state" / "trash").rglob("fill")), "it is still there, or this shows nothing"
    assert (await edge.until_state(neighbour, "running")).outcome == ""
    (tmp_path / "go").touch()


async def test_a_workload_whose_temporary_files_go_over_the_operators_limit_is_stopped(
    edge: FakeEdge, make_agent: MakeAgent, tmp_path: Path
) -> None:
    agent = await make_agent("--most-tmp", "16")
    neighbour = await running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/small bs=1M count=8; sleep 300", generation=2
    )
    run = await running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/large bs=1M count=24; sleep 300", generation=3
    )
    ended = await edge.until_state(run, "ended", 30.0)
    assert (ended.outcome, ended.step) == (
        "out_of_disk",
        "its temporary files took 24 MiB; allowed on this host: 16 MiB",
    )
    assert not ended.host_full, "that is its own fault"
    assert (await edge.until_state(neighbour, "running")).outcome == ""
    await agent.kill()
    heard = len(edge.observed)
    await agent.start()
    assert [seen.step for seen in edge.observed[heard].runs if seen.run == run] == [ended.step], (
        "the next agent knows why, too"
    )


@pytest.mark.parametrize(
    ("taken", "lacking", "goes"),
    [
        ({"a": 3, "b": 5}, 3, "b"),
        ({"a": 3, "b": 5}, -1, ""),  # the disk has room
        ({"a": 2, "b": 2}, 5, ""),  # others filled it
        ({"a": 2, "b": 2}, 3, "a"),  # each less than lacks, but together they did it
        ({"a": 1, "b": 1}, 1, ""),  # with so little nobody is to blame
        ({"a": 2, "b": UNKNOWN_USAGE}, 3, "b"),
        ({"a": 3, "b": UNKNOWN_USAGE}, 3, "a"),  # that explains it
        ({"a": UNKNOWN_USAGE, "b": UNKNOWN_USAGE}, 3, "b"),  # the younger
        ({"a": 1, "b": UNKNOWN_USAGE}, -1, ""),
        ({}, 1, ""),
    ],
)
def test_who_has_to_go_when_a_disk_runs_low(taken: dict[str, int], lacking: int, goes: str) -> None:
    assert run_to_stop(taken, {}, lacking, 2) == goes


@pytest.mark.parametrize(
    ("before", "taken", "goes"),
    [
        ({"idle": 50, "filler": 45}, {"idle": 50, "filler": 49}, "filler"),
        ({"idle": 50}, {"idle": 50, "filler": 9}, "filler"),  # it has begun since
        ({"idle": 50}, {"idle": 50}, ""),  # what grew is none of them
        ({"idle": 50, "filler": 45}, {"idle": 51, "filler": 44}, ""),
        (
            {"idle": 50, "tidy": 90},
            {"idle": 53, "tidy": 10},
            "idle",
        ),  # what one has removed is no excuse for another
    ],
)
def test_who_has_had_much_for_long_does_not_go_for_who_grew(
    before: dict[str, int], taken: dict[str, int], goes: str
) -> None:
    assert run_to_stop(taken, before, 3, 2) == goes


def test_who_could_not_be_counted_goes_for_what_those_who_could_did_not_take() -> None:
    taken = {"honest": 3, "hidden": UNKNOWN_USAGE}
    assert run_to_stop(taken, {}, 3, 2, gone=5) == "honest"
    assert run_to_stop(taken, {}, 3, 2, gone=50) == "hidden", "nobody else can have taken it"
    assert run_to_stop({"honest": 3}, {}, 3, 2, gone=50) == "honest"
    before = {"slow": UNKNOWN_USAGE, "filler": 1}
    assert run_to_stop({"slow": 900, "filler": 9}, before, 3, 2, gone=9) == "filler", (
        "how much it had is not known, nor that it grew"
    )
    assert run_to_stop({"slow": UNKNOWN_USAGE, "filler": UNKNOWN_USAGE}, before, 3, 2, gone=9) == "filler"


def filling(megabytes: int) -> str:
    """A job that takes so much, says so and stays."""
    return f"dd if=/dev/zero of=$TMPDIR/fill bs=1M count={megabytes}; echo begun; sleep 300"


async def test_who_was_there_before_the_agent_does_not_go_for_who_grew_since(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    idle = await running(edge, filling(8), generation=2)
    await agent.kill()
    await agent.start()
    await edge.until(lambda: last_kept(agent).get(idle, 0) >= 8 << 20)
    run = await running(
        edge, "echo begun; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=7; sleep 300", generation=3
    )
    (disk / "log of something else").write_bytes(bytes(2 << 20))
    assert (await edge.until_state(run, "ended", 30.0)).outcome == "out_of_disk"
    assert (await edge.until_state(idle, "running")).outcome == ""


async def test_who_fills_the_disk_while_there_is_no_agent_is_found_by_the_next_one(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    idle = await running(edge, filling(8), generation=2)
    await agent.kill()
    await agent.start()  # from here on it is known what the idle one has
    await edge.until(lambda: last_kept(agent).get(idle, 0) >= 8 << 20)
    now = disk / "now"
    late = f"echo begun; until [ -e {now} ]; do sleep 0.1; done; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=7; sleep 300"
    run = await running(edge, late, generation=3)
    await agent.kill()
    now.write_bytes(bytes(2 << 20))
    fill = agent.state / "runs" / run / "tmp" / "fill"
    await edge.until(lambda: fill.exists() and fill.stat().st_size == 7 << 20)
    await agent.start()
    assert (await edge.until_state(run, "ended", 30.0)).outcome == "out_of_disk"
    assert (await edge.until_state(idle, "running")).outcome == ""


def last_kept(agent: AgentProcess) -> dict[str, int]:
    """What each run had when that was kept last."""
    kept: dict[str, int] = (read_json(agent.state / "scratch.json") or {}).get("bytes", {})
    return kept


async def test_while_one_is_stopped_for_the_disk_the_next_agent_stops_nobody_else(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    other = await running(edge, filling(6), generation=2)
    stubborn = "trap '' TERM; echo begun; dd if=/dev/zero of=$TMPDIR/fill bs=1M count=12; while :; do sleep 0.1; done"
    run = await running(edge, stubborn, generation=3)
    await edge.until_state(run, "stopping")
    await agent.kill()
    (agent.state / "scratch.json").unlink()  # as of an earlier version: both have written all of it of late
    await agent.start()
    assert (await edge.until_state(run, "ended")).outcome == "out_of_disk"
    await edge.until(lambda: not is_full(edge))
    assert (await edge.until_state(other, "running")).outcome == ""


async def test_one_that_does_not_end_keeps_nobody_else_from_being_stopped_for_ever(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    watch, has = watching(disk, stopped, monkeypatch, {"stuck": 20 << 20, "second": 10 << 20})
    (disk / "fill").write_bytes(bytes(30 << 20))
    await watch.look(1.0)
    await watch.look(40.0)
    assert stopped == ["stuck"], "what it still has counts for nobody"
    has["second"] = 30 << 20
    (disk / "fill").write_bytes(bytes(50 << 20))
    await watch.look(51.0)
    assert stopped == ["stuck", "second"]


async def test_one_that_was_stopped_has_its_grace_and_a_while_before_the_next_is(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    watch, has = watching(disk, stopped, monkeypatch, {"first": 20 << 20, "second": 10 << 20})
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
def test_of_what_an_agent_before_kept_only_what_is_whole_counts(tmp_path: Path, damaged: str) -> None:
    kept = tmp_path / "scratch.json"
    kept.write_text('{"bytes": {"run-1": 5}, "files": {"run-1": 2}, "free_bytes": 7, "free_files": 3}')
    assert disk_pressure._read_snapshot(kept) == disk_pressure.DiskSnapshot({"run-1": 5}, {"run-1": 2}, 7, 3)
    kept.write_text(damaged)
    assert disk_pressure._read_snapshot(kept) is None


async def test_one_that_fills_the_disk_before_it_was_seen_running_goes_not_its_neighbour(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    watch, _ = watching(disk, stopped, monkeypatch, {"neighbour": 6 << 20, "first moment": 12 << 20})
    watch._runs.runs["first moment"].shim = {}
    (disk / "fill").write_bytes(bytes(18 << 20))
    await watch.look(1.0)
    assert stopped == ["first moment"]


def watching(
    disk: Path, stopped: list[str], monkeypatch: pytest.MonkeyPatch, has: dict[str, int]
) -> tuple[disk_pressure.DiskPressure, dict[str, int]]:
    """A watch over runs that have so many bytes; one that is stopped goes on for ever."""
    runs = {
        name: LocalRun(disk / name, {"run": name, "kind": "job"}, shim={"started_at": 1.0}) for name in has
    }

    def stop(order: StopRun) -> None:
        stopped.append(order.run)
        runs[order.run].stop_ordered = True

    trash = SimpleNamespace(is_emptied=False)
    here = SimpleNamespace(state=SimpleNamespace(folder=disk), runs=runs, trash=trash, stop=stop)
    monkeypatch.setattr(disk_pressure, "measure_bytes", lambda there: {run.id: has[run.id] for run in there})
    return disk_pressure.DiskPressure(here, 0), has  # type: ignore[arg-type]


def test_only_files_without_a_name_are_asked_of_their_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs, that of the homes say, would hold up who asks for ever."""
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


async def test_what_each_had_is_kept_for_a_while(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has = {"idle": 30 << 20, "filler": 1 << 20}
    runs = {
        name: LocalRun(disk / name, {"run": name, "kind": "job"}, shim={"started_at": 1.0}) for name in has
    }
    stopped: list[str] = []
    here = SimpleNamespace(
        state=SimpleNamespace(folder=disk),
        runs=runs,
        trash=SimpleNamespace(is_emptied=False),
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


async def test_on_a_disk_that_others_keep_low_files_are_not_counted_all_the_time(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []
    now = 0.0

    def measured(there: list[LocalRun]) -> dict[str, int]:
        counted.append(now)
        return {each.id: 1 << 20 for each in there}

    monkeypatch.setattr(disk_pressure, "measure_bytes", measured)
    run = LocalRun(disk / "run-1", {"run": "run-1", "kind": "job"}, shim={"started_at": 1.0})
    trash = SimpleNamespace(is_emptied=False)
    here = SimpleNamespace(state=SimpleNamespace(folder=disk), runs={run.id: run}, trash=trash)
    watch = disk_pressure.DiskPressure(here, 0)  # type: ignore[arg-type]
    with (disk / "log of something else").open("ab", buffering=0) as file:
        file.write(bytes(20 << 20))
        for now in (0.5, 1.0, 9.0, 10.6, 11.0):
            await watch.look(now)
        assert counted == [0.5, 0.5, 10.6], "what each has is kept first"
        file.write(
            bytes(pressure_threshold(80 << 20) // disk_pressure.MIN_EVICTED_DIVISOR)
        )  # so much could be a run's
        now = 11.5
        await watch.look(now)
        assert counted == [0.5, 0.5, 10.6, 11.5]


def test_a_limit_holds_for_each_and_a_disk_runs_low_before_it_is_full() -> None:
    assert list(runs_over_limit({"a": 3 << 30, "b": 5 << 30, "c": 1 << 30}, 2 << 30)) == ["a", "b"]
    assert runs_over_limit({"a": 3 << 30}, 0) == {}
    assert [pressure_threshold(total << 30) >> 20 for total in (1, 40, 1000)] == [64, 2048, 4096]


NAMELESS = """
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
        f"exec {sys.executable} -c {shlex.quote(NAMELESS)}",
    ],
    ids=["with names", "without"],
)
async def test_a_workload_that_makes_files_without_end_is_stopped_before_there_is_room_for_none(
    edge: FakeEdge, agent: AgentProcess, disk: Path, command: str
) -> None:
    await _run("mount", "-o", "remount,nr_inodes=4000", str(disk))
    neighbour = await running(edge, "echo begun; touch $TMPDIR/f; sleep 300", generation=2)
    run = await running(edge, f"echo begun; cd $TMPDIR; {command}", generation=3)
    ended = await edge.until_state(run, "ended", 30.0)
    assert ended.outcome == "out_of_disk" and "it made the most of the files on it of late: " in ended.step, (
        ended
    )
    await edge.until(lambda: not is_full(edge))
    assert (await edge.until_state(neighbour, "running")).outcome == ""


async def test_a_stop_that_can_not_be_written_is_carried_out_by_the_end_of_the_lease(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    edge.lease_seconds = 2.0
    agent = await make_agent()
    run = await running(edge, "echo begun; sleep 300")
    other = await running(edge, "echo begun; sleep 300", generation=2)
    order = agent.state / "runs" / run / "order.json"
    order.unlink()
    order.mkdir()  # it can't be written, whoever tries
    await edge.change(run, verb="stop", code="cancelled")
    assert (await edge.until_state(run, "ended", 15.0)).outcome == "lease_lost"
    assert (await edge.until_state(other, "running")).outcome == ""


async def test_an_agent_comes_back_on_a_full_disk_and_says_what_was_lost(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await running(edge, "echo begun; sleep 300")
    lost = await running(edge, "echo begun; sleep 300", generation=2)
    (
        agent.state / "runs" / lost / "exit.room"
    ).unlink()  # nothing is kept for its end: as an earlier version left it
    await agent.kill()
    shim = agent.shim(lost)
    for pid in [shim["pid"], *(each.pid for each in processes.descendants(processes.scan(), shim["pid"]))]:
        os.kill(pid, signal.SIGKILL)
    fill(disk)
    await agent.start()
    await edge.until(lambda: is_full(edge))
    assert (await edge.until_state(run, "running")).outcome == ""
    (disk / "fill").unlink()
    assert (await edge.until_state(lost, "ended")).outcome == "host_lost"


async def test_an_agent_of_another_version_comes_up_on_a_full_disk_and_starts_nothing_by_half_of_its_tools(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await running(edge, "echo begun; sleep 300")
    await agent.kill()
    tools = [path for path in (agent.state / "tools").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    before = {path: path.read_bytes() + b"# of an earlier version\n" for path in tools}
    for path, content in before.items():
        path.write_bytes(content)
    edge.commits = False
    fill(disk)
    await agent.start()
    assert {path: path.read_bytes() for path in before} == before, "all of them, or none"
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
    assert not any(b"earlier" in path.read_bytes() for path in before), "now there is room for its own"
    await edge.until(
        lambda: not any("could not be installed" in note for note in edge.observed[-1].inventory.notes)
    )


async def test_a_gpu_is_not_thought_ill_nor_a_diagnostic_lost_because_the_disk_is_full(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    edge.commits = False
    fill(disk)
    await edge.until(lambda: is_full(edge))
    fill(disk)
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


def test_a_credential_that_comes_while_the_disk_is_full_is_found_again(disk: Path) -> None:
    """The server takes the one before no more once it was used."""
    state = StateFolder(disk / "state")
    state.remember(host="h1", credential="gpa.1.first", expires_at=1.0)
    fill(disk)
    state.remember(host="h1", credential="gpa.1.the-second-one", expires_at=2.0)
    kept = json.loads((disk / "state" / "identity.json").read_text())
    assert (kept["credential"], kept["instance"]) == ("gpa.1.the-second-one", state.identity.instance)


async def test_a_run_whose_shim_was_killed_ends_while_the_disk_is_full(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    run = await running(edge, "echo begun; sleep 300")
    edge.commits = False
    fill(disk)
    os.kill(agent.shim(run)["pid"], signal.SIGKILL)
    assert (await edge.until_state(run, "ended")).outcome == "host_lost"


async def test_a_disk_without_room_for_more_files_is_full_too(
    edge: FakeEdge, agent: AgentProcess, disk: Path
) -> None:
    await _run("mount", "-o", "remount,nr_inodes=1500", str(disk))
    await edge.until(lambda: is_full(edge))
    await edge.want(job("exit 0"))
    refused = await edge.until_state("run-1", "ended")
    assert refused.host_full and "the disk of the host is full" in refused.step


def test_a_folder_that_a_run_has_closed_hides_nothing_from_an_agent_that_is_not_root() -> None:
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
