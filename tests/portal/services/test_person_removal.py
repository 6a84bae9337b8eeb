"""Test what ends and what stays when a person or a team leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client

from portal.errors import NotAllowed
from portal.models import (
    AuditEvent,
    ClaimGrant,
    ClaimRule,
    Membership,
    Submission,
    SubmissionState,
    User,
    WorkspaceSession,
)
from portal.services.approvals import decisions, submissions
from portal.services.calendar import recurring_reservations, reservations
from portal.services.people import accounts, person_removal, service_accounts, team_removal
from portal.services.people.account_effects import preview_account_change
from portal.services.people.api_tokens import create_token, token_in_force
from portal.services.work import launch
from scheduler.models import Quota, Reservation, Storage, Volume, Workload
from telemetry.models import Budget, Charge, Statement
from tests.portal.rejections import rejected
from tests.world import A100, World

pytestmark = pytest.mark.django_db


def remove(world: World, user: User, **changes: Any) -> User:
    return person_removal.remove_person(actor=world.operator, user=user, now=world.now, why="left", **changes)


def reserve(world: World, person: User, days: int = 1) -> Reservation:
    made = reservations.request_reservation(
        actor=person,
        project=world.vision.project,
        pool=world.shared,
        name="evening",
        start=world.now + timedelta(days=days),
        end=world.now + timedelta(days=days, hours=2),
        models=[A100],
        units=1,
        now=world.now,
    )
    assert isinstance(made, Reservation)
    return made


def test_a_removed_person_has_no_session_token_role_or_team(world: World) -> None:
    person, browser = world.vision.member, Client()
    browser.force_login(person)
    _, text = create_token(actor=person, name="laptop", now=world.now)
    accounts.change_user(actor=world.operator, user=person, finance=True, now=world.now)
    SocialAccount.objects.create(user=person, provider="corp", uid="1", extra_data={})
    ClaimGrant.objects.create(user=person, provider="corp", team=world.vision.team, created_at=world.now)
    remove(world, person)
    person.refresh_from_db()
    assert not (person.is_active or person.finance)
    assert browser.get("/api/v1/me/").status_code == 401
    assert token_in_force(text, world.now) is None
    assert not Membership.objects.filter(user=person).exists() and not ClaimGrant.objects.exists()
    assert SocialAccount.objects.get().user == person  # the identity cannot open another account
    event = AuditEvent.objects.get(verb="remove_person")
    assert (event.before, event.why) == ({"teams": ["vision (member)"]}, "left")


def test_work_stops_and_own_reservations_are_cancelled_unless_they_are_shared(world: World) -> None:
    person, mate = world.vision.member, world.vision.members[1]
    given: dict[str, Any] = {"project": world.vision.project, "pool": world.shared, "now": world.now}
    own = launch.launch_notebook(actor=person, **given)
    other = launch.launch_notebook(actor=mate, **given)
    alone, shared = reserve(world, person), reserve(world, person, days=2)
    Workload.objects.filter(pk=other.pk).update(reservation=shared)
    series = recurring_reservations.request_series(
        actor=person,
        name="each week",
        start=datetime(2026, 3, 5, 18, tzinfo=UTC),
        end=datetime(2026, 3, 5, 20, tzinfo=UTC),
        weekdays=["thu"],
        until=datetime(2026, 3, 20, tzinfo=UTC).date(),
        models=[A100],
        units=1,
        **given,
    )
    effect = preview_account_change(actor=world.operator, user=person, verb="remove_person", now=world.now)
    assert [row.pk for row in effect.waiting] == [own.pk] and "are stopped" in effect.work_text
    remove(world, person)
    states = dict(Workload.objects.values_list("pk", "state"))
    assert (states[own.pk], states[other.pk]) == ("ended", "queued")
    alone.refresh_from_db()
    shared.refresh_from_db()
    assert (alone.state, shared.state) == ("cancelled", "confirmed")
    occurrences = Reservation.objects.filter(series_id=series.pk)
    assert set(occurrences.values_list("state", flat=True)) == {"cancelled"}
    assert AuditEvent.objects.filter(verb="cancel_reservation", why="left").count() == 1 + occurrences.count()


def test_work_and_reservations_stay_with_the_project_if_the_operator_says_so(world: World) -> None:
    person = world.vision.member
    own = launch.launch_notebook(actor=person, project=world.vision.project, pool=world.shared, now=world.now)
    held = reserve(world, person)
    remove(world, person, work="hand_over")
    own.refresh_from_db()
    held.refresh_from_db()
    assert (own.state, held.state) == ("queued", "confirmed")
    reservations.cancel_reservation(actor=world.vision.lead, reservation=held, now=world.now)


def test_open_requests_are_withdrawn_and_homes_volumes_and_budgets_stay(world: World) -> None:
    person = world.vision.lead
    request = submissions.request_membership(
        actor=person, team=world.language.team, now=world.now, why="together"
    )
    volume = Volume.objects.create(
        storage=Storage.objects.create(key="s", listed_at=world.now),
        name=person.username,
        measured_at=world.now,
    )
    budgets = Budget.objects.count()
    remove(world, person)
    assert Submission.objects.get(pk=request.pk).state == SubmissionState.WITHDRAWN
    assert Volume.objects.filter(pk=volume.pk).exists() and Budget.objects.count() == budgets
    assert User.objects.filter(username=person.username).exists()  # the name stays taken


def test_the_last_operator_is_not_removed_and_nothing_changes(world: World) -> None:
    with rejected("is the last operator"):
        remove(world, world.operator)
    world.operator.refresh_from_db()
    assert world.operator.is_active and not AuditEvent.objects.filter(verb="remove_person").exists()


def test_a_repeated_removal_completes_the_first(world: World) -> None:
    person = world.vision.member
    own = launch.launch_notebook(actor=person, project=world.vision.project, pool=world.shared, now=world.now)
    remove(world, person, work="hand_over")
    remove(world, person)
    own.refresh_from_db()
    assert own.state == "ended"


def test_only_operators_remove_people(world: World) -> None:
    with pytest.raises(NotAllowed):
        person_removal.remove_person(actor=world.vision.lead, user=world.vision.member, now=world.now)


def test_open_workspaces_of_a_removed_person_end(world: World) -> None:
    person = world.vision.member
    notebook = launch.launch_notebook(
        actor=person, project=world.vision.project, pool=world.shared, now=world.now
    )
    WorkspaceSession.objects.create(user=person, workload=notebook, created_at=world.now, token_hash="h")
    remove(world, person, work="hand_over")
    assert WorkspaceSession.objects.get().ended_at == world.now


def test_a_removed_person_owns_no_service_account_even_if_the_account_is_opened_again(world: World) -> None:
    person = world.vision.member
    account = service_accounts.create_service_account(
        actor=world.vision.lead, owner=person, team=world.vision.team, name="ci", now=world.now
    )
    _, text = create_token(actor=world.vision.lead, user=account, name="nightly", now=world.now)
    assert token_in_force(text, world.now) is not None
    remove(world, person)
    account.refresh_from_db()
    assert account.service_owner is None and token_in_force(text, world.now) is None
    assert AuditEvent.objects.get(verb="remove_person").before["service_accounts"] == ["ci"]
    accounts.change_user(actor=world.operator, user=person, active=True, now=world.now)
    assert token_in_force(text, world.now) is None


def test_others_decide_what_a_removed_person_would_have_decided(world: World) -> None:
    request = submissions.request_membership(
        actor=world.stranger, team=world.vision.team, now=world.now, why="together"
    )
    remove(world, world.vision.lead)
    decisions.approve_submission(actor=world.operator, submission=request, now=world.now)
    assert Membership.objects.filter(user=world.stranger, team=world.vision.team).exists()


def test_quotas_charges_statements_and_the_audit_record_of_a_removed_person_stay(world: World) -> None:
    person = world.vision.member
    launch.launch_notebook(actor=person, project=world.vision.project, pool=world.shared, now=world.now)
    kept = [kind.objects.count() for kind in (Quota, Charge, Statement)]
    records = set(AuditEvent.objects.values_list("pk", "actor_name"))
    remove(world, person)
    assert [kind.objects.count() for kind in (Quota, Charge, Statement)] == kept and kept[0]
    assert records <= set(AuditEvent.objects.values_list("pk", "actor_name"))


def test_a_team_is_not_removed_while_it_has_reservations_also_recurring_ones(world: World) -> None:
    held = reserve(world, world.vision.member)
    with rejected():
        team_removal.remove_team(actor=world.operator, team=world.vision.team, now=world.now)
    reservations.cancel_reservation(actor=world.operator, reservation=held, now=world.now)
    recurring_reservations.request_series(
        actor=world.vision.member,
        project=world.vision.project,
        pool=world.shared,
        now=world.now,
        name="each week",
        start=datetime(2026, 3, 5, 18, tzinfo=UTC),
        end=datetime(2026, 3, 5, 20, tzinfo=UTC),
        weekdays=["thu"],
        until=datetime(2026, 3, 20, tzinfo=UTC).date(),
        models=[A100],
        units=1,
    )
    with rejected():
        team_removal.remove_team(actor=world.operator, team=world.vision.team, now=world.now)


def test_a_removed_team_ends_rights_and_rules_and_keeps_accounts_homes_and_money(
    world: World,
) -> None:
    team, person, browser = world.robotics.team, world.robotics.member, Client()
    browser.force_login(person)
    _, text = create_token(actor=person, name="laptop", now=world.now)
    request = submissions.request_membership(actor=world.stranger, team=team, now=world.now, why="together")
    grant: dict[str, Any] = {"provider": "corp", "team": team, "created_at": world.now}
    ClaimGrant.objects.create(user=person, **grant)
    ClaimRule.objects.create(provider="corp", claim="groups", value="robots", team=team, created_at=world.now)
    account = service_accounts.create_service_account(
        actor=world.robotics.lead, team=team, name="ci", now=world.now
    )
    Volume.objects.create(
        storage=Storage.objects.create(key="s", listed_at=world.now),
        name=person.username,
        measured_at=world.now,
    )
    Budget.objects.create(team=team, month=world.now.date().replace(day=1), amount=5)
    kept = [kind.objects.count() for kind in (Budget, Charge, Statement, Volume, User)]
    team_removal.remove_team(actor=world.operator, team=team, why="merged", now=world.now)
    assert [kind.objects.count() for kind in (Budget, Charge, Statement, Volume, User)] == kept
    assert not Quota.objects.filter(team=team).exists()
    assert not ClaimGrant.objects.exists() and not ClaimRule.objects.exists()
    assert Submission.objects.get(pk=request.pk).state == SubmissionState.WITHDRAWN
    account.refresh_from_db()
    person.refresh_from_db()
    assert person.is_active and not account.is_active
    assert browser.get("/api/v1/me/").status_code == 200 and token_in_force(text, world.now) is not None
    event = AuditEvent.objects.get(verb="remove_team")
    assert (event.target_name, event.why) == (team.name, "merged")
