"""Test that a long-running agent leaks no open files, processes, logs or events."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import aiohttp
import pytest

from agent.daemon import Agent
from agent.gpu.health_events import MAX_KEPT_PER_CODE, HealthEventStore
from agent.gpu.reader import GpuInventory, HardwareEvent
from agent.host import processes
from agent.host.clock import boottime
from agent.host.durable_files import read_json, write_json, write_text
from agent.host.state import StateFolder
from agent.isolation.cgroups import CgroupLimits, Cgroups, RunCgroups
from agent.isolation.launchers import PlainLauncher
from agent.isolation.workload_network import NETNS_FOLDER, WorkloadNetwork
from agent.monitoring import HostMonitor
from agent.protocol import VERSION, Health, Inventory, LogChunk, Observed, Proof, SampleBatch, SampleRow
from agent.runs import log_reader
from agent.runs.local_run import write_log_mark
from agent.runs.manager import RunManager
from agent.server import connection
from agent.server.connection import SyncConnection
from agent.server.reporting import ServerReporter
from agent.server.sample_spool import SampleSpool
from tests.agent.command_lines import command_line
from tests.agent.conftest import job
from tests.waiting import until


@pytest.fixture
def runs(tmp_path: Path) -> RunManager:
    """Return a RunManager of a host without GPUs."""
    (tmp_path / "homes").mkdir()
    state = StateFolder(tmp_path / "state")
    state.install_tools()
    hardware = GpuInventory([], devices={})
    return RunManager(
        state,
        PlainLauncher(),
        hardware,
        homes=tmp_path / "homes",
        locks_folder=tmp_path / "locks",
        exposed=[],
    )


async def until_all_ended(runs: RunManager) -> None:
    async with asyncio.timeout(30):
        while not all(run.ended for run in runs.runs.values()):
            await asyncio.sleep(0.05)
            runs.look()


async def test_starts_leave_no_open_file_in_the_agent(runs: RunManager) -> None:
    assert await runs.start(job("true"), boottime() + 30)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2, 5):
        assert await runs.start(job("true", generation=number), boottime() + 30)
    assert len(os.listdir("/proc/self/fd")) == before
    await until_all_ended(runs)
    assert {run.ended["outcome"] for run in runs.runs.values()} == {"finished"}


def test_a_log_rotated_during_a_read_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotate the log during a read. A verbose workload rotates its log several times a minute."""
    for first, text in ((0, "aaa"), (3, "bbb"), (6, "ccc")):
        (tmp_path / f"{first:015d}").write_text(text)
    listed = Path.glob

    def then_rotated(folder: Path, pattern: str) -> list[Path]:
        found = list(listed(folder, pattern))
        found[0].parent.joinpath(f"{0:015d}").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", then_rotated)
    assert log_reader.read_chunk(tmp_path, 0, ended=False) == (3, "bbb", 6)
    (tmp_path / f"{0:015d}").write_text("aaa")
    assert log_reader.end_offset(tmp_path) == 9
    for last in (3, 6):
        (tmp_path / f"{last:015d}").unlink()
    (tmp_path / f"{0:015d}").write_text("aaa")
    assert log_reader.end_offset(tmp_path) == 0, "the only listed segment was removed"


# Failing starts


class RecordingCgroups(Cgroups):
    """Real cgroups that record the name of each created group."""

    def make(self, name: str, limits: CgroupLimits) -> RunCgroups:
        self.names = [*getattr(self, "names", []), name]
        return super().make(name, limits)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups and networks")
async def test_a_failed_start_leaves_no_cgroups_and_no_network(runs: RunManager) -> None:
    runs.cgroups, runs.network = RecordingCgroups(), WorkloadNetwork("internet", "r4ts")
    # A directory here makes the write of the launch spec fail.
    (runs.state.runs / "run-1" / "spec.json").mkdir(parents=True)
    assert not await runs.start(job("true"), boottime() + 30)
    assert runs.runs["run-1"].ended["outcome"] == "start_failed"
    (mark,) = runs.cgroups.names
    assert not any(folder.exists() for folder in runs.cgroups._folders(mark))
    assert not (NETNS_FOLDER / f"gpupool-{mark}").exists()


