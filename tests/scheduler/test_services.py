"""Test the services on workloads, quotas, hosts and budget gates."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from scheduler import services
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine
from scheduler.models import BudgetGate, Quota, Workload
from scheduler.queue import runtime_prediction
from scheduler.sweeps import time_limits
from scheduler.sync import agent_api
from tests.fakes import FakeAgent
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, World, preview_workload, queue_workload

HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)


def run(world: World, workload: Workload, at: dt.datetime) -> list[FakeAgent]:
    """Run the workload on one of the two shared H100 hosts. Returns the agents of both hosts."""
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    engine.run_cycle("test", at)
    for agent in agents * 2:
        agent.sync(at)
    workload.refresh_from_db()
    assert workload.state == "running"
    return agents


def test_waiting_work_is_cancelled_at_once_and_only_once(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    assert services.cancel_workload(workload, now=world.now + SECOND)
    assert (workload.state, workload.outcome, workload.ended_at) == ("ended", "cancelled", world.now + SECOND)
    assert not services.cancel_workload(workload, now=world.now + 2 * SECOND)


def test_cancelled_running_work_ends_when_its_agent_confirms_the_stop(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    agents = run(world, workload, world.now)
    assert services.cancel_workload(workload, now=world.now + HOUR)
    assert not services.cancel_workload(workload, now=world.now + HOUR)
    assert workload.state == "stopping"
    for agent in agents * 2:
        agent.sync(world.now + HOUR + 5 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", "cancelled")
    assert workload.outcome_numbers["run_outcome"] == "killed_at_grace"


def test_work_with_a_notice_can_be_cancelled(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    agents = run(world, workload, world.now)
    host = workload.runs.get().host
    services.drain_host(host, reason="fan", now=world.now + SECOND)
    workload.refresh_from_db()
    assert workload.state == "notice"
    assert services.cancel_workload(workload, now=world.now + 2 * SECOND)
    for agent in agents * 2:
        agent.sync(world.now + 3 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", "cancelled")


def test_work_is_stopped_at_its_time_limit_and_an_extension_moves_the_limit(world: World) -> None:
    workload = job(world, world.vision, 1, world.now, max_runtime_seconds=3600)
    agents = run(world, workload, world.now)
    assert services.extend_workload(workload, seconds=600, now=world.now)
    time_limits.stop_at_time_limits(world.now + HOUR + SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "running"
    time_limits.stop_at_time_limits(world.now + HOUR + 601 * SECOND)
    for agent in agents * 2:
        agent.sync(world.now + HOUR + 602 * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.outcome) == ("ended", ReasonCode.TIME_LIMIT)
    assert not services.extend_workload(workload, seconds=600, now=world.now + 2 * HOUR)


def test_a_start_that_is_never_reported_is_withdrawn_and_retried(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    engine.run_cycle("test", world.now)
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    frames_without_the_run = [agent.observed() for agent in agents]
    time_limits.requeue_late_starts(world.now + 119 * SECOND)
    assert Workload.objects.get(pk=workload.pk).state == "placed"
    time_limits.requeue_late_starts(world.now + 121 * SECOND)
    for seconds in (122, 123, 134, 135):
        for agent, frame in zip(agents, frames_without_the_run, strict=True):
            agent_api.sync(agent.host.pk, frame, world.now + seconds * SECOND)
    workload.refresh_from_db()
    assert (workload.state, workload.reason_code, workload.lost_attempts) == (
        "queued",
        ReasonCode.START_FAILED,
        1,
    )
    assert workload.not_before is not None


def test_a_notebook_that_never_becomes_ready_is_stopped(world: World) -> None:
    mute, answers = (
        job(world, world.vision, 1, world.now, kind="notebook", command="", preemptible=False) for _ in "12"
    )
    engine.run_cycle("test", world.now)
    agents = [FakeAgent.of(world.hosts[name]) for name in ("alpha", "beta")]
    for agent in agents * 2:
        agent.sync(world.now)
    answers.runs.update(ready_at=world.now + SECOND)
    time_limits.stop_unready_notebooks(world.now + 299 * SECOND)
    assert Workload.objects.filter(state="running").count() == 2
    time_limits.stop_unready_notebooks(world.now + 301 * SECOND)
    for agent in agents * 2:
        agent.sync(world.now + 302 * SECOND)
    mute.refresh_from_db()
    answers.refresh_from_db()
    assert (mute.state, mute.outcome, answers.state) == ("ended", ReasonCode.START_FAILED, "running")


def test_an_idle_warning_is_recorded_once_and_cleared_by_a_postponement(world: World) -> None:
    workload = job(world, world.vision, 1, world.now, kind="notebook", command="")
    run(world, workload, world.now)
    assert services.record_idle_warning(workload, at=world.now) and not services.record_idle_warning(
        workload, at=world.now
    )
    assert services.postpone_idle_stop(workload, until=world.now + HOUR)
    workload.refresh_from_db()
    assert (workload.idle_warned_at, workload.keep_until) == (None, world.now + HOUR)


def test_guarantees_may_fill_the_pool_but_not_exceed_it(world: World) -> None:
    def change(gpus: int) -> bool:
        return services.change_quota(
            team=world.robotics.team,
            pool=world.shared,
            model=H100,
            guaranteed_slots=gpus * SLOTS_PER_GPU,
            borrow_limit_slots=None,
            now=world.now,
        )

    available = services.guarantee_capacity(pool=world.shared, model=H100, team=world.robotics.team)
    assert (available.capacity, available.others, available.most) == tuple(
        n * SLOTS_PER_GPU for n in (16, 12, 4)
    )
    assert not change(5)
    assert (
        Quota.objects.get(team=world.robotics.team, pool=world.shared, model=H100).guaranteed_slots
        == 2 * SLOTS_PER_GPU
    )
    assert change(4)


def test_a_changed_quota_applies_from_the_next_cycle(world: World) -> None:
    notebooks = [
        job(world, world.robotics, 1, world.now, kind="notebook", preemptible=False, command="")
        for _ in range(3)
    ]
    engine.run_cycle("test", world.now)
    assert [Workload.objects.get(pk=w.pk).state for w in notebooks].count("queued") == 1
    services.change_quota(
        team=world.robotics.team,
        pool=world.shared,
        model=H100,
        guaranteed_slots=3 * SLOTS_PER_GPU,
        borrow_limit_slots=None,
        now=world.now,
    )
    engine.run_cycle("test", world.now + SECOND)
    assert {Workload.objects.get(pk=w.pk).state for w in notebooks} == {"placed"}


def test_a_host_changes_state_only_along_allowed_transitions(world: World) -> None:
    host = world.hosts["alpha"]
    assert services.cordon_host(host, reason="fan", now=world.now)
    assert not services.cordon_host(host, reason="fan", now=world.now)
    assert services.drain_host(host, reason="fan", now=world.now)
    assert services.quarantine_host(host, reason="xid", now=world.now)
    assert services.return_host(host, reason="repaired", now=world.now)
    assert not services.return_host(host, now=world.now)
    assert (host.admin_state, host.repair_state) == ("in_service", "well")
    changes = list(host.state_changes.order_by("pk").values_list("admin_state", "repair_state"))
    assert changes[1:4] == [("cordoned", "well"), ("draining", "well"), ("draining", "quarantined")]


def test_a_preview_equals_the_next_cycles_decision_and_changes_nothing(world: World) -> None:
    request: dict[str, Any] = {
        "kind": "job",
        "type": "training",
        "name": "what if",
        "project": world.vision.project,
        "pool": world.shared,
        "owner": world.vision.member,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "preemptible": True,
        "now": world.now,
    }
    fits = preview_workload(**request, units=8)
    assert (
        fits["starts_now"]
        and fits["code"] == ReasonCode.FREE_WITHIN_GUARANTEE
        and fits["borrowed_slots"] == 0
    )
    assert [(q.model, q.guaranteed, q.held) for q in fits["quota_effect"]][1] == (H100, 8 * SLOTS_PER_GPU, 0)
    never = preview_workload(**request, units=9)
    assert (
        not never["starts_now"]
        and never["code"] == ReasonCode.TOO_BIG_FOR_ANY_HOST
        and never["expected_start"] is None
    )
    assert not Workload.objects.exists()


def test_a_preview_respects_closed_budgets(world: World) -> None:
    request: dict[str, Any] = {
        "project": world.robotics.project,
        "pool": world.shared,
        "owner": world.robotics.member,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "preemptible": True,
        "now": world.now,
        "units": 4,
    }
    gate: dict[str, Any] = {"numbers": {"spent": "9"}, "until": world.now + HOUR, "now": world.now}
    assert preview_workload(**request)["borrowed_slots"] == 2 * SLOTS_PER_GPU
    services.close_budget_gate(action="stop_borrowing", project=world.robotics.project, **gate)
    assert preview_workload(**request)["code"] == ReasonCode.OVER_QUOTA
    services.close_budget_gate(action="refuse_new", team=world.robotics.team, **gate)
    preview = preview_workload(**request)
    assert (preview["starts_now"], preview["code"], preview["numbers"]) == (
        False,
        ReasonCode.BUDGET_CLOSED,
        {"spent": "9"},
    )


def test_with_several_obstacles_a_preview_names_the_same_reason_as_the_next_cycle(world: World) -> None:
    request: dict[str, Any] = {
        "kind": "job",
        "type": "training",
        "name": "later",
        "project": world.vision.project,
        "pool": world.shared,
        "owner": world.vision.member,
        "models_wanted": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
        "units": 1,
    }
    services.close_budget_gate(
        action="refuse_new",
        team=world.vision.team,
        numbers={"spent": "9"},
        until=world.now + HOUR,
        now=world.now,
    )
    first = queue_workload(**request)
    preview = preview_workload(**request, after=[("ok", first)])
    waiting = queue_workload(**request, after=[("ok", first)])
    engine.run_cycle("test", world.now)
    waiting.refresh_from_db()
    assert (preview["code"], preview["numbers"]) == (waiting.reason_code, waiting.reason_numbers)
    assert preview["code"] == ReasonCode.DEPENDENCY


def test_a_gate_that_is_closed_again_has_one_row(world: World) -> None:
    gate: dict[str, Any] = {"action": "refuse_new", "team": world.vision.team, "until": world.now + HOUR}
    services.close_budget_gate(numbers={"spent": "1"}, now=world.now, **gate)
    services.close_budget_gate(numbers={"spent": "2"}, now=world.now + SECOND, **gate)
    assert BudgetGate.objects.get().numbers == {"spent": "2"}
    with pytest.raises(IntegrityError, match="a_gate_is_closed_once"), transaction.atomic():
        BudgetGate.objects.create(closed_at=world.now, **gate)


def test_an_extension_beyond_the_pools_longest_runtime_is_rejected(world: World) -> None:
    workload = job(world, world.vision, 1, world.now)
    seconds_left = world.shared.longest_runtime_seconds - workload.max_runtime_seconds
    assert services.extend_workload(workload, seconds=seconds_left, now=world.now)
    with pytest.raises(services.OperationRejected, match="over_runtime_cap"):
        services.extend_workload(workload, seconds=1, now=world.now)


@pytest.mark.parametrize(
    ("finished", "limit", "expected"),
    [
        ([], 3600, 3600),
        ([600, 700, 800], 3600, 3600),
        ([600, 700, 800, 900, 1000], 3600, 800),
        ([600, 700, 800, 900, 1000], 500, 500),
        # The limits of the finished jobs differ too much from 36,000 s. Jobs of the pool usually use 800/3600
        # of their limit, so the prediction is this share of 36,000 s.
        ([600, 700, 800, 900, 1000], 36_000, 8000),
    ],
)
def test_a_runtime_is_predicted_from_similar_jobs_and_never_above_the_limit(
    world: World, finished: list[int], limit: int, expected: int
) -> None:
    for seconds in finished:
        past = job(world, world.vision, 2, world.now, max_runtime_seconds=1500 if limit == 500 else 3600)
        Workload.objects.filter(pk=past.pk).update(
            state="ended", outcome="finished", started_at=world.now, ended_at=world.now + seconds * SECOND
        )
    predicted = runtime_prediction.predict_runtime_seconds(
        pool=world.shared,
        team=world.vision.team,
        owner_id=world.vision.member.pk,
        total_units=3,
        max_runtime_seconds=limit,
    )
    assert predicted == expected
