"""Test hosts and health rules in the API: effects of actions, remaining work, join tokens, revocation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.dateparse import parse_datetime

from portal.models import AuditEvent, User
from portal.services.fleet import host_effects
from scheduler.coordination import leases
from scheduler.models import Host, JoinToken, MaintenanceWindow, Reservation, Run, Storage, Workload
from telemetry.models import HealthEvent, HealthRule, SlowReading
from telemetry.reads.usage import gpu_counters
from tests.portal.api.conftest import Client
from tests.portal.web.work_samples import reserve, run_job
from tests.world import World

HOSTS = "/api/v1/hosts/"
PREVIEW = f"{HOSTS}alpha/preview/"


@pytest.fixture
def busy(today_world: World) -> World:
    """Run a preemptible job and a notebook that is not preemptible on alpha."""
    run_job(today_world, today_world.vision, "storm", host="alpha", gpus=[0, 1])
    run_job(today_world, today_world.language, "desk", host="alpha", gpus=[2], kind="notebook")
    return today_world


def effects_by_name(answer: Any) -> dict[str, str]:
    return {row["name"]: row["happens"] for row in answer.json()["work"]}


def test_a_preview_shows_the_effect_of_each_action_on_each_workload_with_its_deadline(
    busy: World, client_of: Client
) -> None:
    operator = client_of(busy.operator)
    limits = {
        w.name: w.started_at + timedelta(seconds=w.max_runtime_seconds)
        for w in Workload.objects.all()
        if w.started_at
    }

    def deadlines(answer: Any) -> dict[str, Any]:
        return {row["name"]: row["by"] and parse_datetime(row["by"]) for row in answer.json()["work"]}

    drain = operator.post(PREVIEW, {"verb": "drain"})
    assert effects_by_name(drain) == {"storm": "moves", "desk": "runs_to_end"}
    gone = deadlines(drain)["storm"] - busy.now
    notice = timedelta(seconds=busy.shared.notice_seconds + busy.shared.grace_seconds)
    assert notice <= gone < notice + timedelta(minutes=5) and deadlines(drain)["desk"] == limits["desk"]
    assert [row["name"] for row in drain.json()["work"]] == ["storm", "desk"], "sorted by deadline"
    cordon = operator.post(PREVIEW, {"verb": "cordon"})
    assert effects_by_name(cordon) == {"storm": "runs_on", "desk": "runs_on"} and deadlines(cordon) == limits
    assert parse_datetime(cordon.json()["last_end"]) == max(limits.values())
    Host.objects.filter(name="alpha").update(last_sync_at=busy.now)
    revoke = operator.post(PREVIEW, {"verb": "revoke"})
    host = Host.objects.select_related("pool").get(name="alpha")
    ends = busy.now + timedelta(seconds=leases.silence_limits_seconds([host])[host.pk])
    assert effects_by_name(revoke) == {"storm": "lease", "desk": "lease"} and set(
        deadlines(revoke).values()
    ) == {ends}
    start, end = busy.now + timedelta(hours=1), busy.now + timedelta(hours=2)
    Workload.objects.filter(name="storm").update(max_runtime_seconds=3600)
    window = operator.post(
        PREVIEW, {"verb": "maintenance", "start": start.isoformat(), "end": end.isoformat()}
    )
    assert (
        effects_by_name(window) == {"storm": "before", "desk": "moved_before"}
        and deadlines(window)["desk"] == start
    )
    Host.objects.filter(name="alpha").update(
        last_sync_at=busy.now - timedelta(hours=1), lease_state="suspect"
    )
    off = operator.post(PREVIEW, {"verb": "off"})
    assert effects_by_name(off) == {"storm": "lost", "desk": "lost"} and set(deadlines(off).values()) == {
        None
    }
    assert off.json()["gpus"] is None and drain.json()["gpus"] == 8


def test_restarted_work_gets_its_full_maximum_runtime_again(busy: World, client_of: Client) -> None:
    storm = Workload.objects.get(name="storm")
    begun = busy.now - timedelta(minutes=1)
    Workload.objects.filter(pk=storm.pk).update(started_at=busy.now - timedelta(hours=5), attempt=2)
    Run.objects.filter(workload=storm).update(running_at=begun, attempt=2)
    cordon = client_of(busy.operator).post(PREVIEW, {"verb": "cordon"}).json()
    by = {row["name"]: parse_datetime(row["by"]) for row in cordon["work"]}
    assert by["storm"] == begun + timedelta(seconds=storm.max_runtime_seconds)


def test_a_preview_changes_nothing(busy: World, client_of: Client) -> None:
    operator = client_of(busy.operator)
    operator.get("/api/v1/me/")  # the first use of the token from this address is audited
    before = list(Host.objects.order_by("pk").values()), list(Workload.objects.order_by("pk").values())
    events_before = AuditEvent.objects.count()
    for verb in ("cordon", "drain", "revoke"):
        assert operator.post(PREVIEW, {"verb": verb}).status_code == 200
    assert before == (
        list(Host.objects.order_by("pk").values()),
        list(Workload.objects.order_by("pk").values()),
    )
    assert AuditEvent.objects.count() == events_before


def test_a_preview_shows_which_work_would_lose_its_checkpoint(busy: World, client_of: Client) -> None:
    for name in (
        "alpha",
        "beta",
    ):  # each host has its own storage for homes, so no other host has the checkpoint
        homes = Storage.objects.create(key=name, listed_at=busy.now)
        Host.objects.filter(name=name).update(storage=homes)
    body = client_of(busy.operator).post(PREVIEW, {"verb": "drain"}).json()["work"][0]
    assert body["begins_anew"] and body["words"].endswith(
        "it does not find the checkpoint and starts from the beginning"
    )


def test_a_preview_is_refused_with_the_same_error_as_its_action(busy: World, client_of: Client) -> None:
    operator = client_of(busy.operator)
    for verb, path in (("return", "return"), ("off", "attest-off")):
        Host.objects.filter(name="alpha").update(last_sync_at=busy.now)
        response, done = (
            operator.post(PREVIEW, {"verb": verb}),
            operator.post(f"{HOSTS}alpha/{path}/", {"why": "x"}),
        )
        assert (response.status_code, response.json()) == (409, done.json())
    window = {
        "start": (busy.now + timedelta(hours=1)).isoformat(),
        "end": (busy.now + timedelta(hours=2)).isoformat(),
    }
    assert operator.post(f"{HOSTS}alpha/maintenance/", {**window, "why": "x"}).status_code == 201
    response = operator.post(PREVIEW, {"verb": "maintenance", **window})
    assert (response.status_code, response.json()) == (
        409,
        operator.post(f"{HOSTS}alpha/maintenance/", {**window, "why": "x"}).json(),
    )
    for wrong in ({}, {"start": window["end"], "end": window["start"]}, {"start": window["start"]}):
        answer = operator.post(PREVIEW, {"verb": "maintenance", **wrong})
        assert answer.status_code == 400 and "allowed" in answer.json()["errors"][0]["message"], wrong
    assert operator.post(PREVIEW, {"verb": "explode"}).status_code == 400
    assert operator.post(PREVIEW, {}).status_code == 400


def test_an_action_returns_the_new_state_and_the_remaining_work(busy: World, client_of: Client) -> None:
    operator = client_of(busy.operator)
    body = operator.post(f"{HOSTS}alpha/drain/", {"why": "fans"}).json()
    assert (
        body["said"] == "alpha is draining: nothing new starts on it." and body["admin_state"] == "draining"
    )
    assert [(row["name"], row["happens"]) for row in body["still_there"]] == [
        ("storm", "leaves"),
        ("desk", "runs_to_end"),
    ]
    gone_by = Workload.objects.get(name="storm").gone_by
    assert gone_by and parse_datetime(body["still_there"][0]["by"]) == gone_by
    Run.objects.update(ended_at=busy.now)
    assert operator.post(f"{HOSTS}alpha/cordon/", {}).json()["still_there"] == []
    back = operator.post(f"{HOSTS}alpha/return/", {}).json()
    assert back["said"] == "alpha is back in service."


def test_announced_maintenance_is_returned_with_its_id_and_its_effect(busy: World, client_of: Client) -> None:
    operator = client_of(busy.operator)
    window = {
        "start": (busy.now + timedelta(days=1)).isoformat(),
        "end": (busy.now + timedelta(days=2)).isoformat(),
    }
    created = operator.post(f"{HOSTS}alpha/maintenance/", {**window, "why": "fans"}).json()
    assert created["id"] == MaintenanceWindow.objects.get().pk
    effects = {row["name"]: row["happens"] for row in created["work"]}
    assert effects == {"storm": "before", "desk": "before"}


def test_reservations_that_could_not_be_kept_are_named(today_world: World, client_of: Client) -> None:
    for name in ("one", "two"):
        row = reserve(today_world, today_world.vision, name, hours=4, length=2)
        Reservation.objects.filter(pk=row.pk).update(units=8, state="confirmed")
    body = client_of(today_world.operator).post(PREVIEW, {"verb": "drain"}).json()
    assert [row["name"] for row in body["unkept"]] in (["one"], ["two"]), "8 of the 16 GPUs remain"
    assert body["unkept"][0]["team"] == "vision"


def test_a_join_token_is_returned_with_its_command_and_expiry(today_world: World, client_of: Client) -> None:
    operator = client_of(today_world.operator)
    created = operator.post(HOSTS, {"pool": "shared", "name": "gpu-9"}).json()
    again = operator.post(f"{HOSTS}gpu-9/join-token/", {}).json()
    for answer in (created, again):
        assert "--host gpu-9 --join-token-file - && sudo systemctl enable" in answer["command"]
        assert answer["command"].startswith(f"printf %s {answer['token']} | sudo ")
        assert (
            "| ./run agent run " in answer["checkout_command"]
            and answer["token"] in answer["checkout_command"]
        )
    assert parse_datetime(again["good_until"]) == JoinToken.objects.latest("pk").expires_at
    assert "systemctl stop" not in again["command"]
    Host.objects.filter(name="gpu-9").update(agent_version="1")
    assert (
        operator.post(f"{HOSTS}gpu-9/join-token/", {})
        .json()["command"]
        .startswith("sudo systemctl stop gpupool-agent && ")
    )


def test_a_revoked_host_is_shown_as_revoked_until_it_joins_again(
    today_world: World, client_of: Client
) -> None:
    Host.objects.update(credential_hash="x" * 64)
    operator, member = client_of(today_world.operator), client_of(today_world.language.member)
    assert operator.post(f"{HOSTS}alpha/revoke/", {"why": "its disk left"}).json()["state"] == "revoked"
    Host.objects.filter(name="beta").update(admin_state="draining")
    for client in (operator, member):
        hosts_by_name = {row["name"]: row for row in client.get(HOSTS).json()["results"]}
        assert (hosts_by_name["alpha"]["state"], hosts_by_name["alpha"]["revoked_why"]) == (
            "revoked",
            "its disk left",
        )
        assert hosts_by_name["alpha"]["revoked_at"] and hosts_by_name["beta"]["revoked_at"] is None
        assert (hosts_by_name["beta"]["state"], hosts_by_name["gamma"]["state"]) == ("draining", "ready")
        assert today_world.operator.username not in str(hosts_by_name["alpha"])
    Host.objects.filter(name="alpha").update(lease_state="silent")
    assert member.get(f"{HOSTS}alpha/").json()["state"] == "revoked"
    Host.objects.filter(name="alpha").update(credential_hash="y" * 64)
    assert member.get(f"{HOSTS}alpha/").json()["state"] == "silent"


def test_lists_make_the_same_number_of_queries_for_any_number_of_revoked_hosts(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.operator)

    def query_count() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(HOSTS).status_code == 200
        return len(seen)

    Host.objects.update(credential_hash="x" * 64)
    client.post(f"{HOSTS}alpha/revoke/", {})
    one = query_count()
    for name in ("beta", "gamma", "delta"):
        client.post(f"{HOSTS}{name}/revoke/", {})
    assert query_count() == one


def test_a_preview_makes_the_same_number_of_queries_for_any_number_of_workloads(
    busy: World, client_of: Client
) -> None:
    client = client_of(busy.operator)

    def query_count() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.post(PREVIEW, {"verb": "revoke"}).status_code == 200
        # Do not count queries that only some requests make: the token's last use and the clock reading.
        periodic = ("apitoken", "clockreading", "SAVEPOINT")
        return sum(not any(name in query["sql"] for name in periodic) for query in seen)

    query_count()
    few = query_count()
    for index in (3, 4, 5):
        run_job(busy, busy.vision, f"more {index}", host="alpha", gpus=[index])
    assert query_count() == few


def test_an_unknown_host_is_refused_with_the_hosts_that_the_user_may_see(
    today_world: World, client_of: Client
) -> None:
    for who, seen in (
        (today_world.operator, "alpha, beta, delta, gamma"),
        (today_world.language.member, "alpha, beta, gamma"),
    ):
        client = client_of(who)
        for method, path in (
            ("get", ""),
            ("post", "drain/"),
            ("get", "health/"),
            ("get", "geometry/"),
            ("post", "preview/"),
        ):
            answer = getattr(client, method)(
                f"{HOSTS}h9/{path}", {"verb": "drain"} if path == "preview/" else {}
            )
            assert answer.status_code == 404
            assert answer.json()["errors"] == [
                {"field": "host", "value": "h9", "message": f"host is 'h9'; allowed: {seen}."}
            ], path
    for number in range(12):
        Host.objects.create(name=f"aa-{number:02d}", pool=today_world.shared, created_at=today_world.now)
    body = client_of(today_world.operator).get(f"{HOSTS}h9/").json()["errors"][0]["message"]
    assert "aa-09, and others in the list of hosts." in body and "aa-10" not in body


def test_the_page_and_the_api_describe_a_drain_in_the_same_words(busy: World, client_of: Client) -> None:
    """The page and the API use one function and one table of texts."""
    found = host_effects.host_verb_effect(busy.hosts["alpha"], "drain", busy.now)
    body = client_of(busy.operator).post(PREVIEW, {"verb": "drain"}).json()
    assert [(row.workload.name, row.words) for row in found.work] == [
        (row["name"], row["words"]) for row in body["work"]
    ]


def test_health_rules_are_filtered_sorted_and_paginated(today_world: World, client_of: Client) -> None:
    member = client_of(today_world.language.member)
    rules = "/api/v1/health-rules/"
    first = member.get(f"{rules}?page_size=5&find=xid").json()
    assert [row["code"] for row in first["results"]] == ["xid:8", "xid:11", "xid:13", "xid:25", "xid:31"]
    assert first["count"] == HealthRule.objects.filter(code__contains="xid").count()
    assert member.get(f"{rules}?page_size=5&page=2&find=xid").json()["results"][0]["code"] == "xid:32"
    assert {row["action"] for row in member.get(f"{rules}?action=cordon").json()["results"]} == {"cordon"}
    assert member.get(f"{rules}?changed=true").json()["results"] == []
    assert member.get(f"{rules}?action=explode").status_code == 400
    assert member.get(f"{rules}xid:79/").json()["default"] == {
        "action": "cordon",
        "repeats": 1,
        "window_seconds": 3600,
        "counts": "events",
    }
    unknown = member.get(f"{rules}xid:9999/")
    assert (
        unknown.status_code == 404
        and "code is 'xid:9999'; allowed: a code that has a rule" in unknown.content.decode()
    )


def test_health_rules_are_changed_reset_added_and_removed(today_world: World, client_of: Client) -> None:
    operator, rules = client_of(today_world.operator), "/api/v1/health-rules/"
    changed = operator.put(f"{rules}xid:79/", {"action": "drain", "why": "a bad batch"}).json()
    assert (changed["action"], changed["repeats"], changed["origin"]) == ("drain", 1, "changed")
    assert [row["code"] for row in operator.get(f"{rules}?changed=true").json()["results"]] == ["xid:79"]
    assert operator.put(f"{rules}xid:79/", {}).status_code == 400
    assert operator.put(f"{rules}xid:79/", {"why": "x"}).status_code == 400
    assert operator.post(f"{rules}xid:79/reset/", {}).json()["origin"] == "default"
    added = operator.post(rules, {"code": "xid:999", "meaning": "x", "action": "warn"})
    assert (added.status_code, added.json()["default"], added.json()["origin"]) == (201, None, "added")
    assert operator.post(rules, {"code": "xid:999", "meaning": "x", "action": "warn"}).status_code == 409
    assert operator.post(rules, {"code": "nonsense", "meaning": "x", "action": "warn"}).status_code == 400
    assert operator.post(f"{rules}xid:999/remove/", {}).json()["code"] == "xid:999"
    assert operator.get(f"{rules}xid:999/").status_code == 404
    assert set(AuditEvent.objects.filter(verb__contains="health_rule").values_list("via", flat=True)) == {
        "api"
    }


def test_an_invalid_choice_is_refused_with_the_valid_ones(today_world: World, client_of: Client) -> None:
    operator = client_of(today_world.operator)

    def messages(answer: Any) -> list[dict[str, Any]]:
        assert answer.status_code == 400
        return list(answer.json()["errors"])

    actions = "allowed: note, warn, cordon, drain, quarantine_gpu."
    wrong = {"field": "action", "value": "'melt'", "message": f"action is 'melt'; {actions}"}
    assert messages(operator.put("/api/v1/health-rules/xid:79/", {"action": "melt"})) == [wrong]
    assert messages(operator.get("/api/v1/health-rules/?action=melt")) == [wrong]
    (verb,) = messages(operator.post(PREVIEW, {"verb": ["drain"]}))
    assert verb["message"] == "verb is ['drain']; allowed: cordon, drain, return, off, revoke, maintenance."
    (field,) = messages(operator.post(f"{HOSTS}alpha/join-token/", {"why": "new"}))
    assert field["message"] == "why is 'new': this request has no such field; allowed: none."


def test_a_host_has_the_same_fields_as_its_page(today_world: World, client_of: Client) -> None:
    client = client_of(today_world.vision.member)
    bare = client.get(f"{HOSTS}alpha/").json()
    assert bare["refused_agent"] is None and bare["disk_full_since"] is None and bare["agent"]["notes"] == []
    reported = {
        "driver_version": "550.54",
        "network": "host",
        "address": "10.0.0.1",
        "notes": ["No limits of cpu."],
        "gpus": [],
    }
    Host.objects.filter(name="alpha").update(
        hardware={"reported": reported},
        agent_version="1.2",
        boot_id="boot-1",
        simulated=False,
        disk_full=True,
        disk_full_since=today_world.now,
        refused_agent={
            "reason": "somebody else",
            "at": today_world.now.isoformat(),
            "code": "",
            "instance": "",
            "boot_id": "",
        },
    )
    body = client.get(f"{HOSTS}alpha/").json()
    assert body["agent"]["driver_version"] == "550.54" and body["agent"]["notes"] == ["No limits of cpu."]
    assert (body["agent"]["network"], body["agent"]["address"], body["agent"]["boot_id"]) == (
        "host",
        "10.0.0.1",
        "",
    )
    assert (
        body["refused_agent"]["reason"] == "somebody else" and body["refused_agent"]["quarantined"] is False
    )
    assert parse_datetime(body["disk_full_since"]) == today_world.now
    assert client_of(today_world.operator).get(f"{HOSTS}alpha/").json()["agent"]["boot_id"] == "boot-1"
    Host.objects.filter(name="alpha").update(simulated=True)
    assert client.get(f"{HOSTS}alpha/").json()["agent"]["driver_version"] == "", (
        "the driver version of a simulated host is not shown"
    )


def test_hardware_events_are_paginated(today_world: World, client_of: Client) -> None:
    for number in range(3):
        HealthEvent.objects.create(
            host=today_world.hosts["alpha"],
            event_id=str(number),
            source="nvml",
            code=f"xid:{100 + number}",
            detail="row 7, pid=4711, name=train",
            at=today_world.now + timedelta(seconds=number),
            received_at=today_world.now,
        )
    client = client_of(today_world.vision.member)
    with CaptureQueriesContext(connection) as asked:
        page = client.get(f"{HOSTS}alpha/events/?page_size=2").json()
    assert page["count"] == 3 and [row["code"] for row in page["results"]] == ["xid:102", "xid:101"]
    assert "4711" not in str(page)
    assert [
        row["code"] for row in client.get(f"{HOSTS}alpha/events/?page_size=2&page=2").json()["results"]
    ] == ["xid:100"]
    with CaptureQueriesContext(connection) as all_of_them:
        client.get(f"{HOSTS}alpha/events/")
    assert len(all_of_them) == len(asked)


@pytest.mark.parametrize("part", ["events", "health"])
def test_only_operators_and_auditors_see_whose_process_an_event_is_about(
    today_world: World, client_of: Client, part: str
) -> None:
    who = "miner (pid 4242, user ada, 900 MiB) belongs to no workload"
    ended = "pid=4242, miner of user ada, 900 MiB, by TERM"
    for code, detail in (("stray:process", who), ("stray:ended", ended)):
        HealthEvent.objects.create(
            host=today_world.hosts["alpha"],
            event_id=code,
            source="agent",
            code=code,
            detail=detail,
            at=today_world.now,
            received_at=today_world.now,
        )

    def details_by_code(user: User) -> dict[str, str]:
        found = client_of(user).get(f"{HOSTS}alpha/{part}/").json()
        return {row["code"]: row["detail"] for row in found["events" if part == "health" else "results"]}

    for name in ("operator", "auditor"):
        assert details_by_code(today_world.people[name]) == {"stray:process": who, "stray:ended": ended}
    for name in ("member", "lead", "finance"):
        assert details_by_code(today_world.people[name]) == {
            "stray:process": "a process outside workloads uses it",
            "stray:ended": "",
        }


def test_the_counters_of_a_host_are_series_of_their_changes(
    world: World, client_of: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = world.hosts["alpha"].gpus.get(index=2)
    start = datetime(2026, 3, 2, tzinfo=UTC)
    changes = [(-30, 1), (-3, 2), (5, 3), (7, 4), (60, 9)]
    SlowReading.objects.bulk_create(
        SlowReading(
            gpu=gpu, reading="ecc_corrected", source="nvml", at=start + timedelta(hours=hours), value=value
        )
        for hours, value in changes
    )
    period = {"start": start.isoformat(), "end": (start + timedelta(hours=24)).isoformat()}

    def series(**query: str) -> list[dict[str, Any]]:
        answer = client_of(world.operator).get("/api/v1/hosts/alpha/counters/", period | query)
        assert answer.status_code == 200, answer.content
        found: list[dict[str, Any]] = answer.json()["series"]
        return found

    (found,) = series()
    assert (found["gpu"], found["uuid"], found["reading"], found["source"]) == (
        2,
        gpu.uuid,
        "ecc_corrected",
        "nvml",
    )
    # The value at the start of the period is that of the last change before it.
    assert [point["value"] for point in found["points"]] == [2, 3, 4]
    assert found["points"][0]["at"] == "2026-03-01T21:00:00Z"
    monkeypatch.setattr(gpu_counters, "MAX_POINTS", 2)
    assert [point["value"] for point in series()[0]["points"]] == [2, 4]
    assert series(reading="ecc_uncorrected") == []
    refused = client_of(world.operator).get("/api/v1/hosts/alpha/counters/", period | {"reading": "luck"})
    assert "reading is 'luck'; allowed: " in refused.json()["errors"][0]["message"]


def test_a_period_of_counters_is_checked(world: World, client_of: Client) -> None:
    client, url = client_of(world.operator), "/api/v1/hosts/alpha/counters/"
    for query, field in (
        ({"start": "2026-03-01T00:00:00Z"}, "end"),
        ({"start": "2026-03-02T00:00:00Z", "end": "2026-03-01T00:00:00Z"}, "end"),
        ({"start": "2026-03-01T00:00:00Z", "end": "2027-06-01T00:00:00Z"}, "end"),
    ):
        refused = client.get(url, query)
        assert refused.status_code == 400 and refused.json()["errors"][0]["field"] == field
