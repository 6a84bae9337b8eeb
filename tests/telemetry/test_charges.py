"""Test charge lines: time is split at each change and priced; corrections only add lines."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduler import services
from scheduler.models import Gpu, HostStateChange
from scheduler.services.hosts import quarantine_gpu, return_gpu
from telemetry.core.charge_pieces import asset_cost
from telemetry.models import Charge, ChargedUntil, Price, SettledAllocation, Statement
from telemetry.money import settlement
from telemetry.money.billing_months import billing_calendar
from telemetry.money.charges import charge_all_gpus, charge_past
from telemetry.money.rate_card import load_rates
from telemetry.money.reconciliation import reconcile_costs
from tests.telemetry.rows import at, end_hold, hold, host_state, price, reservation, workload
from tests.world import H100, World, make_host, units_of

pytestmark = pytest.mark.django_db


def net(field: str = "slot_seconds", **filters: Any) -> dict[str, Any]:
    """Return the sum of a column by bucket, without the buckets whose sum is zero."""
    sums: dict[str, Any] = defaultdict(int)
    for line in Charge.objects.filter(**filters):
        sums[line.bucket] += getattr(line, field)
    return {bucket: total for bucket, total in sums.items() if total}


def hours(**filters: Any) -> dict[str, float]:
    """Return the charged GPU-hours by bucket."""
    return {bucket: round(total / 840 / 3600, 4) for bucket, total in net(**filters).items()}


def assert_conserved() -> None:
    """Assert that the lines of each GPU cover its time once and sum to its cost by the rate card."""
    for done in ChargedUntil.objects.select_related("gpu"):
        lines = Charge.objects.filter(gpu=done.gpu_id)
        seconds = int((done.until - done.since).total_seconds())
        assert sum(line.slot_seconds for line in lines) == 840 * seconds
        key = (done.gpu.pool_id, done.gpu.model)
        assert sum(line.cost for line in lines) == asset_cost(load_rates({key})[key], done.since, done.until)


def test_a_job_is_charged_for_the_time_it_held_the_gpu_and_the_rest_is_unallocated(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9, 10), at(10, 40), end_code="finished")
    charge_all_gpus(at(12, 5))
    assert hours(gpu=unit.gpu) == {"used": 1.5, "unallocated": 1.5}
    lines = Charge.objects.filter(allocation=allocation)
    assert sum(line.charged for line in lines) == Decimal("3.60")
    line = lines.first()
    assert line is not None
    assert (line.team_name, line.cost_centre, line.user_name, line.workload_type) == (
        "Vision",
        "CC-100",
        "vision-1",
        "training",
    )
    assert_conserved()


def test_charging_again_adds_nothing(rates: World) -> None:
    hold(
        workload(rates, rates.vision),
        units_of(rates.hosts["alpha"])[0],
        at(9, 10),
        at(10, 40),
        end_code="finished",
    )
    charge_all_gpus(at(12, 5))
    before = Charge.objects.count()
    charge_all_gpus(at(12, 6))
    charge_all_gpus(at(12, 7))
    assert Charge.objects.count() == before


def test_ended_work_is_charged_at_once_and_running_work_at_the_full_hour(rates: World) -> None:
    alpha = units_of(rates.hosts["alpha"])
    over = hold(workload(rates, rates.vision), alpha[0], at(9, 0), at(9, 20), end_code="finished")
    running = hold(workload(rates, rates.vision), alpha[1], at(9, 0))
    charge_all_gpus(at(9, 30))
    assert Charge.objects.filter(allocation=over).count() == 1
    assert not Charge.objects.filter(allocation=running).exists()
    charge_all_gpus(at(10, 2))
    assert sum(line.slot_seconds for line in Charge.objects.filter(allocation=running)) == 840 * 3600
    assert_conserved()


def test_the_time_of_a_preempted_job_since_its_checkpoint_is_refunded(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.language), unit, at(9, 0))
    charge_all_gpus(at(12, 30))
    assert hours(allocation=allocation) == {"used": 3.0}
    end_hold(allocation, at(12, 45), "killed_at_grace", checkpoint=at(11, 45))
    charge_all_gpus(at(13, 10))
    assert hours(allocation=allocation) == {"used": 2.75, "preempted": 1.0}
    assert net("charged", allocation=allocation) == {"used": Decimal("6.60")}
    corrected = Charge.objects.filter(reversal=True)
    assert {line.corrects_id for line in corrected} <= set(Charge.objects.values_list("pk", flat=True))
    assert_conserved()
    assert SettledAllocation.objects.filter(allocation=allocation).exists()


def test_work_lost_with_its_host_is_not_charged(rates: World) -> None:
    unit = units_of(rates.hosts["beta"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9, 0))
    charge_all_gpus(at(11, 30))
    host_state(rates.hosts["beta"], at(11, 35), lease="silent")
    end_hold(allocation, at(11, 40), "host_lost", checkpoint=at(10, 45))
    charge_all_gpus(at(12, 10))
    assert hours(allocation=allocation) == {"used": 1.75, "hardware_lost": round(55 / 60, 4)}
    assert hours(gpu=unit.gpu)["unhealthy"] == round(20 / 60, 4)
    assert_conserved()


def test_an_end_reported_late_corrects_the_time_charged_after_it(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9, 0))
    charge_all_gpus(at(12, 5))
    end_hold(allocation, at(10, 30), "finished")
    charge_all_gpus(at(12, 6))
    assert hours(allocation=allocation) == {"used": 1.5}
    assert hours(gpu=unit.gpu) == {"used": 1.5, "unallocated": 1.5}
    assert_conserved()


def test_a_host_state_recorded_late_moves_its_time_to_another_bucket(rates: World) -> None:
    charge_all_gpus(at(12, 5))
    host_state(rates.hosts["alpha"], at(10, 0), admin="maintenance")
    host_state(rates.hosts["alpha"], at(11, 0))
    charge_all_gpus(at(12, 10))
    assert hours(gpu__host=rates.hosts["alpha"]) == {"unallocated": 16.0, "maintenance": 8.0}
    assert_conserved()


def test_a_quarantined_gpu_is_unhealthy_until_its_return_and_the_hosts_other_gpus_are_not(
    rates: World,
) -> None:
    gpu, other = (unit.gpu for unit in units_of(rates.hosts["alpha"])[:2])
    quarantine_gpu(gpu, reason="xid:48", now=at(10, 30))
    return_gpu(gpu, reason="reset", now=at(12, 0))
    charge_all_gpus(at(13, 5))
    assert hours(gpu=gpu) == {"unallocated": 2.5, "unhealthy": 1.5}
    assert hours(gpu=other) == {"unallocated": 4.0}


def test_a_reservation_is_charged_for_its_window_whether_used_or_not(rates: World) -> None:
    units = units_of(rates.hosts["alpha"])[:2]
    booked = reservation(rates, rates.robotics, units, at(9, 0), at(12, 0))
    work = workload(rates, rates.robotics, reservation=booked)
    hold(work, units[0], at(10, 0), at(11, 0), end_code="finished", reservation=booked)
    charge_all_gpus(at(13, 5))
    assert hours(reservation=booked) == {"reserved_unused": 5.0, "used": 1.0}
    assert net("charged", reservation=booked) == {
        "reserved_unused": Decimal("12.00"),
        "used": Decimal("2.40"),
    }
    assert set(Charge.objects.filter(reservation=booked).values_list("cost_centre", flat=True)) == {"CC-300"}


def test_slices_of_one_gpu_are_charged_to_their_teams_by_their_slots(rates: World) -> None:
    slices = units_of(rates.hosts["gamma"], "1g.5gb")[:2]
    hold(workload(rates, rates.vision), slices[0], at(9, 0), at(11, 0), end_code="finished")
    hold(workload(rates, rates.language), slices[1], at(10, 0), at(11, 0), end_code="finished")
    charge_all_gpus(at(11, 5))
    assert slices[0].gpu_id == slices[1].gpu_id
    by_team = {name: hours(gpu=slices[0].gpu, team_name=name) for name in ("Vision", "Language")}
    assert by_team == {"Vision": {"used": round(2 / 7, 4)}, "Language": {"used": round(1 / 7, 4)}}
    assert_conserved()


def test_a_new_price_starts_a_new_line_and_does_not_change_earlier_time(rates: World) -> None:
    price(H100, "4.80", since=at(10, 30))
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(10, 0), at(11, 0), end_code="finished")
    charge_all_gpus(at(12, 5))
    lines = Charge.objects.filter(allocation=allocation).order_by("start")
    assert [(line.start, line.charged) for line in lines] == [
        (at(10, 0), Decimal("1.20")),
        (at(10, 30), Decimal("2.40")),
    ]
    assert_conserved()


def test_a_pools_own_price_overrides_the_general_price_and_a_list_price_sets_the_charge(
    rates: World,
) -> None:
    price(H100, "2.00", "3.00", since=at(0, day=1), pool=rates.shared)
    allocation = hold(
        workload(rates, rates.vision), units_of(rates.hosts["alpha"])[0], at(9), at(10), end_code="finished"
    )
    charge_all_gpus(at(10, 5))
    line = Charge.objects.get(allocation=allocation)
    assert (line.cost, line.charged) == (Decimal("2.00"), Decimal("3.00"))


def test_a_price_may_not_begin_in_time_that_is_already_charged(rates: World) -> None:
    charge_all_gpus(at(12, 5))
    with pytest.raises(DatabaseError, match="already charged"), transaction.atomic():
        price(H100, "9.99", since=at(11, 0))
    assert price(H100, "9.99", since=at(13, 0)).pk


@pytest.mark.parametrize("model", [Charge, Price])
def test_the_database_rejects_edits_of_the_ledger_and_of_the_rate_card(
    rates: World, model: type[Charge] | type[Price]
) -> None:
    charge_all_gpus(at(10, 5))
    with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic():
        model.objects.update(model="forged")
    with pytest.raises(DatabaseError, match="only ever added"), transaction.atomic():
        model.objects.all()._raw_delete(using="default")


def test_a_late_correction_of_a_closed_month_is_booked_in_the_open_month(rates: World) -> None:
    unit = units_of(rates.hosts["alpha"])[0]
    allocation = hold(workload(rates, rates.vision), unit, at(9, 0))
    charge_all_gpus(at(0, 5, day=31) + dt.timedelta(days=2))
    Statement.objects.filter(month=dt.date(2026, 3, 1)).update(state="closing")
    in_march = Charge.objects.filter(month=dt.date(2026, 3, 1)).count()
    end_hold(allocation, at(12, 0, day=31), "finished")
    charge_all_gpus(dt.datetime(2026, 4, 2, 1, tzinfo=dt.UTC))
    assert Charge.objects.filter(month=dt.date(2026, 3, 1)).count() == in_march
    late = Charge.objects.filter(month=dt.date(2026, 4, 1), corrects__month=dt.date(2026, 3, 1))
    assert sum(line.slot_seconds for line in late) == 0
    assert sum(line.cost for line in late) == 0
    assert sum(line.charged for line in late) == Decimal("-28.80")  # twelve hours of 31 March
    assert_conserved()


def test_a_charge_is_rejected_in_a_month_that_is_closing(rates: World) -> None:
    charge_all_gpus(at(10, 5))
    Statement.objects.filter(month=dt.date(2026, 3, 1)).update(state="closing")
    line = Charge.objects.first()
    assert line is not None
    line.pk = None
    with pytest.raises(DatabaseError, match="open month"), transaction.atomic():
        line.save(force_insert=True)


def test_history_loaded_later_is_charged_backwards_from_the_first_charge(rates: World) -> None:
    charge_all_gpus(at(12, 5))
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision, simulated=True), unit, at(20, day=1), at(2), end_code="finished")
    charge_past([unit.gpu_id], at(18, day=1), at(12, 6))
    assert ChargedUntil.objects.get(gpu=unit.gpu_id).since == at(18, day=1)
    assert hours(gpu=unit.gpu) == {"used": 6.0, "unallocated": 12.0}
    assert Charge.objects.filter(gpu=unit.gpu, simulated=True, bucket="used").exists()
    assert_conserved()


def test_a_gpu_without_a_price_costs_nothing_and_its_lines_have_no_price(world: World) -> None:
    charge_all_gpus(at(10, 5))
    assert not Charge.objects.exclude(price=None, cost=0, charged=0).exists()


def test_charging_takes_as_many_queries_for_ten_changed_hosts_as_for_one(rates: World) -> None:
    def statements(hosts: int, moment: dt.datetime) -> int:
        for _ in range(hosts):
            host = make_host(f"host-{Gpu.objects.count()}", rates.shared, [H100] * 8, at(9))
            for lease in ("suspect", "alive"):
                host_state(host, moment, lease=lease)
        with CaptureQueriesContext(connection) as asked:
            charge_all_gpus(moment + dt.timedelta(seconds=30))
        return len(asked)

    charge_all_gpus(at(9, 1))
    billing_calendar()  # a process reads it once a minute
    few = statements(1, at(9, 5))
    assert statements(10, at(9, 5, 10)) == few
    assert ChargedUntil.objects.count() == Gpu.objects.count()
    assert not HostStateChange.objects.filter(settledstatechange=None).exists()


def test_changes_before_the_first_charge_are_not_late_however_many_they_are(
    rates: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    monkeypatch.setattr(settlement, "SETTLEMENTS_PER_RUN", 1)
    monkeypatch.setattr(settlement, "correct_gpu_charges", lambda gpu, *late: compared.append(gpu) or 0)
    for minute in (10, 20, 30):
        host_state(rates.hosts["alpha"], at(9, minute), lease="suspect")
    for minute in (5, 6):
        charge_all_gpus(at(12, minute))
    assert compared == []
    assert not HostStateChange.objects.filter(settledstatechange=None).exists()
    host_state(rates.hosts["alpha"], at(9, 40), lease="silent")
    charge_all_gpus(at(12, 7))
    assert sorted(compared) == sorted(rates.hosts["alpha"].gpus.values_list("pk", flat=True))


def test_charges_and_their_sums_stay_with_the_pool_that_a_host_has_left(rates: World) -> None:
    host = rates.hosts["alpha"]
    unit = units_of(host)[0]
    hold(workload(rates, rates.vision), unit, at(9, 10), at(10, 40), end_code="finished")
    charge_all_gpus(at(11, 5))
    services.move_host(host, rates.static, reason="", now=at(12))
    charge_all_gpus(at(14, 5))
    assert hours(gpu=unit.gpu) == {"used": 1.5, "unallocated": 1.5}
    assert hours(gpu=unit.gpu) == hours(gpu=unit.gpu, pool=rates.shared)
    moved = host.gpus.get(index=0, retired_at=None)
    assert (
        hours(gpu=moved)
        == {"reserved_unused": 2.0}
        == hours(gpu=moved, pool=rates.static, team=rates.vision.team)
    )
    assert_conserved()
    assert all(pool.holds for pool in reconcile_costs(dt.date(2026, 3, 1)))


def test_a_removed_host_is_charged_until_its_removal(rates: World) -> None:
    host = rates.hosts["alpha"]
    hold(workload(rates, rates.vision), units_of(host)[0], at(9, 10), at(10, 40), end_code="finished")
    services.remove_host(host, reason="", now=at(12))
    charge_all_gpus(at(14, 5))
    assert hours(gpu__host=host) == {"used": 1.5, "unallocated": 22.5}
    lines = [line for line in reconcile_costs(dt.date(2026, 3, 1)) if line.pool == rates.shared.pk]
    assert [line.holds for line in lines] == [True]


@pytest.mark.parametrize(
    "removed_at", [at(9, 0, 30, day=3), at(9, 0, 30, day=3) + dt.timedelta(microseconds=5)]
)
def test_gpus_are_charged_for_weeks_after_another_gpu_was_retired(
    rates: World, removed_at: dt.datetime
) -> None:
    services.remove_host(rates.hosts["alpha"], reason="scrapped", now=removed_at)
    for day in (4, 14, 24):
        charge_all_gpus(at(10, 2, day=day))
    untils = dict(ChargedUntil.objects.values_list("gpu__host__name", "until").distinct())
    assert untils.pop("alpha") == removed_at.replace(microsecond=0)
    assert set(untils.values()) == {at(10, day=24)}
