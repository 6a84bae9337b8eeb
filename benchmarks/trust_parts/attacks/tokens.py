"""Attack API tokens: their scopes, ends and children, and repeated requests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

from benchmarks.trust_parts.attacks.browser import Browser, Program
from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import AttackTarget, now, rows_with


@attack("a token with the scope read that submits work")
def reader_submits(target: AttackTarget) -> None:
    reader = target.with_scopes(target.member, "read")
    control(reader.get("workloads/").status == 200, "the token reads")
    defended(reader.post("jobs/", target.job()).status == 403, "it submits")


@attack("a token with the scope submit that reads and manages")
def submitter_reads(target: AttackTarget) -> None:
    submitter = target.with_scopes(target.operator, "submit")
    defended(submitter.get("workloads/").status == 403, "it reads")
    defended(submitter.post("hosts/host-1/cordon/", {"why": "x"}).status == 403, "it cordons a host")


@attack("a token without the scope finance that changes money")
def manager_changes_money(target: AttackTarget) -> None:
    finance = target.person(role="finance")
    body = {"team": "faults", "month": f"{now():%Y-%m}-01", "amount": "1.00"}
    control(target.with_scopes(finance, "finance").post("budgets/", body).status == 201, "finance may")
    manager = target.with_scopes(finance, "read", "submit", "manage")
    defended(manager.post("budgets/", body).status == 403, "it sets a budget")


@attack("a token with all scopes that gives rights which its person lacks")
def scopes_without_rights(target: AttackTarget) -> None:
    program = target.member.program
    defended(program.post("hosts/host-1/cordon/", {"why": "x"}).status == 403, "it cordons a host")
    body = {"team": "faults", "month": f"{now():%Y-%m}-01", "amount": "1.00"}
    defended(program.post("budgets/", body).status == 403, "it sets a budget")


@attack("a token that makes a token with more scopes")
def wider_child(target: AttackTarget) -> None:
    parent = target.with_scopes(target.member, "submit")
    control(parent.post("tokens/", {"name": "child"}).status == 201, "a child with the same scopes is made")
    answer = parent.post("tokens/", {"name": "wide", "scopes": ["read", "submit", "manage"]})
    defended(answer.status == 400, f"a wider child: {answer.status}")


@attack("a token that makes a token which ends later")
def longer_child(target: AttackTarget) -> None:
    end = now() + timedelta(hours=1)
    parent = Program(target.site.port, target.token_of(target.member.row, expires_at=end))
    later = (end + timedelta(hours=1)).isoformat()
    defended(parent.post("tokens/", {"name": "late", "expires_at": later}).status == 400, "a later end")
    made = parent.made("tokens/", {"name": "usual"})
    defended(made["expires_at"][:19] <= end.isoformat()[:19], f"it ends at {made['expires_at']}")


@attack("a child of a revoked token")
def child_of_a_revoked_token(target: AttackTarget) -> None:
    parent = target.with_scopes(target.member, "read", "submit")
    child = Program(target.site.port, parent.made("tokens/", {"name": "child"})["token"])
    control(child.get("me/").status == 200, "the child works")
    target.member.program.made(f"tokens/{_id_of(parent)}/revoke/", {})
    defended(parent.get("me/").status == 401, "the revoked token works")
    defended(child.get("me/").status == 401, "its child works")


def _id_of(program: Program) -> int:
    from benchmarks.harness.conditions import rows
    from portal.models import ApiToken

    return int(rows(lambda: ApiToken.objects.get(prefix=program.token[:12]).pk))


@attack("a token after its end")
def expired_token(target: AttackTarget) -> None:
    from portal.models import ApiToken

    program = target.with_scopes(target.member, "read")
    control(program.get("me/").status == 200, "the token works before")
    earlier = now() - timedelta(seconds=1)
    pk = _id_of(program)
    target.run_in_database(lambda: ApiToken.objects.filter(pk=pk).update(expires_at=earlier))
    defended(program.get("me/").status == 401, "the token works after its end")


@attack("a token that lives longer than the settings allow")
def endless_token(target: AttackTarget) -> None:
    end = (now() + timedelta(days=3650)).isoformat()
    answer = target.member.program.post("tokens/", {"name": "endless", "expires_at": end})
    defended(answer.status == 400, f"a token for ten years: {answer.status}")


@attack("the revocation of a token of somebody else")
def foreign_token_revoked(target: AttackTarget) -> None:
    pk = _id_of(target.member.program)
    defended(target.stranger.program.post(f"tokens/{pk}/revoke/").status == 404, "it is revoked")
    control(target.member.program.get("me/").status == 200, "the token still works")


@attack("a token in the address, in a cookie or with another scheme")
def token_in_other_places(target: AttackTarget) -> None:
    token, browser = target.member.program.token, Browser(target.site.port)
    defended(browser.get(f"/api/v1/me/?token={token}&access_token={token}").status == 401, "in the address")
    defended(browser.get("/api/v1/me/", Authorization=f"Basic {token}").status == 401, "as Basic")
    defended(browser.get("/api/v1/me/", X_Api_Key=token).status == 401, "in another header")
    browser.cookies["gpupool_session"] = token
    defended(not browser.is_signed_in(), "as a session cookie")


@attack("parts and variations of a token")
def token_variations(target: AttackTarget) -> None:
    token = target.member.program.token
    for text in (
        token[:12],
        token[:-1],
        token + "x",
        token.upper(),
        "gpp_",
        "",
        "gpp_" + "\x7f" * 43,
        "x" * 9000,
    ):
        answer = Program(target.site.port, text).get("me/")
        defended(answer.status in (400, 401, 431), f"{text[:20]!r} is answered with {answer.status}")


@attack("tokens in the logs")
def token_in_the_log(target: AttackTarget) -> None:
    control(target.member.program.get("me/").status == 200, "the token is used")
    defended(target.member.program.token not in target.logs(), "a token is in a log")


# -- repeated requests ---------------------------------------------------------------------------


def _key(target: AttackTarget, name: str) -> dict[str, str]:
    return {"Idempotency_Key": f"{name}-{target.site.port}"}


def _jobs(target: AttackTarget, name: str) -> int:
    from scheduler.models import Workload

    return int(target.run_in_database(lambda: Workload.objects.filter(name=name).count()))


@attack("the replay of a request with its Idempotency-Key")
def replayed_request(target: AttackTarget) -> None:
    body, key = target.job(name="replayed"), _key(target, "replay")
    answers = [target.member.program.post("jobs/", body, **key) for _ in range(3)]
    control(answers[0].status == 201, f"the job is submitted: {answers[0].text[:200]}")
    defended(_jobs(target, "replayed") == 1, f"{_jobs(target, 'replayed')} jobs exist")
    control(answers[2].text == answers[0].text, "the answer is repeated")


@attack("ten requests with one Idempotency-Key at once")
def raced_request(target: AttackTarget) -> None:
    body, key = target.job(name="raced"), _key(target, "race")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: target.member.program.post("jobs/", body, **key).status, range(10)))
    control(201 in answers, f"one is carried out: {answers}")
    defended(_jobs(target, "raced") == 1, f"{_jobs(target, 'raced')} jobs exist")


@attack("the answer to somebody else's Idempotency-Key")
def foreign_idempotency_key(target: AttackTarget) -> None:
    body, key = target.job(name="first"), _key(target, "foreign")
    first = target.member.program.post("jobs/", body, **key)
    control(first.status == 201, "the job is submitted")
    second = target.stranger.program.post("jobs/", body, **key)
    defended(first.json()["id"] not in second.text, "the answer of another person is shown")


@attack("an Idempotency-Key that is used for another request")
def reused_idempotency_key(target: AttackTarget) -> None:
    key = _key(target, "reuse")
    control(target.member.program.post("jobs/", target.job(name="one"), **key).status == 201, "the first")
    answer = target.member.program.post("jobs/", target.job(name="two"), **key)
    defended(answer.status == 422, f"the other request is answered with {answer.status}")


@attack("the text of a token in the database, also in the kept answer of a repeated request")
def token_in_the_database(target: AttackTarget) -> None:
    key = _key(target, "token")
    text = str(target.member.program.post("tokens/", {"name": "once"}, **key).json()["token"])
    again = target.member.program.post("tokens/", {"name": "once"}, **key)
    control(again.status == 201 and text in again.text, f"the answer is repeated: {again.status}")
    for table in ("portal_idempotencyrecord", "portal_apitoken", "portal_auditevent"):
        found = target.run_in_database(partial(rows_with, table, text))
        defended(found == 0, f"{table} has the text of the token")
