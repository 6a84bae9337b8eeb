"""Test how operators see and set the retention on the page and in the API: preview, refusals, audit."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils.html import escape
from rest_framework.test import APIClient

from portal.models import AuditEvent, User
from portal.services.fleet.sample_retention import UNLIMITED, preview_retention
from telemetry.models import Retention
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import at, pack_all, store_rollup
from tests.world import World, units_of

pytestmark = pytest.mark.django_db
PRESENT = {"sample_days": "14", "minute_days": "30", "hour_days": UNLIMITED, "day_days": UNLIMITED}


def stored_minutes(world: World) -> None:
    store_rollup(60, at(9), units_of(world.hosts["alpha"])[0], covered_seconds=60)
    pack_all(at(1, day=3))


def post(world: World, **fields: str) -> Any:
    return signed_in(world.operator).post(reverse("retention"), {**PRESENT, **fields}, follow=True)


def api_of(user: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


def kept() -> tuple[int, int, int | None, int | None]:
    row = Retention.objects.get()
    return row.sample_days, row.minute_days, row.hour_days, row.day_days


def test_the_page_shows_each_level_to_operators_and_auditors(world: World) -> None:
    stored_minutes(world)
    shown = signed_in(world.operator).get(reverse("retention")).content.decode()
    for label in ("Raw samples", "Minutes", "Hours", "Days", "Cubes"):
        assert f"<b>{label}</b>" in shown
    assert "14 days" in shown and "without limit" in shown and "Show the effect" in shown
    auditors = signed_in(world.auditor).get(reverse("retention")).content.decode()
    assert "<b>Cubes</b>" in auditors and "Show the effect" not in auditors
    refused = signed_in(world.vision.lead).get(reverse("retention"))
    assert refused.status_code == 403


def test_a_change_is_shown_before_it_is_made_and_confirmed_with_an_audit_record(world: World) -> None:
    stored_minutes(world)
    shown = post(world, minute_days="60", hour_days="400").content.decode()
    assert "30 days → <b>60 days</b>" in shown
    assert "without limit → <b>400 days</b>" in shown
    assert shown.count("Older data are deleted") == 1  # of hours only: minutes are kept longer
    assert kept() == (14, 30, None, None)
    assert not AuditEvent.objects.filter(verb="set_sample_retention").exists()
    done = post(world, minute_days="60", hour_days="400", why="an audit", confirmed="1")
    assert "Saved." in done.content.decode()
    assert kept() == (14, 60, 400, None)
    record = AuditEvent.objects.get(verb="set_sample_retention")
    assert (record.actor, record.via, record.why) == (world.operator, "web", "an audit")
    assert (record.before["minute_days"], record.after["minute_days"]) == (30, 60)


def test_the_bytes_of_a_preview_are_at_the_present_rate(world: World) -> None:
    stored_minutes(world)
    now = at(0, day=4)
    changes = {
        change.level.level: change
        for change in preview_retention(actor=world.operator, now=now, minute_days=60)
    }
    minutes = changes["minutes"]
    assert minutes.level.expected == round(minutes.level.stored / 2 * 30)
    assert minutes.expected_after == round(minutes.level.stored / 2 * 60)
    assert [level for level, change in changes.items() if change.is_changed] == ["minutes"]
    assert not any(change.is_shorter for change in changes.values())


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"sample_days": 1}, "sample_days", "sample_days is 1; allowed: a whole number from 2 to 3,649 days."),
    (
        {"sample_days": 30},
        "sample_days",
        "sample_days is 30; allowed: 29 or fewer, because minutes are kept for 30 days.",
    ),
    (
        {"sample_days": 20, "minute_days": 20},
        "minute_days",
        "minute_days is 20; allowed: 21 or more, because samples are kept for 20 days.",
    ),
    (
        {"hour_days": 99},
        "hour_days",
        "hour_days is 99; allowed: a whole number from 100 to 3,650 days, or unlimited.",
    ),
    (
        {"day_days": 500},
        "day_days",
        "day_days is 500; allowed: unlimited, because hours are kept without limit.",
    ),
    (
        {"minute_days": "many"},
        "minute_days",
        "minute_days is 'many'; allowed: a whole number from 3 to 3,650 days.",
    ),
]


@pytest.mark.parametrize(("given", "field", "message"), REFUSED)
def test_page_api_and_command_refuse_bad_input_with_the_same_words(
    world: World, given: dict[str, Any], field: str, message: str
) -> None:
    for confirmed in ("", "1"):
        answer = post(world, **{name: str(value) for name, value in given.items()}, confirmed=confirmed)
        assert answer.status_code == 400 and escape(message) in answer.content.decode()
    client = api_of(world.operator)
    for method, address in ((client.put, "retention/"), (client.post, "retention/preview/")):
        answer = method(f"/api/v1/{address}", given, format="json")
        [error] = [each for each in answer.json()["errors"] if each["field"] == field]
        assert answer.status_code == 400
        assert error == {"field": field, "value": given[field], "message": message}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    with pytest.raises(CommandError) as refused:
        call_command("set_retention", *arguments, stdout=io.StringIO())
    assert str(refused.value) == message
    assert kept() == (14, 30, None, None)


def test_the_api_previews_and_sets_the_retention_for_operators_only(world: World) -> None:
    stored_minutes(world)
    client = api_of(world.operator)
    preview = client.post("/api/v1/retention/preview/", {"minute_days": 60}, format="json").json()
    [minutes] = [row for row in preview if row["level"] == "minutes"]
    assert (minutes["days"], minutes["days_after"], minutes["deletes"]) == (30, 60, False)
    assert minutes["full_bytes_after"] == pytest.approx(2 * minutes["full_bytes"], abs=2)
    assert kept() == (14, 30, None, None)
    given = {"hour_days": 400, "day_days": None, "why": "x"}
    answer = client.put("/api/v1/retention/", given, format="json").json()
    assert (answer["hour_days"], answer["day_days"]) == (400, None)
    assert [row["level"] for row in answer["levels"]] == ["samples", "minutes", "hours", "days", "cubes"]
    assert client.put("/api/v1/retention/", {"hour_days": UNLIMITED}, format="json").status_code == 200
    assert kept() == (14, 30, None, None)
    assert AuditEvent.objects.filter(verb="set_sample_retention", via="api").count() == 2
    auditor = api_of(world.auditor)
    assert auditor.get("/api/v1/retention/").status_code == 200
    for method in (auditor.put, api_of(world.finance).put):
        assert method("/api/v1/retention/", {"hour_days": 200}, format="json").status_code == 403
    nothing = client.put("/api/v1/retention/", {"why": "x"}, format="json")
    assert "nothing to change is given" in nothing.json()["errors"][0]["message"]
    wrong = client.put("/api/v1/retention/", {"hours": 1}, format="json")
    assert wrong.status_code == 400


def test_the_database_guards_the_retention_without_the_service(world: World) -> None:
    for wrong in (
        {"sample_days": 1},
        {"sample_days": 30},
        {"hour_days": 20},
        {"day_days": 200},
        {"hour_days": 200, "day_days": 150},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            Retention.objects.filter(pk=1).update(**wrong)
