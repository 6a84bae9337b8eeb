"""Run many agents in one process to put load on an edge: ``python -m benchmarks.harness.light_agents``.

Each agent uses the whole wire protocol like the real agent:

- It makes a key, and signs its join token and the server's challenges with this key.
- It reports its full state every ``poll_seconds``, and at once after a change.
- It sends a batch of samples every five seconds. It keeps each batch until the server has committed it.
- It starts and stops runs as the last frame ``Desired`` requires.

Only the workloads are missing. A run is reported as starting, soon afterwards as running, and finally as
ended. If its command is ``sleep N``, it runs for N seconds.

Input: the first line of stdin is ``{"edge", "gpus", "model", "hosts": [{"name", "token"}]}``. A line
``measure`` resets the counted errors and the round trips. Any other line, or the end of stdin, ends the
process.

Output: the line ``joined`` when every agent has joined, and one line of JSON at the end: ``{"arrivals": {RUN:
seconds since the epoch}, "errors": {DESCRIPTION: count}, "round_trips": [seconds]}``. A round trip lasts from
a report (the frame ``Observed``) to its answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import sys
import time
import uuid
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from agent import AGENT_VERSION
from agent.protocol import (
    JOIN_PATH,
    SLOTS_PER_GPU,
    SYNC_PATH,
    VERSION,
    EnvironmentSeen,
    GpuSeen,
    Inventory,
    JoinRequest,
    Observed,
    Proof,
    RunSeen,
    SampleBatch,
    SampleRow,
    UnitSeen,
    encode,
)
from agent.server import host_key
from agent.server.connection import UNANSWERED_POLLS

SAMPLE_SECONDS = 5.0
BATCHES_AHEAD = 100
BEGIN_SECONDS = 0.2  # time that a run is "starting" before it is "running"
# Number of agents of one process that connect in a second. Each agent sends its first report when it
# connects. So the reports are also spread over time.
CONNECTS_PER_SECOND = 8.0
LOOK_SECONDS = 0.4  # time between two checks for an overdue answer
CONCURRENT_JOINS = 4
LONGEST_RETRY_SECONDS = 8.0
MEMORY_MIB = 81_559
SLEEP = re.compile(r"^sleep (\d+(?:\.\d+)?)$")


@dataclass
class AgentTally:
    """The combined results of all agents of this process."""

    arrivals: dict[str, float] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    round_trips: list[float] = field(default_factory=list)
    over: bool = False


@dataclass
class LightRun:
    """A run of a light agent. It has no process."""

    seen: RunSeen
    ends_at: float  # when its current state ends, in the time of the event loop
    units: list[str]
    seconds: float  # its runtime
    undesired_since: float | None = None


class LightAgent:
    """A light agent: the protocol side of one host's agent."""

    def __init__(self, edge: str, name: str, token: str, gpus: int, model: str, tally: AgentTally) -> None:
        self.edge, self.name, self.token, self.tally = edge, name, token, tally
        self.key = Ed25519PrivateKey.generate()
        self.credential = ""
        self.instance, self.start, self.boot = (uuid.uuid4().hex for _ in range(3))
        self.units = [f"GPU-{uuid.uuid4()}" for _ in range(gpus)]
        self.runs: dict[str, LightRun] = {}
        self.uncommitted: dict[int, SampleBatch] = {}  # batches that the server has not committed, by number
        self.batches = 0
        self.sequence = 0
        self.sent_at: dict[int, float] = {}
        self.poll_seconds, self.lease_seconds = 5.0, 30.0
        self.lease_until = float("inf")
        self.due = asyncio.Event()
        self.proofs: list[Proof] = []
        self.challenge = ""
        observed = Observed(
            VERSION,
            AGENT_VERSION,
            self.boot,
            self.instance,
            0,
            _inventory(self.units, model),
            [],
            start=self.start,
            starts_before=[self.start],
            strays=[],
        )
        self.report = asdict(observed)
        self.inventory = json.dumps(self.report.pop("inventory"), separators=(",", ":"))

    async def join(self, session: aiohttp.ClientSession) -> None:
        """Make a new key, and exchange the join token for a credential."""
        public = base64.b64encode(self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
        signature = self._sign(host_key.join_message(self.name, self.token))
        request = JoinRequest(VERSION, self.token, self.name, self.instance, self.boot, public, signature)
        async with session.post(self.edge + JOIN_PATH, json=asdict(request)) as answer:
            body = await answer.json()
            if answer.status != 200:
                raise SystemExit(f"{self.name} may not join ({answer.status}): {body}")
            self.credential = body["credential"]

    def _sign(self, text: bytes) -> str:
        return base64.b64encode(self.key.sign(text)).decode()

    async def stay_connected(self, session: aiohttp.ClientSession, first: float) -> None:
        """Connect to the edge, and reconnect forever.

        ``first`` is the delay of the first connection in seconds.
        """
        await asyncio.sleep(first)
        pause = 0.25
        while True:
            try:
                await self._talk(session)
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                self.tally.errors[f"connection: {type(error).__name__}: {str(error)[:80]}"] += 1
            else:
                self.tally.errors["connection: closed by the edge"] += 1
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(LONGEST_RETRY_SECONDS, pause * 2)

    async def _talk(self, session: aiohttp.ClientSession) -> None:
        headers = {"Authorization": f"Bearer {self.credential}"}
        address = self.edge + SYNC_PATH
        async with session.ws_connect(
            address, headers=headers, heartbeat=15.0, max_msg_size=16 << 20
        ) as socket:
            self.sent_at.clear()
            self.report["strays"] = []  # stray processes are reported only once on each connection
            parts = [asyncio.create_task(part(socket)) for part in (self._read, self._send, self._sample)]
            try:
                done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
            for part in done:
                part.result()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            self.due.clear()
            self.sequence += 1
            self.report["sequence"] = self.sequence
            self.report["runs"] = [asdict(run.seen) for run in self.runs.values()]
            self.report["spooled_batches"] = len(self.uncommitted)
            text = json.dumps(self.report, separators=(",", ":"))
            self.sent_at[self.sequence] = time.monotonic()
            await socket.send_str(f'{text[:-1]},"inventory":{self.inventory}}}')
            self.report["strays"] = None
            while self.proofs:
                await socket.send_str(encode(self.proofs.pop()))
            sent_at = asyncio.get_running_loop().time()
            while (
                not self.due.is_set()
                and (now := asyncio.get_running_loop().time()) < sent_at + self._report_interval()
            ):
                self._move_runs()
                ends = (
                    sent_at + self.poll_seconds if now < sent_at + self.poll_seconds else now + LOOK_SECONDS
                )
                soonest = min(
                    [ends, *(run.ends_at for run in self.runs.values() if run.seen.state != "ended")]
                )
                wait = max(0.01, soonest - asyncio.get_running_loop().time())
                try:
                    async with asyncio.timeout(wait):
                        await self.due.wait()
                except TimeoutError:
                    continue
            await asyncio.sleep(0.05)  # shortest time between two reports of the real agent

    def _report_interval(self) -> float:
        """Return the seconds between two reports if nothing has changed.

        The interval is longer while the last report is unanswered.
        """
        return self.poll_seconds * (UNANSWERED_POLLS if self.sequence in self.sent_at else 1.0)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            frame = json.loads(message.data)
            if frame["kind"] == "desired":
                self._on_desired(frame)
            else:
                self.tally.errors[f"{frame['kind']}: {frame.get('reason', '')[:80]}"] += 1

    def _on_desired(self, desired: dict[str, Any]) -> None:
        at, now = time.time(), time.monotonic()
        sent = self.sent_at.get(desired["answers"])
        if sent is not None:
            self.tally.round_trips.append(round(now - sent, 4))
            for number in [number for number in self.sent_at if number <= desired["answers"]]:
                del self.sent_at[number]
            if now > self.lease_until:
                self.tally.errors["lease: over before the server answered"] += 1
            self.lease_until = sent + desired["lease_seconds"]
        self.poll_seconds = desired["poll_seconds"]
        for number in [number for number in self.uncommitted if number <= desired["committed_sequence"]]:
            del self.uncommitted[number]
        self.batches = max(self.batches, desired["committed_sequence"])
        if desired["credential"]:
            self.credential = desired["credential"]
        if desired["challenge"] and desired["challenge"] != self.challenge:
            self.challenge = desired["challenge"]
            self.proofs.append(Proof(self.challenge, self._sign(host_key.renewal_message(self.challenge))))
            self.due.set()
        self._reconcile({wanted["run"]: wanted for wanted in desired["runs"]}, at, now)

    def _reconcile(self, wanted: dict[str, dict[str, Any]], at: float, now: float) -> None:
        for name, want in wanted.items():
            run = self.runs.get(name)
            if run is None and want["verb"] == "start":
                self._start_run(name, want, at)
            elif run is not None and want["verb"] == "stop" and run.seen.state != "ended":
                self._end_run(run, outcome=want["code"], exit_code=None)
        for name in [name for name in self.runs if name not in wanted]:
            run = self.runs[name]
            run.undesired_since = run.undesired_since or now
            if run.seen.state == "ended" or now - run.undesired_since > 2 * self.poll_seconds:
                del self.runs[name]

    def _start_run(self, name: str, want: dict[str, Any], at: float) -> None:
        if name in self.tally.arrivals:
            self.tally.errors["run: started a second time"] += 1
        self.tally.arrivals[name] = at
        units_in_use = {unit for run in self.runs.values() if run.seen.state != "ended" for unit in run.units}
        if units_in_use & set(want["unit_uuids"]) or not set(want["unit_uuids"]) <= set(self.units):
            self.tally.errors["run: its units are in use, or belong to another host"] += 1
        sleep = SLEEP.match(want["command"])
        begins = asyncio.get_running_loop().time() + BEGIN_SECONDS
        seen = RunSeen(name, want["generation"], "starting", step="starting sandbox")
        self.runs[name] = LightRun(seen, begins, want["unit_uuids"], float(sleep[1]) if sleep else 1.0)
        self.due.set()

    def _move_runs(self) -> None:
        now = asyncio.get_running_loop().time()
        for run in self.runs.values():
            if run.seen.state == "starting" and run.ends_at <= now:
                run.seen = RunSeen(run.seen.run, run.seen.generation, "running", started_at=time.time())
                run.ends_at = now + run.seconds
                self.due.set()
            elif run.seen.state == "running" and run.ends_at <= now:
                self._end_run(run, outcome="finished", exit_code=0)

    def _end_run(self, run: LightRun, outcome: str, exit_code: int | None) -> None:
        run.seen = RunSeen(
            run.seen.run,
            run.seen.generation,
            "ended",
            outcome=outcome,
            exit_code=exit_code,
            started_at=run.seen.started_at,
            ended_at=time.time(),
        )
        self.due.set()

    async def _sample(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await asyncio.sleep(random.uniform(0, SAMPLE_SECONDS))
        while True:
            holders = {
                u: run.seen.run
                for run in self.runs.values()
                if run.seen.state == "running"
                for u in run.units
            }
            now = time.time()
            self.batches += 1
            batch = SampleBatch(
                self.batches, [sample_reading(unit, now, holders.get(unit)) for unit in self.units]
            )
            self.uncommitted[batch.sequence] = batch
            if len(self.uncommitted) > BATCHES_AHEAD:
                self.tally.errors["samples: a hundred batches are not committed"] += 1
            else:
                await socket.send_str(encode(batch))
            await asyncio.sleep(SAMPLE_SECONDS)


def _inventory(units: list[str], model: str) -> Inventory:
    gpus = [
        GpuSeen(
            index,
            name,
            model,
            MEMORY_MIB,
            90,
            0,
            index // (len(units) // 2 or 1),
            f"00000000:{index + 1:02X}:00.0",
            [UnitSeen(name, "", 0, SLOTS_PER_GPU, MEMORY_MIB)],
            {other: "NV18" for other in units if other != name},
            "gen 5 x16, of gen 5 x16",
            18,
        )
        for index, name in enumerate(units)
    ]
    packages = {"torch": "2.9.0", "numpy": "2.3.4", "jupyterlab": "4.5.0"}
    return Inventory(
        gpus,
        128_000,
        1_048_576,
        "bubblewrap",
        True,
        "580.95",
        ["its workloads are simulated"],
        EnvironmentSeen("3.11.2", packages, ["/data"]),
        "13.0",
        True,
        ["cpu", "memory", "pids"],
        "v2",
        "private",
    )


def sample_reading(unit: str, at: float, run: str | None) -> SampleRow:
    use = random.uniform(40, 100) if run else 0.0
    return SampleRow(
        unit,
        at,
        run,
        use,
        use * 0.6,
        use * 0.3,
        40_000 if run else 0,
        use * 0.5,
        70 + 6 * use,
        int(at * 100_000),
        30 + use / 2,
        40 + use / 2,
        1_755,
        0,
        1_000,
        900,
        50_000,
        int(run is not None),
        0,
    )


def _listen(tally: AgentTally) -> None:
    """Read stdin until a line other than ``measure``.

    Each line ``measure`` resets the counted errors and the round trips.
    """
    while sys.stdin.readline() == "measure\n":
        tally.errors.clear()
        tally.round_trips.clear()


async def main(orders: dict[str, Any]) -> dict[str, Any]:
    """Run every agent until stdin has a line other than ``measure`` or ends.

    Return the results for the last line of the output.
    """
    tally = AgentTally()
    agents = [
        LightAgent(orders["edge"], host["name"], host["token"], orders["gpus"], orders["model"], tally)
        for host in orders["hosts"]
    ]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        join_slots = asyncio.Semaphore(CONCURRENT_JOINS)

        async def join(agent: LightAgent) -> None:
            async with join_slots:
                await agent.join(session)

        await asyncio.gather(*(join(agent) for agent in agents))
        print("joined", flush=True)
        tasks = [
            asyncio.create_task(agent.stay_connected(session, number / CONNECTS_PER_SECOND))
            for number, agent in enumerate(agents)
        ]
        end_line = asyncio.create_task(asyncio.to_thread(_listen, tally))
        await asyncio.wait([end_line, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"arrivals": tally.arrivals, "errors": tally.errors, "round_trips": tally.round_trips}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.stdin.readline())))), flush=True)
