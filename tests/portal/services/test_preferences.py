"""Test preferences of workloads: labels, spreading over hosts, order of models, wanted completion time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from portal.errors import Invalid
from portal.services.work import workload_preview
from scheduler.cycle import engine, snapshot
from scheduler.models import Host, Workload
from tests.portal.services.test_dependencies_and_arrays import job
from tests.portal.web.work_samples import signed_in
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def preview(world: World, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "x",
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 4 * 3600,
        "now": world.now,
    }
    return workload_preview.preview_workload(**(fields | changes))


def test_a_preferred_label_and_spreading_reach_the_planner(world: World) -> None:
    Host.objects.filter(name="beta").update(labels={"rack": "r2"})
    workload = job(world, labels_preferred={"rack": "r2"}, spread=True)
    request = next(
        q.ask for q in snapshot.take_snapshot([world.shared.pk], world.now).queued if q.id == workload.pk
    )
    assert (request.labels_preferred, request.spread) == (frozenset({("rack", "r2")}), True)
    engine.run_cycle("test", world.now)
    assert workload.runs.get().host.name == "beta"


def test_models_are_tried_in_the_given_order(world: World) -> None:
    job(world, units=8, hosts=2)
    workload = job(world, "second", models=[H100, A100])
    engine.run_cycle("test", world.now)
    assert workload.runs.get().host.name == "gamma"


def test_a_wanted_by_time_that_would_be_missed_causes_a_warning_and_no_reservation(world: World) -> None:
    assert preview(world, wanted_by=world.now + 9 * HOUR)["wish"] == ""
    assert "expected to end" in preview(world, wanted_by=world.now + HOUR)["wish"]
    workload = job(world, wanted_by=world.now + HOUR)
    assert workload.wanted_by == world.now + HOUR
    Workload.objects.filter(pk=workload.pk).update(
        expected_start=world.now + 2 * HOUR, predicted_seconds=3600
    )
    page = signed_in(world.vision.member).get(reverse("job", args=[workload.public_id])).content.decode()
    assert "Wanted by" in page and "Its deadline is" in page


def test_invalid_preferences_are_refused_by_field(world: World) -> None:
    for wrong, field in (
        ({"wanted_by": world.now - HOUR}, "wanted_by"),
        ({"wanted_by": "soon"}, "wanted_by"),
        ({"labels_preferred": {"a b": "c"}}, "labels_preferred"),
        ({"spread": "yes"}, "spread"),
    ):
        with pytest.raises(Invalid) as refused:
            job(world, **wrong)  # type: ignore[arg-type]
        assert list(refused.value.fields) == [field]
