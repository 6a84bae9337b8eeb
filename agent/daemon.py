"""The agent itself: keeps the line to the edge, brings this host to its desired state, samples its GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from agent import AGENT_VERSION, keys, logs, processes, volumes
from agent.aside import Hangs
from agent.background import is_kernel
from agent.clean import Clean
from agent.connection import BATCHES_AHEAD, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, RESEND_SECONDS, Connection, join
from agent.declared import declared_load
from agent.diagnostics import Diagnostics
from agent.events import KeptEvents
from agent.geometry import Geometries
from agent.launchers import Launcher
from agent.meter import Hardware, HardwareEvent, Meter, Use
from agent.notebook import watch
from agent.protocol import (
    VERSION,
    Desired,
    EnvironmentSeen,
    Health,
    HomesSeen,
    Inventory,
    LogChunk,
    Observed,
    Proof,
    RunWanted,
    SampleBatch,
    SampleRow,
    StraySeen,
)
from agent.reconcile import Forget, Limit, Notice, Refuse, Start, Stop, Withdraw, plan
from agent.run import Run, boottime, write_log_mark
from agent.runs import Runs
from agent.scratch import Scratch
from agent.spool import Spool
from agent.state import State, boot_id, read_json
from agent.strays import Known, Strays
from agent.streams import Streams

log = logging.getLogger("agent")

BRING_ABOUT_SECONDS = 2.0  # well within a lease
LOOK_SECONDS = 0.2  # how often the shims' files are read
EVENTS_SECONDS = 1.0
ASK_STARTING_SECONDS = 0.1  # a notebook that is starting
ASK_READY_SECONDS = 3.0
ROWS_OFFLINE = 12  # samples per batch while the edge is away: fewer, larger files
SAVE_SECONDS = 4.0  # on exit: how long jobs have to write a checkpoint
EXIT_GRACE_SECONDS = 5.0
LOG_CHUNKS_AT_ONCE = 4  # per run and round, so that one loud workload does not hold up the others


@dataclass(frozen=True)
class Options:
    """How the agent was started."""

    edge: str
    join_token: str
    host: str
    sample_seconds: float
    stop_on_exit: bool
    diagnostics: Mapping[str, list[str]] = field(default_factory=dict)  # the operator's own, by name
    most_tmp_mib: int = 0  # of one run's temporary files; 0: as long as the disk has room


class Agent:
    """One host's agent. Everything is on one event loop; what may block (NVML) is in another process."""

    def __init__(
        self,
        options: Options,
        state: State,
        launcher: Launcher,
        meter: Meter,
        hardware: Hardware,
        runs: Runs,
        notes: list[str],
    ) -> None:
        self.options = options
        self.state = state
        self.runs = runs
        self.meter = meter
        self.changed = True  # the server should hear of something
        self.poll_seconds = 5.0
        self._inventory = _inventory(
            hardware, launcher, meter, notes, volumes.environment(runs.exposed), runs
        )
        self._homes_due: HomesSeen | None = None  # measured and not yet said
        self._diagnostics = Diagnostics(
            state, hardware, runs.locks_folder, simulated=meter.simulated, conditions=meter.conditions,
            commands=options.diagnostics,
        )  # fmt: skip
        self._inventory = dataclasses.replace(self._inventory, diagnostics=sorted(options.diagnostics))
        self._geometries = Geometries(state, meter, hardware, runs.locks_folder, self._take_over)
        self._host_notes = notes
        self._scratch = Scratch(runs, options.most_tmp_mib << 20)
        self._strays = Strays()
        self._clean = Clean(state.folder / "units.json", boot_id())
        self._strays_due: list[StraySeen] | None = None  # changed and not yet said
        self._home_is_new = asyncio.Event()
        self._spool = Spool(state.folder / "spool")
        self._sent_batches = 0
        self._sent_batches_at = 0.0
        self._knows_committed = False
        self._unsaved: list[SampleRow] = []
        self._events = KeptEvents(state.folder / "health")
        self._health_due: list[Health] = []
        self._report = 0  # number of the last one that went out
        self._challenge = ""  # the last one that was taken on, on this connection
        self._proofs: list[Proof] = []  # made and not yet said
        self._proving: asyncio.Task[None] | None = None
        self._desired: Desired | None = None
        self._spoke_at = 0.0
        self._heard_at = 0.0  # CLOCK_BOOTTIME of the last frame that was not older than one before it
        self._lease_until = 0.0
        self._lease_seconds = 30.0
        self._log_of = ""  # the run whose log was looked at last
        self._log_marks: dict[str, int] = {}  # per run: what was sent by the time of the last Desired
        self._boot_id = boot_id()
        self._busy = asyncio.Lock()  # one reconciliation at a time
        self._catching_up: asyncio.Task[None] | None = None
        self._is_behind = False  # something was wanted since the last one began
        self._session: aiohttp.ClientSession | None = None
        self._streams: Streams | None = None
        self._connection: Connection | None = None

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Workloads go on after it, kept by their shims, until their lease ends."""
        self.runs.adopt()
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=20)
        # aiohttp's own limit of a hundred connections would keep a host with many open workspaces from its server.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            self._session = session
            loops = (
                self._keep_connection(session),
                self._look(),
                self._sample(),
                self._watch_events(),
                self._watch_notebooks(),
                self._watch_homes(),
                self._watch_diagnostics(),
                self._watch_geometries(),
                self._scratch.watch(),
            )
            tasks: list[asyncio.Task[object]] = [asyncio.create_task(loop) for loop in loops]
            ended: asyncio.Task[object] = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()  # a loop of ours failed: end, whoever keeps us starts us again
            finally:
                for task in [*tasks, ended]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._close()

    async def _close(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
            await asyncio.gather(self._catching_up, return_exceptions=True)
        if self._streams is not None:
            await self._streams.close()
        if self._unsaved:
            with _samples_may_be_lost():
                self._spool.add(self._unsaved)
        await self._diagnostics.close()
        await self._geometries.close()
        if self.options.stop_on_exit:
            await self._stop_everything()
        await self.meter.close()

    async def _stop_everything(self) -> None:
        """Notice, time to save, stop. The server hears at the next start that they were drained."""
        mine = [run for run in self.runs.runs.values() if run.state in ("starting", "running") and not run.stop_ordered]
        saved_before = {run.id: run.checkpoint_at for run in mine}
        for run in mine:
            if not run.noticed:
                self.runs.notice(run.id, "drained", time.time() + SAVE_SECONDS)
        jobs = [run for run in mine if not run.is_notebook]
        await self._wait(
            SAVE_SECONDS, lambda: all(run.ended or run.checkpoint_at != saved_before[run.id] for run in jobs)
        )
        for run in mine:
            if not run.ended:
                self.runs.stop(Stop(run.id, "drained", EXIT_GRACE_SECONDS, whatever=True))
        await self._wait(EXIT_GRACE_SECONDS + 3, lambda: all(run.ended for run in mine))

    async def _wait(self, seconds: float, happened: Callable[[], bool]) -> None:
        until = boottime() + seconds
        while boottime() < until and not happened():
            await asyncio.sleep(LOOK_SECONDS)
            self.runs.look()

    # the line to the edge

    async def _keep_connection(self, session: aiohttp.ClientSession) -> None:
        options = self.options

        async def rejoin() -> None:
            await self._join(session)

        if not self.state.identity.credential:
            await rejoin()
            again = None
        else:
            again = rejoin if options.join_token else None
        self._streams = Streams(session, options.edge, lambda: self.state.identity.credential, self._door)
        self._connection = Connection(self, session, options.edge, again)
        await self._connection.keep()

    async def _join(self, session: aiohttp.ClientSession) -> None:
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                await join(session, self.options.edge, self.state, self.options.join_token, self.options.host)
                return
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                log.info("the edge is away: %s", error or type(error).__name__)
                await asyncio.sleep(pause)
                pause = min(LONGEST_RETRY_SECONDS, pause * 2)

    def _door(self, run_id: str) -> Path | None:
        run = self.runs.runs.get(run_id)
        return run.socket if run is not None and not run.ended else None

    def _note_change(self) -> None:
        self.changed = True
        self._wake()

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.due.set()

    # what is said

    def observed(self, sequence: int) -> Observed:
        """Everything that is so on this host."""
        full = self.runs.is_full()
        notes = (
            [*self._inventory.notes, "The disk is full: nothing new is started here."]
            if full
            else self._inventory.notes
        )
        return Observed(
            version=VERSION,
            agent_version=AGENT_VERSION,
            boot_id=self._boot_id,
            instance=self.state.identity.instance,
            sequence=sequence,
            inventory=dataclasses.replace(self._inventory, notes=notes, disk_full=full),
            runs=self.runs.seen(),
            spooled_batches=len(self._spool.pending(0)),
            homes=self._homes_due,
            strays=self._strays_due,
            diagnostics=self._diagnostics.seen(),
            geometries=self._geometries.seen(),
            start=self.state.starts.now,
            starts_before=self.state.starts.before,
            binds_streams=True,
        )

    def on_observed_sent(self, observed: Observed) -> None:
        """Ends that were said may be forgotten once the server no longer names them. Homes are said once: a frame that is lost
        costs one measurement, and one that is refused does not keep the host from its leases."""
        self._report = observed.sequence
        if self._homes_due is observed.homes:
            self._homes_due = None
        if self._strays_due is observed.strays:
            self._strays_due = None
        for seen in observed.runs:
            run = self.runs.runs.get(seen.run)
            if run is not None and seen.state == "ended":
                run.reported_ended = True

    def on_connect(self) -> None:
        """A new connection knows nothing of what was sent on the last one."""
        self._knows_committed = False
        self._sent_batches = 0
        for run in self.runs.runs.values():
            run.log_sent = (read_json(run.folder / "log_sent.json") or {}).get("offset", 0)
        self._health_due = self._events.due(time.time())
        self._strays_due = list(self._strays.seen)
        self._challenge, self._proofs = "", []

    def on_disconnect(self) -> None:
        """The line to the edge ended: until there is one again no new workspace connections are dialled."""
        if self._streams is not None:
            self._streams.rest()

    def batches_due(self) -> Iterator[SampleBatch]:
        """Batches to send now, in order; after a while without their commit they are due again."""
        if not self._knows_committed:
            return
        now = time.monotonic()
        if self._sent_batches > self._spool.committed and now - self._sent_batches_at > RESEND_SECONDS:
            self._sent_batches = self._spool.committed
        for number in self._spool.pending(0)[:BATCHES_AHEAD]:
            if number > self._sent_batches:
                self._sent_batches = number
                self._sent_batches_at = now
                yield self._spool.read(number)

    def log_chunks(self) -> Iterator[LogChunk]:
        """Pieces of logs that the server does not have yet."""
        there = list(self.runs.runs.values())
        turn = next((place + 1 for place, run in enumerate(there) if run.id == self._log_of), 0)
        for run in [*there[turn:], *there[:turn]]:  # whoever is told next when this round is broken off
            self._log_of = run.id
            for _ in range(LOG_CHUNKS_AT_ONCE):
                offset, text, following = logs.read(run.folder / "log", run.log_sent, ended=bool(run.ended))
                if not text:
                    break
                run.log_sent = following
                yield LogChunk(run.id, offset, text)

    def health_due(self) -> Iterator[Health]:
        """Hardware events not yet said on this connection."""
        while self._health_due:
            self._events.say(self._health_due[0], self._report)
            yield self._health_due.pop(0)

    def proofs_due(self) -> Iterator[Proof]:
        """Answers to challenges, not yet said on this connection."""
        while self._proofs:
            yield self._proofs.pop(0)

    async def _prove(self, challenge: str) -> None:
        try:
            signature = await keys.sign(self.state.key, keys.renewal_text(challenge))
        except keys.NoKey as problem:
            log.error("the credential can't be renewed: %s", problem)
            return
        if challenge == self._challenge:
            self._proofs.append(Proof(challenge, signature))
            self._wake()

    # what is heard

    async def on_desired(self, desired: Desired, spoke_at: float) -> None:
        """Take over what the server wants. ``spoke_at``: CLOCK_BOOTTIME from which it counts this host's lease."""
        self.poll_seconds = min(60.0, max(0.2, desired.poll_seconds))
        self._desired = desired
        self._lease_seconds = max(1.0, desired.lease_seconds)
        is_old = spoke_at < self._spoke_at
        self._spoke_at = max(self._spoke_at, spoke_at)  # an old frame takes nothing back
        self._lease_until = self._spoke_at + self._lease_seconds
        named = {wanted.run for wanted in desired.runs}
        # A stop that has arrived does not look at the lease any more; one that could not be told is carried out by its end.
        self.runs.renew({wanted.run for wanted in desired.runs if wanted.verb != "stop"}, self._lease_until)
        self._note_unnamed(named, is_old)
        self._events.confirm(desired.answers)
        for wanted in desired.runs:
            if wanted.secret and wanted.run in self.runs.runs:
                self.runs.runs[wanted.run].secret = wanted.secret
        for name in [name for name in self.runs.waiting if name not in named]:
            del self.runs.waiting[name]
            self._note_change()
        with _disk_trouble_survived("which start the server knows"):
            self.state.starts.known()
        if desired.challenge and desired.challenge != self._challenge:
            self._challenge = desired.challenge
            self._proving = asyncio.create_task(self._prove(desired.challenge))
        if desired.credential and desired.credential != self.state.identity.credential:
            with _disk_trouble_survived("the credential"):
                self.state.remember(
                    host=desired.host, credential=desired.credential, expires_at=desired.credential_expires_at
                )
        with _disk_trouble_survived("the spool"):
            self._commit(desired)
        with _disk_trouble_survived("how far logs were sent"):
            self._keep_log_marks()
        if self._streams is not None:
            self._streams.keep(desired.streams, desired.stream_key)
        with _disk_trouble_survived("a diagnostic"):
            self._diagnostics.want(desired.diagnostics)
        with _disk_trouble_survived("a geometry"):
            self._geometries.want(desired.geometries)
        await self._bring_about()

    def _note_unnamed(self, named: set[str], is_old: bool) -> None:
        """What a frame leaves out says nothing where the server has said something later already."""
        if not is_old:
            self._heard_at = boottime()
        for run in self.runs.runs.values():
            if run.id in named:
                run.unnamed_since = None
            elif not is_old and run.unnamed_since is None:
                run.unnamed_since = self._heard_at

    def _commit(self, desired: Desired) -> None:
        if desired.committed_sequence > self._spool.last:
            log.warning(
                "the server has more batches than this spool: numbering goes on after %s", desired.committed_sequence
            )
            self._sent_batches = 0
        self._spool.commit(desired.committed_sequence)
        self._knows_committed = True

    def _keep_log_marks(self) -> None:
        """What was sent before the last Desired was surely received: after a restart the log goes on from there."""
        self._log_marks = {name: mark for name, mark in self._log_marks.items() if name in self.runs.runs}
        for run in self.runs.runs.values():
            mark = self._log_marks.get(run.id, 0)
            if mark and mark != (read_json(run.folder / "log_sent.json") or {}).get("offset"):
                write_log_mark(run.folder, mark)
            self._log_marks[run.id] = run.log_sent

    async def _bring_about(self) -> None:
        """Have all of it done, and wait for that a moment only: what renews leases comes over the line that waits here."""
        self._is_behind = True
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())
        done, _ = await asyncio.wait((self._catching_up,), timeout=BRING_ABOUT_SECONDS)
        for task in done:
            task.result()

    async def _catch_up(self) -> None:
        while self._is_behind:
            self._is_behind = False
            await self._reconcile()

    async def _reconcile(self) -> None:
        if self._desired is None:
            return
        async with self._busy:
            before = self.runs.seen()
            actions = plan(
                self._desired,
                [run.held() for run in self.runs.runs.values()],
                refusal=self.state.generations.refusal,
                known_units=self.runs.known_units,
                heard_at=self._heard_at,
            )
            for action in actions:
                with _disk_trouble_survived(str(action)[:80]):
                    await self._do(action)
        # A start that waits as it did before is no news: said each time, it would be answered and said again.
        if any(not isinstance(action, Start) for action in actions) or self.runs.seen() != before:
            self._note_change()

    async def _do(self, action: object) -> None:
        match action:
            case Start(wanted):
                await self._start(wanted)
            case Refuse(wanted, outcome, why):
                await self.runs.refuse(wanted, outcome, why)
            case Notice(wanted):
                self.runs.notice(wanted.run, wanted.code, wanted.stop_at)
            case Withdraw(run):
                self.runs.withdraw(run)
            case Limit(run, seconds):
                await self.runs.limit(run, seconds)
            case Stop():
                self.runs.stop(action)
            case Forget(run):
                self.runs.forget(run)

    async def _start(self, wanted: RunWanted) -> None:
        if boottime() >= self._lease_until:
            return  # what the server wanted is too old to begin anything
        if self._geometries.busy:
            await self.runs.wait(wanted, "waiting: a GPU of this host is being split otherwise")
            return
        self._diagnostics.give_way(wanted.unit_uuids)
        if not await self.runs.is_due(wanted):
            return
        is_new = False  # also where that can't be found out now
        with contextlib.suppress(Hangs):
            is_new = not self.runs.has_home(wanted.owner)
        rows, found = await self.meter.occupancy(time.time()) if wanted.unit_uuids else ([], [])
        left = self._clean.left(self.runs.wholly(wanted), rows, found)
        if left:
            await self.runs.wait(wanted, f"waiting: {left}")
            return
        if await self.runs.start(wanted, self._lease_until):
            with _disk_trouble_survived("what was on the GPUs before"):
                self._clean.begins(self.runs.wholly(wanted), rows, found)
            if is_new:  # one that only waits has no home yet: measured again and again, it would be news each time
                self._home_is_new.set()

    # what happens here

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.runs.look():
                self._note_change()
            if self.runs.waits_for_units or self._something_to_forget():
                await self._reconcile()

    def _something_to_forget(self) -> bool:
        patience = 2 * self.poll_seconds
        return any(
            run.unnamed_since is not None and self._heard_at - run.unnamed_since >= patience and not run.stop_ordered
            for run in self.runs.runs.values()
        )

    async def _sample(self) -> None:
        while True:
            began = time.monotonic()
            uses = await asyncio.to_thread(self._uses, list(self.runs.holders().items()))
            self._unsaved += await self.meter.sample(uses, time.time())
            self._look_for_strays(uses)
            online = self._connection is not None and self._connection.connected
            if online or len(self._unsaved) >= ROWS_OFFLINE * max(1, len(self._claims())):
                rows, self._unsaved = self._unsaved, []
                with _samples_may_be_lost():
                    await self._spool.add_beside(rows)
                self._wake()
            await asyncio.sleep(max(0.0, self.options.sample_seconds - (time.monotonic() - began)))

    def _look_for_strays(self, uses: dict[str, Use]) -> None:
        action = self._desired.stray_action if self._desired is not None else "report"
        ours = self._diagnostics.pids()
        # As it is now: what was started while the GPUs were read is none.
        holders = {unit: run.id for unit, run in self.runs.holders().items()}
        shims = {run.shim["pid"]: run.id for run in self.runs.runs.values() if "pid" in run.shim}
        known = Known(uses, holders, shims, ours, self.runs.tenants.numbers, self.runs.cgroups.everybody)
        if self._strays.look(self.meter.processes(), known, action=action, now=time.monotonic()):
            self._strays_due = list(self._strays.seen)
            self._note_change()

    async def _watch_diagnostics(self) -> None:
        while True:
            await self._diagnostics.changed.wait()
            self._diagnostics.changed.clear()
            self._note_change()

    async def _watch_geometries(self) -> None:
        while True:
            await self._geometries.changed.wait()
            self._geometries.changed.clear()
            self._note_change()

    def _take_over(self, hardware: Hardware) -> None:
        """The GPUs are other ones than at the start: one was split otherwise."""
        self.runs.take_over(hardware)
        self._diagnostics.take_over(hardware)
        self._inventory = dataclasses.replace(
            self._inventory, gpus=hardware.gpus, notes=[*self._host_notes, *hardware.notes], mig_profiles=hardware.mig_profiles
        )
        self._note_change()

    def _claims(self) -> frozenset[str]:
        return self.runs.known_units

    def _uses(self, holders: list[tuple[str, Run]]) -> dict[str, Use]:
        everything = processes.scan()
        by_run: dict[str, Use] = {}
        found: dict[str, Use] = {}
        for unit, run in holders:
            if run.id not in by_run:
                by_run[run.id] = _use(run, everything)
            found[unit] = by_run[run.id]
        return found

    async def _watch_events(self) -> None:
        for event in await self.meter.earlier(time.time()):
            if not self._events.knows(event):
                await self._note_event(event)
        while True:
            for event in await self.meter.events(time.time()):
                await self._note_event(event)
            await asyncio.sleep(EVENTS_SECONDS)

    async def _note_event(self, event: HardwareEvent) -> None:
        """Told at once, and kept beside that: a GPU that breaks must not wait for a disk that workloads keep busy."""
        health = self._events.note(event)
        if health is not None:
            self._health_due.append(health)
            self._wake()
            await asyncio.to_thread(self._events.write, health)

    async def _watch_notebooks(self) -> None:
        asking: dict[str, asyncio.Task[None]] = {}  # one that hangs holds up no other
        asked: dict[str, float] = {}
        while True:
            await asyncio.sleep(ASK_STARTING_SECONDS)
            now = time.monotonic()
            asking = {name: task for name, task in asking.items() if not task.done()}
            asked = {name: when for name, when in asked.items() if name in self.runs.runs}
            for run in self.runs.runs.values():
                every = ASK_READY_SECONDS if run.ready else ASK_STARTING_SECONDS
                due = (
                    run.is_notebook and run.state == "running" and run.secret and now - asked.get(run.id, 0.0) >= every
                )
                if due and run.id not in asking:
                    asked[run.id] = now
                    asking[run.id] = asyncio.create_task(self._ask_notebook(run))

    async def _watch_homes(self) -> None:
        while True:
            found, pause = await volumes.measured(self.runs.homes)
            if found is not None:
                self._homes_due = found
                self._note_change()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._home_is_new.wait(), pause)
            self._home_is_new.clear()

    async def _ask_notebook(self, run: Run) -> None:
        activity = await watch.ask(run.socket, run.secret)
        if run.ended:
            return
        before = (run.step, run.ready, run.activity)
        if activity is not None:
            with _disk_trouble_survived("the end of a notebook's secret"):
                (run.folder / "in" / "secret").unlink(missing_ok=True)  # the server has read it; nobody else needs to
            run.ready, run.activity, run.step = True, {**activity, "last_background": run.background.last}, "ready"
        elif not run.ready:
            run.step = "starting JupyterLab"
        if (run.step, run.ready, run.activity) != before:
            self._note_change()


