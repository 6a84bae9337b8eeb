"""Test workspaces at the edge: who may enter, which traffic is forwarded, and how fast access ends."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import redis
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from yarl import URL

from portal.edge import server
from portal.edge.agents import http_requests
from portal.edge.workspaces import access_cache, proxy
from portal.models import ApiToken, Membership, User, WorkspaceSession
from portal.redis_state.access_revocation import ACCESS_CHANNEL
from portal.services.people import api_tokens
from scheduler.models import Run, Workload
from scheduler.state.nudge import PAGE_CHANNEL
from scheduler.state.states import WorkloadState
from tests.portal.edge.conftest import (
    PIECE,
    PIECES_WRITTEN,
    EdgeSite,
    Notebook,
    SmallAgent,
    entry_code,
    run_orm,
    running_notebook,
)
from tests.waiting import until, until_unchanged
from tests.world import PASSWORD


async def received_request(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the request as the run's own server received it."""
    assert answer.status == 200, await answer.text()
    seen: dict[str, Any] = await answer.json()
    return seen


def header_names(seen: dict[str, Any]) -> set[str]:
    return {name.lower() for name, _ in seen["headers"]}


def header_value(seen: dict[str, Any], wanted: str) -> str:
    return next(value for name, value in seen["headers"] if name.lower() == wanted.lower())


def publish_hint(channel: str, message: str = "") -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as hints:
        hints.publish(channel, message)


# -- entering ------------------------------------------------------------------------------------------------


async def test_an_entry_code_opens_the_notebook_once(notebook: Notebook) -> None:
    code = await run_orm(entry_code, notebook.run, notebook.owner)
    first = await notebook.get(f"/.gpupool/enter?code={code}")
    assert first.status == 303
    assert first.headers["Location"] == "/lab"
    cookie = first.headers["Set-Cookie"]
    assert cookie.startswith("__Host-gpupool=")
    assert {part.strip() for part in cookie.split(";")[1:]} >= {
        "HttpOnly",
        "Secure",
        "Path=/",
        "SameSite=Lax",
    }
    assert "Domain" not in cookie
    second = await notebook.get(f"/.gpupool/enter?code={code}", Accept="text/html")
    assert second.status == 403
    assert "no longer opens" in await second.text()
    seen = await received_request(await notebook.get("/lab", first.cookies["__Host-gpupool"].value))
    assert header_value(seen, "X-Gpupool-Secret") == notebook.secret


