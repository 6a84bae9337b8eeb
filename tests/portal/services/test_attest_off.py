"""Test the attestation that a host is powered off: permissions, refusals and the audit record."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.errors import NotAllowed
from portal.models import AuditEvent
from portal.services.fleet import hosts
from scheduler.models import Host
from tests.portal.rejections import rejected
from tests.world import World


def test_only_an_operator_attests_and_only_a_silent_host(world: World) -> None:
    host = world.hosts["alpha"]
    Host.objects.filter(pk=host.pk).update(last_sync_at=world.now)
    with pytest.raises(NotAllowed):
        hosts.attest_off(actor=world.vision.lead, host=host, why="off", now=world.now)
    with rejected("is not off"):
        hosts.attest_off(actor=world.operator, host=host, why="off", now=world.now + timedelta(seconds=5))
    assert not AuditEvent.objects.filter(verb="attest_host_off").exists()
    later = world.now + timedelta(seconds=20)
    hosts.attest_off(actor=world.operator, host=host, why="the fuse", now=later)
    kept = AuditEvent.objects.get(verb="attest_host_off")
    assert kept.why == "the fuse" and kept.actor == world.operator
    host.refresh_from_db()
    assert host.lease_state == "silent"
    assert (
        f"seen powered off by {world.operator.get_username()}: the fuse"
        in host.state_changes.latest("pk").reason
    )
