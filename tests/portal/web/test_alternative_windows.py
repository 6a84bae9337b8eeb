"""Test alternative windows of a waiting workload on the page, in the API and in the CLI."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from rest_framework.test import APIClient

from portal.models import Submission, User
from portal.services.calendar import reservations
from portal.services.people import api_tokens
from scheduler import services
from scheduler.cycle import engine
from scheduler.models import Pool, Reservation, Workload
from tests.portal.web.work_samples import signed_in
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, World

pytestmark = pytest.mark.django_db
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def waiting(world: World, **also: Any) -> Workload:
    """Submit a job of four GPUs that waits behind other work of its own team.

    The other work runs for up to eight hours and cannot be evicted.
    """
    job(world, world.vision, 8, world.now, name="runs", preemptible=False)
    engine.run_cycle("test", world.now)
    fields = {"preemptible": False, "max_runtime_seconds": 2 * 3600, **also}
    workload = job(world, world.vision, 4, world.now + MINUTE, name="mine", **fields)
    engine.run_cycle("test", world.now + MINUTE)
    workload.refresh_from_db()
    assert workload.state == "queued", workload.reason_code
    return workload


def api(world: World, now: datetime, user: User | None = None) -> APIClient:
    _, text = api_tokens.create_token(actor=user or world.vision.member, name="test", now=now)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def test_every_window_that_the_api_offers_can_be_reserved(world: World) -> None:
    mine, now = waiting(world), world.now + 2 * MINUTE
    with time_machine.travel(now, tick=False):
        client = api(world, now)
        offered = client.get(f"/api/v1/workloads/{mine.public_id}/windows/").json()
        assert offered and "confirmed at once" in offered[0]["words"]
        for each in offered:
            start, end = parse_datetime(each["start"]), parse_datetime(each["end"])
            assert (
                start is not None
                and end is not None
                and end - start == 2 * HOUR
                and start >= now + 5 * MINUTE
            )
            response = client.post("/api/v1/reservations/", each["request"], format="json")
            assert response.status_code == 201, response.content
            row = Reservation.objects.get(public_id=response.json()["reservation"]["id"])
            assert (row.start, row.end, row.units, row.models_wanted) == (
                start,
                end,
                mine.units,
                mine.models_wanted,
            )
            row.delete()


def test_the_page_links_each_window_to_a_filled_in_form(world: World) -> None:
    mine, now = waiting(world), world.now + 2 * MINUTE
    client = signed_in(world.vision.member)
    with time_machine.travel(now, tick=False):
        page = client.get(reverse("why", args=[mine.public_id]))
        offered = page.context["detail"]["windows"]
        assert offered and "Reserve another time" in page.content.decode()
        assert "charged whether used or not" in page.context["detail"]["window_needs"]
        form = client.get(offered[0]["url"]).context["form"]
        preview = client.get(offered[0]["url"]).context["preview"]
    assert form.selected_kind == "reservation" and preview["fits"]
    assert (form.initial["count"], int(form.initial["length"])) == (str(mine.units), 2)


def test_a_window_above_the_approval_threshold_says_that_it_needs_approval(world: World) -> None:
    mine, now = waiting(world), world.now + 2 * MINUTE
    Pool.objects.update(approval_above_gpus=1)
    with time_machine.travel(now, tick=False):
        page = signed_in(world.vision.member).get(reverse("why", args=[mine.public_id]))
        offered = api(world, now).get(f"/api/v1/workloads/{mine.public_id}/windows/").json()
    assert "An operator has to agree" in page.context["detail"]["window_needs"]
    assert offered[0]["needs_approval"] and "approval" in offered[0]["words"]


def test_no_windows_are_offered_if_none_can_be_reserved(world: World) -> None:
    mine, now = waiting(world, max_runtime_seconds=6 * 3600), world.now + 2 * MINUTE
    Pool.objects.update(longest_reservation_seconds=5 * 3600)
    with time_machine.travel(now, tick=False):
        assert api(world, now).get(f"/api/v1/workloads/{mine.public_id}/windows/").json() == []
    Pool.objects.update(longest_reservation_seconds=14 * 86_400)
    with time_machine.travel(now, tick=False):
        assert api(world, now).get(f"/api/v1/workloads/{mine.public_id}/windows/").json() != []
        operator = signed_in(world.operator).get(reverse("why", args=[mine.public_id]))
    assert operator.context["detail"]["windows"] == [], "not for a user who may not reserve for the project"


@pytest.mark.long
def test_offered_windows_respect_the_cap_per_user(world: World) -> None:
    """The cap counts the reservations of the viewer.

    A team mate who has no reservation is offered earlier windows.
    """
    mine, now = waiting(world), world.now + 2 * MINUTE
    Pool.objects.update(most_gpus_per_user=4)
    world.shared.refresh_from_db()
    ends = world.now + 30 * HOUR
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "long",
        "units": 1,
        "models": [H100],
        "start": now,
        "end": ends,
        "now": now,
    }
    reservations.request_reservation(**fields)
    with time_machine.travel(now, tick=False):
        client = api(world, now)
        offered = client.get(f"/api/v1/workloads/{mine.public_id}/windows/").json()
        assert [parse_datetime(each["start"]) for each in offered] == [ends]
        mates = (
            api(world, now, world.vision.members[1])
            .get(f"/api/v1/workloads/{mine.public_id}/windows/")
            .json()
        )
        assert mates[0]["start"] < offered[0]["start"]
        assert client.post("/api/v1/reservations/", offered[0]["request"], format="json").status_code == 201


@pytest.mark.long
def test_offered_windows_respect_a_budget_that_stops_borrowing(world: World) -> None:
    """Offer no window until the team may borrow again.

    The team has reserved five of its eight guaranteed GPUs. A reservation of four GPUs would borrow one GPU.
    """
    mine, now, opens = waiting(world), world.now + 2 * MINUTE, world.now + 20 * HOUR
    Pool.objects.update(approval_above_gpus=8)
    world.shared.refresh_from_db()
    fields: dict[str, Any] = {
        "actor": world.vision.lead,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "long",
        "units": 5,
        "models": [H100],
        "start": world.now + 9 * HOUR,
        "end": world.now + 40 * HOUR,
        "now": now,
    }
    reservations.request_reservation(**fields)
    services.close_budget_gate(
        action="stop_borrowing", team=world.vision.team, numbers={"spent": "5"}, until=opens, now=now
    )
    with time_machine.travel(now, tick=False):
        client = api(world, now)
        offered = client.get(f"/api/v1/workloads/{mine.public_id}/windows/").json()
        assert [parse_datetime(each["start"]) for each in offered][:1] == [opens]
        for each in offered:
            assert client.post("/api/v1/reservations/", each["request"], format="json").status_code == 201
            Reservation.objects.latest("pk").delete()


def test_a_reservation_shows_its_required_and_preferred_labels(world: World) -> None:
    start = world.now + HOUR
    fields: dict[str, Any] = {
        "actor": world.vision.member,
        "project": world.vision.project,
        "pool": world.shared,
        "name": "placed",
        "units": 1,
        "hosts": 2,
        "models": [H100],
        "start": start,
        "end": start + HOUR,
        "now": world.now,
        "labels_required": {},
        "labels_preferred": {"rack": "r9"},
        "spread": True,
        "nvlink": True,
    }
    reservation = reservations.request_reservation(**fields)
    assert isinstance(reservation, Reservation)
    assert (reservation.labels_preferred, reservation.spread, reservation.nvlink) == (
        {"rack": "r9"},
        True,
        True,
    )
    page = (
        signed_in(world.vision.member)
        .get(reverse("reservation", args=[reservation.public_id]))
        .content.decode()
    )
    assert "rack=r9, spread over hosts" in page
    Pool.objects.update(approval_above_gpus=0)
    fields["pool"].refresh_from_db()
    second = reservations.request_reservation(
        **{**fields, "start": start + 2 * HOUR, "end": start + 3 * HOUR}
    )
    assert (
        isinstance(second, Submission)
        and second.payload["spread"]
        and second.payload["labels_preferred"] == {"rack": "r9"}
    )


def test_the_form_and_the_api_accept_labels_for_a_reservation(world: World) -> None:
    data = {
        "kind": "reservation",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "1",
        "start": f"{world.now + HOUR:%Y-%m-%dT%H:%M}",
        "length": "2",
        "length_unit": "hours",
        "name": "labelled",
        "labels": "site=nowhere",
        "prefer": "rack=r1",
        "spread": "on",
        "hosts": "1",
    }
    client = signed_in(world.vision.member)
    with time_machine.travel(world.now, tick=False):
        refused = client.post(reverse("ask"), data)
        assert refused.status_code == 400 and not Reservation.objects.filter(name="labelled").exists()
        assert client.post(reverse("ask"), data | {"labels": ""}).status_code == 302
        preview = client.post(reverse("ask-preview"), data | {"labels": ""}).context["preview"]
        bad = client.post(reverse("ask"), data | {"labels": "nonsense"}).context["form"]
    row = Reservation.objects.get(name="labelled")
    assert (row.labels_required, row.labels_preferred, row.spread) == ({}, {"rack": "r1"}, True)
    assert "--prefer rack=r1 --spread" in preview["same"].cli
    assert bad.errors["labels"]


def test_a_refusal_gives_times_in_the_time_zone_of_the_user(world: World) -> None:
    member = world.vision.member
    member.time_zone = "Asia/Tokyo"
    member.save(update_fields=["time_zone"])
    data = {
        "kind": "reservation",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "1",
        "start": "2026-03-01T09:00",
        "length": "2",
        "length_unit": "hours",
        "name": "late",
        "hosts": "1",
    }
    with time_machine.travel(world.now, tick=False):
        page = signed_in(member).post(reverse("ask"), data)
    assert page.status_code == 400 and "2026-03-01 09:00 JST" in page.content.decode()
