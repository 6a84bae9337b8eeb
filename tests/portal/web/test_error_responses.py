"""Test error responses of pages and the API: outages of PostgreSQL or Redis, unexpected errors."""

from __future__ import annotations

import pytest
from django.db import OperationalError
from django.test import Client
from psycopg_pool import PoolTimeout
from redis.exceptions import ConnectionError as RedisAway

from tests.world import World

pytestmark = pytest.mark.django_db


def client_of(world: World) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(world.vision.member)
    return client


@pytest.mark.parametrize("problem", [OperationalError("gone"), PoolTimeout("gone"), RedisAway("gone")])
def test_an_outage_of_a_store_is_reported_with_a_time_to_retry(
    world: World, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def fail(*args: object, **named: object) -> None:
        raise problem

    client = client_of(world)
    monkeypatch.setattr("portal.web.home.search.reads.search", fail)
    page = client.get("/search/?q=abc")
    assert page.status_code == 503 and "not available" in page.content.decode() and page["Retry-After"]
    monkeypatch.setattr("portal.api.people.views.policy.visible_teams", fail)
    answer = client.get("/api/v1/teams/")
    assert (
        answer.status_code == 503
        and "not available" in answer.json()["errors"][0]["message"]
        and answer["Retry-After"]
    )


def test_unexpected_errors_have_the_common_error_format(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **named: object) -> None:
        raise ZeroDivisionError("hush")

    client = client_of(world)
    monkeypatch.setattr("portal.web.home.search.reads.search", fail)
    page = client.get("/search/?q=abc")
    assert (
        page.status_code == 500 and "failed" in page.content.decode() and "hush" not in page.content.decode()
    )
    monkeypatch.setattr("portal.api.people.views.policy.visible_teams", fail)
    answer = client.get("/api/v1/teams/")
    assert answer.status_code == 500 and "hush" not in answer.content.decode()
    assert answer.json()["errors"][0]["message"]


def test_the_api_works_while_redis_is_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object, **named: object) -> None:
        raise RedisAway("gone")

    monkeypatch.setattr("django.core.cache.backends.redis.RedisCache.get", away)
    assert client_of(world).get("/api/v1/teams/").status_code == 200


def test_an_unknown_api_url_is_answered_in_json(client: Client) -> None:
    answer = client.get("/api/v1/pools/no slug at all/isolation/")
    assert answer.status_code == 404 and answer["Content-Type"] == "application/json"
    assert answer.json()["errors"][0]["message"].startswith("There is no such address")
    page = client.get("/no/such/page/")
    assert page.status_code == 404 and page["Content-Type"].startswith("text/html")
