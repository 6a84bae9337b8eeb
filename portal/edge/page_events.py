"""Send live events to the portal's pages. An event says only that something about a topic may have changed.

A page subscribes by ``GET /events?topics=queue,workload:<public id>`` and receives server-sent events. Each
change of a topic causes one event. The event's name is the kind of the topic (``queue``, ``workload``), and
its data is the topic. The page then fetches its content again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import hdrs, web
from django.conf import settings
from django.contrib.auth import get_user
from django.db import DatabaseError
from django.http import HttpRequest

from portal import policy
from portal.edge.runtime import metrics
from portal.edge.runtime.database_threads import DatabaseThreads
from portal.edge.runtime.redis_bus import RedisBus
from portal.models import User
from portal.redis_state.access_revocation import session_hash, sessions_of_user
from portal.wording.pages import api_answers
from scheduler.models import Run, Workload

MAX_TOPICS = 30
MAX_PAGES_PER_USER = 40  # pages that one user may have open at the same time
# Topics that every user may follow, because they name no object: queue, hosts, calendar.
SHARED_TOPIC_PATTERN = re.compile(r"^[a-z][a-z_]{0,30}$")
HEARTBEAT_INTERVAL_SECONDS = 15.0
EVENT_DEBOUNCE_SECONDS = 0.1
# After this time the stream ends. The browser connects again, and its user's rights are checked again.
MAX_CONNECTION_SECONDS = 300.0
SEND_TIMEOUT_SECONDS = 10.0
RECONNECT_AFTER_MS = 2000


class SubscriptionRefused(Exception):
    """The request has no valid session, or its user may not subscribe to one of the topics."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class PageListener:
    user: int
    session: str  # hash of the key of the portal session
    topics: frozenset[str]
    changed: set[str] = field(default_factory=set)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    @property
    def has_object_topics(self) -> bool:
        """Return True if one of the topics names an object that only some users may see."""
        return any(":" in topic and not topic.startswith("user:") for topic in self.topics)

    def queue_topic(self, topic: str) -> None:
        """Queue an event for a topic. Several changes before the next send become one event."""
        self.changed.add(topic)
        self.wakeup.set()


