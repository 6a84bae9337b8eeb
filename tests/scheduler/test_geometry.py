"""Test changes of a GPU's MIG geometry: drain, order to the host, and handling of the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from agent.gpu.simulated_models import mig_profiles_of
from agent.protocol import GeometrySeen, RunSeen, UnitSeen
from scheduler.models import Allocation, Diagnostic, GeometryChange, Gpu, GpuStateChange, Host, Unit
from scheduler.services import OperationRejected, quarantine_gpu
from scheduler.sync import geometry_changes, gpu_diagnostics
from telemetry.core.charge_model import GpuCondition
from telemetry.money.charging_inputs import gpu_condition
from tests.scheduler.test_agents_and_hosts import agents_of
from tests.telemetry.rows import at, hold, reservation, workload
from tests.world import H100, World, units_of, world_fixture

pytestmark = pytest.mark.django_db
HALVES = ["3g.40gb", "3g.40gb"]


class MigAgent:
    """The agent of host alpha, whose GPUs support MIG."""

    def __init__(self, world: World) -> None:
        (self.agent,) = agents_of(world, "alpha")
        self.host = world.hosts["alpha"]
        self.inventory = replace(self.agent.inventory, mig_profiles={H100: mig_profiles_of(H100)})

    def sync(self, now: Any, *geometries: GeometrySeen) -> Any:
        frame = replace(self.agent.observed(), inventory=self.inventory, geometries=list(geometries))
        return self.agent.sync(now, frame)

    def report_running(self, held: Allocation) -> None:
        """Report this allocation's run as running."""
        run = held.run
        self.agent.runs[str(run.public_id)] = RunSeen(str(run.public_id), run.generation, "running")

    def set_geometry(self, index: int, profiles: list[str]) -> None:
        """Report the GPU with these MIG profiles from now on. Without profiles, report one whole GPU."""
        gpu = self.inventory.gpus[index]
        units = [
            UnitSeen(f"{gpu.uuid}-{n}", profile, 360 * n, 360, 40448) for n, profile in enumerate(profiles)
        ]
        whole = [UnitSeen(gpu.uuid, "", 0, 840, gpu.memory_mib)]
        gpus = [replace(one, units=units or whole) if one is gpu else one for one in self.inventory.gpus]
        self.inventory = replace(self.inventory, gpus=gpus)


def write_alpha(world: World) -> MigAgent:
    """Return the agent of alpha, which has synchronised at 9:00."""
    agent = MigAgent(world)
    agent.sync(at(9))
    return agent


alpha = world_fixture(write_alpha)


def gpu_of(world: World, index: int = 0, host: str = "alpha") -> Gpu:
    return Gpu.objects.get(host=world.hosts[host], index=index)


def refusal(gpu: Gpu, profiles: list[str]) -> OperationRejected:
    with pytest.raises(OperationRejected) as rejection:
        geometry_changes.request_geometry(gpu, profiles, now=at(10))
    assert not GeometryChange.objects.exclude(state="done").exists()
    return rejection.value


def test_a_free_gpu_is_split_and_returns_to_service(world: World, alpha: MigAgent) -> None:
    gpu = gpu_of(world)
    row = geometry_changes.request_geometry(gpu, HALVES, now=at(10))
    assert (gpu.repair_state, row.state, row.before) == ("reshaping", "draining", [])
    assert alpha.sync(at(10)).geometries == []
    geometry_changes.sweep_geometry_changes(at(10, 1))
    (wanted,) = alpha.sync(at(10, 1)).geometries
    assert (wanted.gpu, [(p.profile, p.start) for p in wanted.parts]) == (
        gpu.uuid,
        [("3g.40gb", 0), ("3g.40gb", 4)],
    )
    assert alpha.sync(at(10, 1), GeometrySeen(wanted.change, "changing")).geometries
    alpha.set_geometry(0, HALVES)
    assert alpha.sync(at(10, 2), GeometrySeen(wanted.change, "done")).geometries == []
    row.refresh_from_db()
    gpu.refresh_from_db()
    assert (row.state, gpu.repair_state) == ("done", "well")
    units = Unit.objects.filter(gpu=gpu, retired_at=None).order_by("slots")
    assert [(u.profile, u.slots.lower - gpu.first_slot, u.slots.upper - gpu.first_slot) for u in units] == [
        ("3g.40gb", 0, 360),
        ("3g.40gb", 360, 720),
    ]
    states = list(
        GpuStateChange.objects.filter(gpu=gpu).order_by("pk").values_list("repair_state", flat=True)
    )
    assert states == ["reshaping", "well"]


