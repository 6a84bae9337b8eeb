"""Test the end of an attempt: its outcome, its retry, the effect on a gang, and its charge."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine
from scheduler.models import Allocation, Command, Quota, Run, Workload
from scheduler.runs import attempts, commands, retry_policy
from scheduler.runs.retry_policy import RetryDecision, decide_retry
from scheduler.state.states import RunState
from scheduler.sweeps import silent_hosts, time_limits
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)


@pytest.mark.parametrize(
    ("stop_code", "outcome", "code", "comes_back"),
    [
        ("", ReasonCode.FINISHED, ReasonCode.FINISHED, False),
        ("", ReasonCode.FAILED, ReasonCode.FAILED, True),
        ("", ReasonCode.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY, True),
        ("", ReasonCode.TIME_LIMIT, ReasonCode.TIME_LIMIT, False),
        ("", ReasonCode.HOST_LOST, ReasonCode.HOST_LOST, True),
        ("", ReasonCode.LEASE_LOST, ReasonCode.LEASE_LOST, True),
        ("", ReasonCode.START_FAILED, ReasonCode.START_FAILED, True),
        ("", ReasonCode.PROLOG_FAILED, ReasonCode.PROLOG_FAILED, True),
        (ReasonCode.CANCELLED, ReasonCode.PROLOG_FAILED, ReasonCode.CANCELLED, False),
        ("", ReasonCode.HOST_FULL, ReasonCode.HOST_FULL, True),
        ("", ReasonCode.GPU_UNREADABLE, ReasonCode.GPU_UNREADABLE, True),
        ("", ReasonCode.OUT_OF_DISK, ReasonCode.OUT_OF_DISK, True),
        ("", ReasonCode.DISK_RAN_LOW, ReasonCode.DISK_RAN_LOW, True),
        (ReasonCode.CANCELLED, ReasonCode.DISK_RAN_LOW, ReasonCode.CANCELLED, False),
        (ReasonCode.EVICTED_FOR_GUARANTEE, ReasonCode.CHECKPOINTED, ReasonCode.EVICTED_FOR_GUARANTEE, True),
        (ReasonCode.EVICTED_FOR_GUARANTEE, ReasonCode.FAILED, ReasonCode.EVICTED_FOR_GUARANTEE, True),
        (
            ReasonCode.EVICTED_FOR_GUARANTEE,
            ReasonCode.KILLED_AT_GRACE,
            ReasonCode.EVICTED_FOR_GUARANTEE,
            True,
        ),
        (ReasonCode.EVICTED_FOR_GUARANTEE, ReasonCode.FINISHED, ReasonCode.FINISHED, False),
        (ReasonCode.DRAINED, ReasonCode.KILLED_AT_GRACE, ReasonCode.DRAINED, True),
        (ReasonCode.CANCELLED, ReasonCode.FAILED, ReasonCode.CANCELLED, False),
        (ReasonCode.CANCELLED, ReasonCode.FINISHED, ReasonCode.CANCELLED, False),
        (ReasonCode.CANCELLED, ReasonCode.HOST_LOST, ReasonCode.CANCELLED, False),
        (ReasonCode.IDLE, ReasonCode.KILLED_AT_GRACE, ReasonCode.IDLE, False),
        (ReasonCode.GPU_ERROR, ReasonCode.KILLED_AT_GRACE, ReasonCode.GPU_ERROR, True),
    ],
)
def test_the_stop_code_and_the_outcome_decide_whether_a_workload_is_requeued(
    stop_code: str, outcome: str, code: str, comes_back: bool
) -> None:
    answer = decide_retry(Workload(kind="job", stop_requested=stop_code, most_retries=1), outcome)
    assert (answer.code, answer.requeues) == (code, comes_back)


def _documented() -> list[tuple[str, str, str, str, str]]:
    """Return the rows (stop code, outcome, requeued kinds, limit, wait) of the table in docs/states.md."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "states.md").read_text()
    part = text.partition("### How an attempt ends")[2].partition("## Reservation")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in part.splitlines()
        if line.startswith("| ")
    ]
    return [
        (stop_code, outcome, who, most, waits)
        for stop_code_cell, outcome_cell, who, most, waits in rows[1:]
        for stop_code in re.findall("`([a-z_]+)`", stop_code_cell) or [""]
        for outcome in re.findall("`([a-z_]+)`", outcome_cell)
    ]


