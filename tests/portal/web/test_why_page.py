"""Test the why page of waiting, running, stopping and ended work."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.urls import reverse
from django.utils import timezone

from portal.web.work.workload_text import linked_hosts
from scheduler.models import Allocation, Run, Workload
from scheduler.services import hosts
from telemetry.health.rules import apply_rules_to_events
from telemetry.models import HealthEvent
from tests.portal.web.work_samples import make_waiting, queue_job, run_job, signed_in
from tests.world import A100, H100, MIG, World

pytestmark = pytest.mark.django_db

OF_WAITING_ALONE = ("Blocked by", "would start sooner", "Expected start", "Position")


def page_of(world: World, workload: Workload) -> str:
    return signed_in(world.vision.member).get(reverse("why", args=[workload.public_id])).content.decode()


def test_running_work_shows_why_it_runs_there_and_nothing_about_waiting(world: World) -> None:
    work = run_job(world, world.vision, "runs", host="alpha", gpus=[0, 1])
    Workload.objects.filter(pk=work.pk).update(reason_code="free_within_guarantee")
    page = page_of(world, work)
    assert "Why runs runs where it does" in page
    assert "It starts on free GPUs within its team&#x27;s guarantee." in page
    assert "alpha" in page and "Waited at first" in page
    assert "Where it runs" in page and "and why it moved" not in page
    assert not [words for words in OF_WAITING_ALONE if words in page]


def test_work_that_has_to_stop_shows_the_reason(world: World) -> None:
    work = run_job(world, world.vision, "goes", host="alpha", gpus=[0], preemptible=True)
    assert hosts.drain_host(world.hosts["alpha"], reason="looking at fans", now=timezone.now())
    page = page_of(world, work)
    assert "Why goes is being stopped" in page
    assert "Its host alpha is taken out of service: looking at fans." in page
    assert "Moved from its host" in page


def test_work_that_waits_for_closed_hosts_names_each_with_its_state_and_a_link(world: World) -> None:
    now = timezone.now()
    hosts.cordon_host(world.hosts["alpha"], reason="fan", now=now)
    hosts.drain_host(world.hosts["beta"], reason="fan", now=now)
    world.hosts["gamma"].gpus.update(repair_state="out")  # of another model
    work = make_waiting(world, world.vision, "waits")
    Workload.objects.filter(pk=work.pk).update(
        reason_code="host_closed", reason_numbers={"hosts": 3, "codes": ["host_closed"]}, models_wanted=[H100]
    )
    client = signed_in(world.vision.member)
    said = "The hosts that could run it take no new work: {} is cordoned and {} is draining."
    linked = said.format(
        *(f'<a href="{reverse("host", args=[name])}">{name}</a>' for name in ("alpha", "beta"))
    )
    assert linked in page_of(world, work)
    assert linked in client.get(reverse("queue")).content.decode()
    answer = client.get(f"/api/v1/workloads/{work.public_id}/").json()
    assert answer["reason"] == said.format("alpha", "beta")


def test_links_of_hosts_escape_the_sentence_and_match_whole_names() -> None:
    linked = linked_hosts("h1 & h10, h1-a and h1.", ["h1"])
    assert linked == '<a href="/hosts/h1/">h1</a> &amp; h10, h1-a and <a href="/hosts/h1/">h1</a>.'


def test_requeued_work_shows_why_it_waits_and_why_it_moved(world: World) -> None:
    work = run_job(world, world.vision, "moved", host="alpha", gpus=[0], preemptible=True)
    now = timezone.now()
    HealthEvent.objects.create(
        host=world.hosts["alpha"],
        gpu=world.hosts["alpha"].gpus.get(index=0),
        event_id="1",
        source="xid",
        code="xid:79",
        at=now,
        received_at=now,
    )
    apply_rules_to_events(now)
    Run.objects.filter(workload=work).update(state="ended", outcome="checkpointed", ended_at=now)
    Allocation.objects.filter(workload=work).update(period=DateTimeTZRange(work.started_at, now))
    Workload.objects.filter(pk=work.pk).update(state="queued", stop_requested="")
    page = page_of(world, work)
    assert "Why moved waits" in page and "Blocked by" in page
    assert "GPU 0 of alpha failed (XID 79" in page
    assert "<h2>Where it ran</h2><p>and why it moved</p>" in page


@pytest.mark.parametrize(
    ("request_fields", "needs"),
    [
        pytest.param({}, "It needs 4 H100 80GB; 2 are free now.", marks=pytest.mark.long),
        pytest.param(
            {"models_wanted": []},
            "It needs 4 GPUs of any model; 2 that it may use are free now.",
            marks=pytest.mark.long,
        ),
        (
            {"models_wanted": [H100, A100]},
            "It needs 4 H100 80GB or A100 40GB; 2 that it may use are free now.",
        ),
        ({"profile": MIG, "models_wanted": [A100]}, f"It needs 4 × {MIG} of A100 40GB; 2 are free now."),
        ({"hosts": 2, "units": 2}, "It needs 2 H100 80GB on each of 2 hosts; 2 are free now."),
    ],
)
def test_the_request_is_shown_with_all_accepted_models(
    world: World, request_fields: dict[str, Any], needs: str
) -> None:
    work = queue_job(world, world.vision, "big", units=4)
    units = {"hosts": request_fields.get("hosts", 1), "units": request_fields.get("units", 4)}
    numbers = {"free": 2, "model": H100, "need": 4, **units}
    Workload.objects.filter(pk=work.pk).update(
        **{
            "models_wanted": [H100],
            "reason_code": "waits_for_units",
            "reason_numbers": numbers,
            **request_fields,
        }
    )
    assert needs in page_of(world, work)
    assert needs.encode() in b"".join(signed_in(world.vision.member).get(reverse("queue") + "?format=csv"))


def test_the_heading_of_an_open_page_follows_the_state_of_the_work(world: World) -> None:
    work = queue_job(world, world.vision, "turns")
    assert 'Why turns <span id="question">waits</span>' in page_of(world, work)
    Workload.objects.filter(pk=work.pk).update(state="ended", outcome="cancelled", ended_at=timezone.now())
    address = reverse("why", args=[work.public_id])
    refresh = signed_in(world.vision.member).get(address, {"part": "live"}).content.decode()
    assert '<span id="question" hx-swap-oob="true">never ran</span>' in refresh
    assert "<title>Why turns never ran · gpupool</title>" in refresh


def test_ended_work_shows_how_it_ended_or_that_it_never_ran(world: World) -> None:
    ended = queue_job(world, world.vision, "over", state="ended", outcome="finished", attempt=1)
    never = make_waiting(world, world.vision, "given up")
    Workload.objects.filter(pk=never.pk).update(state="ended", outcome="cancelled", ended_at=timezone.now())
    assert "Why over ended" in (page := page_of(world, ended)) and "It finished." in page
    assert "Why given up never ran" in (other := page_of(world, never)) and "It was cancelled." in other
    assert not [words for words in OF_WAITING_ALONE if words in page + other]
