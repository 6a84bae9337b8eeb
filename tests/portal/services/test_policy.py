"""Test that permissions are denied by default.

Every rule refuses strangers, inactive users, and changes by auditors.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser

from portal import policy
from portal.errors import NotAllowed
from portal.models import Membership, User
from portal.services.work import launch
from tests.world import World

READS = {
    *("workload.logs", "approval.see", "recording.see", "metrics.see", "capacity.see", "retention.see"),
    *("charges.see_all", "audit.see_all", "database_maintenance.see", "identity.see", "system.see"),
}
OWN = {"own.change", "token.revoke", "team.join"}


@pytest.mark.django_db
def test_strangers_inactive_users_and_visitors_are_refused(world: World) -> None:
    thing = world.vision.project
    gone = world.operator
    gone.is_active = False
    for action in policy.ACTIONS:
        assert action in OWN or not policy.may(world.stranger, action, thing), action
        assert not policy.may(gone, action, thing), action
        assert not policy.may(AnonymousUser(), action, thing), action


@pytest.mark.django_db
def test_an_auditor_changes_nothing_whatever_other_roles_they_have(world: World) -> None:
    lead = world.vision.lead
    lead.auditor = lead.operator = lead.finance = True
    for action in sorted(set(policy.ACTIONS) - READS - OWN - {"statement.confirm"}):
        assert not policy.may(lead, action, world.vision.project), action
        with pytest.raises(NotAllowed):
            policy.require(lead, action, world.vision.project)


@pytest.mark.django_db
def test_an_auditor_may_be_the_second_person_who_closes_a_month(world: World) -> None:
    auditor = world.people["auditor"]
    assert policy.may(auditor, "statement.confirm")
    assert not policy.may(auditor, "statement.close")
    assert not policy.may(world.operator, "statement.confirm")


@pytest.mark.django_db
def test_an_unknown_action_raises_and_is_never_allowed(world: World) -> None:
    with pytest.raises(KeyError):
        policy.may(world.operator, "workload.steal", world.vision.project)


@pytest.mark.django_db
def test_the_superuser_flag_grants_nothing(world: World) -> None:
    user = User.objects.create_user("root", is_superuser=True, is_staff=True)
    assert not policy.may(user, "host.change")
    assert not policy.visible_workloads(user).exists() and not policy.visible_charges(user).exists()


@pytest.mark.django_db
def test_a_user_who_leaves_a_team_loses_access_to_its_work(world: World) -> None:
    member = world.vision.member
    workload = launch.launch_notebook(
        actor=member, project=world.vision.project, pool=world.shared, now=world.now
    )
    assert policy.may(member, "workload.open", workload)
    Membership.objects.filter(user=member).delete()
    assert not policy.may(member, "workload.open", workload)
    assert not policy.may(member, "workload.change", workload)
    assert not policy.visible_workloads(member).exists()


@pytest.mark.django_db
def test_a_visitor_sees_nothing(world: World) -> None:
    visitor = AnonymousUser()
    for name, found in vars(policy).items():
        if name.startswith("visible_"):
            assert not found(visitor).exists(), name


def test_every_action_is_documented_with_its_sentence() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "permissions.md").read_text()
    documented = dict(re.findall(r"^\| `([a-z_.]+)` \| (.+) \|$", text, re.MULTILINE))
    assert documented == {name: sentence for name, (_, sentence) in policy.ACTIONS.items()}
