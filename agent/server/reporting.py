"""Collects the reports of this host for the server, and tracks which of them the server has recorded.

The reports are the observed state, samples, logs, hardware events and proofs. A proof is the signed answer to
a challenge of the server, which then renews the host's credential.
"""

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
from agent.runs.default_limits import host_memory_mib
from agent.runs.local_run import write_log_mark
from agent.runs.manager import RunManager
from agent.server import host_key
from agent.server.sample_spool import SampleSpool
from agent.server.server_clock import ServerClock

log = logging.getLogger("agent.server.reporting")

MAX_UNCOMMITTED_BATCHES = 100  # at most this many batches are sent before the server has committed them
BATCH_RESEND_SECONDS = 60.0  # a batch that is not committed after this time is sent again
LOG_CHUNKS_PER_ROUND = 4  # per run; a limit, so that a workload with much output does not delay the others


class ServerReporter:
    """Keeps the reports of one agent until the server has recorded them."""

    def __init__(
        self,
        state: StateFolder,
        runs: RunManager,
        inventory: Inventory,
        diagnostics: DiagnosticRunner,
        geometries: GeometryChanges,
    ) -> None:
        self.state = state
        self.due = asyncio.Event()  # set when a frame must be sent now
        self.connected = False
        self._boot_id = boot_id()
        self.server_clock = ServerClock()
        self.spool = SampleSpool(state.folder / "spool", boot_id=self._boot_id, clock=self.server_clock)
        self.events = HealthEventStore(state.folder / "health")
        self._runs = runs
        self._inventory = inventory
        self._diagnostics = diagnostics
        self._geometries = geometries
        self._changed = True  # True: the observed state must be reported now
        self._homes_due: HomesSeen | None = None  # the last measurement of the homes; None: already sent
        self._strays: list[StraySeen] = []
        self._strays_due: list[StraySeen] | None = None  # the present strays; None: already sent
        self._health_due: list[Health] = []
        self._unwritten: list[Health] = []
        self._writing: asyncio.Task[None] | None = None  # events are written one after the other
        self._report = 0  # sequence of the last report that was sent
        self._sent_batches = 0
        self._sent_batches_at = 0.0
        self._knows_committed = False
        self._last_log_run = ""  # id of the run whose log was read last
        # By id of the run: the log offset that had been sent when the last Desired frame arrived.
        self._log_marks: dict[str, int] = {}
        self._challenge = ""  # the last challenge on this connection
        self._proofs: list[Proof] = []  # proofs that were not yet sent
        self._proving: asyncio.Task[None] | None = None

    # --- changes to report ---

    def note_change(self) -> None:
        """Record that the observed state differs from the last report."""
        self._changed = True
        self.due.set()

    @property
    def has_changed(self) -> bool:
        """Return True if the observed state has changed since the last report."""
        return self._changed

    def take_change(self) -> bool:
        """Return ``has_changed`` and set it to False. The caller must send a report if the result is True."""
        changed, self._changed = self._changed, False
        return changed

    def note_hardware(self, hardware: GpuInventory, notes: list[str]) -> None:
        """Replace the hardware in the inventory.

        ``notes``: the notes on this host that do not concern its hardware.
        """
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
        """Record a new measurement of the homes."""
        self._homes_due = homes
        self.note_change()

    def note_strays(self, strays: Iterable[StraySeen]) -> None:
        """Record a changed list of stray processes."""
        self._strays = list(strays)
        self._strays_due = list(self._strays)
        self.note_change()

    def note_event(self, event: HardwareEvent) -> None:
        """Queue an event for sending, and write it to the disk in the background.

        The event is not written first, because workloads may keep the disk busy. The report of a broken GPU
        must not wait for the disk.
        """
        health = self.events.note(event)
        if health is not None:
            self._health_due.append(health)
            self.due.set()
            self._unwritten.append(health)
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write_events())

    def pending_event_writes(self) -> list[asyncio.Task[None]]:
        """Return the tasks that are writing events to the disk."""
        return [] if self._writing is None else [self._writing]

    async def _write_events(self) -> None:
        while self._unwritten:
            await asyncio.to_thread(self.events.write, self._unwritten.pop(0))

    # --- frames to send ---

    def observed(self, sequence: int) -> Observed:
        """Return a report of the whole observed state."""
        full = self._runs.is_full()
        notes = self._inventory.notes
        if full:
            notes = [*notes, "The disk is full: no new workload starts here."]
        if problem := self._runs.disk_problem():
            notes = [*notes, f"No new workload starts here: the disk cannot be written ({problem})."]
        if self.state.missing_tools_reason:
            why = f"the tools of this version could not be installed ({self.state.missing_tools_reason})"
            notes = [*notes, f"No new workload starts here: {why}. Running work continues."]
        return Observed(
            version=VERSION,
            agent_version=AGENT_VERSION,
            boot_id=self._boot_id,
            instance=self.state.identity.instance,
            sequence=sequence,
            inventory=dataclasses.replace(self._inventory, notes=notes, disk_full=full, disk_problem=problem),
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
        """Record which parts of a report were sent.

        A run whose end was reported may be removed as soon as the server no longer lists it. A measurement of
        the homes is sent only once. If its frame is lost, only this measurement is lost. If the server
        rejects the frame, the next frames do not contain the measurement, so they can still renew the leases.
        """
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
        """Handle a new connection: send everything again that the server may lack."""
        self.connected = True
        self._knows_committed = False
        self._sent_batches = 0
        for run in self._runs.runs.values():
            run.log_sent = (read_json(run.folder / "log_sent.json") or {}).get("offset", 0)
        self._health_due = self.events.due(time.time())
        self._strays_due = list(self._strays)
        self._challenge, self._proofs = "", []

    def on_disconnect(self) -> None:
        """Handle the end of the connection. Samples are then stored in fewer, larger batches."""
        self.connected = False

    def batches_due(self) -> Iterator[SampleBatch]:
        """Yield the batches of samples to send now, in the order of their numbers.

        If the server has not committed a batch after BATCH_RESEND_SECONDS, the batch is sent again.
        """
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
        """Yield log chunks that were not sent yet, at most LOG_CHUNKS_PER_ROUND per run."""
        runs = list(self._runs.runs.values())
        first = next((position + 1 for position, run in enumerate(runs) if run.id == self._last_log_run), 0)
        # Begin after the run that was read last, because the caller may have interrupted the last round.
        for run in [*runs[first:], *runs[:first]]:
            self._last_log_run = run.id
            for _ in range(LOG_CHUNKS_PER_ROUND):
                offset, text, following = log_reader.read_chunk(
                    run.folder / "log", run.log_sent, ended=bool(run.ended)
                )
                if not text:
                    break
                run.log_sent = following
                yield LogChunk(run.id, offset, text)

    def health_due(self) -> Iterator[Health]:
        """Yield the unconfirmed hardware events that were not sent on this connection."""
        while self._health_due:
            self.events.say(self._health_due[0], self._report)
            yield self._health_due.pop(0)

    def proofs_due(self) -> Iterator[Proof]:
        """Yield the proofs that were not sent yet on this connection."""
        while self._proofs:
            yield self._proofs.pop(0)

    # --- acknowledgements ---

    def acknowledge(self, desired: Desired) -> None:
        """Remove the reports that the server has recorded, and answer the challenge of a desired state.

        A desired state that the server sends from memory confirms no report.
        """
        if desired.renewed_from_memory:
            return
        self.events.confirm(desired.answers)
        if desired.challenge and desired.challenge != self._challenge:
            self._challenge = desired.challenge
            self._proving = asyncio.create_task(self._prove(desired.challenge))
        with log_disk_errors("the spool"):
            self._commit(desired)
        with log_disk_errors("the positions up to which logs were sent"):
            self._keep_log_marks()

    async def _prove(self, challenge: str) -> None:
        try:
            _, signature = await host_key.sign(self.state.key, host_key.renewal_message(challenge))
        except host_key.HostKeyError as problem:
            log.error("the credential can't be renewed: %s", problem)
            return
        if challenge == self._challenge:
            self._proofs.append(Proof(challenge, signature))
            self.due.set()

    def _commit(self, desired: Desired) -> None:
        if desired.committed_sequence > self.spool.last:
            log.warning(
                "the server has more batches than this spool: numbering continues after %s",
                desired.committed_sequence,
            )
            self._sent_batches = 0
        self.spool.commit(desired.committed_sequence)
        self._knows_committed = True

    def _keep_log_marks(self) -> None:
        """Store for each run the log offset up to which the server has every byte.

        A Desired frame confirms only the bytes that were sent before the previous Desired frame.
        """
        self._log_marks = {name: mark for name, mark in self._log_marks.items() if name in self._runs.runs}
        for run in self._runs.runs.values():
            mark = self._log_marks.get(run.id, 0)
            if mark and mark != (read_json(run.folder / "log_sent.json") or {}).get("offset"):
                write_log_mark(run.folder, mark)
            self._log_marks[run.id] = run.log_sent


def build_inventory(
    hardware: GpuInventory,
    launcher: Launcher,
    reader: GpuReader,
    notes: list[str],
    environment: EnvironmentSeen,
    runs: RunManager,
    diagnostics: Iterable[str],
) -> Inventory:
    """Return the inventory of this host.

    ``notes``: sentences about the host's limitations. ``diagnostics``: the names of the operator's
    diagnostics.
    """
    return Inventory(
        gpus=hardware.gpus,
        cpu_milli=(os.cpu_count() or 1) * 1000,
        memory_mib=host_memory_mib(),
        isolation=launcher.name,
        simulated=reader.simulated,
        driver_version=hardware.driver_version,
        cuda_version=hardware.cuda_version,
        mig_profiles=hardware.mig_profiles,
        notes=[*notes, *hardware.notes],
        environment=environment,
        address=runs.address,
        users_per_team=runs.team_users.numbers is not None,
        person_users=runs.person_users.allowed,
        home_limits=not runs.home_limits.problem,
        home_limits_problem=runs.home_limits.problem,
        limits=runs.cgroups.available_controllers,
        cgroups=runs.cgroups.layout,
        network=runs.network.mode,
        diagnostics=sorted(diagnostics),
    )
