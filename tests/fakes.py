"""Provide an agent without processes: a test drives it, and it exchanges the frames of a real agent.

``FakeAgent`` calls ``scheduler.sync.agent_api`` directly. Like the edge, it tries ``sync_unchanged`` first.
Frames are encoded and decoded as on the wire. Like a real agent, it starts no run with an old generation.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass, field, replace

from agent import protocol
from agent.protocol import Desired, GpuSeen, Inventory, Observed, RunSeen, RunWanted, UnitSeen
from scheduler.coordination.clock_check import ClockSample
from scheduler.models import Gpu, Host, Unit
from scheduler.sync import agent_api

CREDENTIAL = "given by the test"
FAR_AWAY = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)


def inventory_of(host: Host) -> Inventory:
    """Return an inventory that leaves the host's rows unchanged."""
    units_by_gpu: dict[int, list[Unit]] = {}
    for unit in Unit.objects.filter(gpu__host=host, retired_at__isnull=True).order_by("slots"):
        units_by_gpu.setdefault(unit.gpu_id, []).append(unit)
    gpus = []
    for gpu in Gpu.objects.filter(host=host, retired_at__isnull=True).order_by("index"):
        units = [
            UnitSeen(
                u.uuid, u.profile, u.slots.lower - gpu.first_slot, u.slots.upper - u.slots.lower, u.memory_mib
            )
            for u in units_by_gpu.get(gpu.pk, [])
        ]
        gpus.append(
            GpuSeen(
                index=gpu.index,
                uuid=gpu.uuid,
                model=gpu.model,
                memory_mib=gpu.memory_mib,
                compute_capability=gpu.compute_capability,
                nvlink_group=gpu.nvlink_group,
                units=units,
            )
        )
    return Inventory(gpus, host.cpu_milli, host.memory_mib, "plain", simulated=True)


@dataclass
class FakeAgent:
    """The agent of one host. ``runs`` holds the runs that it reports; a test ends a run with ``end``."""

    host: Host
    inventory: Inventory
    boot_id: str
    instance: str
    runs: dict[str, RunSeen] = field(default_factory=dict)
    wanted: dict[str, RunWanted] = field(default_factory=dict)
    sequence: int = 0
    highest_generation: int = 0
    start: str = "the only start"
    heard_by_short_way: int = 0
    last_desired: Desired | None = None

    @classmethod
    def of(cls, host: Host) -> FakeAgent:
        """Return an agent that has joined as this host, and make the host's credential valid."""
        Host.objects.filter(pk=host.pk).update(
            credential_hash=hashlib.sha256(CREDENTIAL.encode()).hexdigest(), credential_expires_at=FAR_AWAY
        )
        return cls(host, inventory_of(host), host.boot_id, host.agent_instance)

    def observed(self) -> Observed:
        self.sequence += 1
        return Observed(
            protocol.VERSION,
            "test",
            self.boot_id,
            self.instance,
            self.sequence,
            self.inventory,
            list(self.runs.values()),
            start=self.start,
        )

    def sync(self, now: dt.datetime, frame: Observed | None = None) -> Desired:
        """Send a frame (by default the current state), apply the answer and return it."""
        seen = protocol.decode(protocol.encode(frame or self.observed()), protocol.FRAMES_UP)
        answer = agent_api.sync_unchanged(
            self.host.pk, [CREDENTIAL], seen, ClockSample(now, "test", now.timestamp())
        )
        self.heard_by_short_way += answer is not None
        if answer is None:
            answer = agent_api.sync(self.host.pk, seen, now)
        desired: Desired = protocol.decode(protocol.encode(answer), protocol.FRAMES_DOWN)
        self.apply_desired(desired, now)
        return desired

    def apply_desired(self, desired: Desired, now: dt.datetime) -> None:
        """Start, stop and forget runs according to the desired state."""
        self.last_desired = desired
        self.wanted = {wanted.run: wanted for wanted in desired.runs}
        for wanted in sorted(desired.runs, key=lambda w: w.generation):
            known = self.runs.get(wanted.run)
            if known is None and wanted.verb == "stop":
                self.runs[wanted.run] = RunSeen(
                    wanted.run, wanted.generation, "ended", outcome="cancelled", ended_at=now.timestamp()
                )
            elif known is None and wanted.generation > self.highest_generation:
                self.highest_generation = wanted.generation
                self.runs[wanted.run] = RunSeen(
                    wanted.run, wanted.generation, "running", started_at=now.timestamp()
                )
            elif known is not None and wanted.verb == "stop" and known.state != "ended":
                self.end(wanted.run, now, outcome=self._outcome_of_stop(wanted, known))
        self._drop_undesired_runs(now)

    def _drop_undesired_runs(self, now: dt.datetime) -> None:
        """Forget the ended runs that the server no longer lists; end the others."""
        for run in [name for name in self.runs if name not in self.wanted]:
            if self.runs[run].state == "ended":
                del self.runs[run]
            else:
                self.end(run, now, outcome="cancelled")

    def _outcome_of_stop(self, wanted: RunWanted, seen: RunSeen) -> str:
        return "checkpointed" if seen.checkpoint_at is not None else "killed_at_grace"

    def end(
        self, run: str, now: dt.datetime, outcome: str = "finished", exit_code: int | None = None
    ) -> None:
        """Report the run as ended from now on."""
        code = exit_code if exit_code is not None else (0 if outcome == "finished" else 1)
        self.runs[run] = replace(
            self.runs[run], state="ended", outcome=outcome, exit_code=code, ended_at=now.timestamp()
        )

    def checkpoint(self, run: str, now: dt.datetime) -> None:
        """Report that the run acknowledged a checkpoint when the host's clock was at ``now``.

        ``saved`` in the report is True if the run has a notice.
        """
        noticed = run in self.wanted and self.wanted[run].verb == "notice"
        self.runs[run] = replace(self.runs[run], checkpoint_at=now.timestamp(), saved=noticed)

    @property
    def running(self) -> list[str]:
        return [run for run, seen in self.runs.items() if seen.state == "running"]
