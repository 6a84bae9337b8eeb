"""Test that all parts of the portal count the units of a team by one rule, and each unit once."""

from __future__ import annotations

import pytest
from django.db.backends.postgresql.psycopg_any import DateTimeTZRange
from django.utils import timezone

from portal.reads.work.team_summaries import quota_usages, team_summaries
from scheduler.core.model.slots import SLOTS_PER_GPU
from scheduler.models import Allocation, BoundUnit, Reservation
from scheduler.reads.capacity import held_by_team, quota_use
from scheduler.state.states import ReservationState
from tests.portal.web.work_samples import reserve, run_job
from tests.world import H100, World, units_of

pytestmark = pytest.mark.django_db


def test_a_reservation_counts_its_bound_units_and_not_the_work_inside_again(
    world: World,
) -> None:
    now = timezone.now()
    run_job(world, world.vision, "outside", host="alpha", gpus=[0, 1])
    inside = run_job(world, world.vision, "inside", host="alpha", gpus=[2])
    run_job(world, world.language, "others", host="beta", gpus=[0])
    promise = reserve(world, world.vision, "review", hours=-1, length=4, units=3)
    Reservation.objects.filter(pk=promise.pk).update(state=ReservationState.ACTIVE)
    Allocation.objects.filter(workload=inside).update(reservation=promise)
    for unit in units_of(world.hosts["alpha"])[2:5]:
        BoundUnit.objects.create(
            reservation=promise,
            unit=unit,
            slots=unit.slots,
            period=DateTimeTZRange(promise.start, promise.end),
        )
    vision, language = world.vision.team.pk, world.language.team.pk
    assert held_by_team([vision, language], now) == {
        (vision, world.shared.pk, H100): 5 * SLOTS_PER_GPU,
        (language, world.shared.pk, H100): SLOTS_PER_GPU,
    }
    uses = quota_use(team=vision, pool=world.shared.pk, now=now)
    lines = {line.model: line for line in quota_usages(uses, world.shared)}
    assert (lines[H100].held, lines[H100].guaranteed) == (5, 8)
    (panel,) = team_summaries(world.vision.member, now)
    assert {line.model: line.held for line in panel.lines} == {
        model: line.held for model, line in lines.items()
    }
