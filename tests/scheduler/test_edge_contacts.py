"""Test that no host is released before the leases end that an edge may have renewed from memory."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest

from scheduler import services
from scheduler.coordination import edge_contacts, leases
from scheduler.coordination.edge_contacts import MemoryRenewal
from scheduler.core.rejection import OperationRejected
from scheduler.cycle import engine
from scheduler.models import Allocation, EdgeContact, Host, Workload
from scheduler.sweeps import silent_hosts
from scheduler.sync import observed_state
from tests.fakes import FakeAgent
from tests.scheduler.test_agents_and_hosts import agents_of, start
from tests.scheduler.test_job_lifecycle import job
from tests.world import World

SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)
SILENT = 70 * SECOND  # lease 30, grace 30 and margin 10
WINDOW = leases.MEMORY_RENEWAL_SECONDS * SECOND


def contact(
    at: dt.datetime,
    *renewals: MemoryRenewal,
    process: str = "edge",
    address: str = "machine:8471",
    started: dt.datetime | None = None,
) -> dt.datetime:
    """Record a contact of an edge, and return the end of its renewals from memory."""
    return edge_contacts.record_contact(
        process=process, address=address, started_at=started or at, renewals=renewals, now=at
    ).renews_until


class LostHost:
    """A job on a host that no longer reports, while three other hosts report."""

    def __init__(self, world: World) -> None:
        agents = agents_of(world, "alpha", "beta", "gamma", "delta")
        self.workload = job(world, world.vision, 8, world.now)
        start(world, agents, world.now)
        self.agent = next(agent for agent in agents if agent.running)
        self.others: Sequence[FakeAgent] = [agent for agent in agents if agent is not self.agent]

    def state_at(self, at: dt.datetime) -> str:
        for agent in self.others:
            agent.sync(at)
        silent_hosts.sweep_silent_hosts(at)
        return str(Host.objects.get(pk=self.agent.host.pk).lease_state)

    def renewal(self, at: dt.datetime) -> MemoryRenewal:
        return MemoryRenewal(self.agent.host.pk, self.agent.host.agent_instance, at)


@pytest.fixture
def lost(world: World) -> LostHost:
    return LostHost(world)


def test_while_every_edge_is_in_contact_a_silent_host_is_released_after_its_limit(
    world: World, lost: LostHost
) -> None:
    contact(world.now + SILENT)
    assert lost.state_at(world.now + SILENT) == "suspect"
    contact(world.now + SILENT + SECOND)
    assert lost.state_at(world.now + SILENT + SECOND) == "silent"


def test_a_host_is_not_released_while_an_edge_without_contact_may_renew_its_lease(
    world: World, lost: LostHost
) -> None:
    until = contact(world.now)
    assert until == world.now + WINDOW
    for at in (world.now + 2 * SILENT, until, until + SILENT):
        assert lost.state_at(at) == "suspect"
        assert Allocation.objects.filter(workload=lost.workload, period__upper_inf=True).exists()
    assert lost.state_at(until + SILENT + SECOND) == "silent"
    assert Workload.objects.get(pk=lost.workload.pk).state == "queued"


def test_the_limit_counts_from_the_renewals_that_an_edge_writes_when_it_is_back(
    world: World, lost: LostHost
) -> None:
    contact(world.now)
    back = world.now + 10 * MINUTE
    contact(back, lost.renewal(back - 5 * SECOND))
    assert lost.state_at(back) == "alive"
    late = back - 5 * SECOND + SILENT
    contact(late)
    assert lost.state_at(late) == "suspect"
    contact(late + SECOND)
    assert lost.state_at(late + SECOND) == "silent"


def test_a_renewal_never_moves_the_last_report_back(world: World, lost: LostHost) -> None:
    contact(world.now + SECOND, lost.renewal(world.now - MINUTE))
    assert Host.objects.get(pk=lost.agent.host.pk).last_sync_at == world.now


def test_a_renewal_of_an_earlier_agent_counts_for_the_earlier_agent(world: World, lost: LostHost) -> None:
    host = lost.agent.host
    Host.objects.filter(pk=host.pk).update(agent_instance="new", agent_before_heard_at=world.now)
    contact(world.now + MINUTE, lost.renewal(world.now + 50 * SECOND))
    fresh = Host.objects.get(pk=host.pk)
    # The new agent has not reported: both times stay equal.
    assert fresh.agent_before_heard_at == fresh.last_sync_at == world.now + 50 * SECOND
    Host.objects.filter(pk=host.pk).update(last_sync_at=world.now + 2 * MINUTE)
    contact(world.now + 3 * MINUTE, lost.renewal(world.now + 170 * SECOND))
    fresh = Host.objects.get(pk=host.pk)
    assert fresh.agent_before_heard_at == world.now + 170 * SECOND
    assert fresh.last_sync_at == world.now + 2 * MINUTE


def test_a_second_machine_is_not_accepted_while_the_first_may_have_been_renewed(
    world: World, lost: LostHost
) -> None:
    contact(world.now)
    host = Host.objects.select_related("pool").get(pk=lost.agent.host.pk)
    assert observed_state._may_still_run(host, world.now, world.now + WINDOW + SILENT - SECOND)
    assert not observed_state._may_still_run(host, world.now, world.now + WINDOW + SILENT)


def test_a_new_process_at_the_same_address_ends_the_renewals_of_its_predecessor(
    world: World, lost: LostHost
) -> None:
    contact(world.now)
    restarted = world.now + MINUTE
    contact(restarted + SECOND, process="next edge", started=restarted)
    contact(restarted + SILENT, process="next edge")
    assert lost.state_at(restarted + SILENT) == "suspect", "the predecessor renewed until its end"
    contact(restarted + SILENT + SECOND, process="next edge")
    assert lost.state_at(restarted + SILENT + SECOND) == "silent"


def test_a_process_at_another_address_does_not_end_the_renewals_of_an_edge(
    world: World, lost: LostHost
) -> None:
    contact(world.now)
    for at in (world.now + MINUTE, world.now + 2 * SILENT):
        contact(at, process="second edge", address="other:8471", started=world.now)
    assert lost.state_at(world.now + 2 * SILENT) == "suspect"


def test_an_edge_that_ends_in_order_delays_no_release(world: World, lost: LostHost) -> None:
    contact(world.now)
    edge_contacts.record_end("edge", [lost.renewal(world.now + 10 * SECOND)])
    assert lost.state_at(world.now + 80 * SECOND) == "suspect"
    assert lost.state_at(world.now + 81 * SECOND) == "silent"


def test_rows_of_ended_edges_are_deleted_after_a_day(world: World) -> None:
    contact(world.now)
    contact(world.now + dt.timedelta(days=1, hours=1), process="other", address="other:8471")
    assert [row.process for row in EdgeContact.objects.all()] == ["other"]


def test_during_a_maintenance_nothing_is_placed_and_edges_renew_until_its_end(world: World) -> None:
    agents = agents_of(world, "alpha")
    workload = job(world, world.vision, 1, world.now)
    begun = services.begin_database_maintenance(
        duration=40 * MINUTE, reason="a new version", announced_by="ada", now=world.now
    )
    assert contact(world.now) == begun.ends_at == world.now + 40 * MINUTE
    for at in (world.now, begun.ends_at - SECOND):
        assert engine.run_cycle("engine", at) is not None
        assert Workload.objects.get(pk=workload.pk).state == "queued"
    for agent in agents:
        agent.sync(begun.ends_at)
    engine.run_cycle("engine", begun.ends_at)
    assert Workload.objects.get(pk=workload.pk).state != "queued", "the maintenance ends by itself"
    assert contact(begun.ends_at) == begun.ends_at + WINDOW


def test_an_edge_renews_until_the_announced_end_although_the_maintenance_was_ended(
    world: World, lost: LostHost
) -> None:
    begun = services.begin_database_maintenance(
        duration=60 * MINUTE, reason="a new version", announced_by="ada", now=world.now
    )
    contact(world.now)
    services.end_database_maintenance(now=world.now + SECOND)
    assert lost.state_at(begun.ends_at + SILENT) == "suspect", "this edge does not know that it has ended"
    assert lost.state_at(begun.ends_at + SILENT + SECOND) == "silent"


def test_only_one_maintenance_lasts_at_a_time(world: World) -> None:
    with pytest.raises(OperationRejected, match="no_database_maintenance"):
        services.end_database_maintenance(now=world.now)
    wish = {"duration": 10 * MINUTE, "reason": "a new version", "announced_by": "ada"}
    services.begin_database_maintenance(**wish, now=world.now)  # type: ignore[arg-type]
    with pytest.raises(OperationRejected, match="database_maintenance_lasts"):
        services.begin_database_maintenance(**wish, now=world.now + MINUTE)  # type: ignore[arg-type]
    services.begin_database_maintenance(**wish, now=world.now + 10 * MINUTE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lease", "poll", "silent"), [(5.0, 5 / 6, 5 + 30 + 5 / 3), (30.0, 5.0, 70.0), (300.0, 5.0, 360.0)]
)
def test_long_leases_delay_neither_reports_nor_the_margin(lease: float, poll: float, silent: float) -> None:
    rules = leases.LeaseRules(lease)
    assert rules.poll_seconds == pytest.approx(poll)
    assert rules.silent_seconds(30) == pytest.approx(silent)
