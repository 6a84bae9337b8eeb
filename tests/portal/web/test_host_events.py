"""Test the events of a host: the state before and after, the author and the reason.

A revoked credential is shown at once.
"""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.db.backends.postgresql.psycopg_any import NumericRange
from django.urls import reverse
from django.utils import timezone

from portal.models import AuditEvent, User
from portal.reads.fleet import gpu_overview
from scheduler.models import Host, HostStateChange, Pool, Unit
from scheduler.services import hosts as engine
from telemetry.health.rules import apply_rules_to_events
from telemetry.models import HealthEvent
from tests.portal.web.work_samples import signed_in
from tests.world import World

pytestmark = pytest.mark.django_db


def text_of(page: str) -> str:
    """Return the page as one line of text, without markup."""
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(page)))
    return re.sub(r" ([:.,])", r"\1", words)


def page_of(user: User) -> str:
    return text_of(signed_in(user).get(reverse("host", args=["alpha"])).content.decode())


def events_of(user: User) -> str:
    return page_of(user).partition("Events the newest first")[2]


def test_a_change_is_shown_with_both_states_its_author_and_reason(world: World) -> None:
    client = signed_in(world.operator)
    User.objects.filter(pk=world.operator.pk).update(first_name="Olga", last_name="Petrov")
    name = "Olga Petrov"
    engine.record_host_change(world.hosts["alpha"], "its agent reports", world.now - timedelta(hours=1))
    client.post(reverse("host-cordon", args=["alpha"]), {"why": "looking at fans"})
    client.post(reverse("host-return", args=["alpha"]), {"why": "fans replaced"})
    events = events_of(world.operator)
    assert f"In service: In service → Cordoned by {name}: looking at fans" in events
    assert f"In service: Cordoned → In service by {name}: fans replaced" in events
    assert events.index("fans replaced") < events.index("looking at fans")
    for_others = events_of(world.vision.member)
    assert "by an operator: fans replaced" in for_others and name not in for_others


def test_changes_by_the_health_rules_are_marked_as_such(world: World) -> None:
    alpha, now = world.hosts["alpha"], timezone.now()
    engine.record_host_change(alpha, "its agent reports", now - timedelta(hours=1))
    HealthEvent.objects.create(
        host=alpha,
        gpu=alpha.gpus.get(index=1),
        event_id="1",
        source="xid",
        code="xid:79",
        at=now,
        received_at=now,
    )
    apply_rules_to_events(now)
    events = events_of(world.operator)
    assert "In service: In service → Cordoned by the health rules" in events
    assert re.search(r"GPU 1: Quarantined by the health rules", events)


def test_a_returned_gpu_is_shown_with_its_previous_state(world: World) -> None:
    client = signed_in(world.operator)
    for verb in ("out", "return"):
        client.post(reverse("host-repair", args=["alpha"]), {"verb": verb, "gpu": 2})
    assert "GPU 2: Out of service → Well by" in events_of(world.operator)


def test_announced_maintenance_and_a_join_token_are_events(world: World) -> None:
    client = signed_in(world.operator)
    window = {"start": "2126-05-02T08:00", "end": "2126-05-02T12:00", "why": "new fans"}
    client.post(reverse("host-maintenance", args=["alpha"]), window)
    client.post(reverse("host", args=["alpha"]), {"verb": "token"})
    events = events_of(world.operator)
    assert "Maintenance announced: Thu 2 May 08:00 to 12:00 by" in events and ": new fans" in events
    assert "A join token was created" in events


