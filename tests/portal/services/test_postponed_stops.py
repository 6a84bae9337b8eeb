"""Test how the owner of an unused job postpones its stop: limits of the pool, audit, page, API and notice."""

from __future__ import annotations

import datetime as dt
from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, Notification, User
from portal.notices import delivery
from portal.services.work.workload_changes import keep_workload
from scheduler.models import Workload
from telemetry.alerts.evaluate import evaluate_alerts
from telemetry.alerts.postponements import planned_stops
from telemetry.core.alerts.kinds import AlertKind
from telemetry.models import Alert
from tests.portal.rejections import rejected
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import alert_of, at, workload
from tests.telemetry.test_alerts import change_rule, idle_job
from tests.world import World

pytestmark = pytest.mark.django_db
HOUR = 3600


def warned_job(world: World, minutes: int = 40, **rule: Any) -> Workload:
    """Return an idle job that is stopped at 9:43 unless it is used, evaluated at 9:33."""
    limits = {"postpone_times": 2, "postpone_minutes": 60} | rule
    change_rule(world, AlertKind.HELD_IDLE, stop_work=True, notice_minutes=10, **limits)
    job = idle_job(world, minutes)
    evaluate_alerts(at(9, 33))
    return job


def idle_alert() -> Alert:
    return Alert.objects.get(kind=AlertKind.HELD_IDLE)


def postpone(world: World, job: Workload, now: dt.datetime, seconds: int = HOUR) -> Workload:
    return keep_workload(actor=world.vision.member, workload=job, seconds=seconds, now=now)


def test_a_postponed_stop_is_planned_again_with_a_new_warning_and_then_carried_out(world: World) -> None:
    job = warned_job(world, 120)
    assert idle_alert().stop_at == at(9, 43)
    postpone(world, job, at(9, 40))
    assert (idle_alert().stop_at, idle_alert().postponed) == (None, 1)
    assert evaluate_alerts(at(9, 50)).stopped == 0
    assert idle_alert().stop_at is None
    evaluate_alerts(at(10, 40))
    assert idle_alert().stop_at == at(10, 50)
    assert evaluate_alerts(at(10, 49)).stopped == 0
    assert evaluate_alerts(at(10, 51)).stopped == 1
    job.refresh_from_db()
    assert (job.state, job.stop_requested) == ("notice", "idle")


def test_the_rule_of_the_pool_limits_how_often_and_how_long(world: World) -> None:
    job = warned_job(world, 240)
    for wrong in (59, 3601, 10**9, "2h", True, None):
        with pytest.raises(Invalid, match="seconds is .*; allowed: a whole number from 60 to 3,600 seconds"):
            postpone(world, job, at(9, 34), wrong)  # type: ignore[arg-type]
    assert idle_alert().postponed == 0
    for hour in (9, 10):
        postpone(world, job, at(hour, 40))
        evaluate_alerts(at(hour + 1, 41))
    assert planned_stops([job.pk])[job.pk].left == 0
    with rejected("can't be postponed any more: Shared allows it 2 times"):
        postpone(world, job, at(11, 42))
    assert evaluate_alerts(at(11, 52)).stopped == 1
    records = AuditEvent.objects.filter(verb="postpone_stop").order_by("pk")
    assert [(record.before["postponed"], record.after["postponed"]) for record in records] == [(0, 1), (1, 2)]
    assert {record.actor for record in records} == {world.vision.member}
    assert records[0].after["keep_until"] == at(10, 40).isoformat()


def test_a_pool_can_forbid_postponements(world: World) -> None:
    job = warned_job(world, postpone_times=0)
    with rejected("Shared does not allow it"):
        postpone(world, job, at(9, 34))


def test_a_second_alert_of_the_job_gives_no_more_postponements(world: World) -> None:
    job = warned_job(world, 120)
    postpone(world, job, at(9, 40))
    ended = {"state": "ended", "ended_at": at(9, 45)}
    Alert.objects.update(**ended)
    alert_of(job, kind="held_idle", stop_at=at(11), began_at=at(10, 45))
    assert planned_stops([job.pk])[job.pk].left == 1
    alert_of(job, kind="held_empty", stop_at=at(11), began_at=at(10, 45))
    assert planned_stops([job.pk])[job.pk].times == 2  # the stricter rule of both kinds
    postpone(world, job, at(10, 50))
    assert not Alert.objects.filter(ended_at=None, stop_at__isnull=False).exists()
    assert sum(Alert.objects.values_list("postponed", flat=True)) == 2


