"""Test the pages of notice channels."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from portal.models import NoticeChannel, NoticeMessage
from portal.services.calendar import reservations
from scheduler.models import Reservation
from tests.world import H100, World

pytestmark = pytest.mark.django_db
PATH = "/notifications/channels/"


def client_of(user: object) -> Client:
    client = Client()
    client.force_login(user)  # type: ignore[arg-type]
    return client


def test_a_person_creates_a_channel_tests_it_changes_it_and_removes_it(world: World) -> None:
    client = client_of(world.vision.member)
    form = {"name": "Mail", "kind": "mail", "topics": ["work", "money"], "digest": "daily", "address": ""}
    made = client.post(PATH, form)
    channel = NoticeChannel.objects.get()
    own = f"{PATH}{channel.public_id}/"
    assert made.status_code == 302 and made["Location"] == own
    assert (channel.user, channel.digest, channel.topics) == (world.vision.member, "daily", ["work", "money"])
    assert client.post(own, {"verb": "test"}).status_code == 302
    page = client.get(own).content.decode()
    assert "This is a test of the notice channel Mail" in page and "waits" in page
    assert world.vision.member.email in client.get(PATH).content.decode()
    waiting = client.post(own, {"verb": "again", "message": str(NoticeMessage.objects.get().public_id)})
    assert "still waits" in client.get(waiting["Location"]).content.decode()
    changed = {"verb": "change", "name": "Night", "topics": ["work"], "digest": "none", "quiet_from": "22:00"}
    refused = client.post(own, changed)
    assert refused.status_code == 400 and "quiet_until is missing" in refused.content.decode()
    client.post(own, {**changed, "quiet_until": "07:00"})
    channel.refresh_from_db()
    assert (channel.name, channel.active, f"{channel.quiet_until:%H:%M}") == ("Night", False, "07:00")
    assert client.post(own, {"verb": "remove"})["Location"] == PATH
    assert not NoticeChannel.objects.exists() and not NoticeMessage.objects.exists()


def test_the_secret_of_a_webhook_is_on_the_page_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portal.services.people.notice_channels.addresses.allowed_addresses", lambda host, port: ["192.0.2.7"]
    )
    client = client_of(world.vision.lead)
    form = {
        "name": "hook",
        "kind": "webhook",
        "team": "vision",
        "topics": ["work"],
        "digest": "none",
        "address": "https://hooks.example.org/in?key=k3y-0f-h00k",
    }
    made = client.post(PATH, form)
    secret = NoticeChannel.objects.get().target["secret"]
    assert secret in made.content.decode() and made["Cache-Control"] == "no-store"
    for path in (PATH, f"{PATH}{NoticeChannel.objects.get().public_id}/"):
        page = client.get(path).content.decode()
        assert secret not in page and "k3y-0f-h00k" not in page and "https://hooks.example.org/…" in page


def test_only_its_person_sees_a_channel(world: World) -> None:
    client_of(world.vision.member).post(
        PATH, {"name": "Mail", "kind": "mail", "topics": ["work"], "digest": "none"}
    )
    channel = NoticeChannel.objects.get()
    for user in (world.vision.lead, world.operator, world.people["auditor"]):
        for answer in (
            client_of(user).get(f"{PATH}{channel.public_id}/"),
            client_of(user).post(f"{PATH}{channel.public_id}/", {"verb": "remove"}),
        ):
            assert answer.status_code == 404


def test_a_reservation_has_a_file_for_calendar_programs(world: World) -> None:
    reservation = reservations.request_reservation(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name="review",
        units=1,
        models=[H100],
        start=world.now + timedelta(hours=1),
        end=world.now + timedelta(hours=2),
        now=world.now,
    )
    assert isinstance(reservation, Reservation)
    answer = client_of(world.vision.member).get(f"/reservations/{reservation.public_id}/event.ics")
    text = answer.content.decode()
    assert answer["Content-Type"].startswith("text/calendar")
    assert text.count("BEGIN:VEVENT") == 1 and "STATUS:CONFIRMED" in text and "SUMMARY:review" in text
