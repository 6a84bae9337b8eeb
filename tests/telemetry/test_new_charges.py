"""Test the values from which charge lines are inserted."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.db import IntegrityError, transaction

from scheduler.models import Gpu
from telemetry.ledger.new_charges import NewCharge, insert_charge_lines
from telemetry.models import Charge
from telemetry.money.statements import create_missing_statements
from tests.world import World

START = dt.datetime(2026, 3, 2, 9, 0, tzinfo=dt.UTC)
MONTH = dt.date(2026, 3, 1)


@pytest.fixture
def line(world: World) -> NewCharge:
    gpu = Gpu.objects.earliest("pk")
    create_missing_statements({MONTH})
    return NewCharge(
        pool_id=gpu.pool_id,
        month=MONTH,
        bucket="unallocated",
        day=START.date(),
        start=START,
        end=START + dt.timedelta(hours=1),
        slots=840,
        slot_seconds=840 * 3600,
        gpu_id=gpu.pk,
        model="H100",
        cost_centre="",
        share_percent=Decimal("33.30"),
        cost=Decimal("1.234567"),
        charged=Decimal(0),
        created_at=START,
        cause_numbers={"since": None, "host": 'a "b" \t é'},
    )


def test_a_new_charge_has_each_column_of_a_charge_line() -> None:
    assert {*NewCharge._fields, "id"} == {field.attname for field in Charge._meta.concrete_fields}


def test_inserted_lines_have_the_given_values_and_ascending_ids(line: NewCharge) -> None:
    ids = insert_charge_lines([line, line._replace(model="A100")])
    first, second = Charge.objects.order_by("pk")
    assert [first.pk, second.pk] == ids and ids[0] < ids[1]
    assert {name: getattr(first, name) for name in NewCharge._fields} == line._asdict()
    assert second.model == "A100"


def test_a_refused_line_raises_the_error_of_django(line: NewCharge) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_charge_lines([line._replace(end=START)])
