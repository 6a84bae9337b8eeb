"""Test notices and pages of a gang when one of its members or hosts fails."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.models import Notification
from portal.notices import delivery
from portal.reads.work.workload_details import WorkloadDetails
from portal.web.work import attempts
from scheduler import services
from scheduler.models import Decision, Gpu, Run, Workload
from tests.fakes import FakeAgent
from tests.scheduler.test_gangs import running_gang, sync_twice
from tests.world import World, world_fixture

SECOND = dt.timedelta(seconds=1)
Gang = tuple[Workload, list[FakeAgent]]


def write_gang(world: World) -> Gang:
    """Return a job that runs on three hosts, and its agents by rank."""
    return running_gang(world, 3)


gang = world_fixture(write_gang)


@pytest.mark.parametrize(
    ("whole", "rank"),
    [
        (True, 1),
        (False, 2),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((True, 0), (True, 2), (False, 0), (False, 1))
        ),
    ],
)
def test_the_notice_names_the_drained_host_and_is_sent_once(
    world: World, gang: Gang, rank: int, whole: bool
) -> None:
    workload, agents = gang
    ill, at = agents[rank].host, world.now + 60 * SECOND
    if whole:
        assert services.drain_host(ill, reason="a fan", now=at)
    else:
        assert services.quarantine_gpu(Gpu.objects.get(host=ill, index=0), reason="xid:79", now=at)
    for seconds in (1, 30):
        delivery.write_notices(at + seconds * SECOND)
    notice = Notification.objects.get(user=workload.owner, kind="has_to_move")
    assert (notice.numbers["host"], notice.numbers["words"]) == (ill.name, "a fan" if whole else "xid:79")


def test_the_page_shows_why_the_attempt_ended_and_not_how_its_first_member_was_stopped(
    world: World, gang: Gang
) -> None:
    workload, agents = gang
    at = world.now + 60 * SECOND
    assert services.quarantine_gpu(Gpu.objects.get(host=agents[1].host, index=0), reason="xid:79", now=at)
    sync_twice(workload, agents, at)
    (row,) = attempts.attempt_rows(WorkloadDetails(workload), world.vision.member)
    assert (row["state"], row["word"]) == ("failed", "GPU error") and "It was stopped" not in row["why"]


def test_the_page_shows_the_exit_code_of_the_member_that_failed(world: World, gang: Gang) -> None:
    workload, agents = gang
    at = world.now + 60 * SECOND
    agents[2].end(agents[2].running[0], at, outcome="failed", exit_code=7)
    agents[2].sync(at)
    sync_twice(workload, agents[:2], at)
    (row,) = attempts.attempt_rows(WorkloadDetails(workload), world.vision.member)
    assert "exit code 7" in row["why"]


def test_the_page_and_the_decision_agree_if_a_gpu_fails_after_another_member_failed(
    world: World, gang: Gang
) -> None:
    workload, agents = gang
    at = world.now + 60 * SECOND
    agents[0].end(agents[0].running[0], at, outcome="failed", exit_code=1)
    agents[0].sync(at)
    assert services.quarantine_gpu(
        Gpu.objects.get(host=agents[2].host, index=0), reason="xid:79", now=at + SECOND
    )
    sync_twice(workload, agents[1:], at + SECOND)
    decided = Decision.objects.get(workload=workload, kind="restarted")
    assert (decided.code, decided.numbers["host"]) == ("gpu_error", agents[2].host.name)
    (row,) = attempts.attempt_rows(WorkloadDetails(workload), world.vision.member)
    assert row["word"] == "GPU error" and "exit code" not in row["why"]


@pytest.mark.long
def test_a_gpu_error_of_one_member_does_not_hide_an_earlier_host_loss_of_another(
    world: World,
) -> None:
    workload, agents = running_gang(world, 2)
    at = world.now + 60 * SECOND
    for agent in agents:
        agent.end(agent.running[0], at, outcome="failed", exit_code=1)
        agent.sync(at)
    Run.objects.filter(rank=0).update(outcome="host_lost", ended_at=at)
    Run.objects.filter(rank=1).update(outcome="gpu_error", ended_at=at + SECOND, gpu_events=["xid:79"])
    (row,) = attempts.attempt_rows(WorkloadDetails(workload), world.vision.member)
    assert row["word"] == "Host lost" and "xid:79" not in row["why"]


def test_the_page_makes_the_same_number_of_queries_for_any_number_of_attempts(world: World) -> None:
    workload, agents = running_gang(world, 2)
    at = world.now + 60 * SECOND
    for agent in agents:
        agent.end(agent.running[0], at, outcome="failed", exit_code=1)
        agent.sync(at)
    query_counts = []
    for attempt in (2, 3, 4):
        with CaptureQueriesContext(connection) as queries:
            assert len(attempts.attempt_rows(WorkloadDetails(workload), world.vision.member)) == attempt - 1
        query_counts.append(len(queries))
        for run in Run.objects.filter(workload=workload, attempt=1):
            run.pk, run.public_id, run.attempt, run.generation = (
                None,
                uuid.uuid4(),
                attempt,
                run.generation + 100 * attempt,
            )
            run.save()
    assert len(set(query_counts)) == 1, query_counts
