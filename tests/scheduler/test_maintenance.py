"""Test maintenance windows: the state of a host after a window."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from portal.services.fleet import hosts
from portal.wording.refusal_texts import refusal_sentence
from scheduler import services
from scheduler.models import Host
from scheduler.sweeps import maintenance
from tests.portal.rejections import rejected
from tests.seeds import first_cases
from tests.world import World

MINUTE = dt.timedelta(minutes=1)


def through_a_window(world: World, host: Host) -> Host:
    """Return the host after a window of one hour that begins in 30 minutes."""
    begin = world.now + 30 * MINUTE
    services.set_maintenance(host, start=begin, end=begin + 60 * MINUTE, reason="new fans", now=world.now)
    maintenance.sweep_maintenance(begin)
    assert Host.objects.get(pk=host.pk).admin_state == "maintenance"
    maintenance.sweep_maintenance(begin + 61 * MINUTE)
    return Host.objects.get(pk=host.pk)


def test_a_quarantined_host_stays_quarantined_after_a_window(world: World) -> None:
    host = world.hosts["alpha"]
    services.quarantine_host(host, reason="XID 79 again and again", now=world.now)
    after = through_a_window(world, host)
    assert (after.admin_state, after.repair_state) == ("in_service", "quarantined")
    assert after.state_reason == "XID 79 again and again"


def test_a_host_closed_before_a_window_is_closed_after_it(world: World) -> None:
    alpha, beta, gamma = (world.hosts[name] for name in ("alpha", "beta", "gamma"))
    services.cordon_host(alpha, reason="do not use", now=world.now)
    services.trip_host(beta, reason="three attempts failed", now=world.now)
    services.drain_host(gamma, reason="it moves", now=world.now)
    after = [through_a_window(world, host) for host in (alpha, beta, gamma)]
    assert [host.admin_state for host in after] == ["cordoned", "cordoned", "draining"]
    assert [host.state_reason for host in after] == ["do not use", "three attempts failed", "it moves"]
    assert after[1].tripped_at is not None


def test_a_state_set_during_a_window_remains_after_it(world: World) -> None:
    host = world.hosts["alpha"]
    services.set_maintenance(
        host, start=world.now, end=world.now + 60 * MINUTE, reason="new fans", now=world.now
    )
    maintenance.sweep_maintenance(world.now)
    services.quarantine_host(host, reason="XID 79", now=world.now + MINUTE)
    services.cordon_host(host, reason="wait for me", now=world.now + 2 * MINUTE)
    maintenance.sweep_maintenance(world.now + 3 * MINUTE)
    maintenance.sweep_maintenance(world.now + 61 * MINUTE)
    host.refresh_from_db()
    assert (host.admin_state, host.repair_state, host.state_reason) == (
        "cordoned",
        "quarantined",
        "wait for me",
    )


def test_cancelling_a_window_after_its_start_ends_it(world: World) -> None:
    host = world.hosts["alpha"]
    window = services.set_maintenance(
        host, start=world.now, end=world.now + 60 * MINUTE, reason="new fans", now=world.now
    )
    maintenance.sweep_maintenance(world.now)
    assert services.cancel_maintenance(window, now=world.now + MINUTE)
    host.refresh_from_db()
    assert (host.admin_state, host.state_reason) == ("in_service", "its maintenance window was cancelled"), (
        "a cancellation takes effect at once"
    )
    assert not services.cancel_maintenance(window, now=world.now + MINUTE)


def test_a_host_closed_before_a_window_is_closed_after_its_cancellation(world: World) -> None:
    host = world.hosts["alpha"]
    services.cordon_host(host, reason="do not use", now=world.now)
    window = services.set_maintenance(
        host, start=world.now, end=world.now + 60 * MINUTE, reason="new fans", now=world.now
    )
    maintenance.sweep_maintenance(world.now)
    later = services.set_maintenance(
        host, start=world.now + 60 * MINUTE, end=world.now + 90 * MINUTE, reason="and again", now=world.now
    )
    services.cancel_maintenance(later, now=world.now + MINUTE)
    assert Host.objects.get(pk=host.pk).admin_state == "maintenance", "the first window has begun"
    services.cancel_maintenance(window, now=world.now + MINUTE)
    host.refresh_from_db()
    assert (host.admin_state, host.state_reason) == ("cordoned", "do not use")


@pytest.mark.parametrize(("start", "end"), first_cases(2, [(0, 60), (-30, 1), (59, 90), (10, 20), (-10, 90)]))
def test_an_overlapping_window_is_rejected_and_the_message_names_the_other_window(
    world: World, start: int, end: int
) -> None:
    host, noon = world.hosts["alpha"], world.now + 180 * MINUTE
    first = services.set_maintenance(
        host, start=noon, end=noon + 60 * MINUTE, reason="new fans", now=world.now
    )
    fields: dict[str, Any] = {"actor": world.operator, "why": "firmware", "now": world.now}
    times = {"start": noon + start * MINUTE, "end": noon + end * MINUTE}
    with rejected() as refused:
        hosts.set_maintenance(host=host, **times, **fields)
    assert (
        f"alpha is in maintenance already Mon 2 Mar 12:00 to 13:00 (new fans, window {first.pk})"
        in refusal_sentence(refused.value)
    )
    details = refused.value.numbers
    assert (refused.value.code, refused.value.field) == ("windows_overlap", "start")
    assert (details["host"], details["window"], details["start"]) == ("alpha", first.pk, noon.isoformat())
    assert host.maintenance_windows.count() == 1
    assert hosts.set_maintenance(host=world.hosts["beta"], **times, **fields)


def test_adjacent_windows_are_accepted(world: World) -> None:
    host, noon = world.hosts["alpha"], world.now + 180 * MINUTE
    for begin in (0, 60, -60):
        start = noon + begin * MINUTE
        hosts.set_maintenance(
            actor=world.operator, host=host, start=start, end=start + 60 * MINUTE, why="fans", now=world.now
        )
    assert host.maintenance_windows.count() == 3
