"""Test the GPU-hours of a guarantee: they are counted, used up, and reset in the next period."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange

from portal.errors import Invalid
from portal.services.approvals import decisions, submissions
from portal.wording import reason_texts, request_texts
from scheduler import services
from scheduler.core.reasons import ReasonCode
from scheduler.cycle import engine, snapshot
from scheduler.models import Allocation, Quota, Run, Workload
from scheduler.services import quota_hours
from tests.scheduler.test_job_lifecycle import job
from tests.world import H100, World, units_of

pytestmark = pytest.mark.django_db

HOUR = dt.timedelta(hours=1)


def set_gpu_hours(world: World, gpu_hours: int | None, **changes: Any) -> Quota:
    """Set vision's guarantee of eight H100 to this many GPU-hours a week."""
    defaults: dict[str, Any] = {
        "guaranteed_slots": 8 * 840,
        "borrow_limit_slots": None,
        "period": "week",
        "now": world.now,
    }
    team = world.vision.team
    assert services.change_quota(
        team=team, pool=world.shared, model=H100, gpu_hours=gpu_hours, **(defaults | changes)
    )
    return quota(world)


def quota(world: World) -> Quota:
    return Quota.objects.get(team=world.vision.team, pool=world.shared, model=H100)


def create_held_work(world: World, start: dt.datetime, end: dt.datetime | None, gpus: int = 1) -> None:
    """Create work of vision that held this many H100 of alpha."""
    workload = job(world, world.vision, gpus, world.now)
    Workload.objects.filter(pk=workload.pk).update(state="ended" if end else "running", attempt=1)
    run = Run.objects.create(
        workload=workload,
        attempt=1,
        host=world.hosts["alpha"],
        generation=workload.pk,
        placed_at=start,
        state="ended" if end else "running",
    )
    for unit in units_of(world.hosts["alpha"])[:gpus]:
        Allocation.objects.create(
            run=run,
            workload=workload,
            project=world.vision.project,
            unit=unit,
            slots=unit.slots,
            period=DateTimeTZRange(start, end),
        )


def test_only_hours_held_in_the_period_are_counted(world: World) -> None:
    set_gpu_hours(world, 100)
    monday = world.now.replace(hour=0)
    # Two of the twelve hours are in this week.
    create_held_work(world, monday - 10 * HOUR, monday + 2 * HOUR, gpus=2)
    create_held_work(world, monday + 3 * HOUR, None, gpus=1)  # still running
    quota_hours.count_quota_hours(monday + 9 * HOUR)
    assert quota(world).gpu_hours_used == 2 * 2 + 6
    assert not quota(world).hours_used_up
    others = Quota.objects.exclude(pk=quota(world).pk)
    assert {row.hours_counted_at for row in others} == {None}, "a guarantee without GPU-hours is not counted"


def test_counting_takes_the_same_number_of_queries_for_any_number_of_rows(
    world: World, django_assert_num_queries: Any
) -> None:
    set_gpu_hours(world, 100)
    quota_hours.count_quota_hours(world.now)
    create_held_work(world, world.now - 2 * HOUR, world.now - HOUR, gpus=4)
    with django_assert_num_queries(3):  # the sums, the quotas, and one for the allocation that has ended
        quota_hours.count_quota_hours(world.now)


def test_a_changed_quota_includes_the_hours_used_before_the_change(world: World) -> None:
    set_gpu_hours(world, 4)
    create_held_work(world, world.now - 2 * HOUR, world.now - HOUR, gpus=4)
    assert quota_hours.count_quota_hours(world.now) == 1
    changed = set_gpu_hours(world, 4, borrow_limit_slots=840)
    assert (changed.gpu_hours_used, changed.hours_used_up) == (4, True)
    assert not set_gpu_hours(world, 5).hours_used_up


