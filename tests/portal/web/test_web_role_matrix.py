"""Request every page as every role and as another tenant.

A page that the table does not list fails the test. The short part requests the pages as the role that may do
least and as a visitor.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import Submission, Template
from portal.services.approvals import submissions
from portal.services.calendar import recurring_reservations, reservations
from portal.services.people.identity import providers as identity_providers
from portal.services.people.identity import rules as identity_rules
from portal.services.people.notice_channels import channels as notice_channels
from portal.services.work import launch
from portal.web import urls
from scheduler.cycle import engine
from scheduler.cycle.recording import CycleRecorder
from scheduler.models import Gpu, Recording, Reservation, Run, Series, Workload
from scheduler.runs import logs
from telemetry.capacity.studies import create_study
from tests.portal.charged_january import charge_of, unusual_spend_of
from tests.telemetry.rows import alert_of, cost_centre, directory
from tests.world import H100, World, world_fixture

pytestmark = pytest.mark.django_db

ROLES = ("member", "team mate", "lead", "other team", "stranger", "operator", "finance", "auditor")
ALL = (200,) * 8
OWN_TEAM = (
    200,
    200,
    200,
    404,
    404,
    200,
    404,
    200,
)  # work of a team: visible to the team, operators and auditors
OWNERS = (302, 403, 302, 404, 404, 302, 404, 403)  # an action on work of a team
NOTEBOOK_OWNER = (302, 403, 403, 404, 404, 403, 404, 403)
TO_THE_FORM = (
    302,
    302,
    302,
    404,
    404,
    302,
    404,
    302,
)  # leads to a prefilled form; the form is checked again when it is submitted
OPERATORS = (403, 403, 403, 403, 403, 200, 403, 403)
OPERATORS_DO = (403, 403, 403, 403, 403, 302, 403, 403)
SEE_ALL = (403, 403, 403, 403, 403, 200, 403, 200)
POOL = (200, 200, 200, 404, 404, 200, 200, 200)  # the static pool of vision
TEAM = (200, 200, 200, 404, 404, 200, 200, 200)
TEAM_REMOVAL = (403, 403, 403, 404, 404, 200, 403, 403)
LEADS = (403, 403, 200, 404, 404, 200, 403, 403)
SUBMISSION = (200, 404, 200, 404, 404, 200, 404, 200)
DECIDE = (403, 404, 403, 404, 404, 302, 404, 403)
WITHDRAW = (302, 404, 302, 404, 404, 403, 404, 403)
SEE_COST = (403, 403, 403, 403, 403, 200, 200, 200)
FINANCE = (403, 403, 403, 403, 403, 403, 200, 403)

# name: (method, the status for each of ROLES). Actions are posted with confirmed=1 and little else.
TABLE: dict[str, tuple[str, tuple[int, ...]]] = {
    "home": ("GET", ALL),
    "ask": ("GET", ALL),
    "ask-preview": ("POST", ALL),
    "calendar": ("GET", ALL),
    "calendar-ical": ("GET", (404,) * 8),  # a wrong token opens no feed
    "notebooks": ("GET", ALL),
    "notebook-launch": ("GET", ALL),
    "notebook": ("GET", OWN_TEAM),
    "notebook-open": ("POST", NOTEBOOK_OWNER),
    "jobs": ("GET", ALL),
    "job-submit": ("GET", ALL),
    "job": ("GET", OWN_TEAM),
    "job-log": ("GET", OWN_TEAM),
    "workload-cancel": ("POST", OWNERS),
    "workload-extend": ("POST", OWNERS),
    "workload-keep": ("POST", OWNERS),
    "workload-relaunch": ("POST", TO_THE_FORM),
    "reservation": ("GET", OWN_TEAM),
    "reservation-ical": ("GET", OWN_TEAM),
    "reservation-cancel": ("POST", OWNERS),
    "alerts": ("GET", ALL),
    "alert-change": ("POST", (403, 403, 403, 404, 404, 302, 404, 403)),
    "pool-alerts": ("GET", POOL),
    "volumes": ("GET", ALL),
    "series-cancel": ("POST", OWNERS),
    "array": ("GET", OWN_TEAM),
    "array-cancel": ("POST", OWNERS),
    "queue": ("GET", ALL),
    "workload-report": ("GET", OWN_TEAM),
    "workload-report-csv": ("GET", OWN_TEAM),
    "why": ("GET", OWN_TEAM),
    "sooner": ("GET", OWN_TEAM),
    "why-them": ("GET", OWN_TEAM),
    "fairness": ("GET", POOL),
    "search": ("GET", ALL),
    "fleet": ("GET", ALL),
    "host": ("GET", POOL),
    "host-add": ("GET", OPERATORS),
    "host-cordon": ("POST", OPERATORS_DO),
    "host-drain": ("GET", OPERATORS),
    "host-return": ("GET", OPERATORS),
    "host-off": ("GET", OPERATORS),
    "host-revoke": ("GET", OPERATORS),
    "host-maintenance": ("GET", OPERATORS),
    "host-dcgm": ("GET", OPERATORS),
    "host-remove": ("POST", OPERATORS_DO),
    "host-move": ("GET", OPERATORS),
    "host-repair": ("POST", OPERATORS_DO),
    "gpu-geometry": ("GET", OPERATORS),
    "utilisation": ("GET", ALL),
    "capacity": ("GET", SEE_COST),
    "capacity-study": ("GET", SEE_COST),
    "capacity-study-csv": ("GET", SEE_COST),
    "utilisation-csv": ("GET", ALL),
    "utilisation-fleet": ("GET", ALL),
    "utilisation-level-csv": ("GET", ALL),
    "utilisation-requests": ("GET", (404,) * 8),  # the address lacks the size
    "approvals": ("GET", ALL),
    "submission": ("GET", SUBMISSION),
    "submission-approve": ("POST", DECIDE),
    "submission-decline": ("POST", DECIDE),
    "submission-withdraw": ("POST", WITHDRAW),
    "submissions-decide": ("POST", (302,) * 8),  # nothing is selected, so nothing is decided
    "quota-change": ("GET", LEADS),
    "budget-request": ("GET", (403, 403, 200, 404, 404, 403, 403, 403)),
    "chargeback": ("GET", ALL),
    "chargeback-days": ("GET", (200, 200, 200, 200, 403, 403, 200, 200)),
    "chargeback-changes": ("GET", (200, 200, 200, 200, 403, 403, 200, 200)),
    "charge-lines": ("GET", ALL),
    "charge-tree-rows": ("GET", (200, 200, 200, 200, 403, 403, 200, 200)),
    # The line charges the member of vision.
    "charge-line": ("GET", (200, 404, 200, 404, 404, 404, 200, 200)),
    "rate-card": ("GET", ALL),
    "budgets": ("GET", ALL),
    "cost-centres": ("GET", ALL),
    "cost-centre": ("GET", TEAM),
    "cost-centre-split": ("GET", FINANCE),
    "cost-centre-import": ("GET", FINANCE),
    "unusual-spend": ("GET", (200, 404, 200, 404, 404, 404, 200, 200)),
    "showback": ("GET", (403, 403, 403, 403, 403, 403, 200, 200)),
    "adjustments": ("GET", ALL),
    "adjustment-new": ("GET", FINANCE),
    "adjustment": ("GET", (404,) * 8),  # no adjustment has been proposed
    "month-close": ("GET", (403, 403, 403, 403, 403, 403, 200, 200)),
    "export": ("GET", (404,) * 8),  # the address lacks the kind of the export
    "idle-payer": ("GET", (403, 403, 403, 403, 403, 403, 200, 200)),
    "billing-settings": ("GET", (403, 403, 403, 403, 403, 403, 200, 200)),
    "cost-centre-statements": ("GET", ALL),
    "cost-centre-statement": ("GET", (404,) * 8),  # no month is closed
    "teams": ("GET", ALL),
    "team": ("GET", TEAM),
    "team-remove": ("GET", TEAM_REMOVAL),
    "people": ("GET", ALL),
    "person": ("GET", TEAM_REMOVAL),
    "unix-identity": ("GET", TEAM_REMOVAL),
    "person-change": ("POST", (403, 403, 403, 404, 404, 302, 403, 403)),
    "people-import": ("GET", OPERATORS),
    "people-import-links": ("POST", OPERATORS_DO),
    "first-run": ("GET", OPERATORS),
    "tokens": ("GET", ALL),
    "service-accounts": ("GET", ALL),
    "notifications": ("GET", ALL),
    "notice-channels": ("GET", ALL),
    "notice-channel": ("GET", (404, 404, 200, 404, 404, 200, 404, 404)),
    "account": ("GET", ALL),
    "second-factor-required": ("GET", ALL),
    "preferences": ("GET", (302,) * 8),
    "audit": ("GET", ALL),
    "settings": ("GET", ALL),
    "own-identities": ("GET", ALL),
    "sign-in-settings": ("GET", SEE_ALL),
    "identity-provider-new": ("GET", OPERATORS),
    "directory-new": ("GET", OPERATORS),
    "directory-sync": ("GET", OPERATORS),
    "identity-provider": ("GET", SEE_ALL),
    # 404 for the operator: this session has no claims of a test sign-in.
    "identity-claims": ("GET", (403, 403, 403, 403, 403, 404, 403, 403)),
    "claim-rules": ("GET", SEE_ALL),
    "claim-rule-remove": ("GET", OPERATORS),
    "pool": ("GET", POOL),
    "pool-new": ("GET", OPERATORS),
    "pool-remove": ("GET", OPERATORS),
    "health-rules": ("GET", ALL),
    "retention": ("GET", SEE_ALL),
    "database-maintenance": ("GET", SEE_ALL),
    "system-health": ("GET", SEE_ALL),
    "recordings": ("GET", SEE_ALL),
    "recording": ("GET", SEE_ALL),
    "templates": ("GET", ALL),
    "template": ("GET", OPERATORS),
    "template-new": ("GET", OPERATORS),
    "template-remove": ("POST", OPERATORS_DO),
}


class SampleObjects:
    """Objects of vision, one of each kind, created by its member."""

    def __init__(self, world: World) -> None:
        start = world.now + timedelta(days=365)
        identity_providers.create_provider(
            actor=world.operator,
            name="Corp",
            issuer="https://id.example.org",
            client_id="x",
            secret="y",
            now=world.now,
        )
        identity_providers.create_provider(
            actor=world.operator,
            name="Staff",
            kind="ldap",
            secret="y",
            directory={"url": "ldaps://127.0.0.1:1", "bind_dn": "cn=x", "user_base": "dc=x"},
            now=world.now,
        )
        self.channel, _ = notice_channels.create_channel(
            actor=world.vision.lead,
            team=world.vision.team,
            name="list",
            kind="mail",
            topics=["work"],
            address="vision@example.org",
            now=world.now,
        )
        self.claim_rule = identity_rules.create_rule(
            actor=world.operator, provider="corp", claim="groups", value="x", team="vision", now=world.now
        )
        directory("CC-1", since=world.now)
        cost_centre(world.vision, "CC-1", world.now)
        given: dict[str, Any] = {
            "actor": world.vision.member,
            "project": world.vision.project,
            "pool": world.shared,
            "now": world.now,
        }
        window = {"start": start, "end": start + timedelta(hours=2)}
        self.job = launch.submit_job(**given, name="fit", command="true", units=1, max_runtime_seconds=3600)
        self.array = launch.submit_array(**given, name="sweep", command="true", units=1, array="0-3%2")
        run = Run.objects.create(
            workload=self.job,
            attempt=1,
            host=world.hosts["alpha"],
            generation=1,
            placed_at=world.now,
            state="ended",
        )
        logs.append_log(run.public_id, 0, "one line\n")
        Template.objects.create(
            slug="lab", name="Lab", kind="notebook", type="interactive", units=1, max_runtime_seconds=3600
        )
        self.notebook = launch.launch_notebook(**given, template=Template.objects.get(slug="lab"), name="lab")
        Workload.objects.filter(pk=self.notebook.pk).update(state="queued")
        given["now"] = start - timedelta(days=1)
        booked = reservations.request_reservation(**given, name="small", units=1, models=[H100], **window)
        assert isinstance(booked, Reservation)
        self.reservation = booked
        recurring = recurring_reservations.request_series(
            **given,
            name="course",
            units=1,
            models=[H100],
            weekdays=["mon"],
            until=(start + timedelta(days=7)).date(),
            **window,
        )
        assert isinstance(recurring, Series)
        self.series = recurring
        asked = submissions.request_quota_change(
            actor=world.vision.lead,
            team=world.vision.team,
            pool=world.shared,
            model=H100,
            guaranteed_gpus=6,
            now=world.now,
        )
        Submission.objects.filter(pk=asked.pk).update(author=world.vision.member)
        self.submission = asked
        self.charge = charge_of(self.job, Gpu.objects.earliest("pk"))
        self.alert = alert_of(self.job)
        self.unusual_spend = unusual_spend_of(self.job)
        engine.run_cycle("test", world.now, recorder=CycleRecorder())
        self.study = create_study(world.shared, "", 3_600, world.operator, world.now)
        self.recording = Recording.objects.latest("pk").pk

    def address(self, name: str) -> str:
        arguments: dict[str, list[Any]] = {
            "calendar-ical": ["not-a-token"],
            "notebook": [self.notebook.public_id],
            "notebook-open": [self.notebook.public_id],
            "reservation": [self.reservation.public_id],
            "reservation-ical": [self.reservation.public_id],
            "notice-channel": [self.channel.public_id],
            "reservation-cancel": [self.reservation.public_id],
            "series-cancel": [self.series.public_id],
            "array": [self.array.public_id],
            "array-cancel": [self.array.public_id],
            "utilisation-csv": ["waterfall"],
            "utilisation-level-csv": ["fleet"],
            "month-close": [f"{timezone.now():%Y-%m}"],
            "chargeback-days": [f"{timezone.now():%Y-%m}"],
            "chargeback-changes": [f"{timezone.now():%Y-%m}"],
            "export": [f"{timezone.now():%Y-%m}"],
            "idle-payer": [f"{timezone.now():%Y-%m}"],
            "cost-centre-statement": ["2199-01/CC-9/1"],
            "charge-line": [self.charge.pk],
            "unusual-spend": [self.unusual_spend.pk],
            "cost-centre": ["CC-1"],
            "adjustment": ["2199-01-A1"],
            "team": ["vision"],
            "identity-provider": ["corp"],
            "identity-claims": ["corp"],
            "directory-sync": ["staff"],
            "claim-rule-remove": [self.claim_rule.pk],
            "person": [self.job.owner.username],
            "unix-identity": [self.job.owner.username],
            "person-change": [self.job.owner.username, "end-sessions"],
            "quota-change": ["vision"],
            "budget-request": ["vision"],
            "pool": ["vision-only"],
            "pool-remove": ["vision-only"],
            "pool-alerts": ["vision-only"],
            "alert-change": [self.alert.public_id],
            "team-remove": ["vision"],
            "template-remove": ["lab"],
            "fairness": ["vision-only"],
            "why-them": [self.job.public_id, self.notebook.public_id],
            "template": ["lab"],
            "recording": [self.recording],
            "capacity-study": [self.study.public_id],
            "capacity-study-csv": [self.study.public_id],
        }
        jobs = (
            "job",
            "job-log",
            "why",
            "sooner",
            "workload-cancel",
            "workload-extend",
            "workload-keep",
            "workload-relaunch",
            "workload-report",
            "workload-report-csv",
        )
        arguments |= dict.fromkeys(jobs, [self.job.public_id])
        verbs = (
            "cordon",
            "drain",
            "return",
            "off",
            "revoke",
            "maintenance",
            "repair",
            "remove",
            "move",
            "dcgm",
        )
        arguments |= dict.fromkeys(("host", *(f"host-{verb}" for verb in verbs)), ["delta"])
        arguments["gpu-geometry"] = ["delta", 0]
        decisions = ("submission", "submission-approve", "submission-decline", "submission-withdraw")
        arguments |= dict.fromkeys(decisions, [self.submission.public_id])
        return reverse(name, args=arguments.get(name, []))


def write_samples(world: World) -> SampleObjects:
    """Return one object of each kind, of vision."""
    return SampleObjects(world)


samples = world_fixture(write_samples)

BODY = {
    "confirmed": "1",
    "seconds": "3600",
    "hours": "1",
    "why": "a test",
    "comment": "a test",
    "guaranteed_gpus": "6",
    "borrow_limit_gpus": "",
}


def page_names() -> Iterator[str]:
    for pattern in urls.urlpatterns:
        yield str(pattern.name)


def test_every_page_is_in_the_table() -> None:
    assert sorted(set(page_names()) ^ set(TABLE)) == []


def status_of(client: Client, name: str, address: str) -> int:
    """Request a page and return its status. Undo its changes, so that all requests find equal objects."""
    with transaction.atomic():
        answer = client.get(address) if TABLE[name][0] == "GET" else client.post(address, BODY)
        transaction.set_rollback(True)
    cache.clear()
    return answer.status_code


@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=[] if role == "stranger" else pytest.mark.long) for role in ROLES]
)
def test_a_role_gets_the_status_in_the_table(world: World, samples: SampleObjects, role: str) -> None:
    signed_in = Client()
    signed_in.force_login(world.people[role])
    got = {}
    for name in TABLE:
        client = Client()
        client.cookies.load(
            {settings.SESSION_COOKIE_NAME: signed_in.cookies[settings.SESSION_COOKIE_NAME].value}
        )
        got[name] = status_of(client, name, samples.address(name))
    column = ROLES.index(role)
    assert got == {name: statuses[column] for name, (_, statuses) in TABLE.items()}


def test_visitors_are_redirected_to_sign_in(samples: SampleObjects) -> None:
    wrong = []
    for name in set(TABLE) - {"calendar-ical", "first-run"}:
        address = samples.address(name)
        with transaction.atomic():
            answer = Client().get(address) if TABLE[name][0] == "GET" else Client().post(address, BODY)
            transaction.set_rollback(True)
        if answer.status_code != 302 or "/accounts/login/" not in answer["Location"]:
            wrong.append((name, answer.status_code))
    assert not wrong
