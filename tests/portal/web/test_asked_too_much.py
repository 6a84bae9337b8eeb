"""Questions to the planner have a limit for each person; answers just given are given again."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
import time_machine
from django.core.cache import cache
from django.urls import reverse
from redis.exceptions import RedisError
from rest_framework.test import APIClient

from portal import questions
from portal.errors import AskedTooMuch
from portal.selectors import queue as reads
from portal.services import people
from scheduler import selectors as engine
from scheduler.core.explain import FairnessRow
from scheduler.models import Pool
from tests.portal.web.test_another_time import MINUTE, waiting
from tests.portal.web.work_samples import signed_in
from tests.world import H100, World

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_is_kept() -> None:
    cache.clear()


def test_questions_are_counted_by_what_they_took_and_refused_until_the_minute_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MOST_MS", 2 * questions.EXPECTED_MS)
    now, member = world.now.replace(second=20), world.vision.member
    with questions.asking(member, now), questions.asking(member, now):
        pass  # one question, however many parts it has
    with questions.asking(member, now):
        questions._count(f"asked:{member.pk}:{int(now.timestamp()) // 60}", 5 * questions.EXPECTED_MS)  # it took so long
    with pytest.raises(AskedTooMuch) as refused, questions.asking(member, now):
        raise AssertionError("it is not answered")
    assert refused.value.wait == 40
    with questions.asking(world.language.member, now):
        pass  # others are answered
    with questions.asking(member, now + timedelta(seconds=40)):
        pass


def test_many_questions_at_once_are_not_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_MS", questions.EXPECTED_MS)
    with questions.asking(world.vision.member, world.now):
        token = questions._answering.set(False)  # another thread's
        with pytest.raises(AskedTooMuch), questions.asking(world.vision.member, world.now):
            pass
        questions._answering.reset(token)


def test_pages_and_the_api_say_when_to_ask_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, now, member = waiting(world), world.now + 2 * MINUTE, world.vision.member
    client, other = signed_in(member), APIClient()
    _, text = people.create_token(actor=member, name="test", now=now)
    other.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    with time_machine.travel(now, tick=False):
        assert client.get(reverse("why", args=[mine.public_id])).status_code == 200
        monkeypatch.setattr(questions, "MOST_MS", 0)
        for name, arguments in (("why", [mine.public_id]), ("fairness", ["shared"]), ("sooner", [mine.public_id])):
            page = client.get(reverse(name, args=arguments))
            assert page.status_code == 429 and page.headers["Retry-After"] == "60", name
            assert "in 60 seconds" in page.content.decode()
            part = client.get(reverse(name, args=arguments), headers={"HX-Request": "true"})
            assert part.status_code == 204 and part.headers["Retry-After"] == "60", "what is shown stays"
        for place in ("why", "sooner", "windows"):
            answer = other.get(f"/api/v1/workloads/{mine.public_id}/{place}/")
            assert answer.status_code == 429 and answer.headers["Retry-After"] == "60"
            assert "in 60 seconds" in answer.json()["errors"][0]["message"]
        assert other.get("/api/v1/pools/shared/fairness/").status_code == 429
        listed = client.get(reverse("queue") + f"?open={mine.public_id}")
        assert listed.status_code == 200 and "in 60 seconds" in listed.content.decode(), "the queue is there all the same"


def test_a_request_is_taken_although_its_preview_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {
        "kind": "reservation", "project": str(world.vision.project.pk), "target": f"shared|{H100}|", "count": "1",
        "start": f"{world.now + 60 * MINUTE:%Y-%m-%dT%H:%M}", "length": "2", "length_unit": "hours", "name": "taken",
        "hosts": "1",
    }  # fmt: skip
    client = signed_in(world.vision.member)
    monkeypatch.setattr(questions, "MOST_MS", 0)
    with time_machine.travel(world.now, tick=False):
        preview = client.post(reverse("ask-preview"), data)
        assert preview.status_code == 200 and "in 60 seconds" in preview.content.decode()
        assert client.get(reverse("ask")).status_code == 200
        assert client.post(reverse("ask"), data).status_code == 302


def test_an_answer_is_given_again_for_some_seconds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = engine.fairness

    def counted(pool: Pool, now: datetime) -> list[FairnessRow]:
        asked.append(pool.pk)
        return plain(pool, now)

    monkeypatch.setattr(engine, "fairness", counted)
    rows = [reads.fairness(world.shared, (), world.now) for _ in range(3)]
    assert len(asked) == 1 and rows[0] == rows[2]
    reads.fairness(world.shared, (), world.now + timedelta(seconds=questions.KEPT_SECONDS))
    assert len(asked) == 2


def test_while_the_cache_is_away_everybody_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = waiting(world)

    def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    for name in ("get", "set", "add", "incr"):
        monkeypatch.setattr(cache, name, away)
    with questions.asking(world.vision.member, world.now):
        assert reads.fairness(world.shared, (), world.now)
        assert reads.sooner_known(mine) is None
        assert reads.sooner(mine, world.now) == reads.sooner(mine, world.now)
