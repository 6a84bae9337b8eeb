"""Inject faults into messages: frames of many hosts are lost, duplicated, delayed, reordered and replayed.

The hosts are light agents (``benchmarks/harness/light_agents.py``). They decide like the real agent, with
``agent.runs.reconcile.plan_actions`` and ``agent.host.state.Generations``. They connect to the installation's
own edge over real WebSockets, and send far more frames than real agents.

The faults affect frames in both directions. Sometimes a whole connection breaks. Jobs start and end
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from agent.host.state import Generations
from agent.protocol import SLOTS_PER_GPU, VERSION, Desired, RunSeen, RunWanted, SampleBatch, encode, parse
from agent.runs.reconcile import ForgetRun, RefuseRun, RunStatus, StartRun, StopRun, plan_actions
from benchmarks.fault_injection.process_faults import MAX_WAIT_SECONDS, FaultContext, fault
from benchmarks.harness.conditions import ConditionTimeout, rows, wait_until
from benchmarks.harness.installation import MODEL, Installation
from benchmarks.harness.light_agents import AgentTally, LightAgent, LightRun, sample_reading

HOSTS = 24
GPUS = 2
FRAMES = 5_000  # frames of one round, in both directions together
ROUND_SECONDS = 240.0  # longest time in which FRAMES frames must be sent
PACE_SECONDS = 0.15  # time between two reports of one host during a round
BATCH_SECONDS = 0.5
BATCHES_WAITING = 40
BATCHES_AT_ONCE = 4
RESENT_SECONDS = 3.0  # time after which an uncommitted batch is sent again
# An answer may be lost. After this time, a host sends its next report without waiting for the answer.
UNANSWERED_SECONDS = 1.0
JOBS_AT_ONCE = 30
REMEMBERED = 200  # number of latest frames of each host and direction that may be replayed
POOL = "messages"


@dataclass
class Direction:
    """The frames of one host in one direction. The object is kept when the host reconnects.

    ``delayed`` frames are still held back. ``sent`` frames may be replayed.
    """

    delayed: list[str] = field(default_factory=list)
    sent: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


@dataclass
class MessageFaults:
    """A source of random faults. It chooses a fault, or none, for each frame.

    While ``rng`` is None, all frames pass unchanged.
    """

    rng: random.Random | None = None
    frames: int = 0
    disturbed: int = 0
    broken_connections: int = 0

    def of(self, frame: str, direction: Direction) -> list[str]:
        """Return the frames to forward now that ``frame`` has arrived.

        The result may include frames that were delayed before. Raises ConnectionResetError to break the
        connection.
        """
        direction.sent.append(frame)
        released, direction.delayed = direction.delayed, []
        if self.rng is None:
            return [*released, frame]
        self.frames += 1
        if self.rng.random() < 0.001:
            self.broken_connections += 1
            raise ConnectionResetError("the connection breaks")
        draw = self.rng.random()
        self.disturbed += draw < 0.5
        if draw < 0.1:
            direction.delayed = released
            return []
        if draw < 0.3:
            direction.delayed = [*released, frame]
            return []
        self.rng.shuffle(released)
        if draw < 0.4:
            return [frame, *released, frame]
        return [frame, *released, self.rng.choice(direction.sent)] if draw < 0.5 else [*released, frame]


class FaultyWire:
    """The agent's end of a WebSocket. Faults are injected into the messages."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, faults: MessageFaults, up: Direction, down: Direction
    ) -> None:
        self.socket, self.faults, self.up, self.down = socket, faults, up, down

    async def send_str(self, text: str) -> None:
        for piece in self.faults.of(text, self.up):
            await self.socket.send_str(piece)

    async def __aiter__(self) -> AsyncIterator[aiohttp.WSMessage]:
        async for message in self.socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                yield message
                continue
            for piece in self.faults.of(message.data, self.down):
                yield message._replace(data=piece)


