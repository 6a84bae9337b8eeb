"""Test who sees whether audit records were changed, and how far their stream is behind."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client

from portal.models import AuditProgress
from portal.services import audit
from portal.services.audit_trail import seals
from tests.world import World


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def sealed(world: World) -> World:
    audit.record(actor=world.operator, via="web", now=world.now, verb="act", target=world.vision.team)
    seals.seal_new_events(world.now)
    return world


def test_operators_and_auditors_see_the_seals_and_members_do_not(sealed: World) -> None:
    for person, seen in ((sealed.operator, True), (sealed.auditor, True), (sealed.vision.member, False)):
        page = client_of(person).get("/audit/").content.decode()
        assert ("1 seal chain the records by hash" in page) is seen
    assert client_of(sealed.vision.member).get("/api/v1/audit/integrity/").status_code == 403


def test_a_changed_record_and_the_lag_of_a_failing_receiver_are_shown(sealed: World, settings: Any) -> None:
    settings.GPUPOOL_AUDIT_STREAM = "https://collector.example.org/"
    AuditProgress.objects.filter(pk=1).update(
        findings=[{"code": "event_removed", "seal": 1, "event": 7}],
        failing_since=sealed.now - dt.timedelta(days=3),
        failure="the receiver answered with status 500",
    )
    page = client_of(sealed.operator).get("/audit/").content.decode()
    assert "Audit record 7 was removed (seal 1)." in page
    assert "the receiver answered with status 500" in page and "none is lost" in page
    state = client_of(sealed.auditor).get("/api/v1/audit/integrity/").json()
    assert state["findings"] == [{"code": "event_removed", "seal": 1, "event": 7}]
    assert state["undelivered"] >= 1 and state["failure"] == "the receiver answered with status 500"
    assert "Audit record 7 was removed (seal 1)." in state["sentences"]