def test_a_gpu_is_split_only_after_its_work_has_ended(world: World, alpha: MigAgent) -> None:
    gpu = gpu_of(world)
    leaving = hold(workload(world, world.vision, preemptible=True), units_of(world.hosts["alpha"])[0], at(9))
    alpha.report_running(leaving)
    geometry_changes.request_geometry(gpu, HALVES, now=at(10))
    leaving.workload.refresh_from_db()
    assert (leaving.workload.state, leaving.workload.stop_requested) == ("notice", "drained")
    geometry_changes.sweep_geometry_changes(at(10, 1))
    assert alpha.sync(at(10, 1)).geometries == [], "the host gets no order while work holds a unit of the GPU"
    Allocation.objects.filter(pk=leaving.pk).update(period=DateTimeTZRange(at(9), at(10, 2)))
    geometry_changes.sweep_geometry_changes(at(10, 3))
    assert len(alpha.sync(at(10, 3)).geometries) == 1


def test_work_that_cannot_be_preempted_runs_to_its_end(world: World, alpha: MigAgent) -> None:
    held = hold(workload(world, world.vision, preemptible=False), units_of(world.hosts["alpha"])[0], at(9))
    geometry_changes.request_geometry(gpu_of(world), HALVES, now=at(10))
    held.workload.refresh_from_db()
    assert held.workload.state == "running"
    geometry_changes.sweep_geometry_changes(at(10, 1))
    assert GeometryChange.objects.get().state == "draining"


def test_a_bound_reservation_keeps_its_units_until_its_end(world: World, alpha: MigAgent) -> None:
    reservation(world, world.vision, units_of(world.hosts["alpha"])[:1], at(9), at(12))
    geometry_changes.request_geometry(gpu_of(world), HALVES, now=at(10))
    geometry_changes.sweep_geometry_changes(at(10, 1))
    assert alpha.sync(at(10, 1)).geometries == []
    geometry_changes.sweep_geometry_changes(at(12, 1))
    assert len(alpha.sync(at(12, 1)).geometries) == 1


def test_a_change_is_done_only_when_the_new_units_are_reported(world: World, alpha: MigAgent) -> None:
    geometry_changes.request_geometry(gpu_of(world), HALVES, now=at(10))
    geometry_changes.sweep_geometry_changes(at(10, 1))
    change = str(GeometryChange.objects.get().public_id)
    alpha.sync(at(10, 2), GeometrySeen(change, "done"))
    assert GeometryChange.objects.get().state == "changing" and gpu_of(world).repair_state == "reshaping"


@pytest.mark.parametrize(
    ("state", "reported", "repair"),
    [("failed", [], "well"), ("failed", ["1g.10gb"], "quarantined"), ("unsure", [], "quarantined")],
)
def test_a_failed_change_leaves_the_old_geometry_or_quarantines_the_gpu(
    world: World, alpha: MigAgent, state: str, reported: list[str], repair: str
) -> None:
    geometry_changes.request_geometry(gpu_of(world), HALVES, now=at(10))
    geometry_changes.sweep_geometry_changes(at(10, 1))
    row = GeometryChange.objects.get()
    alpha.set_geometry(0, reported)
    alpha.sync(at(10, 2), GeometrySeen(str(row.public_id), state, "a process still uses the GPU"))
    row.refresh_from_db()
    assert (row.state, row.detail, gpu_of(world).repair_state) == (
        "failed",
        "a process still uses the GPU",
        repair,
    )
    if repair == "well":
        assert geometry_changes.request_geometry(gpu_of(world), HALVES, now=at(11)).state == "draining", (
            "a second request must be accepted"
        )


def test_a_change_times_out_on_a_live_host_and_waits_for_a_silent_host(world: World, alpha: MigAgent) -> None:
    geometry_changes.request_geometry(gpu_of(world), HALVES, now=at(10))
    geometry_changes.sweep_geometry_changes(at(10, 1))
    Host.objects.filter(name="alpha").update(lease_state="silent")
    geometry_changes.sweep_geometry_changes(at(10, 30))
    assert GeometryChange.objects.get().state == "changing"
    Host.objects.filter(name="alpha").update(lease_state="alive")
    geometry_changes.sweep_geometry_changes(at(10, 31))
    row = GeometryChange.objects.get()
    assert (row.state, row.detail, gpu_of(world).repair_state) == (
        "failed",
        "its host did not answer",
        "quarantined",
    )


