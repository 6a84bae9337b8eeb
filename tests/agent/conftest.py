"""Provide fixtures that run real agents against a fake edge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.host import processes
from agent.host.clock import boottime
from agent.host.durable_files import read_json
from agent.isolation.cgroups import Cgroups
from agent.isolation.workload_network import NETNS_FOLDER, network_key
from agent.protocol import RunWanted
from agent.shim import supervisor
from tests.agent.counted_agent import read_count
from tests.agent.fake_edge import TOKEN, FakeEdge
from tests.agent.preloaded_agent import PreloadedAgent, has_its_first_environment, start_preloaded_agent

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "agent"]
COUNTED_PROGRAM = [sys.executable, "-m", "tests.agent.counted_agent"]


@dataclass
class AgentProcess:
    """An agent process that can be killed and started again on the same state."""

    edge: FakeEdge
    state: Path
    launcher: str
    more: list[str] = field(default_factory=list)
    program: list[str] = field(default_factory=lambda: list(PROGRAM))
    cwd: Path = ROOT
    # Constants of the agent's modules that the test replaces, mostly intervals, by dotted name.
    constants: dict[str, float] = field(default_factory=dict)
    process: asyncio.subprocess.Process | PreloadedAgent | None = None

    async def start(self, *, joined: bool = True) -> None:
        """Start the agent. If `joined`, wait for its first frame."""
        heard = len(self.edge.observed)
        arguments = [
            *("run", "--state", str(self.state), "--edge", self.edge.url),
            *("--join-token", TOKEN, "--host", "h1"),
            *("--simulate", "2xH100-80GB", "--simulate-mig", "1:2x3g.40gb"),
            # Without this option, all tests would share the lock folder of the host.
            *("--locks", str(self.state / "locks")),
            *("--launcher", self.launcher, "--sample-seconds", "0.3", *self.more),
        ]
        if self.program == PROGRAM and self.cwd == ROOT:
            if has_its_first_environment():
                self.process = start_preloaded_agent(arguments, self.counts, self.constants)
            else:
                program = [*COUNTED_PROGRAM, str(self.counts), json.dumps(self.constants)]
                self.process = await asyncio.create_subprocess_exec(*program, *arguments, cwd=ROOT)
        else:
            self.process = await asyncio.create_subprocess_exec(*self.program, *arguments, cwd=self.cwd)
        if joined:
            await self.edge.until(lambda: len(self.edge.observed) > heard)

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def counts(self) -> Path:
        """Return the folder with one counter file for each step of `counted_agent.STEPS`.

        A restarted agent continues the same counters.
        """
        return self.state.with_name(f"{self.state.name}-counts")

    def count(self, step: str) -> int:
        """Return how often the agent has completed `step`, a name in `counted_agent.STEPS`."""
        return read_count(self.counts, step)

    async def after_steps(self, step: str, times: int) -> None:
        """Wait until the agent has completed `step` as often as `times` says.

        Only steps that begin after this call count.

        A test calls this before it asserts that the agent did not do something. A sleep would be too short on
        a slow machine.
        """
        first = self.count(step)  # one extra: a step that has already begun does not count
        await self.edge.until(lambda: self.count(step) > first + times)

    async def outlive_lease(self, run: str) -> None:
        """Wait until the run's current lease has expired and its shim has since checked the lease file.

        If the run still continues, the agent must have renewed the lease.
        """
        lease = float((self.state / "runs" / run / "lease").read_text())
        await self.edge.until(lambda: boottime() > lease + 2 * supervisor.TICK_SECONDS)
        await self.after_steps("shim_poll", 1)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self.send(signal.SIGKILL)
        assert self.process is not None
        await self.process.wait()

    async def end(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.send(signal.SIGTERM)
        assert self.process is not None
        return await self.process.wait()

    @property
    def units(self) -> list[str]:
        """Return the uuids of the units: the first GPU as a whole, then the slices of the second GPU."""
        return [unit.uuid for gpu in self.edge.observed[0].inventory.gpus for unit in gpu.units]

    def shim(self, run: str) -> dict[str, int]:
        """Return the content of the run's shim.json."""
        found: dict[str, int] = read_json(self.state / "runs" / run / "shim.json") or {}
        return found

    async def printed(self, run: str) -> str:
        """Wait for the end of the run and return its whole output.

        The agent may report the end before it sends the last log chunk, so also wait for that chunk.
        """
        await self.edge.until_state(run, "ended", 90.0)
        kept = sum(path.stat().st_size for path in (self.state / "runs" / run / "log").iterdir())
        await self.edge.until(lambda: len(self.edge.log_bytes.get(run, b"")) >= kept)
        return self.edge.log(run)

    def clean_up(self) -> None:
        """Kill all remaining processes of this agent, by pid.

        Remove the cgroups and network namespaces of these processes.
        """
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        for folder in (self.state / "runs").glob("*"):
            kill_shim(folder)
            about = read_json(folder / "run.json") or {}
            if "mark" in about:
                Cgroups().remove(about["mark"])
                space = f"gpupool-{about['mark']}"
                if (NETNS_FOLDER / space).exists():
                    subprocess.run(["ip", "netns", "delete", space], check=True)
        if "--network" in self.more and os.geteuid() == 0:
            forget_network(self.state)


