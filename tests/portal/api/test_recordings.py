"""Test recordings of planning cycles: a downloaded recording reproduces the plan byte for byte."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client as Browser
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.services.work import launch
from scheduler.core.model import serialization
from scheduler.cycle import engine
from scheduler.cycle.recording import CycleRecorder
from scheduler.models import Recording
from tests.portal.api.conftest import Client
from tests.world import H100, World


def decided(world: World, name: str, **also: Any) -> Any:
    workload = launch.submit_job(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        name=name,
        command="true",
        models=[H100],
        now=world.now,
        **{"units": 1, **also},
    )
    engine.run_cycle("test", world.now, recorder=CycleRecorder())
    return workload


@pytest.mark.parametrize("way", ["api", "page"])
def test_a_downloaded_recording_reproduces_the_plan_byte_for_byte(
    today_world: World, client_of: Client, tmp_path: Path, way: str
) -> None:
    decided(today_world, "first", units=4)
    row = Recording.objects.get()
    answer: Any
    if way == "api":
        answer = client_of(today_world.operator).get(f"/api/v1/recordings/{row.pk}/")
    else:
        browser = Browser()
        browser.force_login(today_world.operator)
        assert f"recording-{row.pk}.json" in browser.get(reverse("recordings")).content.decode()
        answer = browser.get(reverse("recording", args=[row.pk]))
    assert answer.status_code == 200
    assert answer["Content-Disposition"] == f'attachment; filename="recording-{row.pk}.json"'
    exported = io.StringIO()
    call_command("export_snapshot", str(row.pk), stdout=exported)
    assert answer.content.decode() == exported.getvalue(), "the CLI and the page download the same file"
    path = tmp_path / "downloaded.json"
    path.write_bytes(answer.content)
    first, again = io.StringIO(), io.StringIO()
    with CaptureQueriesContext(connection) as asked:
        call_command("replay_snapshot", str(path), stdout=first, stderr=io.StringIO())
        call_command("replay_snapshot", str(path), stdout=again, stderr=io.StringIO())
    assert not asked
    assert first.getvalue() == again.getvalue()
    assert serialization.sha256_hex(first.getvalue().removesuffix("\n")) == row.plan_sha256


def test_recordings_are_listed_latest_first_and_by_workload(today_world: World, client_of: Client) -> None:
    first = decided(today_world, "first")
    operator = client_of(today_world.operator)
    found = operator.get("/api/v1/recordings/", {"workload": str(first.public_id)}).json()
    assert [row["placed"] for row in found["results"]] == [1]
    assert set(found["results"][0]) == {"id", "at", "placed", "evicted", "refused", "plan_sha256"}
    assert operator.get("/api/v1/recordings/999999/").status_code == 404
    unknown = operator.get("/api/v1/recordings/", {"workload": "00000000-0000-4000-8000-000000000000"})
    assert unknown.status_code == 400 and "workload is" in unknown.json()["errors"][0]["message"]


def test_the_settings_of_a_pool_show_how_much_each_user_has_waiting(today_world: World) -> None:
    for number in range(3):
        launch.submit_job(
            actor=today_world.vision.member,
            project=today_world.vision.project,
            pool=today_world.shared,
            name=f"x {number}",
            command="true",
            units=1,
            now=today_world.now,
        )
    browser = Browser()
    browser.force_login(today_world.operator)
    page = browser.get(reverse("pool", args=["shared"]))
    (line,) = page.context["waiting"]
    assert (line["waiting"], line["most_of_one"], line["person"]) == (
        3,
        3,
        today_world.vision.member.username,
    )
    assert "10,000" in page.content.decode() and "5,000" in page.content.decode()
    browser.force_login(today_world.language.member)
    assert browser.get(reverse("pool", args=["shared"])).context["waiting"] is None
