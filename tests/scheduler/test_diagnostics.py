"""Test GPU diagnostics: their requests and the effects of their results."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.protocol import CheckSeen, DiagnosticSeen
from scheduler.models import Diagnostic, Gpu, GpuStateChange, Host, Pool
from scheduler.services import OperationRejected, quarantine_gpu, trip_host
from scheduler.state.states import RepairState
from scheduler.sync import agent_api, gpu_diagnostics
from tests.scheduler.test_agents_and_hosts import agents_of
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def gpu_of(world: World, index: int = 0, host: str = "alpha") -> Gpu:
    return units_of(world.hosts[host])[index].gpu


def answer(row: Diagnostic, state: str, *, detail: str = "", minute: int = 10) -> None:
    seen = DiagnosticSeen(
        str(row.public_id), state, "own", [CheckSeen("memory", state == "passed", {"gib": 79})], detail
    )
    gpu_diagnostics.store_diagnostics(row.host, [seen], at(10, minute))
    row.refresh_from_db()


def quarantined(world: World) -> Gpu:
    gpu = gpu_of(world)
    assert quarantine_gpu(gpu, reason="xid:48", now=at(9))
    return gpu


def test_a_quarantined_gpu_is_diagnosed_automatically_and_returns_if_it_passes(world: World) -> None:
    gpu = quarantined(world)
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    row = Diagnostic.objects.get()
    gpu.refresh_from_db()
    assert (row.why, row.state, gpu.repair_state) == ("quarantined", "wanted", "diagnosing")
    wanted = gpu_diagnostics.desired_diagnostics(row.host, row.host.pool)
    assert [(desired.gpu, desired.tool, desired.deadline_seconds) for desired in wanted] == [
        (gpu.uuid, "auto", 600.0)
    ]
    answer(row, "running")
    assert row.state == "running"
    answer(row, "passed")
    gpu.refresh_from_db()
    assert (row.state, row.tool, row.checks[0]["numbers"], gpu.repair_state) == (
        "passed",
        "own",
        {"gib": 79},
        "well",
    )
    states = list(
        GpuStateChange.objects.filter(gpu=gpu).order_by("pk").values_list("repair_state", flat=True)
    )
    assert states == ["quarantined", "diagnosing", "well"]
    gpu_diagnostics.sweep_diagnostics(at(10, 30))
    assert Diagnostic.objects.count() == 1


def test_a_gpu_whose_diagnostic_fails_is_taken_out_with_the_reason(world: World) -> None:
    gpu = quarantined(world)
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    answer(Diagnostic.objects.get(), "failed", detail="memory: 1 word of 79 GiB differs")
    gpu.refresh_from_db()
    assert (gpu.repair_state, gpu.state_reason) == (
        "out",
        "its diagnostic failed: memory: 1 word of 79 GiB differs",
    )
    gpu_diagnostics.sweep_diagnostics(at(11))
    assert Diagnostic.objects.count() == 1, "a failed diagnostic is not repeated"


def test_a_quarantined_gpu_is_diagnosed_only_after_its_work_has_ended(world: World) -> None:
    held = hold(workload(world, world.vision), units_of(world.hosts["alpha"])[0], at(8))
    quarantined(world)
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    assert not Diagnostic.objects.exists()
    with pytest.raises(OperationRejected) as rejection:
        gpu_diagnostics.request_diagnostic(held.unit.gpu, why=Diagnostic.Why.OPERATOR, now=at(9, 1))
    assert rejection.value.code == "gpu_is_held"


def test_a_diagnostic_without_an_answer_is_retried_a_few_times(world: World) -> None:
    gpu = quarantined(world)
    moment = at(9, 1)
    for tries in (1, 2, 3):
        gpu_diagnostics.sweep_diagnostics(moment)
        assert Diagnostic.objects.count() == tries
        moment += timedelta(seconds=600 + 121)
        gpu_diagnostics.sweep_diagnostics(moment)
        gpu.refresh_from_db()
        assert gpu.repair_state == "quarantined"
        gpu_diagnostics.sweep_diagnostics(moment + timedelta(minutes=1))
        assert Diagnostic.objects.count() == tries, "not repeated at once"
        moment += timedelta(minutes=11)
    gpu_diagnostics.sweep_diagnostics(moment + timedelta(hours=5))
    assert Diagnostic.objects.count() == 3
    assert {row.detail for row in Diagnostic.objects.all()} == {"its host did not answer"}


def test_a_pool_may_disable_automatic_diagnostics(world: World) -> None:
    Pool.objects.update(diagnose_after_quarantine=False)
    quarantined(world)
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    assert not Diagnostic.objects.exists()


def test_a_diagnostic_stops_when_its_host_becomes_silent(world: World) -> None:
    gpu = quarantined(world)
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    Host.objects.filter(pk=gpu.host_id).update(lease_state="silent")
    gpu_diagnostics.sweep_diagnostics(at(9, 2))
    row = Diagnostic.objects.get()
    gpu.refresh_from_db()
    assert (row.state, row.detail, gpu.repair_state) == ("stopped", "its host became silent", "quarantined")


def test_a_result_from_another_host_or_for_a_closed_diagnostic_is_ignored(world: World) -> None:
    quarantined(world)
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    row = Diagnostic.objects.get()
    gpu_diagnostics.store_diagnostics(
        world.hosts["beta"], [DiagnosticSeen(str(row.public_id), "passed")], at(9, 2)
    )
    gpu_diagnostics.store_diagnostics(
        row.host, [DiagnosticSeen("no uuid", "passed"), DiagnosticSeen(str(row.public_id), "odd")], at(9, 2)
    )
    row.refresh_from_db()
    assert row.state == "wanted"
    answer(row, "passed")
    answer(row, "failed")
    assert row.state == "passed"
    assert Gpu.objects.get(pk=row.gpu_id).repair_state == RepairState.WELL


def test_idle_gpus_are_diagnosed_periodically_a_few_at_a_time_and_busy_gpus_are_not(world: World) -> None:
    Pool.objects.update(diagnose_every_hours=24)
    hold(workload(world, world.vision), units_of(world.hosts["alpha"])[0], at(8))
    gpu_diagnostics.sweep_diagnostics(at(9))
    first = list(Diagnostic.objects.all())
    assert first and gpu_of(world).pk not in {row.gpu_id for row in first}
    assert {row.why for row in first} == {"periodic"}
    assert {row.gpu.repair_state for row in first} == {"well"}, "work may still be placed there"
    for row in first:
        answer(row, "passed", minute=0)
    gpu_diagnostics.sweep_diagnostics(at(10, 1))
    second = set(Diagnostic.objects.values_list("gpu_id", flat=True)) - {row.gpu_id for row in first}
    assert second, "other GPUs are diagnosed next"
    assert Diagnostic.objects.filter(gpu_id__in=[row.gpu_id for row in first]).count() == len(first)


def test_earlier_diagnostics_do_not_raise_the_number_of_simultaneous_periodic_diagnostics(
    world: World,
) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(diagnose_every_hours=24)
    gpus = Gpu.objects.filter(host__pool=world.shared, retired_at=None)
    Diagnostic.objects.bulk_create(
        Diagnostic(
            host=gpu.host,
            gpu=gpu,
            why=Diagnostic.Why.PERIODIC,
            state="passed",
            created_at=at(9) - timedelta(days=days),
            ended_at=at(9) - timedelta(days=days),
        )
        for gpu in gpus.select_related("host")
        for days in range(2, 12)
    )
    gpu_diagnostics.sweep_diagnostics(at(9))
    wanted = Diagnostic.objects.filter(state="wanted").count()
    assert wanted == max(1, gpus.count() // gpu_diagnostics.PERIODIC_SHARE)


def test_a_gpu_in_service_that_fails_its_diagnostic_is_taken_out(world: World) -> None:
    gpu = gpu_of(world)
    row = gpu_diagnostics.request_diagnostic(gpu, why=Diagnostic.Why.OPERATOR, now=at(9))
    answer(row, "failed", detail="bandwidth")
    gpu.refresh_from_db()
    assert gpu.repair_state == "out"


def test_a_gpu_has_at_most_one_open_diagnostic(world: World) -> None:
    gpu_diagnostics.request_diagnostic(gpu_of(world), why=Diagnostic.Why.OPERATOR, now=at(9))
    with pytest.raises(OperationRejected) as rejection:
        gpu_diagnostics.request_diagnostic(gpu_of(world), why=Diagnostic.Why.OPERATOR, now=at(9))
    assert rejection.value.code == "diagnostic_is_open"


def test_a_tripped_host_returns_once_all_its_gpus_have_passed(world: World) -> None:
    host = world.hosts["gamma"]
    assert trip_host(host, reason="3 attempts failed", now=at(9))
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    rows = list(Diagnostic.objects.filter(host=host, why="tripped"))
    assert len(rows) == host.gpus.count()
    for row in rows[:-1]:
        answer(row, "passed")
    assert Host.objects.get(pk=host.pk).admin_state == "cordoned"
    answer(rows[-1], "passed")
    host.refresh_from_db()
    assert (host.admin_state, host.tripped_at) == ("in_service", None)


def test_a_tripped_host_with_a_failed_gpu_stays_closed(world: World) -> None:
    host = world.hosts["gamma"]
    trip_host(host, reason="3 attempts failed", now=at(9))
    gpu_diagnostics.sweep_diagnostics(at(9, 1))
    for number, row in enumerate(Diagnostic.objects.filter(host=host)):
        answer(row, "failed" if number == 0 else "passed")
    assert Host.objects.get(pk=host.pk).admin_state == "cordoned"


def test_a_quarantined_host_is_diagnosed_as_a_whole(world: World) -> None:
    host = world.hosts["gamma"]
    Host.objects.filter(pk=host.pk).update(repair_state="quarantined", state_reason="it hung")
    rows = gpu_diagnostics.request_host_diagnostics(host, why=Diagnostic.Why.OPERATOR, now=at(9))
    assert Host.objects.get(pk=host.pk).repair_state == "diagnosing"
    for row in rows:
        answer(row, "passed")
    assert Host.objects.get(pk=host.pk).repair_state == "well"


def test_only_a_share_of_the_gpus_that_fail_together_is_taken_out(world: World) -> None:
    rows = [
        gpu_diagnostics.request_diagnostic(gpu_of(world, index), why=Diagnostic.Why.OPERATOR, now=at(9))
        for index in range(4)
    ]
    gpus = Gpu.objects.filter(host__pool=rows[0].host.pool_id).count()
    for row in rows:
        answer(row, "failed", detail="arithmetic")
    out = Gpu.objects.filter(repair_state="out").count()
    assert out == max(1, gpus // gpu_diagnostics.TAKE_OUT_SHARE) < 4
    assert Diagnostic.objects.filter(state="failed").count() == 4


def test_the_desired_state_carries_diagnostics_and_the_observed_state_their_results(world: World) -> None:
    (agent,) = agents_of(world, "delta")
    agent_api.sync(agent.host.pk, agent.observed(), world.now)
    Pool.objects.update(stray_action="warn", diagnostic_tool="own", diagnostic_seconds=90)
    gpu = units_of(world.hosts["delta"])[0].gpu
    quarantine_gpu(gpu, reason="xid:48", now=world.now)
    gpu_diagnostics.sweep_diagnostics(world.now)
    desired = agent_api.sync(agent.host.pk, agent.observed(), world.now)
    (order,) = desired.diagnostics
    assert (order.gpu, order.tool, order.deadline_seconds, desired.stray_action) == (
        gpu.uuid,
        "own",
        90.0,
        "warn",
    )
    answered = replace(agent.observed(), diagnostics=[DiagnosticSeen(order.diagnostic, "passed", "own")])
    assert agent_api.sync(agent.host.pk, answered, world.now + timedelta(seconds=5)).diagnostics == []
    gpu.refresh_from_db()
    assert gpu.repair_state == "well"


def test_a_result_that_takes_a_gpu_out_locks_the_pool_before_the_host(world: World) -> None:
    (agent,) = agents_of(world, "alpha")
    agent.sync(at(9))
    row = gpu_diagnostics.request_diagnostic(gpu_of(world), why=Diagnostic.Why.PERIODIC, now=at(9))
    failed = DiagnosticSeen(str(row.public_id), "failed", "own", [], "memory")
    with CaptureQueriesContext(connection) as seen:
        agent_api.sync(agent.host.pk, replace(agent.observed(), diagnostics=[failed]), at(9, 1))
    locked = [
        query["sql"].split('FROM "')[1].split('"')[0] for query in seen if "FOR NO KEY UPDATE" in query["sql"]
    ]
    assert Gpu.objects.get(pk=row.gpu_id).repair_state == "out"
    assert locked[:2] == ["scheduler_pool", "scheduler_host"] and "scheduler_pool" not in locked[2:]
