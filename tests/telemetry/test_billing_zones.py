"""Test charging in billing months of a time zone: lines, sums, audit and close follow one calendar."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from portal.errors import Invalid
from portal.models import AuditEvent
from portal.services.money.billing_settings import set_billing_zone
from telemetry.audit.calendar_sql import CALENDAR_SQL, MONTH_BOUNDS_SQL
from telemetry.audit.ledger_audit import audit_ledger
from telemetry.core.billing_calendar import BillingCalendar, ZoneStart, next_month
from telemetry.ledger.sums import sum_differences
from telemetry.models import BillingZone, Charge, ChargeCell, Statement
from telemetry.money import statements
from telemetry.money.billing_months import billing_calendar, forget_calendar
from telemetry.money.charges import charge_all_gpus
from telemetry.money.reconciliation import reconcile_costs
from tests.seeds import first_cases
from tests.telemetry.random_ledger import RandomLedger
from tests.telemetry.rows import at, begin_charges_at, change_in_place, end_hold, hold, workload
from tests.telemetry.test_billing_calendar import ZONES
from tests.telemetry.test_statements import MARCH
from tests.world import World, units_of

pytestmark = [pytest.mark.django_db, pytest.mark.long]
APRIL = dt.date(2026, 4, 1)
ROLLED_BACK = settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.generate],  # no shrinking of a failing example: each takes seconds
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)  # type: ignore[misc, arg-type]


def use_zone(name: str, first_month: dt.date = APRIL) -> None:
    BillingZone.objects.create(first_month=first_month, time_zone=name, created_at=utc(2026, 3, 1))
    forget_calendar()


def test_a_day_of_23_hours_and_a_month_end_are_cut_at_local_midnight(rates: World) -> None:
    use_zone("Europe/Berlin", MARCH)
    begin_charges_at(rates, at(0, day=28))
    hold(workload(rates, rates.vision), units_of(rates.hosts["alpha"])[0], utc(2026, 3, 28, 12), None)
    charge_all_gpus(utc(2026, 4, 1, 6))
    lines = Charge.objects.filter(bucket="used")
    days: dict[dt.date, float] = {}
    for line in lines:
        days[line.day] = days.get(line.day, 0.0) + (line.end - line.start) / dt.timedelta(hours=1)
    assert days[dt.date(2026, 3, 28)] == 11  # from 13:00 to midnight in Berlin
    assert days[dt.date(2026, 3, 29)] == 23
    assert days[dt.date(2026, 3, 31)] == 24
    assert not lines.filter(start__lt=utc(2026, 3, 31, 22), end__gt=utc(2026, 3, 31, 22)).exists()
    assert set(lines.filter(start__gte=utc(2026, 3, 31, 22)).values_list("month", flat=True)) == {APRIL}
    assert set(ChargeCell.objects.values_list("day", flat=True)) >= set(days)


def test_the_first_local_month_starts_where_the_last_month_in_utc_ended(rates: World) -> None:
    use_zone("Europe/Berlin")
    begin_charges_at(rates, at(0, day=30))
    now = utc(2026, 5, 1, 2)
    hold(workload(rates, rates.vision), units_of(rates.hosts["alpha"])[0], at(9, day=30), None)
    charge_all_gpus(utc(2026, 4, 1, 2))
    charge_all_gpus(now)
    march = statements.close_month(month=MARCH, closed_by=rates.finance, now=now)
    april = statements.close_month(month=APRIL, closed_by=rates.finance, now=now)
    assert (march.ends_at, april.starts_at) == (utc(2026, 4, 1), utc(2026, 4, 1))
    assert (april.ends_at, april.time_zone) == (utc(2026, 4, 30, 22), "Europe/Berlin")
    hours = sum(
        (line.end - line.start for line in Charge.objects.filter(month=APRIL, bucket="used")), dt.timedelta()
    )
    assert hours == dt.timedelta(days=30, hours=-2)


@pytest.mark.parametrize("zone", ZONES)
def test_the_database_computes_the_same_days_as_the_calendar(zone: str) -> None:
    use_zone(zone, dt.date(2009, 2, 1))
    calendar = BillingCalendar([ZoneStart(dt.date(2009, 2, 1), zone)])
    for first, month in (
        (dt.date(2009, 1, 1), dt.date(2010, 3, 1)),
        (dt.date(2011, 10, 1), dt.date(2012, 1, 1)),
        (dt.date(2025, 12, 1), dt.date(2026, 12, 1)),
    ):
        with connection.cursor() as cursor:
            cursor.execute(MONTH_BOUNDS_SQL, {"month": month})
            assert cursor.fetchone() == calendar.month_bounds(month)
            values = {"first_day": first, "month": month}
            cursor.execute(f"WITH {CALENDAR_SQL} SELECT * FROM calendar ORDER BY day", values)
            for number, of_month, low, high in cursor.fetchall():
                day = dt.date(1970, 1, 1) + dt.timedelta(days=number)
                found = tuple(dt.datetime.fromtimestamp(second, dt.UTC) for second in (low, high))
                assert (found, of_month) == (calendar.day_bounds(day), day.replace(day=1)), day


def assert_parts_sum_to_the_whole(rates: World, seed: int, first: str, second: str) -> None:
    """Charge random facts in March and April, each in its zone, and check lines, sums, equation and audit."""
    dice, now = random.Random(seed), utc(2026, 4, 3)
    use_zone(first, MARCH)
    use_zone(second, APRIL)
    RandomLedger(rates, dice).charge_until(now, dice.randint(2, 6))
    for month in (MARCH, APRIL):
        assert [str(each) for each in audit_ledger(month, now)] == []
        assert sum_differences(month) == []
        assert all(pool.holds for pool in reconcile_costs(month))
    for line in Charge.objects.all():
        low, high = billing_calendar().day_bounds(line.day)
        assert low <= line.start < line.end <= high


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Australia/Lord_Howe", "America/New_York"),
        ("Pacific/Niue", "Pacific/Kiritimati"),
    ],
)
def test_a_change_of_zone_in_charged_days_leaves_no_gap_and_charges_nothing_twice(
    rates: World, first: str, second: str
) -> None:
    begin_charges_at(rates, at(0, day=30))
    assert_parts_sum_to_the_whole(rates, 7, first, second)


@pytest.mark.parametrize(
    ("first", "second"), [("Pacific/Niue", "Pacific/Kiritimati"), ("Australia/Lord_Howe", "America/New_York")]
)
def test_a_change_of_zone_leaves_no_gap_and_charges_nothing_twice(
    rates: World, first: str, second: str
) -> None:
    assert_parts_sum_to_the_whole(rates, 7, first, second)


@pytest.mark.timeout(400)
@ROLLED_BACK
@given(st.integers(0, 2**32), st.sampled_from(ZONES), st.sampled_from(ZONES))
def test_in_every_zone_parts_sum_to_the_whole_and_the_audit_finds_no_difference(
    rates: World, seed: int, first: str, second: str
) -> None:
    with transaction.atomic():
        assert_parts_sum_to_the_whole(rates, seed, first, second)
        transaction.set_rollback(True)
    forget_calendar()


def test_a_line_with_the_wrong_day_is_found(rates: World) -> None:
    use_zone("Europe/Berlin", MARCH)
    begin_charges_at(rates, at(0, day=29))
    charge_all_gpus(utc(2026, 4, 2))
    line = Charge.objects.filter(start=utc(2026, 3, 30, 22)).earliest("pk")
    assert line.day == dt.date(2026, 3, 31)
    change_in_place(line, day=dt.date(2026, 3, 30))
    assert "the day of its start" in {each.expected for each in audit_ledger(MARCH, utc(2026, 4, 2))}


def test_corrections_of_a_local_month_equal_one_run_that_knows_all_facts(rates: World) -> None:
    use_zone("America/New_York", MARCH)
    begin_charges_at(rates, at(0, day=30))
    unit = units_of(rates.hosts["alpha"])[0]
    late = hold(workload(rates, rates.vision), unit, utc(2026, 3, 31, 20), None)
    now = utc(2026, 4, 1, 8)
    charge_all_gpus(now)
    statements.close_month(month=MARCH, closed_by=rates.finance, now=now)
    end_hold(late, utc(2026, 4, 1, 2), "finished")  # 22:00 on 31 March in New York
    charge_all_gpus(utc(2026, 4, 1, 10))
    corrections = Charge.objects.filter(corrects__isnull=False, day__lt=APRIL)
    assert {line.month for line in corrections} == {APRIL}
    assert sum(line.charged for line in corrections) == Decimal("-4.80")  # two hours at 2.40
    used = Charge.objects.filter(allocation=late)
    assert sum(line.charged for line in used) == Decimal("14.40")  # six hours at 2.40
    assert list(audit_ledger(APRIL, utc(2026, 4, 1, 10))) == []


def test_a_zone_is_never_changed_and_never_begins_in_charged_time(rates: World) -> None:
    use_zone("Europe/Berlin")
    begin_charges_at(rates, at(0, day=30))
    charge_all_gpus(utc(2026, 4, 2))
    row = BillingZone.objects.get()
    copy: dict[str, Any] = {"time_zone": "Asia/Tokyo", "created_at": utc(2026, 4, 2)}
    for change in (
        lambda: BillingZone.objects.update(time_zone="UTC"),
        lambda: BillingZone.objects.filter(pk=row.pk)._raw_delete(using="default"),
        lambda: BillingZone.objects.create(first_month=MARCH, **copy),
        lambda: BillingZone.objects.create(first_month=APRIL, **copy),
        lambda: BillingZone.objects.create(first_month=dt.date(2026, 6, 2), **copy),
        lambda: BillingZone.objects.create(first_month=dt.date(2026, 6, 1), **(copy | {"time_zone": "No"})),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
    BillingZone.objects.create(first_month=dt.date(2026, 5, 1), **copy)


@pytest.mark.parametrize(
    ("first_month", "zone", "problem"),
    first_cases(
        2,
        [
            (MARCH, "Europe/Berlin", "first_month is 2026-03; allowed: 2026-04 to 2027-04"),
            (dt.date(2028, 1, 1), "Europe/Berlin", "allowed: 2026-04 to 2027-04"),
            (dt.date(2026, 4, 2), "Europe/Berlin", "first_month"),
            (APRIL, "Berlin", "time_zone"),
            (APRIL, "UTC", "a zone that the month does not have already"),
        ],
    ),
)
def test_a_wrong_zone_or_month_is_refused_with_what_is_allowed(
    world: World, first_month: dt.date, zone: str, problem: str
) -> None:
    with pytest.raises(Invalid) as refused:
        set_billing_zone(actor=world.finance, first_month=first_month, time_zone=zone, now=world.now)
    assert problem in " ".join(refused.value.fields.values()) + " ".join(refused.value.fields)
    assert not BillingZone.objects.exists()


def test_a_zone_is_set_by_finance_with_an_hour_of_notice_and_audited(world: World) -> None:
    with pytest.raises(Invalid, match="2026-05 to"):
        set_billing_zone(
            actor=world.finance, first_month=APRIL, time_zone="Asia/Tokyo", now=utc(2026, 3, 31, 23, 30)
        )
    now = utc(2026, 3, 31, 22)
    set_billing_zone(actor=world.finance, first_month=APRIL, time_zone="Asia/Tokyo", now=now, why="ledger")
    event = AuditEvent.objects.get(verb="set_billing_zone")
    assert (event.before["time_zone"], event.after["time_zone"], event.why) == ("UTC", "Asia/Tokyo", "ledger")
    assert billing_calendar().month_bounds(APRIL) == (utc(2026, 4, 1), utc(2026, 4, 30, 15))


def test_the_statement_of_a_closed_month_keeps_its_zone_and_its_bounds(rates: World) -> None:
    now = utc(2026, 4, 1, 2)
    begin_charges_at(rates, at(0, day=30))
    charge_all_gpus(utc(2026, 4, 1, 2))
    charge_all_gpus(now)
    march = statements.close_month(month=MARCH, closed_by=rates.finance, now=now)
    assert (march.starts_at, march.ends_at, march.time_zone) == (utc(2026, 3, 1), utc(2026, 4, 1), "UTC")
    assert Statement.objects.get(month=MARCH).digest == march.digest
    assert next_month(MARCH) == APRIL
