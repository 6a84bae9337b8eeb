"""Turn the claims of people into memberships and roles by a table of rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.db import transaction

from portal import locks, policy
from portal.input_checks import InputChecks
from portal.models import ClaimGrant, ClaimRule, Membership, User
from portal.redis_state.access_revocation import publish_rights_changed
from portal.services import audit
from portal.services.people.accounts import ROLES, reject_if_last_operator
from portal.services.people.identity.providers import CLAIM_PATTERN, checked_provider
from portal.services.people.sessions import end_sessions_of
from portal.wording.pages import identity_pages
from scheduler.core.rejection import OperationRejected
from scheduler.models import Team

Claims = Mapping[str, Any]


@dataclass
class RightsChange:
    """The changes of one person's rights. Teams are slugs; ``joins`` has the role in each team."""

    username: str
    joins: dict[str, str] = field(default_factory=dict)
    leaves: list[str] = field(default_factory=list)
    gains: list[str] = field(default_factory=list)
    loses: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.joins or self.leaves or self.gains or self.loses)


@dataclass(frozen=True)
class RulesEffect:
    """The effect of the rules at the next sign-in of each person whose claims are known."""

    people: int
    changes: list[RightsChange]

    @property
    def joins(self) -> int:
        """Return the number of people who would get a membership or a role."""
        return sum(bool(each.joins or each.gains) for each in self.changes)

    @property
    def leaves(self) -> int:
        """Return the number of people who would lose a membership or a role."""
        return sum(bool(each.leaves or each.loses) for each in self.changes)

    @property
    def text(self) -> str:
        return identity_pages.effect_sentence(self.joins, self.leaves, self.people)


@dataclass(frozen=True)
class _Granted:
    """The rights that the rules grant: the role in each team by its id, and roles in the organisation."""

    teams: dict[int, str]
    roles: frozenset[str]


def create_rule(
    *,
    actor: User,
    provider: str,
    claim: str,
    value: str,
    now: datetime,
    team: str = "",
    role: str = "",
    lead: bool = False,
    why: str = "",
    via: str = "web",
) -> ClaimRule:
    """Add a rule. It applies at the next sign-in of each person. Raises Invalid, NotAllowed."""
    policy.require(actor, "identity.change")
    checks = InputChecks()
    rule = checked_rule(
        checks, provider=provider, claim=claim, value=value, team=team, role=role, lead=lead, now=now
    )
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        rule.save(force_insert=True)
        after = {**audit.audited_fields(rule, "provider", "claim", "value", "role", "lead"), "team": team}
        audit.record(
            actor=actor, via=via, now=now, verb="create_claim_rule", target=rule, after=after, why=why
        )
    return rule


