"""Test the home folders that hosts report: validation and storage."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from agent.protocol import LARGEST_SIZE, MOST_HOMES, EnvironmentSeen, HomeSeen, HomesSeen
from scheduler.models import Host, Storage, Volume
from scheduler.sync.agent_rejections import AgentRejected
from tests.fakes import FakeAgent
from tests.seeds import first_cases
from tests.world import World

MINUTE = dt.timedelta(minutes=1)


def homes_at(at: dt.datetime, *homes: HomeSeen, storage: str = "store1", **also: Any) -> HomesSeen:
    return HomesSeen(storage=storage, listed_at=at.timestamp(), homes=list(homes), **also)


def home(name: str, at: dt.datetime, size: int | None = 1000, **also: Any) -> HomeSeen:
    values = {"files": 3, "changed_at": at.timestamp() - 60, "measured_at": at.timestamp(), **also}
    return HomeSeen(name=name, bytes=size, **values)


def report_homes(agent: FakeAgent, homes: HomesSeen, at: dt.datetime) -> None:
    agent.sync(at, replace(agent.observed(), homes=homes))


def test_homes_are_stored_as_measured(world: World) -> None:
    at = world.now
    agent = FakeAgent.of(world.hosts["alpha"])
    homes = homes_at(
        at, home("ada", at), home("bob", at, None, files=None, measured_at=None), free_bytes=5, total_bytes=9
    )
    report_homes(agent, homes, at)
    ada, bob = Volume.objects.order_by("name")
    assert (ada.size_bytes, ada.files, ada.changed_at, ada.measured_at) == (1000, 3, at - MINUTE, at)
    assert (bob.size_bytes, bob.files, bob.measured_at) == (None, None, None)
    storage = Storage.objects.get()
    assert (storage.free_bytes, storage.total_bytes, storage.listed_at) == (5, 9, at)
    assert Host.objects.get(name="alpha").storage == storage


def test_the_limit_of_a_home_is_stored_and_can_end(world: World) -> None:
    at = world.now
    agent = FakeAgent.of(world.hosts["alpha"])
    report_homes(agent, homes_at(at, home("ada", at, limit_bytes=2 << 30), home("bob", at)), at)
    assert dict(Volume.objects.values_list("name", "limit_bytes")) == {"ada": 2 << 30, "bob": None}
    report_homes(agent, homes_at(at + MINUTE, home("ada", at), home("bob", at)), at + MINUTE)
    assert set(Volume.objects.values_list("limit_bytes", flat=True)) == {None}
    with pytest.raises(AgentRejected, match="limit_bytes of 'ada' is -1"):
        report_homes(agent, homes_at(at + 2 * MINUTE, home("ada", at, limit_bytes=-1)), at + 2 * MINUTE)


def test_a_frame_without_homes_changes_nothing(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    report_homes(agent, homes_at(world.now, home("ada", world.now)), world.now)
    agent.sync(world.now + MINUTE)
    assert Volume.objects.get().size_bytes == 1000


def test_hosts_on_one_storage_share_its_homes_and_the_newest_listing_counts(world: World) -> None:
    at = world.now
    alpha, beta = FakeAgent.of(world.hosts["alpha"]), FakeAgent.of(world.hosts["beta"])
    report_homes(alpha, homes_at(at + MINUTE, home("ada", at + MINUTE, 2000)), at + MINUTE)
    report_homes(beta, homes_at(at, home("ada", at, 1000), home("gone", at)), at + 2 * MINUTE)
    assert Volume.objects.get().size_bytes == 2000
    assert sorted(Storage.objects.get().hosts.values_list("name", flat=True)) == ["alpha", "beta"]


def test_the_same_name_on_another_storage_is_another_home(world: World) -> None:
    at = world.now
    report_homes(FakeAgent.of(world.hosts["alpha"]), homes_at(at, home("ada", at)), at)
    report_homes(FakeAgent.of(world.hosts["beta"]), homes_at(at, home("ada", at), storage="store2"), at)
    assert Volume.objects.filter(name="ada").count() == 2


def test_a_removed_home_is_deleted_unless_the_listing_is_incomplete(world: World) -> None:
    at = world.now
    agent = FakeAgent.of(world.hosts["alpha"])
    report_homes(agent, homes_at(at, home("ada", at), home("bob", at)), at)
    report_homes(agent, homes_at(at + MINUTE, home("ada", at), left_out=1), at + MINUTE)
    assert Volume.objects.count() == 2
    report_homes(agent, homes_at(at + 2 * MINUTE, home("ada", at)), at + 2 * MINUTE)
    assert Volume.objects.get().name == "ada"


def test_measurement_times_ahead_of_the_server_are_limited_to_now(world: World) -> None:
    at, ahead = world.now, world.now + dt.timedelta(hours=2)
    report_homes(FakeAgent.of(world.hosts["alpha"]), homes_at(ahead, home("ada", ahead)), at)
    ada = Volume.objects.get()
    assert (ada.measured_at, Storage.objects.get().listed_at) == (at, at)


@pytest.mark.parametrize(
    ("change", "message"),
    first_cases(
        3,
        [
            ({"bytes": -1}, "bytes of 'ada' is -1; allowed: 0 to"),
            ({"bytes": LARGEST_SIZE + 1}, "bytes of 'ada'"),
            ({"files": -5}, "files of 'ada' is -5"),
            ({"changed_at": 1e17}, "changed_at of 'ada'"),
            ({"measured_at": 1e17}, "measured_at of 'ada'"),
            ({"name": ""}, "name ''"),
            ({"name": "../up"}, r"name '\.\./up'"),
            ({"name": "x" * 151}, "1 to 150 characters"),
            ({"name": "a\u202eb"}, "name of a folder"),
        ],
    ),
)
def test_an_invalid_home_is_rejected_with_a_reason_and_nothing_is_stored(
    world: World, change: dict[str, Any], message: str
) -> None:
    at = world.now
    agent = FakeAgent.of(world.hosts["alpha"])
    with pytest.raises(AgentRejected, match=message):
        report_homes(agent, homes_at(at, home("bob", at), replace(home("ada", at), **change)), at)
    assert not Volume.objects.exists() and not Storage.objects.exists()
    refused = Host.objects.get(name="alpha").refused_agent
    assert refused is not None and "homes.homes" in refused["reason"]


@pytest.mark.parametrize(
    ("change", "message"),
    first_cases(
        3,
        [
            ({"storage": ""}, "homes.storage: ''"),
            ({"storage": "x" * 65}, "1 to 64 letters and digits"),
            ({"free_bytes": -1}, "homes.free_bytes: -1"),
            ({"total_bytes": 2**62}, "homes.total_bytes"),
            ({"left_out": -1}, "homes.left_out: -1"),
            ({"listed_at": -1.0}, "homes.listed_at: -1.0"),
            ({"homes": [HomeSeen("ada"), HomeSeen("ada")]}, "two homes have the same name"),
            ({"homes": [HomeSeen(f"u{n}") for n in range(MOST_HOMES + 1)]}, f"allowed: at most {MOST_HOMES}"),
        ],
    ),
)
def test_an_invalid_report_of_homes_is_rejected_with_a_reason(
    world: World, change: dict[str, Any], message: str
) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    with pytest.raises(AgentRejected, match=message):
        report_homes(agent, replace(homes_at(world.now), **change), world.now)
    assert not Storage.objects.exists()


@pytest.mark.parametrize(
    ("environment", "message"),
    first_cases(
        2,
        [
            (EnvironmentSeen(python="3" * 61), "environment.python"),
            (EnvironmentSeen(python="3", packages={"torch": "2\n"}), "environment.packages"),
            (
                EnvironmentSeen(python="3", packages={f"p{n}": "1" for n in range(51)}),
                "51 entries; allowed: at most 50",
            ),
            (EnvironmentSeen(python="3", exposed=["data"]), "'data'; allowed: an absolute path"),
            (EnvironmentSeen(python="3", exposed=[f"/data/{n}" for n in range(51)]), "exposed: 51 entries"),
        ],
    ),
)
def test_an_invalid_environment_is_rejected_with_a_reason(
    world: World, environment: EnvironmentSeen, message: str
) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    agent.inventory = replace(agent.inventory, environment=environment)
    with pytest.raises(AgentRejected, match=message):
        agent.sync(world.now)


def test_many_homes_are_written_with_few_queries(world: World, django_assert_max_num_queries: Any) -> None:
    at = world.now
    agent = FakeAgent.of(world.hosts["alpha"])
    report_homes(agent, homes_at(at, *(home(f"u{n}", at) for n in range(300))), at)
    later = at + MINUTE
    with django_assert_max_num_queries(40):
        report_homes(agent, homes_at(later, *(home(f"u{n}", later) for n in range(300))), later)
    assert Volume.objects.filter(measured_at=later).count() == 300
