"""Test that a repeated request gets the answer of the first one and changes nothing."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from portal.models import ApiToken, AuditEvent, IdempotencyRecord
from portal.services import idempotency
from scheduler.core.rejection import OperationRejected
from scheduler.models import Workload
from tests.portal.api.conftest import Client
from tests.world import World

JOB = {"project": "vision/vision-main", "pool": "shared", "name": "train", "command": "true", "units": 1}
KEY = {"HTTP_IDEMPOTENCY_KEY": "9f0c"}


@pytest.mark.django_db
def test_a_request_that_is_sent_twice_with_one_key_creates_one_job(
    today_world: World, client_of: Client
) -> None:
    client = client_of(today_world.vision.member)
    first = client.post("/api/v1/jobs/", JOB, **KEY)
    again = client.post("/api/v1/jobs/", JOB, **KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json() and again["Idempotency-Repeated"] == "true"
    assert "Idempotency-Repeated" not in first
    assert Workload.objects.count() == 1 and AuditEvent.objects.filter(verb="submit_job").count() == 1
    assert client.post("/api/v1/jobs/", JOB).status_code == 201
    assert Workload.objects.count() == 2, "without a key each request creates a job"


@pytest.mark.django_db
def test_a_key_belongs_to_one_person_and_to_one_request(today_world: World, client_of: Client) -> None:
    member, lead = client_of(today_world.vision.member), client_of(today_world.vision.lead)
    assert member.post("/api/v1/jobs/", JOB, **KEY).status_code == 201
    other = member.post("/api/v1/jobs/", JOB | {"name": "other"}, **KEY)
    assert other.status_code == 422 and "Idempotency-Key" in other.json()["errors"][0]["message"]
    assert member.post("/api/v1/notebooks/", JOB, **KEY).status_code == 422
    assert lead.post("/api/v1/jobs/", JOB, **KEY).status_code == 201
    assert Workload.objects.count() == 2
    for key in ("", "a b", "x" * 256, "é"):
        refused = member.post("/api/v1/jobs/", JOB, HTTP_IDEMPOTENCY_KEY=key)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "Idempotency-Key"), key


@pytest.mark.django_db
def test_a_refused_request_is_carried_out_when_it_is_repeated(today_world: World, client_of: Client) -> None:
    client = client_of(today_world.vision.member)
    assert client.post("/api/v1/jobs/", JOB | {"units": 0}, **KEY).status_code == 400
    assert not IdempotencyRecord.objects.exists()
    assert client.post("/api/v1/jobs/", JOB, **KEY).status_code == 201


@pytest.mark.django_db
def test_the_stored_answer_does_not_show_a_token(today_world: World, client_of: Client) -> None:
    client = client_of(today_world.vision.member)
    body = {"name": "laptop"}
    first, again = (client.post("/api/v1/tokens/", body, **KEY).json() for _ in range(2))
    assert first["token"] == again["token"] and ApiToken.objects.filter(name="laptop").count() == 1
    record = IdempotencyRecord.objects.get()
    assert first["token"].encode() not in bytes(record.answer) and "9f0c" not in record.key_hash
    with override_settings(SECRET_KEY="another" * 10):
        lost = client.post("/api/v1/tokens/", body, **KEY)
    assert (lost.status_code, lost.json()["code"]) == (409, "answer_is_unreadable")


@pytest.mark.django_db
def test_a_key_is_kept_for_a_day(today_world: World) -> None:
    member, now = today_world.vision.member, timezone.now()
    answers = iter((b"1", b"2"))

    def ask(hours: float) -> bytes:
        return idempotency.answer_once(
            actor=member,
            key="k",
            digest="d",
            now=now + timedelta(hours=hours),
            act=lambda: idempotency.RequestAnswer(201, next(answers)),
        ).body

    assert [ask(0), ask(23.9), ask(24.1)] == [b"1", b"1", b"2"]
    assert idempotency.delete_expired_answers(now + timedelta(hours=25)) == 0
    assert idempotency.delete_expired_answers(now + timedelta(hours=49)) == 1


@pytest.mark.django_db(transaction=True)
def test_a_request_in_progress_is_answered_409_and_its_change_and_answer_are_one_transaction(
    served_job: Any,
) -> None:
    member, now, seen = served_job, timezone.now(), []

    def ask_at_the_same_time() -> None:
        try:
            idempotency.answer_once(
                actor=member, key="k", digest="d", now=now, act=lambda: idempotency.RequestAnswer(201, b"")
            )
        except OperationRejected as rejection:
            seen.append(rejection.code)
        finally:
            connection.close()

    def act() -> idempotency.RequestAnswer:
        other = threading.Thread(target=ask_at_the_same_time)
        other.start()
        other.join()
        return idempotency.RequestAnswer(201, b"")

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        idempotency.answer_once(actor=member, key="k", digest="d", now=now, act=act)
        _ = 1 / 0
    assert seen == ["request_in_progress"]
    assert not IdempotencyRecord.objects.exists(), "the answer is only kept if the change is committed"


@pytest.fixture
def served_job(transactional_db: None) -> Any:
    from tests.world import build_world

    return build_world(timezone.now()).vision.member