# Many events and frames


def event(number: int, *, ts: float, code: str = "xid:31") -> HardwareEvent:
    return HardwareEvent(f"event-{number}", "GPU-a", "xid", code, ts)


def test_frequent_hardware_events_are_reported_once_a_second_and_few_are_stored(tmp_path: Path) -> None:
    store, now = HealthEventStore(tmp_path / "health"), 1_000_000.0

    def report(what: HardwareEvent) -> Health | None:
        health = store.note(what)
        if health is not None:
            store.write(health)
        return health

    fatal = report(event(0, ts=now, code="xid:79"))
    health = [report(event(number, ts=now + number / 100)) for number in range(1, 10_000)]
    assert fatal is not None and sum(each is not None for each in health) == 100
    assert len(list((tmp_path / "health").iterdir())) == MAX_KEPT_PER_CODE + 1
    recent = store.recent(now + 100)
    assert recent[0] == fatal, "frequent events do not displace a rare one"
    assert recent[-1].ts > now + 98 and len(recent) == MAX_KEPT_PER_CODE + 1
    again = HealthEventStore(tmp_path / "health")
    assert again.recent(now + 100) == recent and again.was_reported(event(1, ts=now + 2, code="xid:79"))
    assert again.recent(now + 90_000) == [each for each in recent if each.ts >= now + 90_000 - 86_400]


def test_confirmed_events_are_not_sent_again_on_the_next_connection(tmp_path: Path) -> None:
    store, now = HealthEventStore(tmp_path / "health"), 1_000_000.0
    first, second = store.note(event(1, ts=now)), store.note(event(2, ts=now + 2))
    assert first is not None and second is not None and store.due(now + 3) == [first, second]
    store.say(first, 7)
    # Report 7 was sent before the event, so the answer to report 7 does not confirm the event.
    store.confirm(7)
    assert store.due(now + 3) == [first, second]
    # Each call of due() stands for a new connection. No event was sent on the last connection, so this answer
    # confirms no event.
    store.confirm(9)
    assert store.due(now + 3) == [first, second]
    store.say(first, 10)
    store.say(second, 11)
    store.confirm(11)
    assert store.due(now + 3) == [second]
    store.confirm(0)  # an old server does not report which frame it answered


class TwoFailingGpus:
    """A GPU reader in which two GPUs report an event at the same time."""

    async def earlier(self, now: float) -> list[HardwareEvent]:
        return []

    async def events(self, now: float) -> list[HardwareEvent]:
        return [event(1, ts=now, code="xid:79"), event(2, ts=now, code="xid:48")]