class PageEvents:
    """The live pages that are connected to this process."""

    def __init__(self, threads: DatabaseThreads, bus: RedisBus) -> None:
        self._threads = threads
        self._by_topic: dict[str, set[PageListener]] = defaultdict(set)
        self._by_user: dict[int, set[PageListener]] = defaultdict(set)
        bus.on_page(self._changed)
        bus.on_access(self._access_lost)
        bus.on_reconnect(self._on_reconnect_gap)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve the live events of one page."""
        headers = {"Vary": "Origin", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        origins = request.headers.getall(hdrs.ORIGIN, [])
        if origins:
            if origins != [settings.GPUPOOL_PORTAL_URL]:
                return web.json_response(
                    {"detail": "only the portal's pages may listen"}, status=403, headers=headers
                )
            headers |= {"Access-Control-Allow-Origin": origins[0], "Access-Control-Allow-Credentials": "true"}
        elif request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return web.json_response(
                {"detail": "only the portal's pages may listen"}, status=403, headers=headers
            )
        key = request.cookies.get(settings.SESSION_COOKIE_NAME, "")
        try:
            requested = parse_topics(request.query.getall("topics", []))
            user, topics = await self._threads.run_repeatable(authorise_listener, key, requested)
        except SubscriptionRefused as error:
            return web.json_response({"detail": str(error)}, status=error.status, headers=headers)
        except DatabaseError:
            return web.json_response(
                {"detail": "the database is unavailable; try again"}, status=503, headers=headers
            )
        if len(self._by_user[user]) >= MAX_PAGES_PER_USER:
            return web.json_response(
                {"detail": f"{MAX_PAGES_PER_USER} pages of this user are open already"},
                status=429,
                headers=headers,
            )
        return await self._serve(request, PageListener(user, session_hash(key), topics), headers)

    async def _serve(
        self, request: web.Request, listener: PageListener, headers: dict[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        with self._listening(listener):
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await _send(
                    response, f"retry: {RECONNECT_AFTER_MS}\n: listening to {len(listener.topics)} topics\n\n"
                )
                await self._stream(response, listener)
        return response

    async def _stream(self, response: web.StreamResponse, listener: PageListener) -> None:
        end = asyncio.get_running_loop().time() + MAX_CONNECTION_SECONDS
        while not listener.ended and asyncio.get_running_loop().time() < end:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_SECONDS):
                    await listener.wakeup.wait()
            await asyncio.sleep(
                EVENT_DEBOUNCE_SECONDS if listener.wakeup.is_set() and not listener.ended else 0
            )
            listener.wakeup.clear()
            changed, listener.changed = listener.changed, set()
            text = "".join(
                f"event: {topic.partition(':')[0]}\ndata: {topic}\n\n" for topic in sorted(changed)
            )
            await _send(response, text or ": still here\n\n")

    @contextlib.contextmanager
    def _listening(self, listener: PageListener) -> Any:
        for topic in listener.topics:
            self._by_topic[topic].add(listener)
        self._by_user[listener.user].add(listener)
        metrics.LISTENERS.inc()
        try:
            yield
        finally:
            metrics.LISTENERS.dec()
            _discard(self._by_user, listener.user, listener)
            for topic in listener.topics:
                _discard(self._by_topic, topic, listener)

    def _changed(self, topic: str) -> None:
        for listener in self._by_topic.get(topic, ()):
            listener.queue_topic(topic)

    def _on_reconnect_gap(self) -> None:
        """Send an event for every topic, and make the browsers prove their rights again.

        Messages about changes may have been lost while Redis was not connected.
        """
        for topic in list(self._by_topic):
            self._changed(topic)
        self._access_lost("")

    def _access_lost(self, ended: str) -> None:
        """End the streams of sessions that have ended.

        ``ended`` is the hash of one session, or the text for all sessions of a user. If it is empty, some
        user's rights have changed. In this case, end all streams about single objects. The browsers connect
        again, and the rights of their users are checked again.
        """
        self._end(
            lambda listener: (
                ended in (listener.session, sessions_of_user(listener.user))
                if ended
                else listener.has_object_topics
            )
        )

    def close(self) -> None:
        """End every stream. The browsers connect again."""
        self._end(lambda _: True)

    def _end(self, should_end: Callable[[PageListener], bool]) -> None:
        for listeners in self._by_user.values():
            for listener in filter(should_end, listeners):
                listener.ended = True
                listener.wakeup.set()


async def _send(response: web.StreamResponse, text: str) -> None:
    # If a page does not take an event in time, it is disconnected. The page then connects again and fetches
    # its content.
    async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
        await response.write(text.encode())


def _discard(table: dict[Any, set[PageListener]], key: Any, listener: PageListener) -> None:
    table[key].discard(listener)
    if not table[key]:
        del table[key]


def parse_topics(texts: list[str]) -> list[str]:
    """Return the topics in the values of the query parameter ``topics``, without duplicates.

    One value may contain several topics, separated by commas. Raises SubscriptionRefused.
    """
    topics = list(
        dict.fromkeys(topic.strip() for text in texts for topic in text.split(",") if topic.strip())
    )
    if not 1 <= len(topics) <= MAX_TOPICS:
        raise SubscriptionRefused(
            400, api_answers.TOPICS_NOT_ALLOWED.format(given=len(topics), most=MAX_TOPICS)
        )
    return topics


def authorise_listener(session_key: str, topics: list[str]) -> tuple[int, frozenset[str]]:
    """Return the id of the signed-in user, and the topics if the user may follow all of them.

    Raises SubscriptionRefused.
    """
    user = user_of_session(session_key)
    if user is None:
        raise SubscriptionRefused(401, api_answers.SIGN_IN_FIRST)
    for topic in topics:
        if not may_subscribe(user, topic):
            raise SubscriptionRefused(404, api_answers.TOPIC_NOT_FOUND.format(topic=topic[:100]))
    return user.pk, frozenset(topics)


def user_of_session(session_key: str) -> User | None:
    """Return the user of a portal session. Return None if the session has ended or the account is closed."""
    if not (session_key.isascii() and session_key.isalnum() and len(session_key) <= 100):
        return None
    request = HttpRequest()
    request.session = importlib.import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    return user if isinstance(user, User) else None


def may_subscribe(user: User, topic: str) -> bool:
    """Return True if the user may follow the topic.

    A topic that names an object requires that the user may see the object. All users may follow other topics.
    """
    kind, colon, name = topic.partition(":")
    if not colon:
        return SHARED_TOPIC_PATTERN.match(topic) is not None
    if kind == "user":
        return name == str(user.pk)
    try:
        public_id = uuid.UUID(name)
    except ValueError:
        return False
    if kind == "workload":
        return policy.visible_workloads(user).filter(public_id=public_id).exists()
    if kind == "reservation":
        return policy.visible_reservations(user).filter(public_id=public_id).exists()
    if kind == "log":
        run = Run.objects.filter(public_id=public_id).select_related("workload__project").first()
        return run is not None and may_read_logs(user, run.workload)
    return False


def may_read_logs(user: User, workload: Workload) -> bool:
    """Return True if the policy lets the user read the workload's logs."""
    return policy.may(user, "workload.logs", workload)
