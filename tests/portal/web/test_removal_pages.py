"""Test the pages that remove or move hosts, pools and teams, and the pages that show removed rows."""

from __future__ import annotations

import pytest
from django.urls import reverse

from portal.models import Template
from scheduler.models import Host, Pool, Team
from tests.portal.web.work_samples import run_job, signed_in
from tests.world import World


def test_a_host_is_removed_after_its_effect_is_shown(world: World) -> None:
    client = signed_in(world.operator)
    address = reverse("host-remove", args=["alpha"])
    assert address in client.get(reverse("host", args=["alpha"])).content.decode()
    page = client.get(address).content.decode()
    assert "Remove alpha?" in page and "GPUs that leave the pool" in page
    assert Host.objects.filter(name="alpha").exists(), "the preview changes nothing"
    answer = client.post(address, {"why": "scrapped"}, follow=True)
    assert "alpha is removed." in answer.content.decode()
    assert not Host.objects.filter(name="alpha").exists()
    page = client.get(reverse("host", args=["alpha"])).content.decode()
    assert "This host was removed" in page and address not in page
    assert client.post(reverse("host", args=["alpha"])).status_code == 404
    assert client.get(address).status_code == 404


def test_the_page_of_a_busy_host_says_why_it_cannot_be_removed(world: World) -> None:
    run_job(world, world.vision, "storm", host="alpha", gpus=[0])
    client = signed_in(world.operator)
    page = client.get(reverse("host-remove", args=["alpha"])).content.decode()
    assert "alpha runs work: storm." in page and "Remove the host</button>" not in page
    answer = client.post(reverse("host-remove", args=["alpha"]), {"why": ""})
    assert answer.status_code == 400 and "alpha runs work: storm." in answer.content.decode()
    assert Host.objects.filter(name="alpha").exists()


def test_a_host_is_moved_to_the_chosen_pool(world: World) -> None:
    client = signed_in(world.operator)
    address = reverse("host-move", args=["alpha"])
    choice = client.get(address).content.decode()
    assert "Vision only" in choice and 'value="shared"' not in choice
    page = client.get(f"{address}?pool=vision-only").content.decode()
    assert "Move alpha to another pool?" in page and "Quota of" in page
    assert client.get(f"{address}?pool=none").status_code == 400
    answer = client.post(f"{address}?pool=vision-only", {"why": "theirs"}, follow=True)
    assert "alpha is moved to Vision only." in answer.content.decode()
    assert Host.objects.get(name="alpha").pool == world.static


@pytest.mark.long
def test_a_team_a_pool_and_a_template_are_removed(world: World) -> None:
    client = signed_in(world.operator)
    Template.objects.create(
        slug="lab", name="Lab", kind="notebook", type="interactive", units=1, max_runtime_seconds=60
    )
    client.post(reverse("host-remove", args=["delta"]), {"why": ""})
    for page, slug in (("pool", "vision-only"), ("team", "robotics"), ("template", "lab")):
        address = reverse(f"{page}-remove", args=[slug])
        assert address in client.get(reverse(page, args=[slug])).content.decode()
        assert client.get(address).status_code == 200
        assert client.post(address, {"why": "merged"}).status_code == 302
    assert not Pool.objects.filter(slug="vision-only").exists()
    assert not Team.objects.filter(slug="robotics").exists()
    assert not Template.objects.filter(slug="lab").exists()
    for page, slug in (("pool", "vision-only"), ("team", "robotics")):
        shown = client.get(reverse(page, args=[slug])).content.decode()
        assert "Removed; its history stays." in shown and f"{slug}/remove/" not in shown
        assert client.post(reverse(page, args=[slug]), {"verb": "rename", "name": "x"}).status_code == 404
