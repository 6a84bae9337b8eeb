"""Test the audit of the ledger: correct charges agree with the facts, and each changed line is found."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scheduler.models import Reservation, Workload
from telemetry.audit import ledger_audit
from telemetry.audit.ledger_audit import LedgerDifference, audit_ledger
from telemetry.core.charge_model import HARDWARE_FAULT_END_CODES, PREEMPTION_END_CODES
from telemetry.ledger.sums import add_to_sums
from telemetry.models import Charge, Price, PriceFactor, Statement
from telemetry.money import statements
from telemetry.money.charges import charge_all_gpus
from telemetry.money.refund_limits import DEFAULT_FORGIVEN_MINUTES
from tests.portal.rejections import rejected
from tests.telemetry.random_ledger import RandomLedger
from tests.telemetry.rows import (
    at,
    change_in_place,
    cost_centre,
    end_hold,
    hold,
    insert_copy,
    price,
    workload,
)
from tests.telemetry.test_statements import AFTER, APRIL, MARCH, busy_march, running_allocation
from tests.world import A100, H100, World, units_of

__all__ = ["busy_march"]
pytestmark = pytest.mark.django_db
SEEDS = st.integers(0, 1_000_000)
ROLLED_BACK = settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # no shrinking of a failing example: each takes seconds
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def differences(month: dt.date = MARCH, now: dt.datetime = AFTER) -> list[LedgerDifference]:
    return list(audit_ledger(month, now))


def reversal_of(line: Charge) -> Charge:
    """Insert the reversal of a line."""
    return insert_copy(
        line,
        reversal=True,
        corrects_id=line.pk,
        slots=-line.slots,
        slot_seconds=-line.slot_seconds,
        cost=-line.cost,
        charged=-line.charged,
    )


def used_line(team: str = "Vision") -> Charge:
    """Return a charge line of a team's work on a GPU that no other work holds."""
    return Charge.objects.filter(team_name=team, bucket="used", slots=840).order_by("pk")[3]


def test_correct_charges_agree_with_the_facts(busy_march: World) -> None:
    assert [str(each) for each in differences()] == []


@pytest.mark.long
@pytest.mark.timeout(600)
@ROLLED_BACK
@given(SEEDS)
def test_the_audit_finds_no_difference_in_correct_charges_of_random_facts(rates: World, seed: int) -> None:
    with transaction.atomic():
        RandomLedger(rates, random.Random(seed)).charge_until(AFTER + dt.timedelta(days=1), 9)
        now = AFTER + dt.timedelta(days=1)
        assert [str(each) for month in (MARCH, APRIL) for each in differences(month, now)] == []
        transaction.set_rollback(True)


def test_the_audit_and_charging_have_the_same_rules_for_lost_work() -> None:
    assert ledger_audit.DEFAULT_FORGIVEN_MINUTES == DEFAULT_FORGIVEN_MINUTES
    assert set(ledger_audit.PREEMPTION_CODES) == PREEMPTION_END_CODES
    assert set(ledger_audit.HARDWARE_CODES) == HARDWARE_FAULT_END_CODES


def test_the_audit_of_a_closed_month_includes_its_later_corrections(busy_march: World) -> None:
    world = busy_march
    open_end = running_allocation()
    statements.close_month(month=MARCH, closed_by=world.finance, now=AFTER)
    end_hold(open_end, at(22, day=31), "finished")
    later = AFTER + dt.timedelta(hours=3)
    assert {each.fact for each in differences(now=later)} >= {f"allocation {open_end.pk}"}
    charge_all_gpus(later)
    assert Charge.objects.filter(month=APRIL, start__lt=at(23, day=31)).exists()
    assert [str(each) for month in (MARCH, APRIL) for each in differences(month, later)] == []
    line = Charge.objects.get(month=APRIL, allocation=open_end, reversal=False, corrects__isnull=False)
    change_in_place(line, charged=line.charged + 1, cost=line.cost)
    assert [each.line for each in differences(APRIL, later)] == [line.pk]


def test_lines_that_get_their_first_cost_centre_later_agree_with_the_facts(world: World) -> None:
    price(H100, "2.345677", "2.999999", since=at(0, day=1))
    price(A100, "1.1", since=at(0, day=1))
    slices = units_of(world.hosts["gamma"], "1g.5gb")
    for number, team in enumerate((world.vision, world.language, world.robotics)):
        hold(
            workload(world, team), slices[number], at(9, 7 * number, 13), at(11, 3, number), end_code="failed"
        )
    charge_all_gpus(at(12, 5))
    cost_centre(world.vision, "CC-100", at(0, day=1))
    charge_all_gpus(at(12, 6))
    assert Charge.objects.filter(cost_centre="CC-100", corrects__isnull=False).exists()
    assert [str(each) for each in differences(now=at(12, 7))] == []


def test_gpus_without_any_line_are_found(busy_march: World) -> None:
    line = used_line()
    reversal_of(line)
    found = differences()
    assert [(each.check, each.line, each.start, each.end) for each in found] == [
        ("time", None, line.start, line.end)
    ]
    assert found[0].fact == f"allocation {line.allocation_id}"


