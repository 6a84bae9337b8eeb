"""Create and change service accounts: accounts of a team for programs. They have tokens and no password."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from portal import policy
from portal.input_checks import InputChecks, display_value
from portal.models import ApiToken, Membership, User, WorkspaceSession
from portal.redis_state.access_revocation import publish_rights_changed
from portal.services import audit
from portal.services.people.api_tokens import revoke_all
from portal.wording.problems import administration_problems
from scheduler import services as scheduling
from scheduler.core.rejection import OperationRejected
from scheduler.models import Team

AUDITED = ("username", "is_active")


def create_service_account(
    *,
    actor: User,
    team: Team,
    name: str,
    now: datetime,
    owner: User | None = None,
    purpose: str = "",
    via: str = "web",
) -> User:
    """Create a service account. It is a member of its team and cannot sign in with a password.

    ``owner`` is a person of the team; None means the actor. Raises Invalid, NotAllowed, OperationRejected.
    """
    policy.require(actor, "service_account.create", team)
    checks = InputChecks()
    name = checks.user_name("name", name)
    purpose = checks.text("purpose", purpose, least=0, most=150)
    owner = _checked_owner(checks, actor if owner is None else owner, team)
    checks.done()
    if User.objects.filter(username__iexact=name).exists():
        raise OperationRejected("username_is_taken", {"name": name}, field="name")
    account = User(username=name, first_name=purpose, service_team=team, service_owner=owner)
    account.set_unusable_password()
    try:
        with transaction.atomic():
            account.save(force_insert=True)
            Membership.objects.create(user=account, team=team, role=Membership.Role.MEMBER, created_at=now)
            scheduling.reject_if_team_removed(team)
            audit.record(
                actor=actor,
                via=via,
                now=now,
                verb="create_service_account",
                target=account,
                after=_audited(account),
            )
    except IntegrityError:
        raise OperationRejected("username_is_taken", {"name": name}, field="name") from None
    return account


def change_service_account(
    *,
    actor: User,
    account: User,
    now: datetime,
    owner: User | None = None,
    active: bool | None = None,
    via: str = "web",
) -> User:
    """Give a service account another owner, or close or open it. An argument of None keeps the current value.

    If the account is closed, its tokens are revoked. Raises Invalid, NotAllowed.
    """
    policy.require(actor, "service_account.change", account)
    team = account.service_team
    if team is None:
        raise ValueError(f"{account.username} is not a service account")
    checks = InputChecks()
    changes: dict[str, Any] = {}
    if owner is not None:
        changes["service_owner"] = _checked_owner(checks, owner, team)
    if active is not None:
        changes["is_active"] = checks.flag("active", active)
    checks.done()
    with transaction.atomic():
        before = _audited(account)
        User.objects.filter(pk=account.pk).update(**changes)
        if active is False:
            _end_access(User.objects.filter(pk=account.pk).values_list("pk", flat=True), now)
        account.refresh_from_db()
        audit.record(
            actor=actor,
            via=via,
            now=now,
            verb="change_service_account",
            target=account,
            before=before,
            after=_audited(account),
        )
    return account


def release_service_accounts(team: Team, person: User) -> list[str]:
    """Remove a person as the owner of service accounts of a team. Return their names.

    Call it in the transaction that removes the person from the team.
    """
    owned = User.objects.filter(service_team=team, service_owner=person)
    names = list(owned.order_by("username").values_list("username", flat=True))
    owned.update(service_owner=None)
    return names


def close_service_accounts(team: Team, now: datetime) -> None:
    """Close the service accounts of a team. Call it in the transaction that removes the team."""
    accounts = User.objects.filter(service_team=team)
    accounts.update(is_active=False)
    _end_access(accounts.values_list("pk", flat=True), now)


def service_account_rejection(account: User) -> OperationRejected:
    """Return the error for a change that would give a service account another team or a role."""
    team = account.service_team
    return OperationRejected(
        "service_account_has_one_team", {"name": account.username, "team": team.name if team else ""}
    )


def _end_access(accounts: Any, now: datetime) -> None:
    revoke_all(ApiToken.objects.filter(user__in=accounts), now)
    WorkspaceSession.objects.filter(user__in=accounts, ended_at=None).update(ended_at=now)
    publish_rights_changed()


def _checked_owner(checks: InputChecks, owner: User, team: Team) -> User:
    is_person = owner.is_active and not owner.is_service_account
    if not is_person or not Membership.objects.filter(team=team, user=owner).exists():
        given = display_value(owner.username)
        message = administration_problems.SERVICE_OWNER.format(given=given, team=team.name)
        checks.note("owner", owner.username, message)
    return owner


def _audited(account: User) -> dict[str, Any]:
    owner, team = account.service_owner, account.service_team
    return {
        **audit.audited_fields(account, *AUDITED),
        "owner": owner.username if owner else None,
        "team": team.slug if team else None,
    }
