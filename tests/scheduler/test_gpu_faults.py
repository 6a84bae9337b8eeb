"""Test runs that fail because of their GPU: they are requeued and not charged."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import replace

import pytest

from portal.edge.agents import database_calls as edge
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.work import attempts as pages
from scheduler.coordination.clock_check import ClockSample
from scheduler.models import Allocation, Decision, Host, Run, Workload
from scheduler.services.host_credentials import CREDENTIAL_PREFIX
from telemetry.core.charge_model import HARDWARE_FAULT_END_CODES
from telemetry.ingest import agent_api
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_gangs import placed
from tests.scheduler.test_job_lifecycle import job
from tests.seeds import first_cases
from tests.world import World

SECOND = dt.timedelta(seconds=1)


def end_with_gpu_events(
    agent: FakeAgent, at: dt.datetime, events: list[str], outcome: str = "failed", exit_code: int = 139
) -> Run:
    """End the agent's only run with these GPU events, and sync as the edge does. Returns the run."""
    (key,) = agent.running
    agent.end(key, at, outcome=outcome, exit_code=exit_code)
    agent.runs[key] = replace(agent.runs[key], gpu_events=events)
    own = f"{CREDENTIAL_PREFIX}.{agent.host.pk}.secret"
    Host.objects.filter(pk=agent.host.pk).update(credential_hash=hashlib.sha256(own.encode()).hexdigest())
    edge.sync(
        edge.AuthenticatedHost(agent.host.pk, agent.host.name),
        [own],
        agent.observed(),
        lambda: ClockSample(at, "test", at.timestamp()),
    )
    return Run.objects.get(public_id=key)


def running(world: World, **wish: object) -> tuple[Workload, FakeAgent]:
    (agent,) = agents_of(world, "alpha")
    workload = job(world, world.vision, 1, world.now, **wish)
    start(world, [agent], world.now)
    return workload, agent


@pytest.mark.parametrize(
    "events",
    [
        ["xid:13", "recovery:gpu_reset"],
        *(pytest.param(events, marks=pytest.mark.long) for events in (["xid:79"], ["xid:48"])),
    ],
)
def test_a_run_that_fails_together_with_its_gpu_is_requeued_and_not_charged(
    world: World, events: list[str]
) -> None:
    workload, agent = running(world)
    run = end_with_gpu_events(agent, world.now + 60 * SECOND, events)
    workload.refresh_from_db()
    assert (run.outcome, run.exit_code, run.gpu_events) == ("gpu_error", 139, events[-1:])
    assert (workload.state, workload.reason_code, workload.lost_attempts, workload.failures) == (
        "queued",
        "gpu_error",
        1,
        0,
    )
    assert workload.reason_numbers == {"event": events[-1]}
    assert Allocation.objects.get(workload=workload).end_code in HARDWARE_FAULT_END_CODES
    row = pages.attempt_rows(WorkloadDetails(workload), world.vision.member)[0]
    assert events[-1] in row["why"] and "exit code" not in row["why"]


@pytest.mark.parametrize(
    "events",
    first_cases(2, [[], ["xid:13"], ["xid:31", "xid:43"], ["xid:109"], ["xid:99999"], ["a\x00b", "\ud800"]]),
)
def test_events_that_programs_can_cause_and_unknown_events_do_not_excuse_a_failure(
    world: World, events: list[str]
) -> None:
    workload, agent = running(world)
    run = end_with_gpu_events(agent, world.now + 60 * SECOND, events)
    workload.refresh_from_db()
    assert (run.outcome, run.gpu_events, workload.state, workload.outcome) == (
        "failed",
        [],
        "ended",
        "failed",
    )
    assert workload.outcome_numbers == {"attempt": 1, "exit_code": 139}


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("out_of_memory", 137)])
def test_gpu_events_change_only_the_outcome_of_failed_runs(world: World, outcome: str, code: int) -> None:
    workload, agent = running(world)
    assert end_with_gpu_events(agent, world.now + 60 * SECOND, ["xid:79"], outcome, code).outcome == outcome
    workload.refresh_from_db()
    assert workload.outcome == outcome


def test_a_notebook_that_fails_because_of_its_gpu_ends_with_gpu_error(world: World) -> None:
    workload, agent = running(world)
    Workload.objects.filter(pk=workload.pk).update(kind="notebook")
    end_with_gpu_events(agent, world.now + 60 * SECOND, ["xid:79"])
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", "gpu_error")
    assert workload.outcome_numbers == {"attempt": 1, "exit_code": 139, "event": "xid:79"}


def test_a_gang_restart_names_the_member_whose_gpu_reported_an_event(world: World) -> None:
    workload, agents = placed(world)
    for step in (1, 2):
        for agent in agents:
            agent.sync(world.now + step * SECOND)
    now = world.now + 60 * SECOND
    # This member fails because of the other member, but the end of this member is reported first.
    agents[0].end(agents[0].running[0], now, outcome="failed", exit_code=1)
    agents[0].sync(now)
    faulty = end_with_gpu_events(agents[1], now + SECOND, ["xid:79"])
    workload.refresh_from_db()
    assert (faulty.outcome, workload.state, workload.reason_code) == ("gpu_error", "queued", "gpu_error")
    kept = Decision.objects.get(workload=workload, kind="restarted")
    assert (kept.numbers["host"], kept.numbers["event"]) == (faulty.host.name, "xid:79")


def test_runs_without_gpu_events_need_no_query(world: World, django_assert_num_queries: object) -> None:
    workload, agent = running(world)
    with django_assert_num_queries(0):  # type: ignore[operator]
        assert agent_api.gpu_fault_codes(agent.observed().runs) == frozenset()
    assert Host.objects.get(pk=agent.host.pk).name == "alpha" and workload
