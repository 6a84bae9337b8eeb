"""Test one member of a gang, which is a workload on several hosts.

The start of a member waits until the other hosts are prepared. The member gets the addresses of these hosts.
"""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

import pytest

from agent.gpu.reader import GpuInventory
from agent.host import addresses
from agent.protocol import GangWanted, GpuSeen, MemberWanted, RunWanted, UnitSeen
from agent.runs import gangs
from tests.agent.conftest import AgentProcess, MakeAgent, job
from tests.agent.fake_edge import FakeEdge

MEMBERS = [MemberWanted("h1", "127.0.0.1", 1), MemberWanted("h2", "127.0.0.2", 1)]


def member(**changes: Any) -> GangWanted:
    return dataclasses.replace(GangWanted(0, MEMBERS, 20_002), **changes)


async def test_a_member_reports_that_it_is_prepared_and_waits_for_go(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    await edge.want(job("echo begun", units=[agent.units[0]], gang=member()))
    await edge.until(lambda: (seen := edge.seen("run-1")) is not None and seen.prepared)
    seen = edge.seen("run-1")
    assert seen is not None and (seen.state, seen.step) == ("starting", "waiting for the other hosts")
    assert not (agent.state / "runs" / "run-1").exists(), "no part of the run is started"
    edge.poll_seconds = 3000.0  # no report is due
    received = agent.count("desired")
    await edge.push()
    await edge.until(lambda: agent.count("desired") > received)
    reports = len(edge.observed)
    await agent.after_steps("shim_poll", 5)
    assert len(edge.observed) <= reports + 1, "a waiting member sends no extra reports"
    await edge.change("run-1", gang=member(go=True))
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "finished"


async def test_a_member_whose_unit_is_held_is_not_prepared(edge: FakeEdge, agent: AgentProcess) -> None:
    unit = agent.units[0]
    await edge.want(job("echo begun; sleep 300", units=[unit]))
    await edge.until(lambda: "begun" in edge.log("run-1"))
    await edge.want(job("echo begun", generation=2, units=[unit], gang=member()))
    await edge.until(lambda: (seen := edge.seen("run-2")) is not None and "free" in seen.step)
    seen = edge.seen("run-2")
    assert seen is not None and not seen.prepared
    await edge.change("run-1", verb="stop", code="cancelled")
    await edge.until(lambda: (seen := edge.seen("run-2")) is not None and seen.prepared)


async def test_a_waiting_member_can_be_stopped_before_its_start(edge: FakeEdge, agent: AgentProcess) -> None:
    await edge.want(job("touch $HOME/begun", units=[agent.units[0]], gang=member()))
    await edge.until(lambda: (seen := edge.seen("run-1")) is not None and seen.prepared)
    await edge.change("run-1", verb="stop", code="cancelled")
    ended = await edge.until_state("run-1", "ended")
    assert ended.outcome == "cancelled" and ended.started_at is None


@pytest.mark.parametrize(
    "gang",
    [
        member(rank=2),
        member(rank=-1),
        member(port=80),
        member(members=[MemberWanted("h1", "10.0.0.1 slots=99\nevil", 1)]),
        member(members=[MemberWanted("H 1", "10.0.0.1", 1)]),
        member(members=[MemberWanted("h1", "10.0.0.1", 0)]),
    ],
)
def test_an_invalid_gang_is_rejected(gang: GangWanted) -> None:
    assert gangs.gang_error(gang).startswith("gang.")
    assert gangs.gang_error(member()) == gangs.gang_error(None) == ""


def hardware(*groups: int | None, profile: str = "") -> GpuInventory:
    gpus = [
        GpuSeen(
            i,
            f"g{i}",
            "H100-80GB",
            81559,
            nvlink_group=group,
            units=[UnitSeen(f"u{i}", profile, 0, 840, 81559)],
        )
        for i, group in enumerate(groups)
    ]
    return GpuInventory(gpus=gpus, driver_version="", devices={}, notes=[])


def environment_of(
    units: list[str], inventory: GpuInventory, gang: GangWanted | None = None, interface: str = ""
) -> dict[str, str]:
    return gangs.distributed_environment(
        job("true", units=units, gang=gang or member()), inventory, interface
    )


@pytest.mark.parametrize(
    ("inventory", "units", "level"),
    [
        (hardware(0, 0), ["u0", "u1"], "NVL"),
        (hardware(0, 1), ["u0", "u1"], None),
        (hardware(None, None), ["u0", "u1"], None),
        (hardware(0, 0), ["u0"], None),
        (hardware(0, 0, profile="3g.40gb"), ["u0", "u1"], None),
    ],
    ids=["one group", "two groups", "unknown", "one GPU", "slices"],
)
def test_the_nvlink_level_is_set_only_for_several_whole_gpus_of_one_nvlink_group(
    inventory: GpuInventory, units: list[str], level: str | None
) -> None:
    assert environment_of(units, inventory).get("NCCL_P2P_LEVEL") == level


def test_without_all_addresses_there_is_no_rendezvous_and_host_names_are_used() -> None:
    unknown = member(members=[MEMBERS[0], MemberWanted("h2", "", 1)])
    assert environment_of([], hardware(), unknown, "eth0") == {}
    wanted: RunWanted = job("true", gang=unknown)
    assert gangs.contract_environment(wanted, "/x")["GPUPOOL_HOSTS"] == "127.0.0.1,h2"
    assert gangs.hostfile_text(unknown) == "127.0.0.1 slots=1\nh2 slots=1\n"
    alone = dataclasses.replace(wanted, gang=None)
    assert (
        gangs.distributed_environment(alone, hardware(), "eth0")
        == gangs.contract_environment(alone, "/x")
        == {}
    )


def test_nccl_uses_the_interface_that_has_the_address_of_the_host() -> None:
    assert addresses.interface_of("127.0.0.1") == "lo"
    assert addresses.interface_of("192.0.2.77") == addresses.interface_of("gpu-07.example.org") == ""
    assert environment_of([], hardware(), interface="lo")["NCCL_SOCKET_IFNAME"] == "=lo"
    assert "NCCL_SOCKET_IFNAME" not in environment_of([], hardware())


def test_a_host_uses_its_local_address_towards_the_edge() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        assert addresses.local_address_towards(f"http://127.0.0.1:{listener.getsockname()[1]}") == "127.0.0.1"
    assert addresses.local_address_towards("http://no-such-host.invalid:1") == ""


@pytest.mark.sandbox
async def test_a_host_with_unreachable_workloads_reports_no_address(
    edge: FakeEdge, make_agent: MakeAgent
) -> None:
    await make_agent("--address", "10.1.2.3", launcher="bubblewrap")
    assert edge.observed[-1].inventory.address == ""


async def test_the_address_can_be_set_by_option(edge: FakeEdge, make_agent: MakeAgent) -> None:
    await make_agent("--address", "gpu-07.example.org")
    assert edge.observed[-1].inventory.address == "gpu-07.example.org"
    wanted = job(
        "cat $GPUPOOL_HOSTFILE; echo $MASTER_ADDR $GPUPOOL_HOST_RANK of $GPUPOOL_HOST_COUNT",
        gang=member(go=True),
    )
    await edge.want(wanted)
    await edge.until_state("run-1", "ended")
    await edge.until(lambda: "of 2" in edge.log("run-1"))
    assert edge.log("run-1") == "127.0.0.1 slots=1\n127.0.0.2 slots=1\n127.0.0.1 0 of 2\n"


async def test_a_job_that_listens_on_its_workspace_socket_is_ready(
    edge: FakeEdge, agent: AgentProcess
) -> None:
    serves = "gpupool door 9 & echo begun; sleep 300"
    await edge.want(job(serves))
    await edge.until(lambda: (seen := edge.seen("run-1")) is not None and seen.ready)
    await edge.change("run-1", verb="stop", code="cancelled")
    ended = await edge.until_state("run-1", "ended")
    assert not ended.ready
