"""Test the warning of a request for several hosts that cannot reach each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from portal.services.calendar import reservation_preview
from portal.services.work import workload_preview
from scheduler.models import Host, JobArray, Workload
from tests.portal.web.test_work_pages import ask_data
from tests.portal.web.work_samples import signed_in
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db

SAID = "The hosts of Shared that could run it do not let a job&#x27;s hosts reach each other over the network"


def report(world: World, **addresses: str | None) -> None:
    """Store a report of each given host, with its network address. None stores no address."""
    for name, address in addresses.items():
        reported = {"gpus": [], "network": "private"} | ({} if address is None else {"address": address})
        Host.objects.filter(name=name).update(hardware={"reported": reported})


def warning_for(world: World, **changes: Any) -> str:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "gang",
        "hosts": 2,
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
    }
    return " ".join(workload_preview.preview_workload(**(fields | changes))["warnings"])


def test_only_hosts_that_could_serve_the_request_count_and_only_for_several_hosts(world: World) -> None:
    report(world, alpha=None, beta="", gamma="10.0.0.3")
    assert "The hosts of Shared that could run it do not let" in warning_for(world)
    assert "docs/gangs.md" in warning_for(world)
    assert warning_for(world, hosts=1) == ""
    assert warning_for(world, models=[A100], hosts=1) == ""
    warning = warning_for(world, models=[])
    assert "2 of the 3 hosts of Shared" in warning and ": alpha, beta. On these hosts," in warning
    assert "The hosts of Shared" in warning_for(world, models=[], min_memory_mib=80_000)
    assert "The hosts of Shared" in warning_for(world, models=[], min_compute_capability=90)
    Host.objects.filter(name__in=("gamma", "alpha")).update(labels={"net": "yes"})
    assert "1 of the 2 hosts" in warning_for(world, models=[], labels_required={"net": "yes"})


def test_hosts_with_addresses_and_hosts_that_never_joined_cause_no_warning(world: World) -> None:
    assert warning_for(world) == ""
    report(world, alpha="10.0.0.1", beta="10.0.0.2")
    assert warning_for(world) == ""


def test_the_warning_is_shown_in_every_form_and_on_submission(world: World) -> None:
    report(world, alpha=None, beta=None)
    client = signed_in(world.vision.member)
    data = ask_data(world, kind="job", name="gang", command="true", count="1", hosts="2", length="1")
    assert SAID in client.post(reverse("ask-preview"), data).content.decode()
    assert SAID in client.post(reverse("ask"), data, follow=True).content.decode()
    assert (
        SAID
        not in client.post(
            reverse("ask"), data | {"hosts": "1", "name": "alone"}, follow=True
        ).content.decode()
    )
    assert Workload.objects.filter(hosts=2).count() == 1, "a warning does not block the submission"
    api = APIClient()
    api.force_authenticate(world.vision.member)
    body = {
        "project": "vision/vision-main",
        "pool": "shared",
        "name": "gang",
        "command": "true",
        "units": 1,
        "hosts": 2,
        "models": [H100],
    }
    assert (
        "do not let a job's hosts reach"
        in api.post("/api/v1/jobs/preview/", body, format="json").json()["warnings"][0]
    )
    assert (
        "do not let a job's hosts reach" in api.post("/api/v1/jobs/", body, format="json").json()["warning"]
    )
    created = api.post("/api/v1/arrays/", body | {"array": "0-1"}, format="json").json()
    assert "do not let a job's hosts reach" in created["warning"] and JobArray.objects.count() == 1
    start = world.now + timedelta(hours=1)
    preview = reservation_preview.preview_reservation(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        units=1,
        hosts=2,
        models=[H100],
        start=start,
        end=start + timedelta(hours=1),
        now=world.now,
    )
    assert "do not let a job's hosts reach" in preview["warnings"][0]
