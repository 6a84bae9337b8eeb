"""Test the verbs that remove hosts, pools, teams and templates, and their previews."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from portal import policy
from portal.errors import NotAllowed
from portal.models import AuditEvent, Membership, Notification, Submission, Template, User
from portal.notices.delivery import write_notices
from portal.reads.fleet import host_details
from portal.reads.people import organisation
from portal.services.approvals import submissions
from portal.services.fleet import hosts, pools, removal
from portal.services.people import team_removal, teams
from portal.services.work import templates
from portal.wording.notices import notice_texts
from scheduler import services as scheduling
from scheduler.models import Host, Pool, Quota, Reservation, Team, Workload
from tests.portal.rejections import rejected
from tests.scheduler.test_job_lifecycle import job
from tests.scheduler.test_removal import run_job
from tests.scheduler.test_reservations import confirm
from tests.seeds import first_cases
from tests.telemetry.rows import reservation as bound_reservation
from tests.world import A100, H100, World, units_of

HOUR = dt.timedelta(hours=1)


def empty_shared_pool(world: World) -> Pool:
    for name in ("alpha", "beta", "gamma"):
        removal.remove_host(actor=world.operator, host=world.hosts[name], now=world.now)
    return world.shared


def test_preview_and_removal_of_a_host_give_the_same_refusal(world: World) -> None:
    workload, _ = run_job(world, "alpha", "beta")
    host = workload.runs.get().host
    effect = removal.preview_host_removal(actor=world.operator, host=host, now=world.now)
    assert workload.name in effect.refused and effect.code == "host_has_work"
    with rejected(re.escape(effect.refused)) as refused:
        removal.remove_host(actor=world.operator, host=host, now=world.now)
    assert refused.value.code == effect.code
    assert not AuditEvent.objects.filter(verb="remove_host").exists()


def test_the_removal_of_a_host_has_the_effect_that_its_preview_shows(world: World) -> None:
    coming = confirm(world, 8, world.now + HOUR, world.now + 2 * HOUR, hosts=2, may_exceed_guarantee=True)
    host = world.hosts["alpha"]
    effect = removal.preview_host_removal(actor=world.operator, host=host, now=world.now)
    assert (effect.refused, effect.gpus, effect.unkept) == ("", 8, [coming])
    removal.remove_host(actor=world.operator, host=host, why="scrapped", now=world.now)
    coming.refresh_from_db()
    assert coming.at_risk_since == world.now
    assert not Host.objects.filter(name="alpha").exists()
    assert policy.visible_hosts(world.operator).filter(name="alpha").first() is None
    found = host_details.visible_or_removed_host(world.operator, "alpha")
    assert found == host and host_details.host_state(found) == "removed"
    event = AuditEvent.objects.get(verb="remove_host")
    assert (event.why, event.target_name, event.before["pool"]) == ("scrapped", "alpha", "shared")  # type: ignore[index]


def test_the_preview_of_a_removal_lists_moving_and_unkept_reservations_separately(
    world: World,
) -> None:
    since, until = world.now - HOUR, world.now + 8 * HOUR
    moving = bound_reservation(world, world.vision, units_of(world.hosts["alpha"])[:2], since, until)
    stuck = bound_reservation(world, world.vision, units_of(world.hosts["gamma"])[:2], since, until)
    Reservation.objects.filter(pk=moving.pk).update(models_wanted=[H100])
    Reservation.objects.filter(pk=stuck.pk).update(models_wanted=[A100])
    alpha, gamma = (
        removal.preview_host_removal(actor=world.operator, host=world.hosts[name], now=world.now)
        for name in ("alpha", "gamma")
    )
    assert (alpha.reservations, alpha.unkept) == ([moving], [])
    assert (gamma.reservations, gamma.unkept) == ([], [stuck])


def test_a_new_host_gets_the_name_of_a_removed_one(world: World) -> None:
    removal.remove_host(actor=world.operator, host=world.hosts["alpha"], now=world.now)
    new, _ = hosts.add_host(actor=world.operator, pool=world.static, name="alpha", now=world.now)
    assert host_details.visible_or_removed_host(world.operator, "alpha") == new
    with rejected("exists already"):
        hosts.add_host(actor=world.operator, pool=world.static, name="alpha", now=world.now)


def test_the_preview_of_a_move_shows_the_quotas_of_both_pools(world: World) -> None:
    quota = Quota.objects.create(
        team=world.vision.team, pool=world.static, model=H100, guaranteed_slots=840, updated_at=world.now
    )
    effect = removal.preview_host_move(
        actor=world.operator, host=world.hosts["alpha"], pool=world.static, now=world.now
    )
    assert quota in effect.quotas and {each.model for each in effect.quotas} == {H100}
    assert {each.pool.slug for each in effect.quotas} == {"shared", "vision-only"}
    assert effect.refused == ""
    removal.move_host(
        actor=world.operator, host=world.hosts["alpha"], pool=world.static, why="theirs", now=world.now
    )
    event = AuditEvent.objects.get(verb="move_host")
    assert (event.before, event.after) == ({"pool": "shared"}, {"pool": "vision-only"})
    again = removal.preview_host_move(
        actor=world.operator, host=Host.objects.get(name="alpha"), pool=world.static, now=world.now
    )
    assert again.code == "host_is_in_pool"


@pytest.mark.parametrize("role", ["member", "lead", "finance", "auditor", "other team"])
def test_only_operators_remove_and_move(world: World, role: str) -> None:
    person: User = world.people[role]
    host, pool, team, now = world.hosts["alpha"], world.static, world.robotics.team, world.now
    for deed in (
        lambda: removal.remove_host(actor=person, host=host, now=now),
        lambda: removal.preview_host_removal(actor=person, host=host, now=now),
        lambda: removal.move_host(actor=person, host=host, pool=pool, now=now),
        lambda: removal.preview_host_move(actor=person, host=host, pool=pool, now=now),
        lambda: removal.remove_pool(actor=person, pool=pool, now=now),
        lambda: removal.preview_pool_removal(actor=person, pool=pool, now=now),
        lambda: team_removal.remove_team(actor=person, team=team, now=now),
        lambda: team_removal.preview_team_removal(actor=person, team=team, now=now),
    ):
        with pytest.raises(NotAllowed):
            deed()
    assert Host.objects.count() == 4 and Pool.objects.count() == 2 and Team.objects.count() == 3


def test_a_removed_pool_ends_quotas_and_requests_and_its_people_are_notified(world: World) -> None:
    request = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=A100,
        guaranteed_gpus=3,
        why="more",
        now=world.now,
    )
    effect = removal.preview_pool_removal(actor=world.operator, pool=world.shared, now=world.now)
    assert (effect.code, effect.submissions, len(effect.quotas)) == ("pool_has_hosts", [request], 6)
    pool = empty_shared_pool(world)
    removal.remove_pool(actor=world.operator, pool=pool, why="merged", now=world.now)
    assert Submission.objects.get(pk=request.pk).state == "withdrawn"
    assert not policy.visible_quotas(world.operator).filter(pool=pool).exists()
    assert pool not in policy.visible_pools(world.operator)
    assert pool in policy.visible_pools_with_removed(world.operator)
    write_notices(world.now + HOUR)
    notices = Notification.objects.filter(kind="pool_removed")
    assert {row.user.username for row in notices} == {"vision-lead", "language-lead", "robotics-lead"}
    sentence = notice_texts.notice_sentence("pool_removed", notices[0].numbers)
    assert "Shared" in sentence and "merged" in sentence
    with rejected("a removed pool had that name"):
        pools.create_pool(actor=world.operator, name="Shared", kind="dynamic", now=world.now)


def test_a_removed_team_loses_members_and_projects_and_keeps_its_history(world: World) -> None:
    team = world.robotics.team
    workload = job(world, world.robotics, 1, world.now)
    effect = team_removal.preview_team_removal(actor=world.operator, team=team, now=world.now)
    assert effect.code == "team_has_work" and workload.name in effect.refused
    Workload.objects.filter(pk=workload.pk).update(state="ended", ended_at=world.now)
    effect = team_removal.preview_team_removal(actor=world.operator, team=team, now=world.now)
    assert (effect.refused, effect.members) == ("", ["robotics-1", "robotics-2", "robotics-lead"])
    assert effect.projects == [world.robotics.project.name] and len(effect.quotas) == 2
    team_removal.remove_team(actor=world.operator, team=team, why="merged", now=world.now)
    assert not Membership.objects.filter(team=team).exists()
    assert not policy.launchable_projects(world.robotics.member).exists()
    assert not policy.visible_projects(world.operator).filter(team=team).exists()
    assert team not in [row["team"] for row in organisation.teams(world.operator)]
    page = organisation.team_page(world.operator, "robotics")
    assert page is not None and page["team"].removed_at == world.now
    assert policy.visible_workloads(world.operator).get(pk=workload.pk).project.team.name == "Robotics"
    write_notices(world.now + HOUR)
    notices = Notification.objects.filter(kind="team_removed")
    assert {row.user.username for row in notices} == {"robotics-1", "robotics-2", "robotics-lead"}
    assert "Robotics" in notice_texts.notice_sentence("team_removed", notices[0].numbers)
    with rejected("a removed team had that name"):
        teams.create_team(actor=world.operator, name="Robotics", now=world.now)


@pytest.mark.parametrize(
    "kind", first_cases(2, ["project", "member", "pool", "membership", "quota request", "quota"])
)
def test_nothing_is_added_to_a_team_that_was_removed_meanwhile(world: World, kind: str) -> None:
    team, operator, now = world.robotics.team, world.operator, world.now
    team_removal.remove_team(actor=operator, team=Team.objects.get(pk=team.pk), now=now)
    with rejected("Robotics is removed already") as refused:
        if kind == "project":
            teams.create_project(actor=operator, team=team, name="late", now=now)
        elif kind == "member":
            teams.add_member(actor=operator, team=team, user=world.stranger, now=now)
        elif kind == "pool":
            pools.create_pool(actor=operator, name="Late", kind="static", team=team, now=now)
        elif kind == "membership":
            submissions.request_membership(actor=world.stranger, team=team, now=now)
        elif kind == "quota request":
            submissions.request_quota_change(
                actor=operator, team=team, pool=world.shared, model=A100, guaranteed_gpus=1, now=now
            )
        else:
            scheduling.change_quota(
                team=team,
                pool=world.shared,
                model=A100,
                guaranteed_slots=0,
                borrow_limit_slots=None,
                now=now,
            )
    assert refused.value.code == "team_is_removed"


def test_nothing_is_added_to_a_pool_that_was_removed_meanwhile(world: World) -> None:
    stale = Pool.objects.get(pk=world.shared.pk)
    removal.remove_pool(actor=world.operator, pool=empty_shared_pool(world), now=world.now)
    with rejected("Shared is removed already"):
        hosts.add_host(actor=world.operator, pool=stale, name="late", now=world.now)
    with rejected("Shared is removed already"):
        scheduling.change_quota(
            team=world.vision.team,
            pool=stale,
            model=A100,
            guaranteed_slots=0,
            borrow_limit_slots=None,
            now=world.now,
        )
    assert not Host.objects.filter(name="late").exists()


def test_a_template_is_deleted_with_a_reason(world: World) -> None:
    row = templates.save_template(
        actor=world.operator,
        name="Lab",
        kind="notebook",
        type="interactive",
        units=1,
        max_runtime_seconds=3600,
        now=world.now,
    )
    effect = templates.preview_template_deletion(actor=world.operator, template=row)
    assert (effect.name, effect.refused) == ("Lab", "")
    templates.delete_template(actor=world.operator, template=row, why="outdated", now=world.now)
    assert not Template.objects.filter(slug=row.slug).exists()
    assert AuditEvent.objects.get(verb="delete_template").why == "outdated"