def test_a_line_moved_to_another_team_keeps_the_month_open(busy_march: World) -> None:
    """Two inserted rows move a charge: a reversal, and the same line for another team.

    They are also added to the sums of statement lines, so that only the audit finds them.
    """
    line, other = used_line(), busy_march.language
    reversal_of(line)
    moved = insert_copy(
        line,
        corrects_id=line.pk,
        team_id=other.team.pk,
        team_name=other.team.name,
        project_id=other.project.pk,
        project_name=other.project.name,
        cost_centre="CC-200",
    )
    assert {(each.line, each.field, each.fact) for each in differences()} >= {
        (moved.pk, "team", f"allocation {line.allocation_id}"),
        (moved.pk, "project", f"allocation {line.allocation_id}"),
    }
    add_to_sums([*Charge.objects.filter(corrects=line).values_list("pk", flat=True)])
    with rejected(f"line {moved.pk}: .*allocation {line.allocation_id}"):
        statements.close_month(month=MARCH, closed_by=busy_march.finance, now=AFTER)
    assert Statement.objects.get(month=MARCH).state == "open"


def test_an_hour_that_is_charged_twice_is_found(busy_march: World) -> None:
    line = used_line()
    twin = insert_copy(line, created_at=line.created_at + dt.timedelta(seconds=1))
    found = [each for each in differences() if each.check == "time"]
    assert {each.line for each in found} == {line.pk, twin.pk}
    assert {(each.found, each.expected, each.fact) for each in found} == {
        ("1680", "840", f"allocation {line.allocation_id}")
    }


def test_a_line_with_the_price_of_a_different_day_is_found(busy_march: World) -> None:
    line = Charge.objects.filter(bucket="used", model=H100, start__lt=at(0, day=10)).order_by("pk")[0]
    later = Price.objects.get(model=H100, valid_from=at(0, day=10))
    hours = Decimal(line.slot_seconds) / 840 / 3600
    change_in_place(
        line,
        price=later,
        cost=round(hours * later.cost_per_gpu_hour, 6),
        charged=round(hours * later.price_per_gpu_hour, 6),
    )
    [found] = [each for each in differences() if each.field == "price"]
    assert (found.line, found.found, found.fact) == (line.pk, str(later.pk), f"price {line.price_id}")


def test_a_line_with_the_cost_centre_of_a_different_project_is_found(busy_march: World) -> None:
    line = used_line()
    change_in_place(line, cost_centre="CC-200")
    [found] = differences()
    assert (found.line, found.field, found.found, found.expected) == (
        line.pk,
        "cost centre",
        "CC-200",
        "CC-100",
    )
    assert found.fact.startswith("cost centre ")


@pytest.mark.parametrize("field", ["cost", "charged"])
def test_an_amount_that_differs_in_the_last_decimal_is_found(busy_march: World, field: str) -> None:
    line = used_line()
    change_in_place(line, **{field: getattr(line, field) + Decimal("0.000001")})
    [found] = differences()
    assert (found.line, found.check, found.field, found.fact) == (
        line.pk,
        "amount",
        field,
        f"price {line.price_id}",
    )


def test_a_line_without_its_price_is_found(busy_march: World) -> None:
    line = used_line()
    change_in_place(line, price=None, cost=0, charged=0)
    assert [(each.line, each.field, each.expected) for each in differences()] == [
        (line.pk, "price", str(line.price_id))
    ]


def test_a_reversal_that_is_not_the_negative_of_its_line_is_found(busy_march: World) -> None:
    line = used_line()
    reversal = reversal_of(line)
    insert_copy(line, corrects_id=line.pk)
    assert differences() == []
    change_in_place(reversal, charged=reversal.charged - 1)
    assert (reversal.pk, "reversal") in {(each.line, each.check) for each in differences()}


def test_a_line_on_the_statement_of_another_month_is_found(busy_march: World) -> None:
    line = used_line()
    change_in_place(line, month=APRIL)
    [found] = differences()
    assert (found.line, found.field, found.expected) == (line.pk, "month", "2026-03-01")
    change_in_place(
        line, month=MARCH, start=line.start + dt.timedelta(days=31), end=line.end + dt.timedelta(days=31)
    )
    assert line.pk in {each.line for each in differences() if each.field == "month"}