@pytest.mark.parametrize(("stop_code", "outcome", "who", "most", "waits"), _documented())
def test_retries_follow_the_documented_table(
    stop_code: str, outcome: str, who: str, most: str, waits: str
) -> None:
    limits = {"its own retries": (7, 0), "5": (0, 5)}
    own, lost = limits.get(most, (0, 0))
    for kind in ("job", "notebook"):
        answer = decide_retry(Workload(kind=kind, stop_requested=stop_code, most_retries=own), outcome)
        assert answer.requeues is (f"{kind}s" in who)
        if not answer.requeues:
            continue
        assert (answer.failures, answer.lost) == (1 if own else 0, 1 if lost else 0)
        for before in range(own or lost or 40):
            again = Workload(
                kind=kind, stop_requested=stop_code, most_retries=own, failures=before, lost_attempts=before
            )
            doubled, fixed = waits.startswith("15 s, doubled"), {"60 s": 60}.get(waits, 0)
            expected = min(15 * 2**before, 1800) if doubled else fixed
            assert (
                decide_retry(again, outcome).requeues
                and decide_retry(again, outcome).wait_seconds == expected
            )
        if own or lost:
            used = Workload(
                kind=kind, stop_requested=stop_code, most_retries=own, failures=own, lost_attempts=lost
            )
            assert not decide_retry(used, outcome).requeues


def test_every_outcome_is_in_the_documented_table() -> None:
    contract = (Path(__file__).resolve().parents[2] / "docs" / "workload-contract.md").read_text()
    table = contract.partition("recorded with one of these outcomes")[2].partition("Exit codes")[0]
    known = {
        code
        for line in table.splitlines()
        for code in re.findall("`([a-z_]+)`", line.split("|")[1] if "|" in line else "")
    }
    assert len(known) == 18 and known == {outcome for _, outcome, *_ in _documented()}


def test_a_preemption_uses_no_retry_and_a_lost_host_has_its_own_limit() -> None:
    workload = Workload(kind="job", most_retries=1, failures=1)
    assert decide_retry(workload, ReasonCode.FAILED) == RetryDecision(ReasonCode.FAILED)
    workload.stop_requested = ReasonCode.EVICTED_FOR_PRIORITY
    assert decide_retry(workload, ReasonCode.FAILED) == RetryDecision(
        ReasonCode.EVICTED_FOR_PRIORITY, requeues=True
    )
    workload.stop_requested = ""
    assert decide_retry(workload, ReasonCode.HOST_LOST) == RetryDecision(
        ReasonCode.HOST_LOST, requeues=True, lost=1
    )
    workload.lost_attempts = retry_policy.MAX_LOST_ATTEMPTS
    assert not decide_retry(workload, ReasonCode.HOST_LOST).requeues


def test_a_stop_because_of_low_disk_space_uses_no_retry_but_counts_as_a_lost_attempt() -> None:
    workload = Workload(kind="job", most_retries=0)
    assert decide_retry(workload, ReasonCode.OUT_OF_DISK) == RetryDecision(ReasonCode.OUT_OF_DISK)
    assert decide_retry(workload, ReasonCode.DISK_RAN_LOW) == RetryDecision(
        ReasonCode.DISK_RAN_LOW, requeues=True, lost=1, wait_seconds=15
    )
    workload.lost_attempts = retry_policy.MAX_LOST_ATTEMPTS
    assert not decide_retry(workload, ReasonCode.DISK_RAN_LOW).requeues


def test_a_notebook_on_a_lost_host_ends_because_its_memory_is_lost() -> None:
    assert not decide_retry(Workload(kind="notebook"), ReasonCode.HOST_LOST).requeues


def gang(world: World, now: dt.datetime) -> Workload:
    Quota.objects.filter(team=world.vision.team).update(guaranteed_slots=16 * SLOTS_PER_GPU)
    return job(world, world.vision, 8, now, hosts=2)


