"""Test that a job template fills in the form, also for a job on several hosts."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from portal.errors import Invalid
from portal.services.work import templates
from tests.world import World, world

__all__ = ["world"]


def signed_in(world: World) -> Client:
    client = Client()
    client.force_login(world.vision.member)
    return client


def cluster(world: World, **changes: object) -> object:
    fields: dict[str, object] = {
        "name": "Ray cluster",
        "kind": "job",
        "type": "training",
        "units": 2,
        "hosts": 2,
        "command": "bash ray_cluster.sh",
        "max_runtime_seconds": 7200,
    }
    return templates.save_template(actor=world.operator, now=world.now, **{**fields, **changes})  # type: ignore[arg-type]


def test_a_template_for_two_hosts_fills_in_the_form(world: World) -> None:
    cluster(world)
    client = signed_in(world)
    listed = client.get(reverse("templates")).content.decode()
    assert "2 hosts × 2" in listed and "?kind=job&amp;template=ray-cluster" in listed
    form = client.get("/ask/?kind=job&template=ray-cluster").context["form"]
    found = {
        name: form[name].value() for name in ("kind", "command", "hosts", "count", "length", "length_unit")
    }
    assert found == {
        "kind": "job",
        "command": "bash ray_cluster.sh",
        "hosts": 2,
        "count": "2",
        "length": 2,
        "length_unit": "hours",
    }


@pytest.mark.parametrize("slug", ["nothing", "a" * 500, "../x"])
def test_an_unknown_template_changes_nothing(world: World, slug: str) -> None:
    answer = signed_in(world).get(f"/ask/?kind=job&template={slug}")
    assert answer.status_code == 200 and answer.context["form"]["hosts"].value() == 1


def test_a_notebook_runs_on_one_host(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        cluster(world, kind="notebook", command="")
    assert "hosts" in refused.value.fields
