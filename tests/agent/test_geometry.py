"""Test changes of the MIG geometry of a simulated GPU.

Cases: the agent is killed at any step, the driver rejects a change, and other GPUs of the host run work.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.gpu import mig
from agent.gpu.simulated_faults import plant_fault
from agent.gpu.simulated_models import mig_profiles_of
from agent.gpu.simulated_reader import SimulatedMigGpu
from agent.host import gpu_locks
from agent.host.durable_files import read_json
from agent.host.gpu_locks import SlotClaim
from agent.protocol import GeometryPart, GeometrySeen, GeometryWanted
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

HALVES = [GeometryPart("3g.40gb", 0), GeometryPart("3g.40gb", 4)]
SEVENTHS = [GeometryPart("1g.10gb", start) for start in range(7)]


async def wait_for_change(edge: FakeEdge, change: str, *states: str) -> GeometrySeen:
    def last() -> GeometrySeen | None:
        return next((seen for seen in edge.observed[-1].geometries if seen.change == change), None)

    await edge.until(lambda: (seen := last()) is not None and seen.state in states)
    seen = last()
    assert seen is not None
    return seen


def profiles(edge: FakeEdge, index: int) -> list[str]:
    return [unit.profile for unit in edge.observed[-1].inventory.gpus[index].units]


def state(edge: FakeEdge, run: str) -> str:
    seen = edge.seen(run)
    return seen.state if seen is not None else ""


async def split(edge: FakeEdge, name: str, index: int, parts: list[GeometryPart]) -> None:
    gpu = edge.observed[-1].inventory.gpus[index].uuid
    edge.geometries = [GeometryWanted(name, gpu, parts, 30.0)]
    await edge.push()


async def test_a_gpu_is_split_and_merged_and_its_new_units_run_jobs(
    agent: AgentProcess, edge: FakeEdge
) -> None:
    offered = edge.observed[-1].inventory.mig_profiles["H100-80GB"]
    assert [profile.name for profile in offered] == [
        "1g.10gb",
        "1g.20gb",
        "2g.20gb",
        "3g.40gb",
        "4g.40gb",
        "7g.80gb",
    ]
    await split(edge, "c1", 0, SEVENTHS)
    assert (await wait_for_change(edge, "c1", "done")).detail == ""
    units = edge.observed[-1].inventory.gpus[0].units
    assert [(unit.profile, unit.first_slot, unit.slots) for unit in units] == [
        ("1g.10gb", 120 * n, 120) for n in range(7)
    ]
    edge.geometries = []
    await edge.want(job("sleep 60", run="on-a-slice", generation=9, units=[units[3].uuid]))
    await edge.until(lambda: state(edge, "on-a-slice") == "running")
    await edge.change("on-a-slice", verb="stop")
    await edge.until(lambda: state(edge, "on-a-slice") == "ended")
    await split(edge, "c2", 0, [])
    await wait_for_change(edge, "c2", "done")
    assert profiles(edge, 0) == [""] and profiles(edge, 1) == ["3g.40gb", "3g.40gb"], (
        "the other GPU is unchanged"
    )


async def test_a_change_to_the_existing_geometry_is_reported_as_done_until_acknowledged(
    agent: AgentProcess, edge: FakeEdge
) -> None:
    before = [unit.uuid for unit in edge.observed[-1].inventory.gpus[1].units]
    await split(edge, "same", 1, HALVES)
    await wait_for_change(edge, "same", "done")
    assert [unit.uuid for unit in edge.observed[-1].inventory.gpus[1].units] == before
    edge.geometries = []
    await edge.push()
    await edge.until(lambda: not edge.observed[-1].geometries)
    assert list((agent.state / "geometries").iterdir()) == []


def is_done(edge: FakeEdge, name: str) -> bool:
    return any((seen.change, seen.state) == (name, "done") for seen in edge.observed[-1].geometries)


async def test_a_reshape_completes_although_the_agent_is_killed_at_any_step(
    agent: AgentProcess, edge: FakeEdge
) -> None:
    """Replace the MIG instances in each round, and kill the agent during the change."""
    for round_, parts in enumerate([SEVENTHS, HALVES, [], SEVENTHS]):
        name = f"round-{round_}"
        await split(edge, name, 0, parts)
        for _ in range(3):
            steps = agent.count("mig_step")
            await edge.until(
                lambda steps=steps, name=name: (  # type: ignore[misc]
                    agent.count("mig_step") > steps or is_done(edge, name)
                )
            )
            await agent.kill()
            await agent.start()
        await wait_for_change(edge, name, "done")
        assert sorted(profiles(edge, 0)) == sorted([part.profile for part in parts] or [""])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("geometry-in-use", "a process still uses the GPU"),
        ("geometry-not-permitted", "it has to run as root"),
        ("geometry-reset", "the GPU needs a reset first"),
    ],
)
async def test_a_rejected_reshape_is_reported_and_can_be_retried(
    agent: AgentProcess, edge: FakeEdge, fault: str, message: str
) -> None:
    plant_fault(agent.state, 0, fault)
    await split(edge, "no", 0, HALVES)
    assert message in (await wait_for_change(edge, "no", "failed")).detail
    assert profiles(edge, 0) == [""]
    plant_fault(agent.state, 0, "")
    await split(edge, "again", 0, HALVES)
    await wait_for_change(edge, "again", "done")


@pytest.mark.long
async def test_a_held_gpu_is_not_reshaped(make_agent: MakeAgent, edge: FakeEdge, tmp_path: Path) -> None:
    await make_agent("--locks", str(tmp_path / "locks"))
    gpu = edge.observed[-1].inventory.gpus[1]
    held = gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim(gpu.uuid, 0, 360)])
    await split(edge, "held", 1, SEVENTHS)
    seen = await wait_for_change(edge, "held", "failed")
    assert seen.detail == "a process on this host still holds a part of the GPU"
    assert profiles(edge, 1) == ["3g.40gb", "3g.40gb"]
    held.close()


async def test_a_reshape_of_an_unknown_gpu_fails(agent: AgentProcess, edge: FakeEdge) -> None:
    edge.geometries = [GeometryWanted("nowhere", "GPU-of-another-host", HALVES)]
    await edge.push()
    assert (await wait_for_change(edge, "nowhere", "failed")).detail == "this host does not have that GPU"


async def test_jobs_on_other_gpus_continue_during_a_reshape(agent: AgentProcess, edge: FakeEdge) -> None:
    await edge.want(job("sleep 60", run="other-gpu", units=agent.units[1:2]))
    await edge.until(lambda: state(edge, "other-gpu") == "running")
    await split(edge, "c1", 0, HALVES)
    await wait_for_change(edge, "c1", "done")
    assert state(edge, "other-gpu") == "running"
    await edge.change("other-gpu", verb="stop")
    await edge.until(lambda: state(edge, "other-gpu") == "ended")


# Unit tests of a change on a GPU that rejects an instance in the middle of the change


class RejectingBoard(SimulatedMigGpu):
    """A GPU that rejects a new MIG instance when it already has `most` instances.

    By default it rejects only one instance. With `for_good` it also rejects every later instance, including
    the old instances that the agent tries to restore.
    """

    def __init__(self, path: Path, profiles: list[str], most: int, *, for_good: bool = False) -> None:
        super().__init__(path, "gpu", profiles, "")
        self.most, self.for_good, self.tired = most, for_good, False

    def make(self, part: GeometryPart) -> None:
        tired, self.tired = self.tired, self.tired or len(self.parts() or []) >= self.most
        if self.tired and (self.for_good or not tired):
            raise mig.MigError(f"making {part.profile}: it does not fit on the GPU")
        super().make(part)


def test_a_failed_reshape_restores_the_old_instances(tmp_path: Path) -> None:
    board = RejectingBoard(tmp_path / "board", ["3g.40gb", "3g.40gb"], 2)
    outcome = mig.reshape_gpu(board, SEVENTHS, ["3g.40gb", "3g.40gb"])
    assert (outcome.state, outcome.detail) == ("failed", "making 1g.10gb: it does not fit on the GPU")
    assert board.parts() == ["3g.40gb", "3g.40gb"]


def test_a_reshape_that_cannot_be_restored_is_unsure(tmp_path: Path) -> None:
    board = RejectingBoard(tmp_path / "board", ["3g.40gb", "3g.40gb"], 2, for_good=True)
    outcome = mig.reshape_gpu(board, SEVENTHS, ["3g.40gb", "3g.40gb"])
    assert outcome.state == "unsure" and "could not be restored" in outcome.detail


def test_every_step_is_stored_before_the_next(tmp_path: Path) -> None:
    board = SimulatedMigGpu(tmp_path / "board", "gpu", [], "")
    board.split(True)
    assert read_json(tmp_path / "board") == {"gpu": []} and board.parts() == []
    board.make(HALVES[0])
    assert mig.reshape_gpu(SimulatedMigGpu(tmp_path / "board", "gpu", [], ""), HALVES, None).state == "done"
    assert board.parts() == ["3g.40gb", "3g.40gb"]


def test_only_models_with_mig_offer_profiles() -> None:
    assert mig_profiles_of("L40S-48GB") == [] and len(mig_profiles_of("A100-40GB")) == 6
    assert [(profile.name, profile.most, profile.starts) for profile in mig_profiles_of("A100-40GB")][:2] == [
        ("1g.5gb", 7, [0, 1, 2, 3, 4, 5, 6]),
        ("1g.10gb", 4, [0, 2, 4, 6]),
    ]
