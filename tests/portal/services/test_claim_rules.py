"""Test the rules that turn claims into memberships and roles, and their preview."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount

from portal.errors import Invalid, NotAllowed
from portal.models import AuditEvent, ClaimGrant, ClaimRule, Membership, User
from portal.services.people import team_removal
from portal.services.people.identity import providers, rules
from portal.services.people.identity.rules import RightsChange, claim_values
from tests.world import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def people(world: World) -> World:
    """Return the world with two providers. Nobody is connected."""
    for slug in ("corp", "lab"):
        providers.create_provider(
            actor=world.operator,
            name=slug.title(),
            slug=slug,
            issuer=f"https://{slug}.example.org",
            client_id="x",
            secret="y",
            now=world.now,
        )
    return world


def rule(world: World, value: str, provider: str = "corp", **gives: Any) -> ClaimRule:
    return rules.create_rule(
        actor=world.operator, provider=provider, claim="groups", value=value, now=world.now, **gives
    )


def sign_in(world: World, person: User, *groups: str, provider: str = "corp") -> RightsChange:
    """Apply the rules as at a sign-in with these groups, and keep the claims."""
    claims = {"groups": list(groups)}
    SocialAccount.objects.update_or_create(
        user=person, provider=provider, uid=person.username, defaults={"extra_data": claims}
    )
    return rules.apply_rules(user=person, provider=provider, claims=claims, now=world.now)


def teams(person: User) -> dict[str, str]:
    return dict(Membership.objects.filter(user=person).values_list("team__slug", "role"))


def test_a_group_gives_a_team_and_the_person_loses_it_with_the_group(people: World) -> None:
    person = people.stranger
    rule(people, "gpu-vision", team="vision")
    assert sign_in(people, person, "gpu-vision", "other").joins == {"vision": "member"}
    assert teams(person) == {"vision": "member"}
    assert sign_in(people, person, "gpu-vision").is_empty
    assert sign_in(people, person, "other").leaves == ["vision"]
    assert teams(person) == {} and not ClaimGrant.objects.exists()
    events = AuditEvent.objects.filter(verb="apply_claim_rules").order_by("pk")
    assert [(event.after["joins"], event.after["leaves"]) for event in events] == [
        ({"vision": "member"}, []),
        ({}, ["vision"]),
    ]
    assert {event.target for event in events} == {f"user:{person.pk}"}


def test_a_lead_group_makes_a_lead_and_wins_over_a_member_group(people: World) -> None:
    person = people.stranger
    rule(people, "leads", team="vision", lead=True)
    rule(people, "all", team="vision")
    sign_in(people, person, "leads", "all")
    assert teams(person) == {"vision": "lead"}
    assert sign_in(people, person, "all").joins == {"vision": "member"}
    assert teams(person) == {"vision": "member"}


def test_a_membership_that_no_rule_gave_stays(people: World) -> None:
    person = people.vision.member
    rule(people, "gpu-language", team="language")
    sign_in(people, person, "gpu-language")
    sign_in(people, person)
    assert teams(person) == {"vision": "member"}


def test_a_membership_that_another_provider_still_gives_stays(people: World) -> None:
    person = people.stranger
    rule(people, "a", team="vision")
    rule(people, "b", provider="lab", team="vision")
    sign_in(people, person, "a")
    sign_in(people, person, "b", provider="lab")
    assert sign_in(people, person).leaves == [] and teams(person) == {"vision": "member"}
    assert sign_in(people, person, provider="lab").leaves == ["vision"] and teams(person) == {}


def test_a_role_comes_and_goes_with_its_group_and_ends_the_sessions(people: World) -> None:
    person = people.stranger
    rule(people, "money", role="finance")
    sign_in(people, person, "money")
    person.refresh_from_db()
    assert person.finance and person.session_generation == 1
    sign_in(people, person, "money")
    assert person.session_generation == 1
    sign_in(people, person)
    person.refresh_from_db()
    assert not person.finance and person.session_generation == 2


def test_a_rule_never_removes_the_last_operator(people: World) -> None:
    rule(people, "admins", role="operator")
    sign_in(people, people.stranger, "admins")
    sign_in(people, people.operator, "admins")
    assert sign_in(people, people.operator).loses == ["operator"]
    kept = sign_in(people, people.stranger)
    assert (kept.loses, kept.kept) == ([], ["operator"])
    assert User.objects.get(pk=people.stranger.pk).operator
    assert AuditEvent.objects.filter(verb="apply_claim_rules").latest("pk").after["kept"] == ["operator"]
    User.objects.filter(pk=people.operator.pk).update(operator=True)
    assert sign_in(people, people.stranger).loses == ["operator"]


def test_nobody_becomes_an_auditor_beside_another_role(people: World) -> None:
    rule(people, "audit", role="auditor")
    rule(people, "money", role="finance")
    sign_in(people, people.stranger, "audit", "money")
    person = User.objects.get(pk=people.stranger.pk)
    assert person.finance and not person.auditor
    assert sign_in(people, people.operator, "audit").kept == ["auditor"]
    assert not User.objects.get(pk=people.operator.pk).auditor


def test_the_preview_counts_who_would_join_and_leave_and_changes_nothing(people: World) -> None:
    present = rule(people, "gpu-vision", team="vision")
    for person in (people.stranger, people.language.member):
        sign_in(people, person, "gpu-vision", "gpu-robotics")
    sign_in(people, people.finance, "nothing")
    events = AuditEvent.objects.count()
    given: dict[str, Any] = {"actor": people.operator, "now": people.now}
    added = rules.preview_rules(
        **given, add={"provider": "corp", "claim": "groups", "value": "gpu-robotics", "team": "robotics"}
    )
    assert added.text == "2 would join, 0 would leave, of 3 people whose claims are known."
    assert [each.joins for each in added.changes] == [{"robotics": "member"}] * 2
    removed = rules.preview_rules(**given, remove=present.pk)
    assert (removed.joins, removed.leaves) == (0, 2)
    assert rules.preview_rules(**given).changes == []
    assert AuditEvent.objects.count() == events and "vision" in teams(people.stranger)
    with pytest.raises(Invalid, match="the id of a rule"):
        rules.preview_rules(**given, remove=present.pk + 1)


def test_the_preview_leaves_out_closed_accounts(people: World) -> None:
    sign_in(people, people.stranger, "gpu-vision")
    User.objects.filter(pk=people.stranger.pk).update(is_active=False)
    add = {"provider": "corp", "claim": "groups", "value": "gpu-vision", "team": "vision"}
    assert rules.preview_rules(actor=people.operator, now=people.now, add=add).joins == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provider": "nobody"}, "provider is 'nobody'; allowed: corp, lab"),
        ({"claim": "a b"}, "claim is"),
        ({"value": ""}, "value has 0 characters"),
        ({"team": ""}, "give exactly one"),
        ({"role": "operator"}, "give exactly one"),
        ({"team": "nothing"}, "allowed: the slug of a team"),
        ({"team": "", "role": "boss"}, "allowed: auditor, finance, operator"),
        ({"team": "", "role": "finance", "lead": True}, "allowed: false without a team"),
    ],
)
def test_an_invalid_rule_is_refused(people: World, changes: dict[str, Any], message: str) -> None:
    given = {"provider": "corp", "claim": "groups", "value": "x", "team": "vision", **changes}
    with pytest.raises(Invalid) as refused:
        rules.create_rule(actor=people.operator, now=people.now, **given)
    assert message in refused.value.message
    assert not ClaimRule.objects.exists()


def test_only_operators_change_rules(people: World) -> None:
    made = rule(people, "x", team="vision")
    for person in (people.vision.lead, people.finance, people.auditor):
        with pytest.raises(NotAllowed):
            rules.remove_rule(actor=person, rule=made, now=people.now)
        with pytest.raises(NotAllowed):
            rules.create_rule(
                actor=person, provider="corp", claim="a", value="b", team="vision", now=people.now
            )
        with pytest.raises(NotAllowed):
            rules.preview_rules(actor=person, now=people.now)


def test_rules_and_grants_of_a_removed_team_end(people: World) -> None:
    rule(people, "gpu-robotics", team="robotics")
    sign_in(people, people.stranger, "gpu-robotics")
    team_removal.remove_team(actor=people.operator, team=people.robotics.team, now=people.now)
    assert not ClaimRule.objects.exists() and not ClaimGrant.objects.exists()
    assert sign_in(people, people.stranger, "gpu-robotics").is_empty


@pytest.mark.parametrize(
    ("claims", "name", "values"),
    [
        ({"groups": ["a", "b"]}, "groups", {"a", "b"}),
        ({"department": "vision"}, "department", {"vision"}),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", {"a"}),
        ({"a.b": "c", "a": {"b": "d"}}, "a.b", {"c"}),
        ({"admin": True, "level": 3}, "admin", {"true"}),
        ({"groups": [["a"], None, {"b": 1}, 4]}, "groups", {"4"}),
        ({"groups": "a"}, "groups.a", set()),
        ({}, "groups", set()),
    ],
)
def test_values_of_a_claim_are_texts(claims: dict[str, Any], name: str, values: set[str]) -> None:
    assert claim_values(claims, name) == values
