"""Test when an edge may renew a lease from memory. Each condition has a test that fails without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.protocol import VERSION, Desired, Inventory, Observed, RunWanted
from portal.edge.agents.database_calls import AuthenticatedHost
from portal.edge.agents.lease_memory import LeaseMemory
from scheduler.coordination.leases import MEMORY_RENEWAL_SECONDS

HOST = AuthenticatedHost(7, "alpha")
LEASE_SECONDS = 300.0
START = 1000.0
REPORT = Observed(
    version=VERSION,
    agent_version="1",
    boot_id="boot",
    instance="instance",
    sequence=1,
    inventory=Inventory(gpus=[], cpu_milli=1000, memory_mib=1000, isolation="plain", simulated=True),
    runs=[],
    start="first start",
)
RUN = RunWanted(run="a run", workload="a workload", generation=1, verb="start")
DESIRED = Desired(VERSION, "alpha", LEASE_SECONDS, [RUN], challenge="sign this", credential="renewed")


@pytest.fixture
def memory() -> LeaseMemory:
    """Return a memory with one lease, confirmed at START, in a process with contact at START."""
    memory = LeaseMemory()
    memory.renews_until = START + MEMORY_RENEWAL_SECONDS
    memory.confirm(HOST, REPORT, ["credential"], "key", DESIRED, START)
    return memory


def renew_every_minute(memory: LeaseMemory, first: int, last: int) -> list[int]:
    """Report every minute, and return the minutes whose report was answered."""
    return [
        minute
        for minute in range(first, last + 1)
        if memory.renewal(HOST.id, REPORT, START + 60 * minute) is not None
    ]


def test_a_confirmed_lease_is_renewed_with_the_runs_of_the_last_answer(memory: LeaseMemory) -> None:
    renewal = memory.renewal(HOST.id, REPORT, START + 60)
    assert renewal is not None
    assert renewal == replace(DESIRED, renewed_from_memory=True, challenge="")
    assert renewal.runs == [RUN]


def test_a_host_without_a_confirmed_lease_is_not_renewed(memory: LeaseMemory) -> None:
    assert memory.renewal(8, REPORT, START + 1) is None


@pytest.mark.parametrize("changed", [{"instance": "other"}, {"boot_id": "other"}, {"start": "other"}])
def test_another_process_of_the_agent_is_not_renewed(memory: LeaseMemory, changed: dict[str, Any]) -> None:
    assert memory.renewal(HOST.id, replace(REPORT, **changed), START + 1) is None


def test_leases_are_renewed_for_fifteen_minutes_after_the_last_contact(memory: LeaseMemory) -> None:
    assert renew_every_minute(memory, 1, 20) == list(range(1, 16))


def test_a_lease_that_ended_is_not_renewed(memory: LeaseMemory) -> None:
    assert memory.renewal(HOST.id, REPORT, START + LEASE_SECONDS + 1) is None
    assert not memory.may_renew(HOST.id, START + LEASE_SECONDS + 1)
    assert memory.renewal(HOST.id, REPORT, START + LEASE_SECONDS) is not None


def test_a_host_that_the_database_does_not_answer_is_not_renewed_without_end(memory: LeaseMemory) -> None:
    memory.renews_until = START + 10 * MEMORY_RENEWAL_SECONDS  # the process itself has contact
    assert renew_every_minute(memory, 1, 20) == list(range(1, 16))


def test_an_announced_maintenance_extends_the_renewals_until_its_end(memory: LeaseMemory) -> None:
    memory.renews_until = memory.maintenance_until = START + 30 * 60
    assert renew_every_minute(memory, 1, 40) == list(range(1, 31))


def test_a_rejected_agent_is_not_renewed_and_its_renewals_are_still_written(memory: LeaseMemory) -> None:
    memory.renewal(HOST.id, REPORT, START + 60)
    memory.forget(HOST.id)
    assert memory.renewal(HOST.id, REPORT, START + 61) is None
    assert memory.unwritten() == {(HOST.id, "instance"): START + 60}


def test_a_renewal_is_written_once_and_a_later_one_again(memory: LeaseMemory) -> None:
    assert memory.unwritten() == {}
    memory.renewal(HOST.id, REPORT, START + 60)
    first = memory.unwritten()
    memory.renewal(HOST.id, REPORT, START + 70)
    memory.written(first)
    assert memory.unwritten() == {(HOST.id, "instance"): START + 70}, "it was renewed while it was written"
    memory.written(memory.unwritten())
    assert memory.unwritten() == {}


def test_a_late_answer_neither_shortens_a_lease_nor_hides_a_renewal(memory: LeaseMemory) -> None:
    memory.renewal(HOST.id, REPORT, START + 250)
    stopped = replace(DESIRED, runs=[replace(RUN, verb="stop")])
    memory.confirm(HOST, REPORT, ["credential"], "key", stopped, START + 10)
    assert memory.unwritten() == {(HOST.id, "instance"): START + 250}
    renewal = memory.renewal(HOST.id, REPORT, START + 500)
    assert renewal is not None and renewal.runs[0].verb == "stop"


def test_a_newer_desired_state_replaces_the_kept_one(memory: LeaseMemory) -> None:
    memory.update_desired(HOST.id, replace(DESIRED, runs=[]))
    renewal = memory.renewal(HOST.id, REPORT, START + 1)
    assert renewal is not None and renewal.runs == []


@pytest.mark.parametrize(
    ("credential", "key", "after", "found"),
    [
        ("credential", "key", 1, True),
        ("renewed", "key", 1, True),
        ("other", "key", 1, False),
        ("", "key", 1, False),
        ("credential", "key of another edge", 1, False),
        ("credential", "", 1, False),
        ("credential", "key", LEASE_SECONDS + 1, False),
    ],
)
def test_an_agent_resumes_only_with_the_key_of_its_last_connection(
    memory: LeaseMemory, credential: str, key: str, after: float, found: bool
) -> None:
    assert (memory.resumed(credential, key, START + after) is not None) is found