def test_a_team_that_has_used_up_its_hours_can_only_borrow(world: World) -> None:
    set_gpu_hours(world, 4)
    create_held_work(world, world.now - 2 * HOUR, world.now - HOUR, gpus=4)
    assert quota_hours.count_quota_hours(world.now) == 1
    firm = job(world, world.vision, 1, world.now, preemptible=False)
    lent = job(world, world.vision, 1, world.now, preemptible=True)
    engine.run_cycle("test", world.now)
    for each in (firm, lent):
        each.refresh_from_db()
    assert (lent.state, lent.reason_code, lent.borrowed_slots) == ("placed", ReasonCode.FREE_BORROWED, 840)
    assert (firm.state, firm.reason_code) == ("queued", ReasonCode.GPU_HOURS_USED_UP)
    next_week = world.now.replace(hour=0) + dt.timedelta(days=7)
    assert firm.expected_start == next_week
    assert firm.reason_numbers == {
        "gpu_hours": 4,
        "may_borrow": False,
        "model": H100,
        "until": int(next_week.timestamp()),
    }
    assert "used up the 4 GPU-hours of H100 80GB" in reason_texts.reason_sentence(
        firm.reason_code, firm.reason_numbers
    )


def test_a_team_that_has_used_up_its_hours_starts_nothing_if_its_quota_refuses(world: World) -> None:
    set_gpu_hours(world, 4, when_used_up="refuse")
    create_held_work(world, world.now - 2 * HOUR, world.now - HOUR, gpus=4)
    quota_hours.count_quota_hours(world.now)
    lent = job(world, world.vision, 1, world.now, preemptible=True)
    engine.run_cycle("test", world.now)
    lent.refresh_from_db()
    assert (lent.state, lent.reason_code) == ("queued", ReasonCode.GPU_HOURS_USED_UP)


def test_used_hours_are_reset_in_the_next_period(world: World) -> None:
    set_gpu_hours(world, 4)
    create_held_work(world, world.now - 2 * HOUR, world.now - HOUR, gpus=4)
    quota_hours.count_quota_hours(world.now)
    suspended = snapshot.take_snapshot(None, world.now).quotas[0]
    assert (suspended.guaranteed, suspended.guaranteed_after_reset) == (0, 8 * 840)
    assert quota_hours.count_quota_hours(world.now + dt.timedelta(days=7)) == 1
    assert quota(world).gpu_hours_used == 0
    assert snapshot.take_snapshot(None, world.now).quotas[0].guaranteed == 8 * 840


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        ("day", dt.date(2026, 12, 31), dt.date(2027, 1, 1)),
        ("week", dt.date(2026, 12, 28), dt.date(2027, 1, 4)),
        ("month", dt.date(2026, 12, 1), dt.date(2027, 1, 1)),
    ],
)
def test_periods_begin_at_midnight_on_mondays_and_on_the_first_of_the_month(
    kind: str, start: dt.date, end: dt.date
) -> None:
    found = quota_hours.quota_period_at(kind, dt.datetime(2026, 12, 31, 23, 59, tzinfo=dt.UTC))
    assert (found.start.date(), found.end.date()) == (start, end)


def test_an_operator_approves_gpu_hours_with_the_guarantee(world: World) -> None:
    asked = submissions.request_quota_change(
        actor=world.vision.lead,
        team=world.vision.team,
        pool=world.shared,
        model=H100,
        guaranteed_gpus=8,
        gpu_hours=500,
        period="month",
        when_used_up="refuse",
        now=world.now,
    )
    assert "GPU-hours no limit → 500" in request_texts.submission_summary(asked.kind, asked.payload)
    decisions.approve_submission(
        actor=world.operator, submission=asked, now=world.now, changes={"gpu_hours": 400}
    )
    row = quota(world)
    assert (row.gpu_hours, row.hours_period, row.when_used_up) == (400, "month", "refuse")
    for wrong, field in (
        ({"gpu_hours": 0}, "gpu_hours"),
        ({"period": "year"}, "period"),
        ({"when_used_up": "x"}, "when_used_up"),
    ):
        with pytest.raises(Invalid) as refused:
            submissions.request_quota_change(
                actor=world.vision.lead,
                team=world.vision.team,
                pool=world.shared,
                model="A100-40GB",
                guaranteed_gpus=1,
                now=world.now,
                **wrong,  # type: ignore[arg-type]
            )
        assert list(refused.value.fields) == [field]
