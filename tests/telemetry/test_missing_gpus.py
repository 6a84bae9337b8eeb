"""Test that a missing GPU and an unavailable NVML raise one event each and notify operators."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.conf import settings

from agent.protocol import Health
from scheduler.models import Gpu, Host
from telemetry.health import missing_gpus, rules
from telemetry.ingest.agent_api import record_health_event
from telemetry.models import HealthEvent, HealthRule
from tests.telemetry.rows import at
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def test_a_missing_gpu_raises_one_event_and_notifies_operators(world: World) -> None:
    gpu = units_of(world.hosts["alpha"])[2].gpu
    Gpu.objects.filter(pk=gpu.pk).update(
        missing_since=at(9), retired_at=at(9), repair_state="quarantined", state_reason="XID 79"
    )
    assert missing_gpus.record_missing_gpus(at(10)) == 1
    rules.apply_rules_to_events(at(10))
    assert missing_gpus.record_missing_gpus(at(11)) == 0
    event = HealthEvent.objects.get()
    assert (event.code, event.gpu_id, event.at, event.action_taken) == ("gpu:missing", gpu.pk, at(9), "warn")
    assert gpu.uuid in event.detail and "XID 79" in event.detail
    Gpu.objects.filter(pk=gpu.pk).update(missing_since=at(12))
    assert missing_gpus.record_missing_gpus(at(13)) == 1, "the GPU was reported, and went missing again"


def test_a_gpu_missing_for_longer_than_the_retention_of_events_raises_no_second_event(world: World) -> None:
    gpu = units_of(world.hosts["alpha"])[0].gpu
    Gpu.objects.filter(pk=gpu.pk).update(missing_since=at(9))
    assert missing_gpus.record_missing_gpus(at(9) + timedelta(days=settings.GPUPOOL_HEALTH_EVENT_DAYS)) == 0


def test_a_host_whose_nvml_fails_is_closed_like_a_host_whose_driver_hangs(world: World) -> None:
    for name, code in (("alpha", "nvml:unreadable"), ("delta", "nvml:hung")):
        record_health_event(
            world.hosts[name].pk,
            Health(code, "", "nvml", code, at(9).timestamp(), "version mismatch"),
            at(10),
        )
    rules.apply_rules_to_events(at(10))
    states = {host.name: host.admin_state for host in Host.objects.filter(name__in=("alpha", "delta"))}
    assert states == {"alpha": "cordoned", "delta": "cordoned"}
    assert "version mismatch" in Host.objects.get(name="alpha").state_reason


def test_the_new_rules_can_be_reset_to_their_defaults(world: World) -> None:
    for code, action in (("nvml:unreadable", "cordon"), ("gpu:missing", "warn")):
        rule = HealthRule.objects.get(code=code)
        assert (rule.action, rule.default_action, rule.default_repeats, rule.default_counts) == (
            action,
            action,
            1,
            "events",
        )
