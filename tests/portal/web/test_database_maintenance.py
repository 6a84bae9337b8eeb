"""Test how operators announce maintenance of the database on the page and in the API."""

from __future__ import annotations

import datetime as dt

import pytest
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from portal.models import AuditEvent
from scheduler.models import DatabaseMaintenance, EdgeContact
from tests.portal.web.work_samples import signed_in
from tests.world import World

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def add_edge(name: str, renews_until: dt.datetime, seen_at: dt.datetime | None = None) -> None:
    EdgeContact.objects.create(
        process=name, address=name, seen_at=seen_at or timezone.now(), renews_until=renews_until
    )


def test_an_operator_begins_a_maintenance_sees_when_all_edges_know_it_and_ends_it(world: World) -> None:
    client, page = signed_in(world.operator), reverse("database-maintenance")
    add_edge("first", timezone.now() + HOUR)
    add_edge("second", timezone.now())
    add_edge("ended long ago", timezone.now(), timezone.now() - HOUR)
    begun = client.post(page, {"minutes": 30, "why": "a new version"}, follow=True).content.decode()
    assert "1 of 2 know the announced end" in begun and "Do not stop the database yet" in begun
    EdgeContact.objects.update(renews_until=timezone.now() + HOUR)
    shown = client.get(page).content.decode()
    assert "2 of 2 know the announced end" in shown and "The database may be stopped" in shown
    fleet = signed_in(world.vision.member).get(reverse("fleet")).content.decode()
    assert "Maintenance of the database: nothing new starts until" in fleet and "a new version" in fleet
    again = client.post(page, {"minutes": 30, "why": "again"})
    assert again.status_code == 400 and "A maintenance of the database lasts until" in again.content.decode()
    ended = client.post(page, {"end": "1"}, follow=True).content.decode()
    assert "No maintenance is announced" in ended
    row = DatabaseMaintenance.objects.get()
    assert row.ended_at is not None and row.ends_at - row.starts_at == dt.timedelta(minutes=30)
    assert list(AuditEvent.objects.order_by("pk").values_list("verb", "why")) == [
        ("begin_database_maintenance", "a new version"),
        ("end_database_maintenance", ""),
    ]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (
            {"minutes": 0, "why": "x"},
            "minutes",
            "minutes is 0; allowed: a whole number from 1 to 240 minutes.",
        ),
        (
            {"minutes": 241, "why": "x"},
            "minutes",
            "minutes is 241; allowed: a whole number from 1 to 240 minutes.",
        ),
    ],
)
def test_a_duration_that_is_not_allowed_is_refused_with_the_allowed_ones(
    world: World, body: dict[str, object], field: str, message: str
) -> None:
    client = APIClient()
    client.force_authenticate(world.operator)
    answer = client.post("/api/v1/database-maintenance/", body, format="json")
    assert answer.status_code == 400 and answer.json()["errors"][0]["field"] == field
    assert answer.json()["errors"][0]["message"] == message
    assert not DatabaseMaintenance.objects.exists()
