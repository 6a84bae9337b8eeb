"""Test removals and moves that race with other operations.

Confirmed reservations keep the hosts that they need. A removed team or pool gets no new rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from portal.models import Submission
from portal.services.approvals import decisions, submissions
from portal.services.fleet import removal as pool_removal
from portal.services.people import team_removal, teams
from scheduler import services
from scheduler.coordination import locks
from scheduler.core.rejection import OperationRejected
from scheduler.models import Host, Pool, Project, Reservation, Workload
from scheduler.services import removal, reservations
from tests.concurrency.conftest import GUARDED, Meeting, race
from tests.scheduler.test_job_lifecycle import job
from tests.world import A100, H100, World

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


def meet_after(patch: pytest.MonkeyPatch, module: object, name: str, meeting: Meeting) -> None:
    real = getattr(module, name)

    def call_then_meet(*given: Any, **more: Any) -> Any:
        result = real(*given, **more)
        meeting.wait()
        return result

    patch.setattr(module, name, call_then_meet)


def move(world: World, name: str) -> Callable[[], None]:
    host = Host.objects.get(name=name)
    return lambda: services.move_host(host, world.static, reason="", now=world.now)


def reserve(world: World, *, hosts: int) -> Reservation | None:
    start = world.now + 5 * HOUR
    return services.confirm_reservation(
        owner=world.vision.lead,
        project=world.vision.project,
        pool=world.shared,
        name="course",
        start=start,
        end=start + HOUR,
        units=8,
        hosts=hosts,
        models_wanted=[H100],
        may_exceed_guarantee=True,
        now=world.now,
    )[0]


def test_a_host_does_not_move_while_a_reservation_that_needs_it_is_confirmed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(2, GUARDED)
    meet_after(monkeypatch, removal, "check_host_move", meeting)
    meet_after(monkeypatch, reservations, "check_window_in_snapshot", meeting)
    moved, reserved = race([move(world, "alpha"), lambda: reserve(world, hosts=2)])
    assert isinstance(moved, OperationRejected) or reserved is None
    assert (Host.objects.get(name="alpha").pool == world.static) == (reserved is None)


def test_only_one_of_two_hosts_moves_if_a_reservation_needs_one_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reserve(world, hosts=1) is not None
    meet_after(monkeypatch, removal, "check_host_move", Meeting(2, GUARDED))
    results = race([move(world, "alpha"), move(world, "beta")])
    assert sorted(type(result) for result in results if result is not None) == [OperationRejected]
    assert Host.objects.filter(name__in=("alpha", "beta"), pool=world.shared).count() == 1


def test_a_host_that_was_moved_meanwhile_is_not_moved_again(world: World) -> None:
    first, second = move(world, "alpha"), Host.objects.get(name="alpha")
    first()
    other = Pool.objects.create(slug="other", name="Other", kind="dynamic", created_at=world.now)
    with pytest.raises(OperationRejected) as refused:
        services.move_host(second, other, reason="", now=world.now)
    assert (refused.value.code, refused.value.numbers["pool"]) == ("host_is_in_pool", "Vision only")


@pytest.mark.parametrize("kind", ["pool", "team"])
def test_a_removal_and_an_approval_do_not_block_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    team = world.robotics
    request = submissions.request_quota_change(
        actor=team.lead, team=team.team, pool=world.shared, model=A100, guaranteed_gpus=1, now=world.now
    )
    Host.objects.filter(pool=world.shared).update(removed_at=world.now)
    meeting = Meeting(2, GUARDED)
    meet_after(monkeypatch, decisions, "_decide", meeting)
    meet_after(monkeypatch, removal, f"check_{kind}_removal", meeting)
    operator: dict[str, Any] = {"actor": world.operator, "now": world.now}
    results = race(
        [
            (
                (lambda: pool_removal.remove_pool(pool=world.shared, **operator))
                if kind == "pool"
                else (lambda: team_removal.remove_team(team=team.team, **operator))
            ),
            lambda: decisions.approve_submission(submission=request, **operator),
        ]
    )
    assert not isinstance(results[0], Exception)
    assert not isinstance(results[1], Exception) or isinstance(results[1], OperationRejected)


@pytest.mark.parametrize(
    "kind", ["workload", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("project", "request"))]
)
def test_a_removed_team_gets_no_new_rows(world: World, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    team, now = world.robotics, world.now

    def add() -> Any:
        if kind == "project":
            return teams.create_project(actor=world.operator, team=team.team, name="late", now=now)
        if kind == "workload":
            return job(world, team, 1, now)
        return submissions.request_membership(actor=world.stranger, team=team.team, now=now)

    meeting = Meeting(2, GUARDED)
    meet_after(monkeypatch, removal, "check_team_removal", meeting)
    meet_after(monkeypatch, locks, "prevent_removal", meeting)
    removed, added = race(
        [lambda: team_removal.remove_team(actor=world.operator, team=team.team, now=now), add]
    )
    assert not isinstance(added, Exception) or isinstance(added, OperationRejected)
    if isinstance(removed, OperationRejected):
        assert (kind, removed.code) == ("workload", "team_has_work")
    else:
        assert not Project.objects.filter(team=team.team, active=True).exists()
        assert not Workload.objects.filter(project__team=team.team).exists()
        assert not Submission.objects.filter(team=team.team, state="waiting").exists()


@pytest.mark.parametrize("kind", ["workload", pytest.param("host", marks=pytest.mark.long)])
def test_a_removed_pool_gets_no_new_rows(world: World, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pool, now = world.shared, world.now
    Host.objects.filter(pool=pool).update(removed_at=now)

    def add() -> Any:
        if kind == "host":
            return services.add_host(pool=pool, name="late", now=now)
        return job(world, world.vision, 1, now)

    meeting = Meeting(2, GUARDED)
    meet_after(monkeypatch, removal, "check_pool_removal", meeting)
    meet_after(monkeypatch, locks, "prevent_removal", meeting)
    results = race([lambda: services.remove_pool(pool, now=now), add])
    assert len([result for result in results if isinstance(result, OperationRejected)]) == 1
