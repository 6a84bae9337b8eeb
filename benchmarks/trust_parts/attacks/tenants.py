"""Attack the work, money and rights of other teams, and the rights of roles."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from benchmarks.trust_parts.attacks.browser import Program
from benchmarks.trust_parts.attacks.registry import attack, control, defended
from benchmarks.trust_parts.attacks.target import AttackTarget, now

HIDDEN = (403, 404)


def _refused(program: Program, paths: dict[str, Any]) -> None:
    """Check that each request is refused. The value None means GET, otherwise it is the body of a POST."""
    for path, body in paths.items():
        answer = program.get(path) if body is None else program.post(path, body)
        defended(answer.status in HIDDEN, f"{path} is answered with {answer.status}")


@attack("another team's workload is read")
def foreign_workload_read(target: AttackTarget) -> None:
    place = f"workloads/{target.notebook}/"
    control(target.member.program.get(place).status == 200, "its own team reads it")
    reads = ("", "why/", "logs/", "use/", "report/", "sooner/")
    _refused(target.stranger.program, {f"{place}{part}": None for part in reads})


@attack("another team's workload is changed")
def foreign_workload_changed(target: AttackTarget) -> None:
    place = f"workloads/{target.notebook}/"
    changes = {"cancel/": {}, "extend/": {"seconds": 3600}, "keep/": {}, "relaunch/": {}, "open/": {}}
    _refused(target.stranger.program, {f"{place}{part}": body for part, body in changes.items()})
    state = target.member.program.get(place).json()["state"]
    defended(state == "running", f"the workload is {state}")


@attack("another team's workload on the pages")
def foreign_workload_page(target: AttackTarget) -> None:
    browser = target.signed_in(target.stranger)
    for page in (
        f"/notebooks/{target.notebook}/",
        f"/jobs/{target.notebook}/",
        f"/jobs/{target.notebook}/log/",
    ):
        defended(browser.get(page).status in HIDDEN, f"{page} is shown")
    for page in (f"/notebooks/{target.notebook}/open/", f"/workloads/{target.notebook}/cancel/"):
        defended(browser.form(page, {}).status in HIDDEN, f"{page} is carried out")


@attack("another team's names in lists and searches")
def foreign_names(target: AttackTarget) -> None:
    name = "hidden-name-of-a-job"
    made = target.member.program.made("jobs/", target.job(name=name))
    own = target.member.program.get("workloads/?page_size=200").text
    control(name in own, "its own team sees it")
    program, browser = target.stranger.program, target.signed_in(target.stranger)
    for path in ("workloads/?page_size=200", "queue/", "notifications/", "audit/", "charges/"):
        text = program.get(path).text
        defended(name not in text and made["id"] not in text, f"{path} shows it")
    for path in (f"/search/?q={name}", "/queue/", "/jobs/"):
        text = browser.get(path).text
        defended(made["id"] not in text, f"{path} shows it")


@attack("work in another team's project")
def foreign_project(target: AttackTarget) -> None:
    answer = target.stranger.program.post("jobs/", target.job(project="faults/faults"))
    defended(answer.status in (400, 403, 404), f"it is answered with {answer.status}")


@attack("another team's reservation")
def foreign_reservation(target: AttackTarget) -> None:
    begins = (now() + timedelta(days=2)).replace(minute=0, second=0, microsecond=0)
    body = {
        "project": "faults/faults",
        "pool": "faults",
        "name": "a reservation",
        "units": 1,
        "start": begins.isoformat(),
        "end": (begins + timedelta(hours=2)).isoformat(),
    }
    made = target.member.program.made("reservations/", body)
    made = made.get("reservation") or made
    place = f"reservations/{made['id']}/"
    control(target.member.program.get(place).status == 200, "its own team reads it")
    changes: dict[str, Any] = {f"{place}cancel/": {}, f"{place}shorten/": {"end": begins.isoformat()}}
    _refused(target.stranger.program, changes)


@attack("SQL in filters, names and orders")
def sql_in_parameters(target: AttackTarget) -> None:
    program = target.stranger.program
    for text in ("' OR 1=1--", "1;DROP TABLE portal_user", "%27%29%20OR%201=1", "\\", "%00", "${jndi:x}"):
        quoted = text.replace(" ", "%20")
        for path in (f"workloads/?state={quoted}", f"workloads/?search={quoted}", f"audit/?verb={quoted}"):
            answer = program.get(path)
            defended(answer.status < 500, f"{path} is answered with {answer.status}")
            defended(target.notebook not in answer.text, f"{path} shows another team's work")


# -- roles ---------------------------------------------------------------------------------------


@attack("a member who becomes operator")
def member_becomes_operator(target: AttackTarget) -> None:
    from portal.models import User

    name = target.member.name
    program, browser = target.member.program, target.signed_in(target.member)
    _refused(program, {f"people/{name}/roles/": {"operator": True}})
    browser.form(f"/people/{name}/roles/", {"operator": "on"})
    program.ask("PATCH", "me/", {"operator": True, "is_superuser": True})
    row = target.run_in_database(lambda: User.objects.get(username=name))
    defended(not row.operator and not row.finance and not row.auditor, "the member has a role")


@attack("a member who uses the operators' verbs on hosts")
def member_manages_hosts(target: AttackTarget) -> None:
    verbs: dict[str, Any] = {"cordon/": {"why": "x"}, "drain/": {"why": "x"}, "revoke/": {"why": "x"}}
    verbs |= {"join-token/": {}, "remove/": {}, "return/": {}}
    _refused(target.member.program, {f"hosts/host-1/{verb}": body for verb, body in verbs.items()})
    new = {"pool": "faults", "name": "mine"}
    defended(target.member.program.post("hosts/", new).status == 403, "a member adds a host")


@attack("a member who protects, closes or removes accounts")
def member_manages_people(target: AttackTarget) -> None:
    place = f"people/{target.operator.name}/"
    verbs = ("close/", "end-sessions/", "revoke-tokens/", "reset-password/", "remove/", "stop-work/")
    _refused(target.member.program, {f"{place}{verb}": {"why": "x"} for verb in verbs})
    control(target.operator.program.get("me/").status == 200, "the operator is unaffected")


@attack("a member who changes prices, limits and settings")
def member_changes_settings(target: AttackTarget) -> None:
    program, price = target.member.program, {"valid_from": (now() + timedelta(days=1)).isoformat()}
    for method, path, body in (
        ("PATCH", "security-settings/", {"token_days": 3650}),
        ("POST", "prices/", {**price, "model": "H100-80GB", "cost": "0", "price": "0"}),
        ("POST", "teams/faults/remove/", {"why": "x"}),
        ("POST", "pools/faults/remove/", {"why": "x"}),
        ("POST", "service-accounts/", {"name": "robot", "team": "faults"}),
    ):
        answer = program.ask(method, path, body)
        defended(answer.status in (403, 404), f"{method} {path} is answered with {answer.status}")


@attack("an auditor who changes something")
def auditor_changes(target: AttackTarget) -> None:
    auditor = target.person(role="auditor")
    control(auditor.program.get("audit/").status == 200, "the auditor reads")
    defended(
        auditor.program.post(f"workloads/{target.notebook}/cancel/").status in HIDDEN, "work is cancelled"
    )
    defended(auditor.program.post("hosts/host-1/cordon/", {"why": "x"}).status == 403, "a host is cordoned")
    defended(auditor.program.post("jobs/", target.job()).status in (400, 403, 404), "work is submitted")


@attack("the audit record read by a member")
def member_reads_the_audit_record(target: AttackTarget) -> None:
    program = target.member.program
    defended(program.get("audit/integrity/").status == 403, "a member sees the seals")
    control(target.operator.program.get("audit/?page_size=200").status == 200, "operators read it")
    text = program.get("audit/?page_size=200").text
    defended(f'"{target.operator.name}"' not in text, "a member sees the records of operators")


@attack("the approval of one's own request")
def own_request_approved(target: AttackTarget) -> None:
    author, other = target.person("faults", role="operator", lead=True), target.operator
    wish = {"team": "faults", "pool": "faults", "model": "H100-80GB", "guaranteed_gpus": 1, "why": "x"}
    made = author.program.made("quotas/requests/", wish)
    place = f"approvals/{made['id']}/"
    answer = author.program.post(f"{place}approve/", {})
    defended(answer.status in (403, 409), f"the author approves: {answer.status} {answer.text[:200]}")
    browser = target.signed_in(author)
    browser.form(f"/approvals/{made['id']}/approve/", {})
    state = other.program.get(place).json()["state"]
    defended(state in ("waiting", "pending"), f"the request is {state}")
    control(
        other.program.post(f"{place}decline/", {"comment": "x"}).status == 200, "another operator decides"
    )


@attack("a site that loses its last operator")
def last_operator_removed(target: AttackTarget) -> None:
    from portal.models import User

    def only(name: str) -> None:
        User.objects.filter(operator=True).exclude(username=name).update(is_active=False)

    target.run_in_database(lambda: only(target.operator.name))
    try:
        for verb, body in (
            ("close/", {"why": "x"}),
            ("roles/", {"operator": False}),
            ("remove/", {"why": "x"}),
        ):
            answer = target.operator.program.post(f"people/{target.operator.name}/{verb}", body)
            defended(answer.status == 409, f"{verb} is answered with {answer.status}")
    finally:
        target.run_in_database(lambda: User.objects.filter(operator=True).update(is_active=True))
