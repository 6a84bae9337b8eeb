"""Test each policy for the work of people whose accounts are closed, and who learns of it."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from portal import tasks
from portal.errors import Invalid
from portal.models import AuditEvent, LeaverWork, Membership, Notification, Organisation, User, WorkHandover
from portal.notices.delivery import write_notices
from portal.services.people import accounts, person_removal, security_settings, teams
from portal.services.people.account_effects import preview_account_change
from portal.services.people.leaving.leaver_work import apply_leaver_policies
from portal.wording.notices.notice_texts import notice_sentence
from scheduler.models import Reservation, Workload
from tests.portal.web.work_samples import queue_job, reserve, run_job
from tests.world import World

pytestmark = pytest.mark.django_db
migration: Any = importlib.import_module("portal.migrations.0025_leaver_work")


@pytest.fixture
def work(world: World) -> dict[str, Workload]:
    """Return work of the first member of vision: running, waiting, and running in an active reservation."""
    held, later = (
        reserve(world, world.vision, name, hours=start, length=4)
        for name, start in (("now", -1), ("later", 5))
    )
    Reservation.objects.filter(pk=held.pk).update(state="active", owner=world.vision.member)
    Reservation.objects.filter(pk=later.pk).update(owner=world.vision.member)
    return {
        "running": run_job(world, world.vision, "running", host="alpha", gpus=[0]),
        "waiting": queue_job(world, world.vision, "waiting", units=1),
        "held": run_job(world, world.vision, "held", host="alpha", gpus=[1], reservation=held),
    }


def close(world: World, policy: str) -> User:
    """Set the policy, close the account of the first member of vision, and run the task."""
    Organisation.objects.update(leaver_work=policy)
    person = world.vision.member
    accounts.change_user(actor=world.operator, user=person, active=False, now=world.now)
    tasks.settle_leavers()
    return person


def states(work: dict[str, Workload]) -> dict[str, str]:
    return {name: Workload.objects.get(pk=each.pk).state for name, each in work.items()}


def reservations() -> dict[str, str]:
    return dict(Reservation.objects.values_list("name", "state"))


def test_stop_ends_all_work_and_the_reservations(world: World, work: dict[str, Workload]) -> None:
    person = close(world, LeaverWork.STOP)
    assert states(work) == {"running": "stopping", "waiting": "ended", "held": "stopping"}
    assert set(reservations().values()) == {"cancelled"}
    event = AuditEvent.objects.get(verb="apply_leaver_policy")
    assert (event.target, event.actor_name, event.team_id) == (
        f"user:{person.pk}",
        "gpupool",
        world.vision.team.pk,
    )
    assert event.after == {
        "policy": "stop",
        "team": world.vision.team.name,
        "workloads": 3,
        "names": ["running", "waiting", "held"],
        "lead": "",
    }
    tasks.settle_leavers()
    assert AuditEvent.objects.filter(verb__in=("apply_leaver_policy", "cancel_workload")).count() == 4


def test_reservation_keeps_only_work_in_an_active_reservation(
    world: World, work: dict[str, Workload]
) -> None:
    close(world, LeaverWork.RESERVATION)
    assert states(work) == {"running": "stopping", "waiting": "ended", "held": "running"}
    assert reservations() == {"now": "active", "later": "cancelled"}


def test_hand_over_keeps_the_work_and_puts_a_lead_in_charge(world: World, work: dict[str, Workload]) -> None:
    person = close(world, LeaverWork.HAND_OVER)
    assert states(work) == {"running": "running", "waiting": "queued", "held": "running"}
    assert reservations() == {"now": "active", "later": "confirmed"}
    assert set(WorkHandover.objects.values_list("lead", flat=True)) == {world.vision.lead.pk}
    assert set(Workload.objects.values_list("owner", flat=True)) == {person.pk}, "homes and charges stay"
    tasks.settle_leavers()
    assert AuditEvent.objects.filter(verb="apply_leaver_policy").count() == 1


def test_the_lead_in_charge_gets_the_notices_of_the_work(world: World, work: dict[str, Workload]) -> None:
    person = close(world, LeaverWork.HAND_OVER)
    write_notices(timezone.now())
    [notice] = Notification.objects.filter(user=world.vision.lead, kind="leaver_work")
    text = notice_sentence(notice.kind, notice.numbers)
    assert text == (
        f"The account of {person.username} is closed. 3 of its workloads in {world.vision.team.name} "
        f"continue, and {world.vision.lead.username} is in charge of them: running, waiting, held."
    )
    Workload.objects.filter(pk=work["running"].pk).update(
        state="ended", outcome="finished", ended_at=timezone.now()
    )
    write_notices(timezone.now() + timedelta(seconds=1))
    ended = Notification.objects.filter(kind="ended", workload=work["running"])
    assert list(ended.values_list("user", flat=True)) == [world.vision.lead.pk]


def test_operators_are_told_if_a_team_has_no_lead_and_a_new_lead_takes_charge(
    world: World, work: dict[str, Workload]
) -> None:
    Membership.objects.filter(user=world.vision.lead).delete()
    close(world, LeaverWork.HAND_OVER)
    tasks.settle_leavers()
    assert AuditEvent.objects.filter(verb="apply_leaver_policy").count() == 1
    write_notices(timezone.now())
    assert Notification.objects.get(kind="leaver_work").user == world.operator
    mate = world.vision.members[1]
    teams.add_member(actor=world.operator, team=world.vision.team, user=mate, role="lead", now=world.now)
    tasks.settle_leavers()
    assert set(WorkHandover.objects.values_list("lead", flat=True)) == {mate.pk}


def test_an_opened_account_is_in_charge_of_its_work_again(world: World, work: dict[str, Workload]) -> None:
    person = close(world, LeaverWork.HAND_OVER)
    accounts.change_user(actor=world.operator, user=person, active=True, now=world.now)
    assert not WorkHandover.objects.exists()
    assert apply_leaver_policies(timezone.now()) == 0


def test_a_removal_can_choose_another_policy_than_the_settings(
    world: World, work: dict[str, Workload]
) -> None:
    person = world.vision.member
    removal: dict[str, Any] = {"actor": world.operator, "user": person, "now": timezone.now()}
    with pytest.raises(Invalid, match="hand_over, reservation, stop"):
        person_removal.remove_person(**removal, work="never")
    person_removal.remove_person(**removal, work="hand_over")
    tasks.settle_leavers()
    assert states(work)["running"] == "running"
    person_removal.remove_person(**removal)
    assert states(work)["running"] == "stopping"


def test_the_preview_of_a_change_says_what_the_policy_does(world: World, work: dict[str, Workload]) -> None:
    texts = {
        "stop": "are stopped",
        "reservation": "until its end, the others are stopped",
        "hand_over": "a lead of their team is in charge",
    }
    for policy, text in texts.items():
        security_settings.change_security_settings(actor=world.operator, leaver_work=policy, now=world.now)
        for verb in ("close_account", "remove_person"):
            found = preview_account_change(
                actor=world.operator, user=world.vision.member, verb=verb, now=world.now
            )
            assert text in found.work_text


def test_service_accounts_and_open_accounts_keep_their_work(world: World, work: dict[str, Workload]) -> None:
    User.objects.filter(pk=world.vision.member.pk).update(service_team=world.vision.team, is_active=False)
    tasks.settle_leavers()
    assert states(work) == {"running": "running", "waiting": "queued", "held": "running"}


def test_people_who_left_before_the_upgrade_keep_their_work(world: World) -> None:
    User.objects.filter(pk=world.vision.member.pk).update(is_active=False)
    with connection.cursor() as cursor:
        cursor.execute(migration.KEEP_WORK)
    assert list(User.objects.exclude(leaver_work=None)) == [world.vision.member]
