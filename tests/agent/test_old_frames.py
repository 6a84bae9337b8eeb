"""Test that a run is not ended by an old frame or by silence of the server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent.reconciler
from agent.daemon import Agent, AgentOptions
from agent.gpu.simulated_reader import SimulatedGpuReader
from agent.host import processes
from agent.host.clock import boot_id
from agent.host.durable_files import read_json
from agent.host.state import StateFolder
from agent.isolation.launchers import PlainLauncher
from agent.protocol import VERSION, Desired, RunWanted
from agent.runs.local_run import LocalRun, PendingStart, persisted_fields
from agent.runs.manager import RunManager
from tests.agent.conftest import job
from tests.waiting import until

POLL_SECONDS = 2.0


class AgentHost:
    """A host with an agent and one running job. The test sets the host's clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(agent.reconciler, "boottime", lambda: self.now)
        state = StateFolder(folder / "state")
        reader = SimulatedGpuReader("h1", ["A100-40GB"], {}, folder / "state")
        hardware = asyncio.run(reader.hardware())
        runs = RunManager(
            state,
            PlainLauncher(),
            hardware,
            homes=folder / "homes",
            locks_folder=folder / "locks",
            exposed=[],
        )
        self.agent = Agent(
            AgentOptions("http://edge", "", "h1", 5.0, False),
            state,
            PlainLauncher(),
            reader,
            hardware,
            runs,
            [],
        )
        self.wanted: RunWanted = job("sleep 1000")
        self.folder = state.runs / self.wanted.run
        self.folder.mkdir()
        me = processes.read_process(os.getpid())
        assert me is not None
        shim = {"started_at": 1.0, "pid": me.pid, "start_ticks": me.start_ticks, "boot_id": boot_id()}
        (self.folder / "shim.json").write_text(json.dumps(shim))
        runs.runs[self.wanted.run] = LocalRun(self.folder, persisted_fields(self.wanted), shim=shim)
        monkeypatch.setattr(
            runs,
            "_order",
            lambda run, **order_fields: (run.folder / "order.json").write_text(json.dumps(order_fields)),
        )

    def hear(self, *runs: RunWanted, at: float, said_at: float | None = None) -> None:
        """Receive a frame at time `at`, as the answer to the report of time `said_at` (default: `at`)."""
        self.now = at
        frame = Desired(
            version=VERSION, host="h1", lease_seconds=12.0, runs=list(runs), poll_seconds=POLL_SECONDS
        )
        asyncio.run(self.agent.on_desired(frame, at if said_at is None else said_at))

    def wait(self, until: float) -> None:
        """Set the clock to `until` without a frame. Reconcile if undesired runs must stop now."""
        self.now = until
        if self.agent.reconciler.has_undesired_runs():
            asyncio.run(self.agent.reconciler.reconcile())

    @property
    def stop(self) -> dict[str, object] | None:
        """Return the stop order that the workload received, or None."""
        return (read_json(self.folder / "order.json") or {}).get("stop")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHost]:
    yield AgentHost(tmp_path, monkeypatch)


def test_silence_after_a_frame_without_the_run_does_not_stop_it(host: AgentHost) -> None:
    host.hear(host.wanted, at=1000.0)
    host.hear(at=1001.0)
    for second in range(1002, 1012):
        host.wait(float(second))
    assert host.stop is None
    host.hear(host.wanted, at=1013.0)
    assert host.stop is None


def test_old_frames_without_the_run_do_not_stop_it(host: AgentHost) -> None:
    host.hear(host.wanted, at=1000.0)
    for second in range(1001, 1011):
        host.hear(at=float(second), said_at=990.0)
    assert host.stop is None


def test_two_new_frames_without_the_run_stop_it_with_its_grace_period(host: AgentHost) -> None:
    host.hear(host.wanted, at=1000.0)
    host.hear(at=1001.0)
    host.hear(at=1001.0 + POLL_SECONDS)
    assert host.stop is None
    host.hear(at=1001.0 + 2 * POLL_SECONDS)
    assert host.stop == {
        "outcome": "cancelled",
        "grace_seconds": host.wanted.grace_seconds,
        "whatever": False,
    }


