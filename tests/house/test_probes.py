"""Test that the probes distinguish a live process from a ready one."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client, override_settings

from config.engine_health import engine_status_at
from scheduler.models import Leader


def test_liveness_does_not_need_the_database() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}


@pytest.mark.django_db
def test_a_process_that_reaches_its_stores_is_ready() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {"postgres": "ok", "valkey": "ok", "engine": "no cycle yet"},
    )


@pytest.mark.django_db
def test_a_stopped_engine_is_reported() -> None:
    now = dt.datetime(2026, 3, 2, 9, 0, tzinfo=dt.UTC)
    Leader.objects.update_or_create(pk=1, defaults={"last_cycle_at": now})
    assert engine_status_at(now + dt.timedelta(seconds=20)) == "ok"
    assert engine_status_at(now + dt.timedelta(seconds=90)) == "last cycle 90 s ago"


@pytest.mark.django_db
@override_settings(REDIS_URL="unix:///nowhere/at/all")
def test_a_process_without_valkey_is_not_ready_and_reports_the_reason() -> None:
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["postgres"] == "ok"
    assert "Error" in answer.json()["valkey"]


@pytest.mark.parametrize("address", ["/anything%00", "/?q=%00", "/api/v1/x%00"])
def test_an_address_with_nul_is_rejected_with_a_message(address: str) -> None:
    answer = Client().get(address)
    assert answer.status_code == 400
    assert "NUL" in answer.content.decode()


def test_every_response_has_a_content_security_policy_with_a_new_nonce() -> None:
    first, second = (Client().get("/healthz")["Content-Security-Policy"] for _ in range(2))
    assert "script-src 'self' 'nonce-" in first
    assert "frame-ancestors 'none'" in first
    assert first != second
