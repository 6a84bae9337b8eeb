"""Test reservations that only a closed host could serve: a preview lists them, and notices report them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from portal.models import Notification
from portal.notices import delivery
from portal.services.fleet import hosts
from portal.services.people import api_tokens
from portal.wording.notices import notice_texts
from scheduler import services as scheduling
from scheduler.cycle import engine
from scheduler.models import BoundUnit, Host, MaintenanceWindow, Reservation
from scheduler.services.reservation_risk import SILENCE_THAT_COUNTS
from scheduler.sweeps import maintenance, reservation_windows
from scheduler.sweeps.unserved_reservations import sweep_unserved_reservations
from tests.portal.web.work_samples import make_waiting, signed_in
from tests.telemetry.rows import reservation as bound_reservation
from tests.world import A100, H100, World, build_world, units_of

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def world(db: None) -> World:
    """Return the shared organisation as of now, because pages and the API read the clock."""
    return build_world(datetime.now(UTC).replace(microsecond=0))


def reserve(world: World, name: str = "sprint", **changes: Any) -> Reservation:
    """Return a confirmed reservation of two A100 in four hours. Only gamma has A100."""
    fields: dict[str, Any] = {
        "pool": world.shared,
        "project": world.vision.project,
        "owner": world.vision.member,
        "name": name,
        "units": 2,
        "models_wanted": [A100],
        "start": world.now + 4 * HOUR,
        "end": world.now + 6 * HOUR,
        "created_at": world.now,
    }
    return Reservation.objects.create(**(fields | changes))


def close(world: World, verb: str, host: str = "gamma") -> None:
    """Cordon or drain a host, or announce its maintenance in five to seven hours."""
    if verb == "maintenance":
        hosts.set_maintenance(
            actor=world.operator,
            host=world.hosts[host],
            start=world.now + 5 * HOUR,
            end=world.now + 7 * HOUR,
            why="fans",
            now=world.now,
        )
    else:
        change = hosts.drain_host if verb == "drain" else hosts.cordon_host
        change(actor=world.operator, host=world.hosts[host], why="fans", now=world.now)


def notices(kind: str) -> dict[str, str]:
    """Return the sentences of the notices of a kind, by user."""
    rows = Notification.objects.filter(kind=kind).select_related("user")
    return {row.user.username: notice_texts.notice_sentence(row.kind, row.numbers) for row in rows}


def api(world: World) -> APIClient:
    _, text = api_tokens.create_token(actor=world.operator, name="test", now=datetime.now(UTC))
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client


def preview(world: World, verb: str, host: str = "gamma") -> dict[str, Any]:
    body: dict[str, Any] = {"verb": verb}
    if verb == "maintenance":
        body |= {
            "start": (world.now + 5 * HOUR).isoformat(),
            "end": (world.now + 7 * HOUR).isoformat(),
        }
    answer = api(world).post(f"/api/v1/hosts/{host}/preview/", body, format="json")
    assert answer.status_code == 200, answer.content
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    "verb", ["cordon", *(pytest.param(verb, marks=pytest.mark.long) for verb in ("maintenance", "drain"))]
)
def test_the_preview_lists_reservations_that_could_not_be_served(world: World, verb: str) -> None:
    reserve(world)
    (row,) = preview(world, verb)["unkept"]
    assert (row["name"], row["team"], row["owner"]) == (
        "sprint",
        world.vision.team.slug,
        world.vision.member.username,
    )
    assert datetime.fromisoformat(row["start"]) == world.now + 4 * HOUR
    assert datetime.fromisoformat(row["end"]) == world.now + 6 * HOUR
    assert preview(world, verb)["moved"] == []
    assert preview(world, verb, "alpha")["unkept"] == []


@pytest.mark.parametrize("verb", ["maintenance", "drain", pytest.param("cordon", marks=pytest.mark.long)])
def test_the_preview_lists_moving_and_unserved_reservations_separately(world: World, verb: str) -> None:
    since, until = world.now - HOUR, world.now + 8 * HOUR
    moving = bound_reservation(world, world.vision, units_of(world.hosts["alpha"])[:2], since, until)
    stuck = bound_reservation(world, world.vision, units_of(world.hosts["gamma"])[:2], since, until)
    Reservation.objects.filter(pk=moving.pk).update(name="moving", models_wanted=[H100])
    Reservation.objects.filter(pk=stuck.pk).update(name="stuck", models_wanted=[A100])
    alpha, gamma = preview(world, verb, "alpha"), preview(world, verb)
    assert ([row["name"] for row in alpha["moved"]], alpha["unkept"]) == (["moving"], [])
    assert (gamma["moved"], [row["name"] for row in gamma["unkept"]]) == ([], ["stuck"])


@pytest.mark.parametrize("verb", ["maintenance", "drain", "cordon"])
def test_owner_and_operators_are_notified_of_a_reservation_that_cannot_be_served(
    world: World, verb: str
) -> None:
    row = reserve(world)
    close(world, verb)
    for _ in range(2):
        delivery.write_notices(world.now + SECOND)
    found = notices("reservation_at_risk")
    assert set(found) == {world.vision.member.username, world.operator.username}
    assert "sprint" in found[world.operator.username] and "can't be served" in found[world.operator.username]
    assert Notification.objects.filter(kind="reservation_at_risk").count() == 2
    row.refresh_from_db()
    assert (row.state, row.at_risk_since) == ("confirmed", world.now)


def test_the_page_the_api_and_the_why_answer_show_a_reservation_at_risk(world: World) -> None:
    row = reserve(world)
    job = make_waiting(world, world.vision, "inside")
    job.reservation = row
    job.save(update_fields=["reservation"])
    close(world, "drain")
    words = "Its GPUs are missing from "
    member = signed_in(world.vision.member)
    assert words in member.get(reverse("reservation", args=[row.public_id])).content.decode().replace(
        "&#x27;", "'"
    )
    why = member.get(reverse("why", args=[job.public_id])).content.decode()
    assert "About the reservation sprint: " + words in why
    assert words in signed_in(world.operator).get(reverse("home")).content.decode()
    shown = api(world).get(f"/api/v1/reservations/{row.public_id}/").json()
    assert shown["at_risk"].startswith(words) and shown["at_risk_since"]
    answer = api(world).get(f"/api/v1/workloads/{job.public_id}/why/").json()
    assert words in answer["reservation_problem"]


def test_a_reservation_is_no_longer_at_risk_when_the_host_returns(world: World) -> None:
    row = reserve(world)
    close(world, "drain")
    hosts.return_host(actor=world.operator, host=world.hosts["gamma"], now=world.now + SECOND)
    row.refresh_from_db()
    assert (row.at_risk_since, row.at_risk_numbers) == (None, {})
    close(world, "maintenance")
    window = MaintenanceWindow.objects.get()
    hosts.cancel_maintenance(
        actor=world.operator, host=world.hosts["gamma"], window=window.pk, now=world.now + SECOND
    )
    row.refresh_from_db()
    assert row.at_risk_since is None


def test_a_cancelled_reservation_is_not_at_risk(world: World) -> None:
    row = reserve(world)
    close(world, "drain")
    scheduling.cancel_reservation(row, now=world.now)
    row.refresh_from_db()
    assert (row.state, row.at_risk_since, row.at_risk_numbers) == ("cancelled", None, {})


def test_a_sweep_finds_reservations_of_failed_hosts_and_ignores_a_short_silence(world: World) -> None:
    row = reserve(world)
    Host.objects.filter(name="gamma").update(lease_state="silent")
    assert sweep_unserved_reservations(world.now) == 0
    assert sweep_unserved_reservations(world.now + SILENCE_THAT_COUNTS) == 1
    row.refresh_from_db()
    assert row.at_risk_since == world.now + SILENCE_THAT_COUNTS
    Host.objects.filter(name="gamma").update(lease_state="alive", repair_state="quarantined")
    assert sweep_unserved_reservations(world.now + 2 * SILENCE_THAT_COUNTS) == 1
    row.refresh_from_db()
    assert row.at_risk_since == world.now + SILENCE_THAT_COUNTS, "the reservation was at risk without a break"


def test_a_bound_reservation_is_moved_before_its_host_goes_into_maintenance(world: World) -> None:
    units = units_of(world.hosts["alpha"])[:2]
    row = bound_reservation(world, world.vision, units, world.now - HOUR, world.now + 8 * HOUR)
    Reservation.objects.filter(pk=row.pk).update(models_wanted=[H100], first_used_at=world.now)
    close(world, "maintenance", "alpha")
    delivery.write_notices(world.now + SECOND)
    assert set(notices("maintenance_announced")) == {world.vision.member.username}
    assert not notices("reservation_at_risk")
    begin = world.now + 5 * HOUR
    lead = timedelta(seconds=world.shared.notice_seconds + world.shared.grace_seconds)
    Host.objects.update(last_sync_at=begin)

    def hosts_of_reservation(at: datetime) -> set[str]:
        bound = BoundUnit.objects.filter(reservation=row, period__contains=at)
        return set(bound.values_list("unit__gpu__host__name", flat=True))

    for at in (begin - lead - SECOND, begin - lead):
        maintenance.sweep_maintenance(at)
        reservation_windows.sweep_reservations(at)
        engine.run_cycle("test", at)
    assert hosts_of_reservation(begin - lead - SECOND) == {"alpha"}
    assert hosts_of_reservation(begin) == {"beta"}


def test_the_owner_of_a_bound_reservation_that_no_other_units_can_serve_gets_no_notice_of_a_move(
    world: World,
) -> None:
    units = units_of(world.hosts["gamma"])[:2]
    row = bound_reservation(world, world.vision, units, world.now - HOUR, world.now + 8 * HOUR)
    Reservation.objects.filter(pk=row.pk).update(models_wanted=[A100], first_used_at=world.now)
    close(world, "maintenance")
    delivery.write_notices(world.now + SECOND)
    assert not notices("maintenance_announced")
    assert set(notices("reservation_at_risk")) == {world.vision.member.username, world.operator.username}


def test_the_page_of_a_drain_lists_the_reservations(world: World) -> None:
    reserve(world)
    page = signed_in(world.operator).get(reverse("host-drain", args=["gamma"])).content.decode()
    assert "sprint" in page and world.vision.member.username in page
    assert "can&#x27;t be served" in page or "can't be served" in page


def test_the_page_of_maintenance_asks_before_it_affects_reservations(world: World) -> None:
    reserve(world)
    client, url = signed_in(world.operator), reverse("host-maintenance", args=["gamma"])
    form = {
        "start": f"{world.now + 5 * HOUR:%Y-%m-%dT%H:%M}",
        "end": f"{world.now + 7 * HOUR:%Y-%m-%dT%H:%M}",
        "why": "fans",
    }
    first = client.post(url, form)
    assert first.status_code == 200 and "sprint" in first.content.decode()
    assert not MaintenanceWindow.objects.exists()
    confirmation = first.context["confirmation"]
    other = {**form, "end": f"{world.now + 8 * HOUR:%Y-%m-%dT%H:%M}", "confirmed": confirmation}
    assert client.post(url, other).status_code == 200, "another window was confirmed"
    assert client.post(url, {**form, "confirmed": confirmation, "preview": "1"}).status_code == 200
    assert not MaintenanceWindow.objects.exists()
    assert client.post(url, {**form, "confirmed": confirmation}).status_code == 302
    assert MaintenanceWindow.objects.exists()


def test_the_answer_to_an_announcement_lists_the_reservations(world: World) -> None:
    reserve(world)
    body = {
        "start": (world.now + 5 * HOUR).isoformat(),
        "end": (world.now + 7 * HOUR).isoformat(),
        "why": "fans",
    }
    answer = api(world).post("/api/v1/hosts/gamma/maintenance/", body, format="json")
    assert answer.status_code == 201
    assert [row["name"] for row in answer.json()["unkept"]] == ["sprint"]


def test_a_pool_without_open_reservations_has_none_at_risk(world: World) -> None:
    reserve(world, state="over")
    close(world, "drain")
    assert scheduling.record_unserved_reservations(world.shared, now=world.now) == 0
    assert not Reservation.objects.exclude(at_risk_since=None).exists()
