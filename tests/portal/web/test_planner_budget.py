"""Test the limit of each user's planning time per minute, and the cache of recent answers."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import time_machine
from django.core.cache import cache
from django.urls import reverse
from redis.exceptions import RedisError
from rest_framework.test import APIClient

from portal import answer_cache, planner_budget
from portal.errors import PlannerBudgetExceeded
from portal.reads.work import wait_explanation
from portal.services.people import api_tokens
from scheduler.core.what_if.fairness import FairnessRow
from scheduler.models import Pool
from scheduler.reads import explanations
from tests.portal.web.test_alternative_windows import MINUTE, waiting
from tests.portal.web.work_samples import signed_in
from tests.world import H100, World

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    cache.clear()


def test_questions_are_metered_by_planning_time_and_refused_until_the_next_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        planner_budget, "MAX_PLANNING_MS_PER_PERIOD", 2 * planner_budget.ESTIMATED_MS_PER_QUESTION
    )
    now, member = world.now.replace(second=20), world.vision.member
    with planner_budget.metered_planning(member, now), planner_budget.metered_planning(member, now):
        pass  # two nested questions count as one
    with planner_budget.metered_planning(member, now):
        planner_budget._add_planning_ms(
            f"asked:{member.pk}:{int(now.timestamp()) // 60}", 5 * planner_budget.ESTIMATED_MS_PER_QUESTION
        )  # as if the question had used this planning time
    with pytest.raises(PlannerBudgetExceeded) as refused, planner_budget.metered_planning(member, now):
        raise AssertionError("the question was answered")
    assert refused.value.wait == 40
    with planner_budget.metered_planning(world.language.member, now):
        pass  # the question of another user is not refused
    with planner_budget.metered_planning(member, now + timedelta(seconds=40)):
        pass


def test_concurrent_questions_of_one_user_count_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        planner_budget, "MAX_PLANNING_MS_PER_PERIOD", planner_budget.ESTIMATED_MS_PER_QUESTION
    )
    with planner_budget.metered_planning(world.vision.member, world.now):
        token = planner_budget._is_metered.set(False)  # as if another thread asked the next question
        with (
            pytest.raises(PlannerBudgetExceeded),
            planner_budget.metered_planning(world.vision.member, world.now),
        ):
            pass
        planner_budget._is_metered.reset(token)


def test_pages_and_the_api_say_when_to_ask_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, now, member = waiting(world), world.now + 2 * MINUTE, world.vision.member
    client, other = signed_in(member), APIClient()
    _, text = api_tokens.create_token(actor=member, name="test", now=now)
    other.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    with time_machine.travel(now, tick=False):
        assert client.get(reverse("why", args=[mine.public_id])).status_code == 200
        monkeypatch.setattr(planner_budget, "MAX_PLANNING_MS_PER_PERIOD", 0)
        for name, arguments in (
            ("why", [mine.public_id]),
            ("fairness", ["shared"]),
            ("sooner", [mine.public_id]),
        ):
            page = client.get(reverse(name, args=arguments))
            assert page.status_code == 429 and page.headers["Retry-After"] == "60", name
            assert "in 60 seconds" in page.content.decode()
            part = client.get(reverse(name, args=arguments), headers={"HX-Request": "true"})
            assert part.status_code == 204 and part.headers["Retry-After"] == "60", (
                "the page keeps its content"
            )
        for place in ("why", "sooner", "windows"):
            answer = other.get(f"/api/v1/workloads/{mine.public_id}/{place}/")
            assert answer.status_code == 429 and answer.headers["Retry-After"] == "60"
            assert "in 60 seconds" in answer.json()["errors"][0]["message"]
        assert other.get("/api/v1/pools/shared/fairness/").status_code == 429
        listed = client.get(reverse("queue") + f"?open={mine.public_id}")
        assert listed.status_code == 200 and "in 60 seconds" in listed.content.decode(), (
            "the queue is shown nevertheless"
        )


def test_a_request_is_accepted_although_its_preview_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {
        "kind": "reservation",
        "project": str(world.vision.project.pk),
        "target": f"shared|{H100}|",
        "count": "1",
        "start": f"{world.now + 60 * MINUTE:%Y-%m-%dT%H:%M}",
        "length": "2",
        "length_unit": "hours",
        "name": "taken",
        "hosts": "1",
    }
    client = signed_in(world.vision.member)
    monkeypatch.setattr(planner_budget, "MAX_PLANNING_MS_PER_PERIOD", 0)
    with time_machine.travel(world.now, tick=False):
        preview = client.post(reverse("ask-preview"), data)
        assert preview.status_code == 200 and "in 60 seconds" in preview.content.decode()
        assert client.get(reverse("ask")).status_code == 200
        assert client.post(reverse("ask"), data).status_code == 302


def test_an_answer_is_cached_for_some_seconds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_pools: list[int] = []
    plain = explanations.fairness_rows

    def counted_fairness_rows(pool: Pool, now: datetime) -> list[FairnessRow]:
        planned_pools.append(pool.pk)
        return plain(pool, now)

    monkeypatch.setattr(explanations, "fairness_rows", counted_fairness_rows)
    rows = [wait_explanation.fair_share_rows(world.shared, (), world.now) for _ in range(3)]
    assert len(planned_pools) == 1 and rows[0] == rows[2]
    wait_explanation.fair_share_rows(
        world.shared, (), world.now + timedelta(seconds=answer_cache.ANSWER_CACHE_SECONDS)
    )
    assert len(planned_pools) == 2


def test_questions_are_answered_while_the_cache_is_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = waiting(world)

    def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    for name in ("get", "set", "add", "incr"):
        monkeypatch.setattr(cache, name, away)
    with planner_budget.metered_planning(world.vision.member, world.now):
        assert wait_explanation.fair_share_rows(world.shared, (), world.now)
        assert wait_explanation.cached_faster_requests(mine) is None
        assert wait_explanation.faster_requests(mine, world.now) == wait_explanation.faster_requests(
            mine, world.now
        )
