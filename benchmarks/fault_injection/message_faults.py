"""Injects faults into messages: many hosts on one edge, whose frames are lost, duplicated, delayed, reordered
and replayed.

The hosts are light agents (``benchmarks/harness/light_agents.py``). They decide like the real agent, with
``agent.runs.reconcile.plan_actions`` and ``agent.host.state.Generations``, and use the installation's own
edge over real WebSockets at many times the usual rate. This module decides what happens to each frame in both
directions, and closes connections from time to time. Jobs start and end meanwhile.
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
from benchmarks.harness.installation import MODEL, ConditionTimeout, Installation, rows, wait_until
from benchmarks.harness.light_agents import AgentTally, LightAgent, LightRun, sample_reading

HOSTS = 24
GPUS = 2
FRAMES = 5_000  # of a round, both ways together
ROUND_SECONDS = 240.0  # for so many
PACE_SECONDS = 0.15  # between two reports of one host meanwhile
BATCH_SECONDS = 0.5
BATCHES_WAITING = 40
BATCHES_AT_ONCE = 4
RESENT_SECONDS = 3.0  # a batch that is not committed after this is sent again
UNANSWERED_SECONDS = (
    1.0  # the answer may be lost; until then an edge that is behind is not given more to read
)
JOBS_AT_ONCE = 30
REMEMBERED = 200  # frames of each host and way that may be replayed
POOL = "messages"


@dataclass
class Direction:
    """One direction of one host's line, for ever."""

    held: list[str] = field(default_factory=list)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


@dataclass
class MessageFaults:
    """What happens to frames; nothing while there are no rng."""

    rng: random.Random | None = None
    frames: int = 0
    disturbed: int = 0
    broken_lines: int = 0

    def of(self, frame: str, way: Direction) -> list[str]:
        """What goes on of a frame and of those held back before it.

        Raises ConnectionResetError when the line breaks.
        """
        way.said.append(frame)
        late, way.held = way.held, []
        if self.rng is None:
            return [*late, frame]
        self.frames += 1
        if self.rng.random() < 0.001:
            self.broken_lines += 1
            raise ConnectionResetError("the line breaks")
        fate = self.rng.random()
        self.disturbed += fate < 0.5
        if fate < 0.1:
            way.held = late
            return []
        if fate < 0.3:
            way.held = [*late, frame]
            return []
        self.rng.shuffle(late)
        if fate < 0.4:
            return [frame, *late, frame]
        return [frame, *late, self.rng.choice(way.said)] if fate < 0.5 else [*late, frame]