def test_a_frame_received_during_a_slow_start_takes_effect_before_the_next_start(
    host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delay the starts, which may wait for a driver or a disk. A stop must not wait for the starts."""
    began: list[str] = []
    may_start = asyncio.Event()

    async def slowly(wanted: RunWanted) -> None:
        began.append(wanted.run)
        await may_start.wait()

    monkeypatch.setattr(host.agent.reconciler, "_start", slowly)
    first, taken_back, later = (job("true", generation=number) for number in (2, 3, 4))

    def frame(*runs: RunWanted) -> Desired:
        return Desired(
            version=VERSION, host="h1", lease_seconds=12.0, runs=list(runs), poll_seconds=POLL_SECONDS
        )

    async def hear() -> None:
        hearing = asyncio.create_task(
            host.agent.on_desired(frame(host.wanted, first, taken_back, later), 1000.0)
        )
        await until(lambda: began)
        assert began == ["run-2"] and host.stop is None
        stopping = dataclasses.replace(host.wanted, verb="stop", code="cancelled")
        hearing_next = asyncio.create_task(host.agent.on_desired(frame(stopping, first, later), 1000.0))
        await until(lambda: host.agent.reconciler.desired == frame(stopping, first, later))
        may_start.set()
        await asyncio.gather(hearing, hearing_next)

    asyncio.run(hear())
    assert host.stop is not None
    assert began[:2] == ["run-2", "run-4"] and "run-3" not in began, "run-3 is no longer desired"


def test_a_stop_does_not_wait_for_writes_of_other_runs(
    host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[bool] = []
    refuse = host.agent.runs.refuse

    async def watched(wanted: RunWanted, outcome: str, why: str) -> None:
        stopped.append(host.stop is not None)
        await refuse(wanted, outcome, why)

    monkeypatch.setattr(host.agent.runs, "refuse", watched)
    never_began = dataclasses.replace(job("true", generation=0), verb="stop", code="cancelled")
    stopping = dataclasses.replace(host.wanted, verb="stop", code="cancelled")
    assert never_began.generation < stopping.generation, "the run without a process is handled first"
    frame = Desired(
        version=VERSION,
        host="h1",
        lease_seconds=12.0,
        runs=[never_began, stopping],
        poll_seconds=POLL_SECONDS,
    )
    asyncio.run(host.agent.on_desired(frame, 1000.0))
    assert stopped == [True]


def test_ends_of_other_runs_are_seen_during_a_slow_start(
    host: AgentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_agent, run, pending_job = (
        host.agent,
        host.agent.runs.runs[host.wanted.run],
        job("true", generation=2),
    )

    async def live() -> None:
        starting, release = asyncio.Event(), asyncio.Event()

        async def start(wanted: RunWanted) -> None:
            starting.set()
            await release.wait()

        monkeypatch.setattr(live_agent.reconciler, "_start", start)
        live_agent.runs.waiting[pending_job.run] = PendingStart(
            pending_job, host.now, "waiting until GPU-1 is free"
        )
        live_agent.reconciler.desired = Desired(
            version=VERSION, host="h1", lease_seconds=12.0, runs=[host.wanted, pending_job]
        )
        looking = asyncio.create_task(live_agent.reconciler.poll_shims())
        async with asyncio.timeout(20):
            await starting.wait()
            ended = {"outcome": "finished", "exit_code": 0, "ended_at": 1.0, "error": ""}
            (host.folder / "exit.json").write_text(json.dumps(ended))
            while not run.ended:
                await asyncio.sleep(0.02)
        assert not looking.done(), "the start has not ended yet"
        release.set()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(live())


@pytest.mark.parametrize("by", ["poll_shims", "reconcile_with_timeout"])
def test_an_error_after_the_reconcile_timeout_is_raised_later(
    host: AgentHost, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async def live() -> None:
        release, tried = asyncio.Event(), 0

        async def reconcile() -> None:
            nonlocal tried
            tried += 1
            await release.wait()
            if tried == 1:
                raise RuntimeError("it can't be done")

        monkeypatch.setattr(agent.reconciler, "RECONCILE_WAIT_SECONDS", 0.01)
        monkeypatch.setattr(host.agent.reconciler, "reconcile", reconcile)
        await host.agent.reconciler.reconcile_with_timeout()
        release.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="it can't be done"):
            await asyncio.wait_for(getattr(host.agent.reconciler, by)(), 20)

    asyncio.run(live())
