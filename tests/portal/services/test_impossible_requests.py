"""Test that a request that could never start is refused with the reason.

A request that needs more quota is accepted with a warning.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from portal.errors import Invalid
from portal.services.work import impossible_starts, launch
from scheduler.cycle import engine
from scheduler.models import Host, JobArray, Pool, Quota, Workload
from tests.portal.web.test_work_pages import ask_data
from tests.portal.web.work_samples import queue_job, signed_in
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db


def submit(world: World, **changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "train",
        "command": "true",
        "units": 1,
        "models": [H100],
        "max_runtime_seconds": 3600,
        "now": world.now,
    }
    return launch.submit_job(**(fields | changes))


@pytest.mark.parametrize(
    ("request_fields", "field", "words"),
    [
        ({"units": 9}, "units", "it asks for 9 GPUs on one host, the largest has 8"),
        (
            {"labels_required": {"rack": "nowhere"}},
            "labels_required",
            "No host of this pool has the labels it asks for",
        ),
        ({"min_compute_capability": 999}, "min_compute_capability", "compute capability 99.9"),
        ({"hosts": 5, "units": 1, "models": []}, "hosts", "Fewer than 5 hosts"),
    ],
)
def test_an_impossible_request_is_refused_at_the_field_that_must_change(
    world: World, request_fields: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(Invalid) as refused:
        submit(world, **request_fields)
    assert words in refused.value.fields[field]
    with pytest.raises(Invalid):
        launch.submit_array(
            **{
                "actor": world.vision.member,
                "project": world.vision.project,
                "pool": world.shared,
                "name": "sweep",
                "command": "true",
                "units": 1,
                "models": [H100],
                "now": world.now,
                "array": "0-3",
                **request_fields,
            }
        )
    assert not Workload.objects.exists() and not JobArray.objects.exists()


def test_a_cap_per_user_below_the_request_is_reported_with_both_numbers(world: World) -> None:
    Pool.objects.filter(pk=world.shared.pk).update(most_gpus_per_user=2)
    world.shared.refresh_from_db()
    with pytest.raises(Invalid) as refused:
        submit(world, units=4)
    assert (
        "One person may hold at most 2 GPUs in this pool, and this needs 4 GPUs"
        in refused.value.fields["units"]
    )


def test_a_request_that_can_start_later_is_accepted_even_in_a_closed_pool(world: World) -> None:
    Host.objects.update(admin_state="cordoned")
    assert submit(world, units=8).state == "queued"


def test_a_request_that_needs_more_quota_is_accepted_with_a_warning_to_its_author(world: World) -> None:
    Quota.objects.filter(team=world.vision.team, model=H100).update(
        guaranteed_slots=2 * 840, borrow_limit_slots=840
    )
    workload = submit(world, units=4)
    warning = impossible_starts.submission_warning(workload, world.vision.member, world.now)
    assert "Its team may hold at most 3 GPUs of H100 80GB; this needs 4 GPUs. It can't start" in warning
    client = signed_in(world.vision.member)
    data = ask_data(world, kind="job", name="big", command="true", count="4", preemptible="on")
    preview = client.post(reverse("ask-preview"), data).content.decode()
    assert "Its team may hold at most 3 GPUs" in preview and "Not possible<" not in preview
    page = client.post(reverse("ask"), data, follow=True).content.decode()
    assert "big is queued" in page and "Its team may hold at most 3 GPUs" in page
    answer = client.post(
        "/api/v1/jobs/",
        {
            "project": f"{world.vision.team.slug}/{world.vision.project.slug}",
            "pool": world.shared.slug,
            "name": "api",
            "command": "true",
            "units": 4,
            "models": [H100],
        },
        content_type="application/json",
    )
    assert answer.status_code == 201 and "Its team may hold at most 3 GPUs" in answer.json()["warning"]


@pytest.mark.long
def test_the_form_shows_the_warning_before_submission(world: World) -> None:
    data = ask_data(world, kind="job", name="big", command="true", count="other", units_other="9")
    preview = signed_in(world.vision.member).post(reverse("ask-preview"), data).content.decode()
    assert "No host is big enough: it asks for 9 GPUs on one host, the largest has 8" in preview
    assert "Not possible<" in preview
    assert "Of the last" not in preview
    sent = signed_in(world.vision.member).post(reverse("ask"), data)
    assert sent.status_code == 400 and "No host is big enough" in sent.content.decode()


def test_the_why_page_shows_no_record_and_no_competitors_if_nothing_could_start_it(
    world: World,
) -> None:
    workload = queue_job(world, world.vision, "hopeless", units=9)
    engine.run_cycle("test", world.now)
    page = signed_in(world.vision.member).get(reverse("why", args=[workload.public_id])).content.decode()
    assert "never, as requested" in page and "No host is big enough" in page
    for absent in ("Why them", "Fair share", "expected start", "past starts"):
        assert absent not in page, absent


def test_a_reservation_that_no_host_could_serve_is_refused_at_its_size_and_not_its_start(
    world: World,
) -> None:
    for data, field in (
        (ask_data(world, count="other", units_other="9"), "units_other"),
        (ask_data(world, target=f"shared|{A100}|", count="8"), "count"),
    ):
        page = signed_in(world.vision.member).post(reverse("ask"), data)
        errors = page.context["form"].errors
        assert (
            page.status_code == 400
            and "No host is big enough" in str(errors[field])
            and "start" not in errors
        )
