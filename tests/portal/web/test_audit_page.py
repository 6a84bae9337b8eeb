"""Test the rows of the audit page: the filter by verb, readable values, and links to objects."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from portal.models import AuditEvent, User
from portal.services import audit
from portal.wording.people.audit_values import field_text, value_text, verb_code
from scheduler.core.model.slots import SLOTS_PER_GPU
from tests.portal.web.work_samples import queue_job, signed_in
from tests.world import World

pytestmark = pytest.mark.django_db


def record(world: World, target: Model, verb: str = "change_host", **values: Any) -> AuditEvent:
    return audit.record(
        actor=world.operator, via="web", now=world.now, verb=verb, target=target, after=values or None
    )


def rows(user: User, **query: str) -> list[dict[str, Any]]:
    page = signed_in(user).get(reverse("audit"), query)
    assert page.status_code == 200
    return list(page.context["rows"])


@pytest.mark.parametrize("typed", ["set_budget", "set budget", " Set  Budget "])
def test_the_verb_that_the_page_shows_finds_its_records(world: World, typed: str) -> None:
    record(world, world.hosts["alpha"], "set_budget")
    record(world, world.hosts["alpha"], "cordon")
    assert [row["verb"] for row in rows(world.operator, verb=typed)] == ["set budget"]
    answer = signed_in(world.operator).get("/api/v1/audit/", {"verb": typed}).json()
    assert {row["verb"] for row in answer["results"]} == {"set_budget"}


def test_the_verb_of_a_row_links_to_its_records(world: World) -> None:
    record(world, world.hosts["alpha"], "set_budget")
    [row] = [row for row in rows(world.operator) if row["verb"] == "set budget"]
    assert row["verb_url"] == "?verb=set_budget"


def test_values_are_texts_and_references_are_names(world: World) -> None:
    project = world.vision.project
    record(
        world,
        world.hosts["alpha"],
        "request_reservation",
        project=project.pk,
        max_runtime_seconds=86_400,
        preemptible=True,
        models=["A100", "H100"],
        start="2026-03-02T09:00:00+00:00",
    )
    [row] = rows(world.operator, verb="request reservation")
    changes = {change["name"]: change["after"] for change in row["changes"]}
    assert changes == {
        "project": project.name,
        "max runtime": "24 h",
        "preemptible": "yes",
        "models": "A100, H100",
        "start": "2026-03-02 09:00 UTC",
    }


def test_each_kind_of_value_has_a_text() -> None:
    names = {("team", 3): "Vision"}
    given = {
        "team_id": 3,
        "team": 4,
        "notice_minutes": 90,
        "borrow_limit_slots": 2 * SLOTS_PER_GPU,
        "memory_mib": 2048,
        "why": None,
        "units": 4,
        "limits": {"grace_seconds": 30, "cap": 2},
    }
    assert {name: value_text(name, value, names) for name, value in given.items()} == {
        "team_id": "Vision",
        "team": "team that was removed",
        "notice_minutes": "1 h 30 min",
        "borrow_limit_slots": "2 GPUs",
        "memory_mib": "2 GiB",
        "why": "nothing",
        "units": "4",
        "limits": "grace: 30 seconds, cap: 2",
    }
    assert (field_text("team_id"), field_text("borrow_limit_slots")) == ("team", "borrow limit")
    assert field_text("hours") == "hours" and verb_code("Close  month") == "close_month"


def test_a_row_links_to_the_object_that_it_is_about(world: World) -> None:
    job = queue_job(world, world.vision, "storm")
    targets = {
        job: reverse("job", args=[job.public_id]),
        world.hosts["alpha"]: reverse("host", args=["alpha"]),
        world.vision.team: reverse("team", args=[world.vision.team.slug]),
        world.vision.project: reverse("team", args=[world.vision.team.slug]),
        world.vision.member: reverse("person", args=[world.vision.member.username]),
        world.shared: reverse("pool", args=[world.shared.slug]),
        world.organisation: reverse("settings"),
    }
    for target in targets:
        record(world, target, "probe")
    found = {row["event"].target: row["url"] for row in rows(world.operator, verb="probe")}
    assert found == {
        f"{target._meta.model_name}:{getattr(target, 'public_id', target.pk)}": url
        for target, url in targets.items()
    }
    for url in set(found.values()):
        assert signed_in(world.operator).get(url).status_code in (200, 302), url


def test_a_row_does_not_link_to_an_object_that_the_viewer_may_not_see(world: World) -> None:
    record(world, world.hosts["delta"], "probe", team=world.language.team.pk)
    audit.record(
        actor=world.operator,
        via="web",
        now=world.now,
        verb="probe",
        target=world.hosts["delta"],
        team_id=world.language.team.pk,
    )
    shown = rows(world.language.lead, verb="probe")
    assert [row["url"] for row in shown] == [""] * len(shown) and shown


def test_the_number_of_queries_does_not_depend_on_the_number_of_records(world: World) -> None:
    client = signed_in(world.operator)
    counts = []
    for _ in range(2):
        for host in world.hosts.values():
            record(world, host, "probe", project=world.vision.project.pk)
        client.get(reverse("audit"))
        with CaptureQueriesContext(connection) as asked:
            client.get(reverse("audit"))
        counts.append(len(asked))
    assert counts[0] == counts[1]
