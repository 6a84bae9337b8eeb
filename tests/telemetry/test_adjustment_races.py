"""Test two concurrent credits of one charge: with the ledger lock one is refused, without it both count."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.db import transaction

from scheduler.core.rejection import OperationRejected
from telemetry.models import Adjustment, StatementLine
from telemetry.money.adjusting import adjustments
from telemetry.money.adjusting.adjustments import AdjustmentDraft
from telemetry.money.charges import charge_all_gpus
from telemetry.money.shared_idle import assign_due_cents
from tests.concurrency.conftest import GUARDED, race
from tests.concurrency.conftest import world as committed_world
from tests.telemetry.rows import at, hold, workload
from tests.telemetry.test_races import AFTER, MARCH, make_racers_meet_after, rates
from tests.world import World, units_of

__all__ = ["committed_world", "rates"]


@pytest.fixture
def credits_of_one_charge(rates: World) -> list[Adjustment]:
    """Return two proposed credits of a charge of 24.00. Each gives back the whole charge."""
    unit = units_of(rates.hosts["alpha"])[0]
    hold(workload(rates, rates.vision), unit, at(9), at(19), end_code="finished")
    charge_all_gpus(at(20))
    with transaction.atomic():
        assign_due_cents()
    line = StatementLine.objects.get(team=rates.vision.team, bucket="used")
    draft = AdjustmentDraft(
        month=MARCH,
        kind="credit",
        cost_centre="CC",
        amount=Decimal("-24.00"),
        reason="slow host",
        credited=line.statement,
        line=line,
    )
    first = adjustments.propose(draft, author=rates.finance, now=AFTER)
    columns = {field.attname: getattr(first, field.attname) for field in Adjustment._meta.concrete_fields}
    # ``propose`` would refuse the second credit, because the limit counts the first. So create the row.
    second = Adjustment.objects.create(**columns | {"id": None, "number": "2026-03-A2"})
    return [first, second]


def approve_both(world: World, rows: list[Adjustment]) -> list[object]:
    return race(
        [lambda row=row: adjustments.approve(row, decided_by=world.auditor, now=AFTER) for row in rows]
    )


def test_the_second_of_two_concurrent_credits_of_a_charge_is_refused(
    rates: World, credits_of_one_charge: list[Adjustment], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lock keeps the second racer away.
    make_racers_meet_after(monkeypatch, adjustments, "check_credit", GUARDED)
    done = approve_both(rates, credits_of_one_charge)
    refused = [each for each in done if isinstance(each, OperationRejected)]
    assert [each.code for each in refused] == ["credit_above_charge"], done
    assert Adjustment.objects.filter(state="approved").count() == 1


def test_without_the_ledger_lock_both_credits_pass_the_limit(
    rates: World, credits_of_one_charge: list[Adjustment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adjustments, "lock_ledger", lambda: None)
    make_racers_meet_after(monkeypatch, adjustments, "check_credit")
    done = approve_both(rates, credits_of_one_charge)
    assert not [each for each in done if isinstance(each, OperationRejected)], done
    assert Adjustment.objects.filter(state="approved").count() == 2, done