class FaultyWire:
    """A WebSocket as an agent sees it, with fates on it."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, fates: MessageFaults, up: Direction, down: Direction
    ) -> None:
        self.socket, self.fates, self.up, self.down = socket, fates, up, down

    async def send_str(self, text: str) -> None:
        for piece in self.fates.of(text, self.up):
            await self.socket.send_str(piece)

    async def __aiter__(self) -> AsyncIterator[aiohttp.WSMessage]:
        async for message in self.socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                yield message
                continue
            for piece in self.fates.of(message.data, self.down):
                yield message._replace(data=piece)


class MessageHost(LightAgent):
    """A light agent that decides as the real one does, on a disturbed line."""

    def __init__(
        self, edge: str, name: str, token: str, fates: MessageFaults, tally: AgentTally, folder: Path
    ) -> None:
        super().__init__(edge, name, token, GPUS, MODEL, tally)
        self.fates = fates
        self.ways = Direction(), Direction()
        self.generations = Generations(folder / f"{name}.json")
        self.newest = 0  # Observed that the server is known to have handled
        self.is_old = False
        self.heard_at = 0.0
        self.end_said_after: dict[str, int] = {}
        self.produced = 0  # rows of samples
        self.batch_sent_at: dict[int, float] = {}

    @contextlib.asynccontextmanager
    async def ws_connect(self, *where: Any, **how: Any) -> AsyncIterator[FaultyWire]:
        """As a session's, which this stands in for."""
        async with self.session.ws_connect(*where, **how) as socket:
            yield FaultyWire(socket, self.fates, *self.ways)

    async def keep(self, session: aiohttp.ClientSession, first: float) -> None:
        self.session = session
        await asyncio.sleep(first)
        while True:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                await self._talk(self)  # type: ignore[arg-type]
            await asyncio.sleep(random.uniform(0.05, 0.3))

    def _hear(self, desired: dict[str, Any]) -> None:
        self.is_old = desired["answers"] < self.newest
        self.newest = max(self.newest, desired["answers"])
        super()._hear(desired)
        if self.fates.rng is not None:
            self.poll_seconds = PACE_SECONDS

    def _reconcile(self, wanted: dict[str, dict[str, Any]], at: float, now: float) -> None:
        if not self.is_old:
            self.heard_at = now
        for name, run in self.runs.items():
            if name in wanted:
                run.undesired_since = None
            elif not self.is_old and run.undesired_since is None:
                run.undesired_since = now
        told = [parse(RunWanted, want) for want in wanted.values()]
        desired = Desired(VERSION, self.name, self.lease_seconds, told, poll_seconds=self.poll_seconds)
        held = [self._held(name, run) for name, run in self.runs.items()]
        units = frozenset(self.units)
        for action in plan_actions(
            desired, held, refusal=self.generations.refusal, known_units=units, heard_at=self.heard_at
        ):
            if isinstance(action, StartRun):
                self.generations.use(action.wanted.generation, action.wanted.unit_uuids)
                self._begin(action.wanted.run, wanted[action.wanted.run], at)
            elif isinstance(action, RefuseRun):
                seen = RunSeen(action.wanted.run, action.wanted.generation, "starting")
                self.runs[action.wanted.run] = LightRun(seen, 0.0, [], 0.0)
                self._end(self.runs[action.wanted.run], outcome=action.outcome, exit_code=None)
            elif isinstance(action, StopRun):
                self._end(self.runs[action.run], outcome=action.outcome, exit_code=None)
            elif isinstance(action, ForgetRun):
                del self.runs[action.run]

    def _patience(self) -> float:
        return (
            max(UNANSWERED_SECONDS, self.poll_seconds) if self.sequence in self.sent_at else self.poll_seconds
        )

    def _held(self, name: str, run: LightRun) -> RunStatus:
        said = run.seen.state == "ended" and self.sequence > self.end_said_after[name]
        return RunStatus(name, run.seen.state, reported_ended=said, undesired_since=run.undesired_since)

    def _end(self, run: LightRun, outcome: str, exit_code: int | None) -> None:
        super()._end(run, outcome, exit_code)
        self.end_said_after[run.seen.run] = self.sequence

    async def _sample(self, socket: Any) -> None:
        """New batches while the line is disturbed; whatever is not committed is sent again and again."""
        while True:
            if self.fates.rng is not None and len(self.waiting) < BATCHES_WAITING:
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
                self.waiting[batch.sequence] = batch
                self.produced += len(batch.rows)
            now = time.monotonic()
            due = [
                number
                for number in self.waiting
                if now - self.batch_sent_at.get(number, 0.0) > RESENT_SECONDS
            ]
            for number in due[:BATCHES_AT_ONCE]:
                self.batch_sent_at[number] = now
                await socket.send_str(encode(self.waiting[number]))
            await asyncio.sleep(BATCH_SECONDS)