async def test_only_one_of_twenty_browsers_with_the_same_code_enters(notebook: Notebook) -> None:
    code = await run_orm(entry_code, notebook.run, notebook.owner)
    answers = await asyncio.gather(*(notebook.get(f"/.gpupool/enter?code={code}") for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [303] + [403] * 19
    assert await run_orm(WorkspaceSession.objects.count) == 1


async def test_an_expired_wrong_or_foreign_code_is_refused(notebook: Notebook, agent: SmallAgent) -> None:
    other = await run_orm(running_notebook, notebook.edge_site.world, notebook.owner, agent.host, "other")
    old = await run_orm(entry_code, notebook.run, notebook.owner, "", -1)
    foreign = await run_orm(entry_code, other, notebook.owner)
    for query in (
        f"code={old}",
        f"code={foreign}",
        "code=",
        "",
        "code=a&code=b",
        "code=" + "x" * 5000,
        "code=%00",
    ):
        answer = await notebook.get(f"/.gpupool/enter?{query}")
        assert answer.status in (400, 403), query
        assert "Set-Cookie" not in answer.headers
    assert await run_orm(WorkspaceSession.objects.count) == 0


async def test_the_code_of_a_user_without_access_is_refused(notebook: Notebook) -> None:
    for person in (
        notebook.edge_site.world.operator,
        notebook.edge_site.world.vision.lead,
        notebook.edge_site.world.stranger,
    ):
        code = await run_orm(entry_code, notebook.run, person)
        assert (await notebook.get(f"/.gpupool/enter?code={code}")).status == 403
    assert await run_orm(WorkspaceSession.objects.count) == 0


async def test_a_prefetching_browser_does_not_use_up_the_code(notebook: Notebook) -> None:
    code = await run_orm(entry_code, notebook.run, notebook.owner)
    path = f"/.gpupool/enter?code={code}"
    assert (await notebook.get(path, **{"Sec-Purpose": "prefetch"})).status == 503
    assert (await notebook.ask("POST", path)).status == 405
    assert (await notebook.get(path)).status == 303


# -- forwarding ----------------------------------------------------------------------------------------------


async def test_requests_reach_the_run_unchanged(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    target = "/api/contents/a%20b%2Fc/%C3%A4?x=1&y=%2F%3F+z&x=2"
    seen = await received_request(await notebook.get(target, cookie, **{"X-XSRFToken": "t"}))
    assert seen["target"] == target
    assert header_value(seen, "Host") == notebook.name
    assert header_value(seen, "X-XSRFToken") == "t"
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        seen = await received_request(
            await notebook.ask(method, "/api/x", cookie, {"Origin": notebook.origin}, data=b"abc")
        )
        assert (seen["method"], seen["length"]) == (method, 3)


async def test_large_bodies_are_streamed_both_ways(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    body = b"0123456789abcdef" * (2 * 1024 * 1024)

    async def pieces() -> Any:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    for data in (body, pieces()):  # with a Content-Length, and chunked
        seen = await received_request(await notebook.ask("PUT", "/api/contents/big", cookie, data=data))
        assert (seen["length"], seen["digest"]) == (len(body), hashlib.sha256(body).hexdigest())
    answer = await notebook.get("/large?pieces=500", cookie)
    assert len(await answer.read()) == 500 * 65536


async def test_a_slow_reader_uses_little_memory_and_blocks_nobody(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    answer = await notebook.get("/large?pieces=3000&name=slow", cookie)
    await answer.content.read(1)
    await until_unchanged(lambda: PIECES_WRITTEN["slow"])
    assert (
        PIECES_WRITTEN["slow"] * PIECE < 100_000_000
    )  # the socket buffers hold a part; the edge does not buffer all 200 MB
    async with asyncio.timeout(60):
        await received_request(await notebook.get("/quick", cookie))
    answer.close()


async def test_a_truncated_response_does_not_look_complete(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    answer = await notebook.get("/breaks", cookie)
    with pytest.raises(aiohttp.ClientError):
        await answer.read()


async def test_websockets_forward_text_bytes_subprotocol_and_close_code(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    protocol = "v1.kernel.websocket.jupyter.org"
    socket = await notebook.socket(cookie, protocols=(protocol, "other"))
    assert socket.protocol == protocol
    await socket.send_str("hello")
    assert (await socket.receive()).data == "hello"
    await socket.send_bytes(b"\x00" * 3_000_000)
    assert (await socket.receive()).data == b"\x00" * 3_000_000
    await socket.send_str("headers")
    headers = {name.lower(): text for name, text in (await socket.receive_json()).items()}
    assert headers["x-gpupool-secret"] == notebook.secret
    assert headers["origin"] == notebook.origin
    assert headers["host"] == notebook.name
    assert "__Host-gpupool" not in headers.get("cookie", "")
    await socket.send_str("bye")
    assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert socket.close_code == 4321


# -- refused traffic -----------------------------------------------------------------------------------------


async def test_headers_reserved_for_the_edge_are_removed_from_requests(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    spoofed = {
        "X-Gpupool-Secret": "guess",
        "x-gpupool-user": "root",
        "X_Gpupool_Secret": "guess",
        "X-Gpupool-": "x",
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Host": "evil",
        "Forwarded": "for=1.2.3.4",
        "X-Real-IP": "1.2.3.4",
        "Authorization": "Bearer portal-token",
        "Connection": "x-hop, keep-alive",
        "X-Hop": "1",
        "TE": "trailers",
        "Proxy-Authorization": "Basic x",
        "Keep-Alive": "timeout=5",
    }
    seen = await received_request(await notebook.get("/", cookie, **spoofed))
    assert [text for name, text in seen["headers"] if "gpupool" in name.lower()] == [notebook.secret]
    assert header_names(seen).isdisjoint(
        {
            "x-forwarded-for",
            "x-forwarded-host",
            "forwarded",
            "x-real-ip",
            "authorization",
            "x-hop",
            "te",
            "proxy-authorization",
            "keep-alive",
        }
    )


async def test_cookies_of_the_portal_and_the_edge_do_not_reach_the_run(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    line = (
        f"_xsrf=1; __Host-gpupool={cookie}; gpupool_session=s; __Host-gpupool_session=s; gpupool_csrf=c;"
        " theme=dark"
    )
    answer = await notebook.ask("GET", "/", "", {"Cookie": line})
    seen = await received_request(answer)
    assert header_value(seen, "Cookie") == "_xsrf=1; theme=dark"
    assert answer.headers.getall("Set-Cookie") == ["_xsrf=2|abc; Path=/"]
    assert "X-Gpupool-Inside" not in answer.headers
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_the_cookie_of_one_notebook_does_not_open_another(
    notebook: Notebook, agent: SmallAgent
) -> None:
    mine = await notebook.enter()
    other_owner = notebook.edge_site.world.vision.members[1]
    run = await run_orm(running_notebook, notebook.edge_site.world, other_owner, agent.host, "other")
    other = Notebook(
        notebook.edge_site, run, other_owner, await run_orm(lambda: run.workload.workspace_origin.label), ""
    )
    assert (await other.get("/lab", mine)).status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await other.socket(mine)
    assert refused.value.status == 403
    assert (await notebook.get("/lab")).status == 403
    assert (await notebook.get("/lab", "x" * 43)).status == 403
    assert (await notebook.get("/lab", mine)).status == 200


async def test_a_websocket_from_another_origin_is_refused(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    origin, name, port = notebook.origin, notebook.name, notebook.edge_site.port
    headers = {"Host": name, "Cookie": f"__Host-gpupool={cookie}"}
    for other in (
        None,
        "",
        "null",
        "http://evil.example",
        f"{origin}.evil.example",
        f"{origin}/",
        f"http://{notebook.label}.localhost",
        f"https://{name}",
        f"http://other.localhost:{port}",
        origin.upper(),
        settings.GPUPOOL_PORTAL_URL,
        f"{origin} {origin}",
    ):
        sent = headers if other is None else {**headers, "Origin": other}
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await notebook.edge_site.session.ws_connect(notebook.edge_site.url + "/echo", headers=sent)
        assert refused.value.status == 403, other


async def test_another_notebook_cannot_send_requests_or_embed_pages(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    neighbour = {"Origin": f"http://w1.localhost:{notebook.edge_site.port}"}
    assert (await notebook.ask("POST", "/api/x", cookie, neighbour)).status == 403
    embedded = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    assert (await notebook.get("/files/secret.js", cookie, **embedded)).status == 403
    framed = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert (await notebook.get("/lab", cookie, **framed)).status == 403
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert (await notebook.get("/lab", cookie, **linked)).status == 200


AMBIGUOUS = (
    "/../x",
    "/a/../../x",
    "/%2e%2e/x",
    "/a/.%2E/x",
    "/a/./b",
    "/..%2fx",
    "/a\\b",
    "/%5c..%5cx",
    "/%00",
    "/a%0d%0aX: 1",
    "//evil.example/x",
    "/%2e%2e%2f.gpupool/enter",
    "/a#b",
)


async def test_an_ambiguous_url_is_refused(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    for path in AMBIGUOUS:
        headers = f"Host: {notebook.name}\r\nCookie: __Host-gpupool={cookie}\r\nConnection: close"
        answer = await raw(notebook.edge_site, f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n")
        assert answer.split()[1] == b"400", (path, answer[:200])


async def test_urls_reserved_for_the_edge_do_not_reach_the_run(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    for path in ("/.gpupool", "/.gpupool/x", "/%2egpupool/enter?code=1", "/.gpupool%2fenter"):
        assert (await notebook.get(path, cookie)).status == 404, path


async def raw(edge_site: EdgeSite, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", edge_site.port)
    writer.write(request.encode())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


async def test_forged_host_headers_reach_no_run(notebook: Notebook) -> None:
    cookie = f"Cookie: __Host-gpupool={await notebook.enter()}\r\nConnection: close\r\n"
    name = notebook.name
    for request in (
        f"GET / HTTP/1.1\r\nHost: {name}\r\nHost: evil\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\nHost: evil\r\nHost: {name}\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\nHost: {name}.evil.example\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\nHost: {name}:80\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\nHost: {notebook.label}.localhost\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\nHost: a.{name}\r\n{cookie}\r\n",
        f"GET / HTTP/1.1\r\nHost: evil@{name}\r\n{cookie}\r\n",
        f"GET http://{name}/ HTTP/1.1\r\nHost: evil\r\n{cookie}\r\n",
        f"GET http://evil/ HTTP/1.1\r\nHost: {name}\r\n{cookie}\r\n",
        f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n{cookie}\r\n",
    ):
        status = int((await raw(notebook.edge_site, request)).split()[1])
        assert status in (400, 421), request


async def test_smuggled_requests_are_refused(notebook: Notebook) -> None:
    cookie = f"Host: {notebook.name}\r\nCookie: __Host-gpupool={await notebook.enter()}\r\n"
    for request in (
        f"POST / HTTP/1.1\r\n{cookie}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"POST / HTTP/1.1\r\n{cookie}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        f"POST / HTTP/1.1\r\n{cookie}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        f"POST / HTTP/1.1\r\n{cookie}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        f"GET / HTTP/1.1\r\n{cookie}X: a\nX-Gpupool-Secret: b\r\n\r\n",
    ):
        status = int((await raw(notebook.edge_site, request)).split()[1])
        assert status == 400, request


async def test_invalid_text_is_refused_without_an_error(notebook: Notebook) -> None:
    for header in (
        b"Cookie: __Host-gpupool=\xff\xfe",
        b"Cookie: \x80",
        b"Accept: \xff",
        b"Origin: \xc3",
        b"X-Gpupool-\xe4: 1",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", notebook.edge_site.port)
        writer.write(
            b"GET /lab HTTP/1.1\r\nHost: "
            + notebook.name.encode()
            + b"\r\nConnection: close\r\n"
            + header
            + b"\r\n\r\n"
        )
        answer = await reader.read()
        assert answer.split()[1] in (b"400", b"403"), (header, answer[:100])
        writer.close()


async def test_error_pages_are_escaped_and_programs_get_json(notebook: Notebook) -> None:
    answer = await notebook.get("/<script>alert(1)</script>", Accept="text/html")
    assert "<script>" not in await answer.text()
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    answer = await notebook.get("/api/kernels", Accept="application/json")
    assert (await answer.json())["title"] == "Open this notebook from the portal"


# -- access ends ---------------------------------------------------------------------------------------------


def signed_in(user: User) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser


def session_key_of(browser: Client) -> str:
    return str(browser.cookies[settings.SESSION_COOKIE_NAME].value)


@pytest.mark.long
async def test_signing_out_closes_two_hundred_open_sockets_without_a_periodic_check(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check only that the sockets close. `./run bench` measures how long it takes."""
    monkeypatch.setattr(access_cache, "DECISION_TTL_SECONDS", 600.0)
    notebook.edge_site.session.connector._limit = 0  # type: ignore[union-attr]
    stays = await notebook.socket(await notebook.enter())
    await sign_out_and_wait_until_all_sockets_close(notebook, 200)
    await stays.send_str("still here")
    assert (await stays.receive()).data == "still here"


async def sign_out_and_wait_until_all_sockets_close(notebook: Notebook, count: int) -> None:
    """Open `count` sockets in one session, sign out, and wait until the last one closes."""
    browser = await run_orm(signed_in, notebook.owner)
    cookie = await notebook.enter(session_key=session_key_of(browser))
    sockets = [await notebook.socket(cookie) for _ in range(count)]
    waiting = [asyncio.create_task(socket.receive()) for socket in sockets]
    answer = await run_orm(browser.post, reverse("account_logout"))
    assert answer.status_code == 302
    async with asyncio.timeout(60):
        await asyncio.wait(waiting)
    assert {socket.close_code for socket in sockets} <= {4401, 1006}
    assert (await notebook.get("/lab", cookie)).status == 403


async def test_sockets_of_an_ended_session_are_closed_even_without_a_hint(
    notebook: Notebook,
) -> None:
    key = session_key_of(await run_orm(signed_in, notebook.owner))
    socket = await notebook.socket(await notebook.enter(session_key=key))
    await run_orm(SessionStore(key).delete)
    async with asyncio.timeout(access_cache.DECISION_TTL_SECONDS + 1):
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert socket.close_code == 4401


def token_of(person: User) -> tuple[ApiToken, str]:
    return api_tokens.create_token(actor=person, name="script", now=timezone.now())


def workspace_path_for_token(text: str, run: Run) -> str:
    """Return the workspace path that the API gives to a caller with this token."""
    path = f"/api/v1/workloads/{run.workload.public_id}/open/"
    answer = Client().post(path, content_type="application/json", headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 200, answer.content
    return str(URL(answer.json()["url"], encoded=True).raw_path_qs)


async def test_a_workspace_opened_with_a_token_closes_when_the_token_is_revoked(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        access_cache, "DECISION_TTL_SECONDS", 600.0
    )  # longer than the test, so only a hint over Redis makes the edge read the rows again
    token, text = await run_orm(token_of, notebook.owner)
    cookies = []
    for opens in (
        await run_orm(workspace_path_for_token, text, notebook.run),
        await run_orm(workspace_path_for_token, text, notebook.run),
    ):
        cookies.append((await notebook.get(opens)).cookies["__Host-gpupool"].value)
    socket = await notebook.socket(cookies[0])
    others = await notebook.socket(
        await notebook.enter(session_key=session_key_of(await run_orm(signed_in, notebook.owner)))
    )
    assert (await notebook.get("/lab", cookies[1])).status == 200
    unused = await run_orm(workspace_path_for_token, text, notebook.run)
    await run_orm(
        functools.partial(api_tokens.revoke_token, actor=notebook.owner, token=token, now=timezone.now())
    )
    assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert socket.close_code == 4401
    for cookie in cookies:
        assert (await notebook.get("/lab", cookie)).status == 403
    assert (await notebook.get(unused)).status == 403
    await others.send_str("still here")
    assert (await others.receive()).data == "still here"


@pytest.mark.long  # a short test checks the same for an ended session
@pytest.mark.parametrize("how", ["revoked_at", "expires_at"])
async def test_sockets_of_a_revoked_token_are_closed_even_without_a_hint(
    notebook: Notebook, how: str
) -> None:
    token, text = await run_orm(token_of, notebook.owner)
    entered = await notebook.get(await run_orm(workspace_path_for_token, text, notebook.run))
    socket = await notebook.socket(entered.cookies["__Host-gpupool"].value)
    unused = await run_orm(workspace_path_for_token, text, notebook.run)
    await run_orm(functools.partial(ApiToken.objects.filter(pk=token.pk).update, **{how: timezone.now()}))
    assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert socket.close_code == 4401
    assert (await notebook.get(unused)).status == 403


def change_own_password(browser: Client) -> None:
    """Change the password of the person who is signed in with this browser."""
    new = "another long enough one"
    form = {"oldpassword": PASSWORD, "password1": new, "password2": new}
    assert browser.post(reverse("account_change_password"), form).status_code == 302


async def test_a_new_password_ends_sockets_cookies_and_unused_codes_of_all_sessions_of_the_person(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check what a hijacked session still reaches, without a periodic check of the edge."""
    monkeypatch.setattr(access_cache, "DECISION_TTL_SECONDS", 600.0)
    own, hijacked = [await run_orm(signed_in, notebook.owner) for _ in range(2)]
    cookie = await notebook.enter(session_key=session_key_of(hijacked))
    socket, slow = await notebook.socket(cookie), await notebook.get("/slow", cookie)
    await slow.content.readline()
    assert (await notebook.get("/api/contents", cookie)).status == 200
    unused = await run_orm(entry_code, notebook.run, notebook.owner, session_key_of(hijacked))
    await run_orm(change_own_password, own)
    assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert socket.close_code == 4401
    with pytest.raises(aiohttp.ClientError):
        await slow.content.read()
    for path in ("/api/contents", "/api/terminals", "/lab"):
        assert (await notebook.get(path, cookie)).status == 403
    assert (await notebook.get(f"/.gpupool/enter?code={unused}")).status == 403
    again = await notebook.enter(session_key=session_key_of(own))
    assert (await notebook.get("/lab", again)).status == 200


async def test_workspace_sessions_of_an_older_generation_are_refused_even_without_a_hint(
    notebook: Notebook,
) -> None:
    socket = await notebook.socket(await notebook.enter())
    await run_orm(User.objects.filter(pk=notebook.owner.pk).update, session_generation=7)
    async with asyncio.timeout(access_cache.DECISION_TTL_SECONDS + 1):
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    assert socket.close_code == 4401


def set_state(run: Any, state: WorkloadState) -> None:
    Workload.objects.filter(pk=run.workload_id).update(state=state, ended_at=timezone.now())


async def test_a_notebook_that_ends_closes_its_sockets_with_a_reason(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    socket = await notebook.socket(cookie)
    slow = await notebook.get("/slow", cookie)
    await slow.content.readline()
    await run_orm(set_state, notebook.run, WorkloadState.STOPPING)
    await asyncio.to_thread(
        publish_hint, PAGE_CHANNEL, json.dumps({"topic": f"workload:{notebook.run.workload.public_id}"})
    )
    async with asyncio.timeout(access_cache.DECISION_TTL_SECONDS / 2):
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
    with pytest.raises(aiohttp.ClientError):
        await slow.content.read()
    answer = await notebook.get("/lab", cookie, Accept="text/html")
    assert answer.status == 410
    text = await answer.text()
    assert "This notebook has ended" in text
    assert (
        f"{settings.GPUPOOL_PORTAL_URL}{reverse('notebook', args=[notebook.run.workload.public_id])}" in text
    )


async def test_a_user_who_leaves_the_team_or_loses_the_account_loses_the_notebook(notebook: Notebook) -> None:
    socket = await notebook.socket(await notebook.enter())
    await run_orm(Membership.objects.filter(user=notebook.owner).delete)
    async with asyncio.timeout(access_cache.DECISION_TTL_SECONDS + 1):
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_browser_that_does_not_read_is_disconnected_as_well(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = await notebook.enter()
    reader, writer = await asyncio.open_connection("127.0.0.1", notebook.edge_site.port, limit=1)
    writer.write(
        (
            f"GET /large?pieces=100000&name=unread HTTP/1.1\r\nHost: {notebook.name}\r\n"
            f"Cookie: __Host-gpupool={cookie}\r\n\r\n"
        ).encode()
    )
    await until(lambda: PIECES_WRITTEN.get("unread"))
    await until_unchanged(lambda: PIECES_WRITTEN["unread"])  # the client reads nothing, so all buffers fill
    monkeypatch.setattr(access_cache, "DECISION_TTL_SECONDS", 600.0)  # only the hint can end the access
    await run_orm(set_state, notebook.run, WorkloadState.ENDED)
    await asyncio.to_thread(publish_hint, ACCESS_CHANNEL)
    await until(lambda: not notebook.edge_site.edge.access_cache._open)
    assert PIECES_WRITTEN["unread"] < 100_000
    writer.transport.abort()


async def test_an_unreachable_run_gives_an_error_page_without_a_stack_trace(
    notebook: Notebook, agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portal.edge.agents import streams

    monkeypatch.setattr(streams, "OPEN_TIMEOUT_SECONDS", 0.3)
    cookie = await notebook.enter()
    await agent.close()
    await until(lambda: notebook.edge_site.edge.agents.streams.idle_of(agent.host.pk) == 0)
    answer = await notebook.get("/lab", cookie, Accept="text/html")
    assert answer.status == 502
    assert "does not answer" in await answer.text()


async def send_slowly(
    edge_site: EdgeSite, head: str, every: float = 0.1, *, on_wait: Callable[[], None] = lambda: None
) -> str:
    """Send a request, then one byte every `every` seconds, until the edge answers or disconnects.

    Call `on_wait` after each pause in which the edge has not answered. Return the first line of the response.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", edge_site.port)
    try:
        writer.write(head.replace("\n", "\r\n").encode())
        first_line = asyncio.ensure_future(reader.readline())
        async with asyncio.timeout(60):  # the edge would wait much longer for the rest of the request
            while not first_line.done():
                writer.write(b" ")
                await asyncio.wait([first_line], timeout=every)
                on_wait()
        return first_line.result().decode()
    finally:
        writer.transport.abort()


async def test_slow_request_bodies_do_not_use_up_the_streams_to_the_run(
    notebook: Notebook, agent: SmallAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "MAX_BODY_WAIT_SECONDS", 1.0)
    cookie = await notebook.enter()
    head = (
        f"PUT /api/contents/a HTTP/1.1\nHost: {notebook.name}\nOrigin: {notebook.origin}\n"
        f"Cookie: __Host-gpupool={cookie}\n"
        "Content-Length: 100000\n\n"
    )
    pauses: list[None] = []
    slow = [
        asyncio.create_task(send_slowly(notebook.edge_site, head, on_wait=lambda: pauses.append(None)))
        for _ in range(12)
    ]  # more requests than there are idle streams
    await until(lambda: len(pauses) >= 24)
    assert (await notebook.get("/lab", cookie)).status == 200, "other requests are not delayed"
    for first_line in await asyncio.gather(*slow):
        assert first_line.startswith("HTTP/1.1 408 ")
    await until(lambda: notebook.edge_site.edge.agents.streams.idle_of(agent.host.pk) >= 3)


async def test_a_slow_body_of_a_join_request_times_out(
    edge_site: EdgeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "BODY_TIMEOUT_SECONDS", 1.0)
    head = f"POST /agent/v1/join HTTP/1.1\nHost: 127.0.0.1:{edge_site.port}\nContent-Length: 60000\n\n{{"
    assert (await send_slowly(edge_site, head)).startswith("HTTP/1.1 408 ")


@pytest.fixture
def short_header_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEPALIVE_SECONDS", 1.0)


async def test_slow_request_headers_time_out(short_header_timeout: None, edge_site: EdgeSite) -> None:
    head = f"GET /healthz HTTP/1.1\nHost: 127.0.0.1:{edge_site.port}\nX-Slow: "
    assert await send_slowly(edge_site, head) == ""


async def test_activity_is_recorded_for_the_idle_rule(notebook: Notebook) -> None:
    cookie = await notebook.enter()
    before = time.time()
    uses = notebook.edge_site.edge.activity._uses
    await notebook.get("/api/kernels", cookie)  # an open page sends such requests without a user
    assert uses[str(notebook.run.public_id)].last_input is None
    await notebook.ask("POST", "/api/kernels", cookie)
    assert (uses[str(notebook.run.public_id)].last_input or 0) >= before
    before = time.time()
    socket = await notebook.socket(cookie)
    await socket.send_str("x")
    await socket.receive()
    await notebook.edge_site.edge.activity.write_once()

    def stored_activity() -> dict[str, Any]:
        with redis.Redis.from_url(settings.REDIS_URL) as facts:
            found: dict[str, Any] = json.loads(facts.get(f"gpupool:workspace:{notebook.run.public_id}"))  # type: ignore[arg-type]
            return found

    use = await asyncio.to_thread(stored_activity)
    assert use["sockets"] == 1
    assert use["last_request"] >= before
    assert use["last_input"] >= before
    await socket.close()
    await until(lambda: uses[str(notebook.run.public_id)].sockets == 0)


def test_no_run_gets_a_url_that_yarl_would_change() -> None:
    for target in ("/a%2Fb", "/%C3%A4", "/a+b?x=%20+&y", "/a;b=c"):
        assert URL(f"http://run.1{target}", encoded=True).raw_path_qs == target
