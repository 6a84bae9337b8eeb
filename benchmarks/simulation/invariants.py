"""Check the invariants of a simulation after every step and at the end.

The main invariant is that the database rows match the simulated processes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scheduler.models import Allocation, BoundUnit, Command, Host, Run, Workload
from scheduler.state.states import LeaseState, RunState, WorkloadState

if TYPE_CHECKING:
    from benchmarks.simulation.simulated_host import SimulatedShim
    from benchmarks.simulation.world import SimulatedWorld

# Longest time in which a stop must end a run. A stop usually needs the time until it arrives or the lease
# expires, plus the grace period. Twice this time is allowed, because the agent may be killed meanwhile.
LOST_LIMIT_SECONDS = 36.0
LEASE_OVERRUN_SECONDS = 1.0  # allowed delay of a kill, because a shim checks the time four times a second


class InvariantChecker:
    """A checker that collects violations as sentences. Each sentence is collected only once."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.found: list[str] = []
        self.stale = True  # True if rows or processes have changed since the last check
        self.stop_seen_at: dict[str, float] = {}  # time at which an open stop command was first seen, by run
        self.stops_checked_at = 0.0
        self.accepted: list[int] = []  # ids of the workloads that the server accepted into the queue

    def broken(self, sentence: str) -> None:
        """Record the sentence of a violation."""
        if sentence not in self.found:
            self.world.timeline.record(f"VIOLATION: {sentence}")
            self.found.append(sentence)

    def check(self) -> None:
        """Check the state after a step.

        Every living process must have a row of a run that has not ended, and nothing may run twice.
        """
        living = [shim for machine in self.world.machines for shim in machine.living]
        if not living:
            return
        self._leases(living)
        if self.world.timeline.now - self.stops_checked_at >= 1.0:
            self._stops(living)
        if not self.stale:
            return
        self.stale = False
        self._nothing_twice(living)
        rows = Run.objects.filter(public_id__in=[shim.run.id for shim in living])
        states = {
            str(public_id): (state, outcome)
            for public_id, state, outcome in rows.values_list("public_id", "state", "outcome")
        }
        for shim in living:
            state, outcome = states.get(shim.run.id, ("unknown", ""))
            if state in (RunState.ENDED, "unknown"):
                self.broken(
                    f"{shim.wanted.command} lives on {shim.machine.name},"
                    f" and its run is {state} ({outcome}): "
                    "its GPUs count as free"
                )

    def _nothing_twice(self, living: list[SimulatedShim]) -> None:
        attempts: dict[str, set[int]] = defaultdict(set)
        for shim in living:
            attempts[shim.wanted.command].add(shim.wanted.attempt)
        for command, numbers in attempts.items():
            if len(numbers) > 1:
                self.broken(f"{command} runs twice: attempts {sorted(numbers)}")
        held = Counter((shim.machine.name, unit) for shim in living for unit in shim.wanted.unit_uuids)
        for (name, unit), count in held.items():
            if count > 1:
                self.broken(f"{count} workloads on {unit} of {name}")
        for machine in self.world.machines:
            for run, times in machine.starts.items():
                if times > 1:
                    command = next(shim.wanted.command for shim in machine.shims if shim.run.id == run)
                    self.broken(f"{command} was started {times} times by one command on {machine.name}")

    def _stops(self, living: list[SimulatedShim]) -> None:
        self.stops_checked_at = now = self.world.timeline.now
        kept = {shim.run.id: shim for shim in living if shim.shim_alive}
        stops = Command.objects.filter(verb=Command.Verb.STOP, done_at__isnull=True, run__public_id__in=kept)
        for public_id in stops.values_list("run__public_id", flat=True).order_by("pk"):
            shim = kept[str(public_id)]
            if now - self.stop_seen_at.setdefault(shim.run.id, now) > LOST_LIMIT_SECONDS:
                self.broken(
                    f"{shim.wanted.command} lives on {shim.machine.name} long after its stop: it was lost"
                )

    def _leases(self, living: list[SimulatedShim]) -> None:
        for shim in living:
            if (
                shim.shim_alive
                and shim.kill_at is not None
                and shim.machine.boottime() > shim.kill_at + LEASE_OVERRUN_SECONDS
            ):
                self.broken(f"{shim.wanted.command} lives after its grace period")

    def check_final(self) -> None:
        """Check the state at the end, after everything was cancelled.

        Every workload and every process must have ended. No run, allocation, command, bound unit or earmarked
        unit may be left, agents may remember no runs, and every host must be trusted.
        """
        for sentence in self.left():
            self.broken(sentence)

    def left(self) -> Iterator[str]:
        """Yield a sentence for each violation of the conditions of ``check_final``."""
        for machine in self.world.machines:
            for shim in machine.living:
                yield f"{shim.wanted.command} still lives on {machine.name}: its stop was lost"
            if machine.agent is not None and machine.agent.runs.runs:
                yield f"{machine.name} remembers {len(machine.agent.runs.runs)} runs that are over"
        known = dict(Workload.objects.filter(pk__in=self.accepted).values_list("pk", "state"))
        for pk in self.accepted:
            if known.get(pk) != WorkloadState.ENDED:
                name = Workload.objects.filter(pk=pk).values_list("name", flat=True).first()
                yield f"{name or 'a workload'} is {known.get(pk, 'lost')} in the end"
        left = {
            "runs have not ended": Run.objects.exclude(state=RunState.ENDED).count(),
            "allocations are open": Allocation.objects.filter(period__upper_inf=True).count(),
            "commands are open": Command.objects.filter(done_at__isnull=True).count(),
            "units are bound to reservations": BoundUnit.objects.filter(
                period__contains=self.world.site.now()
            ).count(),
            "workloads have units kept for them": Workload.objects.exclude(earmarked_units=[]).count(),
            "hosts are not trusted": Host.objects.exclude(lease_state=LeaseState.ALIVE).count(),
        }
        for description, count in left.items():
            if count:
                yield f"in the end {count} {description}"
