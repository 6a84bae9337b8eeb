"""Check the invariants of the architecture after each step of a random walk.

A walk mixes submissions, cancellations, ends of runs, lost hosts, approvals, reservations, quotas and time.
It uses PostgreSQL, the services, the engine's cycle and the agents' frames.
The plan verifier checks every plan. At the end of a walk, everything is cancelled, and no row may hold a GPU.

If ``GPUPOOL_WALKS`` sets the number of walks, the walks are longer and differ in each run, and Hypothesis
shrinks walks that fail.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from benchmarks.plan_verifier import violations
from portal import errors
from portal.models import Submission
from portal.services.approvals import decisions
from portal.services.calendar import reservations as portal_reservations
from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.model.snapshot import Priority
from scheduler.core.planner import plan
from scheduler.core.reasons import ReasonCode
from scheduler.core.rejection import OperationRejected
from scheduler.cycle import core_values, engine, snapshot
from scheduler.cycle.refusal_rows import EXPECTED_START_RESOLUTION_SECONDS
from scheduler.models import Allocation, BoundUnit, Command, Host, Reservation, Run, Workload
from scheduler.state.states import LeaseState, RunState, WorkloadState, accepts_work
from scheduler.sweeps import dependency_release, reservation_windows, silent_hosts, time_limits
from tests.fakes import FakeAgent
from tests.world import A100, H100, MIG, MONDAY, World, build_world, queue_workload

T = TypeVar("T")
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
START_RESOLUTION = dt.timedelta(seconds=EXPECTED_START_RESOLUTION_SECONDS)
IN_THE_SUITE = "GPUPOOL_WALKS" not in os.environ
SHORT_WALKS = (2, 6)  # (walks, steps of each walk)
LONG_WALKS = (8, 40) if IN_THE_SUITE else (int(os.environ["GPUPOOL_WALKS"]), 50)
MOST_SILENT = 1  # with more silent hosts, the special rule for many silent hosts would apply

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300 if IN_THE_SUITE else 0)]


@pytest.fixture(autouse=True)
def one_order_of_locks() -> None:
    """Disable the check of the lock order of tests/scheduler/conftest.py: a whole walk is one transaction."""


@dataclass(frozen=True)
class Job:
    """The fields of one submission of a walk."""

    team: str
    units: int
    hosts: int
    model: str
    priority: Priority
    preemptible: bool
    limit: int
    retries: int


JOBS = st.builds(
    Job,
    team=st.sampled_from(("vision", "language", "robotics")),
    units=st.sampled_from((4, 8, 2, 1, 3)),
    hosts=st.sampled_from((1, 1, 1, 2)),
    model=st.sampled_from((H100, H100, H100, A100, MIG)),
    priority=st.sampled_from((Priority.NORMAL, Priority.LOW, Priority.HIGH)),
    preemptible=st.sampled_from((True, True, False)),
    limit=st.sampled_from((8 * 3600, 600, 3600)),
    retries=st.sampled_from((0, 2)),
)


CODES = {code.value for code in ReasonCode}
WHOLE_STATES = (WorkloadState.PLACED, WorkloadState.STARTING, WorkloadState.RUNNING, WorkloadState.NOTICE)


class WalkRows:
    """The rows after one step."""

    def __init__(self, mine: list[int]) -> None:
        self.workloads = {w.pk: w for w in Workload.objects.filter(pk__in=mine).order_by("pk")}
        self.runs: dict[int, list[Run]] = defaultdict(list)  # runs of the current attempt, by workload
        for run in Run.objects.filter(workload__in=mine).select_related("host").order_by("pk"):
            if run.attempt == self.workloads[run.workload_id].attempt:
                self.runs[run.workload_id].append(run)
        open_ = Allocation.objects.filter(period__upper_inf=True).select_related("unit").order_by("pk")
        self.held: list[Allocation] = list(open_)
        self.wanted: dict[int, set[str]] = defaultdict(set)
        for run_id, verb in Command.objects.filter(done_at__isnull=True).values_list("run_id", "verb"):
            self.wanted[run_id].add(verb)

    def live(self, workload: Workload) -> list[Run]:
        return [run for run in self.runs[workload.pk] if run.state != RunState.ENDED]


def a_slot_is_held_once(seen: WalkRows) -> None:
    ranges = sorted((held.slots.lower, held.slots.upper) for held in seen.held)
    assert all(first[1] <= then[0] for first, then in zip(ranges, ranges[1:], strict=False))


def gangs_are_whole(seen: WalkRows) -> None:
    """Assert that work in ``WHOLE_STATES`` has a run on each of its hosts, and holds the units of live runs.

    Runs that have ended must have finished successfully.
    """
    held = Counter(allocation.workload_id for allocation in seen.held)
    for workload in seen.workloads.values():
        if workload.state in WHOLE_STATES:
            runs, live = seen.runs[workload.pk], seen.live(workload)
            assert {run.outcome for run in runs if run not in live} <= {str(ReasonCode.FINISHED)}
            assert len(runs) == workload.hosts == len({run.host_id for run in runs})
            assert held[workload.pk] == workload.units * len(live)


def states_agree(seen: WalkRows) -> None:
    """Assert that only live workloads hold units and runs, and only queued workloads have earmarked units."""
    per_run = Counter(allocation.run_id for allocation in seen.held)
    for workload in seen.workloads.values():
        live = seen.live(workload)
        idle = workload.state in (WorkloadState.QUEUED, WorkloadState.ENDED)
        assert bool(live) != idle, (workload.pk, workload.state)
        assert all(per_run[run.pk] == workload.units for run in live)
        assert workload.state == WorkloadState.QUEUED or not workload.earmarked_units
        if workload.state == WorkloadState.ENDED:
            assert workload.outcome in CODES and workload.ended_at is not None
            assert workload.position is None and workload.expected_start is None
    living = {run.pk for workload in seen.workloads.values() for run in seen.live(workload)}
    assert set(per_run) <= living, "a run that is not live holds units"


def orders_agree_with_states(seen: WalkRows) -> None:
    """Assert that every live run has its orders, and that ended runs have none."""
    living = {}
    for workload in seen.workloads.values():
        for run in seen.live(workload):
            verbs = living[run.pk] = seen.wanted[run.pk]
            assert Command.Verb.START in verbs
            assert Command.Verb.STOP in verbs or workload.state != WorkloadState.STOPPING
            if workload.state == WorkloadState.NOTICE:
                assert Command.Verb.NOTICE in verbs and workload.gone_by is not None
    assert {run for run, verbs in seen.wanted.items() if verbs} <= set(living)


def silent_hosts_run_nothing(seen: WalkRows) -> None:
    for workload in seen.workloads.values():
        assert not [run for run in seen.live(workload) if run.host.lease_state == LeaseState.SILENT]


def earmarks_are_disjoint(seen: WalkRows) -> None:
    kept = Counter(unit for workload in seen.workloads.values() for unit in workload.earmarked_units)
    assert not [unit for unit, times in kept.items() if times > 1]


def bound_units_hold_only_their_work(seen: WalkRows, now: dt.datetime) -> None:
    bound = BoundUnit.objects.filter(period__contains=now, reservation__state="active")
    owner = dict(bound.values_list("unit_id", "reservation_id"))
    for held in seen.held:
        assert owner.get(held.unit_id) == held.reservation_id or held.unit_id not in owner


def only_preemptible_work_was_evicted() -> None:
    assert not Workload.objects.filter(decisions__kind="evicted", preemptible=False).exists()


WHICH = st.integers(0, 30)


def pick(rows: list[T], which: int) -> T:
    """Return a row for ``which``, a number that was drawn before the number of rows was known."""
    return rows[which % len(rows)]


class Walk(RuleBasedStateMachine):
    """One random walk, in a transaction that is rolled back at the end."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.undone = transaction.atomic()
        self.undone.__enter__()
        self.now = MONDAY
        self.agents = {name: FakeAgent.of(host) for name, host in self.world.hosts.items()}
        self.mute: set[str] = set()
        self.mine: list[int] = []  # primary keys of this walk's workloads
        self.submitted: dict[int, dt.datetime] = {}
        self.decided_at = self.now
        self.asleep = False  # True while no engine runs
        self.answered: set[int] = set()  # workloads in the queue at the end of the last cycle
        self.ended: set[int] = set()

    # -- actions of people -----------------------------------------------------------------------------------

    @initialize(some=st.lists(JOBS, min_size=4, max_size=8))
    def a_busy_morning(self, some: list[Job]) -> None:
        for job in some:
            self._queue_job(job)
        self.wake()
        self.time_passes(400)

    @rule(some=st.lists(JOBS, min_size=1, max_size=4))
    def submit(self, some: list[Job]) -> None:
        for job in some:
            self._queue_job(job)
        self.wake()

    def _queue_job(self, job: Job) -> None:
        team_of_world = getattr(self.world, job.team)
        self._queue(
            project=team_of_world.project,
            owner=team_of_world.member,
            units=job.units,
            hosts=job.hosts,
            priority=job.priority,
            models_wanted=[A100 if job.model == MIG else job.model],
            profile=MIG if job.model == MIG else "",
            preemptible=job.preemptible,
            max_runtime_seconds=job.limit,
            most_retries=job.retries,
        )

    @precondition(lambda self: self.promised())
    @rule(which=WHICH, units=st.sampled_from((1, 4)))
    def submit_inside_a_reservation(self, which: int, units: int) -> None:
        reservation = pick(self.promised(), which)
        self._queue(
            project=reservation.project,
            owner=reservation.owner,
            units=units,
            models_wanted=[H100],
            reservation=reservation,
            preemptible=False,
            max_runtime_seconds=3600,
        )
        self.wake()

    def _queue(self, **columns: Any) -> None:
        workload = queue_workload(
            kind="job",
            type="training",
            name=f"job {len(self.mine)}",
            pool=self.world.shared,
            command="train",
            now=self.now,
            **columns,
        )
        self.mine.append(workload.pk)
        self.submitted[workload.pk] = workload.submitted_at

    @precondition(lambda self: self.open_work())
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        workload = pick(self.open_work(), which)
        services.cancel_workload(workload, now=self.now)
        self.wake()

    @rule(
        team=st.sampled_from(("vision", "language")),
        units=st.sampled_from((2, 8, 4)),
        starts_in=st.sampled_from((10, 120, 1800)),
        lasts=st.sampled_from((1800, 3 * 3600)),
        beyond=st.booleans(),
    )
    def ask_for_a_reservation(self, team: str, units: int, starts_in: int, lasts: int, beyond: bool) -> None:
        """Request a reservation. Only reservations above the threshold need approval."""
        team_of_world = getattr(self.world, team)
        start = (self.now + starts_in * SECOND).replace(microsecond=0)
        try:
            portal_reservations.request_reservation(
                actor=team_of_world.lead,
                project=team_of_world.project,
                pool=self.world.shared,
                name="a window",
                units=units,
                models=[H100],
                start=start,
                end=start + lasts * SECOND,
                why="for the walk",
                may_exceed_guarantee=beyond,
                now=self.now,
            )
        except OperationRejected as conflict:
            assert str(conflict)
        self.wake()

    @precondition(lambda self: Submission.objects.filter(state="waiting").exists())
    @rule(agreed=st.booleans())
    def decide_a_submission(self, agreed: bool) -> None:
        submission = Submission.objects.filter(state="waiting").order_by("pk")[0]
        try:
            if agreed:
                decisions.approve_submission(actor=self.world.operator, submission=submission, now=self.now)
            else:
                decisions.decline_submission(
                    actor=self.world.operator, submission=submission, comment="not now", now=self.now
                )
        except (OperationRejected, errors.Invalid):
            decisions.decline_submission(
                actor=self.world.operator, submission=submission, comment="too late", now=self.now
            )
        self.wake()

    @precondition(lambda self: self.promised())
    @rule(which=WHICH)
    def give_up_a_reservation(self, which: int) -> None:
        services.cancel_reservation(pick(self.promised(), which), now=self.now)
        self.wake()

    @rule(
        team=st.sampled_from(("vision", "language", "robotics")),
        gpus=st.sampled_from((0, 2, 4, 8)),
        limited=st.booleans(),
    )
    def change_a_quota(self, team: str, gpus: int, limited: bool) -> None:
        services.change_quota(
            team=getattr(self.world, team).team,
            pool=self.world.shared,
            model=H100,
            guaranteed_slots=gpus * SLOTS_PER_GPU,
            borrow_limit_slots=4 * SLOTS_PER_GPU if limited else None,
            now=self.now,
        )
        self.wake()

    # -- events of hosts, the engine and time ----------------------------------------------------------------

    @precondition(lambda self: self.running_runs())
    @rule(which=WHICH, outcome=st.sampled_from(("finished", "failed", "finished", "gpu_error")))
    def end_a_run(self, which: int, outcome: str) -> None:
        name, run = pick(self.running_runs(), which)
        self.agents[name].end(run, self.now, outcome=outcome)
        self.hear(name)
        self.wake()

    @precondition(lambda self: self.running_runs())
    @rule(which=WHICH)
    def save_a_checkpoint(self, which: int) -> None:
        name, run = pick(self.running_runs(), which)
        self.agents[name].checkpoint(run, self.now)
        self.hear(name)

    @precondition(lambda self: len(self.mute) < MOST_SILENT)
    @rule(name=st.sampled_from(("alpha", "beta", "gamma")))
    def lose_a_host(self, name: str) -> None:
        self.mute.add(name)

    @precondition(lambda self: self.mute)
    @rule(rebooted=st.booleans())
    def a_host_comes_back(self, rebooted: bool) -> None:
        """Let the host report again, either with its work or without work after a reboot."""
        name = self.mute.pop()
        agent = self.agents[name]
        heard = Host.objects.get(name=name).last_sync_at
        if rebooted and heard is not None and self.now - heard > 5 * 60 * SECOND:
            agent.boot_id = f"boot of {self.now.isoformat()}"
            agent.runs.clear()
        self.hear(name)
        self.wake()

    @rule(name=st.sampled_from(("alpha", "beta")), how=st.sampled_from(("cordon", "drain", "quarantine")))
    def close_a_host(self, name: str, how: str) -> None:
        verbs = {
            "cordon": services.cordon_host,
            "drain": services.drain_host,
            "quarantine": services.quarantine_host,
        }
        verbs[how](Host.objects.get(name=name), reason="a fan", now=self.now)
        self.wake()

    @rule(name=st.sampled_from(("alpha", "beta")))
    def open_a_host(self, name: str) -> None:
        services.return_host(Host.objects.get(name=name), now=self.now)
        self.wake()

    @rule()
    def the_engine_goes_away_or_comes_back(self) -> None:
        self.asleep = not self.asleep
        self.wake()

    @rule(seconds=st.sampled_from((30, 400, 75, 5, 3600)))
    def time_passes(self, seconds: int) -> None:
        """Advance the time, sync the hosts that are not mute, then run every sweep."""
        self.now += seconds * SECOND
        self.hear()
        time_limits.stop_after_notice(self.now)
        time_limits.stop_at_time_limits(self.now)
        time_limits.requeue_late_starts(self.now)
        silent_hosts.sweep_silent_hosts(self.now)
        reservation_windows.sweep_reservations(self.now)
        self.wake()

    @rule(seconds=st.sampled_from((400, 75)))
    def a_while_passes(self, seconds: int) -> None:
        """Advance the time; a second rule makes this step more frequent."""
        self.time_passes(seconds)

    def wake(self) -> None:
        """Run a cycle, as a nudge or the sweep does. Do nothing while no engine runs."""
        if not self.asleep:
            self.decide()

    def decide(self) -> None:
        """Run a cycle. Assert that its plan has no violation and is applied completely."""
        self.now += SECOND
        dependency_release.release_dependents(self.now)
        current = snapshot.take_snapshot(None, self.now)
        planned = plan(current, core_values.epoch_seconds(self.now))
        assert violations(current, planned, core_values.epoch_seconds(self.now)) == []
        open_ = {
            h.pk for h in Host.objects.all() if accepts_work(h.lease_state, h.admin_state, h.repair_state)
        }
        before = set(Run.objects.values_list("pk", flat=True))
        waiting = set(Workload.objects.filter(state=WorkloadState.QUEUED).values_list("pk", flat=True))
        applied = engine.run_cycle("walk", self.now)
        assert applied is not None and not applied.rejected
        started = Run.objects.exclude(pk__in=before)
        assert {run.host_id for run in started} <= open_
        assert {run.workload_id for run in started} == {p.workload for p in planned.placements}
        self.decided_at = self.now
        self.answered = waiting - {run.workload_id for run in started}
        self.hear()

    def hear(self, *names: str) -> None:
        """Sync the named hosts, or all hosts if no name is given. Mute hosts are left out."""
        for name in names or self.agents:
            if name not in self.mute:
                self.agents[name].sync(self.now)

    # -- open rows -------------------------------------------------------------------------------------------

    def open_work(self) -> list[Workload]:
        return list(Workload.objects.exclude(state=WorkloadState.ENDED).order_by("pk"))

    def promised(self) -> list[Reservation]:
        return list(
            Reservation.objects.filter(state__in=snapshot.OPEN_RESERVATION_STATES, end__gt=self.now).order_by(
                "pk"
            )
        )

    def running_runs(self) -> list[tuple[str, str]]:
        return [
            (name, run)
            for name, agent in self.agents.items()
            if name not in self.mute
            for run in agent.running
        ]

    # -- invariants ------------------------------------------------------------------------------------------

    @invariant()
    def invariants_hold(self) -> None:
        seen = WalkRows(self.mine)
        a_slot_is_held_once(seen)
        gangs_are_whole(seen)
        states_agree(seen)
        orders_agree_with_states(seen)
        silent_hosts_run_nothing(seen)
        earmarks_are_disjoint(seen)
        bound_units_hold_only_their_work(seen, self.now)
        only_preemptible_work_was_evicted()
        self.ended_work_stays_ended_and_submission_times_are_kept(seen)
        self.every_queued_workload_has_a_reason(seen)

    def ended_work_stays_ended_and_submission_times_are_kept(self, rows: WalkRows) -> None:
        for workload in rows.workloads.values():
            assert workload.state == WorkloadState.ENDED or workload.pk not in self.ended
            assert workload.submitted_at == self.submitted[workload.pk]
        self.ended |= {w.pk for w in rows.workloads.values() if w.state == WorkloadState.ENDED}

    def every_queued_workload_has_a_reason(self, seen: WalkRows) -> None:
        """Assert that each queued workload has a reason with numbers, and a start time if required."""
        for pk in self.answered:
            workload = seen.workloads[pk]
            if workload.state != WorkloadState.QUEUED or workload.queued_at > self.decided_at:
                continue  # the workload has ended, or was requeued after the cycle
            assert workload.reason_code in CODES, pk
            assert workload.reason_numbers or workload.reason_code == ReasonCode.RESERVATION_OVER
            if workload.reason_code in (
                ReasonCode.WAITS_FOR_EVICTION,
                ReasonCode.BACKING_OFF,
                ReasonCode.RESERVATION_NOT_STARTED,
            ):
                # A change smaller than START_RESOLUTION is not written, so the stored start may be too early.
                assert workload.expected_start is not None
                assert workload.expected_start + START_RESOLUTION > self.decided_at
            if workload.reason_code in (
                ReasonCode.WAITS_FOR_UNITS,
                ReasonCode.WAITS_FOR_EVICTION,
                ReasonCode.BEHIND_OTHERS,
            ):
                assert workload.position is not None

    # -- end of a walk ---------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.everything_is_released()
        finally:
            transaction.set_rollback(True)
            self.undone.__exit__(None, None, None)

    def everything_is_released(self) -> None:
        """Let all hosts report, cancel everything, and assert that nothing is held, ordered or reserved."""
        self.mute.clear()
        self.asleep = False
        self.time_passes(400)
        for submission in Submission.objects.filter(state="waiting"):
            decisions.decline_submission(
                actor=self.world.operator, submission=submission, comment="over", now=self.now
            )
        for reservation in self.promised():
            services.cancel_reservation(reservation, now=self.now)
        for workload in self.open_work():
            services.cancel_workload(workload, now=self.now)
        for _ in range(2):
            self.time_passes(75)
        assert not self.open_work()
        assert not Allocation.objects.filter(period__upper_inf=True).exists()
        assert not Command.objects.filter(done_at__isnull=True).exists()
        assert not BoundUnit.objects.filter(period__contains=self.now).exists()
        assert not Workload.objects.exclude(earmarked_units=[]).exists()
        assert {h.lease_state for h in Host.objects.all()} == {LeaseState.ALIVE}


@pytest.mark.parametrize(
    ("walks", "steps"),
    [SHORT_WALKS, pytest.param(*LONG_WALKS, marks=pytest.mark.long)],
    ids=["short", "long"],
)
def test_the_invariants_hold_after_each_step_of_a_random_walk(walks: int, steps: int) -> None:
    Walk.world = build_world(MONDAY)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Walk,
        settings=settings(
            max_examples=walks,
            stateful_step_count=steps,
            derandomize=IN_THE_SUITE,
            database=None,
            deadline=None,
            print_blob=False,
            phases=(Phase.generate,) if IN_THE_SUITE else (Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
