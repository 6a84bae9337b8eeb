"""Test that notices about one matter are one line, and that a person gets no notice of an own action."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from portal.models import Notification, User
from portal.notices import delivery
from portal.services.approvals import decisions, submissions
from portal.services.work import workload_changes
from scheduler.models import Workload
from tests.portal.services.test_notices_and_idleness import MINUTE, job, kinds, run_of
from tests.portal.web.work_samples import signed_in
from tests.world import H100, World

pytestmark = pytest.mark.django_db


def shown(user: User) -> dict[str, list[tuple[str, int]]]:
    """Return the lines of each part of the page: kind of the newest notice, number of earlier notices."""
    page = signed_in(user).get(reverse("notifications"))
    return {
        title: [(row["notice"].kind, row["earlier_count"]) for row in rows]
        for title, rows in page.context["groups"]
        if rows
    }


def started_job(world: World) -> Workload:
    workload = job(world)
    run_of(workload, world, running_at=world.now + MINUTE)
    delivery.write_notices(world.now + 2 * MINUTE)
    return workload


def add_notices(world: World, count: int, matter: str) -> None:
    for number in range(count):
        Notification.objects.create(
            user=world.vision.member,
            kind="host_trouble",
            numbers={"host": "alpha", "trouble": "it fell silent"},
            source=f"host:{number}",
            matter=matter,
            at=world.now,
        )


def test_notices_about_one_job_are_one_line_with_the_newest_first(world: World) -> None:
    workload = started_job(world)
    later = world.now + timedelta(minutes=5)
    Workload.objects.filter(pk=workload.pk).update(state="ended", ended_at=later, outcome="finished")
    delivery.write_notices(later)
    assert shown(world.vision.member) == {"Unread": [("ended", 1)]}
    other = job(world, name="other")
    run_of(other, world, running_at=later + MINUTE)
    delivery.write_notices(later + 2 * MINUTE)
    assert shown(world.vision.member) == {"Unread": [("started", 0), ("ended", 1)]}


def test_read_matters_stand_apart_and_the_menu_counts_unread_matters(world: World) -> None:
    started_job(world)
    add_notices(world, 3, "host:alpha")
    client = signed_in(world.vision.member)
    page = client.get(reverse("notifications"))
    assert page.context["notices_count"] == 2
    rows = [row for _, found in page.context["groups"] for row in found]
    [line] = [row for row in rows if row["notice"].kind == "host_trouble"]
    client.post(reverse("notifications"), {"notice": line["unread_ids"]})
    assert shown(world.vision.member) == {"Unread": [("started", 0)], "Read": [("host_trouble", 2)]}
    assert client.get(reverse("notifications")).context["notices_count"] == 1
    client.post(reverse("notifications"))
    assert set(shown(world.vision.member)) == {"Read"}


def test_a_notice_without_a_matter_is_a_line_of_its_own(world: World) -> None:
    add_notices(world, 2, "")
    assert shown(world.vision.member) == {"Unread": [("host_trouble", 0), ("host_trouble", 0)]}


def test_a_person_gets_no_notice_of_a_job_that_they_stop_themselves(world: World) -> None:
    for actor, expected in ((world.vision.member, []), (world.operator, ["ended"])):
        workload = job(world)
        workload_changes.cancel_workload(actor=actor, workload=workload, now=world.now + MINUTE)
        delivery.write_notices(world.now + 2 * MINUTE)
        assert kinds(world.vision.member) == expected


def test_a_person_who_decides_an_own_request_gets_no_notice_of_the_decision(world: World) -> None:
    wanted: dict[str, Any] = {
        "team": world.vision.team,
        "pool": world.shared,
        "model": H100,
        "guaranteed_gpus": 9,
        "now": world.now,
    }
    own = submissions.request_quota_change(actor=world.operator, **wanted)
    decisions.approve_submission(actor=world.operator, submission=own, now=world.now + MINUTE)
    delivery.write_notices(world.now + 2 * MINUTE)
    assert "approved" not in kinds(world.operator)
