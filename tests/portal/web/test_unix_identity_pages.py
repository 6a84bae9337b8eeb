"""Test the pages of Unix identities, of the work of a pool, and of the limits of homes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent
from portal.services.people.service_accounts import create_service_account
from scheduler.models import Host, UnixIdentity
from tests.fakes import FakeAgent
from tests.world import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(world: World) -> Client:
    browser = Client()
    browser.force_login(world.operator)
    return browser


def test_an_operator_sets_and_removes_the_identity_of_a_person(world: World, operator: Client) -> None:
    person = world.vision.member
    address = reverse("unix-identity", args=[person.username])
    assert f'href="{address}"' in operator.get(reverse("person", args=[person.username])).content.decode()
    refused = operator.post(address, {"uid": "0", "groups": "4300 sudo"})
    page = refused.content.decode()
    assert refused.status_code == 400 and "allowed: at most 200 whole numbers" in page
    refused = operator.post(address, {"uid": "0"})
    assert refused.status_code == 400 and "allowed: a whole number from 1,000 to" in refused.content.decode()
    saved = operator.post(address, {"uid": "4101", "gid": "4200", "groups": "4300, 4301", "why": "asked"})
    assert saved.status_code == 302
    assert UnixIdentity.objects.get(person=person).groups == [4_300, 4_301]
    assert AuditEvent.objects.get(verb="set_unix_identity").why == "asked"
    page = operator.get(address).content.decode()
    assert 'value="4101"' in page and 'value="4300, 4301"' in page
    assert "user 4101" in operator.get(reverse("person", args=[person.username])).content.decode()
    assert operator.post(address, {"remove": "1"}).status_code == 302
    assert not UnixIdentity.objects.exists()


def test_a_service_account_has_a_page_for_its_identity(world: World, operator: Client) -> None:
    account = create_service_account(
        actor=world.vision.lead, team=world.vision.team, name="pipeline", now=world.now
    )
    address = reverse("unix-identity", args=[account.username])
    assert f'href="{address}"' in operator.get(reverse("service-accounts")).content.decode()
    assert operator.post(address, {"uid": "4500"}).status_code == 302
    assert UnixIdentity.objects.get().person == account


def test_the_page_of_a_pool_sets_as_whom_its_work_runs(world: World, operator: Client) -> None:
    address = reverse("pool", args=[world.shared.slug])
    refused = operator.post(address, {"runs_as": "person", "home_limit_gib": "0"})
    assert refused.status_code == 400 and "home_limit_gib is 0; allowed" in refused.content.decode()
    given = {"runs_as": "person", "perf_events": "on", "home_limit_gib": "50"}
    assert operator.post(address, given).status_code == 302
    world.shared.refresh_from_db()
    assert (world.shared.runs_as, world.shared.perf_events, world.shared.home_limit_gib) == (
        *("person", True),
        50,
    )
    member = Client()
    member.force_login(world.vision.member)
    page = member.get(address).content.decode()
    assert "the Unix user of its owner" in page and "at most 50 GiB" in page


def test_the_page_of_a_team_limits_its_homes_for_operators_only(world: World, operator: Client) -> None:
    address = reverse("team", args=[world.vision.team.slug])
    given = {"verb": "home_limit", "home_limit_gib": "7"}
    assert operator.post(address, given).status_code == 302
    world.vision.team.refresh_from_db()
    assert world.vision.team.home_limit_gib == 7
    lead = Client()
    lead.force_login(world.vision.lead)
    assert "Largest size of a home" not in lead.get(address).content.decode()
    assert lead.post(address, given).status_code == 403


def test_the_page_of_a_host_says_what_it_can_do_for_homes_and_owners(world: World, operator: Client) -> None:
    host = world.hosts["alpha"]
    agent = FakeAgent.of(host)
    address = reverse("host", args=["alpha"])
    reason = "the file system nfs4 has no project quotas (Operation not supported)"
    agent.inventory = replace(agent.inventory, home_limits_problem=reason)
    agent.sync(world.now)
    page = operator.get(address).content.decode()
    assert f"not available on this file system: {reason}" in " ".join(page.split())
    assert "Work as its owner" not in page
    operator.post(reverse("pool", args=[host.pool.slug]), {"runs_as": "person"})
    page = " ".join(operator.get(address).content.decode().split())
    assert "not possible, but work of its pool runs as its owner: no new work starts on it." in page
    agent.inventory = replace(agent.inventory, home_limits=True, home_limits_problem="", person_users=True)
    agent.sync(world.now)
    page = " ".join(operator.get(address).content.decode().split())
    assert (
        "<dt>Work as its owner</dt> <dd> possible" in page
        and "<dt>Limits of homes</dt><dd>possible</dd>" in page
    )
    assert Host.objects.get(name="alpha").person_users
