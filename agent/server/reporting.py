"""What this host has to say to its server, and how far that is said: reports, samples, logs, hardware events, proofs."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Iterable, Iterator

from agent import AGENT_VERSION
from agent.diagnostics.runner import DiagnosticRunner
from agent.gpu.geometry_changes import GeometryChanges
from agent.gpu.health_events import HealthEventStore
from agent.gpu.reader import GpuInventory, GpuReader, HardwareEvent
from agent.host.clock import boot_id
from agent.host.durable_files import log_disk_errors, read_json
from agent.host.state import StateFolder
from agent.isolation.launchers import Launcher
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
    SampleBatch,
    StraySeen,
)
from agent.runs import log_reader
from agent.runs.local_run import write_log_mark
from agent.runs.manager import RunManager
from agent.server import host_key
from agent.server.sample_spool import SampleSpool

log = logging.getLogger("agent.server.reporting")

MAX_UNCOMMITTED_BATCHES = 100  # at most so many are sent and not yet committed
BATCH_RESEND_SECONDS = 60.0  # a batch that was sent and is not committed after this is sent again
LOG_CHUNKS_PER_ROUND = 4  # per run and round, so that one loud workload does not hold up the others


class ServerReporter:
    """Of one agent. What is heard takes some of it back: ``heard``."""

    def __init__(
        self,
        state: StateFolder,
        runs: RunManager,
        inventory: Inventory,
        diagnostics: DiagnosticRunner,
        geometries: GeometryChanges,
    ) -> None:
        self.state = state
        self.due = asyncio.Event()  # something is to be sent now
        self.connected = False
        self.spool = SampleSpool(state.folder / "spool")
        self.events = HealthEventStore(state.folder / "health")
        self._runs = runs
        self._inventory = inventory
        self._diagnostics = diagnostics
        self._geometries = geometries
        self._boot_id = boot_id()
        self._changed = True  # the server should hear of something
        self._homes_due: HomesSeen | None = None  # measured and not yet said
        self._strays: list[StraySeen] = []
        self._strays_due: list[StraySeen] | None = None  # changed and not yet said
        self._health_due: list[Health] = []
        self._unwritten: list[Health] = []
        self._writing: asyncio.Task[None] | None = None  # one after the other
        self._report = 0  # number of the last one that went out
        self._sent_batches = 0
        self._sent_batches_at = 0.0
        self._knows_committed = False
        self._log_of = ""  # the run whose log was looked at last
        self._log_marks: dict[str, int] = {}  # per run: what was sent by the time of the last Desired
        self._challenge = ""  # the last one that was taken on, on this connection
        self._proofs: list[Proof] = []  # made and not yet said
        self._proving: asyncio.Task[None] | None = None

    # what there is to say

    def note_change(self) -> None:
        """Something is not as the last report has it."""
        self._changed = True
        self.due.set()

    @property
    def has_changed(self) -> bool:
        """Should the server have a report now?"""
        return self._changed

    def take_change(self) -> bool:
        """The same; a report goes out if so."""
        changed, self._changed = self._changed, False
        return changed

    def note_hardware(self, hardware: GpuInventory, notes: list[str]) -> None:
        """The GPUs are other ones than at the start. ``notes``: of the host, beside those of the hardware."""
        self._inventory = dataclasses.replace(
            self._inventory,
            gpus=hardware.gpus,
            notes=[*notes, *hardware.notes],
            mig_profiles=hardware.mig_profiles,
            driver_version=hardware.driver_version,
            cuda_version=hardware.cuda_version,
        )
        self.note_change()

    def note_homes(self, homes: HomesSeen) -> None:
        """They were measured."""
        self._homes_due = homes
        self.note_change()

    def note_strays(self, strays: Iterable[StraySeen]) -> None:
        """They are others than before."""
        self._strays = list(strays)
        self._strays_due = list(self._strays)
        self.note_change()

    def note_event(self, event: HardwareEvent) -> None:
        """Told at once, and kept beside that: a GPU that breaks must not wait for a disk that workloads keep busy, nor for what
        the one before it is kept by."""
        health = self.events.note(event)
        if health is not None:
            self._health_due.append(health)
            self.due.set()
            self._unwritten.append(health)
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write_events())

    def pending_event_writes(self) -> list[asyncio.Task[None]]:
        """What writes the events that are noted and not kept yet."""
        return [] if self._writing is None else [self._writing]

    async def _write_events(self) -> None:
        while self._unwritten:
            await asyncio.to_thread(self.events.write, self._unwritten.pop(0))

    # what is said

    def observed(self, sequence: int) -> Observed:
        """Everything that is so on this host."""
        full = self._runs.is_full()
        notes = self._inventory.notes
        if full:
            notes = [*notes, "The disk is full: nothing new is started here."]
        if self.state.missing_tools_reason:
            why = f"this version's tools could not be laid out ({self.state.missing_tools_reason})"
            notes = [*notes, f"Nothing new is started here: {why}. What runs goes on."]
        return Observed(
            version=VERSION,
            agent_version=AGENT_VERSION,
            boot_id=self._boot_id,
            instance=self.state.identity.instance,
            sequence=sequence,
            inventory=dataclasses.replace(self._inventory, notes=notes, disk_full=full),
            runs=self._runs.seen(),
            spooled_batches=len(self.spool.pending(0)),
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
            run = self._runs.runs.get(seen.run)
            if run is not None and seen.state == "ended":
                run.reported_ended = True

    def on_connect(self) -> None:
        """A new connection knows nothing of what was sent on the last one."""
        self.connected = True
        self._knows_committed = False
        self._sent_batches = 0
        for run in self._runs.runs.values():
            run.log_sent = (read_json(run.folder / "log_sent.json") or {}).get("offset", 0)
        self._health_due = self.events.due(time.time())
        self._strays_due = list(self._strays)
        self._challenge, self._proofs = "", []

    def on_disconnect(self) -> None:
        """Samples are kept from now on in fewer, larger batches."""
        self.connected = False

    def batches_due(self) -> Iterator[SampleBatch]:
        """Batches to send now, in order; after a while without their commit they are due again."""
        if not self._knows_committed:
            return
        now = time.monotonic()
        if self._sent_batches > self.spool.committed and now - self._sent_batches_at > BATCH_RESEND_SECONDS:
            self._sent_batches = self.spool.committed
        for number in self.spool.pending(0)[:MAX_UNCOMMITTED_BATCHES]:
            if number > self._sent_batches:
                self._sent_batches = number
                self._sent_batches_at = now
                yield self.spool.read(number)

    def log_chunks(self) -> Iterator[LogChunk]:
        """Pieces of logs that the server does not have yet."""
        there = list(self._runs.runs.values())
        turn = next((place + 1 for place, run in enumerate(there) if run.id == self._log_of), 0)
        for run in [*there[turn:], *there[:turn]]:  # whoever is told next when this round is broken off
            self._log_of = run.id
            for _ in range(LOG_CHUNKS_PER_ROUND):
                offset, text, following = log_reader.read_chunk(
                    run.folder / "log", run.log_sent, ended=bool(run.ended)
                )
                if not text:
                    break
                run.log_sent = following
                yield LogChunk(run.id, offset, text)

    def health_due(self) -> Iterator[Health]:
        """Hardware events not yet said on this connection that the server may not have."""
        while self._health_due:
            self.events.say(self._health_due[0], self._report)
            yield self._health_due.pop(0)

    def proofs_due(self) -> Iterator[Proof]:
        """Answers to challenges, not yet said on this connection."""
        while self._proofs:
            yield self._proofs.pop(0)

    # what is heard of it

    def heard(self, desired: Desired) -> None:
        """Take back what the server has."""
        self.events.confirm(desired.answers)
        if desired.challenge and desired.challenge != self._challenge:
            self._challenge = desired.challenge
            self._proving = asyncio.create_task(self._prove(desired.challenge))
        with log_disk_errors("the spool"):
            self._commit(desired)
        with log_disk_errors("how far logs were sent"):
            self._keep_log_marks()

    async def _prove(self, challenge: str) -> None:
        try:
            signature = await host_key.sign(self.state.key, host_key.renewal_message(challenge))
        except host_key.HostKeyError as problem:
            log.error("the credential can't be renewed: %s", problem)
            return
        if challenge == self._challenge:
            self._proofs.append(Proof(challenge, signature))
            self.due.set()

    def _commit(self, desired: Desired) -> None:
        if desired.committed_sequence > self.spool.last:
            log.warning(
                "the server has more batches than this spool: numbering goes on after %s",
                desired.committed_sequence,
            )
            self._sent_batches = 0
        self.spool.commit(desired.committed_sequence)
        self._knows_committed = True

    def _keep_log_marks(self) -> None:
        """What was sent before the last Desired was surely received: after a restart the log goes on from there."""
        self._log_marks = {name: mark for name, mark in self._log_marks.items() if name in self._runs.runs}
        for run in self._runs.runs.values():
            mark = self._log_marks.get(run.id, 0)
            if mark and mark != (read_json(run.folder / "log_sent.json") or {}).get("offset"):
                write_log_mark(run.folder, mark)
            self._log_marks[run.id] = run.log_sent


def build_inventory(
    hardware: GpuInventory,
    launcher: Launcher,
    meter: GpuReader,
    notes: list[str],
    environment: EnvironmentSeen,
    runs: RunManager,
    diagnostics: Iterable[str],
) -> Inventory:
    """What this host is. ``notes``: what it can't do; ``diagnostics``: names of the operator's own."""
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
        users_per_team=runs.team_users.numbers is not None,
        limits=runs.cgroups.available_controllers,
        cgroups=runs.cgroups.layout,
        network=runs.network.mode,
        diagnostics=sorted(diagnostics),
    )
