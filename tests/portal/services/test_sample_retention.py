"""Test the command that sets how long samples and minute rollups are kept."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command

from portal.models import AuditEvent
from telemetry.models import Retention
from tests.world import World

pytestmark = pytest.mark.django_db


def test_the_command_sets_the_retention_and_writes_an_audit_record(world: World) -> None:
    out = io.StringIO()
    call_command("set_retention", "--sample-days=20", "--minute-days=40", stdout=out)
    assert out.getvalue() == "Samples are kept for 20 days, minutes for 40 days.\n"
    retention = Retention.objects.get()
    assert (retention.sample_days, retention.minute_days) == (20, 40)
    record = AuditEvent.objects.get(verb="set_sample_retention")
    assert record.before == {"sample_days": 14, "minute_days": 30}
    assert record.after == {"sample_days": 20, "minute_days": 40}


@pytest.mark.parametrize(
    ("samples", "minutes", "message"),
    [
        (30, 30, "minute_days is 30; allowed: 31 or more, because samples are kept for 30 days."),
        (1, 30, "sample_days"),
        (14, 4000, "minute_days"),
    ],
)
def test_settings_with_which_an_hour_could_lose_its_minutes_are_rejected_by_name(
    world: World, samples: int, minutes: int, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("set_retention", f"--sample-days={samples}", f"--minute-days={minutes}")
    assert Retention.objects.get().sample_days == 14
    assert not AuditEvent.objects.filter(verb="set_sample_retention").exists()
