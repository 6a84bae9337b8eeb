"""Test that answers are not kept by others, who reads the API's documentation, and times without a zone."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.world import World


@pytest.mark.parametrize("path", ["/", "/api/v1/me/", "/api/v1/workloads/", "/accounts/login/", "/nowhere/"])
def test_private_answers_are_not_stored(world: World, path: str) -> None:
    for client in (Client(), Client()):
        client.force_login(world.vision.member)
        assert "no-store" in client.get(path).headers["Cache-Control"]
    assert "no-store" in Client().get(path).headers["Cache-Control"]


@pytest.mark.parametrize("path", ["/api/schema/", "/api/docs/"])
def test_the_documentation_of_the_api_is_for_signed_in_people_by_setting(
    world: World, settings: Any, path: str
) -> None:
    settings.GPUPOOL_API_DOCS = "signed-in"
    answer = Client().get(path)
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/accounts/login/?next={path}")
    settings.GPUPOOL_API_DOCS = "public"
    assert Client().get(path).status_code == 200


@pytest.mark.parametrize("field", ["start", "end"])
def test_a_time_in_the_input_needs_a_zone(world: World, field: str) -> None:
    client = Client()
    client.force_login(world.operator)
    body = {"start": "2026-10-01T12:00:00Z", "end": "2026-10-01T13:00:00+02:00", field: "2026-10-01T12:00:00"}
    answer = client.post("/api/v1/hosts/alpha/maintenance/", body, content_type="application/json")
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (400, field)
    assert "a time without a zone; allowed: a time with a zone" in error["message"]