class MessageHost(LightAgent):
    """A light agent that decides like the real agent, on a connection with faults."""

    def __init__(
        self, edge: str, name: str, token: str, faults: MessageFaults, tally: AgentTally, folder: Path
    ) -> None:
        super().__init__(edge, name, token, GPUS, MODEL, tally)
        self.faults = faults
        self.ways = Direction(), Direction()
        self.generations = Generations(folder / f"{name}.json")
        self.newest = 0  # sequence of the newest report (Observed) that the server has answered
        self.is_old = False
        self.heard_at = 0.0
        self.end_reported_after: dict[str, int] = {}
        self.produced = 0  # number of sample rows produced so far
        self.batch_sent_at: dict[int, float] = {}

    @contextlib.asynccontextmanager
    async def ws_connect(self, *where: Any, **how: Any) -> AsyncIterator[FaultyWire]:
        """Connect as ``aiohttp.ClientSession.ws_connect`` does, but inject faults into the messages."""
        async with self.session.ws_connect(*where, **how) as socket:
            yield FaultyWire(socket, self.faults, *self.ways)

    async def stay_connected(self, session: aiohttp.ClientSession, first: float) -> None:
        self.session = session
        await asyncio.sleep(first)
        while True:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                await self._talk(self)  # type: ignore[arg-type]
            await asyncio.sleep(random.uniform(0.05, 0.3))

    def _on_desired(self, desired: dict[str, Any]) -> None:
        self.is_old = desired["answers"] < self.newest
        self.newest = max(self.newest, desired["answers"])
        super()._on_desired(desired)
        if self.faults.rng is not None:
            self.poll_seconds = PACE_SECONDS

    def _reconcile(self, wanted: dict[str, dict[str, Any]], at: float, now: float) -> None:
        if not self.is_old:
            self.heard_at = now
        for name, run in self.runs.items():
            if name in wanted:
                run.undesired_since = None
            elif not self.is_old and run.undesired_since is None:
                run.undesired_since = now
        runs = [parse(RunWanted, want) for want in wanted.values()]
        desired = Desired(VERSION, self.name, self.lease_seconds, runs, poll_seconds=self.poll_seconds)
        held = [self._held(name, run) for name, run in self.runs.items()]
        units = frozenset(self.units)
        for action in plan_actions(
            desired, held, refusal=self.generations.refusal, known_units=units, heard_at=self.heard_at
        ):
            if isinstance(action, StartRun):
                self.generations.use(action.wanted.generation, action.wanted.unit_uuids)
                self._start_run(action.wanted.run, wanted[action.wanted.run], at)
            elif isinstance(action, RefuseRun):
                seen = RunSeen(action.wanted.run, action.wanted.generation, "starting")
                self.runs[action.wanted.run] = LightRun(seen, 0.0, [], 0.0)
                self._end_run(self.runs[action.wanted.run], outcome=action.outcome, exit_code=None)
            elif isinstance(action, StopRun):
                self._end_run(self.runs[action.run], outcome=action.outcome, exit_code=None)
            elif isinstance(action, ForgetRun):
                del self.runs[action.run]

    def _report_interval(self) -> float:
        return (
            max(UNANSWERED_SECONDS, self.poll_seconds) if self.sequence in self.sent_at else self.poll_seconds
        )

    def _held(self, name: str, run: LightRun) -> RunStatus:
        is_reported = run.seen.state == "ended" and self.sequence > self.end_reported_after[name]
        return RunStatus(
            name, run.seen.state, reported_ended=is_reported, undesired_since=run.undesired_since
        )

    def _end_run(self, run: LightRun, outcome: str, exit_code: int | None) -> None:
        super()._end_run(run, outcome, exit_code)
        self.end_reported_after[run.seen.run] = self.sequence

    async def _sample(self, socket: Any) -> None:
        """Produce new batches of samples while faults are injected.

        Each batch is sent again until the server has committed it.
        """
        while True:
            if self.faults.rng is not None and len(self.uncommitted) < BATCHES_WAITING:
                self.batches += 1
                holders = {
                    u: run.seen.run
                    for run in self.runs.values()
                    if run.seen.state == "running"
                    for u in run.units
                }
                batch = SampleBatch(
                    self.batches, [sample_reading(u, time.time(), holders.get(u)) for u in self.units]
                )
                self.uncommitted[batch.sequence] = batch
                self.produced += len(batch.rows)
            now = time.monotonic()
            due = [
                number
                for number in self.uncommitted
                if now - self.batch_sent_at.get(number, 0.0) > RESENT_SECONDS
            ]
            for number in due[:BATCHES_AT_ONCE]:
                self.batch_sent_at[number] = now
                await socket.send_str(encode(self.uncommitted[number]))
            await asyncio.sleep(BATCH_SECONDS)