def test_a_change_can_be_withdrawn_until_it_is_sent_to_the_host(world: World, alpha: MigAgent) -> None:
    gpu = gpu_of(world)
    geometry_changes.request_geometry(gpu, HALVES, now=at(10))
    assert geometry_changes.withdraw_geometry(gpu, now=at(10, 1)).state == "withdrawn"
    assert gpu_of(world).repair_state == "well"
    with pytest.raises(OperationRejected, match="geometry_is_not_changing"):
        geometry_changes.withdraw_geometry(gpu, now=at(10, 2))
    geometry_changes.request_geometry(gpu, HALVES, now=at(10, 3))
    geometry_changes.sweep_geometry_changes(at(10, 4))
    with pytest.raises(OperationRejected, match="geometry_is_with_its_host"):
        geometry_changes.withdraw_geometry(gpu, now=at(10, 5))


def test_a_change_fails_if_the_gpu_is_quarantined_before_it_begins(world: World, alpha: MigAgent) -> None:
    gpu = gpu_of(world)
    geometry_changes.request_geometry(gpu, HALVES, now=at(10))
    quarantine_gpu(gpu, reason="xid:79", now=at(10, 1))
    geometry_changes.sweep_geometry_changes(at(10, 2))
    row = GeometryChange.objects.get()
    assert (row.state, row.detail) == ("failed", "the GPU is quarantined meanwhile: xid:79")
    assert gpu_of(world).repair_state == "quarantined"
    assert alpha.sync(at(10, 3)).geometries == []


def test_a_gpu_in_mig_mode_without_instances_gets_no_work_and_can_be_split_again(
    world: World, alpha: MigAgent
) -> None:
    """MIG instances disappear when a host reboots, but the GPU stays in MIG mode."""
    alpha.set_geometry(0, HALVES)
    alpha.sync(at(9, 1))
    gpu = Gpu.objects.get(host=alpha.host, index=0)
    assert Unit.objects.filter(gpu=gpu, retired_at=None).count() == 2
    first, *others = alpha.inventory.gpus
    alpha.inventory = replace(alpha.inventory, gpus=[replace(first, units=[]), *others])
    alpha.sync(at(9, 2))
    assert not Unit.objects.filter(gpu=gpu, retired_at=None).exists()
    assert geometry_changes.request_geometry(gpu, HALVES, now=at(9, 3)).before == []


def test_each_rejection_has_its_reason_and_its_numbers(world: World, alpha: MigAgent) -> None:
    gpu = gpu_of(world)
    misfit = refusal(gpu, [*HALVES, "1g.10gb"])
    assert (misfit.code, misfit.numbers["why"]) == ("geometry_does_not_fit", "places")
    assert refusal(gpu, []).code == "geometry_is_the_same"
    assert refusal(gpu_of(world, host="beta"), HALVES).code == "gpu_has_no_mig", (
        "the agent of beta reports no MIG profiles"
    )
    assert refusal(gpu_of(world, host="delta"), HALVES).code == "pool_is_static"
    gpu_diagnostics.request_diagnostic(gpu, why=Diagnostic.Why.OPERATOR, now=at(10))
    assert refusal(gpu, HALVES).code == "diagnostic_is_open"
    Diagnostic.objects.all().delete()
    quarantine_gpu(gpu, reason="xid:48", now=at(10))
    assert refusal(gpu, HALVES).code == "gpu_is_not_well"
    Host.objects.filter(name="alpha").update(lease_state="silent")
    assert refusal(gpu_of(world, 1), HALVES).code == "host_does_not_answer"


def test_a_gpu_with_an_open_change_accepts_no_second_change_and_no_diagnostic(
    world: World, alpha: MigAgent
) -> None:
    gpu = gpu_of(world)
    geometry_changes.request_geometry(gpu, HALVES, now=at(10))
    with pytest.raises(OperationRejected, match="geometry_is_changing"):
        geometry_changes.request_geometry(gpu, ["7g.80gb"], now=at(10, 1))
    with pytest.raises(OperationRejected, match="geometry_is_changing"):
        gpu_diagnostics.request_diagnostic(gpu, why=Diagnostic.Why.OPERATOR, now=at(10, 1))


def test_the_time_of_a_change_counts_as_maintenance(world: World) -> None:
    assert gpu_condition(("alive", "in_service", "well"), "reshaping") == GpuCondition.MAINTENANCE
