"""Test Unix identities: who sets them, which are refused, and with which identity work runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.conf import LazySettings

from agent.protocol import PersonWanted, RunWanted
from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, User
from portal.services.fleet.pool_work import change_home_limit, change_pool_work
from portal.services.people.identity import providers
from portal.services.people.identity.unix_identities import (
    remove_unix_identity,
    set_unix_identity,
    take_from_claims,
    take_unix_identity,
)
from portal.services.people.service_accounts import create_service_account
from portal.services.work.workload_changes import cancel_workload
from portal.sign_in.oidc.providers import settings_of
from scheduler.cycle import engine
from scheduler.models import Host, Pool, Run, UnixIdentity, Workload
from scheduler.sync.desired_state import desired
from tests.fakes import FakeAgent
from tests.portal.rejections import rejected
from tests.portal.services.test_workloads import job
from tests.world import World

pytestmark = pytest.mark.django_db


def identity(world: World, user: User, uid: int = 4_101, **fields: Any) -> UnixIdentity:
    return set_unix_identity(actor=world.operator, user=user, uid=uid, now=world.now, **fields)


def run_as_owners(world: World) -> Pool:
    return change_pool_work(actor=world.operator, pool=world.shared, runs_as="person", now=world.now)


def wanted_of(world: World, workload: Workload) -> list[RunWanted]:
    """Plan, and return the runs of the workload that hosts are told to start."""
    engine.run_cycle("test", world.now)
    hosts = Host.objects.filter(runs__workload=workload).distinct()
    return [
        wanted
        for host in hosts
        for wanted in desired(host, world.now).runs
        if wanted.workload == str(workload.public_id)
    ]


# Setting an identity


def test_an_operator_sets_changes_and_removes_an_identity(world: World) -> None:
    person = world.vision.member
    row = identity(world, person, gid=4_200, groups=[4_300, 4_201, 4_300], why="asked")
    assert row.as_run_value() == {
        "uid": 4_101,
        "gid": 4_200,
        "groups": [4_201, 4_300],
        "name": person.username,
        "home": f"/home/{person.username}",
    }
    assert identity(world, person, 4_102, name="ada", home="/nfs/people/ada").gid == 4_102
    remove_unix_identity(actor=world.operator, user=person, now=world.now)
    assert not UnixIdentity.objects.exists()
    verbs = AuditEvent.objects.order_by("pk").values_list("verb", "before__uid", "after__uid")
    assert list(verbs) == [
        ("set_unix_identity", None, 4_101),
        ("set_unix_identity", 4_101, 4_102),
        ("remove_unix_identity", 4_102, None),
    ]
    with rejected("has no Unix identity"):
        remove_unix_identity(actor=world.operator, user=person, now=world.now)


@pytest.mark.parametrize("role", ["member", "lead", "finance", "auditor"])
def test_only_operators_set_and_remove_identities(world: World, role: str) -> None:
    actor = world.people[role]
    with pytest.raises(NotAllowed):
        set_unix_identity(actor=actor, user=world.vision.member, uid=4_101, now=world.now)
    with pytest.raises(NotAllowed):
        remove_unix_identity(actor=actor, user=world.vision.member, now=world.now)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"uid": 0}, "uid is 0; allowed: a whole number from 1,000 to"),
        ({"uid": 999}, "uid is 999; allowed: a whole number from 1,000 to"),
        ({"uid": 2**31}, "uid is 2147483648; allowed: a whole number from 1,000 to"),
        ({"uid": True}, "uid is True; allowed"),
        ({"uid": 65_534}, "uid is 65534, which is nobody's"),
        ({"uid": 70_000}, "the numbers from 70000 to 99999 belong to teams"),
        ({"gid": 0}, "gid is 0; allowed"),
        ({"gid": 99_999}, "the numbers from 70000 to 99999 belong to teams"),
        ({"groups": [4_200, 27]}, "groups is 27; allowed"),
        ({"groups": list(range(2_000, 2_201))}, "allowed: at most 200 whole numbers"),
        ({"name": "a:b"}, "name is 'a:b'; allowed: a Unix name"),
        ({"name": "-rf"}, "name is '-rf'; allowed: a Unix name"),
        ({"home": "home/ada"}, "home is 'home/ada'; allowed: an absolute path"),
        ({"home": "/"}, "home is '/'; allowed: an absolute path"),
        ({"home": "/home/../etc"}, "allowed: an absolute path without .."),
        ({"home": "/home//ada"}, "allowed: an absolute path"),
        ({"home": "/home/a\nb"}, "allowed: an absolute path"),
        ({"home": f"/{'x' * 400}"}, "of at most 400 characters"),
    ],
)
def test_an_identity_of_the_system_or_of_teams_is_refused(
    world: World, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        set_unix_identity(
            **{"actor": world.operator, "user": world.vision.member, "uid": 4_101, "now": world.now, **fields}
        )
    assert message in caught.value.message
    assert not UnixIdentity.objects.exists()


def test_the_first_number_of_people_is_a_setting(world: World, settings: LazySettings) -> None:
    settings.GPUPOOL_FIRST_PERSON_ID = 500
    assert identity(world, world.vision.member, 500).uid == 500
    with pytest.raises(Invalid, match="from 500 to"):
        identity(world, world.vision.lead, 499)


def test_two_people_cannot_have_one_number_or_one_name(world: World) -> None:
    identity(world, world.vision.member, 4_101, name="ada")
    with rejected("uid is 4101, which is the user number of") as refused:
        identity(world, world.vision.lead, 4_101, name="bob")
    assert dict(refused.value.numbers)["holder"] == world.vision.member.username
    with rejected("name is ada, which is the Unix name of"):
        identity(world, world.vision.lead, 4_102, name="ada")
    identity(world, world.vision.member, 4_101, name="ada", home="/nfs/ada")  # the own number is no conflict
    assert UnixIdentity.objects.count() == 1


# From an identity provider


def take(world: World, user: User, **attributes: Any) -> str:
    return take_unix_identity(
        user=user, provider="corp", provider_name="Corp", attributes=attributes, now=world.now
    )


def test_a_provider_gives_numbers_as_text_or_as_numbers(world: World) -> None:
    person = world.vision.member
    values = {"uid": ["4101"], "gid": "4200", "groups": ["4300", 4_301], "name": "ada", "home": "/nfs/ada"}
    assert take(world, person, **values) == ""
    row = UnixIdentity.objects.get()
    assert (row.uid, row.gid, row.groups, row.name, row.home, row.provider) == (
        *(4_101, 4_200, [4_300, 4_301], "ada", "/nfs/ada"),
        "corp",
    )
    assert take(world, person, **values) == ""
    assert AuditEvent.objects.filter(verb="set_unix_identity").count() == 1, "nothing has changed"
    assert take(world, person, **{**values, "groups": "4300,4302 4303"}) == ""
    assert UnixIdentity.objects.get().groups == [4_300, 4_302, 4_303]


def test_a_provider_without_a_number_changes_nothing(world: World) -> None:
    assert take(world, world.vision.member, uid=None, name="ada") == ""
    assert take(world, world.vision.member, uid="") == ""
    assert not UnixIdentity.objects.exists()


def test_an_identity_that_an_operator_has_set_is_kept(world: World) -> None:
    identity(world, world.vision.member, 4_101)
    assert take(world, world.vision.member, uid=4_999) == ""
    assert UnixIdentity.objects.get().uid == 4_101


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"uid": "0"}, "uid is 0; allowed"),
        ({"uid": "root"}, "uid is 'root'; allowed"),
        ({"uid": "4102", "groups": ["sudo"]}, "groups is 'sudo'; allowed"),
        ({"uid": "4101"}, "uid is 4101, which is the user number of"),
    ],
)
def test_a_refused_identity_of_a_provider_is_audited_and_changes_nothing(
    world: World, attributes: dict[str, Any], message: str
) -> None:
    identity(world, world.vision.lead, 4_101)
    problem = take(world, world.vision.member, **attributes)
    assert problem.startswith("The identity that Corp gives is refused: ") and message in problem
    assert AuditEvent.objects.get(verb="refuse_unix_identity").why == problem
    assert not UnixIdentity.objects.filter(person=world.vision.member).exists()


def test_the_settings_of_a_provider_name_the_claims(world: World) -> None:
    row = providers.create_provider(
        actor=world.operator,
        name="Corp",
        issuer="https://corp.example.org",
        client_id="x",
        secret="y",
        now=world.now,
        uid_claim="uidNumber",
        home_claim="homeDirectory",
    )
    claims = {"uidNumber": 4_101, "gidNumber": 4_200, "homeDirectory": "/nfs/ada"}
    person = world.vision.member
    take_from_claims(user=person, provider=settings_of(row), claims=claims, now=world.now)
    stored = UnixIdentity.objects.get(person=person)
    assert (stored.uid, stored.gid, stored.home, stored.provider) == (4_101, 4_101, "/nfs/ada", "corp")
    row = providers.change_provider(
        actor=world.operator, provider=row, now=world.now, uid_claim="", gid_claim="gidNumber"
    )
    remove_unix_identity(actor=world.operator, user=person, now=world.now)
    take_from_claims(user=person, provider=settings_of(row), claims=claims, now=world.now)
    assert not UnixIdentity.objects.exists(), "without a claim for the number, no identity is taken"
    with pytest.raises(Invalid, match="uid_claim is"):
        providers.change_provider(actor=world.operator, provider=row, now=world.now, uid_claim="a b")


# The identity of work


def test_work_of_a_person_without_an_identity_is_refused_where_work_runs_as_its_owner(world: World) -> None:
    run_as_owners(world)
    with rejected("has no Unix identity") as refused:
        job(world)
    assert (
        refused.value.field == "pool" and dict(refused.value.numbers)["name"] == world.vision.member.username
    )
    assert not Workload.objects.exists()
    identity(world, world.vision.member)
    assert job(world).unix_identity["uid"] == 4_101


def test_work_runs_as_its_owner_with_the_identity_of_its_submission(world: World) -> None:
    Host.objects.update(person_users=True)
    before = job(world, units=1)
    identity(world, world.vision.member, gid=4_200, groups=[4_300], name="ada")
    run_as_owners(world)
    workload = job(world, units=1)
    identity(world, world.vision.member, 4_102, name="ada")
    (wanted,) = wanted_of(world, workload)
    assert wanted.person == PersonWanted(4_101, 4_200, [4_300], "ada", "/home/ada")
    assert [each.person for each in wanted_of(world, before)] == [None], "it keeps the user of its team"
    assert job(world, units=1).unix_identity["uid"] == 4_102


def test_a_service_account_needs_an_identity_of_its_own(world: World) -> None:
    account = create_service_account(
        actor=world.vision.lead, team=world.vision.team, name="pipeline", now=world.now
    )
    identity(world, world.vision.lead, 4_101)  # that of its owner does not count
    run_as_owners(world)
    with rejected("has no Unix identity"):
        job(world, actor=account)
    identity(world, account, 4_500)
    assert job(world, actor=account).unix_identity["uid"] == 4_500


def test_work_as_its_owner_starts_only_on_hosts_that_can_run_it(world: World) -> None:
    identity(world, world.vision.member)
    run_as_owners(world)
    workload = job(world, units=1)
    engine.run_cycle("test", world.now)
    workload.refresh_from_db()
    assert workload.state == "queued"
    assert workload.reason_code == "host_closed" and workload.reason_numbers["no_person_users"]
    assert workload.reason_numbers["codes"] == ["person_users_missing"]
    Host.objects.filter(name="beta").update(person_users=True)
    (wanted,) = wanted_of(world, workload)
    assert Run.objects.get(public_id=wanted.run).host.name == "beta"


def test_an_agent_that_no_longer_can_run_work_as_its_owner_is_not_told_to_start_it(world: World) -> None:
    Host.objects.update(person_users=True)
    identity(world, world.vision.member)
    run_as_owners(world)
    workload = job(world, units=1)
    (wanted,) = wanted_of(world, workload)
    host = Run.objects.get(public_id=wanted.run).host
    host.person_users = False
    assert desired(host, world.now).runs == []


def test_the_report_of_an_agent_says_whether_it_can_run_work_as_its_owner(world: World) -> None:
    agent = FakeAgent.of(world.hosts["alpha"])
    observed = agent.observed()
    assert not Host.objects.get(name="alpha").person_users
    agent.sync(world.now, replace(observed, inventory=replace(observed.inventory, person_users=True)))
    assert Host.objects.get(name="alpha").person_users
    agent.sync(world.now, agent.observed())
    assert not Host.objects.get(name="alpha").person_users, "an older agent does not report it"


def test_a_pool_with_work_of_owners_cannot_run_work_as_teams(world: World) -> None:
    identity(world, world.vision.member)
    pool = run_as_owners(world)
    workload = job(world)
    with rejected("1 notebooks and jobs of Shared run, or wait to run") as refused:
        change_pool_work(actor=world.operator, pool=pool, runs_as="team", now=world.now)
    assert dict(refused.value.numbers)["count"] == 1
    cancel_workload(actor=world.vision.member, workload=workload, now=world.now)
    changed = change_pool_work(actor=world.operator, pool=pool, runs_as="team", now=world.now)
    assert changed.runs_as == "team" and job(world).unix_identity is None


# Other settings of the work of a pool


def test_perf_events_are_blocked_until_the_pool_allows_them(world: World) -> None:
    workload = job(world, units=1)
    assert [wanted.perf_events for wanted in wanted_of(world, workload)] == [False]
    change_pool_work(
        actor=world.operator, pool=world.shared, perf_events=True, now=world.now, why="profiling"
    )
    assert [wanted.perf_events for wanted in wanted_of(world, workload)] == [True]
    event = AuditEvent.objects.get(verb="change_pool_work")
    assert (event.before["perf_events"], event.after["perf_events"], event.why) == (False, True, "profiling")


def test_the_limit_of_homes_is_that_of_the_team_and_otherwise_of_the_pool(world: World) -> None:
    workload = job(world, units=1)
    change_pool_work(actor=world.operator, pool=world.shared, home_limit_gib=50, now=world.now)
    assert [wanted.home_limit_mib for wanted in wanted_of(world, workload)] == [50 * 1024]
    change_home_limit(actor=world.operator, team=world.vision.team, home_limit_gib=2, now=world.now)
    assert [wanted.home_limit_mib for wanted in wanted_of(world, workload)] == [2 * 1024]
    change_home_limit(actor=world.operator, team=world.vision.team, home_limit_gib=None, now=world.now)
    change_pool_work(actor=world.operator, pool=world.shared, home_limit_gib=None, now=world.now)
    assert [wanted.home_limit_mib for wanted in wanted_of(world, workload)] == [0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runs_as": "root"}, "runs_as is 'root'; allowed: person, team"),
        ({"perf_events": 1}, "perf_events is 1; allowed: true or false"),
        ({"home_limit_gib": 0}, "home_limit_gib is 0; allowed: a whole number from 1 to"),
    ],
)
def test_settings_of_work_that_do_not_exist_are_refused(
    world: World, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid) as caught:
        change_pool_work(actor=world.operator, pool=world.shared, now=world.now, **fields)
    assert message in caught.value.message
    with pytest.raises(NotAllowed):
        change_pool_work(actor=world.vision.lead, pool=world.shared, now=world.now, perf_events=True)
    with pytest.raises(NotAllowed):
        change_home_limit(actor=world.vision.lead, team=world.vision.team, home_limit_gib=1, now=world.now)
