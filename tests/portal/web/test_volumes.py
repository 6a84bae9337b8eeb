"""Test data volumes and environments: who sees which home, shown sizes, reported environments."""

from __future__ import annotations

import csv
import datetime as dt
import io
from dataclasses import replace
from typing import Any

import pytest
from django.urls import reverse

from agent.protocol import EnvironmentSeen, HomeSeen, HomesSeen
from portal.models import User
from scheduler.models import Host, Volume
from tests.fakes import FakeAgent
from tests.portal.web.work_samples import run_job, signed_in
from tests.world import World, world_fixture

pytestmark = pytest.mark.django_db
OFFERED = EnvironmentSeen(
    python="3.12.4", packages={"jupyterlab": "4.4.1", "numpy": "2.2.0"}, exposed=["/data/street-views"]
)


def report(world: World, host: str, *homes: HomeSeen, storage: str = "", environment: Any = OFFERED) -> None:
    """Report homes and the environment through the sync of the host's agent."""
    agent = FakeAgent.of(Host.objects.get(name=host))
    agent.inventory = replace(agent.inventory, environment=environment)
    homes_seen = HomesSeen(
        storage=storage or host,
        listed_at=world.now.timestamp(),
        homes=list(homes),
        total_bytes=10**12,
        free_bytes=4 * 10**11,
    )
    agent.sync(world.now, replace(agent.observed(), homes=homes_seen))


def home(user: str, size: int | None = 2_500_000_000, **also: Any) -> HomeSeen:
    return HomeSeen(name=user, bytes=size, **also)


def write_homes(world: World) -> World:
    """Give every user a home on alpha and beta, which share storage.

    Users of vision have another home on delta, the host of vision.
    """
    everybody = [
        home(user.username, measured_at=world.now.timestamp()) for user in User.objects.order_by("pk")
    ]
    report(world, "alpha", *everybody, home("left-behind"), storage="shared1")
    report(world, "beta", *everybody, home("left-behind"), storage="shared1")
    report(world, "delta", home(world.vision.member.username, 7_000_000))
    return world


homes = world_fixture(write_homes)


def seen_by(user: User, **query: str) -> Any:
    answer = signed_in(user).get(reverse("volumes"), query)
    assert answer.status_code == 200
    return answer


def names_seen_by(user: User) -> set[str]:
    return {entry["volume"].name for entry in seen_by(user).context["homes"]}


def test_a_member_sees_only_their_own_homes(homes: World) -> None:
    member = homes.vision.member
    page = seen_by(member)
    assert names_seen_by(member) == {member.username}
    assert [entry["hosts"]["names"] for entry in page.context["homes"]] == ["alpha, beta", "delta"]
    for other in User.objects.exclude(pk=member.pk):
        assert f"<b>{other.username}</b>" not in page.content.decode()


def test_a_user_sees_their_home_in_another_team(world: World) -> None:
    member, lead = world.vision.member, world.vision.lead
    other = f"{member.username}~70002"
    report(world, "alpha", home(member.username), home(other), home(world.language.member.username))
    assert names_seen_by(member) == {member.username, other}
    assert other in names_seen_by(lead)
    assert other not in names_seen_by(world.language.member)


def test_a_lead_sees_the_homes_of_the_team_and_of_no_other_team(homes: World) -> None:
    assert names_seen_by(homes.vision.lead) == {
        person.username for person in (homes.vision.lead, *homes.vision.members)
    }


def test_operators_and_auditors_see_all_homes_and_finance_only_its_own(homes: World) -> None:
    everything = set(Volume.objects.values_list("name", flat=True))
    for person in (homes.operator, homes.auditor):
        assert {row["home"] for row in csv_rows(person)} == everything
    assert names_seen_by(homes.finance) == {"finance"}


def test_another_tenant_sees_no_home_host_or_path_of_vision(homes: World) -> None:
    report(homes, "delta", environment=replace(OFFERED, exposed=["/data/vision-secret"]))
    for stranger in (homes.stranger, homes.language.member):
        shown = seen_by(stranger).content.decode() + "".join(map(str, csv_rows(stranger)))
        assert "vision-" not in shown
        assert "delta" not in shown


