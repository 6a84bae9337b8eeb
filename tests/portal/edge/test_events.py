"""Test live events: who may subscribe to which topics, and that changes are delivered at once."""

from __future__ import annotations

import asyncio
import hashlib
import json

import aiohttp
import pytest
import redis
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.utils import timezone

from agent.protocol import LogChunk, RunSeen
from portal.edge import page_events
from portal.models import User
from portal.redis_state.access_revocation import ACCESS_CHANNEL
from portal.services.people import account_security, teams
from scheduler.runs import logs
from scheduler.state.nudge import PAGE_CHANNEL
from tests.portal.edge.conftest import EdgeSite, SmallAgent, observed, run_orm, running_notebook
from tests.waiting import until


def sign_in(user: User) -> str:
    """Create a session as signing in does. Return its key."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "allauth.account.auth_backends.AuthenticationBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    assert store.session_key is not None
    return store.session_key


async def listen(edge_site: EdgeSite, key: str, topics: str, **headers: str) -> aiohttp.ClientResponse:
    fields = {
        "Cookie": f"{settings.SESSION_COOKIE_NAME}={key}",
        "Origin": settings.GPUPOOL_PORTAL_URL,
        **headers,
    }
    return await edge_site.session.get(f"{edge_site.url}/events", params={"topics": topics}, headers=fields)


async def next_event(answer: aiohttp.ClientResponse, seconds: float = 3.0) -> tuple[str, str]:
    name = ""
    async with asyncio.timeout(seconds):
        while True:
            line = (await answer.content.readline()).decode().rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, line.removeprefix("data: ")
            elif not line and answer.content.at_eof():
                raise EOFError


async def publish_change(topic: str) -> None:
    def publish() -> None:
        with redis.Redis.from_url(settings.REDIS_URL) as hints:
            hints.publish(PAGE_CHANNEL, json.dumps({"topic": topic}))

    await asyncio.to_thread(publish)


async def test_a_page_receives_events_of_its_topics_only(edge_site: EdgeSite) -> None:
    member = edge_site.world.vision.member
    run = await run_orm(running_notebook, edge_site.world, member, edge_site.world.hosts["alpha"])
    own = f"workload:{run.workload.public_id}"
    answer = await listen(edge_site, await run_orm(sign_in, member), f"queue,{own}")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["Access-Control-Allow-Origin"] == settings.GPUPOOL_PORTAL_URL
    assert answer.headers["Access-Control-Allow-Credentials"] == "true"
    await publish_change("hosts")
    await publish_change(own)
    assert await next_event(answer) == ("workload", own)
    answer.close()
    await until(lambda: not edge_site.edge.events._by_topic)


async def test_nobody_receives_events_of_objects_they_may_not_see(edge_site: EdgeSite) -> None:
    world = edge_site.world
    run = await run_orm(running_notebook, world, world.vision.member, world.hosts["alpha"])
    workload, log = f"workload:{run.workload.public_id}", f"log:{run.public_id}"
    allowed = {
        "member": 200,
        "lead": 200,
        "team mate": 200,
        "operator": 200,
        "auditor": 200,
        "other team": 404,
        "stranger": 404,
        "finance": 404,
    }
    for person, status in allowed.items():
        key = await run_orm(sign_in, world.people[person])
        for topic in (workload, log):
            answer = await listen(edge_site, key, topic)
            assert answer.status == status, (person, topic)
            answer.close()
    key = await run_orm(sign_in, world.stranger)
    for topic in (
        f"user:{world.operator.pk}",
        "workload:x",
        "no such",
        "a:b",
        "workload:" + "0" * 32,
        "x" * 500,
        "\0",
        "",
    ):
        assert (await listen(edge_site, key, topic)).status in (400, 404), topic
    assert (await listen(edge_site, key, ",".join(f"t{n}" for n in range(40)))).status == 400


async def test_log_lines_of_a_run_are_stored_and_announced_to_its_pages(
    edge_site: EdgeSite, agent: SmallAgent
) -> None:
    member = edge_site.world.vision.member
    run = await run_orm(running_notebook, edge_site.world, member, agent.host)
    topic = f"log:{run.public_id}"
    page = await listen(edge_site, await run_orm(sign_in, member), topic)
    await agent.connect()
    await agent.send(observed(runs=[RunSeen(str(run.public_id), run.generation, "running")]))
    await agent.receive()
    for offset, text in ((0, "step 1\n"), (7, "step 2\n"), (7, "step 2\n")):
        await agent.send(LogChunk(str(run.public_id), offset, text))
        assert await next_event(page) == ("log", topic)
    assert logs.read_log(run.public_id) == ("step 1\nstep 2\n", 14)
    page.close()


async def test_without_a_portal_session_no_events_are_sent(edge_site: EdgeSite) -> None:
    key = await run_orm(sign_in, edge_site.world.vision.member)
    for wrong in ("", "x" * 32, key + "x", "%00", "x" * 5000):
        assert (await listen(edge_site, wrong, "queue")).status in (400, 401)
    await run_orm(User.objects.filter(pk=edge_site.world.vision.member.pk).update, is_active=False)
    assert (await listen(edge_site, key, "queue")).status == 401


async def test_other_sites_receive_no_events(edge_site: EdgeSite) -> None:
    key = await run_orm(sign_in, edge_site.world.vision.member)
    portal = settings.GPUPOOL_PORTAL_URL
    for origin in (
        "http://evil.example",
        "null",
        f"{portal}.evil.example",
        f"{portal}/",
        f"http://{edge_site.name('w123')}",
    ):
        answer = await listen(edge_site, key, "queue", Origin=origin)
        assert answer.status == 403, origin
        assert "Access-Control-Allow-Origin" not in answer.headers
    cookie = {"Cookie": f"{settings.SESSION_COOKIE_NAME}={key}", "Sec-Fetch-Site": "same-site"}
    answer = await edge_site.session.get(f"{edge_site.url}/events?topics=queue", headers=cookie)
    assert answer.status == 403


async def test_signing_out_ends_the_event_stream(edge_site: EdgeSite) -> None:
    key = await run_orm(sign_in, edge_site.world.vision.member)
    answer = await listen(edge_site, key, "queue")
    other = await listen(edge_site, await run_orm(sign_in, edge_site.world.vision.member), "queue")

    def sign_out() -> None:
        SessionStore(key).delete()
        with redis.Redis.from_url(settings.REDIS_URL) as hints:
            hints.publish(ACCESS_CHANNEL, hashlib.sha256(key.encode()).hexdigest())

    await asyncio.to_thread(sign_out)
    with pytest.raises(EOFError):
        await next_event(answer)
    assert (await listen(edge_site, key, "queue")).status == 401
    await publish_change("queue")
    assert await next_event(other) == ("queue", "queue")
    other.close()


async def test_ended_sessions_of_a_person_end_their_event_streams_and_no_others(edge_site: EdgeSite) -> None:
    world = edge_site.world
    person = world.vision.member
    keys = [await run_orm(sign_in, user) for user in (person, world.vision.lead)]
    answer, other = [await listen(edge_site, key, "queue") for key in keys]
    await run_orm(account_security.end_sessions, actor=world.operator, user=person, now=timezone.now())
    with pytest.raises(EOFError):
        await next_event(answer)
    assert (await listen(edge_site, keys[0], "queue")).status == 401
    await publish_change("queue")
    assert await next_event(other) == ("queue", "queue")
    other.close()


async def test_a_user_who_leaves_a_team_receives_no_more_events_of_its_work(edge_site: EdgeSite) -> None:
    world = edge_site.world
    owner, mate = world.vision.members[:2]
    run = await run_orm(running_notebook, world, owner, world.hosts["alpha"])
    topic = f"workload:{run.workload.public_id}"
    keys = {user.pk: await run_orm(sign_in, user) for user in (owner, mate)}
    about_it = await listen(edge_site, keys[mate.pk], f"queue,{topic}")
    stays = await listen(edge_site, keys[owner.pk], topic)
    shared = await listen(edge_site, keys[mate.pk], "queue")
    assert (about_it.status, stays.status) == (200, 200)
    await run_orm(
        teams.remove_member,
        actor=world.operator,
        team=world.vision.team,
        user=mate,
        now=timezone.now(),
    )
    for answer in (about_it, stays):  # the next subscription checks the permission again
        with pytest.raises(EOFError):
            await next_event(answer)
    assert (await listen(edge_site, keys[mate.pk], topic)).status == 404
    assert (await listen(edge_site, keys[owner.pk], topic)).status == 200
    await publish_change("queue")
    assert await next_event(shared) == ("queue", "queue")


async def test_many_changes_before_a_page_reads_are_merged_into_one_event(edge_site: EdgeSite) -> None:
    answer = await listen(edge_site, await run_orm(sign_in, edge_site.world.vision.member), "queue,calendar")
    for _ in range(200):
        edge_site.edge.events._changed("queue")
    edge_site.edge.events._changed("calendar")
    assert await next_event(answer) == ("calendar", "calendar")
    assert await next_event(answer) == ("queue", "queue")
    with pytest.raises(TimeoutError):
        await next_event(answer, seconds=0.5)
    answer.close()


async def test_an_event_stream_announces_that_it_is_open_and_ends_after_a_while(
    edge_site: EdgeSite, monkeypatch
) -> None:
    monkeypatch.setattr(page_events, "HEARTBEAT_INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(page_events, "MAX_CONNECTION_SECONDS", 0.3)
    answer = await listen(edge_site, await run_orm(sign_in, edge_site.world.vision.member), "queue")
    text = (await answer.content.read()).decode()
    assert "retry: " in text
    assert text.count(": still here") >= 3


async def test_the_number_of_streams_of_one_user_is_limited(edge_site: EdgeSite, monkeypatch) -> None:
    monkeypatch.setattr(page_events, "MAX_PAGES_PER_USER", 3)
    key = await run_orm(sign_in, edge_site.world.vision.member)
    answers = [await listen(edge_site, key, "queue") for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    for answer in answers:
        answer.close()
