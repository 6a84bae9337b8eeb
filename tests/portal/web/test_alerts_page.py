"""Test alerts in the portal: list, filters, acknowledge, snooze, rules of a pool, API and notices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from portal.models import AuditEvent, Notification
from portal.notices import delivery
from portal.wording.alert_texts import ALERT_KIND_LABELS, EVIDENCE_SENTENCES, UNIT_LABELS, alert_evidence
from telemetry.core.alerts.kinds import ALERT_KINDS, AlertKind
from telemetry.models import Alert, AlertRule
from tests.portal.web.work_samples import signed_in
from tests.telemetry.rows import alert_of, workload
from tests.world import World

pytestmark = pytest.mark.django_db


def text_of(world: World, person: str, **query: str) -> str:
    answer = signed_in(world.people[person]).get(reverse("alerts"), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_people_see_alerts_about_the_work_of_their_teams_and_operators_all(world: World) -> None:
    alert_of(workload(world, world.vision, name="vision-job"))
    Alert.objects.create(
        pool=world.shared,
        kind="hot",
        subject="gpu:1",
        host=world.hosts["alpha"],
        gpu=world.hosts["alpha"].gpus.get(index=3),
        value=93,
        evidence={"minutes": 5},
        began_at=world.now,
    )
    mine, operators = text_of(world, "member"), text_of(world, "operator")
    assert "vision-job" in mine and "alpha, GPU 3" not in mine and "Acknowledge Held" not in mine
    assert (
        "vision-job" in operators
        and "alpha, GPU 3" in operators
        and "Acknowledge Held and idle, vision-job" in operators
    )
    assert "At least 93 °C for 5 minutes." in operators
    assert "vision-job" not in text_of(world, "other team")


def test_the_filters_of_the_list_are_in_its_address_and_unknown_ones_are_refused(world: World) -> None:
    alert_of(workload(world, world.vision, name="vision-job"))
    alert_of(workload(world, world.vision, name="past-job"), state="ended", ended_at=world.now)
    shown = text_of(world, "operator", kind="held_idle", pool="shared")
    assert "vision-job" in shown and "past-job" not in shown
    assert "Nothing matches" in text_of(world, "operator", kind="hot")
    assert "vision-job" not in text_of(world, "operator", state="ended")
    for query in ({"kind": "cold"}, {"pool": "nowhere"}, {"state": "on fire"}, {"colour": "red"}):
        assert signed_in(world.operator).get(reverse("alerts"), query).status_code == 404, query


def test_an_operator_acknowledges_and_snoozes_an_alert_with_an_audit_record(world: World) -> None:
    alert, client = alert_of(workload(world, world.vision)), signed_in(world.operator)
    address = reverse("alert-change", args=[alert.public_id])
    assert client.post(address, {"verb": "acknowledge"}).status_code == 302
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_by) == ("acknowledged", world.operator)
    client.post(address, {"verb": "snooze", "minutes": "60"})
    alert.refresh_from_db()
    assert alert.state == "snoozed" and alert.snoozed_until is not None
    client.post(address, {"verb": "snooze", "minutes": "2"})
    shown = client.get(reverse("alerts")).content.decode()
    assert "minutes is 2; allowed: a whole number from 5 to 43,200 minutes." in shown
    verbs = AuditEvent.objects.filter(target=f"alert:{alert.public_id}").order_by("pk")
    assert [(each.verb, each.team) for each in verbs] == [
        ("acknowledge_alert", world.vision.team),
        ("snooze_alert", world.vision.team),
    ]


def test_the_page_of_rules_stores_only_the_fields_that_were_changed(world: World) -> None:
    client, address = signed_in(world.operator), reverse("pool-alerts", args=["shared"])
    defaults = ALERT_KINDS[AlertKind.HOT].defaults
    posted: dict[str, Any] = {
        "kind": "hot",
        "enabled": "on",
        "begin": "91.5",
        "begin_minutes": "5",
        "end": "82",
        "end_minutes": "5",
    }
    assert client.post(address, posted).status_code == 302
    rule = AlertRule.objects.get()
    assert (rule.begin, rule.end, rule.notice_minutes) == (91.5, defaults.end, defaults.notice_minutes)
    event = AuditEvent.objects.get(verb="set_alert_rule")
    assert event.before["begin"] == defaults.begin and event.after == event.before | {"begin": 91.5}
    unchanged = client.post(address, posted)
    assert unchanged.status_code == 400 and "nothing to change" in unchanged.content.decode()
    assert client.post(address, posted | {"verb": "reset"}).status_code == 302
    assert not AlertRule.objects.exists()


@pytest.mark.parametrize(
    "change, sentence",
    [
        (
            {"end": 88},
            "end is 88; allowed: a number from 0 to below 88, the value at which the alert begins.",
        ),
        (
            {"begin": 82},
            "begin is 82; allowed: a number above 82, the value at which the alert ends, up to 140.",
        ),
        ({"begin": 200}, "begin is 200; allowed: a number from 0 to 140."),
        ({"begin_minutes": 0}, "begin_minutes is 0; allowed: a whole number from 1 to 2,880 minutes."),
        ({"stop_work": True}, "stop_work is true; allowed: false"),
        ({"warmth": 1}, "warmth"),
    ],
)
def test_thresholds_that_contradict_each_other_are_refused(
    world: World, change: dict[str, Any], sentence: str
) -> None:
    client = signed_in(world.operator)
    answer = client.put("/api/v1/pools/shared/alert-rules/hot/", change, content_type="application/json")
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["field"] == next(iter(change)) and sentence in str(error)
    assert not AlertRule.objects.exists()


def test_both_thresholds_can_move_past_the_old_ones_in_one_change(world: World) -> None:
    client = signed_in(world.operator)
    address = "/api/v1/pools/shared/alert-rules/hot/"
    answer = client.put(address, {"begin": 70, "end": 60}, content_type="application/json")
    assert answer.status_code == 200 and answer.json()["rule"]["begin"] == 70
    assert answer.json()["is_default"] is False
    assert [row["kind"] for row in client.get("/api/v1/pools/shared/alert-rules/").json()] == list(AlertKind)


def test_the_api_lists_alerts_with_their_evidence(world: World) -> None:
    work = workload(world, world.vision, name="vision-job")
    alert_of(work, evidence={"gpus": 2, "model": "H100-80GB", "minutes": 30, "power_w": 71})
    [row] = signed_in(world.vision.member).get("/api/v1/alerts/", {"pool": "shared"}).json()["results"]
    assert (row["subject"], row["workload"], row["pool"]) == ("vision-job", str(work.public_id), "shared")
    assert row["evidence"] == (
        "It holds 2 H100 80GB; none was busy for 30 minutes. Their power is steady, 71 W on average."
    )
    assert signed_in(world.vision.member).get("/api/v1/alerts/", {"pool": "nowhere"}).status_code == 400
    assert signed_in(world.vision.member).get("/api/v1/alerts/", {"colour": "red"}).status_code == 400


def test_operators_get_one_notice_for_an_hour_of_alerts_and_the_owner_one_for_each(world: World) -> None:
    for name in ("one", "two"):
        alert_of(workload(world, world.vision, name=name), began_at=world.now)
    delivery.write_notices(world.now + timedelta(minutes=1))
    to_operator = Notification.objects.get(user=world.operator)
    assert (to_operator.kind, to_operator.numbers["more"]) == ("alerts_began", 1)
    owners = Notification.objects.filter(user=world.vision.member).order_by("pk")
    assert [notice.kind for notice in owners] == ["alert_on_work", "alert_on_work"]
    page = signed_in(world.vision.member).get(reverse("notifications")).content.decode()
    assert "Held and idle: one." in page


def test_the_owner_of_unused_work_is_warned_of_the_stop(world: World) -> None:
    stop_at = world.now + timedelta(minutes=30)
    alert_of(workload(world, world.vision, name="one"), began_at=world.now, stop_at=stop_at)
    delivery.write_notices(world.now + timedelta(minutes=1))
    delivery.write_notices(world.now + timedelta(minutes=2))
    warning = Notification.objects.get(kind="unused_work_stops")
    assert (warning.user, warning.numbers["stop_at"]) == (world.vision.member, stop_at.timestamp())


def test_every_kind_of_alert_has_a_label_a_unit_and_a_sentence() -> None:
    assert set(ALERT_KIND_LABELS) == set(EVIDENCE_SENTENCES) == set(AlertKind)
    for kind, definition in ALERT_KINDS.items():
        assert definition.unit in UNIT_LABELS
        assert alert_evidence(kind, definition.defaults.begin, {}).endswith(".")