def csv_rows(user: User) -> list[dict[str, str]]:
    answer = seen_by(user, format="csv")
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_unknown_sizes_are_shown_as_unknown_and_lower_bounds_as_such(world: World) -> None:
    report(
        world, "alpha", home("vision-1", None), home("vision-2", 3_000_000_000, files=1234, complete=False)
    )
    page = seen_by(world.vision.lead).content.decode()
    assert "over 3.0 GB" in page and "over 1,234" in page
    assert "not yet" in page and "unknown" in page
    rows = {row["home"]: row for row in csv_rows(world.vision.lead)}
    assert (rows["vision-1"]["size_bytes"], rows["vision-1"]["files"]) == ("", "")
    assert (rows["vision-2"]["size_bytes"], rows["vision-2"]["size_complete"]) == ("3000000000", "False")


def test_a_home_shows_how_many_running_workloads_use_it(homes: World) -> None:
    run_job(homes, homes.vision, "one", host="alpha", gpus=[0])
    run_job(homes, homes.vision, "two", host="beta", gpus=[0])
    run_job(homes, homes.language, "another's", host="beta", gpus=[1])
    shown = {
        each["hosts"]["names"]: each["workloads"] for each in seen_by(homes.vision.member).context["homes"]
    }
    assert shown == {"alpha, beta": 2, "delta": 0}


def test_a_lead_does_not_see_work_of_a_member_in_another_team(homes: World) -> None:
    workload = run_job(homes, homes.vision, "one", host="alpha", gpus=[0])
    workload.project = homes.language.project
    workload.save()
    (shown,) = (
        each
        for each in seen_by(homes.vision.lead, find=homes.vision.member.username).context["homes"]
        if each["hosts"]["names"] == "alpha, beta"
    )
    assert shown["workloads"] == 0


def test_a_home_without_an_account_is_marked_for_operators(homes: World) -> None:
    page = seen_by(homes.operator, find="left-behind")
    (shown,) = page.context["homes"]
    assert shown["owner"] is None
    assert "no account" in page.content.decode()


@pytest.mark.parametrize("sort", ["size", "-size", "files", "-changed", "measured", "nonsense", "-"])
def test_homes_are_sorted_by_any_column_and_an_unknown_one_is_ignored(homes: World, sort: str) -> None:
    sizes = [each["volume"].size_bytes for each in seen_by(homes.vision.member, sort=sort).context["homes"]]
    if sort == "size":
        assert sizes == sorted(sizes)
    if sort == "-size":
        assert sizes == sorted(sizes, reverse=True)


def test_hosts_that_report_the_same_environment_share_a_row(homes: World) -> None:
    report(homes, "gamma", environment=None)
    page = seen_by(homes.vision.member)
    rows = [(e["python"], e["lab"], e["hosts"]["names"]) for e in page.context["environments"]]
    assert rows == [("3.12.4", "4.4.1", "alpha, beta, delta"), ("", "", "gamma")]
    text = page.content.decode()
    assert "numpy 2.2.0" in text and "/data/street-views" in text and "report packages" in text


def test_a_host_without_jupyterlab_is_marked(world: World) -> None:
    report(world, "alpha", environment=EnvironmentSeen(python="3.12.4"))
    assert "no JupyterLab" in seen_by(world.vision.member).content.decode()


def test_without_a_report_the_page_explains_the_next_step(world: World) -> None:
    page = " ".join(seen_by(world.vision.member).content.decode().split())
    assert "No home yet" in page and "No host has reported yet" in page


def test_a_name_reported_by_an_agent_is_escaped(world: World) -> None:
    report(world, "alpha", home("<script>alert(1)<"))
    assert "<script>alert(1)" not in seen_by(world.operator).content.decode()


def test_the_api_returns_the_same_homes(homes: World) -> None:
    client = signed_in(homes.vision.member)
    answer = client.get("/api/v1/volumes/", {"page_size": 1}).json()
    assert (answer["count"], len(answer["results"])) == (2, 1)
    first = answer["results"][0]
    assert (first["name"], first["hosts"]) == (homes.vision.member.username, ["alpha", "beta"])
    assert (first["size_bytes"], first["size_complete"], first["files"]) == (2_500_000_000, True, None)
    assert dt.datetime.fromisoformat(first["measured_at"]) == homes.now
    environments = client.get("/api/v1/environments/").json()["results"]
    alpha = next(row for row in environments if row["host"] == "alpha")
    assert (alpha["python"], alpha["packages"]["jupyterlab"]) == ("3.12.4", "4.4.1")
    assert alpha["exposed"] == ["/data/street-views"]