@contextlib.contextmanager
def _samples_may_be_lost() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.error("samples are lost: %s", error)  # a full disk: unknown, not zero


@contextlib.contextmanager
def _disk_trouble_survived(what: str) -> Iterator[None]:
    """A full or broken disk is said, and does not end the agent: it keeps the leases of what runs."""
    try:
        yield
    except OSError as error:
        log.error("%s could not be written: %s", what, error)


def _use(run: Run, everything: dict[int, processes.Process]) -> Use:
    tree = processes.below(everything, run.shim["pid"]) if "pid" in run.shim else []
    own = [process for process in tree if process.name != "bwrap"]
    if run.is_notebook and own:
        run.background.look(own, time.time())
    computing = sum(1 for process in own if is_kernel(process.pid)) if run.is_notebook else min(1, len(own))
    load, memory = declared_load(run, [process.pid for process in own])
    return Use(
        run=run.id,
        pids=frozenset(process.pid for process in own),
        cpu_seconds=sum(process.cpu_seconds for process in own),
        gpu_processes=computing,
        declared_utilisation=load,
        declared_memory_mib=memory,
    )


def _inventory(
    hardware: Hardware,
    launcher: Launcher,
    meter: Meter,
    notes: list[str],
    environment: EnvironmentSeen,
    runs: Runs,
) -> Inventory:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return Inventory(
        gpus=hardware.gpus,
        cpu_milli=(os.cpu_count() or 1) * 1000,
        memory_mib=memory,
        isolation=launcher.name,
        simulated=meter.simulated,
        driver_version=hardware.driver_version,
        cuda_version=hardware.cuda_version,
        mig_profiles=hardware.mig_profiles,
        notes=[*notes, *hardware.notes],
        environment=environment,
        address=runs.address,
        users_per_team=runs.tenants.numbers is not None,
        limits=runs.cgroups.limited,
        cgroups=runs.cgroups.layout,
        network=runs.network.mode,
    )