@pytest.mark.long
def test_a_gang_is_running_when_all_members_run_and_stops_when_a_member_fails(world: World) -> None:
    first, second = (FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta"))
    workload = gang(world, world.now)
    engine.run_cycle("test", world.now)
    assert [r.rank for r in workload.runs.order_by("host__name")] == [0, 1]
    first.sync(world.now)
    first.sync(world.now + SECOND)
    workload.refresh_from_db()
    assert workload.state == "starting"
    second.sync(world.now + SECOND)
    second.sync(world.now + 2 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "running" and workload.started_at == world.now + SECOND

    first.end(first.running[0], world.now + 10 * SECOND, outcome="failed", exit_code=9)
    first.sync(world.now + 10 * SECOND)
    workload.refresh_from_db()
    assert workload.state == "stopping"
    assert Command.objects.get(verb="stop").run.host == second.host
    second.sync(world.now + 11 * SECOND)
    second.sync(world.now + 12 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", "failed")
    assert workload.outcome_numbers == {"attempt": 1, "exit_code": 9}


@pytest.mark.long
def test_a_gang_that_loses_a_host_is_requeued_as_a_whole(world: World) -> None:
    agents = [FakeAgent.of(host) for host in world.hosts.values()]
    workload = gang(world, world.now)
    engine.run_cycle("test", world.now)
    for agent in agents * 2:
        agent.sync(world.now)
    lost, *others = sorted(agents, key=lambda agent: not agent.running)
    later = world.now + 71 * SECOND
    for agent in others:
        agent.sync(later)
    silent_hosts.sweep_silent_hosts(later)
    workload.refresh_from_db()
    assert workload.state == "stopping", "the other member must confirm its stop first"
    for agent in others * 2:
        agent.sync(later + SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.HOST_LOST,
        1,
    )
    assert lost.host.runs.get().outcome == ReasonCode.HOST_LOST


def test_the_next_report_sets_the_start_time_of_a_workload_whose_run_is_already_running(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    workload = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    agent.sync(world.now)
    Run.objects.filter(workload=workload).update(state="running")
    seen = agent.runs[agent.running[0]]
    agent.runs[seen.run] = replace(seen, checkpoint_at=world.now.timestamp())
    agent.sync(world.now + SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.started_at) == ("running", world.now + SECOND)


def test_a_run_whose_first_report_says_running_has_equal_starting_and_running_times(world: World) -> None:
    queued = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    run = Run.objects.get(workload=queued)
    assert attempts.advance_run(run, RunState.RUNNING, world.now + SECOND)
    run.refresh_from_db()
    assert run.starting_at == run.running_at == world.now + SECOND


@pytest.mark.parametrize("saves", [True, False])
def test_the_charge_depends_on_the_stop_code_and_not_on_the_outcome(world: World, saves: bool) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    cancelled, evicted = (job(world, world.vision, 1, world.now) for _ in range(2))
    engine.run_cycle("test", world.now)
    for seconds in range(3):
        agent.sync(world.now + seconds * SECOND)
    for run in agent.running if saves else ():
        agent.checkpoint(run, world.now + 2 * SECOND)
    later = world.now + 60 * SECOND
    assert services.cancel_workload(cancelled, now=later)
    evicted.refresh_from_db()
    assert commands.give_notice(
        evicted, code=ReasonCode.EVICTED_FOR_GUARANTEE, stop_at=later, grace_seconds=30, now=later
    )
    time_limits.stop_after_notice(later)
    for seconds in range(3):
        agent.sync(later + seconds * SECOND)
    held = {a.workload_id: a for a in Allocation.objects.select_related("run")}
    expected_outcome = "checkpointed" if saves else "killed_at_grace"
    assert {allocation.run.outcome for allocation in held.values()} == {expected_outcome}
    assert held[cancelled.pk].end_code == ReasonCode.CANCELLED, "a stop by the owner is no preemption"
    assert held[evicted.pk].end_code == ReasonCode.EVICTED_FOR_GUARANTEE