async def test_an_event_is_reported_before_the_previous_event_is_on_disk(
    tmp_path: Path, runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_is_busy = threading.Event()

    def slowly(path: Path, value: object) -> None:
        disk_is_busy.wait(60)
        write_json(path, value)

    monkeypatch.setattr("agent.gpu.health_events.write_json", slowly)
    reporter = ServerReporter(runs.state, runs, *[None] * 3)  # type: ignore[arg-type]
    monitor = HostMonitor(runs, TwoFailingGpus(), reporter, sample_seconds=5.0, own_pids=list)  # type: ignore[arg-type]
    watcher = asyncio.create_task(monitor._watch_events())
    try:
        codes: list[str] = []
        async with asyncio.timeout(20):
            while len(codes) < 2:
                await asyncio.sleep(0.02)
                codes += [health.code for health in reporter.health_due()]
        assert codes == ["xid:79", "xid:48"]
    finally:
        disk_is_busy.set()
        watcher.cancel()
    folder = runs.state.folder / "health"
    until = time.monotonic() + 5
    while len(list(folder.glob("*.json"))) < 2 and time.monotonic() < until:
        await asyncio.sleep(0.02)
    assert len(HealthEventStore(folder).recent(time.time())) == 2, "both events are stored for the next agent"


async def test_the_agent_renews_leases_during_a_slow_start(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delay each fsync, as during heavy writes by a workload. A lease lasts 30 s.

    The run must also be reported during its start.
    """
    synced, states = os.fsync, set()
    in_the_loop: list[bool] = []
    disk_answers = threading.Event()

    def slowly(descriptor: int) -> None:
        in_the_loop.append(threading.current_thread() is threading.main_thread())
        disk_answers.wait(60)
        synced(descriptor)

    def note_states() -> None:
        states.update((seen.run, seen.state) for seen in runs.seen())

    monkeypatch.setattr("agent.host.durable_files.os.fsync", slowly)
    starting = asyncio.create_task(runs.start(job("true"), boottime() + 30))
    await until(lambda: in_the_loop)
    runs.renew({"run-1"}, lease := boottime() + 77)
    note_states()
    disk_answers.set()
    await starting
    disk_answers.clear()
    writes = len(in_the_loop)
    refusing = asyncio.create_task(runs.refuse(job("true", generation=2), "start_failed", "for a test"))
    await until(lambda: len(in_the_loop) > writes)
    note_states()
    disk_answers.set()
    await refusing
    note_states()
    assert in_the_loop and not any(in_the_loop)
    assert starting.result() and {("run-1", "starting"), ("run-2", "starting"), ("run-2", "ended")} <= states
    assert read_json(runs.state.folder / "generations.json")["used"] == [1, 2]
    assert float((runs.runs["run-1"].folder / "lease").read_text()) == pytest.approx(lease, abs=0.01), (
        "the lease was renewed during the start"
    )
    await until_all_ended(runs)


async def test_a_run_does_not_start_if_its_generation_cannot_be_stored(runs: RunManager) -> None:
    (runs.state.folder / "generations.json").mkdir()
    assert not await runs.start(job(f"touch {runs.state.folder}/began"), boottime() + 30)
    assert runs.runs["run-1"].ended["outcome"] == "start_failed" and not runs.waiting
    shim = str(runs.state.tools / "shim").encode()
    started = [
        process.pid
        for process in processes.descendants(processes.scan(), os.getpid())
        if shim in command_line(process.pid)
    ]
    assert not started and not (runs.state.folder / "began").exists()


async def test_networks_of_ended_runs_are_removed_in_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, left, may_end = WorkloadNetwork("internet", "r4ts"), [], threading.Event()

    def slowly(_: WorkloadNetwork, mark: str) -> None:
        assert may_end.wait(20)
        left.append(mark)

    monkeypatch.setattr(WorkloadNetwork, "leave", slowly)
    for mark in ("a", "b", "c"):
        network.leave_in_background(mark)
    assert left == []
    may_end.set()
    async with asyncio.timeout(20):
        while left != ["a", "b", "c"]:
            await asyncio.sleep(0.02)


class BusyAgent:
    """The parts of an agent that SyncConnection uses, with a report every 0.3 s and 1000 pending events."""

    poll_seconds = 0.3
    has_changed = False

    def __init__(self) -> None:
        self.reporter, self.due = self, asyncio.Event()
        self.events = [Health(f"event-{number}", "GPU-a", "xid", "xid:31", 1.0) for number in range(1000)]

    def observed(self, sequence: int) -> Observed:
        return Observed(
            VERSION, "0", "boot", "instance", sequence, Inventory([], 1000, 1000, "plain", simulated=True), []
        )

    def on_observed_sent(self, observed: Observed) -> None:
        return

    def note_change(self) -> None:
        return

    def take_change(self) -> bool:
        return False

    def proofs_due(self) -> Iterator[Proof]:
        return iter(())

    def health_due(self) -> Iterator[Health]:
        while self.events:
            yield self.events.pop()

    def batches_due(self) -> Iterator[SampleBatch]:
        return iter(())

    def log_chunks(self) -> Iterator[LogChunk]:
        return iter(())


class SlowSocket:
    """A socket that accepts a hundred frames a second."""

    def __init__(self) -> None:
        self.reports = 0
        self.others = 0

    async def send_str(self, text: str) -> None:
        if '"kind":"observed"' in text:
            self.reports += 1
        else:
            self.others += 1
            await asyncio.sleep(0.01)


async def test_reports_are_sent_on_time_despite_many_other_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Send 1000 frames to an edge that accepts a hundred frames a second."""
    monkeypatch.setattr(connection, "UNANSWERED_POLLS", 1.0)
    agent, socket = BusyAgent(), SlowSocket()
    connection_under_test = SyncConnection(cast(Agent, agent), cast(aiohttp.ClientSession, None), "", None)
    sender = asyncio.create_task(connection_under_test._send(cast(aiohttp.ClientWebSocketResponse, socket)))
    await until(lambda: socket.reports >= 4)
    assert agent.events, "four reports are sent before a thousand other frames"
    assert socket.others > 20, "other frames are sent as well"
    sender.cancel()


async def test_a_connection_cancelled_during_a_change_ends() -> None:
    """Cancel the connection as SIGTERM does.

    An agent that continued would renew no leases and lose its runs.
    """
    for turns in range(6):  # event-loop turns between the change and the cancellation
        agent, socket = BusyAgent(), SlowSocket()
        agent.events.clear()
        connection_under_test = SyncConnection(
            cast(Agent, agent), cast(aiohttp.ClientSession, None), "", None
        )
        sender = asyncio.create_task(
            connection_under_test._send(cast(aiohttp.ClientWebSocketResponse, socket))
        )
        await until(lambda socket=socket: socket.reports)  # type: ignore[misc]
        agent.due.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        sender.cancel()
        await asyncio.wait([sender], timeout=60)
        assert sender.cancelled(), turns


# Slow disks


async def test_the_sent_offset_of_a_log_is_stored_without_fsync(
    runs: RunManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await runs.start(job("true"), boottime() + 30)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    run = runs.runs["run-1"]
    for offset in (1, 1 << 40, 77):
        write_log_mark(run.folder, offset)
        assert read_json(run.folder / "log_sent.json") == {"offset": offset}
    assert synced == []
    monkeypatch.undo()
    await until_all_ended(runs)


def rows(number: int) -> list[SampleRow]:
    return [SampleRow(ts=float(number), unit="GPU-a")]


async def test_the_event_loop_continues_while_samples_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, may_end = SampleSpool(tmp_path), threading.Event()

    def slowly(path: Path, text: str) -> None:
        may_end.wait(20)
        write_text(path, text)

    monkeypatch.setattr("agent.server.sample_spool.write_text", slowly)
    adding = asyncio.create_task(store.add_in_thread(rows(1)))
    polls = 0
    while not adding.done():
        await asyncio.sleep(0.02)
        polls += 1
        assert store.pending(0) == [] or adding.done(), "a batch is pending only once it is on the disk"
        if polls == 10:
            may_end.set()
    assert polls >= 10
    assert (adding.result(), store.pending(0), store.read(1).rows) == (1, [1], rows(1))


async def test_samples_survive_a_renumbering_by_the_server_during_their_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writing, may_end = SampleSpool(tmp_path), threading.Event(), threading.Event()

    def slowly(path: Path, text: str) -> None:
        writing.set()
        may_end.wait(20)
        write_text(path, text)

    monkeypatch.setattr("agent.server.sample_spool.write_text", slowly)
    adding = asyncio.create_task(store.add_in_thread(rows(1)))
    assert await asyncio.to_thread(writing.wait, 20)
    store.commit(40)  # as after the loss of an earlier spool: the server has committed higher numbers
    may_end.set()
    assert await adding == 41
    assert (store.pending(0), store.read(41).rows) == ([41], rows(1))