def test_only_a_planned_stop_can_be_postponed_by_people_who_may_change_the_job(world: World) -> None:
    job = workload(world, world.vision)
    with rejected("No stop of"):
        postpone(world, job, at(9, 34))
    alert_of(job, stop_at=at(9, 43))
    for person in (world.vision.members[1], world.language.member, world.auditor):
        with pytest.raises(NotAllowed):
            keep_workload(actor=person, workload=job, seconds=HOUR, now=at(9, 34))
    Alert.objects.update(stopped_at=at(9, 43))
    with rejected("No stop of"):
        postpone(world, job, at(9, 44))


def test_a_used_job_ends_its_alert_and_needs_no_postponement(world: World) -> None:
    job = warned_job(world)
    postpone(world, job, at(9, 40))
    Workload.objects.filter(pk=job.pk).update(state="ended", ended_at=at(9, 50))
    assert evaluate_alerts(at(9, 51)).ended == 1
    assert planned_stops([job.pk]) == {}


# -- page, API and notice ------------------------------------------------------------------------------------


def planned(world: World) -> Workload:
    """Return a running job with a stop in half an hour, under the default rule."""
    job = workload(world, world.vision, name="one")
    alert_of(job, began_at=world.now, stop_at=world.now + timedelta(minutes=30))
    return job


def job_page(user: User, job: Workload) -> str:
    answer = signed_in(user).get(reverse("job", args=[job.public_id]))
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_page_of_the_job_has_a_button_that_postpones_the_stop(world: World) -> None:
    job = planned(world)
    shown = job_page(world.vision.member, job)
    assert "It does not use its GPUs." in shown and "3 more times, by at most 2 h" in shown
    assert "Postpone 2 h" in shown
    assert "Postpone" not in job_page(world.auditor, job)
    address = reverse("workload-keep", args=[job.public_id])
    done = signed_in(world.vision.member).post(address, {"minutes": "120"}, follow=True)
    assert "The stop of one is postponed by 2 h." in done.content.decode()
    assert idle_alert().postponed == 1
    alerts = signed_in(world.vision.member).get(reverse("alerts")).content.decode()
    assert "Its stop was postponed 1 time." in alerts
    assert "Postpone" not in job_page(world.vision.member, job)  # no stop is planned now
    Alert.objects.update(stop_at=world.now + timedelta(minutes=30))
    for wrong in ("x", "100000", "²", ""):
        refused = signed_in(world.vision.member).post(address, {"minutes": wrong}, follow=True)
        assert "allowed: a whole number from 60 to 7,200 seconds" in refused.content.decode(), wrong
    assert idle_alert().postponed == 1


def test_the_api_postpones_the_stop_and_says_until_when(world: World) -> None:
    job = planned(world)
    client = APIClient()
    client.force_authenticate(world.vision.member)
    answer = client.post(f"/api/v1/workloads/{job.public_id}/keep/", {"seconds": HOUR}, format="json")
    assert answer.status_code == 200 and answer.json()["keep_until"] is not None
    again = client.post(f"/api/v1/workloads/{job.public_id}/keep/", {"seconds": HOUR}, format="json")
    assert (again.status_code, again.json()["code"]) == (409, "no_stop_is_planned")
    [row] = client.get("/api/v1/alerts/").json()["results"]
    assert (row["postponed"], row["stop_at"]) == (1, None)


def test_the_notice_says_how_to_postpone_the_stop(world: World) -> None:
    job = planned(world)
    delivery.write_notices(world.now + timedelta(minutes=1))
    warning = Notification.objects.get(kind="unused_work_stops")
    assert (warning.numbers["left"], warning.numbers["minutes"]) == (3, 120)
    page = signed_in(world.vision.member).get(reverse("notifications")).content.decode()
    assert "You may postpone this 3 more times, by at most 120 minutes" in page
    assert f"gpupool keep {str(job.public_id)[:8]} --for 120m" in page


def test_operators_set_the_limits_in_the_rule_of_the_pool(world: World) -> None:
    client = APIClient()
    client.force_authenticate(world.operator)
    address = "/api/v1/pools/shared/alert-rules/held_idle/"
    answer = client.put(address, {"postpone_times": 1, "postpone_minutes": 30}, format="json")
    assert answer.status_code == 200
    assert (answer.json()["rule"]["postpone_times"], answer.json()["default"]["postpone_times"]) == (1, 3)
    for change, message in (
        ({"postpone_times": 21}, "postpone_times is 21; allowed: a whole number from 0 to 20 times."),
        ({"postpone_minutes": 4}, "postpone_minutes is 4; allowed: a whole number from 5 to 1,440 minutes."),
    ):
        refused = client.put(address, change, format="json")
        assert refused.status_code == 400
        assert refused.json()["errors"][0]["message"] == message
    stop = planned_stops([planned(world).pk])
    assert [(each.times, each.minutes) for each in stop.values()] == [(1, 30)]
