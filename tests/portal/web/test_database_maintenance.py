"""Test how operators announce maintenance of the database on the page and in the API."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from portal import tasks
from portal.models import AuditEvent, Notification, User
from portal.redis_state.announced_maintenance import MAINTENANCE_KEY
from portal.services.fleet.database_maintenance import begin_database_maintenance, end_database_maintenance
from portal.wording.notices.notice_texts import notice_sentence
from scheduler.models import DatabaseMaintenance, EdgeContact
from scheduler.state import nudge
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


def test_everybody_learns_of_a_maintenance_on_pages_in_the_api_and_by_a_notice(
    world: World, django_capture_on_commit_callbacks: Any
) -> None:
    page = reverse("home")
    member, api = signed_in(world.vision.member), APIClient()
    api.force_authenticate(world.vision.member)
    banner = "Maintenance of the database until"
    assert banner not in member.get(page).content.decode()
    verb: dict[str, Any] = {"actor": world.operator, "now": timezone.now()}
    try:
        with django_capture_on_commit_callbacks(execute=True):
            row = begin_database_maintenance(**verb, minutes=30, why="a new vérsion")
        shown = member.get(page).content.decode()
        assert banner in shown and "a new vérsion. Nothing new" in shown
        header = json.loads(api.get("/api/v1/me/")["Gpupool-Database-Maintenance"])
        assert header == {"ends_at": row.ends_at.isoformat(), "reason": "a new vérsion"}
        nudge.redis_connection().delete(MAINTENANCE_KEY)
        tasks.notices()  # publishes it again, and writes the notices
        assert banner in member.get(page).content.decode()
        told = Notification.objects.filter(kind="database_maintenance")
        assert {each.user_id for each in told} == set(
            User.objects.filter(is_active=True).values_list("pk", flat=True)
        )
        assert "a new vérsion" in notice_sentence(told[0].kind, told[0].numbers)
        with django_capture_on_commit_callbacks(execute=True):
            end_database_maintenance(**verb)
        assert banner not in member.get(page).content.decode()
        assert "Gpupool-Database-Maintenance" not in api.get("/api/v1/me/")
    finally:
        nudge.redis_connection().delete(MAINTENANCE_KEY)