def test_a_revoked_credential_is_shown_at_once_with_author_and_reason(world: World) -> None:
    Host.objects.filter(name="alpha").update(credential_hash="x" * 64)
    client, address = signed_in(world.operator), reverse("host-revoke", args=["alpha"])
    assert "Effects" in client.get(address).content.decode()
    assert "credential revoked" not in page_of(world.operator)
    page = client.post(address, {"why": "its disk left the house"}, follow=True).content.decode()
    assert "The credential of alpha is revoked." in page
    shown = page_of(world.operator)
    name = world.operator.get_full_name() or world.operator.username
    assert re.search(rf"credential was revoked (now|\d+ s ago) by {name}: its disk left the house\.", shown)
    assert "free" not in shown.partition("GPU Held by")[2].partition("Health")[0]
    assert "Credential revoked" in shown and "credential revoked" in shown.partition("Lease")[2]
    assert f"Its agent's credential was revoked by {name}: its disk left the house" in events_of(
        world.operator
    )
    assert AuditEvent.objects.get(verb="revoke_host").why == "its disk left the house"
    Host.objects.filter(name="alpha").update(credential_hash="y" * 64)
    assert "credential was revoked now" not in page_of(world.operator).partition("Events")[0]


def test_no_page_shows_free_gpus_on_a_host_with_a_full_disk_or_weak_isolation(
    world: World,
) -> None:
    for reported in ({"disk_full": True}, {"disk_full": False, "isolation_level": "none"}):
        Host.objects.filter(name="alpha").update(**reported)
        Pool.objects.filter(hosts__name="alpha").update(
            isolation="sandbox" if "isolation_level" in reported else "none"
        )
        gpus = page_of(world.operator).partition("GPU Held by")[2].partition("Health")[0]
        assert "not held" in gpus and "free" not in gpus
        groups = gpu_overview.fleet_overview(world.operator, timezone.now())
        assert [row.free for group in groups for row in group.hosts if row.host.name == "alpha"] == [0]
        told_of = [
            each["words"]
            for each in gpu_overview.attention_list(world.operator, groups, timezone.now())
            if each["host"] == "alpha"
        ]
        assert ("its disk is full: nothing new starts there" in told_of) is reported.get("disk_full", False)


def test_a_gpu_of_a_cordoned_host_is_not_shown_as_free(world: World) -> None:
    assert "free" in page_of(world.operator).partition("GPU Held by")[2].partition("Health")[0]
    Host.objects.filter(name="alpha").update(lease_state="silent", isolation="plain", isolation_level="none")
    shown = page_of(world.operator)
    gpus = shown.partition("GPU Held by")[2].partition("Health")[0]
    assert "not held" in gpus and "free" not in gpus
    assert "none: plain processes" in shown


def test_a_host_that_has_not_joined_is_listed_on_the_fleet_page(world: World) -> None:
    now = timezone.now()
    engine.add_host(pool=Pool.objects.get(hosts__name="alpha"), name="typo-host", now=now)
    waited_for = {"host": "typo-host", "kind": "info", "words": "has not joined yet", "at": now}
    for viewer, is_shown in ((world.operator, True), (world.vision.member, False)):
        assert (
            waited_for in gpu_overview.attention_list(viewer, gpu_overview.fleet_overview(viewer, now), now)
        ) is is_shown


def test_a_fleet_counts_split_gpus_separately(world: World) -> None:
    Unit.objects.filter(gpu__host__name="alpha", gpu__index=0).update(
        slots=NumericRange(0, 120), profile="1g.10gb"
    )
    unit = Unit.objects.get(gpu__host__name="alpha", gpu__index=0)
    unit.pk, unit.slots, unit.uuid = None, NumericRange(120, 240), "another-slice"
    unit.save()
    page = text_of(signed_in(world.operator).get(reverse("fleet"), {"pool": "shared"}).content.decode())
    assert "at most 8 on one host · 1 free in slices" in page


def test_an_old_attestation_names_its_author_to_operators_only(world: World) -> None:
    """Use an attestation without an audit event that the page could read.

    The name of the author then comes from the text of the state change.
    """
    HostStateChange.objects.create(
        host=world.hosts["alpha"],
        lease_state="silent",
        admin_state="in_service",
        repair_state="well",
        at=world.now,
        reason="seen powered off by hannah: the fuse",
    )
    assert "seen powered off by hannah: the fuse" in events_of(world.operator)
    events = events_of(world.vision.member)
    assert "seen powered off by an operator: the fuse" in events and "hannah" not in events
