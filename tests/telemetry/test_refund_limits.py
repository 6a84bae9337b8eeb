"""Test the refund limit: how much lost work of a pool is not charged."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import DatabaseError, IntegrityError, transaction

from scheduler.models import Pool
from telemetry.models import Charge, RefundLimit
from telemetry.money.charges import charge_all_gpus
from telemetry.money.refund_limits import DEFAULT_FORGIVEN_MINUTES, load_refund_limits
from tests.telemetry.rows import at, end_hold, hold, workload
from tests.telemetry.test_charges import assert_conserved, hours
from tests.world import World, units_of

pytestmark = pytest.mark.django_db


def limit(pool: Pool, minutes: int | None, since: dt.datetime) -> RefundLimit:
    return RefundLimit.objects.create(pool=pool, forgiven_minutes=minutes, valid_from=since, created_at=since)


def preempted(world: World, start: dt.datetime, stop: dt.datetime) -> dict[str, float]:
    """Return the hours by bucket of a job without a checkpoint that is preempted at ``stop``."""
    unit = units_of(world.hosts["alpha"])[0]
    allocation = hold(workload(world, world.vision), unit, start, stop, end_code="evicted_for_priority")
    charge_all_gpus(stop + dt.timedelta(hours=2))
    assert_conserved()
    return hours(allocation=allocation)


def test_a_job_without_checkpoints_is_refunded_one_hour_of_a_pool_without_a_limit(rates: World) -> None:
    assert DEFAULT_FORGIVEN_MINUTES == 60
    assert preempted(rates, at(9), at(13)) == {"used": 3.0, "preempted": 1.0}


def test_a_job_shorter_than_the_limit_is_refunded_completely(rates: World) -> None:
    assert preempted(rates, at(9), at(9, 45)) == {"preempted": 0.75}


def test_the_limit_of_the_pool_replaces_the_default(rates: World) -> None:
    limit(rates.shared, 30, at(8))
    limit(rates.static, 0, at(8))
    assert preempted(rates, at(9), at(13)) == {"used": 3.5, "preempted": 0.5}


@pytest.mark.parametrize(
    ("stop", "expected"),
    [((12, 59, 59), {"used": 3.4997, "preempted": 0.5}), ((13, 0, 0), {"used": 2.0, "preempted": 2.0})],
)
def test_the_limit_in_force_at_the_stop_counts(
    rates: World, stop: tuple[int, int, int], expected: dict[str, float]
) -> None:
    limit(rates.shared, 30, at(8))
    limit(rates.shared, 120, at(13))
    assert preempted(rates, at(9), at(*stop)) == expected


def test_a_limit_set_later_does_not_change_earlier_stops(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9))
    end_hold(allocation, at(12), "host_lost")
    charge_all_gpus(at(13, 5))
    before = hours(allocation=allocation)
    limit(rates.shared, 0, at(14))
    charge_all_gpus(at(16, 5))
    assert hours(allocation=allocation) == before == {"used": 2.0, "hardware_lost": 1.0}


def test_work_that_stopped_before_the_upgrade_keeps_the_rule_without_a_limit(rates: World) -> None:
    limit(rates.shared, None, at(0, day=1))
    limit(rates.shared, 60, at(14))
    assert preempted(rates, at(9), at(13)) == {"preempted": 4.0}


def test_a_late_end_reverses_charges_by_the_limit_at_the_stop(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9))
    charge_all_gpus(at(12, 5))
    end_hold(allocation, at(11, 30), "gpu_error")
    charge_all_gpus(at(12, 10))
    assert hours(allocation=allocation) == {"used": 1.5, "hardware_lost": 1.0}
    assert Charge.objects.filter(reversal=True).exists()
    assert_conserved()


def test_a_limit_cannot_begin_in_charged_time(rates: World) -> None:
    charge_all_gpus(at(12, 5))
    with pytest.raises(IntegrityError, match="already charged"), transaction.atomic():
        limit(rates.shared, 30, at(11))
    limit(rates.shared, 30, at(12, 5))


def test_a_limit_is_never_changed_and_never_above_a_week(rates: World) -> None:
    row = limit(rates.shared, 30, at(8))
    with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic():
        RefundLimit.objects.filter(pk=row.pk).update(forgiven_minutes=60)
    with pytest.raises(IntegrityError, match="at_most_a_week_is_forgiven"), transaction.atomic():
        limit(rates.shared, 10_081, at(9))
    with pytest.raises(IntegrityError, match="one_refund_limit_per_pool_and_date"), transaction.atomic():
        limit(rates.shared, 40, at(8))


def test_the_limits_of_many_pools_are_read_in_one_query(
    rates: World, django_assert_num_queries: object
) -> None:
    limit(rates.static, 5, at(8))
    with django_assert_num_queries(1):  # type: ignore[operator]
        limits = load_refund_limits({rates.shared.pk, rates.static.pk})
    assert limits.minutes_at(rates.shared.pk, at(9)) == 60
    assert (limits.minutes_at(rates.static.pk, at(9)), limits.minutes_at(rates.static.pk, at(7))) == (5, 60)