def remove_rule(*, actor: User, rule: ClaimRule, now: datetime, why: str = "", via: str = "web") -> None:
    """Remove a rule. The rights that it gave end at each person's next sign-in.

    Raises Invalid, NotAllowed.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    why = checks.reason(why)
    checks.done()
    with transaction.atomic():
        before = {
            **audit.audited_fields(rule, "provider", "claim", "value", "role", "lead"),
            "team": rule.team.slug if rule.team else "",
        }
        audit.record(
            actor=actor, via=via, now=now, verb="remove_claim_rule", target=rule, before=before, why=why
        )
        rule.delete()


def preview_rules(
    *,
    actor: User,
    now: datetime,
    add: Mapping[str, Any] | None = None,
    remove: int | None = None,
) -> RulesEffect:
    """Return the effect of the rules with one more or one fewer. Raises Invalid, NotAllowed.

    The claims are those of the last sign-in of each person.
    """
    policy.require(actor, "identity.change")
    checks = InputChecks()
    rules = list(ClaimRule.objects.select_related("team"))
    if remove is not None and all(rule.pk != remove for rule in rules):
        checks.note("remove", remove, identity_pages.RULE_UNKNOWN.format(given=remove))
    kept = [rule for rule in rules if rule.pk != remove]
    if add is not None:
        kept.append(checked_rule(checks, now=now, **add))
    checks.done()
    seen = (
        SocialAccount.objects.filter(user__is_active=True).select_related("user").order_by("user__username")
    )
    found = [change_of(each.user, each.provider, each.extra_data, kept) for each in seen]
    return RulesEffect(len({each.user_id for each in seen}), [each for each in found if not each.is_empty])


def preview_for_claims(*, actor: User, provider: str, claims: Claims) -> RightsChange:
    """Return the rights that the rules would give to a new person with these claims. Raises NotAllowed."""
    policy.require(actor, "identity.change")
    granted = _granted(claims, _rules_of(provider))
    slugs = dict(Team.objects.filter(pk__in=granted.teams).values_list("pk", "slug"))
    return RightsChange(
        "", joins={slugs[pk]: role for pk, role in granted.teams.items()}, gains=sorted(granted.roles)
    )


def apply_rules(*, user: User, provider: str, claims: Claims, now: datetime) -> RightsChange:
    """Give a person the rights that the rules grant, and remove rights that only this provider's rules gave.

    The last operator keeps the role. If a role in the organisation changes, all sessions of the person end.
    """
    with transaction.atomic():
        locks.lock_organisation()
        user.refresh_from_db()
        rules = _rules_of(provider)
        change = change_of(user, provider, claims, rules)
        granted = _granted(claims, rules)
        _apply_teams(user, provider, granted, change, now)
        _apply_roles(user, provider, granted, change, now)
        if not change.is_empty or change.kept:
            audit.record(
                actor=None,
                via="program",
                now=now,
                verb="apply_claim_rules",
                target=user,
                after={
                    "provider": provider,
                    "joins": change.joins,
                    "leaves": change.leaves,
                    "gains": change.gains,
                    "loses": change.loses,
                    "kept": change.kept,
                },
            )
        if change.leaves or change.loses:
            publish_rights_changed()
    return change


def checked_rule(
    checks: InputChecks,
    *,
    provider: Any,
    claim: Any,
    value: Any,
    now: datetime,
    team: Any = "",
    role: Any = "",
    lead: Any = False,
) -> ClaimRule:
    """Return the rule with these fields, unsaved, and note the problems."""
    settings = checked_provider(checks, "provider", provider)
    claim = checks.pattern("claim", claim, CLAIM_PATTERN, "the name of a claim, such as groups")
    value = checks.text("value", value, most=200)
    lead = checks.flag("lead", lead)
    if bool(team) == bool(role):
        checks.note("team", str(team), identity_pages.RULE_GRANTS)
    row = Team.objects.filter(slug=team).first() if isinstance(team, str) and "\0" not in team else None
    if team and row is None:
        checks.note("team", str(team), identity_pages.TEAM_UNKNOWN.format(given=ascii(team)[:60]))
    if role:
        role = checks.choice("role", role, ROLES)
    if lead and not team:
        checks.note("lead", True, identity_pages.LEAD_NEEDS_TEAM)
    return ClaimRule(
        provider=settings.slug, claim=claim, value=value, team=row, role=role or "", lead=lead, created_at=now
    )


def claim_values(claims: Claims, name: str) -> frozenset[str]:
    """Return the values of a claim as texts.

    A name with dots also finds a member of an object, such as ``realm_access.roles``.
    """
    found: Any = claims.get(name)
    if found is None:
        found = claims
        for part in name.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return frozenset(_text(each) for each in values if isinstance(each, str | int | bool))


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rules_of(provider: str) -> list[ClaimRule]:
    return list(ClaimRule.objects.filter(provider=provider).select_related("team"))


def _granted(claims: Claims, rules: Iterable[ClaimRule]) -> _Granted:
    """Return the rights that the rules grant. A lead stays lead if another rule makes the person a member.

    Auditors change nothing, so a person who gets another role in the organisation is no auditor.
    """
    teams: dict[int, str] = {}
    roles: set[str] = set()
    for rule in rules:
        if rule.value not in claim_values(claims, rule.claim):
            continue
        if rule.role:
            roles.add(rule.role)
        elif rule.team_id is not None and rule.team is not None and rule.team.removed_at is None:
            lead = rule.lead or teams.get(rule.team_id) == Membership.Role.LEAD
            teams[rule.team_id] = Membership.Role.LEAD if lead else Membership.Role.MEMBER
    if len(roles) > 1:
        roles.discard("auditor")
    return _Granted(teams, frozenset(roles))


def change_of(user: User, provider: str, claims: Claims, rules: Sequence[ClaimRule]) -> RightsChange:
    """Return the difference between the current rights of a person and those that the rules grant."""
    granted = _granted(claims, [rule for rule in rules if rule.provider == provider])
    own, others = _grants(user, provider)
    change = RightsChange(user.username)
    _compare_teams(user, granted, own, others, change)
    _compare_roles(user, granted, own, others, change)
    return change


def _compare_teams(
    user: User,
    granted: _Granted,
    own: Iterable[ClaimGrant],
    others: Iterable[ClaimGrant],
    change: RightsChange,
) -> None:
    """Enter the teams that the person joins and leaves."""
    memberships = Membership.objects.filter(user=user, team__removed_at=None)
    present = dict(memberships.values_list("team_id", "role"))
    slugs = dict(Team.objects.filter(pk__in={*granted.teams, *present}).values_list("pk", "slug"))
    for team, role in sorted(granted.teams.items()):
        if present.get(team) != role:
            change.joins[slugs[team]] = role
    kept = {*granted.teams, *(grant.team_id for grant in others)}
    change.leaves = [
        slugs[grant.team_id] for grant in own if grant.team_id in present and grant.team_id not in kept
    ]


def _compare_roles(
    user: User,
    granted: _Granted,
    own: Iterable[ClaimGrant],
    others: Iterable[ClaimGrant],
    change: RightsChange,
) -> None:
    """Enter the roles that the person gains and loses, and those that cannot change."""
    present = {name for name in ROLES if getattr(user, name)}
    kept = granted.roles | {grant.role for grant in others}
    change.loses = [grant.role for grant in own if grant.role in present and grant.role not in kept]
    if "operator" in change.loses and _is_last_operator(user):
        change.loses.remove("operator")
        change.kept.append("operator")
    remaining = present - set(change.loses)
    for role in sorted(granted.roles - remaining):
        clashes = remaining - {"auditor"} if role == "auditor" else remaining & {"auditor"}
        (change.kept if clashes else change.gains).append(role)


def _grants(user: User, provider: str) -> tuple[list[ClaimGrant], list[ClaimGrant]]:
    """Return the grants of a person from this provider, and those from others."""
    rows = list(ClaimGrant.objects.filter(user=user).order_by("pk"))
    return [row for row in rows if row.provider == provider], [
        row for row in rows if row.provider != provider
    ]


def _is_last_operator(user: User) -> bool:
    try:
        reject_if_last_operator(user, stays=False)
    except OperationRejected:
        return True
    return False


def _apply_teams(user: User, provider: str, granted: _Granted, change: RightsChange, now: datetime) -> None:
    for team, role in granted.teams.items():
        Membership.objects.update_or_create(
            user=user,
            team_id=team,
            defaults={"role": role},
            create_defaults={"role": role, "created_at": now},
        )
        ClaimGrant.objects.get_or_create(
            user=user, provider=provider, team_id=team, role="", defaults={"created_at": now}
        )
    Membership.objects.filter(user=user, team__slug__in=change.leaves).delete()
    stale = ClaimGrant.objects.filter(user=user, provider=provider, role="")
    stale.exclude(team_id__in=granted.teams).delete()


def _apply_roles(user: User, provider: str, granted: _Granted, change: RightsChange, now: datetime) -> None:
    flags = {**dict.fromkeys(change.gains, True), **dict.fromkeys(change.loses, False)}
    if flags:
        User.objects.filter(pk=user.pk).update(**flags)
        user.refresh_from_db()
        end_sessions_of(user, now)
    for role in granted.roles - set(change.kept):
        ClaimGrant.objects.get_or_create(
            user=user, provider=provider, team=None, role=role, defaults={"created_at": now}
        )
    stale = ClaimGrant.objects.filter(user=user, provider=provider, team=None)
    stale.exclude(role__in={*granted.roles, *change.kept}).delete()