class MessageHosts:
    """All of them, on one event loop in a thread of its own."""

    def __init__(self, site: Installation) -> None:
        self.site, self.fates, self.tally = site, MessageFaults(), AgentTally()
        self.folder = tempfile.TemporaryDirectory(prefix="gpupool-messages-")
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="messages", daemon=True).start()
        place, edge = Path(self.folder.name), f"http://127.0.0.1:{site.port + 1}"
        self.all = [
            MessageHost(edge, n, token, self.fates, self.tally, place)
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
            self.tasks[host.name] = asyncio.create_task(host.keep(self.session, number * 0.05))

    def _alive(self) -> int:
        from scheduler.models import Host as Row

        return int(rows(lambda: Row.objects.filter(pool__slug=POOL, lease_state="alive").count()))

    def _silent(self, count: int) -> bool:
        from scheduler.models import Host as Row

        return bool(rows(lambda: Row.objects.filter(pool__slug=POOL, lease_state="silent").count()) >= count)

    def end(self) -> None:
        """A few at a time: most hosts gone at once would be mass silence, and count for ever."""
        left = [host.name for host in self.all]
        while left:
            few = max(1, (len(left) + len(self.site.hosts)) // 2 - 1)
            gone, left = left[:few], left[few:]
            for name in gone:
                self._loop.call_soon_threadsafe(self.tasks[name].cancel)
            wait_until(
                partial(self._silent, HOSTS - len(left)), MAX_WAIT_SECONDS, "light hosts that went are silent"
            )
        self._run(self.session.close())
        self.folder.cleanup()

    # -- what is so ----------------------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What the hosts and the server do not yet agree on; '' when they do."""
        runs = sum(len(host.runs) for host in self.all)
        batches = sum(len(host.waiting) for host in self.all)
        return f"{runs} runs on hosts, {batches} batches of samples not committed" if runs or batches else ""

    def wrong(self) -> list[str]:
        """What the hosts themselves saw that may never be."""
        found = [
            f"{times} times: {what}" for what, times in self.tally.errors.items() if what.startswith("run: ")
        ]
        dead = [name for name, task in self.tasks.items() if task.done()]
        produced, stored = sum(host.produced for host in self.all), rows(_samples)
        if produced != stored:
            found.append(f"{produced} readings were made and {stored} are stored")
        return [*found, *(f"{name} broke: {self.tasks[name].exception()!r}" for name in dead)]


def _make_hosts(site: Installation) -> list[tuple[str, str]]:
    """A pool of their own, and a join token for each."""
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


def end_hosts(broken: FaultContext) -> None:
    """After the last round."""
    if broken.site.messages is not None:
        broken.site.messages.end()
        broken.site.messages = None


@fault(
    f"{FRAMES} frames of {HOSTS} hosts, half of them lost, doubled, late, out of order or replayed: state converges",
    30,
    under_load=False,
    after=end_hosts,
)
def many_messages(broken: FaultContext) -> float:
    hosts = broken.site.messages = broken.site.messages or MessageHosts(broken.site)
    fates = hosts.fates
    before = fates.frames, fates.disturbed, fates.broken_lines
    jobs: list[str] = []
    fates.rng, ends = random.Random(broken.rng.random()), time.monotonic() + ROUND_SECONDS
    try:
        while fates.frames - before[0] < FRAMES:
            if time.monotonic() > ends:
                raise ConditionTimeout(
                    f"{FRAMES} frames: {fates.frames - before[0]} in {ROUND_SECONDS:.0f} s"
                )
            if len(jobs) < JOBS_AT_ONCE or rows(partial(_living, jobs)) < JOBS_AT_ONCE:
                seconds = round(broken.rng.uniform(0.2, 3), 1)
                units = broken.rng.choice([1, 1, 2])
                jobs.append(
                    broken.ledger.insist(
                        f"sleep {seconds}", MAX_WAIT_SECONDS, units, to_end_well=False, pool=POOL
                    )
                )
            time.sleep(broken.rng.expovariate(4))
    finally:
        fates.rng = None
    began = time.monotonic()
    seconds_taken = began - ends + ROUND_SECONDS
    wait_until(lambda: not rows(partial(_living, jobs)), MAX_WAIT_SECONDS, "all jobs end", every=0.2)
    try:
        wait_until(lambda: not hosts.unsettled(), MAX_WAIT_SECONDS, "all is settled")
    except ConditionTimeout as problem:
        raise ConditionTimeout(f"{problem}: {hosts.unsettled()}") from None
    took = time.monotonic() - began
    frames, disturbed, lines = (
        fates.frames - before[0],
        fates.disturbed - before[1],
        fates.broken_lines - before[2],
    )
    print(
        f"    {frames} frames in {seconds_taken:.0f} s, {disturbed} of them disturbed, {lines} lines broken, {len(jobs)} jobs",
        flush=True,
    )
    wrong = hosts.wrong() + rows(partial(_ended_otherwise, jobs))
    if wrong:
        raise ConditionTimeout("; ".join(wrong))
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
