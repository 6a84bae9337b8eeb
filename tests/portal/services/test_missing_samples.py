"""Test that a month whose hosts still owe samples is closed only with a reason, which is stored and shown."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse

from portal.errors import Invalid
from portal.models import AuditEvent
from portal.services.money import months
from telemetry.models import EvidenceDue, HostHour, HostHoursRecorded, SampleGap, Statement
from telemetry.money.charges import charge_all_gpus
from telemetry.rollups.host_hours import record_ended_hours
from telemetry.rollups.roll_up import roll_up_due_buckets
from tests.portal.rejections import rejected
from tests.telemetry.conftest import rates
from tests.telemetry.rows import at, hold, workload
from tests.world import World, units_of, world_fixture

__all__ = ["rates"]
pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)
AFTER = dt.datetime(2026, 4, 1, 2, 0, tzinfo=dt.UTC)
REASON = "h2 burned down"


def write_march(rates: World) -> World:
    """Return a world whose March is charged. Alpha owes samples of two hours and beta lost some."""
    for host in ("alpha", "beta"):
        hold(
            workload(rates, rates.vision), units_of(rates.hosts[host])[0], at(9), at(11), end_code="finished"
        )
    SampleGap.objects.create(host=rates.hosts["beta"], cause="skipped", start=at(9, 50), end=at(10, 20))
    roll_up_due_buckets(AFTER)
    HostHour.objects.filter(host=rates.hosts["beta"]).update(state="lost", lost_seconds=600)
    charge_all_gpus(AFTER)
    return rates


march = world_fixture(write_march, after=rates)


def test_a_month_with_missing_samples_is_closed_only_with_a_reason(march: World) -> None:
    with rejected("still owe samples: alpha") as seen:
        months.close_month(actor=march.finance, month=MARCH, now=AFTER)
    assert seen.value.field == "missing_samples_reason"
    assert Statement.objects.get(month=MARCH).state == "open"
    statement = months.close_month(
        actor=march.finance, month=MARCH, now=AFTER, missing_samples_reason=f" {REASON} "
    )
    assert (statement.state, statement.missing_samples_reason) == ("closed", REASON)
    assert statement.missing_samples == [{"host": "alpha", "hours": 2, "lost_seconds": 0}]
    assert statement.closed_by == march.finance
    record = AuditEvent.objects.get(verb="close_month")
    assert record.after is not None and record.after["missing_samples_reason"] == REASON


def test_the_rejection_names_the_hosts(march: World) -> None:
    client = Client()
    client.force_login(march.finance)
    page = client.post(reverse("month-close", args=["2026-03"]), {"why": "on time"})
    assert page.status_code == 400
    assert "these hosts still owe samples: alpha." in page.content.decode()


def test_the_close_page_lists_hosts_with_owed_or_lost_samples_and_the_closed_month_shows_the_reason(
    march: World,
) -> None:
    client = Client()
    client.force_login(march.finance)
    address = reverse("month-close", args=["2026-03"])
    text = client.get(address).content.decode()
    assert "alpha still owes samples of 2 hours" in text
    assert "beta lost 1200 s of samples in 2 hours" in text
    assert client.post(address, {"missing_samples_reason": REASON}).status_code == 302
    shown = " ".join(client.get(f"{reverse('chargeback')}?month=2026-03").content.decode().split())
    assert f"finance closed the month without the samples of alpha (2 h): {REASON}" in shown


def test_lost_samples_do_not_keep_a_month_open(march: World) -> None:
    HostHour.objects.filter(host=march.hosts["alpha"]).update(state="complete")
    statement = months.close_month(
        actor=march.finance, month=MARCH, now=AFTER, missing_samples_reason="not needed"
    )
    assert (statement.missing_samples, statement.missing_samples_reason) == ([], "")
    assert any(
        check["figures"].get("lost") == [{"host": "beta", "hours": 2, "lost_seconds": 1200}]
        for check in statement.checks
    )


def test_the_api_closes_a_month_with_a_reason(march: World) -> None:
    client = Client()
    client.force_login(march.finance)
    answer = client.post("/api/v1/statements/2026-03/close/", {}, content_type="application/json")
    assert answer.status_code == 409 and "alpha" in answer.content.decode()
    answer = client.post(
        "/api/v1/statements/2026-03/close/",
        {"missing_samples_reason": REASON},
        content_type="application/json",
    )
    assert answer.status_code == 200
    assert answer.json()["missing_samples_reason"] == REASON
    assert answer.json()["missing_samples"][0]["host"] == "alpha"


@pytest.mark.parametrize("reason", ["x" * 1001, "bell\a"])
def test_the_rejection_of_a_reason_that_is_too_long_or_not_text_names_the_field(
    march: World, reason: str
) -> None:
    with pytest.raises(Invalid) as seen:
        months.close_month(actor=march.finance, month=MARCH, now=AFTER, missing_samples_reason=reason)
    assert set(seen.value.fields) == {"missing_samples_reason"}


def test_a_month_whose_evidence_is_not_up_to_date_stays_open(march: World) -> None:
    EvidenceDue.objects.create(host=march.hosts["alpha"], hour=at(9))
    with rejected("check fails: the measured use"):
        months.close_month(actor=march.finance, month=MARCH, now=AFTER, missing_samples_reason=REASON)


def test_a_month_stays_open_until_all_its_hours_are_recorded(march: World) -> None:
    HostHoursRecorded.objects.update(until=at(0, day=31))
    with rejected("check fails: the measured use"):
        months.close_month(actor=march.finance, month=MARCH, now=AFTER, missing_samples_reason=REASON)
    record_ended_hours(AFTER)
    months.close_month(actor=march.finance, month=MARCH, now=AFTER, missing_samples_reason=REASON)