class MessageHosts:
    """All hosts of this fault, on one event loop in its own thread."""

    def __init__(self, site: Installation) -> None:
        self.site, self.faults, self.tally = site, MessageFaults(), AgentTally()
        self.folder = tempfile.TemporaryDirectory(prefix="gpupool-messages-")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="messages", daemon=True).start()
        place, edge = Path(self.folder.name), f"http://127.0.0.1:{site.port + 1}"
        self.all = [
            MessageHost(edge, n, token, self.faults, self.tally, place)
            for n, token in rows(partial(_make_hosts, site))
        ]
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._run(self._begin())
        wait_until(lambda: self._alive() == HOSTS, MAX_WAIT_SECONDS, "all light hosts are alive")

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(MAX_WAIT_SECONDS)

    async def _begin(self) -> None:
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        for number, host in enumerate(self.all):
            await host.join(self.session)
            self.tasks[host.name] = asyncio.create_task(host.stay_connected(self.session, number * 0.05))

    def _alive(self) -> int:
        from scheduler.models import Host as Row

        return int(rows(lambda: Row.objects.filter(pool__slug=POOL, lease_state="alive").count()))

    def _silent(self, count: int) -> bool:
        from scheduler.models import Host as Row

        return bool(rows(lambda: Row.objects.filter(pool__slug=POOL, lease_state="silent").count()) >= count)

    def end(self) -> None:
        """Stop the hosts in groups, each smaller than half of all living hosts.

        If most hosts were lost at once, the server would treat this as a mass outage.
        """
        remaining = [host.name for host in self.all]
        while remaining:
            group_size = max(1, (len(remaining) + len(self.site.hosts)) // 2 - 1)
            stopped, remaining = remaining[:group_size], remaining[group_size:]
            for name in stopped:
                self._loop.call_soon_threadsafe(self.tasks[name].cancel)
            wait_until(
                partial(self._silent, HOSTS - len(remaining)),
                MAX_WAIT_SECONDS,
                "stopped light hosts are silent",
            )
        self._run(self.session.close())
        self.folder.cleanup()

    # -- checks -----------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """Return a description of the runs and batches on which hosts and server do not agree yet.

        Return '' if there are none.
        """
        runs = sum(len(host.runs) for host in self.all)
        batches = sum(len(host.uncommitted) for host in self.all)
        return f"{runs} runs on hosts, {batches} batches of samples not committed" if runs or batches else ""

    def wrong(self) -> list[str]:
        """Return the violations that the hosts detected, and the samples and hosts that were lost."""
        violations = [
            f"{times} times: {error}"
            for error, times in self.tally.errors.items()
            if error.startswith("run: ")
        ]
        dead = [name for name, task in self.tasks.items() if task.done()]
        produced, stored = sum(host.produced for host in self.all), rows(_samples)
        if produced != stored:
            violations.append(f"{produced} samples were produced and {stored} are stored")
        return [*violations, *(f"{name} failed: {self.tasks[name].exception()!r}" for name in dead)]


def _make_hosts(site: Installation) -> list[tuple[str, str]]:
    """Create a pool and its hosts. Return (name, join token) of each host."""
    from portal.models import User
    from portal.services.fleet import hosts
    from scheduler.models import Pool, Quota, Team

    now = datetime.now(UTC)
    pool = Pool.objects.create(
        slug=POOL, name="Messages", kind="dynamic", created_at=now, notice_seconds=1, grace_seconds=1
    )
    Quota.objects.create(
        team=Team.objects.get(slug="faults"),
        pool=pool,
        model=MODEL,
        guaranteed_slots=HOSTS * GPUS * SLOTS_PER_GPU,
        updated_at=now,
    )
    operator = User.objects.get(username="operator")
    names = [f"light-{number}" for number in range(1, HOSTS + 1)]
    return [
        (name, hosts.add_host(actor=operator, pool=pool, name=name, now=now, labels={})[1]) for name in names
    ]


def _samples() -> int:
    from telemetry.models import Sample

    return int(
        Sample.objects.filter(unit__gpu__host__pool__slug=POOL).values("unit", "ts").distinct().count()
    )


def end_hosts(context: FaultContext) -> None:
    """Stop the hosts of this fault after its last round."""
    if context.site.messages is not None:
        context.site.messages.end()
        context.site.messages = None


@fault(
    f"{FRAMES} frames of {HOSTS} hosts, half of the frames lost, duplicated, late, reordered or replayed:"
    " state converges",
    30,
    under_load=False,
    after=end_hosts,
)
def many_messages(context: FaultContext) -> float:
    hosts = context.site.messages = context.site.messages or MessageHosts(context.site)
    faults = hosts.faults
    before = faults.frames, faults.disturbed, faults.broken_connections
    jobs: list[str] = []
    faults.rng, deadline = random.Random(context.rng.random()), time.monotonic() + ROUND_SECONDS
    try:
        while faults.frames - before[0] < FRAMES:
            if time.monotonic() > deadline:
                raise ConditionTimeout(
                    f"{FRAMES} frames: {faults.frames - before[0]} in {ROUND_SECONDS:.0f} s"
                )
            if len(jobs) < JOBS_AT_ONCE or rows(partial(_living, jobs)) < JOBS_AT_ONCE:
                seconds = round(context.rng.uniform(0.2, 3), 1)
                units = context.rng.choice([1, 1, 2])
                jobs.append(
                    context.ledger.submit_with_retry(
                        f"sleep {seconds}", MAX_WAIT_SECONDS, units, to_end_well=False, pool=POOL
                    )
                )
            time.sleep(context.rng.expovariate(4))
    finally:
        faults.rng = None
    began = time.monotonic()
    seconds_taken = began - deadline + ROUND_SECONDS
    wait_until(lambda: not rows(partial(_living, jobs)), MAX_WAIT_SECONDS, "all jobs end", every=0.2)
    try:
        wait_until(lambda: not hosts.unsettled(), MAX_WAIT_SECONDS, "hosts and server agree")
    except ConditionTimeout as error:
        raise ConditionTimeout(f"{error}: {hosts.unsettled()}") from None
    took = time.monotonic() - began
    frames, disturbed, broken_connections = (
        faults.frames - before[0],
        faults.disturbed - before[1],
        faults.broken_connections - before[2],
    )
    print(
        f"    {frames} frames in {seconds_taken:.0f} s, {disturbed} of them disturbed,"
        f" {broken_connections} connections broken, {len(jobs)} jobs",
        flush=True,
    )
    problems = hosts.wrong() + rows(partial(_ended_otherwise, jobs))
    if problems:
        raise ConditionTimeout("; ".join(problems))
    return took


def _living(jobs: list[str]) -> int:
    from scheduler.models import Workload

    return int(Workload.objects.filter(public_id__in=jobs).exclude(state="ended").count())


def _ended_otherwise(jobs: list[str]) -> list[str]:
    from scheduler.models import Workload

    found = Workload.objects.filter(public_id__in=jobs).values_list("public_id", "outcome", "attempt")
    return [
        f"job {job} is {outcome} at attempt {attempt}"
        for job, outcome, attempt in found
        if outcome != "finished"
    ]
