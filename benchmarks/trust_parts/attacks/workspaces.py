"""Attack workspaces and live events at the edge."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from benchmarks.trust_parts.attacks.accounts import change_password
from benchmarks.trust_parts.attacks.browser import Browser, send_raw
from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import AttackTarget, Workspace, now

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def _inside(target: AttackTarget) -> Workspace:
    """Return a workspace of the member, entered from a page."""
    return target.enter(target.entry_link(target.signed_in(target.member)))


def _answers(workspace: Workspace) -> bool:
    return workspace.browser.get("/api/status").status == 200


def _ends(target: AttackTarget, workspace: Workspace, what: str) -> None:
    target.wait(lambda: workspace.browser.get("/api/status").status in (401, 403), what)


@attack("a hijacked workspace after the person changed the password")
def workspace_after_a_new_password(target: AttackTarget) -> None:
    person = target.person("faults")
    lab = target.notebook_of(person)
    hijacked, own = target.signed_in(person), target.signed_in(person)
    workspace, unspent = target.enter(target.entry_link(hijacked, lab)), target.entry_link(hijacked, lab)
    change_password(own)
    defended(not _answers(workspace), "the contents and terminals of the notebook still answer")
    fresh = target.workspace_browser(unspent)
    control(person.program.get(f"workloads/{lab}/").json()["state"] == "running", "the notebook runs on")
    defended(fresh.get(f"{unspent.path}?{unspent.query}").status == 403, "an unspent link opens it")


@attack("a workspace after its person signed out of the portal")
def workspace_after_a_sign_out(target: AttackTarget) -> None:
    browser = target.signed_in(target.member)
    workspace = target.enter(target.entry_link(browser))
    browser.form("/accounts/logout/", {})
    defended(not _answers(workspace), "the workspace still answers")


@attack("a workspace after the revocation of the token that opened it")
def workspace_after_a_revoked_token(target: AttackTarget) -> None:
    from portal.models import ApiToken

    program = target.with_scopes(target.member, "submit")
    workspace = target.enter(target.program_link(program))
    pk = target.run_in_database(lambda: ApiToken.objects.get(prefix=program.token[:12]).pk)
    target.member.program.made(f"tokens/{pk}/revoke/", {})
    defended(not _answers(workspace), "the workspace still answers")


@attack("a workspace after its person left the team")
def workspace_after_leaving_the_team(target: AttackTarget) -> None:
    from portal.models import Membership

    person = target.person("faults")
    lab = target.notebook_of(person)
    workspace = target.enter(target.entry_link(target.signed_in(person), lab))
    target.run_in_database(lambda: Membership.objects.filter(user=person.row).delete())
    _ends(target, workspace, "the workspace ends although no message announced it")


@attack("an entry link that is used twice")
def entry_link_used_twice(target: AttackTarget) -> None:
    link = _inside(target).link
    answer = target.workspace_browser(link).get(f"{link.path}?{link.query}")
    defended(answer.status == 403, f"it is answered with {answer.status}")


@attack("twenty browsers with one entry link")
def raced_entry_link(target: AttackTarget) -> None:
    link = target.entry_link(target.signed_in(target.member))

    def enter(_: int) -> int:
        return target.workspace_browser(link).get(f"{link.path}?{link.query}").status

    with ThreadPoolExecutor(20) as pool:
        statuses = sorted(pool.map(enter, range(20)))
    control(303 in statuses, f"one enters: {statuses}")
    defended(statuses.count(303) == 1, f"{statuses.count(303)} browsers enter")


@attack("an entry link after its minute")
def expired_entry_link(target: AttackTarget) -> None:
    from portal.models import EntryCode

    link = target.entry_link(target.signed_in(target.member))
    earlier = now() - timedelta(seconds=1)
    target.run_in_database(lambda: EntryCode.objects.update(expires_at=earlier))
    answer = target.workspace_browser(link).get(f"{link.path}?{link.query}")
    defended(answer.status == 403, f"it is answered with {answer.status}")


@attack("guessed, empty, long and repeated entry codes")
def guessed_entry_codes(target: AttackTarget) -> None:
    link = target.entry_link(target.signed_in(target.member))
    for query in ("code=guess", "code=", "", "code=a&code=b", "code=" + "x" * 5000, "code=%00", "code=%ff"):
        answer = target.workspace_browser(link).get(f"/.gpupool/enter?{query}")
        defended(answer.status in (400, 403), f"{query[:20]} is answered with {answer.status}")
        defended("Set-Cookie" not in answer.headers, f"{query[:20]} sets a cookie")


@attack("an entry link for a person without access")
def entry_link_of_a_stranger(target: AttackTarget) -> None:
    browser = target.signed_in(target.stranger)
    answer = browser.form(f"/notebooks/{target.notebook}/open/", {})
    defended(answer.status in (403, 404), f"the portal answers {answer.status}")


@attack("a workspace without its cookie, or with an invented one")
def workspace_without_a_cookie(target: AttackTarget) -> None:
    link = _inside(target).link
    for cookies in ({}, {"__Host-gpupool": "invented"}, {"__Host-gpupool": "x" * 5000}):
        browser = Browser(target.edge_port, link.netloc, dict(cookies))
        for path in ("/lab", "/api/contents", "/api/terminals", "/api/kernels"):
            status = browser.get(path).status
            defended(status in (400, 401, 403, 431), f"{path} is answered with {status}")


@attack("the cookie of one workspace at another address")
def cookie_at_another_workspace(target: AttackTarget) -> None:
    workspace = _inside(target)
    domain = workspace.link.netloc.partition(".")[2]
    for label in ("aaaaaaaaaaaaaaaa", "other", "www"):
        browser = Browser(target.edge_port, f"{label}.{domain}", dict(workspace.browser.cookies))
        status = browser.get("/api/status").status
        defended(status in (403, 404, 421), f"{label} is answered with {status}")


@attack("the portal's session cookie at a workspace")
def portal_cookie_at_a_workspace(target: AttackTarget) -> None:
    portal = target.signed_in(target.member)
    link = target.entry_link(portal)
    browser = Browser(target.edge_port, link.netloc, dict(portal.cookies))
    defended(browser.get("/lab").status == 403, "it opens the workspace")


@attack("a WebSocket from another origin")
def socket_of_another_origin(target: AttackTarget) -> None:
    workspace = _inside(target)
    path = "/api/events/subscribe"
    own = workspace.browser.ask("GET", path, None, {**UPGRADE, "Origin": f"http://{workspace.link.netloc}"})
    control(own.status == 101, f"its own origin opens it: {own.status}")
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{target.site.port}", ""):
        headers = {**UPGRADE, **({"Origin": origin} if origin else {})}
        answer = workspace.browser.ask("GET", path, None, headers)
        defended(answer.status == 403, f"the origin {origin!r} is answered with {answer.status}")


@attack("changes in a workspace from another site")
def change_of_another_site(target: AttackTarget) -> None:
    workspace = _inside(target)
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ):
        answer = workspace.browser.ask("POST", "/api/terminals", b"{}", headers)
        defended(answer.status == 403, f"{headers} is answered with {answer.status}")


@attack("ambiguous paths at the edge")
def ambiguous_paths(target: AttackTarget) -> None:
    workspace = _inside(target)
    for path in (
        "//evil.example/lab",
        "/lab/../api/status",
        "/lab/%2e%2e/api/status",
        "/api\\status",
        "/%5capi/status",
        "/api/status%00",
        "/lab/%0d%0aSet-Cookie:x=1",
    ):
        answer = workspace.browser.get(path)
        defended(answer.status in (400, 404), f"{path} is answered with {answer.status}")


@attack("the paths that the edge keeps for itself")
def reserved_paths(target: AttackTarget) -> None:
    workspace = _inside(target)
    for path in ("/.gpupool", "/.gpupool/", "/.gpupool/other", "/%2egpupool/enter", "/.gpupool%2fenter"):
        status = workspace.browser.get(path).status
        defended(status in (400, 403, 404), f"{path} is answered with {status}")


@attack("forged Host headers at the edge")
def forged_hosts_at_the_edge(target: AttackTarget) -> None:
    workspace = _inside(target)
    label, _, domain = workspace.link.netloc.partition(".")
    for host in (
        f"x.{label}.{domain}",
        f"{label}.{domain}.evil.example",
        f"{label}@{domain}",
        f"{domain}",
        "evil.example",
        f"{label}.{domain}:1",
    ):
        browser = Browser(target.edge_port, host, dict(workspace.browser.cookies))
        status = browser.get("/api/status").status
        defended(status in (400, 403, 404, 421), f"{host} is answered with {status}")
    two = f"GET /api/status HTTP/1.1\r\nHost: evil.example\r\nHost: {workspace.link.netloc}\r\n\r\n"
    answer = send_raw(target.edge_port, two.encode())
    defended(not answer.startswith(b"HTTP/1.1 200"), "two Host headers are answered")


@attack("live events without a session, of another team, and from another site")
def events_of_others(target: AttackTarget) -> None:
    edge = Browser(target.edge_port)
    defended(edge.get("/events?topics=queue").status in (401, 403), "without a session")
    stranger = target.signed_in(target.stranger)
    other = Browser(target.edge_port, cookies=dict(stranger.cookies))
    status = other.get(f"/events?topics=workload:{target.notebook}").status
    defended(status in (403, 404), f"the topic of another team is answered with {status}")
    own = target.signed_in(target.member)
    site = Browser(target.edge_port, cookies=dict(own.cookies))
    status = site.get("/events?topics=queue", Origin="https://evil.example").status
    defended(status == 403, f"another site is answered with {status}")


@attack("headers with which a browser claims to be the edge")
def forged_edge_headers(target: AttackTarget) -> None:
    link = _inside(target).link
    forged: dict[str, Any] = {"X_Gpupool_Secret": "guess", "X_Gpupool_User": target.member.name}
    forged |= {"Authorization": f"Bearer {target.member.program.token}", "X_Forwarded_User": "root"}
    answer = target.workspace_browser(link).get("/api/contents", **forged)
    defended(answer.status == 403, f"it is answered with {answer.status}")