def kill_shim(run_folder: Path) -> None:
    """Kill the shim of a run and its descendants, if it is alive."""
    shim = read_json(run_folder / "shim.json") or {}
    if shim and processes.is_alive(shim["pid"], shim["start_ticks"]):
        rest = processes.descendants(processes.scan(), shim["pid"])
        for pid in [shim["pid"], *(process.pid for process in rest)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def forget_network(state: Path) -> None:
    """Delete the nft rules of the agent with this state folder.

    A killed agent leaves its rules, because its workloads still need them.
    """
    path = "/usr/sbin:/sbin:/usr/bin:/bin"
    if shutil.which("nft", path=path):  # without nft no rules were made
        words = ["nft", "delete", "table", "inet", f"gpupool_{network_key(state)}"]
        subprocess.run(words, capture_output=True, env={"PATH": path})


MakeAgent = Callable[..., Awaitable[AgentProcess]]


@pytest.fixture
async def edge() -> AsyncIterator[FakeEdge]:
    """Start a fake edge that listens on a loopback port."""
    edge = FakeEdge()
    await edge.start()
    yield edge
    await edge.stop()


@pytest.fixture
async def make_agent(edge: FakeEdge, tmp_path: Path) -> AsyncIterator[MakeAgent]:
    """Return a function that starts agents.

    After the test, the fixture ends the agents and all their processes.
    """
    made: list[AgentProcess] = []

    async def make(
        *more: str,
        launcher: str = "plain",
        state: str = "state",
        joined: bool = True,
        constants: dict[str, float] | None = None,
    ) -> AgentProcess:
        agent = AgentProcess(edge, tmp_path / state, launcher, list(more), constants=constants or {})
        made.append(agent)
        await agent.start(joined=joined)
        return agent

    yield make
    for agent in made:
        agent.clean_up()
        if agent.process is not None:
            await agent.process.wait()


@pytest.fixture
async def agent(make_agent: MakeAgent) -> AgentProcess:
    """Start a joined agent that runs workloads as plain processes."""
    return await make_agent()


def job(
    command: str, *, generation: int = 1, units: list[str] | None = None, run: str = "", **fields: object
) -> RunWanted:
    """Return the desired state of a job."""
    values: dict[str, object] = {
        "run": run or f"run-{generation}",
        "workload": f"workload-{run or generation}",
        "generation": generation,
        "verb": "start",
        "command": command,
        "unit_uuids": units or [],
        "owner": "ada",
        "team": "blue",
        "grace_seconds": 5.0,
    }
    return RunWanted(**{**values, **fields})  # type: ignore[arg-type]
