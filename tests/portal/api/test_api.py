"""Test the API: it has the services and permissions of the pages, and one error format."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings
from rest_framework.test import APIClient

from portal.models import ApiToken, AuditEvent, Submission
from scheduler.models import Decision, Pool, Reservation, Run, Workload
from scheduler.runs import logs
from tests.portal.api.conftest import Client
from tests.portal.web.work_samples import reserve
from tests.seeds import first_cases
from tests.world import H100, World

JOB = {
    "project": "vision/vision-main",
    "pool": "shared",
    "name": "train",
    "command": "python train.py",
    "units": 2,
    "models": [H100],
    "max_runtime_seconds": 3600,
}


def submit(client: APIClient, **changes: Any) -> Any:
    return client.post("/api/v1/jobs/", json.dumps(JOB | changes), content_type="application/json")


def test_without_a_token_nothing_is_returned(today_world: World) -> None:
    for path in ("workloads", "pools", "me", "queue"):
        answer = APIClient().get(f"/api/v1/{path}/")
        assert answer.status_code == 401
        assert set(answer.json()["errors"][0]) == {"field", "value", "message"}


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer x", "Bearer gpp_wrong", "Bearer gpp_ü", "Bearer a b c", "Basic eDp5"]
)
def test_an_invalid_token_is_refused(today_world: World, header: str) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)
    assert client.get("/api/v1/me/").status_code == 401


def test_a_job_is_submitted_read_explained_extended_and_cancelled(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.vision.member)
    response = submit(client)
    assert response.status_code == 201, response.json()
    body = response.json()
    assert (body["state"], body["project"], body["priority"], body["units"]) == (
        "queued",
        "vision/vision-main",
        "normal",
        2,
    )
    place = f"/api/v1/workloads/{body['id']}/"
    assert client.get(place).json()["runs"] == []
    assert client.get(f"{place}why/").json()["state"] == "queued"
    assert client.post(f"{place}extend/", {"seconds": 3600}).json()["max_runtime_seconds"] == 7200
    assert client.get("/api/v1/queue/").json()["count"] == 1
    assert client.post(f"{place}cancel/", {"why": "mistake"}).json()["outcome"] == "cancelled"
    second_response = client.post(f"{place}cancel/", {})
    assert (
        second_response.status_code == 409
        and "already ended" in second_response.json()["errors"][0]["message"]
    )
    assert client.post(f"{place}relaunch/", {"units": 1}).json()["units"] == 1
    assert AuditEvent.objects.get(verb="cancel_workload").via == "api"


def test_numbers_of_a_reason_contain_no_primary_keys(today_world: World, client_of: Client) -> None:
    """A client cannot use primary keys, and a key may belong to another team's work.

    The sentence has only names that the user may see.
    """
    client = client_of(today_world.vision.member)
    created = submit(client).json()
    numbers = {
        "need": 2,
        "workloads": 3,
        "workload": 9_000_001,
        "team": 9_000_002,
        "reservation": 9_000_003,
        "model": H100,
    }
    Workload.objects.filter(public_id=created["id"]).update(
        reason_code="waits_for_units", reason_numbers=numbers
    )
    body = client.get(f"/api/v1/workloads/{created['id']}/why/").json()
    assert body["numbers"] == {"need": 2, "workloads": 3, "model": H100, "wanted": [H100], "profile": ""}
    Decision.objects.create(
        workload=Workload.objects.get(public_id=created["id"]),
        kind="evicted",
        code="evicted_for_guarantee",
        numbers=numbers | {"for_workload": 9_000_004, "lost": 7},
        at=today_world.now,
        epoch=1,
    )
    for path in ("why/", ""):
        assert "900000" not in client.get(f"/api/v1/workloads/{created['id']}/{path}").content.decode()


def test_ended_and_stopping_work_shows_why_it_ends_and_not_why_it_started(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.vision.member)
    created = submit(client).json()
    rows = Workload.objects.filter(public_id=created["id"])
    rows.update(reason_code="free_within_guarantee", state="stopping", stop_requested="time_limit", attempt=1)
    place = f"/api/v1/workloads/{created['id']}/"
    for answer in (client.get(place), client.get("/api/v1/workloads/")):
        body = answer.json()
        assert (body if "reason" in body else body["results"][0])[
            "reason"
        ] == "It reached its longest runtime."
    assert client.get(f"{place}why/").json()["sentence"] == "It reached its longest runtime."
    rows.update(state="queued", stop_requested="", attempt=0, borrowed_slots=840)
    ended = client.post(f"{place}cancel/", {"why": "wrong data"}).json()
    assert (ended["reason"], ended["borrowed_gpus"]) == ("You cancelled it: wrong data.", 0.0)
    lead = today_world.vision.lead
    assert client_of(lead).get(f"{place}why/").json()["sentence"].endswith(" cancelled it: wrong data.")


def test_a_number_is_refused_where_text_is_required(today_world: World, client_of: Client) -> None:
    answer = client_of(today_world.operator).post("/api/v1/hosts/", {"name": 0, "pool": "shared"})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["message"] == "name is 0: a number; allowed: text."


@pytest.mark.long
def test_a_job_depends_on_a_whole_array_and_shows_it(today_world: World, client_of: Client) -> None:
    client = client_of(today_world.vision.member)
    sweep = client.post(
        "/api/v1/arrays/", json.dumps(JOB | {"array": "0-3"}), content_type="application/json"
    ).json()
    response = submit(client, after=[{"array": sweep["id"], "condition": "ok"}])
    assert response.status_code == 201
    body = client.get(f"/api/v1/workloads/{response.json()['id']}/").json()["after"]
    assert body == [{"workload": None, "array": sweep["id"], "condition": "ok", "settled_at": None}]
    for wrong in ({}, {"array": sweep["id"], "workload": response.json()["id"]}):
        refused = submit(client, after=[{**wrong, "condition": "ok"}])
        assert refused.status_code == 400 and "allowed" in refused.json()["errors"][0]["message"]
    other = client_of(today_world.language.member)
    foreign = submit(
        other, project="language/language-main", after=[{"array": sweep["id"], "condition": "ok"}]
    )
    assert (
        foreign.status_code == 400 and "allowed: the id of an array" in foreign.json()["errors"][0]["message"]
    )


def test_too_much_waiting_work_is_refused_with_the_numbers(today_world: World, client_of: Client) -> None:
    Pool.objects.update(most_waiting_per_user=2)
    client = client_of(today_world.vision.member)
    refused = client.post(
        "/api/v1/arrays/", json.dumps(JOB | {"array": "0-2"}), content_type="application/json"
    )
    assert refused.status_code == 409 and not Workload.objects.exists()
    body = refused.json()
    assert (body["code"], body["numbers"]) == (
        "too_many_waiting",
        {"of": "person", "waiting": 0, "more": 3, "limit": 2},
    )
    assert "3 more would exceed the limit of 2 for one person" in body["errors"][0]["message"]


def test_a_notebook_is_launched_and_cannot_be_opened_before_it_runs(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.vision.member)
    response = client.post("/api/v1/notebooks/", {"project": "vision-main", "pool": "shared"})
    assert response.status_code == 201
    opened = client.post(f"/api/v1/workloads/{response.json()['id']}/open/", {})
    assert opened.status_code == 409
    assert client.get("/api/v1/notebooks/").json()["count"] == 1
    assert client.get("/api/v1/jobs/").json()["count"] == 0


@pytest.mark.parametrize(
    "role", ["other team", *(pytest.param(role, marks=pytest.mark.long) for role in ("stranger", "finance"))]
)
def test_objects_that_the_user_may_not_see_are_not_found(
    today_world: World, client_of: Client, role: str
) -> None:
    created = submit(client_of(today_world.vision.member)).json()
    client = client_of(today_world.people[role])
    place = f"/api/v1/workloads/{created['id']}/"
    for path in ("", "why/", "logs/"):
        assert client.get(place + path).status_code == 404
    for path in ("cancel/", "extend/", "keep/", "relaunch/", "open/"):
        assert (
            client.post(place + path, {"seconds": 60} if path in ("extend/", "keep/") else {}).status_code
            == 404
        )
    assert client.get("/api/v1/workloads/").json()["count"] == 0
    assert Workload.objects.get().state == "queued"


@pytest.mark.parametrize("role", ["team mate", "auditor"])
def test_changing_a_visible_object_without_permission_is_forbidden(
    today_world: World, client_of: Client, role: str
) -> None:
    created = submit(client_of(today_world.vision.member)).json()
    answer = client_of(today_world.people[role]).post(f"/api/v1/workloads/{created['id']}/cancel/", {})
    assert answer.status_code == 403
    assert "owner" in answer.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("changes", "field"),
    first_cases(
        8,
        [
            ({"units": 0}, "units"),
            ({"units": -1}, "units"),
            ({"units": 10**40}, "units"),
            ({"units": "two"}, "units"),
            ({"units": None}, "units"),
            ({"units": [1]}, "units"),
            ({"units": 100}, "units"),
            ({"name": "a\0b"}, "name"),
            ({"name": "a\u202eb"}, "name"),
            ({"name": "x" * 10_000}, "name"),
            ({"name": {"a": 1}}, "name"),
            ({"command": "\ud800"}, "command"),
            ({"project": "language/language-main"}, "project"),
            ({"project": "a\0b"}, "project"),
            ({"project": "\ud800"}, "project"),
            ({"pool": "vision-only\u202e"}, "pool"),
            ({"pool": "nowhere"}, "pool"),
            ({"models": ["B9000"]}, "models"),
            ({"models": "H100"}, "models"),
            ({"priority": "critical"}, "priority"),
            ({"max_runtime_seconds": 10**12}, "max_runtime_seconds"),
            ({"reservation": "not-a-uuid"}, "reservation"),
            ({"reservation": "00000000-0000-0000-0000-000000000000"}, "reservation"),
            ({"environment": {"A\0": "x"}}, "environment"),
            ({"labels_required": {"\ud800": "x"}}, "labels_required"),
            ({"after": [{"workload": "00000000-0000-0000-0000-000000000000"}]}, "after"),
            ({"after": "x"}, "after"),
            ({"gpus": 4}, "gpus"),
        ],
    ),
)
def test_an_invalid_field_is_named_with_its_value_and_what_is_allowed(
    today_world: World, client_of: Client, changes: dict[str, Any], field: str
) -> None:
    answer = submit(client_of(today_world.vision.member), **changes)
    assert answer.status_code == 400, answer.content
    body = answer.json()["errors"]
    assert [each["field"].split(".")[0] for each in body] == [field]
    assert field in body[0]["message"]
    assert not Workload.objects.exists()


def test_too_many_dependencies_are_refused_before_any_is_looked_up(
    today_world: World, client_of: Client, django_assert_max_num_queries: Any
) -> None:
    client = client_of(today_world.vision.member)
    first = submit(client).json()["id"]
    with django_assert_max_num_queries(15):
        answer = submit(client, after=[{"workload": first}] * 1000)
    assert answer.status_code == 400
    body = answer.json()["errors"][0]
    assert body["field"] == "after" and "20" in body["message"]


@pytest.mark.parametrize(
    "body",
    first_cases(
        2,
        [
            "{",
            "[]",
            '"x"',
            "null",
            '{"units": NaN}',
            '{"units": 1e400}',
            '{"units": ' + "9" * 5000 + "}",
            "{" * 3000,
            "[" * 100_000,
            '{"a":' * 50_000,
            "\x00",
            "\ud800",
        ],
    ),
)
def test_a_body_that_is_not_an_object_is_refused(today_world: World, client_of: Client, body: str) -> None:
    client = client_of(today_world.vision.member)
    answer = client.post(
        "/api/v1/jobs/", body.encode("utf-8", "surrogatepass"), content_type="application/json"
    )
    assert answer.status_code == 400
    assert answer.json()["errors"]


def test_a_body_that_is_too_long_is_refused_even_without_a_web_server(
    today_world: World, client_of: Client, settings: Any
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 4096
    body = json.dumps({**JOB, "command": "x" * 4096})
    answer = client_of(today_world.vision.member).post(
        "/api/v1/jobs/", data=body, content_type="application/json"
    )
    assert answer.status_code == 413
    assert answer.json()["errors"][0]["message"] == "The body is too large; allowed: up to 4 KiB."
    assert not Workload.objects.exists()


def test_a_body_of_another_content_type_is_refused(today_world: World, client_of: Client) -> None:
    answer = client_of(today_world.vision.member).post(
        "/api/v1/jobs/", "a=1", content_type="application/x-www-form-urlencoded"
    )
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "query",
    first_cases(
        2,
        [
            "page=0",
            "page=x",
            "page=99999999999999999999",
            "page_size=1000",
            "state=gone",
            "nope=1",
            "pool=%ED%A0%80",
            "mine=perhaps",
        ],
    ),
)
def test_an_invalid_query_is_refused(today_world: World, client_of: Client, query: str) -> None:
    answer = client_of(today_world.vision.member).get(f"/api/v1/workloads/?{query}")
    assert answer.status_code == (200 if query.startswith("pool=") else 400)


def test_a_small_reservation_is_confirmed_and_a_large_one_waits(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.vision.member)
    start = datetime.now(UTC) + timedelta(days=1)
    fields = {
        "project": "vision/vision-main",
        "pool": "shared",
        "name": "Review",
        "units": 2,
        "models": [H100],
        "start": start.isoformat(),
        "end": (start + timedelta(hours=8)).isoformat(),
    }
    preview = client.post(
        "/api/v1/reservations/preview/", {k: v for k, v in fields.items() if k != "name"}
    ).json()
    assert (preview["fits"], preview["needs_approval"]) == (True, False)
    response = client.post("/api/v1/reservations/", fields)
    assert response.status_code == 201 and response.json()["reservation"]["state"] == "confirmed"
    waiting = client.post("/api/v1/reservations/", fields | {"units": 6})
    assert waiting.status_code == 202, waiting.json()
    submission = waiting.json()["submission"]
    operator = client_of(today_world.operator)
    effect = operator.get(f"/api/v1/approvals/{submission['id']}/effect/").json()
    assert effect["fits"] and effect["overlapping"][0]["name"] == "Review"
    assert client.post(f"/api/v1/approvals/{submission['id']}/approve/", {}).status_code == 403
    answer = operator.post(f"/api/v1/approvals/{submission['id']}/approve/", {"comment": "good"})
    assert answer.json()["decision"]["by"] == "operator"
    full = client.post("/api/v1/reservations/", fields | {"units": 4})
    assert full.status_code == 409
    assert full.json()["code"] in ("window_full", "window_eats_guarantees") and full.json()["windows"]
    place = f"/api/v1/reservations/{response.json()['reservation']['id']}/"
    assert client_of(today_world.language.member).get(place).status_code == 404
    assert client.post(f"{place}cancel/", {}).json()["state"] == "cancelled"


def test_the_next_reservation_is_listed_first_and_past_ones_last(
    today_world: World, client_of: Client
) -> None:
    for name, hours, state in (
        ("long ago", -50, "ended"),
        ("far", 90, "confirmed"),
        ("next", 3, "confirmed"),
        ("given up", 1, "cancelled"),
        ("yesterday", -20, "ended"),
        ("soon", 20, "confirmed"),
    ):
        row = reserve(today_world, today_world.vision, name, hours=hours, length=2)
        Reservation.objects.filter(pk=row.pk).update(state=state)
    found = client_of(today_world.vision.member).get("/api/v1/reservations/").json()["results"]
    assert [row["name"] for row in found] == ["next", "soon", "far", "given up", "yesterday", "long ago"]


@pytest.mark.parametrize(
    ("start", "end"),
    first_cases(
        2,
        [
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00+14:00", "0001-01-02T00:00:00Z"),
            ("9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z"),
            ("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"),
            ("yesterday", "tomorrow"),
            (None, 7),
        ],
    ),
)
def test_impossible_times_are_refused(today_world: World, client_of: Client, start: Any, end: Any) -> None:
    fields = {
        "project": "vision/vision-main",
        "pool": "shared",
        "name": "x",
        "units": 1,
        "start": start,
        "end": end,
    }
    answer = client_of(today_world.vision.member).post("/api/v1/reservations/", fields)
    assert answer.status_code == 400, answer.content
    assert not Reservation.objects.exists() and not Submission.objects.exists()


def test_a_quota_is_requested_and_declined_with_a_reason(today_world: World, client_of: Client) -> None:
    lead, operator = client_of(today_world.vision.lead), client_of(today_world.operator)
    fields = {"team": "vision", "pool": "shared", "model": H100, "guaranteed_gpus": 9, "why": "deadline"}
    response = lead.post("/api/v1/quotas/requests/", fields)
    assert response.status_code == 202
    place = f"/api/v1/approvals/{response.json()['id']}/"
    assert operator.post(f"{place}decline/", {}).status_code == 400
    assert operator.post(f"{place}decline/", {"comment": "not this month"}).json()["state"] == "declined"
    assert client_of(today_world.vision.member).get(place).status_code == 404
    assert lead.get("/api/v1/quotas/?team=vision").json()["count"] == 2


def test_an_operator_manages_hosts_and_others_only_see_them(today_world: World, client_of: Client) -> None:
    operator, member = client_of(today_world.operator), client_of(today_world.language.member)
    assert member.get("/api/v1/hosts/").json()["count"] == 3
    assert member.get("/api/v1/hosts/delta/").status_code == 404
    assert member.post("/api/v1/hosts/alpha/cordon/", {"why": "x"}).status_code == 403
    assert operator.post("/api/v1/hosts/alpha/preview/", {"verb": "drain"}).json()["gpus"] == 8
    assert operator.post("/api/v1/hosts/alpha/cordon/", {"why": "a fan"}).json()["admin_state"] == "cordoned"
    assert operator.post("/api/v1/hosts/alpha/cordon/", {}).status_code == 409
    assert operator.post("/api/v1/hosts/alpha/return/", {}).json()["admin_state"] == "in_service"
    response = operator.post("/api/v1/hosts/", {"pool": "shared", "name": "gpu-9"})
    assert response.status_code == 201 and response.json()["token"]
    pools = {pool["slug"]: pool for pool in member.get("/api/v1/pools/").json()}
    assert set(pools) == {"shared"}
    assert {model["model"]: model["gpus"] for model in pools["shared"]["models"]}[H100] == 16


def test_tokens_are_created_listed_and_revoked(today_world: World, client_of: Client) -> None:
    client = client_of(today_world.vision.member)
    created = client.post("/api/v1/tokens/", {"name": "laptop"}).json()
    assert created["token"].startswith("gpp_")
    assert created["token"] not in client.get("/api/v1/tokens/").content.decode()
    assert (
        client_of(today_world.operator).post(f"/api/v1/tokens/{created['id']}/revoke/", {}).status_code == 404
    )
    assert client.post(f"/api/v1/tokens/{created['id']}/revoke/", {}).json()["revoked_at"]
    gone = APIClient()
    gone.credentials(HTTP_AUTHORIZATION=f"Bearer {created['token']}")
    assert gone.get("/api/v1/me/").status_code == 401
    assert ApiToken.objects.get(name="test", user=today_world.vision.member).last_used_at is not None


def test_prices_statements_and_budgets_are_limited_to_finance_and_auditors(
    today_world: World, client_of: Client
) -> None:
    finance, member = client_of(today_world.finance), client_of(today_world.vision.member)
    price = {
        "model": H100,
        "cost": "1.8",
        "price": "2.1",
        "valid_from": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
    }
    assert member.post("/api/v1/prices/", price).status_code == 403
    response = finance.post("/api/v1/prices/", price)
    assert (response.status_code, response.json()["cost"]) == (201, "1.800000")
    body = member.get("/api/v1/prices/").json()["results"][0]
    assert (body["price"], body["cost"]) == ("2.100000", None)
    assert finance.get("/api/v1/statements/").status_code == 200
    assert member.get("/api/v1/statements/").status_code == 403
    assert member.get("/api/v1/statements/2026-01/").status_code == 404
    assert member.post("/api/v1/statements/2026-01/close/", {}).status_code == 403
    assert finance.post("/api/v1/statements/2199-01/close/", {}).status_code == 400
    for answer in (
        finance.post("/api/v1/statements/2026-13/close/", {}),
        finance.post("/api/v1/statements/2026-13/propose/", {}),
        finance.get("/api/v1/statements/2026-13/"),
        finance.get("/api/v1/statements/2026-13/idle-payer/"),
    ):
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "month")
        assert "'2026-13'; allowed: a year and a month" in answer.json()["errors"][0]["message"]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    limit = {"pool": "shared", "forgiven_minutes": 45, "valid_from": later}
    assert finance.post("/api/v1/refund-limits/", limit).json()["forgiven_minutes"] == 45
    assert finance.post("/api/v1/refund-limits/", limit).status_code == 409
    assert finance.post("/api/v1/refund-limits/", limit | {"forgiven_minutes": -1}).status_code == 400
    assert member.get("/api/v1/refund-limits/").json()["results"][0]["pool"] == "shared"
    assert finance.post("/api/v1/cost-centres/", {"code": "CC-1", "name": "Vision"}).status_code == 201
    split = {
        "pool": "vision-only",
        "shares": [{"code": "CC-1", "percent": "100"}],
        "valid_from": later,
    }
    shares = "/api/v1/cost-centre-shares/"
    made = finance.post(shares, split)
    assert made.status_code == 201, made.json()
    assert [(row["pool"], row["project"], row["percent"]) for row in made.json()] == [
        ("vision-only", None, "100.00")
    ]
    assert finance.post(shares, split | {"pool": "shared"}).status_code == 400
    assert [row["code"] for row in member.get(shares).json()["results"]] == ["CC-1"]
    other = client_of(today_world.language.member)
    assert other.get(shares).json()["results"] == []
    payer = f"/api/v1/statements/{datetime.now(UTC):%Y-%m}/idle-payer/"
    assert finance.get(payer).json()["payer"] == "operator"
    assert finance.put(payer, {"payer": "use"}).json()["payer"] == "use"
    assert finance.put(payer, {"payer": "x"}).status_code == 400
    budget = {"team": "vision", "month": f"{datetime.now(UTC):%Y-%m}-01", "amount": "100.00"}
    assert finance.post("/api/v1/budgets/", budget).status_code == 201
    for bad in (
        {"amount": "NaN"},
        {"amount": "-1"},
        {"amount": "1e30"},
        {"month": "9999-12-01"},
        {"project": "vision/vision-main"},
    ):
        assert finance.post("/api/v1/budgets/", budget | bad).status_code == 400, bad
    assert [line["name"] for line in member.get("/api/v1/usage/?by=team").json()["lines"]] == ["Vision"]
    assert len(finance.get("/api/v1/usage/?by=team").json()["lines"]) == 3
    for start, end in (
        ("2026-01-02", "2026-01-01"),
        ("9999-12-30", "9999-12-31"),
        ("0001-01-01", "0001-01-02"),
        ("2000-01-01", "2020-01-01"),
    ):
        wrong = member.get(f"/api/v1/usage/?start={start}T00:00:00Z&end={end}T00:00:00Z")
        assert wrong.status_code == 400 and "allowed" in wrong.json()["errors"][0]["message"]
    assert member.get("/api/v1/usage/?end=0001-01-02T00:00:00Z").status_code == 400


def test_logs_are_read_in_pieces(today_world: World, client_of: Client) -> None:
    client = client_of(today_world.vision.member)
    body = submit(client).json()
    place = f"/api/v1/workloads/{body['id']}/logs/"
    assert client.get(place).json() == {"text": "", "next_offset": 0, "ended": False}
    workload = Workload.objects.get()
    run = Run.objects.create(
        workload=workload,
        attempt=workload.attempt,
        host=today_world.hosts["alpha"],
        generation=1,
        placed_at=today_world.now,
    )
    logs.append_log(run.public_id, 0, "hello\nworld\n")
    assert client.get(place).json()["text"] == "hello\nworld\n"
    assert client.get(f"{place}?offset=6").json() == {"text": "world\n", "next_offset": 12, "ended": False}
    assert client.get(f"{place}?offset=-1").status_code == 400
    beyond = client.get(f"{place}?rank=1")
    assert (
        beyond.status_code == 400
        and "allowed for train: 0: it runs on one host" in beyond.json()["errors"][0]["message"]
    )
    Workload.objects.update(hosts=3)
    assert client.get(f"{place}?rank=2").status_code == 200
    beyond = client.get(f"{place}?rank=3")
    assert (
        beyond.json()["errors"][0]["field"] == "rank"
        and "allowed for train: 0 to 2." in beyond.json()["errors"][0]["message"]
    )


def test_a_user_reads_and_changes_their_profile_and_notifications(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.vision.lead)
    assert client.get("/api/v1/me/").json()["teams"] == [{"team": "vision", "role": "lead"}]
    assert client.patch("/api/v1/me/", {"theme": "dark"}).json()["theme"] == "dark"
    assert client.patch("/api/v1/me/", {"time_zone": "Mars"}).status_code == 400
    assert client.get("/api/v1/notifications/").json()["count"] == 0
    assert client.post("/api/v1/notifications/read/", {}).json() == {"read": 0}
    assert client.get("/api/v1/audit/").json()["count"] >= 2


def test_too_many_requests_are_refused_with_a_time_to_retry(
    today_world: World, client_of: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portal.api.base.throttling import WriteThrottle

    monkeypatch.setattr(WriteThrottle, "rate", "2/min")
    client = client_of(today_world.vision.member)
    answers = [client.post("/api/v1/notifications/read/", {}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].headers["Retry-After"]


@override_settings(SECURE_SSL_REDIRECT=False)
def test_a_signed_in_browser_needs_its_csrf_token(today_world: World) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(today_world.vision.member)
    assert client.get("/api/v1/me/").status_code == 200
    assert client.post("/api/v1/notifications/read/", {}).status_code == 403