CHANGES: dict[str, Callable[[Charge, World], dict[str, Any]]] = {
    "team": lambda line, world: {"team_id": _another(line.team_id, [each.team.pk for each in world.teams])},
    "project": lambda line, world: {
        "project_id": _another(line.project_id, [each.project.pk for each in world.teams])
    },
    "user": lambda line, world: {"user_id": _another(line.user_id, [each.member.pk for each in world.teams])},
    "cost centre": lambda line, _: {"cost_centre": line.cost_centre + "x"},
    "bucket": lambda line, _: {"bucket": _another(line.bucket, ["preempted", "unhealthy", "used"])},
    "pool": lambda line, world: {"pool_id": _another(line.pool_id, [world.shared.pk, world.static.pk])},
    "model": lambda line, _: {"model": line.model + "x"},
    "price": lambda line, _: {
        "price_id": _another(line.price_id, Price.objects.order_by("pk").values_list("pk", flat=True))
    },
    "cost": lambda line, _: {"cost": line.cost + Decimal("0.000001")},
    "charged": lambda line, _: {"charged": line.charged + Decimal("0.000001")},
    "end": lambda line, _: {"end": line.end + dt.timedelta(seconds=1)},
    "start": lambda line, _: {"start": line.start - dt.timedelta(microseconds=1)},
    "slots": lambda line, _: {"slots": line.slots + 1, "slot_seconds": line.slot_seconds + 1},
    "slot-seconds": lambda line, _: {"slot_seconds": line.slot_seconds + 1},
    "simulated": lambda line, _: {"simulated": not line.simulated},
    "workload type": lambda line, _: {"workload_type": line.workload_type + "x"},
    "factor": lambda line, _: {
        "priority_factor_id": _another(
            line.priority_factor_id, [None, *PriceFactor.objects.order_by("pk").values_list("pk", flat=True)]
        )
    },
    "share": lambda line, _: {"share_percent": line.share_percent - 1},
    "reservation": lambda line, _: {
        "reservation_id": _another(
            line.reservation_id, [None, *Reservation.objects.order_by("pk").values_list("pk", flat=True)]
        )
    },
    "workload": lambda line, _: {
        "workload_id": _another(
            line.workload_id, Workload.objects.order_by("pk").values_list("pk", flat=True)
        )
    },
    "reversal": lambda line, _: {
        "reversal": True,
        "corrects_id": Charge.objects.filter(corrections=None, reversal=False)
        .exclude(pk=line.pk)
        .earliest("pk")
        .pk,
        "slots": -line.slots,
        "slot_seconds": -line.slot_seconds,
        "cost": -line.cost,
        "charged": -line.charged,
    },
    "month": lambda line, _: {"month": _another(line.month, [MARCH, APRIL])},
    "moved": lambda line, _: {
        "start": line.start + dt.timedelta(hours=1),
        "end": line.end + dt.timedelta(hours=1),
    },
}


def _another(value: Any, values: Any) -> Any:
    """Return the first of ``values`` that is not ``value``."""
    return next(each for each in values if each != value)


@pytest.mark.long
def test_one_changed_line_in_two_days_of_charges_is_found(rates: World) -> None:
    assert_each_change_is_found(rates, 1, at(12, day=4), 3)


@pytest.mark.long
@pytest.mark.timeout(600)
@ROLLED_BACK
@given(SEEDS)
def test_one_changed_line_is_always_found(rates: World, seed: int) -> None:
    assert_each_change_is_found(rates, seed, at(12, day=6), 5)


def assert_each_change_is_found(rates: World, seed: int, end: dt.datetime, steps: int) -> None:
    """Charge random facts until ``end``, then change one random line in each possible way.

    Assert that the audit finds each change, and nothing before it.
    """
    dice = random.Random(seed)
    with transaction.atomic():
        RandomLedger(rates, dice).charge_until(end, steps)
        assert [str(each) for each in differences(now=end)] == []
        standing = Charge.objects.filter(
            reversal=False, corrections=None, bucket__in=("used", "reserved_unused")
        )
        for name, change in CHANGES.items():
            line = dice.choice(standing.order_by("pk"))
            # If several cost centres share a charge, the audit compares their lines together and names the
            # first line.
            key = ("gpu", "start", "end", "bucket", "allocation", "reservation")
            piece = standing.filter(**{name: getattr(line, name) for name in key})
            lines = set(piece.values_list("pk", flat=True)) if line.share_percent < 100 else {line.pk}
            with transaction.atomic():
                change_in_place(line, **change(line, rates))
                found = differences(now=end)
                # A moved line may cover time of the same work that is not charged yet. The audit then
                # reports the time that lost its line.
                lost = name == "moved" and any(
                    each.line is None and (each.gpu, each.start) == (line.gpu_id, line.start)
                    for each in found
                )
                assert lost or lines & {each.line for each in found}
                transaction.set_rollback(True)
        transaction.set_rollback(True)


def test_the_command_lists_each_difference_and_fails(busy_march: World) -> None:
    out = StringIO()
    call_command("audit_ledger", "--month=2026-03", stdout=out)
    assert out.getvalue() == "2026-03: every line agrees with the facts\n"
    line = used_line()
    change_in_place(line, charged=line.charged + 1)
    out = StringIO()
    with pytest.raises(CommandError, match=r"2026-03: \d+ differences$"):
        call_command("audit_ledger", "--month=2026-03", "--json", stdout=out)
    found, *cents = [json.loads(text) for text in out.getvalue().splitlines()]
    assert (found["line"], found["check"], found["field"]) == (line.pk, "amount", "charged")
    assert {each["check"] for each in cents} == {"cents"}  # the cents are not those of the changed line


def test_a_month_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CommandError, match="'2026-13'; allowed: a month as YYYY-MM"):
        call_command("audit_ledger", "--month=2026-13")
