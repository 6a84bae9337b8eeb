"""A GPU that is split otherwise by its agent: simulated, killed at every step, refused, and with what runs beside it."""

from __future__ import annotations

import asyncio
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


async def told(edge: FakeEdge, change: str, *states: str) -> GeometrySeen:
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


async def test_a_gpu_is_split_and_put_together_again_and_its_new_units_take_work(
    agent: AgentProcess, edge: FakeEdge
) -> None:
    offered = edge.observed[-1].inventory.mig_profiles["H100-80GB"]
    assert [one.name for one in offered] == ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    await split(edge, "c1", 0, SEVENTHS)
    assert (await told(edge, "c1", "done")).detail == ""
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
    await told(edge, "c2", "done")
    assert profiles(edge, 0) == [""] and profiles(edge, 1) == ["3g.40gb", "3g.40gb"], (
        "the other GPU stays as it was"
    )


async def test_what_is_there_already_is_done_and_an_end_is_told_until_it_is_heard(
    agent: AgentProcess, edge: FakeEdge
) -> None:
    before = [unit.uuid for unit in edge.observed[-1].inventory.gpus[1].units]
    await split(edge, "same", 1, HALVES)
    await told(edge, "same", "done")
    assert [unit.uuid for unit in edge.observed[-1].inventory.gpus[1].units] == before
    edge.geometries = []
    await edge.push()
    await edge.until(lambda: not edge.observed[-1].geometries)
    assert list((agent.state / "geometries").iterdir()) == []


async def test_an_agent_that_is_killed_at_any_step_goes_on(agent: AgentProcess, edge: FakeEdge) -> None:
    """Each round takes the instances away and makes seven, or the other way round; the agent is killed in between."""
    for round_, parts in enumerate([SEVENTHS, HALVES, [], SEVENTHS]):
        name = f"round-{round_}"
        await split(edge, name, 0, parts)
        for pause in (0.05, 0.15, 0.25):
            await asyncio.sleep(pause)
            await agent.kill()
            await agent.start()
        await told(edge, name, "done")
        assert sorted(profiles(edge, 0)) == sorted([part.profile for part in parts] or [""])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("geometry-in-use", "a process still uses the GPU"),
        ("geometry-not-permitted", "it has to run as root"),
        ("geometry-reset", "the GPU needs a reset first"),
    ],
)
async def test_what_the_driver_refuses_is_said_and_can_be_tried_again(
    agent: AgentProcess, edge: FakeEdge, fault: str, said: str
) -> None:
    plant_fault(agent.state, 0, fault)
    await split(edge, "no", 0, HALVES)
    assert said in (await told(edge, "no", "failed")).detail
    assert profiles(edge, 0) == [""]
    plant_fault(agent.state, 0, "")
    await split(edge, "again", 0, HALVES)
    await told(edge, "again", "done")


async def test_a_gpu_that_somebody_holds_is_not_touched(
    make_agent: MakeAgent, edge: FakeEdge, tmp_path: Path
) -> None:
    await make_agent("--locks", str(tmp_path / "locks"))
    gpu = edge.observed[-1].inventory.gpus[1]
    held = gpu_locks.lock_slots(tmp_path / "locks", [SlotClaim(gpu.uuid, 0, 360)])
    await split(edge, "held", 1, SEVENTHS)
    seen = await told(edge, "held", "failed")
    assert seen.detail == "a process on this host still holds a part of the GPU"
    assert profiles(edge, 1) == ["3g.40gb", "3g.40gb"]
    held.close()


async def test_a_gpu_that_is_not_there_and_one_that_is_wanted_no_more(
    agent: AgentProcess, edge: FakeEdge
) -> None:
    edge.geometries = [GeometryWanted("nowhere", "GPU-of-another-host", HALVES)]
    await edge.push()
    assert (await told(edge, "nowhere", "failed")).detail == "this host does not have that GPU"


async def test_work_beside_it_goes_on(agent: AgentProcess, edge: FakeEdge) -> None:
    await edge.want(job("sleep 60", run="beside", units=agent.units[1:2]))
    await edge.until(lambda: state(edge, "beside") == "running")
    await split(edge, "c1", 0, HALVES)
    await told(edge, "c1", "done")
    assert state(edge, "beside") == "running"
    await edge.change("beside", verb="stop")
    await edge.until(lambda: state(edge, "beside") == "ended")


# -- the rule, on a board that says no in the middle -----------------------------------------------------------------------


class Stubborn(SimulatedMigGpu):
    """Refuses once, when it has ``most`` instances; ``for_good``: each one from then on, also those that were there before."""

    def __init__(self, path: Path, profiles: list[str], most: int, *, for_good: bool = False) -> None:
        super().__init__(path, "gpu", profiles, "")
        self.most, self.for_good, self.tired = most, for_good, False

    def make(self, part: GeometryPart) -> None:
        tired, self.tired = self.tired, self.tired or len(self.parts() or []) >= self.most
        if self.tired and (self.for_good or not tired):
            raise mig.MigError(f"making {part.profile}: it does not fit on the GPU")
        super().make(part)


def test_what_fails_in_the_middle_is_put_back(tmp_path: Path) -> None:
    board = Stubborn(tmp_path / "board", ["3g.40gb", "3g.40gb"], 2)
    outcome = mig.reshape_gpu(board, SEVENTHS, ["3g.40gb", "3g.40gb"])
    assert (outcome.state, outcome.detail) == ("failed", "making 1g.10gb: it does not fit on the GPU")
    assert board.parts() == ["3g.40gb", "3g.40gb"]


def test_what_can_not_be_put_back_is_unsure(tmp_path: Path) -> None:
    board = Stubborn(tmp_path / "board", ["3g.40gb", "3g.40gb"], 2, for_good=True)
    outcome = mig.reshape_gpu(board, SEVENTHS, ["3g.40gb", "3g.40gb"])
    assert outcome.state == "unsure" and "could not be put back" in outcome.detail


def test_every_step_is_on_disk_before_the_next(tmp_path: Path) -> None:
    board = SimulatedMigGpu(tmp_path / "board", "gpu", [], "")
    board.split(True)
    assert read_json(tmp_path / "board") == {"gpu": []} and board.parts() == []
    board.make(HALVES[0])
    assert mig.reshape_gpu(SimulatedMigGpu(tmp_path / "board", "gpu", [], ""), HALVES, None).state == "done"
    assert board.parts() == ["3g.40gb", "3g.40gb"]


def test_only_boards_with_mig_offer_profiles() -> None:
    assert mig_profiles_of("L40S-48GB") == [] and len(mig_profiles_of("A100-40GB")) == 6
    assert [(one.name, one.most, one.starts) for one in mig_profiles_of("A100-40GB")][:2] == [
        ("1g.5gb", 7, [0, 1, 2, 3, 4, 5, 6]),
        ("1g.10gb", 4, [0, 2, 4, 6]),
    ]
