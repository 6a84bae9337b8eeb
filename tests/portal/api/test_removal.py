"""Test removals and moves in the API."""

from __future__ import annotations

import pytest

from portal.models import AuditEvent
from scheduler.models import Host, Pool, Team
from tests.portal.api.conftest import Client
from tests.portal.web.work_samples import run_job
from tests.world import World

API = "/api/v1/"


def test_a_host_is_previewed_removed_and_still_shown_as_removed(
    today_world: World, client_of: Client
) -> None:
    operator = client_of(today_world.operator)
    effect = operator.get(f"{API}hosts/alpha/removal/").json()
    assert (effect["verb"], effect["refused"], effect["gpus"]) == ("remove_host", "", 8)
    answer = operator.post(f"{API}hosts/alpha/remove/", {"why": "scrapped"})
    assert (answer.status_code, answer.json()["name"]) == (200, "alpha")
    listed = operator.get(f"{API}hosts/").json()["results"]
    assert "alpha" not in {row["name"] for row in listed}
    detail = operator.get(f"{API}hosts/alpha/").json()
    assert (detail["state"], detail["gpus"]) == ("removed", []) and detail["removed_at"]
    assert operator.post(f"{API}hosts/alpha/drain/", {}).status_code == 404
    assert operator.post(f"{API}hosts/alpha/remove/", {}).status_code == 404
    assert AuditEvent.objects.get(verb="remove_host").via == "api"


def test_a_busy_host_is_refused_with_the_names_of_its_work(today_world: World, client_of: Client) -> None:
    run_job(today_world, today_world.vision, "storm", host="alpha", gpus=[0, 1])
    operator = client_of(today_world.operator)
    effect = operator.get(f"{API}hosts/alpha/removal/").json()
    assert effect["code"] == "host_has_work" and "storm" in effect["refused"]
    for verb, body in (("remove", {}), ("move", {"pool": "vision-only"})):
        answer = operator.post(f"{API}hosts/alpha/{verb}/", body)
        assert (answer.status_code, answer.json()["code"]) == (409, "host_has_work")
        assert "storm" in answer.json()["errors"][0]["message"]
    assert Host.objects.get(name="alpha").pool == today_world.shared


def test_a_host_is_moved(today_world: World, client_of: Client) -> None:
    operator = client_of(today_world.operator)
    effect = operator.post(f"{API}hosts/alpha/move/preview/", {"pool": "vision-only"}).json()
    assert (effect["verb"], effect["gpus"], effect["refused"]) == ("move_host", 8, "")
    assert {quota["pool"] for quota in effect["quotas"]} == {"shared"}
    assert Host.objects.get(name="alpha").pool == today_world.shared, "a preview changes nothing"
    answer = operator.post(f"{API}hosts/alpha/move/", {"pool": "vision-only", "why": "theirs"})
    assert answer.status_code == 200
    assert operator.get(f"{API}hosts/alpha/").json()["pool"] == "vision-only"
    assert operator.post(f"{API}hosts/alpha/move/", {"pool": "none"}).status_code == 400


@pytest.mark.parametrize(("kind", "slug"), [("pools", "shared"), ("teams", "robotics")])
def test_a_pool_and_a_team_are_removed_and_still_shown_as_removed(
    today_world: World, client_of: Client, kind: str, slug: str
) -> None:
    operator = client_of(today_world.operator)
    if kind == "pools":
        refused = operator.post(f"{API}pools/shared/remove/", {})
        assert (refused.status_code, refused.json()["code"]) == (409, "pool_has_hosts")
    for name in ("alpha", "beta", "gamma") if kind == "pools" else ():
        operator.post(f"{API}hosts/{name}/remove/", {})
    effect = operator.get(f"{API}{kind}/{slug}/removal/").json()
    assert effect["refused"] == "" and len(effect["quotas"]) == (6 if kind == "pools" else 2)
    assert operator.post(f"{API}{kind}/{slug}/remove/", {"why": "merged"}).status_code == 200
    listed = operator.get(f"{API}{kind}/").json()
    rows = listed if kind == "pools" else listed["results"]
    assert slug not in {row["slug"] for row in rows}
    assert operator.get(f"{API}{kind}/{slug}/").json()["removed_at"]
    assert operator.get(f"{API}{kind}/{slug}/removal/").status_code == 404
    assert Pool.objects.count() + Team.objects.count() == 4
