"""Test the scopes and the end of API tokens, service accounts, and decisions about own requests."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from portal import policy
from portal.errors import Invalid, NotAllowed
from portal.models import ApiToken, AuditEvent, Membership, Notification, Submission, TokenScope, User
from portal.notices import delivery
from portal.services.approvals import decisions, submissions
from portal.services.people import accounts, api_tokens, service_accounts, team_removal, teams
from portal.services.people.security_settings import change_security_settings
from portal.wording.notices.notice_texts import notice_sentence
from scheduler.core.rejection import OperationRejected
from tests.world import H100, World

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def make(world: World, actor: User, parent: ApiToken | None = None, **more: object) -> ApiToken:
    token, _ = api_tokens.create_token(actor=actor, name="t", now=world.now, parent=parent, **more)  # type: ignore[arg-type]
    return token


def test_a_token_always_ends_and_lasts_no_longer_than_the_settings_say(world: World) -> None:
    member = world.vision.member
    assert make(world, member).expires_at == world.now + 365 * DAY
    with pytest.raises(Invalid) as refused:
        make(world, member, expires_at=world.now + 365.1 * DAY)
    assert "allowed: after now and up to" in refused.value.fields["expires_at"]
    change_security_settings(actor=world.operator, token_days=30, now=world.now)
    assert make(world, member).expires_at == world.now + 30 * DAY
    with pytest.raises(Invalid):
        make(world, member, expires_at=world.now + 31 * DAY)
    with pytest.raises(NotAllowed):
        change_security_settings(actor=world.finance, token_days=31, now=world.now)
    with pytest.raises(Invalid):
        change_security_settings(actor=world.operator, token_days=0, now=world.now)
    assert AuditEvent.objects.get(verb="change_security_settings").after == {
        "token_days": 30,
        "separate_approver": None,
        "leaver_work": "stop",
        "second_factor_for": "nobody",
        "step_up_minutes": 10,
    }


def test_a_token_made_by_a_token_ends_no_later_and_has_no_other_scope(world: World) -> None:
    member = world.vision.member
    parent = make(world, member, scopes=["submit", "read"], expires_at=world.now + DAY)
    assert parent.scopes == ["read", "submit"]
    child = make(world, member, parent)
    assert (child.expires_at, child.scopes) == (parent.expires_at, ["read", "submit"])
    for field, value in (("expires_at", world.now + 2 * DAY), ("scopes", ["manage"])):
        with pytest.raises(Invalid) as refused:
            make(world, member, parent, **{field: value})
        assert "of the token t" in refused.value.fields[field]
    for scopes in ([], ["root"]):
        with pytest.raises(Invalid):
            make(world, member, scopes=scopes)


def test_a_revoked_token_takes_the_tokens_that_it_created_with_it(world: World) -> None:
    lead = world.vision.lead
    account = service_accounts.create_service_account(
        actor=lead, team=world.vision.team, name="ci", now=world.now
    )
    parent, other = make(world, lead), make(world, lead)
    child = make(world, lead, parent, user=account)
    grandchild = make(world, account, child)
    api_tokens.revoke_token(actor=lead, token=parent, now=world.now)
    revoked = set(ApiToken.objects.exclude(revoked_at=None).values_list("pk", flat=True))
    assert revoked == {parent.pk, child.pk, grandchild.pk} and other.pk not in revoked
    with pytest.raises(OperationRejected) as late:
        make(world, lead, parent)
    assert late.value.code == "token_is_revoked"


def test_a_closed_account_loses_the_tokens_that_its_tokens_created_for_service_accounts(world: World) -> None:
    lead, team = world.vision.lead, world.vision.team
    account = service_accounts.create_service_account(
        actor=lead, team=team, name="ci", owner=world.vision.member, now=world.now
    )
    child = make(world, lead, make(world, lead), user=account)
    accounts.change_user(actor=world.operator, user=lead, active=False, now=world.now)
    child.refresh_from_db()
    assert child.revoked_at is not None


def test_people_are_warned_14_and_3_days_before_a_token_ends(world: World) -> None:
    lead, now = world.vision.lead, world.now
    account = service_accounts.create_service_account(actor=lead, team=world.vision.team, name="ci", now=now)
    make(world, world.vision.member, expires_at=now + 20 * DAY)
    make(world, lead, user=account, expires_at=now + 16 * DAY)
    make(world, world.stranger, expires_at=now + 2 * DAY)
    api_tokens.revoke_token(
        actor=world.finance, token=make(world, world.finance, expires_at=now + 15 * DAY), now=now
    )

    def told(days: float) -> list[str]:
        delivery.write_notices(now + days * DAY)
        rows = Notification.objects.filter(kind="token_ends").order_by("user__username", "pk")
        return [row.user.username for row in rows]

    member_name, lead_name = world.vision.member.username, lead.username
    assert told(1) == []
    assert told(6) == told(6) == sorted([lead_name, member_name])
    assert told(13.5) == sorted([lead_name, lead_name, member_name])
    assert told(17.5) == sorted([lead_name, lead_name, member_name, member_name])
    notice = Notification.objects.filter(user=lead, kind="token_ends").first()
    assert notice is not None
    assert notice_sentence(notice.kind, notice.numbers).startswith(
        "The API token t of ci ends on 18 Mar 2026"
    )


def test_a_service_account_belongs_to_one_team_and_has_no_password_and_no_role(world: World) -> None:
    lead, team, now = world.vision.lead, world.vision.team, world.now
    for actor in (world.vision.member, world.language.lead, world.auditor):
        with pytest.raises(NotAllowed):
            service_accounts.create_service_account(actor=actor, team=team, name="ci", now=now)
    account = service_accounts.create_service_account(actor=lead, team=team, name="ci", now=now)
    assert not account.has_usable_password() and account.service_owner == lead
    assert policy.may(account, "workload.launch", world.vision.project)
    assert not policy.may(account, "team.join") and not policy.may(account, "service_account.create", team)
    with pytest.raises(OperationRejected) as taken:
        service_accounts.create_service_account(actor=lead, team=team, name="CI", now=now)
    assert taken.value.code == "username_is_taken"
    for refused in (
        lambda: teams.add_member(actor=world.operator, team=world.language.team, user=account, now=now),
        lambda: teams.remove_member(actor=world.operator, team=team, user=account, now=now),
        lambda: accounts.change_user(actor=world.operator, user=account, operator=True, now=now),
    ):
        with pytest.raises(OperationRejected) as rejected:
            refused()
        assert rejected.value.code == "service_account_has_one_team"
    for outsider in (world.language.member, account):
        with pytest.raises(Invalid) as no_owner:
            service_accounts.change_service_account(actor=lead, account=account, owner=outsider, now=now)
        assert "owner" in no_owner.value.fields
    event = AuditEvent.objects.get(verb="create_service_account")
    assert event.team == team and event.after["owner"] == lead.username


def test_the_tokens_of_a_service_account_are_refused_without_an_owner(world: World) -> None:
    lead, member, team, now = world.vision.lead, world.vision.member, world.vision.team, world.now
    account = service_accounts.create_service_account(actor=lead, team=team, name="ci", owner=member, now=now)
    _, text = api_tokens.create_token(actor=member, user=account, name="t", now=now)

    def in_force() -> bool:
        return api_tokens.token_in_force(text, now) is not None

    assert in_force()
    with pytest.raises(NotAllowed):
        api_tokens.create_token(actor=world.language.lead, user=account, name="t", now=now)
    teams.remove_member(actor=lead, team=team, user=member, now=now)
    assert not in_force()
    assert AuditEvent.objects.get(verb="remove_member").before["service_accounts"] == ["ci"]
    service_accounts.change_service_account(actor=lead, account=account, owner=lead, now=now)
    assert in_force()
    User.objects.filter(pk=lead.pk).update(is_active=False)
    assert not in_force()
    User.objects.filter(pk=lead.pk).update(is_active=True)
    service_accounts.change_service_account(actor=lead, account=account, active=False, now=now)
    service_accounts.change_service_account(actor=lead, account=account, active=True, now=now)
    assert not in_force(), "a closed account loses its tokens for good"


def test_a_removed_team_closes_its_service_accounts(world: World) -> None:
    spare = teams.create_team(actor=world.operator, name="Spare", now=world.now)
    teams.add_member(actor=world.operator, team=spare, user=world.stranger, role="lead", now=world.now)
    account = service_accounts.create_service_account(
        actor=world.stranger, team=spare, name="ci", now=world.now
    )
    token = make(world, world.stranger, user=account)
    team_removal.remove_team(actor=world.operator, team=spare, why="merged", now=world.now)
    token.refresh_from_db()
    account.refresh_from_db()
    assert token.revoked_at is not None and not account.is_active


def quota_request(world: World, author: User, gpus: int = 3) -> Submission:
    return submissions.request_quota_change(
        actor=author,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=gpus,
        now=world.now,
    )


def test_nobody_decides_an_own_request_where_there_are_two_operators(world: World) -> None:
    operator, now = world.operator, world.now
    alone = quota_request(world, operator)
    decisions.approve_submission(actor=operator, submission=alone, now=now)
    second = accounts.create_user(
        actor=operator,
        username="second",
        email="s@example.org",
        operator=True,
        now=now,
    )
    own = quota_request(world, operator, 4)
    for decide in (
        lambda: decisions.approve_submission(actor=operator, submission=own, now=now),
        lambda: decisions.decline_submission(actor=operator, submission=own, comment="no", now=now),
    ):
        with pytest.raises(NotAllowed) as refused:
            decide()
        assert "You asked for this yourself" in refused.value.message
    decisions.approve_submission(actor=second, submission=own, now=now)


def test_the_setting_decides_about_own_requests_whatever_the_number_of_operators(world: World) -> None:
    operator, now = world.operator, world.now
    change_security_settings(actor=operator, separate_approver=True, now=now)
    own = quota_request(world, operator)
    assert not policy.may(operator, "submission.decide", own)
    assert policy.may(operator, "submission.withdraw", own)
    User.objects.filter(pk=world.stranger.pk).update(operator=True)
    change_security_settings(actor=operator, separate_approver=False, now=now)
    assert policy.may(operator, "submission.decide", own)
    change_security_settings(actor=operator, separate_approver=None, now=now)
    assert not policy.may(operator, "submission.decide", own)


def test_an_operator_does_not_decide_the_request_of_an_own_service_account(world: World) -> None:
    change_security_settings(actor=world.operator, separate_approver=True, now=world.now)
    Membership.objects.create(user=world.operator, team=world.vision.team, role="lead", created_at=world.now)
    account = service_accounts.create_service_account(
        actor=world.operator, team=world.vision.team, name="ci", now=world.now
    )
    request = quota_request(world, world.vision.lead)
    assert policy.may(world.operator, "submission.decide", request)
    Submission.objects.filter(pk=request.pk).update(author=account)
    assert not policy.may(world.operator, "submission.decide", Submission.objects.get(pk=request.pk))


def test_a_token_without_a_scope_is_refused_by_the_database(world: World) -> None:
    token = make(world, world.vision.member)
    with connection.cursor() as cursor, pytest.raises(Exception, match="a_token_has_a_scope"):
        cursor.execute("UPDATE portal_apitoken SET scopes = '{}' WHERE id = %s", [token.pk])


def test_a_scope_is_required_of_tokens_and_not_of_sessions(world: World) -> None:
    reader = make(world, world.operator, scopes=["read"])
    policy.require_scope(None, TokenScope.MANAGE)
    policy.require_scope(reader, TokenScope.READ)
    with pytest.raises(NotAllowed) as refused:
        policy.require_scope(reader, TokenScope.MANAGE)
    assert "has the scopes: read. This call needs the scope manage" in refused.value.message
