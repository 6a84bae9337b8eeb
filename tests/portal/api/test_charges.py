"""Test whose charges the API returns, and filters that name unknown or hidden objects."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from scheduler.models import Workload
from tests.portal.charged_january import MONTH, charged
from tests.seeds import first_cases
from tests.world import H100, World

__all__ = ["charged"]
pytestmark = pytest.mark.django_db


def ask(world: World, role: str, path: str = "charges/", **query: Any) -> Any:
    client = APIClient()
    client.force_authenticate(world.people[role])
    return client.get(f"/api/v1/{path}", query)


@pytest.mark.parametrize(
    ("role", "kind", "teams", "lines"),
    [
        ("finance", "all", [], 4),
        ("auditor", "all", [], 4),
        ("lead", "led_teams", ["vision"], 4),
        ("member", "own", [], 4),
        ("team mate", "own", [], 0),
        ("operator", "none", [], 0),
        ("stranger", "none", [], 0),
    ],
)
def test_the_answer_says_whose_charges_it_has(
    world: World, charged: Workload, role: str, kind: str, teams: list[str], lines: int
) -> None:
    body = ask(world, role, month=MONTH, bucket="used").json()
    assert (body["scope"]["kind"], body["scope"]["teams"]) == (kind, teams)
    assert body["scope"]["text"].endswith(".")
    assert body["count"] == lines


KNOWN = {
    "cost_centre": "CC-vision",
    "team": "vision",
    "project": "vision/vision-main",
    "pool": "shared",
    "user": "vision-1",
    "type": "training",
    "model": H100,
    "bucket": "used",
    "month": MONTH,
}


@pytest.mark.parametrize("field", first_cases(2, KNOWN))
def test_lines_are_filtered_by_the_names_of_objects(world: World, charged: Workload, field: str) -> None:
    answer = ask(world, "finance", **{"bucket": "used", field: KNOWN[field]})
    assert answer.status_code == 200 and answer.json()["count"] == 4, answer.json()


def test_lines_are_filtered_by_the_id_of_a_workload(world: World, charged: Workload) -> None:
    assert ask(world, "finance", workload=charged.public_id).json()["count"] == 4


UNKNOWN = {
    "cost_centre": "CC-nowhere",
    "team": "nowhere",
    "project": "vision/nowhere",
    "pool": "nowhere",
    "user": "nobody",
    "type": "dancing",
    "workload": str(uuid4()),
    "model": "B999",
    "bucket": "lost",
    "month": "2025-12",
}


@pytest.mark.parametrize("field", first_cases(2, UNKNOWN))
def test_an_unknown_object_is_refused_with_field_value_and_what_is_allowed(
    world: World, charged: Workload, field: str
) -> None:
    answer = ask(world, "finance", **{field: UNKNOWN[field]})
    assert answer.status_code == 400
    (problem,) = answer.json()["errors"]
    assert problem["field"] == field and UNKNOWN[field] in problem["message"]
    assert "allowed: " in problem["message"]


@pytest.mark.parametrize("month", ["2026-13", "x", "2199-01", "0000-01", "2026-1"])
def test_a_month_that_does_not_exist_or_lies_in_the_future_is_refused(
    world: World, charged: Workload, month: str
) -> None:
    answer = ask(world, "finance", month=month)
    assert answer.status_code == 400 and answer.json()["errors"][0]["field"] == "month"


def test_an_object_that_the_viewer_may_not_see_answers_like_one_that_does_not_exist(
    world: World, charged: Workload
) -> None:
    hidden = {
        "team": "vision",
        "project": "vision/vision-main",
        "pool": "vision-only",
        "user": "vision-1",
        "workload": str(charged.public_id),
        "cost_centre": "CC-vision",
    }
    for field, value in hidden.items():
        seen, missing = (
            ask(world, "other team", **{field: value}),
            ask(world, "other team", **{field: UNKNOWN[field]}),
        )
        assert (seen.status_code, missing.status_code) == (400, 400)
        assert seen.json()["errors"][0]["message"] == missing.json()["errors"][0]["message"].replace(
            UNKNOWN[field], value
        )


def test_the_use_says_whose_it_is(world: World, charged: Workload) -> None:
    assert ask(world, "operator", "usage/").json()["scope"] == "You see the use of every team."
    mine = ask(world, "member", "usage/").json()["scope"]
    assert mine == "You see the use of Vision. Other teams are not in these sums."
    assert ask(world, "stranger", "usage/").json()["scope"] == "You are in no team, so you see no use."
